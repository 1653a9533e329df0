package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"validator-gw/internal/api"
	"validator-gw/internal/settings"
)

// Stop's phases share one grace time, and each has a limit of its own, so that a part that hangs can't take what
// the next one needs.
const (
	graceTime    = 14 * time.Second // under the 15 s that are promised
	graceHTTP    = 5 * time.Second
	graceFlights = 3 * time.Second
)

// Run serves until ctx ends, then stops in order: not ready, the HTTP requests in work, the feeding of lists, the loop (what it holds is
// finished or given back), the checks and callbacks in flight, what is to be written behind, the stores. It returns nil after a clean stop.
func (g *Gateway) Run(ctx context.Context) error {
	defer g.closeStores()
	detached := context.WithoutCancel(ctx)
	behindCtx, stopBehind := context.WithCancel(detached)
	behind := run(func() { _ = g.cache.Run(behindCtx) })
	listsCtx, stopLists := context.WithCancel(detached)
	lists := run(func() { _ = g.lists.Run(listsCtx) })
	loopCtx, stopLoop := context.WithCancel(detached)
	loop := run(func() { _ = g.loop.Run(loopCtx) })
	sendCtx, stopSend := context.WithCancel(detached)
	send := run(func() { _ = g.sender.Run(sendCtx) })
	sideCtx, stopSide := context.WithCancel(detached)
	side := run(func() { _ = g.settings.Run(sideCtx) }, func() { g.health.run(sideCtx) }, func() { g.followSettings(sideCtx) },
		func() { g.watchRedis(sideCtx) }, func() { g.shareRate(sideCtx) }, func() { g.followErasures(sideCtx) },
		func() { _ = g.service.Run(sideCtx) })

	var fault error
	select {
	case <-ctx.Done():
	case fault = <-g.failed:
		g.log.ErrorContext(ctx, "server ended", "error", fault)
	}

	g.log.InfoContext(ctx, "stopping")
	grace, cancel := context.WithTimeout(detached, graceTime)
	defer cancel()
	g.health.stop()
	g.api.Drain()
	if err := shutdown(grace, graceHTTP, g.server); err != nil {
		g.log.WarnContext(ctx, "requests were still in work at the end of their grace time", "error", err)
		_ = g.server.Close()
	}
	stopLists()
	<-lists // its calls end with its context
	stopLoop()
	<-loop     // its own writes have time-outs
	stopSend() // what is on the wire has as long as the checks in flight
	flights, cancelFlights := context.WithTimeout(grace, graceFlights)
	defer cancelFlights()
	if err := g.service.Close(flights); err != nil {
		g.stopFlights() // calls that are on the wire are cut off; their rows are there
		_ = g.service.Close(grace)
	}
	g.stopFlights()
	<-send
	stopBehind()
	<-behind
	stopSide()
	<-side
	_ = shutdown(grace, time.Second, g.metrics)
	g.stopServing()
	g.log.InfoContext(ctx, "stopped")
	return fault
}

// serve begins to serve both listeners.
func (g *Gateway) serve() {
	g.failed = make(chan error, 2)
	g.server, g.metrics = api.Server(g.api.Handler(), g.log), g.metricsServer()
	one := func(s *http.Server, l net.Listener) {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			g.failed <- err
		}
	}
	g.served = run(func() { one(g.server, g.lis) }, func() { one(g.metrics, g.mls) })
}

// stopServing closes what is left of the servers, or the listeners when nobody served them yet.
func (g *Gateway) stopServing() {
	if g.server == nil {
		_ = g.lis.Close()
		_ = g.mls.Close()
		return
	}
	_ = g.server.Close()
	_ = g.metrics.Close()
	<-g.served
}

// run starts each function and closes done when all have returned.
func run(functions ...func()) (done <-chan struct{}) {
	all := make(chan struct{})
	left := make(chan struct{}, len(functions))
	for _, f := range functions {
		go func() {
			f()
			left <- struct{}{}
		}()
	}
	go func() {
		for range functions {
			<-left
		}
		close(all)
	}()
	return all
}

func shutdown(ctx context.Context, limit time.Duration, s *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return s.Shutdown(ctx)
}

func (g *Gateway) metricsServer() *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(g.registry, promhttp.HandlerOpts{EnableOpenMetrics: true, Registry: g.registry,
		MaxRequestsInFlight: 3, Timeout: 10 * time.Second}))
	return api.Server(mux, g.log)
}

// followSettings hands on the settings that a part does not read by itself.
func (g *Gateway) followSettings(ctx context.Context) {
	tick := time.NewTicker(settings.PollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			g.store.SetMaxOpen(int64(g.settings.Current().Queue.MaxOpen))
		}
	}
}

// watchRedis notices when a Redis that was left alone answers again.
func (g *Gateway) watchRedis(ctx context.Context) {
	if g.redis != nil {
		_ = g.redis.Run(ctx)
	}
}

// shareRate keeps this replica known to the others that share the upstream's rate; in the end it takes leave of them.
func (g *Gateway) shareRate(ctx context.Context) {
	if g.fleet != nil {
		_ = g.fleet.Run(ctx)
	}
}

func (g *Gateway) closeStores() {
	if g.stopFlights != nil {
		g.stopFlights()
	}
	if g.answers != nil {
		g.answers.Close()
	}
	if g.client != nil {
		g.client.Close()
	}
	if g.cache != nil {
		g.cache.Close()
	}
	if g.redis != nil {
		_ = g.redis.Close()
	}
	if g.store != nil {
		g.store.Close()
	}
}
