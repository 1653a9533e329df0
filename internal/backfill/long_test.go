//go:build !race

// Stories with many rows. SQLite in Go is some twenty times slower under the race detector, so "make test" runs these in a
// pass without it; the others go through the same code with fewer.

package backfill

import (
	"errors"
	"strings"
	"testing"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/verdict"
)

// A mailbox that asks to be tried again costs more than was reserved: the bound holds all the same.
func TestTheBoundOfCreditsHolds(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.answer = func(c fallback.Claim) (verdict.Verdict, *fallback.Postponement) {
			if c.Address.Domain() == "domain4.com" && c.Attempts < 2 {
				return verdict.Verdict{}, greylist()
			}
			return w.verdict(), nil
		}
		e, stop := w.start()
		defer stop()
		const most = 100
		b := w.load(e, list(0, 300), List{MaxCredits: most})
		for range 120 {
			time.Sleep(time.Minute)
			if n, _ := w.calls(); n > most {
				t.Fatalf("%d calls, want %d at most", n, most)
			}
		}
		b = w.until(e, b.ID, time.Hour, fallback.BackfillStopped)
		if n, _ := w.calls(); n != most || b.Credits != most || b.Own != 0 || b.Waiting != 0 {
			t.Errorf("%d calls, %+v, want the bound used up and nothing left open", n, b)
		}
		if b.Unresolved == 0 {
			t.Error("no mailbox was given up, so the story tells nothing")
		}
		if _, err := e.Results(t.Context(), b.ID, false); !errors.Is(err, ErrUnfinished) {
			t.Errorf("Results = %v, want ErrUnfinished", err)
		}
		if got := w.results(e, b.ID, true); strings.Count(got, ",,not_asked,") != int(b.Distinct-b.Done()) {
			t.Errorf("%d rows were not asked, want %d", strings.Count(got, ",,not_asked,"), b.Distinct-b.Done())
		}
		more := int64(1000)
		if _, err := e.Resume(t.Context(), b.ID, &more); err != nil {
			t.Fatal(err)
		}
		b = w.until(e, b.ID, 24*time.Hour, fallback.BackfillDone)
		if n, _ := w.calls(); int64(n) != b.Credits || b.Done() != 300 {
			t.Errorf("%d calls, %+v, want all answered and counted", n, b)
		}
	})
}

func TestPaces(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		e, stop := w.start()
		defer stop()
		slow, fast := w.load(e, list(0, 60), List{Rate: 3}), w.load(e, list(100, 300), List{})
		began := time.Now()
		w.until(e, fast.ID, time.Minute, fallback.BackfillDone)
		if took := time.Since(began); took < 5*time.Second || took > 9*time.Second {
			t.Errorf("300 addresses beside a slow list took %v, want some six seconds at 50/s", took)
		}
		w.until(e, slow.ID, time.Minute, fallback.BackfillDone)
		if took := time.Since(began); took < 18*time.Second || took > 22*time.Second {
			t.Errorf("60 addresses at 3/s took %v, want twenty seconds", took)
		}
	})
}

// However long a list is, a few seconds' worth of it is open.
func TestTheWindow(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.set(func() { w.rate, w.tuning.Rate = 0, 50 })
		e, stop := w.start()
		defer stop()
		b := w.load(e, list(0, 900), List{})
		time.Sleep(time.Minute)
		if b, _ = e.Backfill(t.Context(), b.ID); b.Asked != 200 {
			t.Errorf("%d are open while nobody answers, want four seconds' worth, 200", b.Asked)
		}
		w.set(func() { w.closed, w.rate = true, 100 })
		time.Sleep(time.Minute)
		if b, _ = e.Backfill(t.Context(), b.ID); b.Done() != 0 || b.Asked != 200 {
			t.Errorf("%+v while the upstream is closed, want it to stand", b)
		}
		if _, ok := Left(b); ok {
			t.Error("it does not move and has an estimate")
		}
		w.set(func() { w.closed = false })
		w.until(e, b.ID, time.Minute, fallback.BackfillDone)
	})
}

func TestAListGoesOnAfterEachRestart(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		e, stop := w.start()
		b := w.load(e, list(0, 400), List{})
		for i := range 12 {
			time.Sleep(time.Duration(300+137*i%700) * time.Millisecond)
			stop()
			e, stop = w.start()
		}
		defer stop()
		b = w.until(e, b.ID, time.Minute, fallback.BackfillDone)
		if n, most := w.calls(); n != 400 || most != 1 || b.Valid != 400 || b.Credits != 400 {
			t.Errorf("%d calls, at most %d for one, %+v; want each once", n, most, b)
		}
		if got := w.results(e, b.ID, false); strings.Count(got, ",valid,") != 400 {
			t.Errorf("%d rows are valid, want 400", strings.Count(got, ",valid,"))
		}
	})
}

func TestCancelledLists(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.answer = func(c fallback.Claim) (verdict.Verdict, *fallback.Postponement) {
			if c.Address.Domain() == "domain4.com" {
				return verdict.Verdict{}, greylist()
			}
			return w.verdict(), nil
		}
		e, stop := w.start()
		defer stop()
		b := w.load(e, list(0, 900), List{})
		time.Sleep(4 * time.Second)
		if _, err := e.Cancel(t.Context(), b.ID); err != nil {
			t.Fatal(err)
		}
		b = w.until(e, b.ID, 10*time.Second, fallback.BackfillCancelled)
		n, _ := w.calls()
		time.Sleep(time.Hour)
		if after, _ := w.calls(); after != n || int64(n) < b.Credits || b.Credits < 50 {
			t.Errorf("%d calls before the end, %d after, %d credits", n, after, b.Credits)
		}
		if st, err := w.store.Stats(t.Context()); err != nil || st.Open != 0 {
			t.Errorf("%d reviews are left open, %v", st.Open, err)
		}
	})
}
