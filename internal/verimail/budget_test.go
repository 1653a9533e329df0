package verimail

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

const ms = time.Millisecond

// With half of every jitter drawn, an interactive check tries at 0, 160 and 450 ms, and would again at 880 and
// 1310 ms (base 130 ms, at most 400 ms, jitter 60 ms).
func TestRetriesFitTheBudget(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		until   time.Duration
		retries int
		starts  []time.Duration
		giveup  string
	}{
		{"a sign-up", 650 * ms, 5, []time.Duration{0, 160 * ms, 450 * ms}, giveupDeadline},
		{"the second just fits", 260 * ms, 5, []time.Duration{0, 160 * ms}, giveupDeadline},
		{"the second just does not", 260*ms - 1, 5, []time.Duration{0}, giveupDeadline},
		{"the third just fits", 550 * ms, 5, []time.Duration{0, 160 * ms, 450 * ms}, giveupDeadline},
		{"the third just does not", 550*ms - 1, 5, []time.Duration{0, 160 * ms}, giveupDeadline},
		{"the first just fits", 100 * ms, 5, []time.Duration{0}, giveupDeadline},
		{"no retries", 10 * time.Second, 0, []time.Duration{0}, giveupMaxAttempts},
		{"two retries", 10 * time.Second, 2, []time.Duration{0, 160 * ms, 450 * ms}, giveupMaxAttempts},
		{"four retries", 10 * time.Second, 4, []time.Duration{0, 160 * ms, 450 * ms, 880 * ms, 1310 * ms}, giveupMaxAttempts},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, simulator.Config{})
				began := time.Now()
				out := r.askWithin("server-error", tt.until, tt.retries)
				took := time.Since(began)
				var starts []time.Duration
				for _, c := range r.sim.Calls() {
					starts = append(starts, c.At.Sub(began))
				}
				if len(starts) != len(tt.starts) {
					t.Fatalf("calls at %v, want %v", starts, tt.starts)
				}
				for i := range starts {
					if starts[i] != tt.starts[i] {
						t.Fatalf("calls at %v, want %v", starts, tt.starts)
					}
				}
				// No sleep that leads to nothing: it ends with its last call.
				if last := tt.starts[len(tt.starts)-1]; took != last || out.Backoff != last {
					t.Errorf("took %v, slept %v; want %v", took, out.Backoff, last)
				}
				// What is told is what happened, and not that time ran out.
				if out.Verdict.Reason != verdict.UpstreamError || out.Cause != verdict.CauseUpstream {
					t.Errorf("reason %s by %s", out.Verdict.Reason, out.Cause)
				}
				if n := r.metric("provider_giveups_total", "reason", tt.giveup); n != 1 {
					t.Errorf("give-ups by %s = %v, want 1", tt.giveup, n)
				}
				if n := r.metric("provider_request_retries", "result", "failure"); n != 1 {
					t.Errorf("requests with retries counted = %v, want 1", n)
				}
			})
		})
	}
}

func TestNoAttemptUnder100ms(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		for _, budget := range []time.Duration{100*ms - 1, 0, -time.Hour} {
			out := r.askWithin("ana", budget, 3)
			if out.Sent != 0 || out.Verdict.Reason != verdict.BudgetExhausted || outcomes(out) != verdict.AttemptNotSent {
				t.Errorf("with %v: sent %d, %s, %q", budget, out.Sent, out.Verdict.Reason, outcomes(out))
			}
		}
		if st := r.sim.Stats(); st.Calls != 0 || r.limits.granted != 0 {
			t.Errorf("%d calls, %d tokens; want none", st.Calls, r.limits.granted)
		}
	})
}

func TestRecoveryWithinTheBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		out := r.ask("recover-after-2", 2)
		if out.Verdict.Status != verdict.Valid || out.Sent != 3 || out.Verdict.Attempts != 3 || out.Backoff != 450*ms {
			t.Errorf("%s after %d calls and %v of sleep; want valid after 3 and 450ms", out.Verdict.Status, out.Sent, out.Backoff)
		}
		if want := "fault fault answered"; outcomes(out) != want {
			t.Errorf("trail %q, want %q", outcomes(out), want)
		}
		for i, http := range []int{503, 503, 200} {
			if out.Trail[i].HTTPStatus != http || out.Trail[i].UpstreamRequestID == "" {
				t.Errorf("trail[%d] = %+v, want %d and a request id", i, out.Trail[i], http)
			}
		}
	})
}

// A call that is late is waited for: it is billed already.
func TestLateAnswerIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		began := time.Now()
		out := r.ask("delay-3000", 2)
		if took := time.Since(began); took != 3*time.Second || out.Verdict.Status != verdict.Valid || out.Sent != 1 {
			t.Errorf("%s after %v and %d calls; want valid after 3s and one", out.Verdict.Status, took, out.Sent)
		}
		if out.Trail[0].LatencyMS != 3000 || !out.Verdict.CheckedAt.Equal(began.Add(3*time.Second)) {
			t.Errorf("latency %d ms, checked at %v", out.Trail[0].LatencyMS, out.Verdict.CheckedAt.Sub(began))
		}
		if st := r.sim.Stats(); st.Calls != 1 || st.Billed != 1 {
			t.Errorf("%d calls, %d billed; want one", st.Calls, st.Billed)
		}
		if n := r.metric("provider_late_total"); n != 1 {
			t.Errorf("late calls = %v, want 1", n)
		}
	})
}

// A body that trickles is an answer like any other.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{DripInterval: 10 * ms})
		if out := r.ask("slow-drip", 0); out.Verdict.Status != verdict.Valid {
			t.Errorf("status %s, want valid", out.Verdict.Status)
		}
		began := time.Now()
		r = newRig(t, simulator.Config{DripInterval: time.Second})
		out := r.ask("slow-drip", 2)
		if took := time.Since(began); took < 10*time.Second || out.Verdict.Reason != verdict.UpstreamTimeout || out.Sent != 1 {
			t.Errorf("%s after %v and %d calls; want a time-out after 10s and one", out.Verdict.Reason, took, out.Sent)
		}
	})
}

func TestLateTimeoutEndsACall(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{time.Second, 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			r.retune(func(t *Tuning) { t.LateTimeout = late })
			began := time.Now()
			out := r.ask("hang", 5)
			if took := time.Since(began); took != late || out.Verdict.Reason != verdict.UpstreamTimeout || outcomes(out) != verdict.AttemptTimeout {
				t.Errorf("%s %q after %v; want a time-out after %v", out.Verdict.Reason, outcomes(out), took, late)
			}
			synctest.Wait()
			if got := r.health(); got != (health{failures: 1}) {
				t.Errorf("the breaker was told %+v, want one failure", got)
			}
			if n := r.metric("provider_requests_in_flight"); n != 0 || r.inFlight.Load() != 0 {
				t.Errorf("in flight %v, %d; want none", n, r.inFlight.Load())
			}
		})
	}
}

// The end of the caller's own deadline counts against the upstream only when it was silent for the whole grace time before.
func TestDeadlineOfTheCaller(t *testing.T) {
	t.Parallel()
	for had, want := range map[time.Duration]health{99 * ms: {excluded: 1}, time.Second: {excluded: 1}, 1999 * ms: {excluded: 1}, 2001 * ms: {failures: 1}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			ctx, cancel := context.WithTimeout(t.Context(), had)
			defer cancel()
			out := r.Check(ctx, address(t, "hang"), plan(650*ms, 2))
			synctest.Wait()
			if out.Verdict.Reason != verdict.UpstreamTimeout || outcomes(out) != verdict.AttemptTimeout || r.health() != want {
				t.Errorf("had %v: %s %q, the breaker was told %+v; want %+v", had, out.Verdict.Reason, outcomes(out), r.health(), want)
			}
		})
	}
}

