package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/api"
	"validator-gw/internal/redisconn"
	"validator-gw/internal/verimail"
)

// probeEvery is how often the stores are asked whether they are there, and probeTimeout how long they may take.
const (
	probeEvery   = 3 * time.Second
	probeTimeout = 2 * time.Second
)

// health knows how the parts are. It asks them in the background, so that a probe from outside costs nothing and
// never hangs.
type health struct {
	store  store
	redis  *redisconn.Conn
	client *verimail.Client
	kind   string // of the store
	up     *prometheus.GaugeVec

	stopping atomic.Bool
	started  atomic.Bool
	storeUp  atomic.Bool
	redisUp  atomic.Bool
}

func newHealth(kind string, reg prometheus.Registerer) *health {
	h := &health{kind: kind, up: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "validator_gw",
		Name: "dependency_up", Help: "1 when the last probe was answered."}, []string{"dependency"})}
	reg.MustRegister(h.up)
	return h
}

// watch says what to look at. Call it before run.
func (h *health) watch(s store, r *redisconn.Conn, c *verimail.Client) {
	h.store, h.redis, h.client = s, r, c
}

// run probes until ctx ends.
func (h *health) run(ctx context.Context) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		h.probe(ctx)
		h.started.Store(true)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (h *health) probe(ctx context.Context) {
	// Each has its own time, and neither waits for the other: one that hangs must not make the other look so.
	note := func(name string, to *atomic.Bool, ping func(context.Context) error) {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		err := ping(ctx)
		to.Store(err == nil)
		v := 0.0
		if err == nil {
			v = 1
		}
		h.up.WithLabelValues(name).Set(v)
	}
	var probes sync.WaitGroup
	probes.Go(func() { note("store", &h.storeUp, h.store.Ping) })
	if h.redis != nil {
		probes.Go(func() { note("redis", &h.redisUp, h.redis.Ping) })
	}
	probes.Wait()
}

// stop says that no new work is wanted.
func (h *health) stop() { h.stopping.Store(true) }

// Readiness implements what package api asks for. Only starting and stopping are "not ready": with a part down,
// cached and local answers go on.
func (h *health) Readiness() api.Readiness {
	if !h.started.Load() { // the parts are not there yet
		return api.Readiness{State: api.Starting}
	}
	r := api.Readiness{State: api.Ready}
	part := func(name string, up bool, note string) {
		p := api.Part{Name: name, Status: api.Up, Note: note}
		if !up {
			p.Status = api.Down
			r.State = api.Degraded
		}
		r.Parts = append(r.Parts, p)
	}
	part("store", h.storeUp.Load(), h.kind)
	if h.redis == nil {
		r.Parts = append(r.Parts, api.Part{Name: "redis", Status: api.Off, Note: "single node"})
	} else {
		part("redis", h.redisUp.Load(), "")
	}
	s := h.client.Standing()
	note := "breaker " + s.Breaker
	if s.Closed && s.Reason != "" {
		note += ", " + string(s.Reason)
	}
	part("upstream", !s.Closed, note)
	if h.stopping.Load() {
		r.State = api.Stopping
	}
	return r
}
