package soak

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// bruteWindow looks at every window.
func bruteWindow(at []time.Time, rate float64, burst int, slack time.Duration) float64 {
	worst := math.Inf(-1)
	for i := range at {
		for j := i; j < len(at); j++ {
			bound := rate*(at[j].Sub(at[i])+slack).Seconds() + float64(burst)
			worst = max(worst, float64(j-i+1)-bound)
		}
	}
	return worst
}

// TestWorstWindowAgainstAllWindows: the linear check finds what looking at every window finds, and the window that it
// names is one of the log.
func TestWorstWindowAgainstAllWindows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		// In units of the time between two calls at the rate: around 1 is where a bucket runs empty or does not.
		gaps := rapid.SliceOfN(rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(0, 4), rapid.Float64Range(0, 100)), 1, 60).Draw(t, "gaps")
		rate := rapid.Float64Range(0.1, 1000).Draw(t, "rate")
		burst := rapid.IntRange(1, 50).Draw(t, "burst")
		slack := time.Duration(rapid.Int64Range(0, int64(100*time.Millisecond)).Draw(t, "slack"))
		now := time.Unix(1_800_000_000, 0)
		at := make([]time.Time, len(gaps))
		for i, g := range gaps {
			now = now.Add(time.Duration(g / rate * float64(time.Second)))
			at[i] = now
		}
		w := WorstWindow(at, rate, burst, slack)
		if want := bruteWindow(at, rate, burst, slack); math.Abs(w.Over()-want) > 1e-6 {
			t.Fatalf("worst window is over by %v, of all windows the worst is over by %v", w.Over(), want)
		}
		inside := 0
		for _, a := range at {
			if !a.Before(w.From) && !a.After(w.To) {
				inside++
			}
		}
		if inside < w.Calls { // more when others share the instant of its ends
			t.Fatalf("the window claims %d calls, the log has %d there", w.Calls, inside)
		}
	})
}

func TestWorstWindowOnABurst(t *testing.T) {
	t.Parallel()
	began := time.Unix(1_800_000_000, 0)
	var at []time.Time
	for i := range 10 { // one a second, which the rate allows
		at = append(at, began.Add(time.Duration(i)*time.Second))
	}
	for range 8 { // and eight at once in the fifth
		at = append(at, began.Add(9*time.Second))
	}
	w := WorstWindow(at, 1, 5, 0)
	if w.Calls < 9 || math.Abs(w.Over()-4) > 1e-9 { // nine calls at one instant, five are allowed
		t.Errorf("%d calls, over by %v; want the nine at one instant, over by 4", w.Calls, w.Over())
	}
	if w := WorstWindow(at, 1, 9, 0); w.Over() > 1e-9 {
		t.Errorf("over by %v with a burst of nine", w.Over())
	}
	if w := WorstWindow(nil, 1, 1, 0); w.Calls != 0 || w.Over() > 0 {
		t.Errorf("an empty log: %+v", w)
	}
}
