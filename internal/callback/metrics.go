package callback

import "github.com/prometheus/client_golang/prometheus"

// What became of a delivery, as metrics name it.
const (
	resultDelivered = "delivered"
	resultFailed    = "failed"
	resultGivenUp   = "given_up"
	resultGone      = "gone"
	resultUnwanted  = "unwanted"
)

type metrics struct {
	deliveries    *prometheus.CounterVec
	duration, age prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "validator_gw", Name: "callback_deliveries_total",
			Help: "Deliveries to callbacks by what became of them: failed is tried again, given_up was tried for a day, gone is a message that the target " +
				"refused for good or whose review is not kept any more, unwanted an event that the callback is not told."}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "validator_gw", Name: "callback_duration_seconds",
			Help: "Time of one delivery that was answered.", Buckets: []float64{.25, 1, 5}}),
		age: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "validator_gw", Name: "callback_age_seconds",
			Help: "Time from the end of a review to its delivery.", Buckets: []float64{5, 60, 3600, 86400}}),
	}
	for _, r := range []string{resultDelivered, resultFailed, resultGivenUp, resultGone, resultUnwanted} {
		m.deliveries.WithLabelValues(r)
	}
	if reg != nil {
		reg.MustRegister(m.deliveries, m.duration, m.age)
	}
	return m
}
