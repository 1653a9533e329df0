package soak

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestQuantileIsTheNearestRank(t *testing.T) {
	t.Parallel()
	var all []time.Duration
	for i := 1000; i >= 1; i-- {
		all = append(all, time.Duration(i))
	}
	l := NewLatencies(all)
	for q, want := range map[float64]time.Duration{0: 1, 0.001: 1, 0.5: 500, 0.99: 990, 0.999: 999, 0.9991: 1000, 1: 1000} {
		if got := l.Quantile(q); got != want {
			t.Errorf("quantile %v of 1 to 1000 is %d, want %d", q, got, want)
		}
	}
	if got := NewLatencies(nil).Quantile(0.5); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// TestQuantileByItsDefinition: at least q of all are at most the quantile, and fewer than q are below it.
func TestQuantileByItsDefinition(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.SliceOfN(rapid.Int64Range(0, 50), 1, 200).Draw(t, "durations")
		q := float64(rapid.IntRange(1, 1000).Draw(t, "permille")) / 1000
		all := make([]time.Duration, len(raw))
		for i, n := range raw {
			all[i] = time.Duration(n)
		}
		got := NewLatencies(all).Quantile(q)
		var atMost, below int
		for _, d := range all {
			if d <= got {
				atMost++
			}
			if d < got {
				below++
			}
		}
		need := q * float64(len(all))
		if float64(atMost) < need-1e-6 || float64(below) >= need+1e-6 {
			t.Fatalf("quantile %v of %d: %d are at most %v, %d below", q, len(all), atMost, got, below)
		}
	})
}
