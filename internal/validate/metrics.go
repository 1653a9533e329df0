package validate

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/verdict"
)

type metrics struct {
	validations  *prometheus.CounterVec
	duration     *prometheus.HistogramVec
	flights      *prometheus.CounterVec
	arrivals     *prometheus.CounterVec
	recordErrors prometheus.Counter
	lookupErrors prometheus.Counter
	settledLate  prometheus.Counter
	leases       *prometheus.CounterVec
	saved        *prometheus.CounterVec
	stale        prometheus.Counter
	refreshes    *prometheus.CounterVec
	typing       *prometheus.CounterVec
	events       *prometheus.CounterVec
	savedCached  prometheus.Counter
	// cached are those of answers from the cache, which are nearly all.
	cached map[verdict.Status]prometheus.Counter
	hit    prometheus.Observer
}

// What saves a call to the upstream, as metrics name it.
const (
	savedCache   = "cache"
	savedFlight  = "flight"
	savedReplica = "replica"
	savedLocal   = "local"
)

var savedBy = []string{savedCache, savedFlight, savedReplica, savedLocal}

// newMetrics registers those of leases only where there are any.
func newMetrics(reg prometheus.Registerer, leases bool) *metrics {
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "validator_gw", Name: name, Help: help}
	}
	m := &metrics{
		validations: prometheus.NewCounterVec(opts("validations_total", "Answers given, by status and source."), []string{"status", "source"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "validator_gw", Name: "validation_duration_seconds",
			Help:    "Time from the request to its answer, retries, backoff and the row included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, .8, 1.05, 2.5}}, []string{"source"}),
		flights: prometheus.NewCounterVec(opts("dedupe_requests_total",
			"Requests that began a check (leader) or joined one in flight (follower), which saved a call."), []string{"role"}),
		arrivals: prometheus.NewCounterVec(opts("review_arrivals_total", "Rows recorded for review, by reason."), []string{"reason"}),
		recordErrors: prometheus.NewCounter(opts("review_record_errors_total",
			"Requests that had no answer and for which no row could be written (503).")),
		lookupErrors: prometheus.NewCounter(opts("verdict_lookup_errors_total",
			"Look-ups in the durable verdicts that failed; the check went on without.")),
		settledLate: prometheus.NewCounter(opts("review_settled_late_total",
			"Reviews settled by an answer outside the loop: a late one, or another request's.")),
	}
	m.stale = prometheus.NewCounter(opts("cache_stale_answers_total", "Answers with a verdict past its freshness."))
	m.refreshes = prometheus.NewCounterVec(opts("cache_refreshes_total", "Refreshes in the background of verdicts past their freshness: renewed by the upstream's word, found "+
		"with another replica or under review, failed without a verdict, refused since the rate had no token to spare or a gate was closed, skipped as too many ran."),
		[]string{"outcome"})
	for _, outcome := range refreshOutcomes {
		m.refreshes.WithLabelValues(outcome)
	}
	m.typing = prometheus.NewCounterVec(opts("typing_checks_total", "Checks while a person types: answered, superseded by a newer one of the session, "+
		"or unanswered in their budget."), []string{"outcome"})
	for _, outcome := range typingOutcomes {
		m.typing.WithLabelValues(outcome)
	}
	m.events = prometheus.NewCounterVec(opts("revalidate_events_total", "Events that asked for a new check: opened one of their own, merged into one that was "+
		"asked for, local when there was nothing to ask anyone, failed when nothing durable could be written."), []string{"outcome"})
	for _, outcome := range eventOutcomes {
		m.events.WithLabelValues(outcome)
	}
	m.leases = prometheus.NewCounterVec(opts("flight_leases_total", "Checks that asked Redis whether another replica asks about the address: "+
		"mine asked the upstream; joined got the other's verdict, failed the word that it has none, timeout nothing; away: Redis did not say."),
		[]string{"outcome"})
	m.saved = prometheus.NewCounterVec(opts("credits_saved_total", "Calls to the upstream that were not made: answers with a cached verdict, answers that "+
		"shared another request's check (flight), checks for which another replica asked, and local refusals."), []string{"by"})
	for _, by := range savedBy {
		m.saved.WithLabelValues(by)
	}
	m.savedCached = m.saved.WithLabelValues(savedCache)
	for _, st := range verdict.Statuses {
		for _, so := range verdict.Sources {
			m.validations.WithLabelValues(string(st), string(so))
		}
	}
	for _, so := range verdict.Sources {
		m.duration.WithLabelValues(string(so))
	}
	m.cached = make(map[verdict.Status]prometheus.Counter)
	for _, st := range verdict.Statuses {
		m.cached[st] = m.validations.WithLabelValues(string(st), string(verdict.FromCache))
	}
	m.hit = m.duration.WithLabelValues(string(verdict.FromCache))
	m.flights.WithLabelValues("leader")
	m.flights.WithLabelValues("follower")
	for _, r := range verdict.ReviewReasons {
		m.arrivals.WithLabelValues(string(r))
	}
	for _, outcome := range leaseOutcomes {
		m.leases.WithLabelValues(outcome)
	}
	if reg != nil && leases {
		reg.MustRegister(m.leases)
	}
	if reg != nil {
		reg.MustRegister(m.validations, m.duration, m.flights, m.arrivals, m.recordErrors, m.lookupErrors, m.settledLate, m.stale, m.refreshes, m.saved, m.typing, m.events)
	}
	return m
}

func (m *metrics) answered(a Answer, took time.Duration) {
	if a.Stale {
		m.stale.Inc()
	}
	if c := m.cached[a.Status]; c != nil && a.Source == verdict.FromCache {
		c.Inc()
		m.hit.Observe(took.Seconds())
		m.savedCached.Inc()
		return
	}
	if a.Source == verdict.FromLocal {
		m.saved.WithLabelValues(savedLocal).Inc()
	}
	m.validations.WithLabelValues(string(a.Status), string(a.Source)).Inc()
	m.duration.WithLabelValues(string(a.Source)).Observe(took.Seconds())
}

func (m *metrics) flown(joined bool) {
	if joined {
		m.flights.WithLabelValues("follower").Inc()
		return
	}
	m.flights.WithLabelValues("leader").Inc()
}

func (m *metrics) arrived(r verdict.Reason) { m.arrivals.WithLabelValues(string(r)).Inc() }
