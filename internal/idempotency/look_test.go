package idempotency

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"validator-gw/internal/fallback"
)

// slow is a store whose statements about keys take a while, and that counts those at work at the same time.
type slow struct {
	store
	takes     time.Duration
	now, most atomic.Int64
}

func (s *slow) work() (end func()) {
	n := s.now.Add(1)
	for m := s.most.Load(); n > m && !s.most.CompareAndSwap(m, n); m = s.most.Load() {
	}
	time.Sleep(s.takes)
	return func() { s.now.Add(-1) }
}

func (s *slow) ReserveKey(ctx context.Context, r fallback.Reservation) (fallback.Held, error) {
	defer s.work()()
	return s.store.ReserveKey(ctx, r)
}

func (s *slow) ReadKey(ctx context.Context, key fallback.Hash) (fallback.Held, error) {
	defer s.work()()
	return s.store.ReadKey(ctx, key)
}

// A crowd under one key takes one connection to the store at a time: of equal ones one gets the key and all others its
// answer, and those who ask for something else are refused.
func TestCrowdLooksOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *counting, _ func() *counting) {
		db := &slow{store: s, takes: 30 * time.Millisecond}
		k := keeper(t, db)
		var crowd sync.WaitGroup
		var states sync.Map
		count := func(who string, st State) {
			n, _ := states.LoadOrStore(who+" "+string(st), new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
		}
		for range 100 {
			crowd.Go(func() {
				b, err := k.Begin(t.Context(), request("forms", "key", "ana@example.com"), patience())
				if err != nil {
					t.Errorf("Begin = %v", err)
				}
				count("equal", b.State)
				if b.State == Mine {
					time.Sleep(200 * time.Millisecond)
					if err := b.Claim.Finish(t.Context(), []byte("answer")); err != nil {
						t.Error(err)
					}
				}
			})
		}
		time.Sleep(time.Millisecond)
		for range 20 {
			crowd.Go(func() {
				b, err := k.Begin(t.Context(), request("forms", "key", "bob@example.com"), patience())
				if err != nil {
					t.Errorf("Begin of another = %v", err)
				}
				count("another", b.State)
			})
		}
		crowd.Wait()
		for who, want := range map[string]int64{"equal mine": 1, "equal replay": 99, "another conflict": 20} {
			n, ok := states.Load(who)
			if !ok || n.(*atomic.Int64).Load() != want {
				t.Errorf("%s: %v, want %d", who, n, want)
			}
		}
		if n := db.most.Load(); n != 1 {
			t.Errorf("%d statements about one key at a time, want 1", n)
		}
		k.Close()
	})
}

// Whoever leaves while the key is being taken leaves it free, and takes nothing from those who wait with them.
func TestLeaverLeavesTheKeyFree(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *counting, _ func() *counting) {
		k := keeper(t, &slow{store: s, takes: 100 * time.Millisecond})
		r := request("forms", "key", "ana@example.com")
		ctx, leave := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer leave()
		left := make(chan error, 1)
		go func() {
			_, err := k.Begin(ctx, r, patience())
			left <- err
		}()
		time.Sleep(10 * time.Millisecond)
		b := begin(t, k, r, Mine) // not a wait for a lease that nobody ends
		if err := <-left; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Begin of one who left = %v", err)
		}
		if err := b.Claim.Finish(t.Context(), []byte("answer")); err != nil {
			t.Error(err)
		}
		begin(t, k, r, Replay)
		k.Close()
	})
}

// A look that fails is tried once more by those who only waited for it, each in its own time, and not once for each of them.
func TestCrowdAtAStoreThatFails(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *counting, _ func() *counting) {
		db := &counting{store: &slow{store: &away{err: errors.New("fault")}, takes: 10 * time.Millisecond}}
		k := keeper(t, db)
		var crowd sync.WaitGroup
		for range 50 {
			crowd.Go(func() {
				if _, err := k.Begin(t.Context(), request("forms", "key", "ana@example.com"), patience()); !errors.Is(err, ErrUnavailable) {
					t.Errorf("Begin = %v, want ErrUnavailable", err)
				}
			})
		}
		crowd.Wait()
		if n := db.calls.Load(); n != 2 {
			t.Errorf("%d statements, want 2", n)
		}
		k.Close()
	})
}
