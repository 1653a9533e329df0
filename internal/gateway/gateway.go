// Package gateway builds every part of the running gateway and ties them together: the only place that knows them
// all. The program and the tests that run a whole gateway build it by the same New, so that what is tested is what
// runs. It holds wiring, the order of start and stop, and no logic of its own.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"validator-gw/internal/admission"
	"validator-gw/internal/api"
	"validator-gw/internal/cache"
	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/ratelimit"
	"validator-gw/internal/revalidate"
	"validator-gw/internal/secret"
	"validator-gw/internal/settings"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail"
)

// Config is what is fixed when the process starts.
type Config struct {
	// Mode is "dev" or "serve"; it is shown and changes nothing.
	Mode string
	// DatabaseURL is Postgres; empty: SQLite in DataDir.
	DatabaseURL secret.Text
	// RedisURL is the cache that replicas share; empty: a single node.
	RedisURL secret.Text
	// RedisMode is single, sentinel or cluster.
	RedisMode string
	// DataDir holds SQLite's file.
	DataDir string
	// UpstreamURL, UpstreamKey and UpstreamProfile say whom to ask.
	UpstreamURL     string
	UpstreamKey     secret.Text
	UpstreamProfile string
	// Secret has at least secret.MinLength bytes; every key is derived from it. SecretPrevious, or nil, is read only.
	Secret, SecretPrevious []byte
	// APIKey is the one client's key; empty lets everyone in, which only dev does.
	APIKey secret.Text
	// Migrate brings the schema up first.
	Migrate bool
	// AllowUnsafe accepts a Postgres that may lose what it committed.
	AllowUnsafe bool
	// Version is shown in build_info.
	Version string
}

// Deps are what the gateway must not make by itself, so that tests can.
type Deps struct {
	// Listener and MetricsListener are served and closed by Run.
	Listener, MetricsListener net.Listener
	// Transport carries calls to the upstream; nil takes verimail.NewTransport.
	Transport http.RoundTripper
	// Rand returns numbers in [0, 1), safe for concurrent use; nil takes math/rand/v2.
	Rand func() float64
	Log  *slog.Logger
	// Settings are the live ones; Run keeps them so.
	Settings *settings.Live
}

// ClientName is what the one client of Config.APIKey is called.
const ClientName = "default"

// store is what the gateway asks of a durable store; both of fallback's have it.
type store interface {
	Lookup(ctx context.Context, fp normalize.Fingerprint) (fallback.Found, error)
	Record(ctx context.Context, e fallback.Entry) (fallback.Review, error)
	SettleOpen(ctx context.Context, fp normalize.Fingerprint, v verdict.Verdict, trail []verdict.Attempt) (string, bool, error)
	Review(ctx context.Context, id string) (fallback.Review, error)
	Verdict(ctx context.Context, id string) (fallback.Stored, error)
	Watchers(ctx context.Context, id string) ([]fallback.Watcher, error)
	Claim(ctx context.Context, r fallback.ClaimRequest) (fallback.ClaimResult, error)
	Heartbeat(ctx context.Context, id string, token int64, lease time.Duration) error
	GiveBack(ctx context.Context, claims []fallback.Claim) error
	Settle(ctx context.Context, c fallback.Claim, v verdict.Verdict, trail []verdict.Attempt) error
	Postpone(ctx context.Context, c fallback.Claim, p fallback.Postponement) error
	Kill(ctx context.Context, c fallback.Claim, reason verdict.Reason) error
	Hasten(ctx context.Context, limit int, spread time.Duration) (int, error)
	PutVerdicts(ctx context.Context, batch []fallback.Stored) error
	Stats(ctx context.Context) (fallback.Stats, error)
	Sweep(ctx context.Context, r fallback.Retention) (int, error)
	Ping(ctx context.Context) error
	SetMaxOpen(n int64)
	Close()
}

// Gateway is one gateway, built and not yet running.
type Gateway struct {
	cfg      Config
	log      *slog.Logger
	settings *settings.Live
	lis, mls net.Listener

	store       store
	redis       *cache.Redis // or nil
	cache       *cache.Cache
	client      *verimail.Client
	service     *validate.Service
	loop        *revalidate.Loop
	api         *api.API
	registry    *prometheus.Registry
	health      *health
	stopFlights context.CancelFunc
}

