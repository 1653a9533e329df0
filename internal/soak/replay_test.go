package soak

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A replay keeps to its places and its order, is no faster than its plan, and restarts when nothing is in work, or, for a
// kill, when something is.
func TestReplay(t *testing.T) {
	t.Parallel()
	for _, how := range []Restart{InOrder, Killed} {
		synctest.Test(t, func(t *testing.T) {
			const (
				places = 2
				took   = 100 * time.Millisecond
			)
			p := Profile{Replay: places, Stages: []Stage{{Name: "a", For: time.Second}, {Name: "b", Restart: how}, {Name: "c", For: time.Second}}}
			var asks []Ask
			for i := range 10 { // ten at once, which take five times as long as one; then ten at their leisure
				asks = append(asks, Ask{At: time.Duration(i) * time.Microsecond, Address: "x"})
			}
			for i := range 10 {
				asks = append(asks, Ask{At: time.Second + time.Duration(i)*200*time.Millisecond, Address: "x", Stage: 2})
			}
			var inWork, most atomic.Int32
			l := &Ledger{Profile: p, Began: time.Now()}
			restarts := 0
			err := l.replay(t.Context(), asks, func(context.Context, *Answer) {
				if n := inWork.Add(1); n > most.Load() {
					most.Store(n)
				}
				time.Sleep(took)
				inWork.Add(-1)
			}, func(Restart) error {
				restarts++
				if n := inWork.Load(); (n > 0) != (how == Killed) {
					t.Errorf("restart %s with %d requests in work", how, n)
				}
				time.Sleep(time.Minute)
				return nil
			}, func(string, ...any) {})
			if err != nil || restarts != 1 || most.Load() != places {
				t.Errorf("%s: %d restarts, %d at once, %v", how, restarts, most.Load(), err)
			}
			for i, a := range l.Answers {
				switch {
				case i > 0 && a.At < l.Answers[i-1].At, a.Got-a.Sent != took, a.Sent < asks[i].At:
					t.Errorf("%s: answer %d sent at %v, got at %v, meant for %v", how, i, a.Sent, a.Got, asks[i].At)
				case i > 10 && a.At-l.Answers[i-1].At < 200*time.Millisecond:
					t.Errorf("%s: answer %d comes %v after the one before, meant were 200ms", how, i, a.At-l.Answers[i-1].At)
				}
			}
			from, to := l.span(1)
			if to-from < time.Minute || l.Answers[10].At < to || l.Answers[9].At > from {
				t.Errorf("%s: the restart from %v to %v, around it %v and %v", how, from, to, l.Answers[9].At, l.Answers[10].At)
			}
			if p.Stages[0].For != time.Second {
				t.Error("the profile's own stages were changed")
			}
		})
	}
}
