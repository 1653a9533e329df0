package debounce

import "github.com/prometheus/client_golang/prometheus"

// What became of events and bursts in Redis, as metrics name it.
const (
	fleetArmed = "armed" // an event was noted
	fleetAway  = "away"  // Redis did not say
	fleetFull  = "full"
	fleetSwept = "swept" // a burst was over
	fleetAgain = "again" // its sweeper before had not said that it fired; counted as swept, too
)

type metrics struct{ events *prometheus.CounterVec }

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{events: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "validator_gw", Name: "debounce_total",
		Help: "Events and bursts in Redis: armed counts events noted, away those that Redis did not take, full those over the bound; " +
			"swept counts bursts that are over, again those of them that another sweeper had left."}, []string{"what"})}
	for _, what := range []string{fleetArmed, fleetAway, fleetFull, fleetSwept, fleetAgain} {
		m.events.WithLabelValues(what)
	}
	if reg != nil {
		reg.MustRegister(m.events)
	}
	return m
}

func (m *metrics) count(what string) { m.events.WithLabelValues(what).Inc() }
