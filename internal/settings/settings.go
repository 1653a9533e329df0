// Package settings holds what an operator may tune while the gateway runs: budgets, retries, thresholds, rates,
// lifetimes. Settings come from three layers, the later winning: the defaults of this package, one YAML file, and
// the environment. Load reads and checks them and reports every fault at once; Live keeps the current ones and
// swaps them in one step when the file changes. A bad file never changes anything.
//
// What is fixed when the process starts (addresses, stores, credentials) is not here: callers name it as Known, so
// that it is not taken for a misspelt setting. No secret ever passes through this package.
package settings

import (
	"slices"
	"time"

	"validator-gw/internal/normalize"
)

// How a flow's budget is shared out. The bounds of the settings rest on them.
const (
	// RowReserve is the end of a budget that is kept for the durable row and the answer: the upstream gets
	// what is before it.
	RowReserve = 150 * time.Millisecond
	// MinAttempt is the least time that makes a call to the upstream worth starting.
	MinAttempt = 100 * time.Millisecond
)

// OnUnverified is what a flow decides while, or because, nothing is known about an address.
type OnUnverified string

// The two words. Hold is how a flow blocks.
const (
	AcceptPending OnUnverified = "accept_pending"
	Hold          OnUnverified = "hold"
)

// Settings is one complete and checked set. It is read-only once made and safe for concurrent use; Live.Current
// gives a new one after a change. All durations are non-negative.
type Settings struct {
	// Flows by name. Signup and high_risk are always there.
	Flows map[string]Flow
	// Background is the loop that settles reviews.
	Background Background
	// Retry is for the interactive path.
	Retry Retry
	// LateTimeout bounds a call that outlived its callers, from its start.
	LateTimeout time.Duration
	Breaker     Breaker
	Upstream    Upstream
	RetryAfter  RetryAfter
	Cache       Cache
	Queue       Queue
	Backfill    Backfill
	Ingress     Ingress
	Log         Log
	Address     Address
	Lists       Lists
	// Callbacks by name; there are none unless the file names them.
	Callbacks map[string]Callback

	lists    *normalize.Lists  // made of Lists by check
	origins  map[string]string // path to where its value is from
	static   map[string]string // file keys of Known, as text
	warnings []string
}

// Flow is what one kind of form asks for.
type Flow struct {
	// Budget is the time from the request's arrival to its answer.
	Budget time.Duration
	// MaxRetries counts the attempts after the first.
	MaxRetries   int
	OnUnverified OnUnverified
}

// Window is the share of the budget in which the upstream may be asked.
func (f Flow) Window() time.Duration { return f.Budget - RowReserve }

// Backoff spaces attempts: min(Max, Base·2ⁿ) + rand(0, Jitter), n counting from 0.
type Backoff struct {
	Base, Max, Jitter time.Duration
	// AttemptTimeout is how long one attempt is waited for. It goes on as a late call after that.
	AttemptTimeout time.Duration
}

// Background is how a review is checked by the loop.
type Background struct {
	Budget     time.Duration
	MaxRetries int
	Retry      Backoff
}

// Retry is how an interactive check is tried again.
type Retry struct {
	Backoff
	// BudgetRatio is the share of calls that may be retries, beside one a second that is always allowed.
	BudgetRatio float64
	// OnTimeout asks again after a time-out. False, since a call that was read is billed.
	OnTimeout bool
}

// Breaker says when the upstream is left alone and how it is tried again. Either rule trips it: so many failures
// in a row, or the ratio in the window.
type Breaker struct {
	ConsecutiveFailures int
	// Window counts calls; MinSamples is how many of them must be there before FailureRatio is looked at.
	Window, MinSamples int
	FailureRatio       float64
	// Cooldown is varied by ±20 % for each process.
	Cooldown time.Duration
	// Probes is how many calls in a row must succeed before it closes.
	Probes int
	// SlowGrace judges a time-out: answered this long after the attempt's start is a success.
	SlowGrace time.Duration
	// MinSpan: failures in a row trip it only when they span at least this.
	MinSpan time.Duration
}

