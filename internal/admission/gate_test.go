package admission

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newGate(places int, wait time.Duration) (*Gate, *atomic.Pointer[Limits]) {
	var lim atomic.Pointer[Limits]
	lim.Store(&Limits{Concurrency: places, Wait: wait})
	return NewGate(func() Limits { return *lim.Load() }), &lim
}

func mustEnter(t *testing.T, g *Gate) func() {
	t.Helper()
	leave, err := g.Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return leave
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	for places, want := range map[int]int{1: 1, 3: 3, 0: 1, -5: 1} {
		g, _ := newGate(places, 0)
		var leaves []func()
		for range want {
			leaves = append(leaves, mustEnter(t, g))
		}
		if _, err := g.Enter(t.Context()); !errors.Is(err, ErrFull) {
			t.Errorf("%d places: one more gives %v, want %v", places, err, ErrFull)
		}
		for _, leave := range leaves {
			leave()
		}
		if n := g.Inside(); n != 0 {
			t.Errorf("%d inside after all left", n)
		}
	}
	g, _ := newGate(math.MaxInt, 0) // off
	for range 10_000 {
		mustEnter(t, g)
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	const wait = 20 * time.Millisecond
	t.Run("in vain", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g, _ := newGate(1, wait)
			mustEnter(t, g)
			began := time.Now()
			if _, err := g.Enter(t.Context()); !errors.Is(err, ErrFull) || time.Since(began) != wait {
				t.Errorf("%v after %v, want %v after %v", err, time.Since(began), ErrFull, wait)
			}
			if len(g.queue) != 0 {
				t.Error("it is still in the queue")
			}
		})
	})
	t.Run("until a place is free", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g, _ := newGate(1, wait)
			leave := mustEnter(t, g)
			time.AfterFunc(7*time.Millisecond, leave)
			began := time.Now()
			mustEnter(t, g)
			if took := time.Since(began); took != 7*time.Millisecond || g.Inside() != 1 {
				t.Errorf("entered after %v, %d inside; want 7ms and 1", took, g.Inside())
			}
		})
	})
	t.Run("until ctx ends", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g, _ := newGate(1, wait)
			mustEnter(t, g)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
			defer cancel()
			began := time.Now()
			if _, err := g.Enter(ctx); !errors.Is(err, ErrFull) || time.Since(began) != 3*time.Millisecond {
				t.Errorf("%v after %v, want %v after 3ms", err, time.Since(began), ErrFull)
			}
		})
	})
	t.Run("bounded queue", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g, _ := newGate(3, wait)
			for range 3 {
				mustEnter(t, g)
			}
			var all sync.WaitGroup
			var atOnce, later atomic.Int64
			began := time.Now()
			for range 10 {
				all.Go(func() {
					_, err := g.Enter(t.Context())
					switch took := time.Since(began); {
					case !errors.Is(err, ErrFull):
						t.Error(err)
					case took == 0:
						atOnce.Add(1)
					case took == wait:
						later.Add(1)
					}
				})
			}
			all.Wait()
			if atOnce.Load() != 7 || later.Load() != 3 {
				t.Errorf("%d refused at once, %d after the wait; want 7 and 3", atOnce.Load(), later.Load())
			}
		})
	})
}

// Places go to those who wait, the longest first, and not to who comes by.
func TestOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGate(5, time.Second)
		var leaves []func()
		for range 5 {
			leaves = append(leaves, mustEnter(t, g))
		}
		var mu sync.Mutex
		var order []int
		for i := range 5 {
			go func() {
				leave := mustEnter(t, g)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Hour)
				leave()
			}()
			synctest.Wait()
		}
		for i, leave := range leaves {
			leave()
			synctest.Wait()
			if len(order) != i+1 || order[i] != i || g.Inside() != 5 {
				t.Fatalf("after %d left: in came %v, %d inside", i+1, order, g.Inside())
			}
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if g.Inside() != 0 {
			t.Errorf("%d inside at the end", g.Inside())
		}
	})
}

