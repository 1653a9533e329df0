package validate

import (
	"errors"
	"time"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// asker is whom an answer is for.
type asker struct {
	addr   normalize.Address
	fp     normalize.Fingerprint
	policy Policy
}

// refused answers for text that can't be an address. Nothing was checked, so nothing has an id.
func refused(err error, p Policy) Answer {
	a := Answer{Status: verdict.Invalid, Reason: verdict.Encoding, Source: verdict.FromLocal}
	var r *normalize.Refusal
	if errors.As(err, &r) {
		a.Reason, a.Suggestion = r.Reason, r.Suggestion
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
		ID: v.ID, Status: v.Status, Reason: v.Reason, Reasons: v.Reasons, Flags: v.Flags, Attempts: v.Attempts, Source: source,
		Provider: v.Provider, CheckedAt: v.CheckedAt, Age: max(now.Sub(v.CheckedAt), 0), Stale: now.After(v.SoftUntil),
		Fingerprint: who.fp.Prefix(),
	}
	if !who.addr.IsZero() {
		a.Normalized = who.addr.Text()
		a.Flags = who.addr.Flags().Over(v.Flags)
		a.Suggestion = s.suggestion(who.addr, v.Suggestion)
	}
	a.Decision = who.policy.Decide(a.Status, a.Reason, a.Flags)
	return a
}

// suggestion puts together what the upstream suggested from its parts.
func (s *Service) suggestion(addr normalize.Address, g verdict.Suggestion) string {
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
		a.Normalized = who.addr.Text()
		a.Flags = who.addr.Flags()
	}
	a.Decision = who.policy.Decide(a.Status, a.Reason, a.Flags)
	return a
}
