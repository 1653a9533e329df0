package verimail

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// 429 with Retry-After: 3600: the answer comes at once, nobody calls before the hour is over, and then it works.
func TestRetryAfterAnHour(t *testing.T) {
	t.Parallel()
	for _, hint := range []simulator.Hint{simulator.HintSeconds, simulator.HintDate, simulator.HintEpoch, simulator.HintRateLimitDelta} {
		for _, fault := range []simulator.Fault{simulator.Throttle, simulator.Error503} {
			t.Run(fmt.Sprintf("%s %s", fault, hint), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t, simulator.Config{})
					r.mode(simulator.Mode{Fault: fault, RetryAfter: time.Hour, Hint: hint})
					began := time.Now()
					over := began.Add(time.Hour)
					out := r.ask("ana", 3)
					if took := time.Since(began); took != 0 || out.Sent != 1 || !out.NotBefore.Equal(over) {
						t.Errorf("after %v: sent %d, not before %v; want at once, one and an hour", took, out.Sent, out.NotBefore.Sub(began))
					}
					r.mode(simulator.Mode{})
					for time.Until(over) > 0 {
						for _, class := range verdict.Classes {
							p := plan(15*time.Second, 3)
							p.Class = class
							out := r.Check(t.Context(), address(t, "ben"), p)
							if out.Sent != 0 || out.Verdict.Reason != verdict.UpstreamThrottled || !out.NotBefore.Equal(over) {
								t.Fatalf("%v before the end: sent %d, %s, not before %v", time.Until(over), out.Sent, out.Verdict.Reason, out.NotBefore)
							}
						}
						st := r.Standing()
						if !st.Closed || st.Reason != verdict.UpstreamThrottled || !st.Until.Equal(over) {
							t.Fatalf("standing = %+v", st)
						}
						if left := time.Until(over); left > time.Minute {
							time.Sleep(time.Minute)
						} else if left > 1 {
							time.Sleep(left - 1)
						} else {
							time.Sleep(1)
						}
					}
					if n := r.sim.Stats().Calls; n != 1 {
						t.Errorf("%d calls within the hour, want the first", n)
					}
					if out := r.ask("ben", 0); out.Verdict.Status != verdict.Valid {
						t.Errorf("after the hour: %s %s, want valid", out.Verdict.Status, out.Verdict.Reason)
					}
				})
			})
		}
	}
}

// A hint that fits is waited for, with jitter on top; it is a minimum and never shortens the backoff.
func TestRetryAfterThatFits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		r.mode(simulator.Mode{Fault: simulator.Throttle, RetryAfter: 2 * time.Second})
		time.AfterFunc(time.Second, func() { _ = r.sim.SetMode(simulator.Mode{}) })
		began := time.Now()
		out := r.askWithin("ana", 5*time.Second, 3)
		if took := time.Since(began); out.Verdict.Status != verdict.Valid || took != 2030*ms || out.Sent != 2 {
			t.Errorf("%s after %v and %d calls; want valid after 2.03s and 2", out.Verdict.Status, took, out.Sent)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		r.mode(simulator.Mode{Fault: simulator.Throttle, RetryAfter: 2 * time.Second})
		began := time.Now()
		if out := r.askWithin("ana", 2130*ms-1, 3); out.Sent != 1 || time.Since(began) != 0 {
			t.Errorf("sent %d after %v; want one at once, the hint does not fit", out.Sent, time.Since(began))
		}
	})
}

// A single 429 without a hint only backs off; three in a row within ten seconds close the gate for 1 s, doubling
// to 30 s; a verdict begins anew.
func TestThrottledWithoutHint(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]simulator.Mode{
		"no hint": {Fault: simulator.Throttle},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, simulator.Config{})
				three := func() time.Duration {
					t.Helper()
					for i := range 3 {
						if st := r.Standing(); st.Closed {
							t.Fatalf("closed before throttle %d", i+1)
						}
						if out := r.ask("ana", 0); out.Verdict.Reason != verdict.UpstreamThrottled || out.Sent != 1 {
							t.Fatalf("%s, sent %d", out.Verdict.Reason, out.Sent)
						}
					}
					st := r.Standing()
					if !st.Closed || st.Reason != verdict.UpstreamThrottled {
						t.Fatalf("standing after three = %+v", st)
					}
					return time.Until(st.Until)
				}
				r.mode(mode)
				for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
					pause := three()
					if pause != want*time.Second {
						t.Fatalf("pause = %v, want %v", pause, want*time.Second)
					}
					time.Sleep(pause - 1)
					if out := r.ask("ana", 0); out.Sent != 0 || out.Verdict.Reason != verdict.UpstreamThrottled {
						t.Fatalf("just before its end: sent %d, %s", out.Sent, out.Verdict.Reason)
					}
					time.Sleep(1)
				}
				r.mode(simulator.Mode{})
				if !r.ask("ana", 0).Final() {
					t.Fatal("no verdict")
				}
				r.mode(mode)
				if pause := three(); pause != time.Second {
					t.Errorf("pause after a verdict = %v, want 1s", pause)
				}
			})
		})
	}
}

