package revalidate

import (
	"math"
	"time"
)

// After an outage the loop begins with a tenth of what it may hope for, or rampLeast checks a second if that is more, and
// half as much again after each rampStep: an upstream that has just got up is not knocked down by what waited for it.
const (
	rampShare  = 0.1
	rampLeast  = 3
	rampFactor = 1.5
	rampStep   = 10 * time.Second
)

// ramp bounds the checks that may begin after an outage. The zero value bounds nothing.
type ramp struct {
	began time.Time // zero: no ramp is under way
	at    time.Time
	have  float64 // checks that may begin now
}

func (r *ramp) begin(now time.Time) { *r = ramp{began: now, at: now, have: 1} }

// target is the number of checks a second at this time.
func (r *ramp) target(now time.Time, rate float64) float64 {
	return max(rampShare*rate, rampLeast) * math.Pow(rampFactor, math.Floor(float64(now.Sub(r.began))/float64(rampStep)))
}

// allow returns how many checks may begin now, of a loop that can hope for rate checks a second. What is not used is kept
// for a second at most.
func (r *ramp) allow(now time.Time, rate float64) int {
	if r.began.IsZero() {
		return math.MaxInt
	}
	target := r.target(now, rate)
	if target >= rate {
		*r = ramp{}
		return math.MaxInt
	}
	r.have = min(r.have+target*now.Sub(r.at).Seconds(), target)
	r.at = now
	return int(r.have)
}

func (r *ramp) spend(n int) { r.have = max(r.have-float64(n), 0) }
