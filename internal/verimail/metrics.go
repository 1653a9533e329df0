package verimail

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sony/gobreaker/v2"

	"validator-gw/internal/verdict"
)

// Why a check ended without a verdict, as metrics name it.
const (
	giveupMaxAttempts  = "max_attempts"
	giveupDeadline     = "deadline"
	giveupRetryBudget  = "retry_budget"
	giveupBlocked      = "blocked" // a gate or the breaker
	giveupLimiter      = "limiter"
	giveupNotRetryable = "not_retryable"
)

var giveups = []string{giveupMaxAttempts, giveupDeadline, giveupRetryBudget, giveupBlocked, giveupLimiter, giveupNotRetryable}

var breakerStates = []gobreaker.State{gobreaker.StateClosed, gobreaker.StateHalfOpen, gobreaker.StateOpen}

type metrics struct {
	attempts        *prometheus.CounterVec
	duration        *prometheus.HistogramVec
	rateLimited     *prometheus.CounterVec
	retries         *prometheus.HistogramVec
	backoff         *prometheus.HistogramVec
	giveups         *prometheus.CounterVec
	inFlight        *prometheus.GaugeVec
	late            *prometheus.CounterVec
	breakerState    *prometheus.GaugeVec
	breakerMoves    *prometheus.CounterVec
	breakerRejected *prometheus.CounterVec
	breakerRebuilt  *prometheus.CounterVec

	provider string

	mu       sync.Mutex // guards the open time
	openedAt time.Time
	open     time.Duration
}

// newMetrics makes the client's metrics, every series at zero, and registers them unless reg is nil.
func newMetrics(reg prometheus.Registerer, provider string) *metrics {
	p := []string{"provider"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "validator_gw", Name: name, Help: help},
			append(p, labels...))
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "validator_gw", Name: name, Help: help,
			Buckets: buckets}, append(p, labels...))
	}
	m := &metrics{
		provider: provider,
		attempts: counter("provider_attempts_total", "Calls sent to the provider, by outcome.", "outcome"),
		duration: histogram("provider_attempt_duration_seconds", "Time of one call to the provider.",
			[]float64{.025, .05, .1, .25, .5, .8, 1.05, 2.5, 5, 10}),
		rateLimited: counter("provider_rate_limited_total",
			"429 answers received, by the form in which they said when to come back.", "retry_after"),
		retries: histogram("provider_request_retries", "Retries of one check, 0 included.", []float64{0, 1, 2, 3, 5}, "result"),
		backoff: histogram("provider_request_backoff_seconds", "Time slept between the attempts of one check, 0 included.",
			[]float64{0, .1, .25, .5, .8, 1.05, 2.5, 5, 15, 60}, "result"),
		giveups: counter("provider_giveups_total",
			"Checks that ended without a verdict, by why no further attempt was made.", "reason"),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "validator_gw", Name: "provider_requests_in_flight",
			Help: "Calls on the wire, late ones included."}, p),
		late: counter("provider_late_total", "Calls that were silent at their attempt time-out and were waited for."),
		breakerState: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "validator_gw", Name: "breaker_state",
			Help: "State of the breaker: the series of the present state is 1."}, append(p, "state")),
		breakerMoves:    counter("breaker_transitions_total", "Changes of the breaker's state.", "to"),
		breakerRejected: counter("breaker_rejected_total", "Calls that the breaker kept from being sent."),
		breakerRebuilt: counter("breaker_rebuilt_total",
			"Times that the breaker was stuck half-open and was made anew: a bug; must stay 0."),
	}
	for _, o := range verdict.AttemptOutcomes {
		if o != verdict.AttemptNotSent && o != verdict.AttemptLate { // not outcomes of a call
			m.attempts.WithLabelValues(provider, o)
		}
	}
	m.duration.WithLabelValues(provider)
	for _, f := range hintForms {
		m.rateLimited.WithLabelValues(provider, f)
	}
	for _, r := range []string{"success", "failure"} {
		m.retries.WithLabelValues(provider, r)
		m.backoff.WithLabelValues(provider, r)
	}
	for _, g := range giveups {
		m.giveups.WithLabelValues(provider, g)
	}
	m.inFlight.WithLabelValues(provider)
	m.late.WithLabelValues(provider)
	m.breakerRejected.WithLabelValues(provider)
	m.breakerRebuilt.WithLabelValues(provider)
	for _, s := range breakerStates {
		m.breakerState.WithLabelValues(provider, stateLabel(s))
		m.breakerMoves.WithLabelValues(provider, stateLabel(s))
	}
	m.breakerState.WithLabelValues(provider, stateLabel(gobreaker.StateClosed)).Set(1)
	if reg != nil {
		reg.MustRegister(m.attempts, m.duration, m.rateLimited, m.retries, m.backoff, m.giveups, m.inFlight, m.late,
			m.breakerState, m.breakerMoves, m.breakerRejected, m.breakerRebuilt,
			prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "validator_gw", Name: "breaker_open_seconds_total",
				Help:        "Time that the breaker was open; it advances while it is.",
				ConstLabels: prometheus.Labels{"provider": provider}}, m.openSeconds))
	}
	return m
}

func stateLabel(s gobreaker.State) string {
	if s == gobreaker.StateHalfOpen {
		return "half_open"
	}
	return s.String()
}

func (m *metrics) breakerMoved(to gobreaker.State) {
	for _, s := range breakerStates {
		v := 0.0
		if s == to {
			v = 1
		}
		m.breakerState.WithLabelValues(m.provider, stateLabel(s)).Set(v)
	}
	m.breakerMoves.WithLabelValues(m.provider, stateLabel(to)).Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	if to == gobreaker.StateOpen {
		m.openedAt = time.Now()
	} else if !m.openedAt.IsZero() {
		m.open += time.Since(m.openedAt)
		m.openedAt = time.Time{}
	}
}

func (m *metrics) openSeconds() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	open := m.open
	if !m.openedAt.IsZero() {
		open += time.Since(m.openedAt)
	}
	return open.Seconds()
}

func (m *metrics) attempted(r *reply) {
	m.attempts.WithLabelValues(m.provider, r.outcome).Inc()
	m.duration.WithLabelValues(m.provider).Observe(r.took.Seconds())
	if r.outcome == verdict.AttemptThrottled {
		m.rateLimited.WithLabelValues(m.provider, r.hint).Inc()
	}
}

func (m *metrics) checked(out verdict.Outcome) {
	if out.Sent == 0 {
		return // nothing was asked
	}
	result := "failure"
	if out.Final() {
		result = "success"
	}
	m.retries.WithLabelValues(m.provider, result).Observe(float64(out.Sent - 1))
	m.backoff.WithLabelValues(m.provider, result).Observe(out.Backoff.Seconds())
}
