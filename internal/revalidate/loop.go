// Package revalidate settles what could not be answered in time. Its loop claims due reviews, checks them by the
// same parts that a person's request uses, and writes the end, or the next step of the ladder, under its lease.
//
// It claims nothing that can't be tried: while a gate is closed or the breaker is open it waits. While the
// breaker is half-open it sends the probes, and once the upstream is well again it makes the rows due that
// waited for that, spread over time so that no storm follows.
package revalidate

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

type queue interface {
	Claim(ctx context.Context, r fallback.ClaimRequest) (fallback.ClaimResult, error)
	Heartbeat(ctx context.Context, id string, token int64, lease time.Duration) error
	GiveBack(ctx context.Context, claims []fallback.Claim) error
	SettleBatch(ctx context.Context, batch []fallback.Settlement) (lost []fallback.Claim, err error)
	PostponeBatch(ctx context.Context, batch []fallback.Delay) (lost []fallback.Claim, err error)
	Kill(ctx context.Context, c fallback.Claim, reason verdict.Reason) error
	Hasten(ctx context.Context, limit int, spread time.Duration) (int, error)
	Stats(ctx context.Context) (fallback.Stats, error)
	Sweep(ctx context.Context, r fallback.Retention) (int, error)
}

type checker interface {
	Recheck(ctx context.Context, c fallback.Claim) verdict.Outcome
	Settled(id string)
}

type cacher interface {
	Put(fp normalize.Fingerprint, v verdict.Verdict) verdict.Verdict
	Mark(fp normalize.Fingerprint, m verdict.Marker)
}

// Upstream is how the upstream stands, as far as the loop cares.
type Upstream struct {
	// Closed: nothing may be sent now. Until says for how long, zero when nobody knows.
	Closed bool
	Until  time.Time
	// Probing: a few calls are let through, and decide.
	Probing bool
}

// Tuning are the settings that may change while the loop runs.
type Tuning struct {
	// Workers is the number of checks at a time, at least 1.
	Workers int
	// Batch is the most rows of one claim, at most fallback.MaxBatch.
	Batch int
	// Lease is how long a claimed row is ours; it is renewed at a third of it.
	Lease time.Duration
	// Probes is the number of calls that a half-open breaker lets through.
	Probes int
	// Rate is the number of checks a second that the loop can hope for; it spreads the rows after an outage.
	Rate float64
}

// Intervals of the loop.
const (
	pollIdle     = time.Second
	pollBusy     = 250 * time.Millisecond
	writeTimeout = 5 * time.Second
	statsEvery   = 15 * time.Second
	sweepEvery   = 10 * time.Minute
	// Bounds of the time over which rows are spread once the upstream is well again.
	minSpread = 5 * time.Second
	maxSpread = 10 * time.Minute
	// A gate that opened so long before it said it would was opened by someone: the rows that were put off until then are
	// due again. Less is a gate that waited for the answer to one call.
	endedEarly = 15 * time.Second
)

// Config is what New needs besides its parts. All functions must be safe for concurrent use.
type Config struct {
	Upstream func() Upstream
	// Spare is how many checks the upstream's rate has room for now: no more rows are claimed. Nil is no bound. It may take
	// as long as a look into Redis.
	Spare  func(context.Context) int
	Tuning func() Tuning
	// Rand returns numbers in [0, 1).
	Rand func() float64
	Log  *slog.Logger
	// Registerer gets the metrics; nil keeps them unseen.
	Registerer prometheus.Registerer
}

// Loop is the background loop. Make one with New, start it with Run.
type Loop struct {
	cfg     Config
	queue   queue
	checks  checker
	cache   cacher
	metrics *metrics
	ends    ends
	work    sync.WaitGroup

	wake chan struct{}
	due  atomic.Bool // see HasDue
	more atomic.Bool // the last claim took all that it might: there is probably more

	mu    sync.Mutex
	busy  int
	until time.Time // the end of the present sleep

	// The rest belongs to the goroutine of Run.
	cursor   int64
	troubled bool      // the upstream was not well when last looked at
	failing  bool      // the store failed when last asked
	closed   time.Time // until when a gate said that it is closed
	outage   bool      // troubled by what was seen, and not by the start
	ramp     ramp
}