// Upstream is our own limit towards the upstream, for all replicas that share a Redis, else for one process.
type Upstream struct {
	Rate  Rate
	Burst int
	// Instances is the least number of replicas to assume while Redis is away.
	Instances int
	// InteractiveReserve is the share of the burst that background calls never take; BackgroundFloor the share
	// of rate and burst that is theirs whatever comes in.
	InteractiveReserve, BackgroundFloor float64
	// MaxInFlight bounds the calls in flight of one process, late ones included.
	MaxInFlight int
}

// RetryAfter bounds what the upstream may ask for.
type RetryAfter struct {
	// Max clamps a longer hint.
	Max time.Duration
}

// TTL is how long a verdict is fresh (Soft) and how long it may be served when the upstream is down (Hard).
type TTL struct{ Soft, Hard time.Duration }

// Marker is how long "needs review" is remembered before the upstream may be asked again: a moment between the two.
type Marker struct{ Min, Max time.Duration }

// Cache is how long what is known is kept.
type Cache struct {
	Valid, Invalid, Risky, MailboxFull, Unresolved TTL
	Marker                                         Marker
	// Jitter varies every lifetime by this share, up and down.
	Jitter float64
	// Memory bounds the verdicts kept in the process. Taken at the start only.
	Memory Size
}

// Queue is the durable queue and the loop that works on it.
type Queue struct {
	Workers int
	// Batch is the most rows of one claim.
	Batch int
	// Lease is how long a claimed row is left to its worker.
	Lease time.Duration
	// MaxOpen bounds the open reviews. Backfills stop feeding at 80 % of it.
	MaxOpen int
	// KeepAddress is how long the encrypted address outlives its review.
	KeepAddress time.Duration
}

// Backfill is how lists of addresses are worked off.
type Backfill struct {
	// Share of the upstream's rate that the lists in the hands of one process take together, at most.
	Share float64
	// Keep is how long results and inputs stay after the end.
	Keep time.Duration
	// MaxRows bounds one list.
	MaxRows int
}

// Ingress is who gets in.
type Ingress struct {
	// PerKey limits one client key, PerIP one address of a browser that calls by itself.
	PerKey, PerIP Limit
	// Concurrency bounds the requests at work; 0 is no bound. QueueWait is how long one waits for its turn.
	Concurrency int
	QueueWait   time.Duration
}

// Log is what is written.
type Log struct {
	// RoutinePerSecond bounds the lines of routine requests; 0 is no bound.
	RoutinePerSecond int
}

// Address is what counts as one.
type Address struct {
	// Rules are how a text is read.
	Rules normalize.Rules
	// DedupeKey adds to each answer a key under which the spellings that one provider delivers to one mailbox are equal.
	DedupeKey bool
}

// Lists are the operator's own lists of domains, each with all that is below it. They beat the shipped ones.
type Lists struct {
	// Allow is never disposable and never a typing error; Deny is refused without asking the upstream.
	Allow, Deny []string
	// DenyMajor confirms the entries of Deny under which a great part of all people would be refused.
	DenyMajor []string
}

// Callback is who is told how reviews end.
type Callback struct {
	// URL may hold a token: it is in no log line and no error.
	URL string
	// SecretFile is the path of the file with the key that signs.
	SecretFile string
	// Events are some of the package's Events.
	Events []string
	// AllowPrivate permits targets in private networks and on this machine, and http.
	AllowPrivate bool
}

// untunedCallback is one of which nothing is set.
func untunedCallback() Callback { return Callback{Events: slices.Clone(Events)} }

// Domains returns what the lists, the shipped ones and the operator's, know of domains.
func (s *Settings) Domains() *normalize.Lists { return s.lists }

// day is for lifetimes; clocks that change do not matter to them.
const day = 24 * time.Hour

