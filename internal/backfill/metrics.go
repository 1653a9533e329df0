package backfill

import "github.com/prometheus/client_golang/prometheus"

// Values of labels.
const (
	rowAddress    = "address"
	rowRefused    = "refused"
	rowUnreadable = "unreadable"

	itemKnown    = "known"    // answered without asking
	itemAsked    = "asked"    // a review was opened or joined
	itemAnswered = "answered" // by its review
)

type metrics struct {
	active  prometheus.Gauge
	rows    *prometheus.CounterVec
	items   *prometheus.CounterVec
	credits prometheus.Counter
	errors  prometheus.Counter
}

// newMetrics registers them on reg, which may be nil. All series exist from the start.
func newMetrics(reg prometheus.Registerer) *metrics {
	const namespace, subsystem = "validator_gw", "backfill"
	m := &metrics{
		active: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: "active",
			Help: "Backfills that this process works on."}),
		rows: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "rows_total",
			Help: "Rows of lists that were stored, by what they hold."}, []string{"kind"}),
		items: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "addresses_total",
			Help: "Distinct addresses of lists: known without asking, asked, and answered after that."}, []string{"step"}),
		credits: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "credits_total",
			Help: "Calls for lists that the upstream may have billed."}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "errors_total",
			Help: "Looks at a backfill that ended in an error and are tried again."}),
	}
	for _, kind := range []string{rowAddress, rowRefused, rowUnreadable} {
		m.rows.WithLabelValues(kind)
	}
	for _, step := range []string{itemKnown, itemAsked, itemAnswered} {
		m.items.WithLabelValues(step)
	}
	if reg != nil {
		reg.MustRegister(m.active, m.rows, m.items, m.credits, m.errors)
	}
	return m
}