// New returns a loop. It does no I/O.
func New(q queue, c checker, k cacher, cfg Config) (*Loop, error) {
	if cfg.Upstream == nil || cfg.Tuning == nil || cfg.Rand == nil {
		return nil, errors.New("revalidate: Upstream, Tuning and Rand are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	// Rows may wait from before a crash: a start is a recovery.
	return &Loop{cfg: cfg, queue: q, ends: ends{queue: q}, checks: c, cache: k, wake: make(chan struct{}, 1), troubled: true, metrics: newMetrics(cfg.Registerer)}, nil
}

// Run claims and checks until ctx ends, then gives back what it holds and returns nil.
func (l *Loop) Run(ctx context.Context) error {
	upkeep := make(chan struct{})
	go func() {
		defer close(upkeep)
		l.upkeep(ctx)
	}()
	for ctx.Err() == nil {
		pause := l.Step(ctx)
		l.sleep(ctx, pause)
	}
	l.work.Wait()
	<-upkeep
	l.due.Store(false) // nobody looks any more
	return nil
}

// HasDue says whether there are reviews that want the upstream, as far as is known without asking the store: the last look
// found some, or some were recorded or put off since. While the breaker is half-open they are the probes. It is false when
// the loop can't look, so that a store that is down does not keep everyone from finding out that the upstream is well.
func (l *Loop) HasDue() bool { return l.due.Load() }

// Step looks at the upstream once, claims what can be tried and starts the checks. It returns how long to wait
// before the next step, before jitter.
func (l *Loop) Step(ctx context.Context) time.Duration {
	t := l.cfg.Tuning()
	l.metrics.slots.Set(float64(t.Workers))
	up := l.cfg.Upstream()
	if up.Closed {
		// Only the breaker's opening calls for a recovery. A gate says itself when it opens, and the rows that wait
		// for it are due by then; to hasten them each time it blinks would ask a throttling upstream the faster.
		l.trouble(up.Until.IsZero())
		if up.Until.After(l.closed) {
			l.closed = up.Until
		}
		if wait := time.Until(up.Until); wait > pollIdle {
			return min(wait, 5*pollIdle) // a live setting or another call may end it sooner
		}
		return pollIdle
	}
	l.trouble(time.Until(l.closed) > endedEarly || up.Probing)
	l.closed = time.Time{}
	free := max(t.Workers, 1) - l.inWork()
	if up.Probing {
		free = min(free, max(t.Probes, 1)-l.inWork())
	}
	if free <= 0 {
		return pollBusy
	}
	if l.troubled && !up.Probing {
		if !l.recover(ctx, t) {
			return pollIdle
		}
		if l.outage {
			l.ramp.begin(time.Now())
		}
		l.troubled, l.outage = false, false
	}
	if !up.Probing {
		if free = min(free, l.ramp.allow(time.Now(), t.Rate)); free == 0 {
			return pollBusy
		}
	}
	// Those at work may be about to take a token themselves, so this is what there may be at most; who is claimed in vain
	// waits for a token under its lease.
	if l.cfg.Spare != nil {
		if free = min(free, l.cfg.Spare(ctx)); free <= 0 {
			return pollBusy
		}
	}
	claims, idle, ok := l.claim(ctx, min(free, t.Batch, fallback.MaxBatch), t.Lease)
	if !ok {
		return pollIdle
	}
	if len(claims) == 0 && up.Probing {
		// Nothing is due, but someone has to find out how the upstream is: take what waits for it.
		if n, err := l.queue.Hasten(ctx, free, 0); l.noted("hasten", err) && n > 0 {
			claims, _, _ = l.claim(ctx, min(free, t.Batch, fallback.MaxBatch), t.Lease)
		}
		l.due.Store(len(claims) > 0)
	}
	l.ramp.spend(len(claims))
	for _, c := range claims {
		l.start(ctx, c, t)
	}
	switch {
	case len(claims) > 0:
		return pollBusy
	case up.Probing:
		return pollIdle
	}
	return max(idle, pollIdle)
}

// trouble notes that the upstream is not well, if it is not: a recovery follows.
func (l *Loop) trouble(is bool) { l.troubled, l.outage = l.troubled || is, l.outage || is }

// Due tells the loop of a row that this process recorded. It matters only when the loop would sleep past it.
func (l *Loop) Due(at time.Time) {
	l.due.Store(true)
	l.mu.Lock()
	late := at.Before(l.until)
	l.mu.Unlock()
	if late {
		l.poke()
	}
}

// recover makes the rows due that waited for the upstream, spread over the time that their number will take.
func (l *Loop) recover(ctx context.Context, t Tuning) bool {
	stats, err := l.queue.Stats(ctx)
	if !l.noted("stats", err) {
		return false
	}
	if stats.Open == 0 {
		return true
	}
	over := maxSpread
	if t.Rate > 0 {
		over = min(max(time.Duration(float64(stats.Open)/t.Rate*float64(time.Second)), minSpread), maxSpread)
	}
	n, err := l.queue.Hasten(ctx, 0, over)
	if !l.noted("hasten", err) {
		return false
	}
	if n > 0 {
		l.cfg.Log.InfoContext(ctx, "reviews that waited for the upstream are due again", "rows", n, "over_seconds", over.Seconds())
	}
	return true
}

func (l *Loop) claim(ctx context.Context, n int, lease time.Duration) (claims []fallback.Claim, idle time.Duration, ok bool) {
	if n <= 0 {
		return nil, 0, true
	}
	r, err := l.queue.Claim(ctx, fallback.ClaimRequest{Max: n, Lease: lease, Cursor: l.cursor})
	l.more.Store(err == nil && len(r.Claims) == n)
	if !l.noted("claim", err) {
		l.due.Store(false)
		return nil, 0, false
	}
	if len(r.Claims) > 0 {
		l.due.Store(true)
	}
	l.cursor = r.Cursor
	return r.Claims, r.Idle, true
}

// noted logs the first of a run of errors and the end of it, and says whether there was none.
func (l *Loop) noted(what string, err error) bool {
	switch {
	case err != nil && !l.failing && !errors.Is(err, context.Canceled):
		l.failing = true
		l.cfg.Log.Error("review queue can't be worked on now; it is tried again", "operation", what, "error", err)
	case err == nil && l.failing:
		l.failing = false
		l.cfg.Log.Info("review queue is worked on again")
	}
	return err == nil
}

func (l *Loop) inWork() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy
}

func (l *Loop) start(ctx context.Context, c fallback.Claim, t Tuning) {
	l.mu.Lock()
	l.busy++
	l.mu.Unlock()
	l.work.Go(func() {
		began := time.Now()
		l.metrics.busy.Inc()
		defer func() {
			l.metrics.busy.Dec()
			l.metrics.busySeconds.Add(time.Since(began).Seconds())
			l.mu.Lock()
			l.busy--
			l.mu.Unlock()
		}()
		if progress := l.one(ctx, c, t.Lease); progress && l.more.Load() && l.inWork() <= max(t.Workers, 1)*3/4+1 {
			// A quarter of the workers is free, this one included, and work is waiting for them: not before the next poll
			// would leave them idle most of the time when checks are quick. One by one they would each make a claim.
			l.poke()
		}
	})
}

func (l *Loop) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// one brings a claimed review one step further. Progress means that something was found out: a check that ended at once
// because nothing may be sent is no reason to try the next one at once.
func (l *Loop) one(ctx context.Context, c fallback.Claim, lease time.Duration) (progress bool) {
	if c.Claims > fallback.MaxClaims {
		l.write(ctx, c, "kill", func(ctx context.Context) error { return l.queue.Kill(ctx, c, verdict.ReviewPoisoned) })
		l.metrics.completions.WithLabelValues(completedDead).Inc()
		return false
	}
	beat, stop := context.WithCancel(ctx)
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		l.heartbeat(beat, c, lease)
	}()
	out := l.checks.Recheck(ctx, c)
	stop()
	<-beating
	l.next(ctx, c, out)
	return out.Final() || out.Sent > 0
}

