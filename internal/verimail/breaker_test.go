package verimail

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sony/gobreaker/v2"
	"pgregory.net/rapid"

	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// lone is a breaker without a client around it.
type lone struct {
	*breaker
	tuning BreakerTuning
	moves  []string
	stuck  int
}

func newLone() *lone {
	l := &lone{tuning: DefaultTuning().Breaker}
	l.breaker = newBreaker(func() Tuning {
		t := DefaultTuning()
		t.Breaker = l.tuning
		return t
	}, half, func(from, to gobreaker.State) { l.moves = append(l.moves, from.String()+">"+to.String()) }, func() { l.stuck++ })
	return l
}

// play tells it outcomes, one each gap: F a failure, S a success, n nothing. It says which one opened it, from 1; 0 for none.
func (l *lone) play(outcomes string, gap time.Duration) int {
	for i, o := range outcomes {
		if i > 0 {
			time.Sleep(gap)
		}
		err := map[rune]error{'F': errFailure, 'S': nil, 'n': errNeutral}[o]
		if refused(l.guard(func() error { return err })) {
			return -1
		}
		if l.state() != gobreaker.StateClosed {
			return i + 1
		}
	}
	return 0
}

func repeat(s string, n int) string {
	out := ""
	for range n {
		out += s
	}
	return out
}

func TestBreakerOpens(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, outcomes string
		gap            time.Duration
		opens          int
	}{
		{"five in a row over a second", "FFFFF", 250 * ms, 5},
		{"five in a row in less", "FFFFF", 250*ms - 1, 0},
		{"five in a row at once", "FFFFF", 0, 0},
		{"the sixth spans it", "FFFFFF", 200 * ms, 6},
		{"four", "FFFF", time.Second, 0},
		{"a success between", "FFFFSFFFF", time.Second, 0},
		{"nothing between does not break the row", "FFnFnnFF", 250 * ms, 8},
		{"nothing at all", repeat("n", 100), 10 * ms, 0},
		{"half of twenty", repeat("SF", 10), 60 * ms, 20},
		{"half of twenty in less than a second", repeat("SF", 10), 50 * ms, 0},
		{"half of nineteen is too few", repeat("SF", 9) + "S", 60 * ms, 0},
		{"less than half", repeat("SSF", 50), 60 * ms, 0},
		{"a burst of failures is a blip", repeat("F", 100), 0, 0},
		// The ratio is of the last thirty: what was good before does not dilute it. With the fifteenth failure in turn
		// half of the window has failed, and the seventh, with which it was less than a quarter, is 1.5 s ago.
		{"after long health", repeat("S", 500) + repeat("FS", 30), 100 * ms, 500 + 29},
		// At a high rate the window of thirty spans no time at all.
		{"dead at a thousand a second", repeat("F", 2000), ms, 1001},
		{"half of a thousand a second", repeat("SF", 1000), ms, 1002},
		{"a blip at a thousand a second", repeat("S", 1000) + repeat("F", 999) + repeat("S", 1000), ms, 0},
		{"two blips at a thousand a second", repeat("S", 50) + repeat("F", 600) + repeat("S", 50) + repeat("F", 600), ms, 0},
		// 30 s apart, at most four are within 90 s.
		{"failures far apart", repeat("F", 50), 31 * time.Second, 0},
		{"old ones age out of the ratio", repeat("SF", 100), 5 * time.Second, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				if got := newLone().play(tt.outcomes, tt.gap); got != tt.opens {
					t.Errorf("opened by outcome %d, want %d", got, tt.opens)
				}
			})
		})
	}
}

func TestBreakerForgets(t *testing.T) {
	t.Parallel()
	for silence, opens := range map[time.Duration]int{89 * time.Second: 1, 91 * time.Second: 0, 3 * time.Hour: 0} {
		synctest.Test(t, func(t *testing.T) {
			l := newLone()
			l.play("FFFF", 0)
			time.Sleep(silence)
			if got := l.play("F", 0); got != opens {
				t.Errorf("four failures, %v, one more: opened by %d, want %d", silence, got, opens)
			}
			time.Sleep(250 * ms)
			if opens == 0 && l.play("FFFF", 250*ms) != 4 {
				t.Error("five fresh failures in a row did not open it")
			}
		})
	}
	// Nor does an old failure make a blip look long.
	synctest.Test(t, func(t *testing.T) {
		l := newLone()
		l.play("FF", 0)
		time.Sleep(3 * time.Hour)
		if got := l.play(repeat("F", 50), 10*ms); got != 0 {
			t.Errorf("opened by failure %d of a blip", got)
		}
	})
}