func TestThrottledApart(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		at     []time.Duration // of 429s without a hint
		good   time.Duration   // of a verdict; 0 for none
		closed bool
	}{
		{"two", []time.Duration{0, 1}, 0, false},
		{"three in ten seconds", []time.Duration{0, 5 * time.Second, 10 * time.Second}, 0, true},
		{"three in more", []time.Duration{0, 5 * time.Second, 10*time.Second + 1}, 0, false},
		{"the last three", []time.Duration{0, 9 * time.Second, 12 * time.Second, 19 * time.Second}, 0, true},
		{"a verdict between", []time.Duration{0, 2, 3}, 1, false},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			var g notBeforeGate
			began := time.Now()
			for i, at := range tt.at {
				if tt.good > 0 && (i == 0 || tt.at[i-1] < tt.good) && at > tt.good {
					g.answered()
				}
				g.throttled(began.Add(at))
			}
			if _, closed := g.blocked(began.Add(tt.at[len(tt.at)-1])); closed != tt.closed {
				t.Errorf("%s: closed %v, want %v", tt.name, closed, tt.closed)
			}
		})
	}
}

// Many calls on the wire that are throttled together are one event: the next pause needs three new ones.
func TestThrottledTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		r.mode(simulator.Mode{Fault: simulator.Throttle, P50: 100 * ms})
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { r.ask("ana", 0) })
		}
		all.Wait()
		if wait := time.Until(r.Standing().Until); wait != time.Second {
			t.Errorf("pause = %v, want 1s", wait)
		}
		time.Sleep(time.Second)
		r.ask("ana", 0)
		if r.Standing().Closed {
			t.Error("one 429 after the pause closed the gate again")
		}
	})
}

// Retry-After: 0 says nothing: it must not keep the gate open for ever.
func TestThrottledWithNought(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{}, answering(429, "", "Retry-After", "0"))
		for range 3 {
			r.ask("ana", 0)
		}
		if wait := time.Until(r.Standing().Until); wait != time.Second {
			t.Errorf("pause after three = %v, want 1s", wait)
		}
	})
}

func TestHintOnlyMovesLater(t *testing.T) {
	t.Parallel()
	var g notBeforeGate
	now := readAt
	for _, tt := range []struct {
		wait        time.Duration
		moved, news bool
	}{{time.Minute, true, true}, {time.Second, false, false}, {time.Minute + time.Millisecond, true, false}, {time.Hour, true, true}} {
		if moved, news := g.hint(now, tt.wait); moved != tt.moved || news != tt.news {
			t.Errorf("hint(%v): moved %v, news %v; want %v, %v", tt.wait, moved, news, tt.moved, tt.news)
		}
	}
	if until, _ := g.blocked(now); !until.Equal(now.Add(time.Hour)) {
		t.Errorf("until %v, want an hour", until.Sub(now))
	}
	for _, wait := range []time.Duration{0, -time.Second, math.MinInt64} {
		if moved, news := g.hint(now, wait); moved || news {
			t.Errorf("hint(%v) moved the gate", wait)
		}
	}
}

// 401, 402 and 403 close the account gate: ten minutes, doubling to an hour, one call a cool-down.
func TestAccountGate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		local  string
		reason verdict.Reason
	}{{"unauthorized", verdict.UpstreamAuth}, {"payment-required", verdict.UpstreamQuota}, {"forbidden", verdict.UpstreamQuota}} {
		t.Run(tt.local, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, simulator.Config{})
				calls := int64(0)
				for _, want := range []time.Duration{10, 20, 40, 60, 60} {
					out := r.ask(tt.local, 3)
					if calls++; out.Sent != 1 || out.Verdict.Reason != tt.reason {
						t.Fatalf("sent %d, %s; want one, %s", out.Sent, out.Verdict.Reason, tt.reason)
					}
					st := r.Standing()
					if left := time.Until(st.Until); !st.Closed || st.Reason != tt.reason || left != want*time.Minute || !out.NotBefore.Equal(st.Until) {
						t.Fatalf("standing %+v for %v, want %v", st, left, want*time.Minute)
					}
					time.Sleep(want*time.Minute - 1)
					if out := r.ask("ana", 3); out.Sent != 0 || out.Verdict.Reason != tt.reason {
						t.Fatalf("just before the end: sent %d, %s", out.Sent, out.Verdict.Reason)
					}
					time.Sleep(1)
				}
				if n := r.sim.Stats().Calls; n != calls {
					t.Errorf("%d calls, want %d", n, calls)
				}
				if !r.ask("ana", 0).Final() || !r.ask("ben", 0).Final() || r.Standing().Closed {
					t.Error("a verdict did not open the gate")
				}
				r.ask(tt.local, 0)
				if left := time.Until(r.Standing().Until); left != 10*time.Minute {
					t.Errorf("closed again for %v, want 10m: a verdict begins anew", left)
				}
			})
		})
	}
}

