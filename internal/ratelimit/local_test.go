package ratelimit

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func fixed(l Limits) func() Limits { return func() Limits { return l } }

func TestLocalStartsEmptyAndFills(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLocal(fixed(Limits{Rate: 10, Burst: 5}))
		if _, _, ok := l.TakeInteractive(t.Context(), 0); ok {
			t.Fatal("a new bucket granted at once, want it to start empty")
		}
		time.Sleep(time.Second)
		got := 0
		for {
			if _, _, ok := l.TakeInteractive(t.Context(), 0); !ok {
				break
			}
			got++
		}
		if got != 5 {
			t.Errorf("a full bucket granted %d at once, want its burst of 5", got)
		}
	})
}

func TestLocalBooksWithinTheWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLocal(fixed(Limits{Rate: 20, Burst: 1}))
		time.Sleep(time.Second)
		wantWaits := []time.Duration{0, 50 * time.Millisecond, 100 * time.Millisecond}
		for i, want := range wantWaits {
			wait, _, ok := l.TakeInteractive(t.Context(), 100*time.Millisecond)
			if !ok || wait != want {
				t.Errorf("grant %d: wait %v, %v, want %v, true", i, wait, ok, want)
			}
		}
		if _, _, ok := l.TakeInteractive(t.Context(), 100*time.Millisecond); ok {
			t.Error("a grant beyond the wait was booked")
		}
	})
}

func TestBackgroundLeavesTheReserve(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLocal(fixed(Limits{Rate: 10, Burst: 10, Reserve: 0.5}))
		time.Sleep(time.Minute)
		background := 0
		for {
			if _, ok := l.TakeBackground(t.Context()); !ok {
				break
			}
			background++
		}
		interactive := 0
		for {
			if _, _, ok := l.TakeInteractive(t.Context(), 0); !ok {
				break
			}
			interactive++
		}
		if background != 5 || interactive != 5 {
			t.Errorf("background got %d, interactive then %d, want 5 and 5", background, interactive)
		}
	})
}

func TestInteractiveFloodLeavesTheFloor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLocal(fixed(Limits{Rate: 20, Burst: 20, Reserve: 0.5, Floor: 0.1}))
		background := 0
		for range 60_000 { // a minute of a flood of 1,000 a second
			l.TakeInteractive(t.Context(), 0)
			if _, ok := l.TakeBackground(t.Context()); ok {
				background++
			}
			time.Sleep(time.Millisecond)
		}
		if background < 115 || background > 125 { // 2/s for 60 s
			t.Errorf("background got %d grants in a minute of flood, want its floor of about 120", background)
		}
	})
}

// TestNeverOverRate draws arrivals and classes and checks rate·t + burst over every window of grants.
func TestNeverOverRate(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		lim := Limits{
			Rate:    rapid.Float64Range(1, 50).Draw(rt, "rate"),
			Burst:   rapid.IntRange(1, 30).Draw(rt, "burst"),
			Reserve: rapid.Float64Range(0, 1).Draw(rt, "reserve"),
			Floor:   rapid.Float64Range(0, 0.5).Draw(rt, "floor"),
		}
		gaps := rapid.SliceOfN(rapid.IntRange(0, 200), 1, 200).Draw(rt, "gaps")
		background := rapid.SliceOfN(rapid.Bool(), len(gaps), len(gaps)).Draw(rt, "background")
		var grants []time.Time
		synctest.Test(t, func(*testing.T) {
			l := NewLocal(fixed(lim))
			for i, gap := range gaps {
				time.Sleep(time.Duration(gap) * time.Millisecond)
				if background[i] {
					if _, ok := l.TakeBackground(t.Context()); ok {
						grants = append(grants, time.Now())
					}
				} else if wait, _, ok := l.TakeInteractive(t.Context(), 50*time.Millisecond); ok {
					grants = append(grants, time.Now().Add(wait))
				}
			}
		})
		slices.SortFunc(grants, time.Time.Compare) // a booked grant lies after ones that were given later
		for i := range grants {
			for j := i; j < len(grants); j++ {
				span := grants[j].Sub(grants[i]).Seconds()
				if float64(j-i+1) > lim.Rate*span+float64(lim.Burst)+1e-6 {
					rt.Fatalf("%d grants in %.3f s at rate %.2f burst %d", j-i+1, span, lim.Rate, lim.Burst)
				}
			}
		}
	})
}

// What is said to be to spare is what background work then gets, in any state of the bucket, and asking takes nothing.
func TestLocalSpare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, lim := range []Limits{{Rate: 10, Burst: 10, Reserve: 0.5}, {Rate: 3, Burst: 1, Reserve: 0.5, Floor: 0.1}, {Rate: 7, Burst: 30, Floor: 0.3},
			{Rate: 0}} {
			l := NewLocal(fixed(lim))
			for step := range 40 {
				time.Sleep(time.Duration(step%7) * 130 * time.Millisecond)
				for range step % 3 {
					l.TakeInteractive(t.Context(), MaxWait)
				}
				want := l.Spare(t.Context())
				if again := l.Spare(t.Context()); again != want {
					t.Fatalf("%+v: %d to spare, and then %d", lim, want, again)
				}
				got := 0
				for _, ok := l.TakeBackground(t.Context()); ok; _, ok = l.TakeBackground(t.Context()) {
					got++
				}
				if got != want {
					t.Errorf("%+v, step %d: %d to spare, %d taken", lim, step, want, got)
				}
			}
		}
	})
}
