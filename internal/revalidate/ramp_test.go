package revalidate

import (
	"testing"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/verdict"
)

// After an outage the loop begins slowly, whatever waits, and is at its full speed half a minute later.
func TestRampAfterAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		for i := range 600 {
			s.record(i, 0, verdict.CauseMailbox)
		}
		s.desk.takes = 10 * time.Millisecond
		s.tuning = Tuning{Workers: 50, Batch: 50, Lease: 30 * time.Second, Probes: 2, Rate: 20}
		s.set(Upstream{Closed: true})
		stop := s.start()
		defer stop()
		time.Sleep(30 * time.Second)
		s.set(Upstream{})
		opened := time.Now()
		time.Sleep(70 * time.Second)
		perStep := make([]int, 7)
		worst := map[time.Duration]int{}
		for _, at := range s.desk.times() {
			since := at.Sub(opened)
			perStep[int(since/(10*time.Second))]++
			worst[since.Truncate(time.Second)]++
		}
		// 3/s, 4.5/s, 6.75/s, 10.1/s and 15.2/s; 22.8/s would be over the rate of 20/s: from then on only workers bound it.
		// The loop sees the recovery a second late at most, and a second's worth may be carried over a step.
		for i, want := range []float64{3, 4.5, 6.75, 10.125, 15.1875} {
			if got := float64(perStep[i]); got < 0.8*10*want || got > 1.2*10*want {
				t.Errorf("%v checks in step %d, want %v, give or take a fifth", got, i, 10*want)
			}
			for second := range 10 {
				at := time.Duration(10*i+second) * time.Second
				if got := worst[at]; float64(got) > 2*want+1 { // a second of the clock may see what was kept from the one before
					t.Errorf("%d checks in the second after %v, want %v or what was kept for a second with it", got, at, want)
				}
			}
		}
		if perStep[6] == 0 && s.desk.calls() < 600 {
			t.Errorf("%d checks in 70 s, want the rest to be done once the ramp is over", s.desk.calls())
		}
	})
}

// A start is no outage, and without a rate there is nothing to go by.
func TestNoRampWithoutAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		for i := range 100 {
			s.record(i, 0, verdict.CauseMailbox)
		}
		s.tuning.Workers, s.tuning.Rate = 50, 20
		s.desk.takes = 10 * time.Millisecond
		stop := s.start()
		defer stop()
		time.Sleep(5 * time.Second)
		if n := s.desk.calls(); n != 100 {
			t.Errorf("%d checks in 5 s after a start, want all 100", n)
		}
		if st, err := s.store.Stats(t.Context()); err != nil || st != (fallback.Stats{}) {
			t.Errorf("Stats = %+v, %v, want nothing left", st, err)
		}
	})
	var r ramp
	now := time.Now()
	r.begin(now)
	if n := r.allow(now, 0); n < 1000 {
		t.Errorf("without a rate %d checks may begin, want no bound", n)
	}
}
