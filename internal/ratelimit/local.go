// Package ratelimit holds token buckets (GCRA, the generic cell rate algorithm). A bucket is shared by
// interactive and background work: background leaves a reserve to interactive work, and has a small floor of
// its own that interactive work can't touch. The floor is carved out of the rate, never added to it, so that
// the calls granted in any window of length t stay within rate·t + burst.
//
// Local is a bucket of one process, Fleet one that replicas share in Redis, Quotas many that start full.
package ratelimit

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Local is a bucket in this process. Safe for concurrent use; it starts empty, so that a restart is no way
// to a second burst.
type Local struct {
	limits  func() Limits
	began   time.Time
	metrics *metrics

	mu          sync.Mutex
	main, floor meter // in nanoseconds since began; the zero value is empty
}

// NewLocal returns a bucket that reads its limits at each call.
func NewLocal(limits func() Limits) *Local {
	return &Local{limits: limits, began: time.Now(), metrics: newMetrics(nil)}
}

// Register gives the metrics to reg. Call it once, before the first take.
func (l *Local) Register(reg prometheus.Registerer) { l.metrics = newMetrics(reg) }

// TakeInteractive asks for one grant that may start within maxWait. When granted, the slot is booked: sleep
// wait, then go. A refusal books nothing. notBefore is always zero: in one process the caller's own gate is enough.
func (l *Local) TakeInteractive(_ context.Context, maxWait time.Duration) (wait time.Duration, notBefore time.Time, ok bool) {
	wait, ok = l.take(interactive, maxWait)
	return wait, time.Time{}, ok
}

// TakeBackground asks for one grant at once: from what lies above the reserve, else from the floor.
func (l *Local) TakeBackground(context.Context) (notBefore time.Time, ok bool) {
	_, ok = l.take(background, 0)
	return time.Time{}, ok
}

// Spare is how many grants TakeBackground would give now, one after the other. It takes none.
func (l *Local) Spare(context.Context) int {
	lim := l.limits()
	if lim.Rate < minRate {
		return 0
	}
	main, floor := split(lim.Rate, float64(lim.Burst), lim.Floor)
	l.mu.Lock()
	defer l.mu.Unlock()
	return spareOfBoth(&l.main, &l.floor, time.Since(l.began), main, floor, lim.Reserve)
}

// Hold does nothing: there is nobody else to tell.
func (l *Local) Hold(context.Context, time.Duration) {}

func (l *Local) take(c class, maxWait time.Duration) (wait time.Duration, ok bool) {
	lim := l.limits()
	if lim.Rate >= minRate {
		main, floor := split(lim.Rate, float64(lim.Burst), lim.Floor)
		l.mu.Lock()
		wait, ok = takeEither(&l.main, &l.floor, time.Since(l.began), main, floor, c, lim.Reserve, maxWait)
		l.mu.Unlock()
	}
	l.metrics.took(c, fromLocal, ok, wait)
	return wait, ok
}

// class is who asks.
type class int

const (
	interactive class = iota
	background
)

// takeEither is one take of either class from a pair of meters in this process. The script says the same.
func takeEither(main, floor *meter, now time.Duration, m, f share, c class, reserve float64, maxWait time.Duration) (time.Duration, bool) {
	if f.rate == 0 {
		floor.off()
	}
	if c == interactive {
		wait, ok := main.take(int64(now), perSecond, m, 1, 0, float64(maxWait))
		if !ok {
			wait = 0
		}
		return time.Duration(wait), ok
	}
	_, ok := main.take(int64(now), perSecond, m, 1, reserve*m.burst, 0)
	if !ok && f.rate > 0 {
		_, ok = floor.take(int64(now), perSecond, f, 1, 0, 0)
	}
	return 0, ok
}

// spareOfBoth is what takeEither would give to background work. The script says the same.
func spareOfBoth(main, floor *meter, now time.Duration, m, f share, reserve float64) int {
	n := main.spare(int64(now), perSecond, m, reserve*m.burst)
	if f.rate > 0 {
		n += floor.spare(int64(now), perSecond, f, 0)
	}
	return n
}
