// Package gateway builds every part of the running gateway and ties them together: the only place that knows them
// all. The program and the tests that run a whole gateway build it by the same New, so that what is tested is what
// runs. It holds wiring, the order of start and stop, and no logic of its own.
package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"validator-gw/internal/admission"
	"validator-gw/internal/api"
	"validator-gw/internal/backfill"
	"validator-gw/internal/cache"
	"validator-gw/internal/callback"
	"validator-gw/internal/debounce"
	"validator-gw/internal/flight"
	"validator-gw/internal/idempotency"
	"validator-gw/internal/ratelimit"
	"validator-gw/internal/redisconn"
	"validator-gw/internal/revalidate"
	"validator-gw/internal/secret"
	"validator-gw/internal/settings"
	"validator-gw/internal/validate"
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
	// RedisLookUp bounds a look-up there; 30 ms when zero. More is for tests on busy machines.
	RedisLookUp time.Duration
	// EventWindow says when a burst of events for one address is over; 400 ms and 5 s when zero. More is for the same tests.
	EventWindow debounce.Window
	// DataDir holds SQLite's file.
	DataDir string
	// UpstreamURL (empty: the profile's own), UpstreamKey and UpstreamProfile (a name or a file, as verimail.LoadProfile
	// takes it) say whom to ask.
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
	// Listener and MetricsListener are served and closed by Run. Nil: nobody can come.
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

// Gateway is one gateway, built and not yet running.
type Gateway struct {
	cfg      Config
	log      *slog.Logger
	settings *settings.Live
	lis, mls net.Listener

	store       store
	redis       *redisconn.Conn  // or nil
	fleet       *ratelimit.Fleet // or nil: without Redis the rate is this process's
	cache       *cache.Cache
	answers     *idempotency.Keeper
	client      *verimail.Client
	service     *validate.Service
	loop        *revalidate.Loop
	sender      *callback.Sender
	lists       *backfill.Engine
	api         *api.API
	registry    *prometheus.Registry
	health      *health
	stopFlights context.CancelFunc

	server, metrics *http.Server
	served          <-chan struct{} // both servers have ended
	failed          chan error      // why one ended by itself
}

