package verimail

import (
	"time"

	"validator-gw/internal/verdict"
)

// Tuning are the settings of the client that may change while it runs; it reads them at each use.
type Tuning struct {
	// Interactive and Background are the backoff and attempt settings of the two classes.
	Interactive, Background ClassTuning
	// RetryBudgetRatio is what each success adds to the retry budget (0–1); one retry takes 1.
	RetryBudgetRatio float64
	// RetryOnTimeout asks again after an attempt's time-out instead of waiting for the late answer, as far as
	// that fits; the last call is waited for as ever. Only for an upstream that does not bill calls that it did
	// not answer.
	RetryOnTimeout bool
	// LateTimeout is how long a call may take in all: it is billed already, so it is waited for.
	LateTimeout time.Duration
	// RetryAfterMax clamps what the upstream asks us to wait, also what it asked under a longer one before.
	RetryAfterMax time.Duration
	// MaxInFlight bounds the calls on the wire, late ones included.
	MaxInFlight int
	Breaker     BreakerTuning
}

// ClassTuning is the part of Tuning that differs by class.
type ClassTuning struct {
	// Base, Max and Jitter make the backoff before retry n (from 0): min(Max, Base·2^n) + rand(0, Jitter).
	Base, Max, Jitter time.Duration
	// AttemptTimeout is how long an attempt may be silent before it counts as late.
	AttemptTimeout time.Duration
}

// BreakerTuning are the breaker's thresholds.
type BreakerTuning struct {
	// ConsecutiveFailures in a row open it, when they span at least MinSpan.
	ConsecutiveFailures int
	MinSpan             time.Duration
	// FailureRatio of the last Window calls opens it, when there are at least MinSamples.
	Window, MinSamples int
	FailureRatio       float64
	// Cooldown (±20 %, drawn once a process) is how long it stays open; Probes calls must then succeed in a row.
	Cooldown time.Duration
	Probes   int
	// SlowGrace is how long after its beginning an attempt is judged: answered by then is a success. Never before
	// the attempt time-out of interactive calls.
	SlowGrace time.Duration
}

// DefaultTuning returns the defaults of docs/settings.md.
func DefaultTuning() Tuning {
	return Tuning{
		Interactive: ClassTuning{Base: 130 * time.Millisecond, Max: 400 * time.Millisecond,
			Jitter: 60 * time.Millisecond, AttemptTimeout: 600 * time.Millisecond},
		Background: ClassTuning{Base: time.Second, Max: 30 * time.Second, Jitter: time.Second,
			AttemptTimeout: 10 * time.Second},
		RetryBudgetRatio: 0.1,
		LateTimeout:      10 * time.Second,
		RetryAfterMax:    time.Hour,
		MaxInFlight:      512,
		Breaker: BreakerTuning{ConsecutiveFailures: 5, MinSpan: time.Second, Window: 30, MinSamples: 20,
			FailureRatio: 0.5, Cooldown: 30 * time.Second, Probes: 3, SlowGrace: 2 * time.Second},
	}
}

// LongestWait is the longest that calls are held back by throttling: by a hint, or by a pause of our own.
func (t *Tuning) LongestWait() time.Duration { return max(t.RetryAfterMax, throttleMax) }

func (t *Tuning) class(c verdict.Class) ClassTuning {
	if c == verdict.Background {
		return t.Background
	}
	return t.Interactive
}
