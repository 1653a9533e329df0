package fallback

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// operations is the closed set of the label "operation".
var operations = []string{
	"record", "lookup", "review", "verdict", "watch", "watchers", "claim", "heartbeat", "give_back", "settle", "settle_open",
	"postpone", "kill", "hasten", "put_verdicts", "stats", "sweep", "ping", "reserve_key", "read_key", "keep_answer", "free_key",
	"erase", "erasures",
	"backfill_load", "backfill_step", "backfill", // each name costs 14 series, so what is seldom done shares one
}

// metrics of one store.
type metrics struct {
	duration map[string]prometheus.Observer
	errors   map[string]prometheus.Counter
}

// newMetrics registers the two metrics on reg, which may be nil, or joins them when the other store did. All
// series exist from the start, so that a rate over them is 0 and not absent.
func newMetrics(reg prometheus.Registerer, store string) (*metrics, error) {
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "validator_gw_store_operation_duration_seconds",
		Help:    "Time an operation of the durable store took, waiting for a connection included.",
		Buckets: []float64{.0005, .001, .005, .01, .025, .05, .1, .5, 1, 2.5, 10},
	}, []string{"store", "operation"})
	failures := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "validator_gw_store_errors_total",
		Help: "Operations that the durable store could not do. A lost lease, an unknown id, a full queue and an erased address are answers.",
	}, []string{"store", "operation"})
	if reg != nil {
		var err error
		if duration, err = register(reg, duration); err != nil {
			return nil, err
		}
		if failures, err = register(reg, failures); err != nil {
			return nil, err
		}
	}
	m := &metrics{duration: map[string]prometheus.Observer{}, errors: map[string]prometheus.Counter{}}
	for _, op := range operations {
		m.duration[op] = duration.WithLabelValues(store, op)
		m.errors[op] = failures.WithLabelValues(store, op)
	}
	return m, nil
}

func register[C prometheus.Collector](reg prometheus.Registerer, c C) (C, error) {
	err := reg.Register(c)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if c, ok := already.ExistingCollector.(C); ok {
			return c, nil
		}
	}
	return c, err
}

// observe is deferred with the start of the operation and the address of its error.
func (m *metrics) observe(operation string, start time.Time, err *error) {
	m.duration[operation].Observe(time.Since(start).Seconds())
	if *err == nil {
		return
	}
	for _, answer := range []error{ErrLeaseLost, ErrUnknownID, ErrQueueFull, ErrErased, ErrNotDead, ErrReplaced, ErrBackfillBusy,
		ErrBackfillTerms, ErrBackfillState} {
		if errors.Is(*err, answer) {
			return
		}
	}
	m.errors[operation].Inc()
}
