package world

import (
	"fmt"
	"slices"
	"time"

	"validator-gw/internal/verimail/simulator"
)

// slack is what an answer may take beyond its budget. Computing takes no time in a bubble, and neither does a commit,
// so every wait is one that the gateway chose: there is nothing to forgive.
const slack = 0

// wireMax bounds every answer, whatever was asked for (README: the form never waits).
const wireMax = time.Second

// promises are the checks of a ledger. Each returns what breaks it.
var promises = []struct {
	name  string
	check func(*ledger) []string
}{
	{"every request gets an answer, 200 or 202", (*ledger).checkCodes},
	{"no answer over its budget", (*ledger).checkBudgets},
	{"every accepted id ends, and stays as it ended", (*ledger).checkEnds},
	{"no verdict that the upstream did not give", (*ledger).checkWords},
	{"no second bill without a reason", (*ledger).checkBills},
	{"never over the upstream's rate, in any window", (*ledger).checkRate},
	{"a caller who hangs up still leaves a row", (*ledger).checkOrphans},
	{"the queue drains", (*ledger).checkQueue},
	{"no verdict lost, no error but the expected, a clean stop", (*ledger).checkErrors},
	{"no address and no key in log, metrics or file", (*ledger).checkLeaks},
}

// check returns what is broken, at most five of a promise one by one.
func (l *ledger) check() []string {
	var all []string
	for _, p := range promises {
		broken := p.check(l)
		const shown = 5
		for i, b := range broken {
			if i == shown {
				all = append(all, fmt.Sprintf("%s: and %d more", p.name, len(broken)-shown))
				break
			}
			all = append(all, p.name+": "+b)
		}
	}
	return all
}

// excused says that no answer may have come because the gateway was stopped.
func (l *ledger) excused(asked, got time.Time) bool {
	return slices.ContainsFunc(l.stops, func(s span) bool { return !got.Before(s.from) && !asked.After(s.to) })
}

// checkCodes: a 503 would be allowed above the gateway's concurrency or queue bound, or when its store fails; in this
// world nothing comes near the bounds and the disk works.
func (l *ledger) checkCodes() (broken []string) {
	for _, a := range l.answers {
		switch {
		case a.err != "" && l.excused(a.asked, a.got):
		case a.err != "":
			broken = append(broken, fmt.Sprintf("visit %d at %s: %s", a.visit, l.at(a.asked), a.err))
		case a.code != 200 && a.code != 202:
			broken = append(broken, fmt.Sprintf("visit %d at %s: HTTP %d", a.visit, l.at(a.asked), a.code))
		case (a.code == 202) != (a.word.status == "needs_review"):
			broken = append(broken, fmt.Sprintf("visit %d at %s: HTTP %d with status %q",
				a.visit, l.at(a.asked), a.code, a.word.status))
		case a.kind != "" && a.id == "":
			broken = append(broken, fmt.Sprintf("visit %d at %s: no id", a.visit, l.at(a.asked)))
		}
	}
	for _, s := range l.looks {
		switch {
		case s.err != "" && l.excused(s.asked, s.got):
		case s.err != "":
			broken = append(broken, fmt.Sprintf("status of %s at %s: %s", s.id, l.at(s.asked), s.err))
		case s.code != 200:
			broken = append(broken, fmt.Sprintf("status of %s at %s: HTTP %d", s.id, l.at(s.asked), s.code))
		}
	}
	return broken
}

func (l *ledger) checkBudgets() (broken []string) {
	for _, a := range l.answers {
		if took := a.got.Sub(a.asked); took > min(a.budget+slack, wireMax) {
			broken = append(broken, fmt.Sprintf("visit %d at %s: answered after %v, budget %v",
				a.visit, l.at(a.asked), took, a.budget))
		}
	}
	for _, s := range l.looks {
		if took := s.got.Sub(s.asked); took > s.wait+slack {
			broken = append(broken, fmt.Sprintf("status of %s at %s: answered after %v, wait %v",
				s.id, l.at(s.asked), took, s.wait))
		}
	}
	return broken
}

func (l *ledger) checkEnds() (broken []string) {
	last := make(map[string]look)
	for _, s := range l.looks {
		if s.err != "" || s.code != 200 {
			continue
		}
		if before, ok := last[s.id]; ok && before.word.final() && before.word != s.word {
			broken = append(broken, fmt.Sprintf("%s was %v at %s and is %v at %s",
				s.id, before.word, l.at(before.got), s.word, l.at(s.got)))
		}
		last[s.id] = s
	}
	seen := make(map[string]bool)
	for _, a := range l.answers {
		if a.code != 202 || seen[a.id] {
			continue
		}
		seen[a.id] = true
		switch s, ok := last[a.id]; {
		case !ok:
			broken = append(broken, fmt.Sprintf("%s, accepted at %s, is not known at the end", a.id, l.at(a.got)))
		case !s.word.final():
			broken = append(broken, fmt.Sprintf("%s, accepted at %s, is still %v at %s",
				a.id, l.at(a.got), s.word, l.at(s.got)))
		}
	}
	return broken
}

