package simulator

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"time"
)

// draws makes the random numbers of one call. They depend on nothing but seed, address and count, so that a run in
// which calls overtake one another still replays.
type draws struct {
	seed    uint64
	address string
	nth     int64
}

func (d draws) rand(purpose string) *rand.Rand {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s\x00%d\x00%s", purpose, d.nth, d.address)
	return rand.New(rand.NewPCG(d.seed, h.Sum64()))
}

// uniform is in [0, 1).
func (d draws) uniform(purpose string) float64 { return d.rand(purpose).Float64() }

// z99 is the 99th percentile of the standard normal distribution.
const z99 = 2.3263478740408408

// latency draws from the log-normal distribution that has this median and this 99th percentile, at most ten times
// the latter and maxDelay.
func (d draws) latency(p50, p99 time.Duration) time.Duration {
	if p99 <= p50 {
		return p50
	}
	sigma := math.Log(float64(p99)/float64(p50)) / z99
	v := float64(p50) * math.Exp(sigma*d.rand("latency").NormFloat64())
	return time.Duration(min(v, 10*float64(p99), float64(maxDelay)))
}

func checkLatency(p50, p99 time.Duration) error {
	switch {
	case p50 < 0 || p99 < 0:
		return errors.New("latency: must be 0 or more")
	case p99 > 0 && p50 == 0:
		return errors.New("latency: p99 needs p50")
	case p99 > 0 && p99 < p50:
		return fmt.Errorf("latency: p99 %v is less than p50 %v", p99, p50)
	case max(p50, p99) > maxDelay:
		return fmt.Errorf("latency: at most %v", maxDelay)
	default:
		return nil
	}
}