// New opens the stores and builds every part. A database that can't be reached is tried for a minute; wrong
// credentials and a schema that does not fit end it at once. Close what it returns by running it; after an error
// nothing is left open but the listeners, which stay the caller's.
func New(ctx context.Context, cfg Config, deps Deps) (_ *Gateway, err error) {
	if deps.Rand == nil {
		deps.Rand = rand.Float64
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	g := &Gateway{cfg: cfg, log: deps.Log, settings: deps.Settings, lis: deps.Listener, mls: deps.MetricsListener, registry: prometheus.NewRegistry()}
	defer func() {
		if err != nil {
			g.closeStores()
		}
	}()
	g.registerProcess()
	keys, err := deriveKeys(cfg.Secret, cfg.SecretPrevious)
	if err != nil {
		return nil, err
	}
	if g.store, err = g.openStore(ctx, keys.sealer, deps.Rand); err != nil {
		return nil, err
	}
	if cfg.RedisURL != "" {
		if g.redis, err = cache.OpenRedis(cache.RedisConfig{URL: cfg.RedisURL, Mode: cfg.RedisMode, KeyID: keys.id}); err != nil {
			return nil, err
		}
	}
	t := tunings{deps.Settings}
	g.cache, err = cache.New(verdictStore{g.store}, cache.Config{Size: deps.Settings.Current().Cache.L1Size, Redis: g.redis, Tuning: t.cache,
		Rand: deps.Rand, Log: deps.Log, Registerer: g.registry})
	if err != nil {
		return nil, err
	}
	g.client, err = verimail.New(verimail.Config{Profile: cfg.UpstreamProfile, URL: cfg.UpstreamURL, Key: cfg.UpstreamKey, Transport: deps.Transport,
		Limiter: ratelimit.NewLocal(t.limits), Seal: func(text string) []byte { return keys.sealer.Seal(text, suggestionContext) },
		Tuning: t.client, Rand: deps.Rand, Log: deps.Log, Registerer: g.registry})
	if err != nil {
		return nil, err
	}
	// Flights outlive requests and, for a moment, the stop: their context ends only when Run says so.
	flights, stop := context.WithCancel(context.WithoutCancel(ctx))
	g.stopFlights = stop
	g.service, err = validate.New(flights, keys.prints, g.cache, g.store, g.client, admission.NewGate(t.admission), validate.Config{
		Flow: t.flow, Background: t.background, LateTimeout: func() time.Duration { return deps.Settings.Current().LateTimeout },
		Open:     func(sealed []byte) (string, error) { return keys.sealer.Open(sealed, suggestionContext) },
		Recorded: func(due time.Time) { g.loop.Due(due) },
		NewID:    newID, Rand: deps.Rand, Log: deps.Log, Registerer: g.registry})
	if err != nil {
		return nil, err
	}
	g.loop, err = revalidate.New(g.store, g.service, g.cache, revalidate.Config{Upstream: g.upstream, Tuning: t.loop, Rand: deps.Rand,
		Log: deps.Log, Registerer: g.registry})
	if err != nil {
		return nil, err
	}
	g.health = newHealth(g.store, g.storeKind(), g.redis, g.client, g.registry)
	var clients []api.Key
	if cfg.APIKey != "" {
		clients = []api.Key{{Name: ClientName, Key: cfg.APIKey}}
	}
	g.api, err = api.New(g.service, g.health, api.Config{Keys: clients, Log: deps.Log, Registerer: g.registry, Rand: deps.Rand})
	if err != nil {
		return nil, err
	}
	return g, nil
}

func newID() string { return uuid.Must(uuid.NewV7()).String() } // its only error is that of crypto/rand, which ends the program

func (g *Gateway) storeKind() string {
	if g.cfg.DatabaseURL == "" {
		return "sqlite"
	}
	return "postgres"
}

// upstream tells the loop what it wants to know of the upstream.
func (g *Gateway) upstream() revalidate.Upstream {
	s := g.client.Standing()
	return revalidate.Upstream{Closed: s.Closed, Until: s.Until, Probing: s.Probing}
}

func (g *Gateway) registerProcess() {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "validator_gw", Name: "build_info", Help: "Always 1."}, []string{"version"})
	info.WithLabelValues(g.cfg.Version).Set(1)
	g.registry.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "validator_gw", Name: "settings_applied_total",
			Help: "Changes of the settings file that took effect."}, func() float64 { return float64(g.settings.Stats().Applied) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "validator_gw", Name: "settings_refused_total",
			Help: "Changes of the settings file that were refused."}, func() float64 { return float64(g.settings.Stats().Refused) }))
}

// Stop's phases share one grace time, and each has a limit of its own, so that a part that hangs can't take what
// the next one needs.
const (
	graceTime    = 14 * time.Second // under the 15 s that are promised
	graceHTTP    = 5 * time.Second
	graceFlights = 3 * time.Second
)

