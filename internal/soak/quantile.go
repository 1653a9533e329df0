package soak

import (
	"math"
	"slices"
	"time"
)

// Latencies are a distribution of durations.
type Latencies struct{ sorted []time.Duration }

// NewLatencies takes the durations in any order and keeps none of the slice.
func NewLatencies(all []time.Duration) Latencies {
	return Latencies{slices.Sorted(slices.Values(all))}
}

// Count is the number of durations.
func (l Latencies) Count() int { return len(l.sorted) }

// Quantile is the nearest-rank quantile: the smallest duration that at least the share q (0–1) of all do not exceed.
// Without durations it is 0.
func (l Latencies) Quantile(q float64) time.Duration {
	if len(l.sorted) == 0 {
		return 0
	}
	// The product may come out a hair above a whole number; a rank too high would be the next duration.
	rank := int(math.Ceil(q*float64(len(l.sorted)) - 1e-9))
	return l.sorted[min(max(rank, 1), len(l.sorted))-1]
}

// Max is the longest.
func (l Latencies) Max() time.Duration { return l.Quantile(1) }