func TestBreakerCooldown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLone()
		l.play("FFFFF", 250*ms)
		opened := time.Now()
		for l.state() == gobreaker.StateOpen {
			if !refused(l.guard(func() error { t.Error("a call while open"); return nil })) {
				t.Fatal("no refusal while open")
			}
			time.Sleep(100 * ms)
		}
		if took := time.Since(opened); took < 30*time.Second || took > 30100*ms {
			t.Errorf("open for %v, want 30s", took)
		}
		if l.state() != gobreaker.StateHalfOpen {
			t.Fatalf("state %v", l.state())
		}
		_ = l.guard(func() error { return nil })
		_ = l.guard(func() error { return nil })
		if l.state() != gobreaker.StateHalfOpen {
			t.Error("closed after two of three probes")
		}
		_ = l.guard(func() error { return nil })
		if l.state() != gobreaker.StateClosed {
			t.Error("not closed after three probes")
		}
		// What was before is forgotten.
		if l.play("FFFF", 300*ms) != 0 || l.play("F", 0) != 0 || l.play("FF", 300*ms) != 2 {
			t.Error("a closed breaker must count afresh")
		}
	})
}

func TestBreakerReopens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLone()
		l.play("FFFFF", 250*ms)
		time.Sleep(30*time.Second + 1)
		_ = l.guard(func() error { return nil })
		_ = l.guard(func() error { return errNeutral })
		_ = l.guard(func() error { return errFailure })
		if l.state() != gobreaker.StateOpen {
			t.Errorf("state %v after a failed probe, want open", l.state())
		}
		time.Sleep(30 * time.Second)
		if l.state() != gobreaker.StateOpen {
			t.Error("the second cool-down is shorter than the first")
		}
	})
}

// A probe that tells nothing gives its place back.
func TestBreakerNeutralProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLone()
		l.play("FFFFF", 250*ms)
		time.Sleep(30*time.Second + 1)
		for range 50 {
			if err := l.guard(func() error { return errNeutral }); refused(err) {
				t.Fatal("neutral probes used up the places")
			}
		}
		if _, full := l.standing(); full {
			t.Error("full after neutral probes")
		}
		for range 3 {
			_ = l.guard(func() error { return nil })
		}
		if l.state() != gobreaker.StateClosed {
			t.Errorf("state %v, want closed", l.state())
		}
	})
}

func TestBreakerCooldownJitter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		draw := rapid.Float64Range(0, math.Nextafter(1, 0)).Draw(rt, "draw")
		cooldown := time.Duration(rapid.Int64Range(15, 60).Draw(rt, "cooldown")) * time.Second
		synctest.Test(t, func(*testing.T) {
			tuning := DefaultTuning()
			tuning.Breaker.Cooldown = cooldown
			b := newBreaker(func() Tuning { return tuning }, func() float64 { return draw }, func(_, _ gobreaker.State) {}, func() {})
			for range 5 {
				_ = b.guard(func() error { return errFailure })
				time.Sleep(250 * ms)
			}
			time.Sleep(-250*ms + cooldown*8/10)
			if b.state() != gobreaker.StateOpen {
				rt.Errorf("draw %v: not open after 0.8 of %v", draw, cooldown)
			}
			time.Sleep(cooldown*4/10 + 1)
			if b.state() != gobreaker.StateHalfOpen {
				rt.Errorf("draw %v: still open after 1.2 of %v", draw, cooldown)
			}
		})
	})
}