// Run serves until ctx ends, then stops in order: not ready, the HTTP requests in work, the loop (what it holds is
// finished or given back), the checks in flight, what is to be written behind, the stores. It returns nil after a clean stop.
func (g *Gateway) Run(ctx context.Context) error {
	defer g.closeStores()
	detached := context.WithoutCancel(ctx)
	failed := make(chan error, 2)

	server := api.Server(g.api.Handler(), g.log)
	metrics := g.metricsServer()
	serve := func(s *http.Server, l net.Listener) {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	}
	served := run(func() { serve(server, g.lis) }, func() { serve(metrics, g.mls) })
	behindCtx, stopBehind := context.WithCancel(detached)
	behind := run(func() { _ = g.cache.Run(behindCtx) })
	loopCtx, stopLoop := context.WithCancel(detached)
	loop := run(func() { _ = g.loop.Run(loopCtx) })
	sideCtx, stopSide := context.WithCancel(detached)
	side := run(func() { _ = g.settings.Run(sideCtx) }, func() { g.health.run(sideCtx) }, func() { g.followSettings(sideCtx) })

	var fault error
	select {
	case <-ctx.Done():
	case fault = <-failed:
		g.log.ErrorContext(ctx, "server ended", "error", fault)
	}

	g.log.InfoContext(ctx, "stopping")
	grace, cancel := context.WithTimeout(detached, graceTime)
	defer cancel()
	g.health.stop()
	g.api.Drain()
	if err := shutdown(grace, graceHTTP, server); err != nil {
		g.log.WarnContext(ctx, "requests were still in work at the end of their grace time", "error", err)
		_ = server.Close()
	}
	stopLoop()
	<-loop // its own writes have time-outs
	flights, cancelFlights := context.WithTimeout(grace, graceFlights)
	defer cancelFlights()
	if err := g.service.Close(flights); err != nil {
		g.stopFlights() // calls that are on the wire are cut off; their rows are there
		_ = g.service.Close(grace)
	}
	g.stopFlights()
	stopBehind()
	<-behind
	stopSide()
	<-side
	_ = shutdown(grace, time.Second, metrics)
	_ = metrics.Close()
	<-served
	g.log.InfoContext(ctx, "stopped")
	return fault
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

func (g *Gateway) closeStores() {
	if g.stopFlights != nil {
		g.stopFlights()
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

// Registry gives tests the metrics.
func (g *Gateway) Registry() *prometheus.Registry { return g.registry }

// connectFor is how long a database that can't be reached is tried at the start.
const connectFor = time.Minute

func (g *Gateway) openStore(ctx context.Context, sealer *secret.Sealer, rand func() float64) (store, error) {
	maxOpen := int64(g.settings.Current().Queue.MaxOpen)
	if g.cfg.DatabaseURL == "" {
		return opened(fallback.OpenSQLite(ctx, fallback.SQLiteConfig{Path: filepath.Join(g.cfg.DataDir, "validator-gw.db"), Sealer: sealer,
			MaxOpen: maxOpen, Rand: rand, Registerer: g.registry}))
	}
	ctx, cancel := context.WithTimeout(ctx, connectFor)
	defer cancel()
	for wait := 250 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		s, err := g.openPostgres(ctx, sealer, maxOpen)
		if err == nil || final(err) || ctx.Err() != nil {
			return s, err
		}
		g.log.WarnContext(ctx, "database can't be reached; trying on for a minute at most", "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func (g *Gateway) openPostgres(ctx context.Context, sealer *secret.Sealer, maxOpen int64) (store, error) {
	if g.cfg.Migrate {
		if err := fallback.MigratePostgres(ctx, g.cfg.DatabaseURL); err != nil {
			return nil, fmt.Errorf("migrate: %w", err)
		}
	}
	return opened(fallback.OpenPostgres(ctx, fallback.PostgresConfig{URL: g.cfg.DatabaseURL, Sealer: sealer, MaxOpen: maxOpen,
		AllowUnsafe: g.cfg.AllowUnsafe, Registerer: g.registry}))
}

// opened keeps a nil pointer from becoming a store that is not nil.
func opened[S store](s S, err error) (store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Migrate brings the schema of the configured store up to this program's.
func Migrate(ctx context.Context, cfg Config, log *slog.Logger) error {
	if cfg.DatabaseURL == "" {
		return fallback.MigrateSQLite(ctx, filepath.Join(cfg.DataDir, "validator-gw.db"))
	}
	log.InfoContext(ctx, "migrating", "store", "postgres")
	return fallback.MigratePostgres(ctx, cfg.DatabaseURL)
}

// verdictStore hands the cache's batches to a store.
type verdictStore struct{ store store }

// PutVerdicts implements what package cache asks for.
func (v verdictStore) PutVerdicts(ctx context.Context, batch []cache.Stored) error {
	out := make([]fallback.Stored, len(batch))
	for i, s := range batch {
		out[i] = fallback.Stored(s)
	}
	return v.store.PutVerdicts(ctx, out)
}

// suggestionContext binds sealed suggestions to their use.
const suggestionContext = "suggestion"

// keys are derived from the operator's secret, one for each use.
type keys struct {
	prints *normalize.Fingerprinter
	sealer *secret.Sealer
	// id names the fingerprint key in Redis without telling anything of it.
	id string
}

func deriveKeys(master, previous []byte) (keys, error) {
	fingerprint, err := secret.Derive(master, "fingerprint")
	if err != nil {
		return keys{}, err
	}
	id, err := secret.Derive(master, "key-id")
	if err != nil {
		return keys{}, err
	}
	row, err := secret.Derive(master, "row")
	if err != nil {
		return keys{}, err
	}
	rows := [][]byte{row}
	if previous != nil {
		old, err := secret.Derive(previous, "row")
		if err != nil {
			return keys{}, fmt.Errorf("previous secret: %w", err)
		}
		rows = append(rows, old)
	}
	sealer, err := secret.NewSealer(rows...)
	if err != nil {
		return keys{}, err
	}
	return keys{prints: normalize.NewFingerprinter(fingerprint), sealer: sealer, id: fmt.Sprintf("%x", id[:3])}, nil
}

// tunings translate the settings into each part's own. They are read at each use, so a change takes effect with the next.
type tunings struct{ live *settings.Live }

func (t tunings) cache() cache.Tuning {
	c := t.live.Current().Cache
	return cache.Tuning{Valid: cache.TTL(c.Valid), Invalid: cache.TTL(c.Invalid), Risky: cache.TTL(c.Risky), MailboxFull: cache.TTL(c.MailboxFull),
		Unresolved: cache.TTL(c.Unresolved), Jitter: c.Jitter, MarkerMin: c.Marker.Min, MarkerMax: c.Marker.Max}
}

func (t tunings) limits() ratelimit.Limits {
	u := t.live.Current().Upstream
	return ratelimit.Limits{Rate: float64(u.Rate), Burst: u.Burst, Reserve: u.InteractiveReserve, Floor: u.BackgroundFloor}
}

func (t tunings) client() verimail.Tuning {
	s := t.live.Current()
	class := func(b settings.Backoff) verimail.ClassTuning {
		return verimail.ClassTuning{Base: b.Base, Max: b.Max, Jitter: b.Jitter, AttemptTimeout: b.AttemptTimeout}
	}
	b := s.Breaker
	return verimail.Tuning{
		Interactive: class(s.Retry.Backoff), Background: class(s.Background.Retry),
		RetryBudgetRatio: s.Retry.BudgetRatio, RetryOnTimeout: s.Retry.OnTimeout, LateTimeout: s.LateTimeout,
		RetryAfterMax: s.RetryAfter.Max, MaxInFlight: s.Upstream.MaxInFlight,
		Breaker: verimail.BreakerTuning{ConsecutiveFailures: b.ConsecutiveFailures, MinSpan: b.MinSpan, Window: b.Window, MinSamples: b.MinSamples,
			FailureRatio: b.FailureRatio, Cooldown: b.Cooldown, Probes: b.Probes, SlowGrace: b.SlowGrace},
	}
}

func (t tunings) admission() admission.Limits {
	i := t.live.Current().Ingress
	if i.Concurrency == 0 {
		return admission.Limits{Concurrency: math.MaxInt}
	}
	return admission.Limits{Concurrency: i.Concurrency, Wait: i.QueueWait}
}

func (t tunings) flow(name string) (validate.Flow, bool) {
	f, ok := t.live.Current().Flows[name]
	return validate.Flow{Budget: f.Budget, MaxRetries: f.MaxRetries, Policy: validate.Policy{OnUnverified: validate.Decision(f.OnUnverified)}}, ok
}

func (t tunings) background() validate.BackgroundPlan {
	b := t.live.Current().Background
	return validate.BackgroundPlan{Budget: b.Budget, MaxRetries: b.MaxRetries}
}

func (t tunings) loop() revalidate.Tuning {
	s := t.live.Current()
	return revalidate.Tuning{Workers: s.Queue.Workers, Batch: s.Queue.Batch, Lease: s.Queue.Lease, Probes: s.Breaker.Probes,
		// What is left of the rate when people take none, and a margin: the spread is a guess, the bucket decides.
		Rate: float64(s.Upstream.Rate) * 0.7}
}