// At the end of a cool-down a hundred callers send one call between them.
func TestAccountGateOneCallACooldown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		r.mode(simulator.Mode{Fault: simulator.Quota, P50: 200 * ms})
		r.ask("ana", 0)
		hundred := func() (sent, refused int) {
			var all sync.WaitGroup
			var mu sync.Mutex
			for i := range 100 {
				all.Go(func() {
					out := r.ask(fmt.Sprintf("ana%d", i), 3)
					mu.Lock()
					defer mu.Unlock()
					sent += out.Sent
					if out.Sent == 0 && out.Verdict.Reason == verdict.UpstreamQuota && !out.NotBefore.IsZero() {
						refused++
					}
				})
			}
			all.Wait()
			return sent, refused
		}
		time.Sleep(10 * time.Minute)
		if sent, refused := hundred(); sent != 1 || refused != 99 {
			t.Errorf("%d sent, %d refused; want 1 and 99", sent, refused)
		}
		if left := time.Until(r.Standing().Until); left != 20*time.Minute {
			t.Errorf("closed for %v after the probe, want 20m", left)
		}
		time.Sleep(20 * time.Minute)
		r.mode(simulator.Mode{})
		hundred()
		if st := r.Standing(); st.Closed {
			t.Errorf("standing after a verdict = %+v", st)
		}
		if sent, _ := hundred(); sent != 100 {
			t.Errorf("%d of 100 sent once the gate is open", sent)
		}
	})
}

// A probe that tells nothing of the account leaves the gate as it was; the next one goes when the late time-out is over.
func TestAccountGateProbeWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		r.ask("forbidden", 0)
		time.Sleep(10 * time.Minute)
		if out := r.ask("server-error", 3); out.Sent != 1 || out.Verdict.Reason != verdict.UpstreamError {
			t.Errorf("probe: sent %d, %s; want one", out.Sent, out.Verdict.Reason)
		}
		if out := r.ask("ana", 0); out.Sent != 0 || out.Verdict.Reason != verdict.UpstreamQuota {
			t.Errorf("after it: sent %d, %s", out.Sent, out.Verdict.Reason)
		}
		time.Sleep(10 * time.Second)
		if !r.ask("ana", 0).Final() {
			t.Error("no second probe after ten seconds")
		}
	})
}

// Calls on the wire together close the gate once, and an answer to a call from before the closing does not open it.
func TestAccountGateAndCallsFromBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		var all sync.WaitGroup
		all.Go(func() { r.ask("delay-500", 0) })
		r.mode(simulator.Mode{Fault: simulator.Quota, P50: 100 * ms, Share: 0})
		synctest.Wait()
		for i := range 20 {
			all.Go(func() { r.ask(fmt.Sprintf("ana%d", i), 0) })
		}
		all.Wait()
		st := r.Standing()
		if !st.Closed || st.Reason != verdict.UpstreamQuota {
			t.Errorf("standing = %+v: a late verdict from before opened the gate, or nothing closed it", st)
		}
		if left := time.Until(st.Until); left > 10*time.Minute {
			t.Errorf("closed for %v: twenty calls together count once", left)
		}
	})
	var g accountGate
	at := readAt
	g.close(verdict.UpstreamQuota, at, at.Add(time.Second))
	if _, changed := g.close(verdict.UpstreamAuth, at.Add(time.Second), at.Add(2*time.Second)); changed {
		t.Error("an answer to a call from before closed the gate again")
	}
	g.open(at.Add(time.Second))
	if _, _, closed := g.blocked(at.Add(time.Minute)); !closed {
		t.Error("a verdict for a call from before opened the gate")
	}
	g.open(at.Add(time.Second + 1))
	if _, _, closed := g.blocked(at.Add(time.Minute)); closed {
		t.Error("a verdict for a later call did not open the gate")
	}
}
