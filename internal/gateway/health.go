package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/api"
	"validator-gw/internal/cache"
	"validator-gw/internal/fallback"
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
	redis  *cache.Redis
	client *verimail.Client
	kind   string // of the store
	up     *prometheus.GaugeVec

	stopping atomic.Bool
	started  atomic.Bool
	storeUp  atomic.Bool
	redisUp  atomic.Bool
}

func newHealth(s store, kind string, r *cache.Redis, c *verimail.Client, reg prometheus.Registerer) *health {
	h := &health{store: s, kind: kind, redis: r, client: c, up: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "validator_gw",
		Name: "dependency_up", Help: "1 when the last probe was answered."}, []string{"dependency"})}
	reg.MustRegister(h.up)
	return h
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
	switch {
	case h.stopping.Load():
		r.State = api.Stopping
	case !h.started.Load():
		r.State = api.Starting
	}
	return r
}

// Summary tells a person what runs, one line a fact. It holds no secret and no URL that may carry one.
func (g *Gateway) Summary() []string {
	s := g.settings.Current()
	lines := []string{fmt.Sprintf("validator-gw %s (%s)", g.cfg.Version, g.cfg.Mode)}
	add := func(name, format string, args ...any) {
		lines = append(lines, fmt.Sprintf("  %-9s %s", name, fmt.Sprintf(format, args...)))
	}
	if g.cfg.DatabaseURL == "" {
		add("store", "SQLite in %s (one process; set DATABASE_URL for Postgres)", g.cfg.DataDir)
	} else {
		add("store", "Postgres")
	}
	if g.redis == nil {
		add("cache", "in this process, %d entries (single node; set REDIS_URL to share)", s.Cache.L1Size)
	} else {
		add("cache", "in this process, %d entries, and Redis", s.Cache.L1Size)
	}
	add("upstream", "%s at %s", g.cfg.UpstreamProfile, g.client.Host())
	add("limits", "%v to the upstream, burst %d; signup answers within %v; %d requests at a time",
		s.Upstream.Rate, s.Upstream.Burst, s.Flows["signup"].Budget, s.Ingress.Concurrency)
	add("listening", "http://%s (metrics http://%s/metrics)", g.lis.Addr(), g.mls.Addr())
	if g.cfg.APIKey == "" {
		add("keys", "none: everyone who reaches the address is let in")
	}
	for _, w := range s.Warnings() {
		add("warning", "%s", w)
	}
	return lines
}

// final says that trying again can't help: credentials, database name, schema, server settings.
func final(err error) bool {
	if errors.Is(err, fallback.ErrSchema) || errors.Is(err, fallback.ErrWrongSecret) || errors.Is(err, fallback.ErrUnsafeServer) {
		return true
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code[:2] {
		case "08", "53", "57": // connection, resources, shutting down or starting up
			return false
		}
		return true
	}
	// What is neither the server's word nor the network's (a URL that can't be read, say) stays as it is.
	var dial *net.OpError
	var connect *pgconn.ConnectError
	return !errors.As(err, &dial) && !errors.As(err, &connect) && !errors.Is(err, context.DeadlineExceeded)
}
