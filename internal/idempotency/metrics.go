package idempotency

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	begun       map[State]prometheus.Counter
	unavailable prometheus.Counter
	notKept     prometheus.Counter
}

// newMetrics registers on reg, which may be nil. All series exist from the start, so that a rate over them is 0 and not
// absent.
func newMetrics(reg prometheus.Registerer) *metrics {
	begun := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "validator_gw", Name: "idempotency_requests_total",
		Help: "Requests with an Idempotency-Key, by how they stood to it: mine is the first, replay got the stored answer, " +
			"conflict is another request under the key, in_flight waited for the first in vain, unavailable could not look it up.",
	}, []string{"state"})
	m := &metrics{
		begun:       make(map[State]prometheus.Counter),
		unavailable: begun.WithLabelValues("unavailable"),
		notKept: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "validator_gw", Name: "idempotency_not_kept_total",
			Help: "Answers that could not be kept under their Idempotency-Key, and so were not sent.",
		}),
	}
	for _, s := range states {
		m.begun[s] = begun.WithLabelValues(string(s))
	}
	if reg != nil {
		reg.MustRegister(begun, m.notKept)
	}
	return m
}
