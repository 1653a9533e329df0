// Package backfill works off lists of addresses. It reads a list as a stream into the store, hands its distinct addresses to
// the review queue in small portions at the lowest priority, takes the answers from there, and writes the results back out in
// the order of the input. It checks nothing itself: tokens, retries, ladders and leases are the queue's and its loop's. See
// docs/decisions/0017-backfill.md.
//
// Memory does not grow with a list. One replica at a time works on a backfill, and another goes on where it was.
package backfill

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

type store interface {
	OpenBackfill(ctx context.Context, n fallback.NewBackfill) (fallback.Backfill, fallback.BackfillLease, error)
	LoadBackfill(ctx context.Context, l fallback.BackfillLease, c fallback.BackfillChunk, lease time.Duration) error
	LoadedBackfill(ctx context.Context, l fallback.BackfillLease) error
	ClaimBackfill(ctx context.Context, lease time.Duration) (fallback.Backfill, fallback.BackfillLease, bool, error)
	RenewBackfill(ctx context.Context, l fallback.BackfillLease, lease time.Duration) (fallback.Backfill, error)
	ReleaseBackfill(ctx context.Context, l fallback.BackfillLease) error
	MergeBackfill(ctx context.Context, l fallback.BackfillLease, lease time.Duration) (fallback.Backfill, error)
	BackfillPortion(ctx context.Context, l fallback.BackfillLease, after int64, limit int) (fallback.BackfillPortion, error)
	PlanBackfill(ctx context.Context, l fallback.BackfillLease, p fallback.BackfillPlan) (fallback.Backfill, error)
	BackfillNews(ctx context.Context, l fallback.BackfillLease, limit int) ([]fallback.BackfillNews, error)
	StepBackfill(ctx context.Context, l fallback.BackfillLease, step fallback.BackfillStep) (fallback.Backfill, error)
	WithdrawBackfill(ctx context.Context, l fallback.BackfillLease, w fallback.BackfillWithdrawal) (fallback.Backfill, int, error)
	EndBackfill(ctx context.Context, l fallback.BackfillLease, s fallback.BackfillState, keep time.Duration) (fallback.Backfill, error)
	CancelBackfill(ctx context.Context, id string) (fallback.Backfill, error)
	ResumeBackfill(ctx context.Context, id string, maxCredits *int64) (fallback.Backfill, error)
	Backfill(ctx context.Context, id string) (fallback.Backfill, error)
	Backfills(ctx context.Context, client, before string, limit int) ([]fallback.Backfill, error)
	BackfillResults(ctx context.Context, id string, after int64, limit int) ([]fallback.BackfillResult, error)
	Lookup(ctx context.Context, fp normalize.Fingerprint) (fallback.Found, error)
}

// judge knows addresses and policies. Safe for concurrent use.
type judge interface {
	// Read reads a text as an address; *normalize.Refusal: it can't be one.
	Read(raw string) (normalize.Address, error)
	// Fingerprint is the address's under the present key, Former are those under former ones, DomainKey is its domain's.
	Fingerprint(a normalize.Address) normalize.Fingerprint
	Former(a normalize.Address) []normalize.Fingerprint
	DomainKey(a normalize.Address) int64
	// Refused answers for a text that can't be an address. It is asked about texts that Read refused some time before.
	Refused(flow, raw string) Answer
	// Denied answers for an address that is refused without asking anyone, if it is.
	Denied(flow string, a normalize.Address) (Answer, bool)
	// Final answers with a final verdict.
	Final(flow string, a normalize.Address, v verdict.Verdict) Answer
	// Fresh says that a verdict needs no new check.
	Fresh(v *verdict.Verdict) bool
}

// Answer is what a list is told of an address.
type Answer struct {
	Status     verdict.Status
	Reason     verdict.Reason
	Decision   string
	Suggestion string // a whole address, or empty
}

// Tuning are the settings that may change while the engine runs.
type Tuning struct {
	// Rate bounds the checks a second of all backfills in this process. About WindowTime's worth of them is open at a time.
	Rate float64
	// Keep is how long results and inputs stay.
	Keep time.Duration
	// MaxRows bounds the rows of one list.
	MaxRows int64
}