func TestLimitsChange(t *testing.T) {
	t.Parallel()
	t.Run("lower", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g, lim := newGate(4, time.Second)
			var leaves []func()
			for range 4 {
				leaves = append(leaves, mustEnter(t, g))
			}
			entered := make(chan func(), 1)
			go func() { entered <- mustEnter(t, g) }()
			synctest.Wait()
			lim.Store(&Limits{Concurrency: 2, Wait: time.Second})
			for _, leave := range leaves[:2] { // down to two
				leave()
				synctest.Wait()
			}
			if len(entered) != 0 || g.Inside() != 2 {
				t.Fatalf("%d came in, %d inside; two is the limit", len(entered), g.Inside())
			}
			leaves[2]()
			synctest.Wait()
			if len(entered) != 1 || g.Inside() != 2 {
				t.Errorf("%d came in, %d inside; want 1 and 2", len(entered), g.Inside())
			}
		})
	})
	t.Run("higher", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g, lim := newGate(2, time.Second)
			mustEnter(t, g)
			mustEnter(t, g)
			var order []string
			go func() { mustEnter(t, g); order = append(order, "who waits") }()
			synctest.Wait()
			lim.Store(&Limits{Concurrency: 3, Wait: time.Second})
			go func() {
				if _, err := g.Enter(t.Context()); err == nil {
					order = append(order, "who came by")
				}
			}()
			synctest.Wait()
			if len(order) != 1 || order[0] != "who waits" {
				t.Errorf("in came %v, want who waits", order)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if g.Inside() != 3 {
				t.Errorf("%d inside, want 3", g.Inside())
			}
		})
	})
}

// Whatever the timing (a turn may come in the moment of giving up), no place is lost and none given twice.
func TestNoPlaceIsLost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		places := rapid.IntRange(1, 5).Draw(rt, "places")
		type visit struct{ at, stay, patience int }
		visits := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) visit {
			return visit{rapid.IntRange(0, 40).Draw(t, "at"), rapid.IntRange(0, 25).Draw(t, "stay"), rapid.IntRange(1, 40).Draw(t, "patience")}
		}), 1, 60).Draw(rt, "visits")
		synctest.Test(t, func(t *testing.T) {
			g, _ := newGate(places, 20*time.Millisecond)
			var inside, most atomic.Int64
			var all sync.WaitGroup
			for _, v := range visits {
				all.Go(func() {
					time.Sleep(time.Duration(v.at) * time.Millisecond)
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(v.patience)*time.Millisecond)
					defer cancel()
					leave, err := g.Enter(ctx)
					if err != nil {
						return
					}
					n := inside.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					time.Sleep(time.Duration(v.stay) * time.Millisecond)
					inside.Add(-1)
					leave()
				})
			}
			all.Wait()
			if most.Load() > int64(places) || g.Inside() != 0 || len(g.queue) != 0 {
				rt.Errorf("at most %d inside of %d places; at the end %d inside, %d waiting", most.Load(), places, g.Inside(), len(g.queue))
			}
			var leaves []func()
			for range places {
				leave, err := g.Enter(t.Context())
				if err != nil {
					rt.Fatal("a place is lost")
				}
				leaves = append(leaves, leave)
			}
			for _, leave := range leaves {
				leave()
			}
		})
	})
}

// A turn that comes in the moment of giving up is a place taken, or it would be lost.
func TestTurnInTheLastMoment(t *testing.T) {
	t.Parallel()
	for range 200 {
		g, _ := newGate(1, time.Hour)
		mustEnter(t, g)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := g.Enter(ctx)
			result <- err
		}()
		for waiting := 0; waiting == 0; runtime.Gosched() {
			g.mu.Lock()
			waiting = len(g.queue)
			g.mu.Unlock()
		}
		g.mu.Lock()
		cancel()
		runtime.Gosched() // it gives up, and stands before the lock
		g.hand()
		g.mu.Unlock()
		if err := <-result; err != nil {
			t.Fatalf("the place was handed over and refused: %v", err)
		}
	}
}

// The same on real threads, for the race detector.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	g, lim := newGate(4, 100*time.Microsecond)
	var inside atomic.Int64
	var all sync.WaitGroup
	for w := range 32 {
		all.Go(func() {
			for i := range 500 {
				leave, err := g.Enter(t.Context())
				if err != nil {
					continue
				}
				if n := inside.Add(1); n > 8 {
					t.Errorf("%d inside, the limit was never over 8", n)
				}
				inside.Add(-1)
				leave()
				if w == 0 {
					lim.Store(&Limits{Concurrency: 1 + i%8, Wait: 100 * time.Microsecond})
				}
			}
		})
	}
	all.Wait()
	if g.Inside() != 0 {
		t.Errorf("%d inside at the end", g.Inside())
	}
}

func BenchmarkEnter(b *testing.B) {
	g := NewGate(func() Limits { return Limits{Concurrency: 512, Wait: 20 * time.Millisecond} })
	b.ReportAllocs()
	for b.Loop() {
		leave, err := g.Enter(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		leave()
	}
}
