// Package api is the HTTP edge: it turns bytes into a validate.Request and an answer or an error into bytes, keeps the
// key, logs one line a request and counts it. The wire is openapi.yaml, from which the types and the glue in
// internal/api/openapi are generated; tests hold the two together.
//
// What a caller sends appears in no log line, no metric and no error of this package: an address goes into the
// validator and back into the body of its own answer, nowhere else.
//
// Parts of the contract that this version does not do are answered with 501.
package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"regexp"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/secret"
	"validator-gw/internal/validate"
)

// validator answers. Its errors are those of package validate; others are answered as faults of the gateway and
// logged, so they hold no address.
type validator interface {
	// Validate answers within the budget of the flow and of the request.
	Validate(ctx context.Context, req validate.Request) (validate.Answer, error)
	// Revalidate makes durable that an address is to be checked again.
	Revalidate(ctx context.Context, e validate.Event) (validate.Scheduled, error)
	// Status tells what is known of a check.
	Status(ctx context.Context, q validate.Inquiry) (validate.Answer, error)
	// Wait is Status once the check is final, or after d, whichever comes first.
	Wait(ctx context.Context, q validate.Inquiry, d time.Duration) (validate.Answer, error)
	// Erase removes all that is kept of an address.
	Erase(ctx context.Context, raw string) (validate.Removed, error)
	// Retry makes a dead review open and due again.
	Retry(ctx context.Context, id string) error
	// HasFlow says whether the settings have a flow of this name.
	HasFlow(name string) bool
	// HasCallback says whether the settings have a callback of this name.
	HasCallback(name string) bool
}

// health tells how the process is, for GET /readyz. It answers at once, from what is known.
type health interface {
	Readiness() Readiness
}

// Readiness is the state of the process and of what it leans on.
type Readiness struct {
	State State
	Parts []Part
}

// State is the state of the process.
type State string

// The states. Ready and Degraded take traffic; Starting and Stopping don't.
const (
	Ready    State = "ready"
	Degraded State = "degraded"
	Starting State = "starting"
	Stopping State = "stopping"
)

// Part is one thing that the gateway leans on. It is shown to anyone who asks: no secrets, hosts or addresses.
type Part struct {
	Name   string // such as "store", "redis", "upstream"
	Status PartStatus
	Note   string // a few words for a person
}

// Settings are the settings of the process, for GET /admin/settings.
type Settings struct {
	// Applied and Refused count changes of the settings file since the start; Stale says that the file as it is now was
	// refused.
	Applied, Refused uint64
	Stale            bool
	Warnings         []string
	Settings         []Setting
}

// Setting is one setting as text. It holds no secret.
type Setting struct {
	Path, Value, Default, Origin string
	Live                         bool // false: a change takes a restart
	Bounds, Doc                  string
}

// PartStatus is the state of a part.
type PartStatus string

// The states of a part. Off: it is not configured.
const (
	Up   PartStatus = "up"
	Down PartStatus = "down"
	Off  PartStatus = "off"
)

// Key is a client's key, with every scope.
type Key struct {
	// Name stands for the key in log lines and in the store: letters, digits and ._:- only, at most 64.
	Name string
	Key  secret.Text
}

// Config holds the settings of the edge. The zero value is usable and open: no key is asked for.
type Config struct {
	// Keys are the clients. None means that everyone is let in, as the client "anonymous": only for a loopback
	// listener.
	Keys []Key
	// Lists are those of addresses; nil: they can't be reached.
	Lists Lists
	// Settings tells the settings in force; nil has none. Safe for concurrent use.
	Settings func() Settings
	// Log takes one line a request; nil discards.
	Log *slog.Logger
	// RoutineLines bounds the lines of routine requests in a second, read at each; 0 is no bound, as is nil. A request that
	// asked the upstream, left a review or that somebody has to look into is not routine. Safe for concurrent use.
	RoutineLines func() int
	// Registerer takes the metrics; nil registers them nowhere.
	Registerer prometheus.Registerer
	// MaxBody is the most bytes of a request's body; 16 KiB when zero.
	MaxBody int64
	// RetryAfterSaturated and RetryAfterStore are the least times after which a client should come back when the gateway
	// is full, and when its store is away; 1 s and 3 s when zero. Up to as much again is added at random.
	RetryAfterSaturated time.Duration
	RetryAfterStore     time.Duration
	// Rand returns a number in [0, 1), for that; math/rand/v2 when nil. Safe for concurrent use.
	Rand func() float64
	// RequestID names a request that came without a usable X-Request-Id; a UUIDv7 when nil. Safe for concurrent use. It
	// must match the pattern of the document.
	RequestID func() string
}

// DefaultMaxBody bounds a request's body: the longest address has 254 bytes, the rest is room.
const DefaultMaxBody = 16 << 10

// API is the edge. Safe for concurrent use.
type API struct {
	validator validator
	health    health
	config    Config
	keys      []hashedKey
	metrics   *metrics
	flood     flood
	routes    []*route
	handler   http.Handler

	draining chan struct{}
	drain    sync.Once
}

var clientName = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,64}$`)

// New returns the edge over v and h. Its errors name every fault of the configuration and no key.
func New(v validator, h health, c Config) (*API, error) {
	var faults []error
	names := make(map[string]bool)
	sums := make(map[[32]byte]bool)
	a := &API{validator: v, health: h, draining: make(chan struct{})}
	for _, k := range c.Keys {
		hashed := hashKey(k)
		switch {
		case !clientName.MatchString(k.Name):
			faults = append(faults, errors.New("a key's name may have letters, digits and ._:- only, 64 at most"))
		case names[k.Name]:
			faults = append(faults, fmt.Errorf("two keys are named %s", k.Name))
		case k.Key == "":
			faults = append(faults, fmt.Errorf("key %s is empty", k.Name))
		case sums[hashed.sum]:
			faults = append(faults, fmt.Errorf("key %s is the same as another", k.Name))
		}
		names[k.Name], sums[hashed.sum] = true, true
		a.keys = append(a.keys, hashed)
	}
	if c.MaxBody < 0 || c.RetryAfterSaturated < 0 || c.RetryAfterStore < 0 {
		faults = append(faults, errors.New("limits and times can't be negative"))
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("api: %w", errors.Join(faults...))
	}

	c.MaxBody = cmp.Or(c.MaxBody, DefaultMaxBody)
	c.RetryAfterSaturated = cmp.Or(c.RetryAfterSaturated, time.Second)
	c.RetryAfterStore = cmp.Or(c.RetryAfterStore, 3*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.RoutineLines == nil {
		c.RoutineLines = func() int { return 0 }
	}
	if c.Settings == nil {
		c.Settings = func() Settings { return Settings{} }
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	if c.RequestID == nil {
		c.RequestID = newRequestID
	}
	a.config = c
	a.routes = a.table()
	var err error
	if a.metrics, err = newMetrics(c.Registerer, a.routes); err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	a.handler = a.router()
	return a, nil
}

// Handler returns the handler of all paths.
func (a *API) Handler() http.Handler { return a.handler }

// Drain ends the long polls that wait in GET /status, each with the answer that there is by now, and lets no later one
// wait. Call it when shutting down, before the server's Shutdown.
func (a *API) Drain() { a.drain.Do(func() { close(a.draining) }) }