func TestBreakerLiveSettings(t *testing.T) {
	t.Parallel()
	t.Run("thresholds at once", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			l := newLone()
			l.tuning.ConsecutiveFailures = 8
			if l.play("FFFFFF", 250*ms) != 0 {
				t.Error("six opened it, eight are asked for")
			}
			l.tuning.ConsecutiveFailures = 5
			if l.play("F", 0) != 1 {
				t.Error("five are asked for, seven did not open it")
			}
		})
	})
	t.Run("cool-down while open", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			l := newLone()
			l.play("FFFFF", 250*ms)
			l.tuning.Cooldown, l.tuning.Probes = 60*time.Second, 1
			if l.state() != gobreaker.StateOpen {
				t.Fatal("a change of the cool-down closed the breaker")
			}
			time.Sleep(30*time.Second + 1)
			for i := range 3 {
				if l.state() != gobreaker.StateHalfOpen {
					t.Fatalf("before probe %d: %v", i+1, l.state())
				}
				_ = l.guard(func() error { return nil })
			}
			if l.state() != gobreaker.StateClosed {
				t.Fatalf("state %v, want closed", l.state())
			}
			// From now on: 60 s and one probe.
			l.play("FFFFF", 250*ms)
			time.Sleep(60 * time.Second)
			if l.state() != gobreaker.StateOpen {
				t.Error("the new cool-down is not in force")
			}
			time.Sleep(1)
			_ = l.guard(func() error { return nil })
			if l.state() != gobreaker.StateClosed {
				t.Error("the new number of probes is not in force")
			}
		})
	})
	t.Run("calls of a former breaker", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			l := newLone()
			var all sync.WaitGroup
			for i := range 5 {
				all.Go(func() {
					_ = l.guard(func() error { time.Sleep(time.Minute + time.Duration(i)*time.Second); return errFailure })
				})
			}
			synctest.Wait()
			l.tuning.Cooldown = 60 * time.Second
			if l.state() != gobreaker.StateClosed {
				t.Fatal("not closed")
			}
			all.Wait()
			if len(l.moves) != 0 || l.state() != gobreaker.StateClosed {
				t.Errorf("moves %q, state %v: a breaker that is no longer in force must tell nobody", l.moves, l.state())
			}
		})
	})
}

func TestRingStaysWithinItsWindow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var r ring
		now := readAt
		for range rapid.IntRange(0, 200).Draw(t, "outcomes") {
			window := rapid.IntRange(-1, 50).Draw(t, "window")
			now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "gap")) * time.Second)
			r.add(now, rapid.Bool().Draw(t, "ok"), BreakerTuning{Window: window, FailureRatio: rapid.Float64Range(0, 1).Draw(t, "ratio")})
			if n := len(r.entries); n > max(window, 1) {
				t.Fatalf("%d outcomes are kept, the window is %d", n, window)
			}
			r.trips(now, BreakerTuning{
				ConsecutiveFailures: rapid.IntRange(-1, 60).Draw(t, "N"), MinSamples: rapid.IntRange(-1, 60).Draw(t, "samples"),
				FailureRatio: rapid.Float64Range(0, 1).Draw(t, "ratio"), MinSpan: time.Second,
			})
		}
	})
}

