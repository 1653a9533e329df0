package redisconn

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// The rest: after this many failures in a row over at least this span, calls fail at once for this long. The span is for
// what stops everyone for a moment (a fork, a collection, a busy machine): the calls that are in the air then fail
// together, and say no more than one.
const (
	restAfter = 5
	restSpan  = 100 * time.Millisecond
	restFor   = 3 * time.Second
)

// rest is a small breaker. It sits in front of the driver and not in the driver's limiter, which clusters and sentinels
// do not have. Nobody watching, it ends by time and the next call finds out; watched, only wake ends it.
type rest struct {
	began chan struct{} // holds one value for who watches

	mu      sync.Mutex
	run     int       // failures in a row
	since   time.Time // the first of them
	until   time.Time
	watch   bool
	resting bool // while watched
}

// state says whether calls are to fail at once, and whether the latest one failed.
func (r *rest) state() (resting, doubt bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.down(time.Now()), r.run > 0
}

// down reads the state under mu.
func (r *rest) down(now time.Time) bool {
	if r.watch {
		return r.resting
	}
	return now.Before(r.until)
}

// report notes how a call ended. A caller that left says nothing of Redis, and neither do calls from before the rest.
func (r *rest) report(err error) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.down(now), errors.Is(err, context.Canceled):
	case err == nil, errors.Is(err, redis.Nil):
		r.run = 0
	default:
		if r.run == 0 {
			r.since = now
		}
		if r.run++; r.run >= restAfter && now.Sub(r.since) >= restSpan {
			r.run = restAfter - 1 // one more failure after the rest begins the next
			r.until, r.resting = now.Add(restFor), true
			select {
			case r.began <- struct{}{}:
			default:
			}
		}
	}
}

func (r *rest) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.run, r.until, r.resting = 0, time.Time{}, false
}

// watched says whether somebody will wake it.
func (r *rest) watched(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watch, r.resting = yes, yes && time.Now().Before(r.until)
	if r.resting {
		select {
		case r.began <- struct{}{}:
		default:
		}
	}
}
