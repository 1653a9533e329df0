package world

import (
	"slices"
	"strings"
	"testing"
	"time"

	"validator-gw/internal/verimail/simulator"
)

const (
	valid   = "deliverable.1+zebra@quagga1.com"
	invalid = "hardbounce.2+zebra@quagga1.com"
	greyed  = "softbounce.3+zebra@quagga1.com"
	broken  = "unmapped.4+zebra@quagga1.com"
)

// kept is a small ledger in which every promise is kept: a verdict at once, one after a review, a mailbox that is given
// up after its ladder, and a review that ends dead.
func kept() *ledger {
	began := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return began.Add(d) }
	const second, hour = time.Second, time.Hour
	l := &ledger{seed: 7, began: began, rate: 20, burst: 20, script: simulator.Script{
		{Mode: simulator.Mode{Fault: simulator.Healthy}, For: 10 * hour},
		{Mode: simulator.Mode{Fault: simulator.Hang}, For: hour},
		{Mode: simulator.Mode{Fault: simulator.Reset}, For: hour},
	}}
	call := func(d time.Duration, address, result string, billed bool) {
		l.calls = append(l.calls, simulator.Call{At: at(d), Address: address, Status: 200, Result: result, Billed: billed})
	}
	ask := func(n int, d, took time.Duration, address, id string, w word, decision string) *answer {
		a := answer{visit: n, kind: kindOf(address), address: address, asked: at(d), got: at(d + took),
			budget: 800 * time.Millisecond, code: 200, id: id, word: w, decision: decision, source: "upstream",
			checked: at(d + took)}
		if !w.final() {
			a.code, a.source, a.checked = 202, "none", time.Time{}
		}
		l.answers = append(l.answers, a)
		return &l.answers[len(l.answers)-1]
	}
	see := func(d time.Duration, id string, w word, checked time.Duration) {
		l.looks = append(l.looks, look{id: id, asked: at(d), got: at(d), code: 200, word: w, checked: at(checked)})
	}

	ask(1, 0, 120*time.Millisecond, valid, "id-1", word{"valid", "mailbox_accepted"}, "accept")
	call(0, valid, "deliverable", true)

	pending := word{"needs_review", "upstream_timeout"}
	ask(2, second, 650*time.Millisecond, invalid, "id-2", pending, "accept_pending")
	call(second, invalid, "hardbounce", true)
	see(2*second, "id-2", pending, 0)
	see(4*second, "id-2", word{"invalid", "mailbox_not_found"}, 3*second)

	ask(3, 2*second, 200*time.Millisecond, greyed, "id-3", word{"needs_review", "mailbox_temp_rejected"}, "accept_pending")
	for i, d := range []time.Duration{0, 11 * time.Minute, 7 * hour, 80 * hour} {
		call(2*second+d+time.Duration(i)*second, greyed, "softbounce", true)
	}
	see(90*hour, "id-3", word{"unresolved", "mailbox_temp_rejected"}, 81*hour)

	ask(4, 3*second, 200*time.Millisecond, broken, "id-4", word{"needs_review", "unmapped"}, "accept_pending")
	for i := range 8 {
		call(3*second+time.Duration(i)*hour, broken, "quarantined", true)
	}
	see(90*hour, "id-4", word{"unresolved", "unmapped"}, 8*hour)
	l.dead = 1

	l.answers = append(l.answers, answer{visit: 5, asked: at(second), got: at(second), budget: 800 * time.Millisecond,
		code: 200, word: word{"invalid", "missing_at"}, decision: "reject", source: "local"})
	l.rested = at(90 * hour)
	l.sort()
	return l
}

func TestKeptPromises(t *testing.T) {
	t.Parallel()
	for _, b := range kept().check() {
		t.Error(b)
	}
}

