// Package admission bounds how much is in work at once, so that a flood is refused quickly and clearly instead
// of slowing everyone down.
package admission

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrFull: as much is in work as the gate takes, and no place came free within the wait.
var ErrFull = errors.New("concurrency limit reached")

// Limits of a gate; they may change between two calls.
type Limits struct {
	// Concurrency is the number of places, at least 1.
	Concurrency int
	// Wait is how long to queue for a place. As many may queue as there are places.
	Wait time.Duration
}

// Gate is a concurrency limit with a short bounded queue. Safe for concurrent use.
type Gate struct {
	limits func() Limits

	mu     sync.Mutex
	inside int
	queue  []chan struct{} // oldest first; a place is handed over by closing
}

// NewGate returns a gate that reads its limits at each call.
func NewGate(limits func() Limits) *Gate { return &Gate{limits: limits} }

// Enter takes a place, waiting for one for at most Limits.Wait. Its only error is ErrFull, also when ctx ends.
// Call leave exactly once.
func (g *Gate) Enter(ctx context.Context) (leave func(), err error) {
	lim := g.limits()
	places := max(lim.Concurrency, 1)
	g.mu.Lock()
	for len(g.queue) > 0 && g.inside < places { // the limit was raised: those who wait come first
		g.inside++
		g.hand()
	}
	if g.inside < places {
		g.inside++
		g.mu.Unlock()
		return g.leave, nil
	}
	if lim.Wait <= 0 || len(g.queue) >= places {
		g.mu.Unlock()
		return nil, ErrFull
	}
	turn := make(chan struct{})
	g.queue = append(g.queue, turn)
	g.mu.Unlock()

	timer := time.NewTimer(lim.Wait)
	defer timer.Stop()
	select {
	case <-turn:
		return g.leave, nil
	case <-timer.C:
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, q := range g.queue {
		if q == turn {
			g.queue = append(g.queue[:i], g.queue[i+1:]...)
			return nil, ErrFull
		}
	}
	return g.leave, nil // the turn came in the same moment: the place is ours
}

// leave hands the place to the one that waits longest, or frees it.
func (g *Gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.queue) > 0 && g.inside <= max(g.limits().Concurrency, 1) {
		g.hand()
		return
	}
	g.inside--
}

// hand gives a place that is counted already to the one that waits longest. The caller holds mu.
func (g *Gate) hand() {
	close(g.queue[0])
	g.queue = g.queue[1:]
}

// Inside counts the places taken.
func (g *Gate) Inside() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inside
}
