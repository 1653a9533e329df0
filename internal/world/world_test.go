package world

import (
	"flag"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

var (
	seedsFlag = flag.Int("world.seeds", 1, "how many worlds to play")
	seedFlag  = flag.Uint64("world.seed", 1, "the seed of the first; the others follow it")
	hoursFlag = flag.Float64("world.hours", defaultHours, "how long people come, in simulated hours")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestWorld plays whole worlds; see the package comment.
func TestWorld(t *testing.T) {
	if *seedsFlag < 1 || *hoursFlag < 1 {
		t.Fatal("-world.seeds and -world.hours must be 1 or more")
	}
	began := time.Now()
	var mu sync.Mutex
	var sum totals
	t.Run("seeds", func(t *testing.T) {
		for i := range uint64(*seedsFlag) {
			seed := *seedFlag + i
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				one := playSeed(t, seed)
				mu.Lock()
				defer mu.Unlock()
				sum.add(one)
			})
		}
	})
	t.Logf("%d worlds, %d failed, %v simulated in %v: %v", sum.worlds, sum.failed, sum.simulated.Round(time.Minute),
		time.Since(began).Round(time.Millisecond), sum)
}

// playSeed plays one world and checks its promises.
func playSeed(t *testing.T, seed uint64) totals {
	began := time.Now()
	p := drawPlan(seed, time.Duration(*hoursFlag*float64(time.Hour)))
	folder := t.TempDir()
	var l *ledger
	synctest.Test(t, func(t *testing.T) { l = play(t, p, folder) })

	one := totals{worlds: 1, simulated: l.rested.Sub(l.began), requests: len(l.answers) + len(l.gone), left: len(l.gone),
		accepted: l.accepted(), calls: len(l.calls), billed: l.billed(), peak: l.peak(), slowest: l.slowest()}
	t.Logf("seed %d: %v simulated in %v: %v; digest %s", seed, one.simulated.Round(time.Minute),
		time.Since(began).Round(time.Millisecond), one, l.digest())
	for _, b := range l.check() {
		t.Errorf("seed %d: broken promise: %s", seed, b)
	}
	if one.accepted == 0 || one.billed == 0 {
		t.Errorf("seed %d: a world in which nothing happened", seed)
	}
	if t.Failed() {
		one.failed = 1
		t.Logf("seed %d: the upstream's day was %q, the gateway was stopped at %v for %v", seed, p.script, p.stopAt, p.down)
		t.Logf("to play it again: go test ./internal/world -run TestWorld -v -world.seed=%d -world.hours=%v",
			seed, *hoursFlag)
	}
	return one
}

// totals are what one world came to, or many.
type totals struct {
	worlds, failed                          int
	simulated                               time.Duration
	requests, left, accepted, calls, billed int
	peak                                    float64
	slowest                                 time.Duration
}

func (s totals) String() string {
	return fmt.Sprintf("%d requests (%d hung up), %d accepted for review, %d upstream calls, %d billed, "+
		"highest burst %.2f, slowest answer %v", s.requests, s.left, s.accepted, s.calls, s.billed, s.peak, s.slowest)
}

func (s *totals) add(o totals) {
	s.worlds += o.worlds
	s.failed += o.failed
	s.requests += o.requests
	s.left += o.left
	s.calls += o.calls
	s.accepted += o.accepted
	s.billed += o.billed
	s.simulated += o.simulated
	s.slowest = max(s.slowest, o.slowest)
	s.peak = max(s.peak, o.peak)
}