// said is what each of the provider's words means (verimail.io, docs/results); a word that is not here is no verdict.
var said = map[string]word{
	"deliverable": {"valid", "mailbox_accepted"},
	"hardbounce":  {"invalid", "mailbox_not_found"},
	"inbox_full":  {"risky", "mailbox_full"},
	"catch_all":   {"risky", "catch_all"},
	"disposable":  {"risky", "disposable"},
}

// transient are the words on the mailbox's side, and unusable answers: what a review ends with when it is given up.
var transient = map[string]string{
	"softbounce": "mailbox_temp_rejected", "undeliverable": "mx_unreachable", "unknown": "verifier_error",
}

// How many useless answers a review takes before it is given up (fallback.MaxAttempts, MaxUnusable).
const (
	mailboxAnswers  = 4 // the first, and one after each of 10 min, 6 h, 3 d
	unusableAnswers = 8
)

// heard is how long after a call began its answer may have come: the gateway waits for ten seconds.
const heard = 10 * time.Second

func (l *ledger) checkWords() (broken []string) {
	calls := l.byAddress()
	owner := make(map[string]string) // of an id
	for _, a := range l.answers {
		if a.err != "" {
			continue
		}
		where := fmt.Sprintf("visit %d at %s", a.visit, l.at(a.asked))
		if a.kind == "" {
			if a.word.status != "invalid" || a.source != "local" || a.id != "" {
				broken = append(broken, fmt.Sprintf("%s: text that is no address got %v from %s", where, a.word, a.source))
			}
			continue
		}
		if before, ok := owner[a.id]; ok && before != a.address {
			broken = append(broken, where+": its id is that of another address")
		}
		owner[a.id] = a.address
		if why := unfounded(a.word, a.checked, a.got, a.kind, calls[a.address]); why != "" {
			broken = append(broken, fmt.Sprintf("%s (%s): %v: %s", where, a.kind, a.word, why))
		}
		if want := decides(a.word, a.flow); a.decision != want {
			broken = append(broken, fmt.Sprintf("%s: decision %q on %v, want %q", where, a.decision, a.word, want))
		}
	}
	for _, s := range l.looks {
		if s.err != "" || s.code != 200 {
			continue
		}
		address, known := owner[s.id]
		if !known {
			continue // an answer that was cut off with the connection
		}
		if why := unfounded(s.word, s.checked, s.got, kindOf(address), calls[address]); why != "" {
			broken = append(broken, fmt.Sprintf("status of %s at %s (%s): %v: %s",
				s.id, l.at(s.got), kindOf(address), s.word, why))
		}
	}
	return broken
}

// unfounded says why a word about an address does not follow from the upstream's answers to calls for it.
func unfounded(w word, checked, got time.Time, kind string, calls []simulator.Call) string {
	if !w.final() {
		return ""
	}
	gaveUp, useless := 0, 0
	for _, c := range calls {
		if c.At.After(got) {
			break
		}
		switch {
		case slices.Contains(unusable, kind):
			if c.Status != 0 && c.Status < 500 && c.Status != 429 {
				useless++
			}
		case transient[c.Result] != "":
			gaveUp++
		case said[c.Result] == w:
			// checked_at has milliseconds.
			if !checked.Before(c.At.Truncate(time.Millisecond)) && !checked.After(c.At.Add(heard)) {
				return ""
			}
		}
	}
	switch {
	case w.status != "unresolved":
		return "the upstream gave no such verdict at that time"
	case slices.Contains(unusable, kind):
		if useless < unusableAnswers {
			return fmt.Sprintf("given up after %d answers that can't be used, not %d", useless, unusableAnswers)
		}
	case gaveUp < mailboxAnswers:
		return fmt.Sprintf("given up after %d answers on the mailbox's side, not %d", gaveUp, mailboxAnswers)
	}
	return ""
}

// decides is the default policy (README, "What an answer means").
func decides(w word, flow string) string {
	switch {
	case w.status == "valid":
		return "accept"
	case w.status == "invalid", w.reason == "disposable":
		return "reject"
	case w.status == "risky":
		return "accept"
	case flow == "high_risk":
		return "hold"
	default:
		return "accept_pending"
	}
}

// kindOf reads the kind off an address of a plan: what is before the first dot.
func kindOf(address string) string {
	for i := range address {
		if address[i] == '.' {
			return address[:i]
		}
	}
	return address
}

func (l *ledger) byAddress() map[string][]simulator.Call {
	m := make(map[string][]simulator.Call)
	for _, c := range l.calls {
		m[c.Address] = append(m[c.Address], c)
	}
	return m
}

