// Package ratelimit holds token buckets (GCRA, the generic cell rate algorithm). A bucket is shared by
// interactive and background work: background leaves a reserve to interactive work, and has a small floor of
// its own that interactive work can't touch. The floor is carved out of the rate, never added to it, so that
// the calls granted in any window of length t stay within rate·t + burst.
package ratelimit

import (
	"context"
	"sync"
	"time"
)

// Limits are the settings of a bucket. They may change between two calls.
type Limits struct {
	// Rate is the sustained number of grants a second; below minRate it grants nothing.
	Rate float64
	// Burst is the number of grants that a full bucket gives at once, at least 1.
	Burst int
	// Reserve is the share of the burst (0–1) that background work leaves to interactive work.
	Reserve float64
	// Floor is the share of rate and burst (0–0.5) that belongs to background work alone.
	Floor float64
}

// minRate is one grant in eleven days: below it a bucket is off, which also keeps times far from overflow.
const minRate = 1e-6

// Local is a bucket in this process. Safe for concurrent use; it starts empty, so that a restart is no way
// to a second burst.
type Local struct {
	limits func() Limits

	mu    sync.Mutex
	main  time.Time // theoretical arrival times of GCRA: when the bucket would be full again
	floor time.Time
}

// NewLocal returns a bucket that reads its limits at each call.
func NewLocal(limits func() Limits) *Local {
	l := &Local{limits: limits}
	_, main, floor := l.shares()
	now := time.Now()
	l.main, l.floor = empty(now, main), empty(now, floor)
	return l
}

// empty is the theoretical arrival time of a bucket that has nothing to give at now.
func empty(now time.Time, s share) time.Time {
	if s.rate <= 0 {
		return now
	}
	return now.Add(time.Duration(s.burst * float64(emission(s))))
}

// TakeInteractive asks for one grant that may start within maxWait. When granted, the slot is booked: sleep
// wait, then go. A refusal books nothing. notBefore is always zero: in one process the caller's own gate is enough.
func (l *Local) TakeInteractive(_ context.Context, maxWait time.Duration) (wait time.Duration, notBefore time.Time, ok bool) {
	now := time.Now()
	lim, main, _ := l.shares()
	if lim.Rate < minRate {
		return 0, time.Time{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	wait, ok = take(&l.main, now, main, 0, maxWait)
	return wait, time.Time{}, ok
}

// TakeBackground asks for one grant at once: from what lies above the reserve, else from the floor.
func (l *Local) TakeBackground(context.Context) (notBefore time.Time, ok bool) {
	now := time.Now()
	lim, main, floor := l.shares()
	if lim.Rate < minRate {
		return time.Time{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := take(&l.main, now, main, lim.Reserve*main.burst, 0); ok {
		return time.Time{}, true
	}
	if floor.rate <= 0 {
		return time.Time{}, false
	}
	_, ok = take(&l.floor, now, floor, 0, 0)
	return time.Time{}, ok
}

// Hold does nothing: there is nobody else to tell.
func (l *Local) Hold(context.Context, time.Duration) {}

// share is one bucket's part of the limits; its burst need not be whole.
type share struct{ rate, burst float64 }

func (l *Local) shares() (lim Limits, main, floor share) {
	lim = l.limits()
	lim.Burst = max(lim.Burst, 1)
	floor = share{rate: lim.Rate * lim.Floor}
	if floor.rate < minRate {
		floor = share{}
	} else {
		// A bucket that holds less than one token never grants: with a burst of 1 the floor is given up.
		floor.burst = min(max(float64(lim.Burst)*lim.Floor, 1), float64(lim.Burst)-1)
		if floor.burst < 1 {
			floor = share{}
		}
	}
	main = share{rate: lim.Rate - floor.rate, burst: float64(lim.Burst) - floor.burst}
	return lim, main, floor
}

func emission(s share) time.Duration { return time.Duration(float64(time.Second) / s.rate) }

// take is GCRA: one grant moves the theoretical arrival time by one emission; it is given when that time
// lies no further ahead than the burst, less what is reserved, plus the wait.
func take(tat *time.Time, now time.Time, s share, reserve float64, maxWait time.Duration) (time.Duration, bool) {
	e := emission(s)
	next := *tat
	if next.Before(now) {
		next = now
	}
	next = next.Add(e)
	ahead := next.Sub(now) - time.Duration(float64(e)*(s.burst-reserve))
	if ahead > maxWait {
		return 0, false
	}
	*tat = next
	return max(ahead, 0), true
}
