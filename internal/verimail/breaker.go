package verimail

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// What the breaker is told of an attempt: nil is a success, errNeutral moves nothing, errFailure counts.
var (
	errNeutral = errors.New("outcome says nothing about the upstream's health")
	errFailure = errors.New("upstream failed")
)

// ringAge is how long an outcome counts: failures of an hour ago say nothing about now.
const ringAge = 90 * time.Second

// breaker is gobreaker with our own rule for opening: N failures in a row, or a ratio of the last W calls.
// gobreaker's counts are by time or for ever; a rule by calls needs the ring that is kept here. Thresholds are read at each
// decision; cool-down and probes are fixed in a gobreaker, so a change of those takes effect by a new one, as soon
// as the present one is closed.
//
// gobreaker's half-open state has no end of its own: a probe whose outcome never comes keeps its place for good, and with
// the last place the breaker would refuse every call for ever. So one that stands like that for too long is made anew, open.
type breaker struct {
	tuning   func() Tuning
	spread   float64 // this process's part of the jitter of the cool-down, 0.8–1.2
	onChange func(from, to gobreaker.State)
	onStuck  func()

	mu   sync.Mutex // guards cb and made; gobreaker's callbacks run under its own lock and never take this one
	cb   *gobreaker.CircuitBreaker[struct{}]
	made BreakerTuning
	gen  atomic.Uint64 // counts what build made: calls that began under a former gobreaker may still open that one

	half         atomic.Pointer[time.Time] // when it became half-open
	begun, ended atomic.Int64              // runs of guard
}

// newBreaker returns a closed breaker. onChange is called under gobreaker's lock, onStuck when a half-open breaker was
// found to be stuck and is made anew.
func newBreaker(tuning func() Tuning, rand func() float64, onChange func(from, to gobreaker.State), onStuck func()) *breaker {
	b := &breaker{tuning: tuning, spread: 0.8 + 0.4*rand(), onChange: onChange, onStuck: onStuck}
	b.build(tuning().Breaker, false)
	return b
}

// build makes the gobreaker in force; open says that it takes over from one that stood in the way of every call, and
// begins with a cool-down: nothing says that the upstream is well.
func (b *breaker) build(t BreakerTuning, open bool) {
	r := &ring{}
	b.made = t
	gen := b.gen.Add(1)
	b.cb = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        "upstream",
		MaxRequests: uint32(min(max(t.Probes, 1), math.MaxInt32)),
		Timeout:     time.Duration(float64(t.Cooldown) * b.spread),
		// gobreaker asks IsExcluded, then IsSuccessful, once for each outcome that counts, then ReadyToTrip if it
		// was a failure, all under its lock: the ring needs none of its own.
		IsExcluded: func(err error) bool { return errors.Is(err, errNeutral) },
		IsSuccessful: func(err error) bool {
			r.add(time.Now(), err == nil, b.tuning().Breaker)
			return err == nil
		},
		ReadyToTrip: func(gobreaker.Counts) bool { return open || r.trips(time.Now(), b.tuning().Breaker) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			r.clear()
			if to == gobreaker.StateHalfOpen {
				now := time.Now()
				b.half.Store(&now)
			}
			if b.gen.Load() != gen {
				return
			}
			if open {
				from, open = gobreaker.StateHalfOpen, false
			}
			b.onChange(from, to)
		},
	})
	if open {
		_, _ = b.cb.Execute(func() (struct{}, error) { return struct{}{}, errFailure })
	}
}

// current returns the gobreaker in force.
func (b *breaker) current() *gobreaker.CircuitBreaker[struct{}] {
	t := b.tuning().Breaker
	b.mu.Lock()
	defer b.mu.Unlock()
	if (t.Cooldown != b.made.Cooldown || t.Probes != b.made.Probes) && b.cb.State() == gobreaker.StateClosed {
		b.build(t, false)
	}
	return b.cb
}

func (b *breaker) state() gobreaker.State {
	state, _ := b.standing()
	return state
}

