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
type breaker struct {
	tuning   func() BreakerTuning
	spread   float64 // this process's part of the jitter of the cool-down, 0.8–1.2
	onChange func(from, to gobreaker.State)

	mu   sync.Mutex // guards cb and made; gobreaker's callbacks run under its own lock and never take this one
	cb   *gobreaker.CircuitBreaker[struct{}]
	made BreakerTuning
	gen  atomic.Uint64 // counts what build made: calls that began under a former gobreaker may still open that one
}

func newBreaker(tuning func() BreakerTuning, rand func() float64, onChange func(from, to gobreaker.State)) *breaker {
	b := &breaker{tuning: tuning, spread: 0.8 + 0.4*rand(), onChange: onChange}
	b.build(tuning())
	return b
}

func (b *breaker) build(t BreakerTuning) {
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
			r.add(time.Now(), err == nil, b.tuning().Window)
			return err == nil
		},
		ReadyToTrip: func(gobreaker.Counts) bool { return r.trips(time.Now(), b.tuning()) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			r.clear()
			if b.gen.Load() == gen {
				b.onChange(from, to)
			}
		},
	})
}

// current returns the gobreaker in force.
func (b *breaker) current() *gobreaker.CircuitBreaker[struct{}] {
	t := b.tuning()
	b.mu.Lock()
	defer b.mu.Unlock()
	if (t.Cooldown != b.made.Cooldown || t.Probes != b.made.Probes) && b.cb.State() == gobreaker.StateClosed {
		b.build(t)
	}
	return b.cb
}

func (b *breaker) state() gobreaker.State { return b.current().State() }

// standing returns the state, and whether a half-open breaker has let all its probes through already.
func (b *breaker) standing() (state gobreaker.State, full bool) {
	cb := b.current()
	state = cb.State()
	if state != gobreaker.StateHalfOpen {
		return state, false
	}
	n := cb.Counts()
	b.mu.Lock()
	defer b.mu.Unlock()
	return state, int64(n.Requests)-int64(n.TotalExclusions) >= int64(max(b.made.Probes, 1))
}

// guard runs judge under the breaker and reports its error as the outcome; it blocks as long as judge does.
// The error is nil, what judge returned, or gobreaker's refusal, in which case judge did not run.
func (b *breaker) guard(judge func() error) error {
	_, err := b.current().Execute(func() (struct{}, error) { return struct{}{}, judge() })
	return err
}

// refused says that the breaker did not let a call through.
func refused(err error) bool {
	return errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests)
}

// ring holds the latest outcomes.
type ring struct {
	entries []outcomeAt // oldest first
}

type outcomeAt struct {
	at time.Time
	ok bool
}

func (r *ring) add(now time.Time, ok bool, window int) {
	r.entries = append(r.entries, outcomeAt{now, ok})
	if over := len(r.entries) - max(window, 1); over > 0 {
		r.entries = append(r.entries[:0], r.entries[over:]...)
	}
}

func (r *ring) clear() { r.entries = r.entries[:0] }

func (r *ring) trips(now time.Time, t BreakerTuning) bool {
	fresh := r.entries
	for len(fresh) > 0 && now.Sub(fresh[0].at) > ringAge {
		fresh = fresh[1:]
	}
	failures, run := 0, 0
	for _, e := range fresh {
		if e.ok {
			run = 0
			continue
		}
		failures++
		run++
	}
	if n := t.ConsecutiveFailures; n > 0 && run >= n && fresh[len(fresh)-1].at.Sub(fresh[len(fresh)-run].at) >= t.MinSpan {
		return true
	}
	return len(fresh) >= max(t.MinSamples, 1) && float64(failures) >= t.FailureRatio*float64(len(fresh))
}