// Default returns the settings of a gateway that nobody tuned. The caller may change the copy it gets.
func Default() *Settings {
	shipped, _ := normalize.NewLists(normalize.Own{}) // its errors are about the operator's entries
	return &Settings{
		lists:     shipped,
		Callbacks: map[string]Callback{},
		Flows: map[string]Flow{
			"signup":    {Budget: 800 * time.Millisecond, MaxRetries: 2, OnUnverified: AcceptPending},
			"high_risk": {Budget: 950 * time.Millisecond, MaxRetries: 2, OnUnverified: Hold},
		},
		Background: Background{
			Budget:     15 * time.Second,
			MaxRetries: 3,
			Retry: Backoff{
				Base: time.Second, Max: 30 * time.Second, Jitter: time.Second, AttemptTimeout: 10 * time.Second,
			},
		},
		Retry: Retry{
			// Simulated with jitter: two retries from 50 ms recover 0 % of an outage of 400 ms, from 130 ms
			// nearly all.
			Backoff: Backoff{
				Base: 130 * time.Millisecond, Max: 400 * time.Millisecond, Jitter: 60 * time.Millisecond,
				AttemptTimeout: 600 * time.Millisecond,
			},
			BudgetRatio: 0.1,
		},
		LateTimeout: 10 * time.Second,
		Breaker: Breaker{
			ConsecutiveFailures: 5, Window: 30, MinSamples: 20, FailureRatio: 0.5,
			Cooldown: 30 * time.Second, Probes: 3, SlowGrace: 2 * time.Second, MinSpan: time.Second,
		},
		Upstream:   Upstream{Rate: 20, Burst: 20, Instances: 1, InteractiveReserve: 0.5, BackgroundFloor: 0.1, MaxInFlight: 512},
		RetryAfter: RetryAfter{Max: time.Hour},
		Cache: Cache{
			Valid:       TTL{7 * day, 30 * day},
			Invalid:     TTL{24 * time.Hour, 72 * time.Hour},
			Risky:       TTL{7 * day, 30 * day},
			MailboxFull: TTL{time.Hour, 24 * time.Hour},
			Unresolved:  TTL{24 * time.Hour, 24 * time.Hour},
			Marker:      Marker{30 * time.Second, 60 * time.Second},
			Jitter:      0.1,
			Memory:      32 << 20,
		},
		Queue:    Queue{Workers: 8, Batch: 50, Lease: 30 * time.Second, MaxOpen: 1_000_000},
		Backfill: Backfill{Share: 0.5, Keep: 7 * day, MaxRows: 10_000_000},
		Ingress: Ingress{
			PerKey: Limit{1000, 2000}, PerIP: Limit{5, 20},
			Concurrency: 512, QueueWait: 20 * time.Millisecond,
		},
		Log: Log{RoutinePerSecond: 1000},
	}
}

// Warnings are what is allowed and probably not meant, one sentence each, in a stable order.
func (s *Settings) Warnings() []string { return s.warnings }

// Static returns the text that the file has for a Known with this path.
func (s *Settings) Static(path string) (text string, ok bool) {
	text, ok = s.static[path]
	return text, ok
}

// Row is one setting as people read it.
type Row struct {
	// Path is its name in the file, such as retry.base; Env its name in the environment.
	Path, Env string
	// Value is written as the file takes it, but for a URL, of which the path is left out; and so is Default, the value of a gateway that nobody tuned; a flow beside
	// the two that are always there starts as signup. Origin is where Value is from: "default", the file with its line,
	// or the variable's name.
	Value, Default, Origin string
	text                   string // the value as it is
	// Bounds is the legal range in words; Doc says what it does, in one sentence.
	Bounds, Doc string
	// Live is false when a change takes a restart.
	Live bool
}

// Rows lists all settings in the order of the documentation.
func (s *Settings) Rows() []Row {
	fields := fieldsOf(s)
	untuned := Default()
	for name := range s.Callbacks {
		untuned.Callbacks[name] = untunedCallback()
	}
	for name := range s.Flows {
		if _, ok := untuned.Flows[name]; !ok {
			untuned.Flows[name] = untuned.Flows["signup"]
		}
	}
	rows := make([]Row, 0, len(fields))
	for _, f := range fields {
		origin := s.origins[f.path]
		if origin == "" {
			origin = originDefault
		}
		rows = append(rows, Row{
			Path: f.path, Env: envName(f.path), Value: f.shown(f.get(s)), text: f.get(s), Default: f.get(untuned), Origin: origin,
			Bounds: f.bounds, Doc: f.doc, Live: !f.restart,
		})
	}
	return rows
}
