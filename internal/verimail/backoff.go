package verimail

import (
	"context"
	"sync"
	"time"
)

// backoff is the pause before retry n, counted from 0: min(limit, base·2^n) + rand(0, jitter). The jitter is
// added and not multiplied: with the two or three attempts that fit a form's budget, full jitter spends them
// before an outage of a few hundred milliseconds is over. Any n is fine, and n grows no sum beyond Max + Jitter.
func backoff(n int, t ClassTuning, rand func() float64) time.Duration {
	d := min(t.Base, t.Max)
	for ; n > 0 && d > 0 && d < t.Max; n-- {
		d += min(d, t.Max-d)
	}
	return d + jitter(t.Jitter, rand)
}

func jitter(most time.Duration, rand func() float64) time.Duration {
	return time.Duration(rand() * float64(most))
}

// sleep waits for d, or less when ctx ends; it says whether the whole of d passed.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// The retry budget's shape: what a healthy upstream saves up for a bad moment, and what always goes.
const (
	retryBudgetMax   = 20.0
	retryBudgetFloor = 1.0 // retries a second that are allowed whatever came before
)

// retryBudget keeps retries in proportion to successes, so that a failing upstream sees at most about
// (1+ratio) times the calls. One a class. Safe for concurrent use.
type retryBudget struct {
	mu     sync.Mutex
	tokens float64
	last   time.Time
}

func newRetryBudget() *retryBudget { return &retryBudget{tokens: retryBudgetMax / 2, last: time.Now()} }

func (b *retryBudget) success(ratio float64) {
	b.mu.Lock()
	b.tokens = min(retryBudgetMax, b.tokens+ratio)
	b.mu.Unlock()
}

// take pays for one retry, or says that there is nothing to pay with.
func (b *retryBudget) take() bool {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(retryBudgetMax, b.tokens+now.Sub(b.last).Seconds()*retryBudgetFloor)
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