func TestRetryOnTimeout(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T) *rig {
		r := newRig(t, simulator.Config{})
		r.retune(func(t *Tuning) { t.RetryOnTimeout = true })
		return r
	}
	t.Run("asks again", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := setup(t)
			began := time.Now()
			// Late at 600 ms, asked again at 760 ms; no further retry, so that call is waited for: 760 + 700 ms.
			out := r.askWithin("delay-700", 2*time.Second, 1)
			if took := time.Since(began); took != 1460*ms || out.Verdict.Status != verdict.Valid || out.Sent != 2 {
				t.Errorf("%s after %v and %d calls; want valid after 1.46s and 2", out.Verdict.Status, took, out.Sent)
			}
			if want := "timeout answered"; outcomes(out) != want {
				t.Errorf("trail %q, want %q", outcomes(out), want)
			}
		})
	})
	t.Run("waits when no retry fits", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := setup(t)
			began := time.Now()
			out := r.ask("delay-700", 2)
			if took := time.Since(began); took != 700*ms || out.Verdict.Status != verdict.Valid || out.Sent != 1 || outcomes(out) != verdict.AttemptAnswered {
				t.Errorf("%s %q after %v and %d calls; want valid after 700ms and one", out.Verdict.Status, outcomes(out), took, out.Sent)
			}
		})
	})
	t.Run("waits when the next is refused", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := setup(t)
			time.AfterFunc(100*ms, func() { r.limits.mu.Lock(); r.limits.refuse = true; r.limits.mu.Unlock() })
			out := r.askWithin("delay-900", 2*time.Second, 2)
			if out.Verdict.Status != verdict.Valid || out.Sent != 1 {
				t.Errorf("%s after %d calls; want valid after one", out.Verdict.Status, out.Sent)
			}
		})
	})
	t.Run("ends with the truth", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := setup(t)
			began := time.Now()
			out := r.askWithin("hang", 2*time.Second, 1)
			// The second call began at 760 ms and is given its ten seconds.
			if took := time.Since(began); took != 10760*ms || out.Verdict.Reason != verdict.UpstreamTimeout || outcomes(out) != "timeout timeout" {
				t.Errorf("%s %q after %v", out.Verdict.Reason, outcomes(out), took)
			}
		})
	})
}

// A stop ends what is on the wire at once, and says nothing of the upstream.
func TestStop(t *testing.T) {
	t.Parallel()
	t.Run("during a call", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			began := time.Now()
			out := r.Check(cancelAfter(t, 300*ms), address(t, "hang"), plan(650*ms, 2))
			synctest.Wait()
			if took := time.Since(began); took != 300*ms || outcomes(out) != verdict.AttemptCancelled || out.Cause != verdict.CauseUpstream {
				t.Errorf("%q after %v", outcomes(out), took)
			}
			if got := r.health(); got != (health{excluded: 1}) {
				t.Errorf("the breaker was told %+v, want nothing", got)
			}
		})
	})
	t.Run("during a late call", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			began := time.Now()
			out := r.Check(cancelAfter(t, 5*time.Second), address(t, "hang"), plan(650*ms, 2))
			if took := time.Since(began); took != 5*time.Second || outcomes(out) != verdict.AttemptCancelled {
				t.Errorf("%q after %v", outcomes(out), took)
			}
		})
	})
	t.Run("during a pause", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			began := time.Now()
			out := r.Check(cancelAfter(t, 50*ms), address(t, "server-error"), plan(650*ms, 2))
			if took := time.Since(began); took != 50*ms || out.Verdict.Reason != verdict.UpstreamError || out.Sent != 1 {
				t.Errorf("%s after %v and %d calls", out.Verdict.Reason, took, out.Sent)
			}
		})
	})
	t.Run("before", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			out := r.Check(ctx, address(t, "ana"), plan(650*ms, 2))
			if out.Sent != 0 || len(out.Trail) != 0 || out.Verdict.Status != verdict.NeedsReview || r.limits.granted != 0 {
				t.Errorf("sent %d, trail %q, %s", out.Sent, outcomes(out), out.Verdict.Status)
			}
		})
	})
	t.Run("while waiting for the rate", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			r.limits.refuse = true
			p := plan(15*time.Second, 2)
			p.Class = verdict.Background
			began := time.Now()
			out := r.Check(cancelAfter(t, time.Second), address(t, "ana"), p)
			if took := time.Since(began); took != time.Second || out.Sent != 0 || len(out.Trail) != 0 {
				t.Errorf("sent %d, trail %q after %v; want nothing after 1s", out.Sent, outcomes(out), took)
			}
		})
	})
}