// TestBrokenPromises breaks one promise at a time, and wants that check, and no other, to say so.
func TestBrokenPromises(t *testing.T) {
	t.Parallel()
	const (
		codes   = "every request gets an answer, 200 or 202"
		budget  = "no answer over its budget"
		ends    = "every accepted id ends, and stays as it ended"
		words   = "no verdict that the upstream did not give"
		bill    = "no second bill without a reason"
		rate    = "never over the upstream's rate, in any window"
		orphans = "a caller who hangs up still leaves a row"
		queue   = "the queue drains"
		errs    = "no verdict lost, no error but the expected, a clean stop"
		leaks   = "no address and no key in log, metrics or file"
	)
	find := func(l *ledger, visit int) *answer {
		return &l.answers[slices.IndexFunc(l.answers, func(a answer) bool { return a.visit == visit })]
	}
	again := func(l *ledger, address string, after time.Duration, change func(*simulator.Call)) {
		c := l.calls[slices.IndexFunc(l.calls, func(c simulator.Call) bool { return c.Address == address })]
		c.At = c.At.Add(after)
		if change != nil {
			change(&c)
		}
		l.calls = append(l.calls, c)
		l.sort()
	}
	silence := func(at time.Duration) func(*simulator.Call) {
		return func(c *simulator.Call) {
			c.At, c.Status, c.Result = kept().began.Add(at), 0, ""
		}
	}
	tests := []struct {
		name    string
		promise string // empty: nothing may be said
		breaks  func(*ledger)
	}{
		{"a lost row: the id is never final", ends, func(l *ledger) { l.looks = l.looks[:1] }},
		{"a lost row: the id is unknown", codes, func(l *ledger) {
			s := l.looks[0]
			s.code, s.word = 404, word{}
			l.looks = append(l.looks, s)
		}},
		{"a lost row: nobody ever looked", ends, func(l *ledger) { l.looks = nil }},
		{"an end that changes", ends, func(l *ledger) {
			s := l.looks[1]
			s.word, s.got = word{"needs_review", "upstream_timeout"}, s.got.Add(time.Second)
			s.asked = s.got
			l.looks = append(l.looks, s)
			s.word, s.got = word{"invalid", "mailbox_not_found"}, s.got.Add(time.Second)
			s.asked = s.got
			l.looks = append(l.looks, s)
		}},
		{"a late answer", budget, func(l *ledger) { a := find(l, 2); a.got = a.asked.Add(800*time.Millisecond + 1) }},
		{"over a second whatever the budget", budget, func(l *ledger) {
			a := find(l, 2)
			a.budget, a.got = time.Hour, a.asked.Add(time.Second+1)
		}},
		{"a late status", budget, func(l *ledger) { l.looks[0].got = l.looks[0].asked.Add(time.Millisecond) }},
		{"no answer", codes, func(l *ledger) { find(l, 1).err = "EOF" }},
		{"no answer while the gateway is stopped", "", func(l *ledger) {
			find(l, 1).err = "EOF"
			l.stops = []span{{l.began.Add(-time.Second), l.began.Add(time.Second)}}
		}},
		{"a 503", codes, func(l *ledger) { find(l, 5).code = 503 }},
		{"a 200 for no verdict", codes, func(l *ledger) { find(l, 2).code = 200 }},
		{"a verdict that is the opposite", words, func(l *ledger) {
			a := find(l, 1)
			a.word, a.decision = word{"invalid", "mailbox_not_found"}, "reject"
		}},
		{"a verdict before the upstream was asked", words, func(l *ledger) {
			l.calls[0].At = l.calls[0].At.Add(time.Minute)
			l.sort()
		}},
		{"a verdict of another time", words, func(l *ledger) { find(l, 1).checked = find(l, 1).checked.Add(time.Minute) }},
		{"a verdict out of a contradiction", words, func(l *ledger) {
			for i := range l.looks {
				if l.looks[i].id == "id-4" {
					l.looks[i].word = word{"invalid", "mailbox_not_found"}
				}
			}
		}},
		{"given up too soon", words, func(l *ledger) {
			last := slices.IndexFunc(l.calls, func(c simulator.Call) bool { return c.At.Sub(l.began) > 80*time.Hour })
			l.calls = slices.Delete(l.calls, last, last+1)
		}},
		{"dead too soon", words, func(l *ledger) {
			first := slices.IndexFunc(l.calls, func(c simulator.Call) bool { return c.Address == broken })
			l.calls = slices.Delete(l.calls, first, first+1)
		}},
		{"a rejection on an unknown", words, func(l *ledger) { find(l, 2).decision = "reject" }},
		{"a good address refused as syntax", words, func(l *ledger) {
			a := find(l, 1)
			a.word, a.decision, a.source = word{"invalid", "local_char"}, "reject", "local"
		}},
		{"an id of two addresses", words, func(l *ledger) { find(l, 1).id = "id-2" }},
		{"a second bill for a fresh verdict", bill, func(l *ledger) { again(l, valid, 6*24*time.Hour, nil) }},
		{"a bill for a verdict that is stale", "", func(l *ledger) { again(l, valid, 7*24*time.Hour, nil) }},
		{"two bills in the same instant", bill, func(l *ledger) { again(l, valid, 0, nil) }},
		{"a mailbox asked again within its ladder", bill, func(l *ledger) { again(l, greyed, time.Minute, nil) }},
		{"an unusable answer asked again at once", bill, func(l *ledger) { again(l, broken, time.Second, nil) }},
		{"a time-out that is retried", bill, func(l *ledger) {
			again(l, valid, 0, silence(10*time.Hour))
			again(l, valid, 0, silence(10*time.Hour+700*time.Millisecond))
			l.calls = slices.DeleteFunc(l.calls, func(c simulator.Call) bool { return c.Address == valid && c.Result != "" })
			find(l, 1).word, find(l, 1).err = word{}, "EOF"
			l.stops = []span{{l.began, l.began.Add(time.Second)}}
		}},
		{"silence that is asked again by the loop", "", func(l *ledger) {
			again(l, invalid, 0, silence(10*time.Hour))
			again(l, invalid, 0, silence(10*time.Hour+10*time.Second))
			l.calls = slices.DeleteFunc(l.calls, func(c simulator.Call) bool { return c.Address == invalid && c.Result != "" })
			again(l, greyed, 0, func(c *simulator.Call) {
				c.At, c.Address, c.Result = l.began.Add(10*time.Hour+30*time.Second), invalid, "hardbounce"
			})
			l.looks[1].got, l.looks[1].checked = l.began.Add(11*time.Hour), l.began.Add(10*time.Hour+31*time.Second)
			l.looks[1].asked = l.looks[1].got
		}},
		{"a reset that is retried without backing off", bill, func(l *ledger) {
			again(l, valid, 0, silence(11*time.Hour+30*time.Minute))
			again(l, valid, 0, silence(11*time.Hour+30*time.Minute+time.Millisecond))
			l.calls = slices.DeleteFunc(l.calls, func(c simulator.Call) bool { return c.Address == valid && c.Result != "" })
			find(l, 1).word, find(l, 1).err = word{}, "EOF"
			l.stops = []span{{l.began, l.began.Add(time.Second)}}
		}},
		{"an address that nobody asked about", bill, func(l *ledger) {
			again(l, valid, time.Hour, func(c *simulator.Call) { c.Address = "deliverable.9@quagga1.com" })
		}},
		{"a burst over the rate", rate, func(l *ledger) {
			for range 21 {
				again(l, valid, time.Hour, func(c *simulator.Call) { c.Status, c.Result, c.Billed = 500, "", false })
			}
		}},
		{"the whole burst and no more", "", func(l *ledger) {
			for range 20 {
				again(l, valid, 30*time.Minute, func(c *simulator.Call) { c.Status, c.Result, c.Billed = 500, "", false })
			}
		}},
		{"a caller who hung up and left nothing", orphans, func(l *ledger) { l.orphans = append(l.orphans, *find(l, 1)) }},
		{"a review that stays open", queue, func(l *ledger) { l.open = 1 }},
		{"a world that does not come to rest", queue, func(l *ledger) { l.stuck = "1 reviews are open at 288h0m0s" }},
		{"a review that is dead and should not be", queue, func(l *ledger) { l.dead++ }},
		{"a verdict lost before it was durable", errs, func(l *ledger) { l.lost = 1 }},
		{"an error in the log", errs, func(l *ledger) { l.errors = []string{"log: review was not recorded"} }},
		{"an address in the log", leaks, func(l *ledger) { l.leaks = []string{`"zebra" is in the log`} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := kept()
			tt.breaks(l)
			said := l.check()
			if tt.promise != "" && len(said) == 0 {
				t.Error("nobody noticed")
			}
			for _, s := range said {
				if tt.promise == "" || !strings.HasPrefix(s, tt.promise+": ") {
					t.Errorf("said %q, want %q to be what is broken", s, tt.promise)
				}
			}
		})
	}
}

// TestPlanIsDrawnFromTheSeed: equal seeds are equal worlds, others are others.
func TestPlanIsDrawnFromTheSeed(t *testing.T) {
	t.Parallel()
	one, same, other := drawPlan(1, 24*time.Hour), drawPlan(1, 24*time.Hour), drawPlan(2, 24*time.Hour)
	if one.script.String() != same.script.String() || !slices.Equal(one.visits, same.visits) || one.stopAt != same.stopAt {
		t.Error("two plans of one seed differ")
	}
	if one.script.String() == other.script.String() || slices.Equal(one.visits, other.visits) {
		t.Error("the plans of two seeds are equal")
	}
}
