package revalidate

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/fallback"
)

// How a review ended, and what one check of it brought, as metrics name them.
const (
	completedSettled    = "settled"
	completedUnresolved = "unresolved"
	completedDead       = "dead"

	resultSettled   = "settled"
	resultPostponed = "postponed"
	resultGivenBack = "given_back"
)

type metrics struct {
	completions *prometheus.CounterVec
	checks      *prometheus.CounterVec
	age         prometheus.Histogram
	jobs        *prometheus.GaugeVec
	oldest      prometheus.Gauge
	refreshed   prometheus.Gauge
	slots       prometheus.Gauge
	busy        prometheus.Gauge
	busySeconds prometheus.Counter
	leasesLost  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "validator_gw", Name: name, Help: help}
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "validator_gw", Name: name, Help: help})
	}
	m := &metrics{
		completions: prometheus.NewCounterVec(counter("review_completions_total", "Reviews that the loop ended."), []string{"outcome"}),
		checks:      prometheus.NewCounterVec(counter("review_checks_total", "Checks of claimed reviews by what they brought."), []string{"result"}),
		age: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "validator_gw", Name: "review_completion_age_seconds",
			Help: "Age of reviews when the loop ended them.", Buckets: []float64{1, 5, 15, 60, 300, 900, 3600, 14400, 43200, 86400, 259200}}),
		jobs: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "validator_gw", Name: "review_jobs",
			Help: "Reviews by state, read from the database: the same on every replica, take the max and not the sum."}, []string{"state"}),
		oldest:      gauge("review_oldest_overdue_seconds", "How long the longest overdue review is overdue; 0 when none is."),
		refreshed:   gauge("review_stats_refreshed_timestamp_seconds", "When the figures that come from the database were read."),
		slots:       gauge("worker_slots", "Checks that the loop may make at a time."),
		busy:        gauge("worker_busy", "Checks that the loop makes now."),
		busySeconds: prometheus.NewCounter(counter("worker_busy_seconds_total", "Time spent in checks of the loop, when they end.")),
		leasesLost:  prometheus.NewCounter(counter("review_leases_lost_total", "Writes dropped because the row was someone else's by then.")),
	}
	for _, o := range []string{completedSettled, completedUnresolved, completedDead} {
		m.completions.WithLabelValues(o)
	}
	for _, r := range []string{resultSettled, resultPostponed, resultGivenBack} {
		m.checks.WithLabelValues(r)
	}
	m.stats(fallback.Stats{})
	m.refreshed.Set(0)
	if reg != nil {
		reg.MustRegister(m.completions, m.checks, m.age, m.jobs, m.oldest, m.refreshed, m.slots, m.busy, m.busySeconds, m.leasesLost)
	}
	return m
}

func (m *metrics) checked(result string) { m.checks.WithLabelValues(result).Inc() }

func (m *metrics) stats(s fallback.Stats) {
	for state, n := range map[string]int64{"overdue": s.Overdue, "scheduled": s.Scheduled, "leased": s.Leased, "dead": s.Dead} {
		m.jobs.WithLabelValues(state).Set(float64(n))
	}
	m.oldest.Set(s.OldestOverdue.Seconds())
	m.refreshed.Set(float64(time.Now().Unix()))
}