// New serves the listeners, opens the stores and builds every part. Until the store is open, requests are answered
// "starting" and 503. A database that can't be reached is tried for a minute; wrong credentials and a schema that does
// not fit end it at once. Close what it returns by running it; after an error everything is closed, the listeners too.
func New(ctx context.Context, cfg Config, deps Deps) (_ *Gateway, err error) {
	if deps.Rand == nil {
		deps.Rand = rand.Float64
	}
	if deps.Listener == nil {
		deps.Listener = newSilence()
	}
	if deps.MetricsListener == nil {
		deps.MetricsListener = newSilence()
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	g := &Gateway{cfg: cfg, log: deps.Log, settings: deps.Settings, lis: deps.Listener, mls: deps.MetricsListener, registry: prometheus.NewRegistry()}
	defer func() {
		if err != nil {
			g.stopServing()
			g.closeStores()
		}
	}()
	g.registerProcess()
	t := tunings{deps.Settings}
	g.health = newHealth(g.storeKind(), g.registry)
	front := &late{flow: t.flow, callback: t.hasCallback}
	var clients []api.Key
	if cfg.APIKey != "" {
		clients = []api.Key{{Name: ClientName, Key: cfg.APIKey}}
	}
	g.api, err = api.New(front, g.health, api.Config{Keys: clients, Lists: lateLists{front}, Settings: t.shown, Log: deps.Log, RoutineLines: t.routineLines,
		Registerer: g.registry, Rand: deps.Rand})
	if err != nil {
		return nil, err
	}
	g.serve()
	keys, err := deriveKeys(cfg.Secret, cfg.SecretPrevious)
	if err != nil {
		return nil, err
	}
	if g.store, err = g.openStore(ctx, keys.sealer, deps.Rand); err != nil {
		return nil, err
	}
	var shared *cache.Redis
	var leases *flight.Leases
	var bursts *debounce.Fleet
	var sessions *debounce.Latest
	if cfg.RedisURL != "" {
		if g.redis, err = redisconn.Open(redisconn.Config{URL: cfg.RedisURL, Mode: cfg.RedisMode, LookUp: cfg.RedisLookUp}); err != nil {
			return nil, err
		}
		shared = cache.NewRedis(g.redis, keys.id, "", keys.formerIDs...)
		leases = flight.NewLeases(g.redis, shared.Prefix())
		sessions = debounce.NewLatest(g.redis, "typing:"+keys.id+":", validate.MaxSessions)
		bursts, err = debounce.NewFleet(g.redis, debounce.FleetConfig{Name: "revalidate:" + keys.id, Window: validate.WindowOr(cfg.EventWindow),
			Fire: func(ctx context.Context, fps []string) error { return g.service.Ripe(ctx, fps) },
			Rand: deps.Rand, Log: deps.Log, Registerer: g.registry})
		if err != nil {
			return nil, err
		}
	}
	g.cache, err = cache.New(verdictStore{g.store}, cache.Config{Memory: int64(deps.Settings.Current().Cache.Memory), Redis: shared, Tuning: t.cache,
		Rand: deps.Rand, Log: deps.Log, Registerer: g.registry})
	if err != nil {
		return nil, err
	}
	contract, err := verimail.LoadProfile(cfg.UpstreamProfile)
	if err != nil {
		return nil, err
	}
	upstream := verimail.Config{Contract: contract, URL: cmp.Or(cfg.UpstreamURL, contract.URL()), Key: cfg.UpstreamKey, Transport: deps.Transport,
		Seal:       func(text string) []byte { return keys.sealer.Seal(text, suggestionContext) },
		ReviewsDue: func() bool { return g.loop.HasDue() },
		Tuning:     t.client, Rand: deps.Rand, Log: deps.Log, Registerer: g.registry}
	var spare func(context.Context) int
	if g.redis != nil {
		g.fleet = ratelimit.NewFleet(g.redis, t.limits, ratelimit.FleetConfig{Name: rateName(upstream.URL), Log: deps.Log, Registerer: g.registry})
		upstream.Limiter, spare = g.fleet, g.fleet.Spare
	} else {
		local := ratelimit.NewLocal(t.limits)
		local.Register(g.registry)
		upstream.Limiter, spare = local, local.Spare
	}
	if g.client, err = verimail.New(upstream); err != nil {
		return nil, err
	}
	g.answers, err = idempotency.New(g.store, idempotency.Config{Key: keys.answers, Rand: deps.Rand, Log: deps.Log, Registerer: g.registry})
	if err != nil {
		return nil, err
	}
	// Flights outlive requests and, for a moment, the stop: their context ends only when Run says so.
	flights, stop := context.WithCancel(context.WithoutCancel(ctx))
	g.stopFlights = stop
	ends := telling{g.store, func() { g.sender.Wake() }}
	g.service, err = validate.New(flights, keys.prints, g.cache, ends, g.client, admission.NewGate(t.admission), validate.Config{
		Flow: t.flow, Background: t.background, Address: t.address, LateTimeout: func() time.Duration { return deps.Settings.Current().LateTimeout },
		Open:   func(sealed []byte) (string, error) { return keys.sealer.Open(sealed, suggestionContext) },
		Keys:   g.answers,
		Leases: leases,
		Window: cfg.EventWindow,
		Bursts: bursts, Sessions: sessions, SessionKey: keys.sessions,
		Profile:  g.client.ProfileVersion(),
		Seal:     func(text string) []byte { return keys.sealer.Seal(text, suggestionContext) },
		Recorded: func(due time.Time) { g.loop.Due(due) },
		NewID:    newID, Rand: deps.Rand, Log: deps.Log, Registerer: g.registry})
	if err != nil {
		return nil, err
	}
	g.loop, err = revalidate.New(ends, g.service, g.cache, revalidate.Config{Upstream: g.upstream, Spare: spare, Tuning: t.loop, Rand: deps.Rand,
		Log: deps.Log, Registerer: g.registry})
	if err != nil {
		return nil, err
	}
	g.sender, err = callback.New(g.store, callback.Config{Names: t.callbacks, Target: t.target, Data: g.told, Rand: deps.Rand, Log: deps.Log,
		Registerer: g.registry})
	if err != nil {
		return nil, err
	}
	g.lists, err = backfill.New(g.store, readings{g.service, keys.prints}, backfill.Config{Tuning: t.lists,
		Closed: func() bool { return g.client.Standing().Closed }, Fed: func() { g.loop.Due(time.Now()) }, DigestKey: keys.inputs,
		NewID: newID, Rand: deps.Rand, Log: deps.Log, Registerer: g.registry})
	if err != nil {
		return nil, err
	}
	g.health.watch(g.store, g.redis, g.client)
	if g.fleet != nil {
		g.fleet.Join(ctx)
	}
	front.gateway.Store(g)
	front.service.Store(g.service)
	return g, nil
}

// rateName names the rate that replicas share: by whom they ask, and not by a secret, which differs between them while it
// is being rotated.
func rateName(url string) string {
	sum := sha256.Sum256([]byte(url))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
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

// Registry gives tests the metrics.
func (g *Gateway) Registry() *prometheus.Registry { return g.registry }