// standing returns the state, and whether a half-open breaker has let all its probes through already.
func (b *breaker) standing() (state gobreaker.State, full bool) {
	cb := b.current()
	ended := b.ended.Load()
	begun := b.begun.Load()
	state = cb.State()
	if state != gobreaker.StateHalfOpen {
		return state, false
	}
	n := cb.Counts()
	b.mu.Lock()
	full = int64(n.Requests)-int64(n.TotalExclusions) >= int64(max(b.made.Probes, 1))
	t := b.tuning()
	// None was in flight when the state was read, and none has begun since: every place is taken, and nobody is there
	// who could give one back.
	stuck := full && begun == ended && b.begun.Load() == begun && b.cb == cb && time.Since(*b.half.Load()) > stuckAfter(t)
	if stuck {
		b.build(t.Breaker, true)
	}
	b.mu.Unlock()
	if stuck {
		b.onStuck()
		return gobreaker.StateOpen, false
	}
	return state, full
}

// stuckAfter is how long a breaker may be half-open with nothing on its way.
func stuckAfter(t Tuning) time.Duration {
	return 2*max(t.Interactive.AttemptTimeout, t.Background.AttemptTimeout) + 5*time.Second
}

// guard runs judge under the breaker and reports its error as the outcome; it blocks as long as judge does.
// The error is nil, what judge returned, or gobreaker's refusal, in which case judge did not run.
func (b *breaker) guard(judge func() error) error {
	b.begun.Add(1)
	defer b.ended.Add(1) // also when judge ends its goroutine
	_, err := b.current().Execute(func() (struct{}, error) { return struct{}{}, judge() })
	return err
}

// refused says that the breaker did not let a call through.
func refused(err error) bool {
	return errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests)
}

// ring holds the latest outcomes, and what they cannot tell by themselves once there are hundreds a second and a window
// of thirty spans no time at all.
type ring struct {
	entries []outcomeAt // oldest first
	row     time.Time   // when the present row of failures began; zero when the latest outcome is a success
	well    time.Time   // when the share of failures was last below half of the ratio that opens
}

type outcomeAt struct {
	at time.Time
	ok bool
}

func (r *ring) add(now time.Time, ok bool, t BreakerTuning) {
	if n := len(r.entries); n == 0 || now.Sub(r.entries[n-1].at) > ringAge {
		r.row, r.well = time.Time{}, now // what was before says nothing about now
	}
	switch {
	case ok:
		r.row = time.Time{}
	case r.row.IsZero():
		r.row = now
	}
	r.entries = append(r.entries, outcomeAt{now, ok})
	if over := len(r.entries) - max(t.Window, 1); over > 0 {
		r.entries = append(r.entries[:0], r.entries[over:]...)
	}
	if failures, _, n := r.count(now); float64(failures) < t.FailureRatio/2*float64(n) {
		r.well = now
	}
}

func (r *ring) clear() { r.entries, r.row, r.well = r.entries[:0], time.Time{}, time.Time{} }

// count returns the failures among the n outcomes that still count, and how many of them the latest are in a row.
func (r *ring) count(now time.Time) (failures, row, n int) {
	for _, e := range r.entries {
		switch {
		case now.Sub(e.at) > ringAge:
			continue
		case e.ok:
			row = 0
		default:
			failures++
			row++
		}
		n++
	}
	return failures, row, n
}

// trips says whether the latest failure opens the breaker. Neither rule does before the trouble has lasted for MinSpan:
// a blip is what retries are for, and at a high rate it brings any number of failures, in a row too.
func (r *ring) trips(now time.Time, t BreakerTuning) bool {
	failures, row, n := r.count(now)
	if t.ConsecutiveFailures > 0 && row >= t.ConsecutiveFailures && now.Sub(r.row) >= t.MinSpan {
		return true
	}
	return n >= max(t.MinSamples, 1) && float64(failures) >= t.FailureRatio*float64(n) && now.Sub(r.well) >= t.MinSpan
}
