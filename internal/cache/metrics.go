package cache

import "github.com/prometheus/client_golang/prometheus"

// Levels, as metrics name them.
const (
	levelMemory = "memory"
	levelRedis  = "redis"
	levelStore  = "store"
)

type metrics struct {
	requests    *prometheus.CounterVec
	local       [2]prometheus.Counter // of the process's level, miss and hit: nearly every request counts there
	redisWrites *prometheus.CounterVec
	entries     prometheus.GaugeFunc
	written     prometheus.Counter
	writeErrors prometheus.Counter
	waiting     prometheus.Gauge
	lost        prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, size func() float64) *metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "validator_gw", Name: name, Help: help}
	}
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts(opts("cache_requests_total",
			"Look-ups of a level of the cache. In memory, one for each answer that was wanted.")), []string{"tier", "result"}),
		redisWrites: prometheus.NewCounterVec(prometheus.CounterOpts(opts("cache_redis_writes_total",
			"Batches written to Redis.")), []string{"result"}),
		entries: prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("cache_entries",
			"Entries in the process, about.")), size),
		written: prometheus.NewCounter(prometheus.CounterOpts(opts("verdicts_written_total",
			"Verdicts written behind to the durable store."))),
		writeErrors: prometheus.NewCounter(prometheus.CounterOpts(opts("verdicts_write_errors_total",
			"Batches of verdicts that the durable store did not take; they are tried again."))),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts(opts("verdicts_waiting",
			"Verdicts that are not durable yet."))),
		lost: prometheus.NewCounter(prometheus.CounterOpts(opts("verdicts_lost_total",
			"Verdicts dropped before they were durable, for want of room; must stay 0."))),
	}
	for _, tier := range []string{levelMemory, levelRedis, levelStore} {
		for _, result := range []string{"hit", "miss", "error"} {
			m.requests.WithLabelValues(tier, result)
		}
	}
	m.local = [2]prometheus.Counter{m.requests.WithLabelValues(levelMemory, "miss"), m.requests.WithLabelValues(levelMemory, "hit")}
	m.redisWrites.WithLabelValues("ok")
	m.redisWrites.WithLabelValues("error")
	if reg != nil {
		reg.MustRegister(m.requests, m.redisWrites, m.entries, m.written, m.writeErrors, m.waiting, m.lost)
	}
	return m
}

// lookedLocal counts a look-up in the process.
func (m *metrics) lookedLocal(hit bool) {
	if hit {
		m.local[1].Inc()
		return
	}
	m.local[0].Inc()
}

func (m *metrics) looked(tier string, hit bool, err error) {
	switch {
	case err != nil:
		m.requests.WithLabelValues(tier, "error").Inc()
	case hit:
		m.requests.WithLabelValues(tier, "hit").Inc()
	default:
		m.requests.WithLabelValues(tier, "miss").Inc()
	}
}

func (m *metrics) wrote(err error) {
	if err != nil {
		m.redisWrites.WithLabelValues("error").Inc()
		return
	}
	m.redisWrites.WithLabelValues("ok").Inc()
}
