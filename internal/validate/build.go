package validate

import (
	"errors"
	"time"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// asker is whom an answer is for. Without an address, only what the verdict says is known.
type asker struct {
	addr   normalize.Address
	fp     normalize.Fingerprint
	policy Policy
	hints  normalize.Hints
	dedupe string
}

func (s *Service) asking(addr normalize.Address, fp normalize.Fingerprint, policy Policy, plan AddressPlan) asker {
	who := asker{addr: addr, fp: fp, policy: policy, hints: plan.Domains.Look(addr)}
	if plan.DedupeKey {
		who.dedupe = s.prints.DedupeKey(addr)
	}
	return who
}

// localOf is what is kept of the hints beside a verdict.
func localOf(h normalize.Hints) *verdict.Local {
	return &verdict.Local{Flags: h.Flags, Disposable: listOf(h.Disposable), Unicode: normalize.UnicodeVersion, Rules: normalize.RulesVersion}
}

func listOf(r normalize.ListRef) verdict.List {
	return verdict.List{Name: r.Name, Version: r.Version, Entries: r.Count}
}

// introduce puts into an answer what the address alone tells: its forms, its flags under those of the upstream, and a
// suggestion where the upstream made none.
func (who asker) introduce(a *Answer, upstream verdict.Flags) {
	a.Normalized, a.Unicode, a.DedupeKey = who.addr.Text(), who.addr.Unicode(), who.dedupe
	a.explain(upstream, who.hints.Flags, listOf(who.hints.Disposable))
	if a.Suggestion == "" {
		a.Suggestion, a.SuggestionReason = who.hints.Suggestion, who.hints.SuggestionReason
	}
}

// explain sets the flags: the upstream's word over ours. Where ours stands and came from a list, the list is named.
func (a *Answer) explain(upstream, local verdict.Flags, disposable verdict.List) {
	a.Flags = local.Over(upstream)
	if upstream.Disposable == verdict.Unknown && local.Disposable == verdict.True {
		a.DisposableList = disposable
	}
}

// denied answers for a domain on the operator's own list. Nobody was asked, so nothing has an id.
func denied(who asker) Answer {
	a := Answer{Status: verdict.Risky, Reason: verdict.LocalDenylist, Reasons: []verdict.Reason{verdict.LocalDenylist},
		Source: verdict.FromLocal, Fingerprint: who.fp.Prefix()}
	who.introduce(&a, verdict.Flags{})
	a.Decision = who.policy.Decide(a.Status, a.Reason, a.Flags)
	return a
}

// refused answers for text that can't be an address. Nothing was checked, so nothing has an id.
func refused(err error, p Policy, plan AddressPlan) Answer {
	a := Answer{Status: verdict.Invalid, Reason: verdict.Encoding, Source: verdict.FromLocal}
	var r *normalize.Refusal
	if errors.As(err, &r) {
		a.Reason, a.Suggestion = r.Reason, plan.Domains.Refine(plan.Rules, r.Suggestion)
	}
	if a.Suggestion != "" {
		a.SuggestionReason = a.Reason
	}
	a.Reasons = []verdict.Reason{a.Reason}
	a.Decision = p.Decide(a.Status, a.Reason, a.Flags)
	return a
}

// known answers with what is known: a verdict, or the marker of an open review.
func (s *Service) known(who asker, k verdict.Cached, source verdict.Source) Answer {
	if k.Marker != nil {
		return s.pending(who, *k.Marker)
	}
	v := *k.Verdict
	now := time.Now()
	a := Answer{
		ID: v.ID, Status: v.Status, Reason: v.Reason, Reasons: v.Reasons, Attempts: v.Attempts, Source: source,
		Provider: v.Provider, CheckedAt: v.CheckedAt, Age: max(now.Sub(v.CheckedAt), 0), Stale: !s.fresh(k, now),
		Fingerprint: who.fp.Prefix(),
	}
	if a.ExpiresAt = v.SoftUntil; a.Stale && now.Before(v.SoftUntil) {
		a.ExpiresAt = now // another profile's: nobody knows since when
	}
	switch {
	case !who.addr.IsZero():
		a.Suggestion = s.suggestion(who.addr, v.Suggestion)
		who.introduce(&a, v.Flags)
	case v.Local != nil:
		a.explain(v.Flags, v.Local.Flags, v.Local.Disposable)
	default:
		a.Flags = v.Flags
	}
	a.Decision = who.policy.Decide(a.Status, a.Reason, a.Flags)
	return a
}

// spelled puts a kept suggestion together from its parts.
func (s *Service) spelled(addr normalize.Address, g verdict.Suggestion) string {
	switch {
	case g.Domain != "":
		return addr.Local() + "@" + g.Domain
	case len(g.Sealed) > 0:
		if text, err := s.cfg.Open(g.Sealed); err == nil {
			return text
		}
	}
	return ""
}

// suggestion is what the upstream suggested. Nobody is led to a domain that the lists warn of, or away from one that the
// operator vouches for.
func (s *Service) suggestion(addr normalize.Address, g verdict.Suggestion) string {
	text, plan := s.spelled(addr, g), s.cfg.Address()
	if text == "" {
		return ""
	}
	meant, err := plan.Rules.Parse(text)
	if err != nil || meant.Domain() != addr.Domain() && plan.Domains.Allows(addr) {
		return ""
	}
	if h := plan.Domains.Look(meant); h.Denied || h.Flags.Disposable == verdict.True || h.Flags.MixedScript == verdict.True {
		return ""
	}
	return text
}

// Bounds of what a caller is told to wait before it asks for the status again.
const (
	minPoll = 2 * time.Second
	maxPoll = time.Minute
	// latePoll is for a call that is on the wire still: its answer comes in seconds, if it comes.
	latePoll = 3 * time.Second
)

// pending answers with an open review.
func (s *Service) pending(who asker, m verdict.Marker) Answer {
	a := Answer{
		ID: m.ID, Status: verdict.NeedsReview, Reason: m.Reason, Reasons: []verdict.Reason{m.Reason}, Source: verdict.FromNone,
		NextCheckAt: m.NextCheckAt, PollAfter: min(max(time.Until(m.NextCheckAt), minPoll), maxPoll), Fingerprint: who.fp.Prefix(),
	}
	if !who.addr.IsZero() {
		who.introduce(&a, verdict.Flags{})
	}
	a.Decision = who.policy.Decide(a.Status, a.Reason, a.Flags)
	return a
}
