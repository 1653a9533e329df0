package debounce

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A thousand who come while one is being served share one more turn, which begins after they came.
func TestThousandTakeTwoTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var turns Turns[string, time.Time]
		var works, shared atomic.Int64
		work := func() (time.Time, error) {
			works.Add(1)
			began := time.Now()
			time.Sleep(10 * ms)
			return began, nil
		}
		var all sync.WaitGroup
		for i := range 1001 {
			all.Go(func() {
				if i > 0 {
					time.Sleep(time.Duration(i%9+1) * ms) // while the first is served
				}
				came := time.Now()
				began, s, err := turns.Do("k", work)
				if err != nil || began.Before(came) {
					t.Errorf("%d got work that began %v before it came, %v", i, came.Sub(began), err)
				}
				if s {
					shared.Add(1)
				}
			})
		}
		all.Wait()
		if works.Load() != 2 || shared.Load() != 999 {
			t.Errorf("%d turns, %d shared one, want 2 and 999", works.Load(), shared.Load())
		}
		if len(turns.lines) != 0 {
			t.Errorf("%d keys are left", len(turns.lines))
		}
	})
}

func TestTurnsOfOtherKeysAreApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var turns Turns[int, int]
		began := time.Now()
		var all sync.WaitGroup
		for key := range 10 {
			all.Go(func() {
				if got, shared, err := turns.Do(key, func() (int, error) { time.Sleep(10 * ms); return key, nil }); got != key || shared || err != nil {
					t.Errorf("Do(%d) = %d, %t, %v", key, got, shared, err)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took != 10*ms {
			t.Errorf("took %v, want 10ms: one waited for another", took)
		}
	})
}

// An error is shared like a result, and a panic is an error for those who shared; the line goes on.
func TestTurnsThatFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var turns Turns[string, int]
		broken := errors.New("broken")
		n := 0
		work := func() (int, error) {
			n++
			turn := n
			time.Sleep(10 * ms)
			switch turn {
			case 1:
				return 0, broken
			case 2:
				panic("a bug")
			}
			return turn, nil
		}
		var all sync.WaitGroup
		got, panics := make([]error, 4), atomic.Int64{}
		for i := range got {
			all.Go(func() {
				defer func() {
					if recover() != nil {
						panics.Add(1)
					}
				}()
				time.Sleep(time.Duration(i) * ms)
				_, _, got[i] = turns.Do("k", work)
			})
		}
		all.Wait()
		if !errors.Is(got[0], broken) || got[1] != nil || !errors.Is(got[2], ErrPanic) || !errors.Is(got[3], ErrPanic) || panics.Load() != 1 {
			t.Errorf("got %v and %d panics, want the first broken, the second's panic its own, and ErrPanic for the others", got, panics.Load())
		}
		if v, shared, err := turns.Do("k", work); v != 3 || shared || err != nil {
			t.Errorf("after a panic Do = %d, %t, %v, want 3", v, shared, err)
		}
	})
}