func TestSlowGrace(t *testing.T) {
	t.Parallel()
	t.Run("answered at 1.9 s", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			for range 20 {
				r.ask("delay-1900", 0)
			}
			synctest.Wait()
			if got := r.health(); got != (health{successes: 20}) {
				t.Errorf("told %+v, want successes", got)
			}
		})
	})
	t.Run("silent at 2 s", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			var all sync.WaitGroup
			all.Go(func() { r.ask("delay-3000", 0) })
			time.Sleep(2*time.Second - 1)
			synctest.Wait()
			if got := r.health(); got != (health{}) {
				t.Errorf("just before 2 s it was told %+v", got)
			}
			time.Sleep(1)
			synctest.Wait()
			if got := r.health(); got != (health{failures: 1}) {
				t.Errorf("at 2 s it was told %+v, want a failure", got)
			}
			all.Wait()
			synctest.Wait()
			if got := r.health(); got != (health{failures: 1}) {
				t.Errorf("told %+v by the late verdict, want nothing more", got)
			}
		})
	})
	t.Run("opens by silence", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			began := time.Now()
			var all sync.WaitGroup
			for range 5 {
				all.Go(func() { r.ask("hang", 0) })
				time.Sleep(300 * ms)
			}
			// The fifth began at 1.2 s.
			time.Sleep(3200*ms - 1 - time.Since(began))
			synctest.Wait()
			if r.state() != "closed" {
				t.Errorf("%s before the fifth was judged", r.state())
			}
			time.Sleep(1)
			synctest.Wait()
			if r.state() != "open" {
				t.Errorf("%s after five silent calls, want open", r.state())
			}
			out := r.ask("ana", 2)
			if out.Sent != 0 || out.Verdict.Reason != verdict.CircuitOpen || out.Cause != verdict.CauseUpstream {
				t.Errorf("sent %d, %s", out.Sent, out.Verdict.Reason)
			}
			all.Wait() // what is on the wire is still waited for
		})
	})
	t.Run("none is the attempt's time-out", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			r.retune(func(t *Tuning) { t.Breaker.SlowGrace = 0 })
			r.ask("delay-599", 0)
			r.ask("delay-601", 0)
			synctest.Wait()
			if got := r.health(); got != (health{successes: 1, failures: 1}) {
				t.Errorf("told %+v, want a success and a failure", got)
			}
		})
	})
}

// Callers who leave say nothing about the upstream.
func TestCancellationsDoNotMoveTheBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		var all sync.WaitGroup
		for i := range 50 {
			ctx, cancel := context.WithCancel(t.Context())
			all.Go(func() { r.Check(ctx, address(t, "hang"), plan(650*ms, 2)) })
			time.AfterFunc(time.Duration(i+1)*10*ms, cancel)
		}
		all.Wait()
		synctest.Wait()
		if got := r.health(); got != (health{excluded: 50}) || r.state() != "closed" {
			t.Errorf("%s, told %+v; want closed and nothing", r.state(), got)
		}
	})
}

// open brings a client's breaker to open.
func (r *rig) open() {
	r.t.Helper()
	r.mode(simulator.Mode{Fault: simulator.Error500})
	for range 5 {
		r.ask("ana", 0)
		time.Sleep(250 * ms)
	}
	synctest.Wait()
	if r.state() != "open" {
		r.t.Fatalf("breaker %s after five failures", r.state())
	}
	time.Sleep(-250 * ms)
}

func TestHalfOpenLetsProbesThrough(t *testing.T) {
	t.Parallel()
	for _, probes := range []int{1, 3, 5} {
		t.Run(fmt.Sprint(probes), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, simulator.Config{})
				r.retune(func(t *Tuning) { t.Breaker.Probes = probes })
				r.open()
				calls, tokens := r.sim.Stats().Calls, r.limits.granted
				if out := r.ask("ana", 2); out.Sent != 0 || !r.Standing().Closed {
					t.Errorf("while open: sent %d, standing %+v", out.Sent, r.Standing())
				}
				time.Sleep(30*time.Second + 1)
				r.mode(simulator.Mode{Fault: simulator.Slow, P50: 300 * ms})
				if st := r.Standing(); st.Closed || !st.Probing || st.Breaker != "half-open" {
					t.Errorf("standing at the end of the cool-down = %+v", st)
				}
				var all sync.WaitGroup
				refusedN := make(chan struct{}, 200)
				for i := range 100 {
					all.Go(func() {
						p := plan(650*ms, 2)
						p.Class = verdict.Classes[i%len(verdict.Classes)]
						out := r.Check(t.Context(), address(t, fmt.Sprintf("ana%d", i)), p)
						if out.Sent == 0 && out.Verdict.Reason == verdict.CircuitOpen {
							refusedN <- struct{}{}
						}
					})
				}
				synctest.Wait()
				if n := r.sim.Stats().Calls - calls; n != int64(probes) || len(refusedN) != 100-probes {
					t.Errorf("%d probes on the wire, %d refused; want %d and the rest", n, len(refusedN), probes)
				}
				// Who comes while the probes are out is refused before paying.
				paid := r.limits.granted
				r.ask("ben", 2)
				if r.limits.granted != paid || tokens > paid {
					t.Errorf("a refused call paid a token")
				}
				all.Wait()
				synctest.Wait()
				if r.state() != "closed" {
					t.Errorf("%s after %d good probes, want closed", r.state(), probes)
				}
			})
		})
	}
}

