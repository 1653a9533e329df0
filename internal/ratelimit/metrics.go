package ratelimit

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Where a grant came from.
const (
	fromRedis = iota
	fromLocal
)

var (
	classNames  = [...]string{interactive: "interactive", background: "background"}
	sourceNames = [...]string{fromRedis: "redis", fromLocal: "local"}
)

// Results of a take: a refusal by the bucket, by the fleet's gate, or for want of an answer from Redis.
const (
	resultGranted = iota
	resultRefused
	resultHeld
	resultError
)

var resultNames = [...]string{resultGranted: "granted", resultRefused: "refused", resultHeld: "held", resultError: "error"}

// metrics are resolved once: a take costs less than a look-up of its labels.
type metrics struct {
	takes     [len(classNames)][len(sourceNames)][len(resultNames)]prometheus.Counter
	waits     prometheus.Histogram
	latency   prometheus.Histogram
	shared    prometheus.Gauge
	instances prometheus.Gauge
	missing   prometheus.Gauge
	holds     [2]prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "validator_gw", Name: "ratelimit_" + name, Help: help}
	}
	buckets := func(name, help string, b ...float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Namespace: "validator_gw", Name: "ratelimit_" + name, Help: help, Buckets: b}
	}
	takes := prometheus.NewCounterVec(prometheus.CounterOpts(opts("takes_total",
		"Questions for a call to the upstream: granted, refused by the bucket, held by the fleet's gate, or not answered by Redis.")),
		[]string{"class", "source", "result"})
	holds := prometheus.NewCounterVec(prometheus.CounterOpts(opts("holds_total",
		"Times that the fleet was told to hold its calls.")), []string{"result"})
	m := &metrics{
		waits:   prometheus.NewHistogram(buckets("wait_seconds", "Waits for a booked call.", .005, .02)), // and up to MaxWait
		latency: prometheus.NewHistogram(buckets("redis_seconds", "Time that Redis took for a question.", .001, .005, .02)),
		shared: prometheus.NewGauge(prometheus.GaugeOpts(opts("shared",
			"1 while the rate is shared in Redis, 0 while this replica keeps to a rate of its own."))),
		instances: prometheus.NewGauge(prometheus.GaugeOpts(opts("instances",
			"Replicas that share the rate, as last seen in Redis."))),
		missing: prometheus.NewGauge(prometheus.GaugeOpts(opts("instances_missing",
			"Replicas that went without a word; their part of the rate is kept for them."))),
	}
	for c, class := range classNames {
		for s, source := range sourceNames {
			for r, result := range resultNames {
				if s == fromLocal && r >= resultHeld { // the gate is the fleet's, and so is the error
					continue
				}
				m.takes[c][s][r] = takes.WithLabelValues(class, source, result)
			}
		}
	}
	m.holds[0], m.holds[1] = holds.WithLabelValues("ok"), holds.WithLabelValues("error")
	if reg != nil {
		reg.MustRegister(takes, holds, m.waits, m.latency, m.shared, m.instances, m.missing)
	}
	return m
}

func (m *metrics) took(c class, source int, ok bool, wait time.Duration) {
	if !ok {
		m.takes[c][source][resultRefused].Inc()
		return
	}
	m.takes[c][source][resultGranted].Inc()
	if c == interactive {
		m.waits.Observe(wait.Seconds())
	}
}

func (m *metrics) held(err error) {
	if err != nil {
		m.holds[1].Inc()
		return
	}
	m.holds[0].Inc()
}