func TestRate(t *testing.T) {
	t.Parallel()
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			r.limits.refuse = true
			out := r.ask("ana", 2)
			if out.Verdict.Reason != verdict.LimiterSaturated || out.Cause != verdict.CauseUpstream || out.Sent != 0 || outcomes(out) != verdict.AttemptNotSent {
				t.Errorf("%s, sent %d, %q", out.Verdict.Reason, out.Sent, outcomes(out))
			}
			if got := r.health(); got != (health{}) || r.sim.Stats().Calls != 0 {
				t.Errorf("the breaker was told %+v, %d calls; want none", got, r.sim.Stats().Calls)
			}
			if n := r.metric("provider_giveups_total", "reason", giveupLimiter); n != 1 {
				t.Errorf("give-ups = %v, want 1", n)
			}
		})
	})
	t.Run("booked", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			r.limits.wait = 30 * ms
			began := time.Now()
			if out := r.ask("ana", 0); !out.Final() || time.Since(began) != 30*ms {
				t.Errorf("final %v after %v; want after 30ms", out.Final(), time.Since(began))
			}
			// Never further ahead than 50 ms, nor than what leaves an attempt its 100 ms.
			r.askWithin("ana", 120*ms, 0)
			if want := []time.Duration{50 * ms, 20 * ms}; r.limits.asked[0] != want[0] || r.limits.asked[1] != want[1] {
				t.Errorf("asked for %v, want %v", r.limits.asked, want)
			}
		})
	})
	t.Run("each retry pays", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			r.ask("server-error", 2)
			if r.limits.granted != 3 {
				t.Errorf("%d grants for three calls", r.limits.granted)
			}
		})
	})
	t.Run("background waits its turn", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			began := time.Now()
			r.limits.from = began.Add(7 * time.Second)
			p := plan(15*time.Second, 0)
			p.Class = verdict.Background
			out := r.Check(t.Context(), address(t, "ana"), p)
			if took := time.Since(began); !out.Final() || took < 7*time.Second || took > 7200*ms {
				t.Errorf("final %v after %v, want some 7s", out.Final(), took)
			}
			// It gives up while an attempt would still fit, and never goes over its end.
			began = time.Now()
			r.limits.refuse = true
			p.Until = began.Add(15 * time.Second)
			out = r.Check(t.Context(), address(t, "ana"), p)
			if took := time.Since(began); out.Verdict.Reason != verdict.LimiterSaturated || took > 15*time.Second-100*ms || took < 14500*ms {
				t.Errorf("%s after %v", out.Verdict.Reason, took)
			}
		})
	})
}

func TestMaxInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		r.retune(func(t *Tuning) { t.MaxInFlight = 3 })
		r.limits.wait = 30 * ms // all fifty find room, and wait for their token together
		var all sync.WaitGroup
		reasons := make(chan verdict.Reason, 50)
		for range 50 {
			all.Go(func() { reasons <- r.ask("hang", 0).Verdict.Reason })
		}
		time.Sleep(30 * ms)
		synctest.Wait()
		if n := r.sim.Stats().Calls; n != 3 || len(reasons) != 47 {
			t.Errorf("%d calls on the wire, %d refused; want 3 and 47", n, len(reasons))
		}
		if n := r.metric("provider_requests_in_flight"); n != 3 {
			t.Errorf("in flight = %v, want 3", n)
		}
		for range len(reasons) {
			if got := <-reasons; got != verdict.LimiterSaturated {
				t.Errorf("reason %s, want %s", got, verdict.LimiterSaturated)
			}
		}
		all.Wait()
		if out := r.ask("ana", 0); !out.Final() {
			t.Errorf("afterwards: %s, want a verdict", out.Verdict.Reason)
		}
	})
}

func TestRetryBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newRetryBudget()
		spend := func() (n int) {
			for b.take() {
				n++
			}
			return n
		}
		if n := spend(); n != 10 {
			t.Errorf("%d retries at the start, want 10", n)
		}
		for range 99 {
			b.success(0.1)
		}
		if n := spend(); n != 9 {
			t.Errorf("%d retries after 99 successes, want 9", n)
		}
		time.Sleep(10 * time.Second)
		if n := spend(); n != 10 {
			t.Errorf("%d retries after 10 s, want 10", n)
		}
		time.Sleep(24 * time.Hour)
		b.success(1)
		if n := spend(); n != 20 {
			t.Errorf("%d retries after a day, want 20", n)
		}
	})
}

// What is saved up grows with the traffic: of 200 successes a second, those of the last ten seconds count. It is forgotten
// as they are.
func TestRetryBudgetGrowsWithTraffic(t *testing.T) {
	t.Parallel()
	for quiet, want := range map[time.Duration]int{0: 200, 5 * time.Second: 200 - 100, 15 * time.Second: 20, time.Hour: 20} {
		synctest.Test(t, func(t *testing.T) {
			b := newRetryBudget()
			for range 200 * 40 {
				b.success(0.1)
				time.Sleep(5 * ms)
			}
			time.Sleep(quiet)
			n := 0
			for b.take() {
				n++
			}
			if n < want-2 || n > want+2 {
				t.Errorf("%d retries %v after 200 successes a second, want %d", n, quiet, want)
			}
		})
	}
}

// In a full outage the upstream sees little more than one call a check, and each class pays for its own retries.
func TestRetryBudgetHoldsAmplification(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		r.retune(func(t *Tuning) { t.Breaker.ConsecutiveFailures, t.Breaker.MinSamples = 1e6, 1e6 })
		r.mode(simulator.Mode{Fault: simulator.Error500})
		const checks = 2000 // 50 a second for 40 s
		var all sync.WaitGroup
		for range checks {
			all.Go(func() { r.ask("ana", 5) })
			time.Sleep(20 * ms)
		}
		all.Wait()
		retries := int(r.sim.Stats().Calls) - checks
		if most := 10 + 41; retries > most || retries < most-5 {
			t.Errorf("%d retries, want what is saved and one a second: about %d", retries, most)
		}
		if n := r.metric("provider_giveups_total", "reason", giveupRetryBudget); n == 0 {
			t.Error("no check gave up for want of retry budget")
		}
		p := plan(15*time.Second, 1)
		p.Class = verdict.Background
		if out := r.Check(t.Context(), address(t, "ana"), p); out.Sent != 2 {
			t.Errorf("background sent %d calls; want 2, its retries are its own", out.Sent)
		}
	})
}

// A success earns a part of a retry for its own class only.
func TestRetryBudgetIsOfAClass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		for _, b := range r.budgets {
			for b.take() {
			}
		}
		for range 11 { // ten tenths are a little less than one
			r.ask("ana", 0)
		}
		if !r.budgets[verdict.Interactive].take() || r.budgets[verdict.Background].take() {
			t.Error("eleven interactive successes must earn one interactive retry and no other")
		}
	})
}
