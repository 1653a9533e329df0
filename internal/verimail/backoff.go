package verimail

import (
	"context"
	"math"
	"sync"
	"time"
)

// backoff is the pause before retry n, counted from 0: min(limit, base·2^n) + rand(0, jitter). The jitter is
// added and not multiplied: with the two or three attempts that fit a form's budget, full jitter spends them
// before an outage of a few hundred milliseconds is over. Any n and any tuning is fine: less than nothing counts as
// nothing, and a sum that is too long for a Duration is the longest one.
func backoff(n int, t ClassTuning, rand func() float64) time.Duration {
	d := max(min(t.Base, t.Max), 0)
	for ; n > 0 && d > 0 && d < t.Max; n-- {
		d += min(d, t.Max-d)
	}
	return plus(d, jitter(t.Jitter, rand))
}

// jitter draws from nothing to most.
func jitter(most time.Duration, rand func() float64) time.Duration {
	return time.Duration(rand() * float64(max(most, 0)))
}

// plus adds two waits, neither below zero, without overflow.
func plus(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
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
	retryBudgetMax    = 20.0             // retries that are saved up, however quiet the time before
	retryBudgetFloor  = 1.0              // retries a second that are allowed whatever came before
	retryBudgetMemory = 10 * time.Second // what successes of this time earned may be saved up, if that is more
)

// retryBudget keeps retries in proportion to successes, so that a failing upstream sees at most about
// (1+ratio) times the calls. What it saves up grows with the traffic: a fixed number would be spent by the first
// callers of a bad moment, and the more callers the fewer would be helped. One a class. Safe for concurrent use.
type retryBudget struct {
	mu     sync.Mutex
	tokens float64
	last   time.Time
	// What successes earned in the span of retryBudgetMemory that began at span, and in the one before it.
	span           time.Time
	earned, before float64
}

func newRetryBudget() *retryBudget {
	now := time.Now()
	return &retryBudget{tokens: retryBudgetMax / 2, last: now, span: now}
}

func (b *retryBudget) success(ratio float64) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	b.earned += ratio
	b.tokens = min(b.most(now), b.tokens+ratio)
}

// take pays for one retry, or says that there is nothing to pay with.
func (b *retryBudget) take() bool {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// fill adds what time brought since the last look, and forgets what is too long ago.
func (b *retryBudget) fill(now time.Time) {
	switch gone := now.Sub(b.span); {
	case gone >= 2*retryBudgetMemory:
		b.span, b.before, b.earned = now, 0, 0
	case gone >= retryBudgetMemory:
		b.span, b.before, b.earned = b.span.Add(retryBudgetMemory), b.earned, 0
	}
	b.tokens = min(b.most(now), b.tokens+now.Sub(b.last).Seconds()*retryBudgetFloor)
	b.last = now
}

// most is how much may be saved up now: of the span before, the part counts that is not longer ago than its length.
func (b *retryBudget) most(now time.Time) float64 {
	part := 1 - now.Sub(b.span).Seconds()/retryBudgetMemory.Seconds()
	return max(retryBudgetMax, b.earned+part*b.before)
}
