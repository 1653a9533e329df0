package ratelimit

import (
	"math"
	"time"
)

// Limits are the settings of a bucket. They may change between two calls.
type Limits struct {
	// Rate is the sustained number of grants a second; below minRate it grants nothing.
	Rate float64
	// Burst is the number of grants that a full bucket gives at once, at least 1.
	Burst int
	// Reserve is the share of the burst (0–1) that background work leaves to interactive work. A full bucket has one grant
	// for it all the same.
	Reserve float64
	// Floor is the share of rate and burst (0–0.5) that belongs to background work alone.
	Floor float64
	// Instances is the least number of replicas that share the limits; 1 when less. Only Fleet minds it.
	Instances int
	// MaxHold is the furthest that the gate of a Fleet may lie ahead, a day at most; zero is a day. One that is further
	// ahead is moved here: it was set under another MaxHold or by another clock, or is not ours.
	MaxHold time.Duration
}

// minRate is one grant in eleven days: below it a bucket is off, which also keeps times far from overflow.
const minRate = 1e-6

// share is one bucket's part of the limits; its burst need not be whole.
type share struct{ rate, burst float64 }

// split carves the floor's bucket out of rate and burst. The script says the same.
func split(rate, burst, floorShare float64) (main, floor share) {
	burst = max(burst, 1)
	floor.rate = rate * floorShare
	if floor.rate < minRate {
		floor = share{}
	} else {
		// A bucket that holds less than one token never grants: with a burst under 2 the floor is given up.
		floor.burst = min(max(burst*floorShare, 1), burst-1)
		if floor.burst < 1 {
			floor = share{}
		}
	}
	return share{rate: rate - floor.rate, burst: burst - floor.burst}, floor
}

// A meter counts in whole ticks and whole parts of a grant, as many ticks to the second as parts to the grant: then a
// rate in grants a second is one in parts a tick, too.
const (
	perSecond = 1e9 // in the process: nanoseconds
	perMicro  = 1e6 // in Redis: microseconds, which is what its clock gives; numbers stay below 2^53
)

// meter is a token bucket: GCRA in the form that counts what may be taken instead of the time at which it may (ITU-T
// I.371 gives two such forms; they decide alike). Counted like this it stays true when rate or burst change: a bigger
// bucket is no gift, a smaller one spills. What is booked makes it negative. Rounding is always against the taker. Not
// safe for concurrent use.
type meter struct {
	have float64 // parts of a grant, whole
	at   int64   // ticks, when that was true
}

// take takes n grants that may begin within maxWait ticks, and leaves reserve grants to others, or as many as a full bucket
// has besides: or who must leave a reserve would get nothing from a small bucket, ever. When granted, they are booked for
// wait ticks from now; a refusal books nothing, and wait is then how long the bucket lacks. A clock that went back fills
// nothing.
func (m *meter) take(now int64, unit float64, s share, n, reserve, maxWait float64) (wait int64, ok bool) {
	have := m.left(now, unit, s)
	lack := n*unit + keep(unit, s, n, reserve) - have
	if lack > 0 {
		wait = int64(math.Ceil(lack / s.rate))
	}
	if lack > math.Floor(maxWait*s.rate) {
		m.at = min(m.at, now) // or it would stand still until the clock is where it was
		return wait, false
	}
	m.have, m.at = have-n*unit, now
	return wait, true
}

// spare is how many grants, one after the other, it would give at once and leave reserve.
func (m *meter) spare(now int64, unit float64, s share, reserve float64) int {
	return int(max(math.Floor((m.left(now, unit, s)-keep(unit, s, 1, reserve))/unit), 0))
}

// left is what may be taken at now.
func (m *meter) left(now int64, unit float64, s share) float64 {
	if now > m.at {
		return min(m.have+math.Floor(float64(now-m.at)*s.rate), math.Floor(s.burst*unit))
	}
	return m.have
}

// keep is what a take of n grants leaves to others.
func keep(unit float64, s share, n, reserve float64) float64 {
	return min(math.Ceil(reserve*unit), max(math.Floor(s.burst*unit)-n*unit, 0))
}

// empty makes the meter one that begins to fill lead ticks after at, which covers what was booked from the bucket that
// it follows.
func (m *meter) empty(at int64, rate, lead float64) { m.have, m.at = -math.Ceil(lead*rate), at }

// off empties a meter whose share is nothing for now.
func (m *meter) off() { m.have = min(m.have, 0) }