// checkBills walks through each address's billed calls. What the one before brought says how soon there may be another:
//
//	a verdict                 not within its freshness (docs/settings.md, cache.*, less 10 %)
//	the mailbox's side        not before the ladder's next step: 10 min, 6 h, 3 d; after the fourth 24 h less 10 %
//	an unusable answer        not within the least life of a marker, 30 s; after the eighth its review is dead, and
//	                          whoever asks then, asks anew
//	a reset                   a retry backs off, 130 ms; billed all the same
//	silence                   the call is waited for, ten seconds from the flight's beginning: nearly as long
//	rubbish                   whenever the loop or a person asks again
//	nothing, cut off by stop  at once
func (l *ledger) checkBills() (broken []string) {
	asked := make(map[string]bool)
	for _, a := range l.answers {
		asked[a.address] = true
	}
	for _, a := range l.gone {
		asked[a] = true
	}
	var strangers int
	for address, calls := range l.byAddress() {
		if !asked[address] {
			strangers++
		}
		var b bills
		for _, c := range calls {
			if !c.Billed {
				continue
			}
			if b.n > 0 && !l.cutOff(b.last) {
				if gap := c.At.Sub(b.last.At); gap < b.pause {
					broken = append(broken, fmt.Sprintf(
						"%s: bill %d at %s, only %v after the one before, which brought %s and allows the next after %v",
						kindOf(address), b.n+1, l.at(c.At), gap, b.brought, b.pause))
				}
			}
			b.add(c, kindOf(address), l.script.At(c.At.Sub(l.began)).Fault)
		}
	}
	if strangers > 0 {
		broken = append(broken, fmt.Sprintf("%d addresses that nobody asked about", strangers))
	}
	slices.Sort(broken)
	return broken
}

// cutOff says that a stop of the gateway may have ended a call before its answer came.
func (l *ledger) cutOff(c simulator.Call) bool {
	return slices.ContainsFunc(l.stops, func(s span) bool { return c.At.After(s.from.Add(-heard)) && c.At.Before(s.to) })
}

// bills is what is known of an address after its latest bill.
type bills struct {
	n                int
	last             simulator.Call
	brought          string
	pause            time.Duration
	mailbox, useless int // of the review that is open
}

func (b *bills) add(c simulator.Call, kind string, fault simulator.Fault) {
	const day = 24 * time.Hour
	b.n++
	b.last = c
	v, isVerdict := said[c.Result]
	switch {
	case slices.Contains(unusable, kind) && c.Status == 200 && (c.Result != "" || fault != simulator.Garbage):
		b.useless++
		b.brought, b.pause = "an answer that can't be used", 30*time.Second
		if b.useless >= unusableAnswers {
			b.pause = 0
		}
	case isVerdict:
		b.mailbox, b.useless = 0, 0
		b.brought = "a verdict"
		fresh := map[string]time.Duration{"valid": 7 * day, "invalid": day, "risky": 7 * day}[v.status]
		if v.reason == "mailbox_full" {
			fresh = time.Hour
		}
		b.pause = fresh * 9 / 10
	case transient[c.Result] != "":
		ladder := []time.Duration{10 * time.Minute, 6 * time.Hour, 3 * day, day * 9 / 10}
		b.brought, b.pause = fmt.Sprintf("answer %d on the mailbox's side", b.mailbox+1), ladder[b.mailbox]
		b.mailbox = (b.mailbox + 1) % len(ladder)
	case c.Status == 200:
		b.brought, b.pause = "rubbish", time.Nanosecond
	case fault == simulator.Reset:
		b.brought, b.pause = "a reset", 130*time.Millisecond
	default:
		b.brought, b.pause = "silence", 9*time.Second
	}
}

// peak is the highest burst that the upstream saw over the gateway's rate.
func (l *ledger) peak() float64 { return simulator.PeakBurst(l.calls, l.rate) }

// checkRate: over a real wire the upstream may see 50 ms of the rate more than was granted; here the wire takes
// no time, so the bound is that of the grants. A hundredth is for the rounding of sums.
func (l *ledger) checkRate() []string {
	if peak := l.peak(); peak > float64(l.burst)+0.01 {
		return []string{fmt.Sprintf("the upstream saw a burst of %.2f over %v calls/s; the bound is %d",
			peak, l.rate, l.burst)}
	}
	return nil
}

func (l *ledger) checkOrphans() (broken []string) {
	for _, a := range l.orphans {
		broken = append(broken, fmt.Sprintf("visit %d at %s left after %v, and the store knows nothing of it",
			a.visit, l.at(a.asked), a.got.Sub(a.asked)))
	}
	return broken
}

func (l *ledger) checkQueue() (broken []string) {
	if l.stuck != "" {
		broken = append(broken, l.stuck)
	}
	if l.open != 0 {
		broken = append(broken, fmt.Sprintf("%d reviews are open at the end", l.open))
	}
	want := make(map[string]bool)
	for _, a := range l.answers {
		if a.code == 202 && slices.Contains(unusable, a.kind) {
			want[a.id] = true
		}
	}
	if l.dead != len(want) {
		broken = append(broken, fmt.Sprintf("%d reviews are dead at the end; %d are of answers that can't be used",
			l.dead, len(want)))
	}
	return broken
}

func (l *ledger) checkErrors() []string {
	broken := slices.Clone(l.errors)
	if l.lost != 0 {
		broken = append(broken, fmt.Sprintf("%v verdicts were lost before they were durable", l.lost))
	}
	return broken
}

func (l *ledger) checkLeaks() []string { return l.leaks }
