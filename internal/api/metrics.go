package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// latencyBuckets have an edge at each promise about time: 0.8 s is the usual budget, 1.05 s is over every budget. The
// low ones are for cached and local answers, the last one is for long polls. Each costs a series for every route and class
// of code; validation_duration_seconds has finer ones.
var latencyBuckets = []float64{.001, .005, .025, .1, .25, .8, 1.05, 2.5, 30.5}

// classes are the classes of status codes that are answered.
var classes = []string{"2xx", "4xx", "5xx"}

// metrics are the HTTP metrics. Labels come from closed sets: the routes, their methods and their documented codes.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
	unlogged prometheus.Counter
}

// newMetrics registers the metrics and sets each that a route can bring to zero, so that a rate is right from the first
// scrape on. It gives the routes their own, so that a request looks nothing up.
func newMetrics(reg prometheus.Registerer, routes []*route) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "validator_gw_http_requests_total",
			Help: "Requests answered, by route, method and status code. 499: the caller left before the answer.",
		}, []string{"route", "method", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "validator_gw_http_request_duration_seconds",
			Help:    "Time from the end of the header to the end of the handler, by route and class of status code.",
			Buckets: latencyBuckets,
		}, []string{"route", "class"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "validator_gw_http_requests_in_flight",
			Help: "Requests in work, by route.",
		}, []string{"route"}),
		unlogged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "validator_gw_http_requests_unlogged_total",
			Help: "Routine requests without a log line, as there were more in that second than log.routine_per_second.",
		}),
	}
	if reg != nil {
		for _, c := range []prometheus.Collector{m.requests, m.duration, m.inFlight, m.unlogged} {
			if err := reg.Register(c); err != nil {
				return nil, err
			}
		}
	}
	for _, rt := range routes {
		rt.inFlight = m.inFlight.WithLabelValues(rt.pattern)
		rt.counters = make(map[int]prometheus.Counter)
		for _, code := range append([]int{statusClientGone}, rt.codes...) {
			if rt.method != "" {
				rt.counters[code] = m.requests.WithLabelValues(rt.pattern, rt.method, strconv.Itoa(code))
			}
		}
		codes := rt.codes
		if rt.method == "" {
			codes = []int{http.StatusNotFound} // or 405
		}
		for _, code := range codes {
			i := classOf(code)
			rt.durations[i] = m.duration.WithLabelValues(rt.pattern, classes[i])
		}
	}
	return m, nil
}

// count counts one answered request.
func (m *metrics) count(rt *route, method string, status int, took time.Duration) {
	if c, ok := rt.counters[status]; ok && (method == rt.method || method == http.MethodHead) {
		c.Inc()
	} else {
		m.requests.WithLabelValues(rt.pattern, methodLabel(method), strconv.Itoa(status)).Inc()
	}
	class := classOf(status)
	d := rt.durations[class]
	if d == nil {
		d = m.duration.WithLabelValues(rt.pattern, classes[class]) // the route should not bring it
	}
	d.Observe(took.Seconds())
}

// classOf returns the place of a code's class in classes.
func classOf(code int) int {
	switch {
	case code >= 500:
		return 2
	case code >= 400:
		return 1
	}
	return 0
}

// methodLabel returns method if it is a common one, else "other": anyone can make methods up.
func methodLabel(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions:
		return method
	default:
		return "other"
	}
}
