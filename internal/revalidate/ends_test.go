package revalidate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/fallback"
)

// desktop is a queue whose statements take a while, and of which it keeps the sizes.
type desktop struct {
	queue
	mu      sync.Mutex
	sizes   []int
	bad     string // a row that no statement can hold
	lost    string // a row that is someone else's
	written map[string]int
}

func (d *desktop) statement(ids []string) (lost []fallback.Claim, err error) {
	time.Sleep(10 * time.Millisecond)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sizes = append(d.sizes, len(ids))
	for _, id := range ids {
		if id == d.bad {
			return nil, errors.New("a row can't be written")
		}
	}
	for _, id := range ids {
		if id == d.lost {
			lost = append(lost, fallback.Claim{ReviewID: id})
			continue
		}
		d.written[id]++
	}
	return lost, nil
}

func (d *desktop) SettleBatch(_ context.Context, batch []fallback.Settlement) ([]fallback.Claim, error) {
	var ids []string
	for _, s := range batch {
		ids = append(ids, s.Claim.ReviewID)
	}
	return d.statement(ids)
}

func (d *desktop) PostponeBatch(ctx context.Context, batch []fallback.Delay) ([]fallback.Claim, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var ids []string
	for _, s := range batch {
		ids = append(ids, s.Claim.ReviewID)
	}
	return d.statement(ids)
}

func settling(id string) *ending {
	return &ending{settle: &fallback.Settlement{Claim: fallback.Claim{ReviewID: id}}}
}

func delaying(id string) *ending {
	return &ending{delay: &fallback.Delay{Claim: fallback.Claim{ReviewID: id}}}
}

func endsStory(t *testing.T, story func(t *testing.T, d *desktop, write func(*ending) error)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &desktop{written: map[string]int{}}
		w := &ends{queue: d}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // what was found out is written also while stopping
		var work sync.WaitGroup
		story(t, d, func(e *ending) error { return w.write(ctx, e, work.Go) })
		work.Wait()
		if w.writers != 0 || len(w.waiting) != 0 {
			t.Errorf("%d writers and %d rows are left, want none", w.writers, len(w.waiting))
		}
	})
}

func TestALoneEndWaitsForNobody(t *testing.T) {
	endsStory(t, func(t *testing.T, d *desktop, write func(*ending) error) {
		for i := range 3 {
			began := time.Now()
			if err := write(settling(fmt.Sprint(i))); err != nil {
				t.Errorf("write = %v, want no error", err)
			}
			if took := time.Since(began); took != 10*time.Millisecond {
				t.Errorf("a lone end took %v, want the statement's 10ms", took)
			}
		}
		// One that comes while another is under way does not wait for it either.
		var all sync.WaitGroup
		all.Go(func() { _ = write(settling("first")) })
		time.Sleep(5 * time.Millisecond)
		began := time.Now()
		_ = write(settling("second"))
		if took := time.Since(began); took != 10*time.Millisecond {
			t.Errorf("the second of two took %v, want the statement's 10ms", took)
		}
		all.Wait()
	})
}

func TestManyEndsShareStatements(t *testing.T) {
	endsStory(t, func(t *testing.T, d *desktop, write func(*ending) error) {
		var all sync.WaitGroup
		for i := range 130 {
			all.Go(func() {
				e := settling(fmt.Sprint(i))
				if i%2 == 1 {
					e = delaying(fmt.Sprint(i))
				}
				if err := write(e); err != nil {
					t.Errorf("write = %v, want no error", err)
				}
			})
		}
		all.Wait()
		if len(d.written) != 130 {
			t.Errorf("%d rows were written, want 130", len(d.written))
		}
		for _, n := range d.sizes {
			if n > fallback.MaxBatch {
				t.Errorf("a statement of %d rows, want at most %d", n, fallback.MaxBatch)
			}
		}
		// 130 rows in takes of 50 are three or four takes (the first writer may take fewer), of two statements each.
		if len(d.sizes) > 10 {
			t.Errorf("%d statements for 130 rows that came at once, want some six", len(d.sizes))
		}
	})
}

func TestEachEndIsToldItsOwnOutcome(t *testing.T) {
	for _, kind := range []func(string) *ending{settling, delaying} {
		t.Run("", func(t *testing.T) {
			endsStory(t, func(t *testing.T, d *desktop, write func(*ending) error) {
				d.bad, d.lost = "7", "9"
				var mu sync.Mutex
				got := map[string]error{}
				var all sync.WaitGroup
				for i := range 20 {
					all.Go(func() {
						err := write(kind(fmt.Sprint(i)))
						mu.Lock()
						defer mu.Unlock()
						got[fmt.Sprint(i)] = err
					})
				}
				all.Wait()
				for id, err := range got {
					switch id {
					case "7":
						if err == nil || errors.Is(err, fallback.ErrLeaseLost) {
							t.Errorf("the row that can't be written: %v, want its own error", err)
						}
					case "9":
						if !errors.Is(err, fallback.ErrLeaseLost) {
							t.Errorf("the row of someone else: %v, want ErrLeaseLost", err)
						}
					default:
						if err != nil || d.written[id] != 1 {
							t.Errorf("row %s: %v and written %d times, want once", id, err, d.written[id])
						}
					}
				}
			})
		})
	}
}

func TestAnEndThatComesTooLateIsGivenUp(t *testing.T) {
	endsStory(t, func(t *testing.T, d *desktop, _ func(*ending) error) {
		w := &ends{queue: d}
		late, good := settling("late"), settling("good")
		late.done, good.done = make(chan struct{}), make(chan struct{})
		late.until, good.until = time.Now(), time.Now().Add(time.Second)
		w.flush(t.Context(), []*ending{late, good})
		if !errors.Is(late.err, context.DeadlineExceeded) || good.err != nil || d.written["late"] != 0 {
			t.Errorf("late: %v, written %d times, and the other: %v; want a deadline, never, and none", late.err, d.written["late"], good.err)
		}
	})
}
