package flight

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestManyJoinOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup[string, *atomic.Int64](t.Context(), 100)
		var began, joined atomic.Int64
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				f, j, err := g.Start("k", time.Minute, func() *atomic.Int64 { began.Add(1); return new(atomic.Int64) },
					func(_ context.Context, v *atomic.Int64) error { time.Sleep(time.Second); v.Add(7); return nil })
				if err != nil {
					t.Error(err)
					return
				}
				if j {
					joined.Add(1)
				}
				<-f.Done()
				if got := f.Value().Load(); got != 7 || f.Err() != nil {
					t.Errorf("value %d, %v, want 7, nil", got, f.Err())
				}
			})
		}
		wg.Wait()
		if began.Load() != 1 || joined.Load() != 99 {
			t.Errorf("began %d, joined %d, want 1 and 99", began.Load(), joined.Load())
		}
		synctest.Wait()
		if g.Len() != 0 {
			t.Errorf("%d keys in flight after landing, want 0", g.Len())
		}
	})
}

func TestWaiterLeavesAndTheWorkGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup[string, int](t.Context(), 100)
		ended := false
		f, _, err := g.Start("k", time.Minute, func() int { return 1 },
			func(ctx context.Context, _ int) error {
				time.Sleep(5 * time.Second)
				ended = ctx.Err() == nil
				return nil
			})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-f.Done():
			t.Error("landed before the work ended")
		case <-time.After(time.Second): // the waiter leaves
		}
		<-f.Done()
		if !ended {
			t.Error("the work's context ended with its waiter")
		}
	})
}

func TestDeadlineIsTheFlightsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup[string, int](t.Context(), 100)
		start := time.Now()
		f, _, _ := g.Start("k", 10*time.Second, func() int { return 0 },
			func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() })
		<-f.Done()
		if d := time.Since(start); d != 10*time.Second || !errors.Is(f.Err(), context.DeadlineExceeded) {
			t.Errorf("ended after %v with %v, want 10s and a deadline", d, f.Err())
		}
	})
}

func TestPanicIsAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup[string, int](t.Context(), 100)
		f, _, _ := g.Start("k", time.Minute, func() int { return 0 },
			func(context.Context, int) error { panic("ana@example.com") })
		<-f.Done()
		if !errors.Is(f.Err(), ErrPanic) {
			t.Fatalf("err = %v, want ErrPanic", f.Err())
		}
		if got := f.Err().Error(); got != "flight panicked: string" {
			t.Errorf("error text %q carries more than the type", got)
		}
		synctest.Wait()
		if g.Len() != 0 {
			t.Error("the key of a panicked flight stays taken")
		}
	})
}

func TestOverTheBoundRunsWithoutJoining(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup[int, int](t.Context(), shards) // one a shard
		release := make(chan struct{})
		var ran atomic.Int64
		for i := range 200 {
			if _, _, err := g.Start(i, time.Minute, func() int { return i },
				func(context.Context, int) error { ran.Add(1); <-release; return nil }); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if ran.Load() != 200 || g.Len() > shards {
			t.Errorf("%d ran with %d keys kept, want 200 and at most %d", ran.Load(), g.Len(), shards)
		}
		close(release)
	})
}

func TestCloseWaitsAndRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup[string, int](t.Context(), 100)
		_, _, _ = g.Start("k", time.Minute, func() int { return 0 },
			func(context.Context, int) error { time.Sleep(3 * time.Second); return nil })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close before landing = %v, want a deadline", err)
		}
		if _, _, err := g.Start("l", time.Minute, func() int { return 0 }, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("Start after Close = %v, want ErrClosed", err)
		}
		if err := g.Close(t.Context()); err != nil {
			t.Errorf("Close after landing = %v, want nil", err)
		}
	})
}

// TestNobodyJoinsWhatHasLanded: who saw a flight land, and does not like what it brought, gets another one.
func TestNobodyJoinsWhatHasLanded(t *testing.T) {
	t.Parallel()
	g := NewGroup[int, int](t.Context(), 100)
	for n := range 1000 {
		f, joined, err := g.Start(1, time.Minute, func() int { return n }, func(context.Context, int) error { return nil })
		if err != nil || joined || f.Value() != n {
			t.Fatalf("Start %d = the flight of %d, joined %t, %v; want a new one", n, f.Value(), joined, err)
		}
		<-f.Done()
	}
	// The same with one that has landed and is still listed, as it is for a moment.
	listed := &Flight[int]{done: make(chan struct{})}
	close(listed.done)
	for i := range g.shards {
		g.shards[i].mu.Lock()
		g.shards[i].m[2] = listed
		g.shards[i].mu.Unlock()
	}
	if f, joined, err := g.Start(2, time.Minute, func() int { return 2 }, func(context.Context, int) error { return nil }); err != nil || joined || f == listed {
		t.Errorf("joined %t what has landed, %v", joined, err)
	}
	if err := g.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