// While reviews wait, they are the probes: people keep away and are answered at once. With none, people probe.
func TestReviewsProbeFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		due := true
		r := newRig(t, simulator.Config{}, func(c *Config) { c.ReviewsDue = func() bool { return due } })
		r.open()
		r.mode(simulator.Mode{P50: 300 * ms})
		time.Sleep(30*time.Second + 1)
		calls, paid := r.sim.Stats().Calls, r.limits.granted
		began := time.Now()
		for i := range 100 {
			if out := r.ask(fmt.Sprintf("ana%d", i), 2); out.Sent != 0 || out.Verdict.Reason != verdict.CircuitOpen {
				t.Fatalf("sent %d, %s; want the breaker's refusal", out.Sent, out.Verdict.Reason)
			}
		}
		if time.Since(began) != 0 || r.limits.granted != paid {
			t.Errorf("a hundred refusals took %v and %d tokens", time.Since(began), r.limits.granted-paid)
		}
		var all sync.WaitGroup
		background := func(local string) {
			all.Go(func() {
				p := plan(15*time.Second, 0)
				p.Class = verdict.Background
				if out := r.Check(t.Context(), address(t, local), p); !out.Final() {
					t.Errorf("%s: %s", local, out.Verdict.Reason)
				}
			})
		}
		background("one")
		background("two")
		all.Wait()
		// The loop has nothing more: the last place is a person's.
		due = false
		if out := r.ask("ben", 2); !out.Final() {
			t.Errorf("a person's probe: %s", out.Verdict.Reason)
		}
		synctest.Wait()
		if n := r.sim.Stats().Calls - calls; n != 3 || r.state() != "closed" {
			t.Errorf("%d calls, breaker %s; want three probes and closed", n, r.state())
		}
		due = true // makes no difference to a closed breaker
		if out := r.ask("cid", 2); !out.Final() {
			t.Errorf("once closed: %s", out.Verdict.Reason)
		}
	})
}

// A probe whose goroutine ends without an outcome keeps its place in gobreaker for ever. With all places lost the breaker
// is made anew: after twice the longer attempt time-out and 5 s, that is 25 s, and beginning with a cool-down.
func TestStuckHalfOpen(t *testing.T) {
	t.Parallel()
	leak := func(r *rig) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = r.breaker.guard(func() error { runtime.Goexit(); return nil })
		}()
		<-done
	}
	t.Run("all places lost", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			r.open()
			r.mode(simulator.Mode{})
			time.Sleep(30*time.Second + 1)
			r.ask("ana", 0) // one good probe, and two that are lost
			leak(r)
			leak(r)
			time.Sleep(25 * time.Second)
			if st := r.Standing(); st.Breaker != "half-open" || r.ask("ana", 0).Sent != 0 {
				t.Fatalf("standing %+v; want half-open and full", st)
			}
			time.Sleep(1)
			if st := r.Standing(); st.Breaker != "open" || st.Reason != verdict.CircuitOpen {
				t.Errorf("standing after 25 s = %+v, want open", st)
			}
			if n := r.metric("breaker_rebuilt_total"); n != 1 {
				t.Errorf("rebuilt = %v, want 1", n)
			}
			if n := strings.Count(r.log.String(), "stuck half-open"); n != 1 {
				t.Errorf("%d log lines say so, want one:\n%s", n, r.log)
			}
			time.Sleep(30*time.Second + 1)
			for range 3 {
				if !r.ask("ana", 0).Final() {
					t.Error("no verdict by a probe of the new one")
				}
			}
			synctest.Wait()
			if r.state() != "closed" || r.metric("breaker_state", "state", "closed") != 1 || r.metric("breaker_rebuilt_total") != 1 {
				t.Errorf("breaker %s, rebuilt %v times", r.state(), r.metric("breaker_rebuilt_total"))
			}
		})
	})
	t.Run("a probe is on its way", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			r.retune(func(t *Tuning) { t.Breaker.SlowGrace, t.LateTimeout = 60*time.Second, 60*time.Second })
			r.open()
			r.mode(simulator.Mode{})
			time.Sleep(30*time.Second + 1)
			leak(r)
			leak(r)
			var all sync.WaitGroup
			all.Go(func() { r.ask("delay-59000", 0) })
			time.Sleep(58 * time.Second)
			if st := r.Standing(); st.Breaker != "half-open" || r.metric("breaker_rebuilt_total") != 0 {
				t.Errorf("standing %+v: made anew under a probe", st)
			}
			all.Wait()
			synctest.Wait()
			if st := r.Standing(); st.Breaker != "open" {
				t.Errorf("standing %+v once the probe has ended, want open", st)
			}
		})
	})
	t.Run("nobody asks", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			r.open()
			r.mode(simulator.Mode{})
			time.Sleep(24 * time.Hour)
			for range 3 {
				if st := r.Standing(); st.Breaker != "half-open" {
					t.Errorf("standing %+v; a quiet night is no fault", st)
				}
				r.ask("ana", 0)
				synctest.Wait()
				time.Sleep(time.Hour)
			}
			if r.state() != "closed" || r.metric("breaker_rebuilt_total") != 0 {
				t.Errorf("breaker %s, rebuilt %v times", r.state(), r.metric("breaker_rebuilt_total"))
			}
		})
	})
}

func TestHalfOpenReopensOnSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		r.open()
		r.mode(simulator.Mode{})
		time.Sleep(30*time.Second + 1)
		var all sync.WaitGroup
		all.Go(func() { r.ask("hang", 0) })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if r.state() != "open" {
			t.Errorf("%s after a probe was silent for 2 s, want open", r.state())
		}
		all.Wait()
		time.Sleep(time.Hour)
		for range 3 {
			if !r.ask("ana", 0).Final() {
				t.Fatal("no verdict by a probe")
			}
		}
		synctest.Wait()
		if r.state() != "closed" {
			t.Errorf("%s after three good probes", r.state())
		}
	})
}

// An open breaker ends the retries of a check, with the reason that it had.
func TestOpenBreakerEndsRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		r.mode(simulator.Mode{Fault: simulator.Error500})
		for range 4 {
			r.ask("ana", 0)
			time.Sleep(300 * ms)
		}
		out := r.ask("ana", 5)
		if out.Sent != 1 || out.Verdict.Reason != verdict.UpstreamError {
			t.Errorf("sent %d, %s; want one and the fault", out.Sent, out.Verdict.Reason)
		}
		if n := r.metric("breaker_rejected_total"); n != 1 {
			t.Errorf("rejected = %v, want the retry", n)
		}
	})
}

func TestBreakerMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		is := func(state string) {
			t.Helper()
			for _, s := range []string{"closed", "half_open", "open"} {
				want := 0.0
				if s == state {
					want = 1
				}
				if got := r.metric("breaker_state", "state", s); got != want {
					t.Errorf("breaker_state of %s = %v while %s", s, got, state)
				}
			}
		}
		is("closed")
		r.open()
		is("open")
		time.Sleep(10 * time.Second)
		before := r.metric("breaker_open_seconds_total")
		time.Sleep(10 * time.Second)
		if got := r.metric("breaker_open_seconds_total") - before; got != 10 {
			t.Errorf("open seconds advanced by %v in 10 s", got)
		}
		time.Sleep(11 * time.Second)
		r.Standing()
		is("half_open")
		r.mode(simulator.Mode{})
		for range 3 {
			r.ask("ana", 0)
		}
		synctest.Wait()
		is("closed")
		for _, to := range []string{"open", "half_open", "closed"} {
			if got := r.metric("breaker_transitions_total", "to", to); got != 1 {
				t.Errorf("transitions to %s = %v, want 1", to, got)
			}
		}
		open := r.metric("breaker_open_seconds_total")
		time.Sleep(time.Hour)
		if got := r.metric("breaker_open_seconds_total"); got != open || open < 30 || open > 32 {
			t.Errorf("open seconds %v, then %v while closed; want some 31 and no more", open, got)
		}
	})
}