// heartbeat renews the lease until ctx ends or the lease is lost. A lost one does not end the check: it is paid
// for, and its verdict goes to the cache all the same.
func (l *Loop) heartbeat(ctx context.Context, c fallback.Claim, lease time.Duration) {
	tick := time.NewTicker(max(lease/3, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := l.queue.Heartbeat(ctx, c.ReviewID, c.Token, lease); errors.Is(err, fallback.ErrLeaseLost) {
				l.metrics.leasesLost.Inc()
				return
			}
		}
	}
}

// next decides what an outcome means for the review.
func (l *Loop) next(ctx context.Context, c fallback.Claim, out verdict.Outcome) {
	switch {
	case out.Final():
		l.settle(ctx, c, out.Verdict, out.Trail)
	case len(out.Trail) == 0, cancelled(out.Trail):
		// Nothing was found out, because we stop or because another check stood in the way.
		l.write(ctx, c, "give back", func(ctx context.Context) error { return l.queue.GiveBack(ctx, []fallback.Claim{c}) })
		l.metrics.checked(resultGivenBack)
	case out.Cause == verdict.CauseMailbox && c.Attempts >= fallback.MaxAttempts:
		l.unresolved(ctx, c, out.Verdict.Reason, out)
	case c.Now.Sub(c.RecordedAt)-c.Outage >= fallback.MaxAge:
		l.unresolved(ctx, c, verdict.ReviewExpired, out)
	case out.Cause == verdict.CauseUnusable && c.Unusable+1 >= fallback.MaxUnusable:
		l.write(ctx, c, "kill", func(ctx context.Context) error { return l.queue.Kill(ctx, c, out.Verdict.Reason) })
		l.metrics.completions.WithLabelValues(completedDead).Inc()
		l.cfg.Log.ErrorContext(ctx, "review is dead: its answers can't be used", "id", c.ReviewID, "fingerprint", c.Fingerprint,
			"reason", string(out.Verdict.Reason))
	default:
		l.postpone(ctx, c, out)
	}
}

