package verimail

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/verimail/simulator"
)

// arrivals calls visit at random moments, so many a second on average, until they have gone on for so long; it returns
// when every visit has ended.
func arrivals(rng *rand.Rand, perSecond float64, long time.Duration, visit func(n int)) {
	var all sync.WaitGroup
	defer all.Wait()
	end := time.Now().Add(long)
	for n := 0; ; n++ {
		time.Sleep(time.Duration(rng.ExpFloat64() / perSecond * float64(time.Second)))
		if !time.Now().Before(end) {
			return
		}
		all.Go(func() { visit(n) })
	}
}

// An upstream that fails for 400 ms is not felt: nine callers in ten, and more, get their verdict all the same, with
// what a sign-up has by default (800 ms, of which the upstream gets 650 ms, and two retries). Few callers or many: neither
// the breaker nor the retry budget may stand in the way of what a retry is for.
func TestShortOutageIsNotFelt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		perSecond float64
		seeds     uint64
	}{{5, 8}, {20, 8}, {200, 1}} {
		t.Run(fmt.Sprint(tt.perSecond), func(t *testing.T) {
			t.Parallel()
			var callers, served, calls atomic.Int64
			for seed := range tt.seeds {
				synctest.Test(t, func(t *testing.T) {
					var mu sync.Mutex
					draw := rand.New(rand.NewPCG(seed, 1))
					r := newRig(t, simulator.Config{P50: 60 * ms, P99: 250 * ms, Seed: seed}, func(c *Config) {
						c.Rand = func() float64 {
							mu.Lock()
							defer mu.Unlock()
							return draw.Float64()
						}
					})
					const begins, ends = 12 * time.Second, 12*time.Second + 400*ms
					time.AfterFunc(begins, func() { _ = r.sim.SetMode(simulator.Mode{Fault: simulator.Error500, P50: 5 * ms}) })
					time.AfterFunc(ends, func() { _ = r.sim.SetMode(simulator.Mode{}) })
					began := time.Now()
					arrivals(rand.New(rand.NewPCG(seed, 2)), tt.perSecond, 14*time.Second, func(n int) {
						at := time.Since(began)
						out := r.ask(fmt.Sprintf("ana%d", n), 2)
						if at < begins || at >= ends {
							return
						}
						callers.Add(1)
						calls.Add(int64(out.Sent))
						if out.Final() {
							served.Add(1)
						}
					})
					synctest.Wait()
					if r.state() != "closed" {
						t.Errorf("seed %d: breaker %s after a blip", seed, r.state())
					}
				})
			}
			share := float64(served.Load()) / float64(callers.Load())
			t.Logf("%d of %d callers got a verdict (%.1f %%) by %d calls", served.Load(), callers.Load(), 100*share, calls.Load())
			if callers.Load() < 8 || share < 0.9 {
				t.Errorf("%.1f %% of %d callers got a verdict, want 90 %%", 100*share, callers.Load())
			}
		})
	}
}

// An upstream that is healthy and slow, 832 ms on average for five minutes, keeps the breaker closed. It takes longer than
// an attempt's time-out, so most calls are late ones; each is waited for, and none is asked twice.
func TestSlowUpstreamIsHealthy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{P50: 800 * ms, P99: 1600 * ms, Seed: 7})
		var final, checks, took atomic.Int64
		arrivals(rand.New(rand.NewPCG(7, 2)), 5, 5*time.Minute, func(n int) {
			began := time.Now()
			out := r.ask(fmt.Sprintf("ana%d", n), 2)
			checks.Add(1)
			took.Add(int64(time.Since(began)))
			if out.Final() && out.Sent == 1 {
				final.Add(1)
			}
		})
		synctest.Wait()
		mean := time.Duration(took.Load() / checks.Load())
		t.Logf("%d checks, %v on average, %v of them late", checks.Load(), mean, r.metric("provider_late_total"))
		if mean < 810*ms || mean > 854*ms {
			t.Errorf("mean %v: the story is of 832 ms", mean)
		}
		if final.Load() != checks.Load() || checks.Load() < 1300 {
			t.Errorf("%d of %d checks got their verdict by one call", final.Load(), checks.Load())
		}
		if st := r.sim.Stats(); st.Calls != checks.Load() || st.Billed != checks.Load() {
			t.Errorf("%d calls, %d billed, for %d checks", st.Calls, st.Billed, checks.Load())
		}
		if r.metric("breaker_transitions_total", "to", "open") != 0 || r.state() != "closed" {
			t.Errorf("breaker %s, opened %v times", r.state(), r.metric("breaker_transitions_total", "to", "open"))
		}
	})
}