// Times and bounds of the engine.
const (
	// WindowTime is how much work is open at a time: enough to keep the loop busy between two looks, and little enough that
	// the domains of a list don't fill the first pass of its claims.
	WindowTime = 4 * time.Second
	minWindow  = 64
	maxWindow  = 8000
	// maxJobs bounds the backfills that one process works on at a time.
	maxJobs = 8

	// lease is how long a backfill whose process was killed is left alone. A step that takes longer loses it, and is undone.
	lease        = 15 * time.Second
	renewEvery   = 2 * time.Second // what an operator changed is seen after that
	lookEvery    = 500 * time.Millisecond
	idleEvery    = 2 * time.Second
	callTimeout  = 40 * time.Second // over the statement_timeout of the store
	backoffFirst = time.Second
	backoffMax   = 30 * time.Second
	// maxLooks bounds the statements of one look, so that one list can't keep the others waiting.
	maxLooks = 10
)

// Config is what New needs besides its parts. All functions must be safe for concurrent use.
type Config struct {
	// Tuning tells the settings in force.
	Tuning func() Tuning
	// Closed says that the upstream may not be asked now: nothing is fed then.
	Closed func() bool
	// Fed is called after reviews were opened that are due at once.
	Fed func()
	// DigestKey makes the digests of inputs, which stay in the store, say nothing to whoever has only that.
	DigestKey []byte
	// NewID returns a UUIDv7.
	NewID func() string
	// Rand returns numbers in [0, 1).
	Rand       func() float64
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Engine loads, runs and reads backfills. Safe for concurrent use, but for Run and Step, of which one may run at a time.
type Engine struct {
	cfg     Config
	store   store
	judge   judge
	metrics *metrics
	wake    chan struct{}
	jobs    []*job // Run's own, as are the next
	pace    pace
	blind   bool // the store could not be asked for backfills when last tried: that is logged once
}

// New returns an engine. It does no I/O.
func New(s store, j judge, cfg Config) (*Engine, error) {
	if cfg.Tuning == nil || cfg.Closed == nil || cfg.Fed == nil || cfg.NewID == nil || cfg.Rand == nil || len(cfg.DigestKey) == 0 {
		return nil, errors.New("backfill: Tuning, Closed, Fed, NewID, Rand and DigestKey are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Engine{cfg: cfg, store: s, judge: j, metrics: newMetrics(cfg.Registerer), wake: make(chan struct{}, 1)}, nil
}

// poke ends the engine's sleep.
func (e *Engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Backfill tells how one stands. fallback.ErrUnknownID: there is none (any more).
func (e *Engine) Backfill(ctx context.Context, id string) (fallback.Backfill, error) {
	return e.store.Backfill(ctx, id)
}

// Backfills lists a client's, or all when client is empty: the newest first, those before an id when one is given.
func (e *Engine) Backfills(ctx context.Context, client, before string, limit int) ([]fallback.Backfill, error) {
	return e.store.Backfills(ctx, client, before, limit)
}

// Cancel ends a backfill. What is asked just now is waited for; all else that nobody else waits for is not asked any more.
// fallback.ErrUnknownID, fallback.ErrBackfillState: it has ended.
func (e *Engine) Cancel(ctx context.Context, id string) (fallback.Backfill, error) {
	b, err := e.store.CancelBackfill(ctx, id)
	e.poke()
	return b, err
}

// Resume lets a planned or stopped backfill go on, with another bound of credits unless maxCredits is nil; negative is none.
// fallback.ErrUnknownID, fallback.ErrBackfillState: it has ended.
func (e *Engine) Resume(ctx context.Context, id string, maxCredits *int64) (fallback.Backfill, error) {
	b, err := e.store.ResumeBackfill(ctx, id, maxCredits)
	e.poke()
	return b, err
}

// TimeNeeded is how long the checks of a plan take at best.
func (e *Engine) TimeNeeded(b fallback.Backfill) time.Duration {
	rate := paced(e.cfg.Tuning().Rate, b.Rate)
	if rate <= 0 {
		return 0
	}
	return time.Duration(float64(b.PlanAsk) / rate * float64(time.Second))
}

// paced is the rate of a backfill with a bound of its own (0: none).
func paced(rate, own float64) float64 {
	if own > 0 {
		return min(rate, own)
	}
	return rate
}

// Left is how long a running backfill will take at the pace it had so far; ok is false when it does not move. What waits on the
// mailbox's side is not counted.
func Left(b fallback.Backfill) (left time.Duration, ok bool) {
	if b.State == fallback.BackfillDone {
		return 0, true
	}
	spent, done := b.UpdatedAt.Sub(b.BeganAt), b.Done()
	if b.State != fallback.BackfillRunning || done == 0 || spent <= 0 || b.FedAll && b.Asked == 0 {
		return 0, false
	}
	return time.Duration(float64(spent) / float64(done) * float64(b.Distinct-done-b.Waiting)), true
}