func cancelled(trail []verdict.Attempt) bool {
	return trail[len(trail)-1].Outcome == verdict.AttemptCancelled
}

func (l *Loop) settle(ctx context.Context, c fallback.Claim, v verdict.Verdict, trail []verdict.Attempt) {
	if l.end(ctx, c, "settle", &ending{settle: &fallback.Settlement{Claim: c, Verdict: v, Trail: trail}}) {
		l.metrics.completions.WithLabelValues(completedSettled).Inc()
		l.metrics.age.Observe(max(c.Now.Sub(c.RecordedAt), 0).Seconds())
	}
	l.metrics.checked(resultSettled)
	l.checks.Settled(c.ReviewID)
}

// unresolved ends a review without an answer. The verdict is cached like any other: for a day nobody asks again.
func (l *Loop) unresolved(ctx context.Context, c fallback.Claim, reason verdict.Reason, out verdict.Outcome) {
	v := l.cache.Put(c.Fingerprint, verdict.Verdict{ID: c.ReviewID, Status: verdict.Unresolved, Reason: reason, Reasons: []verdict.Reason{reason},
		Attempts: out.Sent, Provider: out.Verdict.Provider, CheckedAt: time.Now()})
	if l.end(ctx, c, "settle", &ending{settle: &fallback.Settlement{Claim: c, Verdict: v, Trail: out.Trail}}) {
		l.metrics.completions.WithLabelValues(completedUnresolved).Inc()
		l.metrics.age.Observe(max(c.Now.Sub(c.RecordedAt), 0).Seconds())
	}
	l.metrics.checked(resultSettled)
	l.checks.Settled(c.ReviewID)
}

func (l *Loop) postpone(ctx context.Context, c fallback.Claim, out verdict.Outcome) {
	step := c.Snoozes
	switch out.Cause {
	case verdict.CauseMailbox:
		step = c.Attempts
	case verdict.CauseUnusable:
		step = c.Unusable
	}
	in := fallback.CheckIn(out.Cause, step)
	in += time.Duration(0.2 * l.cfg.Rand() * float64(in))
	if wait := time.Until(out.NotBefore); wait > 0 {
		in = max(in, wait+time.Duration(l.cfg.Rand()*float64(10*time.Second)))
	}
	ok := l.end(ctx, c, "postpone", &ending{delay: &fallback.Delay{Claim: c, Postponement: fallback.Postponement{
		CheckIn: in, Reason: out.Verdict.Reason, Cause: out.Cause, Trail: out.Trail}}})
	l.metrics.checked(resultPostponed)
	if out.Cause == verdict.CauseUpstream {
		l.due.Store(true)
	}
	if ok && out.Cause == verdict.CauseMailbox {
		// Until the next check a post for this address gets this review, and costs nothing.
		next := time.Now().Add(in)
		l.cache.Mark(c.Fingerprint, verdict.Marker{ID: c.ReviewID, Reason: out.Verdict.Reason, NextCheckAt: next, Until: next})
	}
}

// write changes a claimed row, also while stopping, and says whether that took effect. A lost lease is no fault:
// someone else settled the row or works on it.
func (l *Loop) write(ctx context.Context, c fallback.Claim, what string, do func(context.Context) error) bool {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	return l.written(ctx, c, what, do(call))
}

// end is write for what goes together with the ends of other rows.
func (l *Loop) end(ctx context.Context, c fallback.Claim, what string, e *ending) bool {
	return l.written(ctx, c, what, l.ends.write(ctx, e, l.work.Go))
}

func (l *Loop) written(ctx context.Context, c fallback.Claim, what string, err error) bool {
	switch {
	case err == nil:
		return true
	case errors.Is(err, fallback.ErrLeaseLost):
		l.metrics.leasesLost.Inc()
	default:
		// The lease ends by itself, and the row is claimed again; a verdict is in the cache by then.
		l.cfg.Log.ErrorContext(ctx, "review was not written", "operation", what, "id", c.ReviewID, "fingerprint", c.Fingerprint, "error", err)
	}
	return false
}

// sleep waits for d ± 20 % of a poll, or until a row that was recorded meanwhile calls for less.
func (l *Loop) sleep(ctx context.Context, d time.Duration) {
	d += time.Duration((0.4*l.cfg.Rand() - 0.2) * float64(min(d, pollIdle)))
	l.mu.Lock()
	l.until = time.Now().Add(d)
	l.mu.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.wake:
	case <-ctx.Done():
	}
}

// upkeep reads the queue's facts for the metrics and removes what is past its retention.
func (l *Loop) upkeep(ctx context.Context) {
	stats := time.NewTicker(statsEvery)
	defer stats.Stop()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	l.read(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-stats.C:
			l.read(ctx)
		case <-sweep.C:
			call, cancel := context.WithTimeout(ctx, time.Minute)
			if _, err := l.queue.Sweep(call, fallback.DefaultRetention); err != nil && ctx.Err() == nil {
				l.cfg.Log.WarnContext(ctx, "ended reviews were not removed; it is tried again", "error", err)
			}
			cancel()
		}
	}
}

func (l *Loop) read(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if s, err := l.queue.Stats(call); err == nil {
		l.metrics.stats(s)
	}
}
