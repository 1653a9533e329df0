// Package validate makes the one decision: raw text in, answer out, inside the flow's budget. It goes from what
// costs nothing to what costs most: syntax, cache, the durable verdicts, the check that is in flight for the same
// address, the upstream, and, when there is no answer in time, a durable row that the loop goes on with.
//
// What it promises: an answer inside the budget; one check in flight per address, in this process always and among
// replicas while their Redis is well, shared by all who ask, the background loop included; never "accepted" before the commit; a caller that hangs up still
// leaves its row; a late answer fills the cache and settles the row.
package validate

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/debounce"
	"validator-gw/internal/fallback"
	"validator-gw/internal/flight"
	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// Shares of the budget (docs/decisions/0003-time-budget.md).
const (
	// reserve is kept back from the upstream for the row and the answer.
	reserve = 150 * time.Millisecond
	// writeTimeout is what the write of a row has at least, on a context of its own; a row that is written early in the
	// budget, because the breaker is open, say, has the rest of it but for slack.
	writeTimeout = 120 * time.Millisecond
	slack        = reserve - writeTimeout
	// lookupTimeout bounds the look-up in the durable store. A healthy one answers in a millisecond; a slow one is worth
	// waiting for, since what it does not find in time is paid for again.
	lookupTimeout = 200 * time.Millisecond
	// settleTimeout bounds the write of a late answer, for which nobody waits.
	settleTimeout = 2 * time.Second
	// oneMore is the time that whoever joined a check must have left, to begin another one when that had too little.
	oneMore = 250 * time.Millisecond
)

// Bounds of a request's own budget. Below the lower one an upstream call can't fit; above the upper one an answer could
// take more than a second on the wire.
const (
	MinBudget = 300 * time.Millisecond
	MaxBudget = 950 * time.Millisecond
)

// DefaultFlow is the flow of a request that names none.
const DefaultFlow = "signup"

// maxFlights bounds the addresses that are kept apart while in flight.
const maxFlights = 10_000

type cacher interface {
	Local(fp normalize.Fingerprint) (verdict.Cached, bool)
	Again(fp normalize.Fingerprint) (verdict.Cached, bool)
	Shared(ctx context.Context, fp normalize.Fingerprint) (verdict.Cached, bool, error)
	Held(fp normalize.Fingerprint) (verdict.Cached, bool)
	Put(fp normalize.Fingerprint, v verdict.Verdict) verdict.Verdict
	Fill(fp normalize.Fingerprint, v verdict.Verdict)
	FillStale(fp normalize.Fingerprint, v verdict.Verdict)
	Keep(fp normalize.Fingerprint, v verdict.Verdict)
	Mark(fp normalize.Fingerprint, m verdict.Marker)
	MarkerMin() time.Duration
	Adopt(fp normalize.Fingerprint, value []byte) (verdict.Cached, bool)
	Written() <-chan struct{}
	Looked(found bool, err error)
	Pending(id string) (verdict.Verdict, bool)
	Erase(ctx context.Context, fps []normalize.Fingerprint, upTo string) (pending int, err error)
	Erased(fp normalize.Fingerprint, id string) bool
}

type store interface {
	Lookup(ctx context.Context, fp normalize.Fingerprint) (fallback.Found, error)
	Record(ctx context.Context, e fallback.Entry) (fallback.Review, error)
	SettleOpen(ctx context.Context, fp normalize.Fingerprint, v verdict.Verdict, trail []verdict.Attempt) (string, bool, error)
	Review(ctx context.Context, id string) (fallback.Review, error)
	Verdict(ctx context.Context, id string) (fallback.Stored, error)
	Watch(ctx context.Context, id string, w fallback.Watcher) error
	Watchers(ctx context.Context, id string) ([]fallback.Watcher, error)
	Erase(ctx context.Context, e fallback.Erasure) (fallback.Erased, error)
	Ask(ctx context.Context, e fallback.Event) (fallback.Asked, error)
	Ripen(ctx context.Context, fps []normalize.Fingerprint) (int, error)
}

type verifier interface {
	Check(ctx context.Context, addr normalize.Address, plan verdict.Plan) verdict.Outcome
}

type admitter interface {
	Enter(ctx context.Context) (leave func(), err error)
}

// Flow is how one kind of form is served.
type Flow struct {
	// Budget is the time to an answer, MinBudget to MaxBudget.
	Budget     time.Duration
	MaxRetries int
	Policy     Policy
}

// BackgroundPlan is what the loop may spend on one check.
type BackgroundPlan struct {
	Budget     time.Duration
	MaxRetries int
}

// AddressPlan is how texts are read, and what is known of domains without asking anyone.
type AddressPlan struct {
	Rules   normalize.Rules
	Domains *normalize.Lists
	// DedupeKey adds that key to answers.
	DedupeKey bool
}

// Config is what New needs besides its parts. All functions must be safe for concurrent use.
type Config struct {
	// Flow returns the flow of a name.
	Flow func(name string) (Flow, bool)
	// Background is read at each check of the loop.
	Background func() BackgroundPlan
	// LateTimeout is how long a check may outlive its callers.
	LateTimeout func() time.Duration
	// Address says how texts are read and what is known of domains. It is read at each request.
	Address func() AddressPlan
	// Open decrypts a sealed suggestion; an error means that it is left out.
	Open func(sealed []byte) (string, error)
	// Keys keeps answers under Idempotency-Keys; nil keeps none, and Seal is not used. Seal reverses Open.
	Keys keeper
	Seal func(text string) []byte
	// Profile is the provider's profile in use with the version of its mapping. Verdicts of another are served as those past
	// their freshness. Empty: all are of this one.
	Profile string
	// Leases keep one check of an address in flight among all replicas; nil: each process for itself.
	Leases *flight.Leases
	// Bursts watches in Redis for the ends of bursts of events, and calls Ripe; nil: the rows' own times are what counts.
	Bursts *debounce.Fleet
	// Window says when a burst of events is over; zero takes that of WindowOr.
	Window debounce.Window
	// Sessions tells which check of a typing session is the newest; nil: this process's alone.
	Sessions *debounce.Latest
	// SessionKey is for the hashes of typing sessions.
	SessionKey []byte
	// NewID returns a UUIDv7, greater than all that it returned before.
	NewID func() string
	// Rand returns numbers in [0, 1).
	Rand func() float64
	// Recorded is told when a row that this service recorded is due; nil tells nobody.
	Recorded func(due time.Time)
	Log      *slog.Logger
	// Registerer gets the metrics; nil keeps them unseen.
	Registerer prometheus.Registerer
}

// Service validates addresses. Safe for concurrent use.
type Service struct {
	cfg       Config
	cache     cacher
	store     store
	client    verifier
	admit     admitter
	prints    *normalize.Fingerprinter
	flights   *flight.Group[normalize.Fingerprint, *check]
	turns     debounce.Turns[turn, Scheduled]
	bursts    *debounce.Local[normalize.Fingerprint, struct{}]
	waits     waits
	refreshes refreshes
	recent    recent
	metrics   *metrics
}

// New returns a service whose checks live on contexts made from base: end it to cut them off at a stop.
func New(base context.Context, prints *normalize.Fingerprinter, c cacher, s store, v verifier, a admitter, cfg Config) (*Service, error) {
	if cfg.Flow == nil || cfg.Background == nil || cfg.Address == nil || cfg.LateTimeout == nil || cfg.Open == nil || cfg.NewID == nil || cfg.Rand == nil {
		return nil, errors.New("validate: every function of Config is required")
	}
	if cfg.Keys != nil && cfg.Seal == nil {
		return nil, errors.New("validate: Seal is required beside Keys")
	}
	if cfg.Recorded == nil {
		cfg.Recorded = func(time.Time) {}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Window = WindowOr(cfg.Window)
	if cfg.Sessions == nil {
		cfg.Sessions = debounce.NewLatest(nil, "", MaxSessions)
	}
	return &Service{
		cfg: cfg, cache: c, store: s, client: v, admit: a, prints: prints,
		flights: flight.NewGroup[normalize.Fingerprint, *check](base, maxFlights),
		waits:   waits{m: make(map[string]*wait)},
		bursts: debounce.NewLocal(cfg.Window, maxBursts, func(context.Context, normalize.Fingerprint, struct{}) {
			cfg.Recorded(time.Now())
		}),
		metrics: newMetrics(cfg.Registerer, cfg.Leases != nil),
	}, nil
}

// HasFlow says whether the settings have a flow of this name.
func (s *Service) HasFlow(name string) bool {
	_, ok := s.cfg.Flow(name)
	return ok
}

// Close waits until the checks in flight have landed, and other replicas know, or ctx ends.
func (s *Service) Close(ctx context.Context) error {
	if err := s.flights.Close(ctx); err != nil {
		return err
	}
	return s.cfg.Leases.Close(ctx)
}

// Validate answers one request inside its budget. The end of ctx does not end it: a caller that hangs up still
// leaves a row. Errors are ErrUnknownFlow, ErrSaturated and *NotDurable, and with a Key also ErrKeyReused, ErrKeyInFlight
// and, while it waits for another's answer, that of ctx. A Typing one leaves none, its Key does not count, and its errors
// are ErrSuperseded, ErrTypingUnanswered and, while it waits for the typing to pause, that of ctx.
func (s *Service) Validate(ctx context.Context, req Request) (Answer, error) {
	start, asking := time.Now(), ctx
	ctx = context.WithoutCancel(ctx)
	if req.Flow == "" {
		req.Flow = DefaultFlow
	}
	flow, ok := s.cfg.Flow(req.Flow)
	if !ok {
		return Answer{}, ErrUnknownFlow
	}
	var a Answer
	var err error
	switch {
	case req.Typing:
		a, err = s.typed(asking, ctx, start, req, flow)
	case req.Key != "":
		a, err = s.once(asking, ctx, start, req, flow)
	default:
		a, err = s.answer(ctx, start, req, flow, nil)
	}
	if err != nil {
		return Answer{}, err
	}
	a.Flow = req.Flow
	if !a.Replayed { // else it is counted where it was found
		s.metrics.answered(a, time.Since(start))
	}
	return a, nil
}

// of is the budget of one request.
func (f Flow) of(req Request) time.Duration {
	budget := f.Budget
	if req.Budget > 0 {
		budget = min(budget, max(req.Budget, MinBudget))
	}
	return budget
}

// answer is Validate without what goes around it; t is nil but for a typing check.
func (s *Service) answer(ctx context.Context, start time.Time, req Request, flow Flow, t *typist) (Answer, error) {
	plan := s.cfg.Address()
	addr, err := plan.Rules.Parse(req.Raw)
	if err != nil {
		return refused(err, flow.Policy, plan), nil
	}
	fp := s.prints.Of(addr)
	who := s.asking(addr, fp, flow.Policy, plan)
	if who.hints.Denied {
		return denied(who), nil
	}
	watcher := fallback.Watcher{Client: req.Client, Flow: req.Flow, Callback: req.Callback}
	if t != nil {
		watcher = fallback.Watcher{} // nobody: see watched
	}
	if k, ok := s.cache.Local(fp); ok {
		if !s.fresh(k, start) {
			s.renew(who, k.Verdict)
		}
		return s.watched(ctx, s.known(who, k, verdict.FromCache), watcher)
	}
	budget := flow.of(req)
	if err := t.pause(budget); err != nil {
		return Answer{}, err
	}
	leave, err := s.admit.Enter(ctx)
	if err != nil {
		return Answer{}, ErrSaturated
	}
	defer leave()

	window := start.Add(budget - reserve)
	if t != nil {
		window = start.Add(budget - slack) // no row has to be written
	}
	begin := func(by seeker) (*flight.Flight[*check], bool, error) {
		// Late or not, each call has its whole time: one that began at the end of the window, too.
		return s.flights.Start(fp, budget+s.cfg.LateTimeout(),
			func() *check { return s.newCheck(fp, addr, s.cfg.NewID(), localOf(who.hints)) },
			func(ctx context.Context, c *check) error {
				return s.find(ctx, c, verdict.Plan{Class: verdict.Interactive, Until: window, MaxRetries: flow.MaxRetries,
					RequestID: req.RequestID, Fingerprint: fp.Prefix()}, by)
			})
	}
	f, joined, err := begin(person)
	if err != nil {
		return Answer{}, ErrSaturated // stopping
	}
	s.metrics.flown(joined)
	timer := time.NewTimer(time.Until(window))
	defer timer.Stop()
	wait := func() *check {
		c := f.Value()
		select {
		case <-f.Done():
			return c
		case <-c.offered: // nobody waits for a refresh
			if s.offered(c) != nil {
				return c
			}
		case <-timer.C:
			return c
		}
		select {
		case <-f.Done():
		case <-timer.C:
		}
		return c
	}
	c := wait()
	if joined && c.inVain() && s.offered(c) == nil && time.Until(window) >= oneMore {
		// Whoever began it had less time than we have, and may be about to leave a marker that says so.
		if again, second, err := begin(insister); err == nil {
			f, joined = again, second
			c = wait()
		}
	}
	k, source, out := c.result()
	stale := s.offered(c)
	switch {
	case k != (verdict.Cached{}):
		if joined && source == verdict.FromUpstream {
			source = verdict.FromFlight
		}
		if joined && source != verdict.FromCache {
			s.metrics.saved.WithLabelValues(savedFlight).Inc()
		}
		a := s.known(who, k, source)
		a.Backoff = out.Backoff
		return s.watched(ctx, a, watcher)
	case stale != nil:
		return s.watched(ctx, s.known(who, verdict.Cached{Verdict: stale}, verdict.FromCache), watcher)
	case t != nil:
		return Answer{}, ErrTypingUnanswered
	}
	ctx, cancel := context.WithTimeout(ctx, max(writeTimeout, time.Until(start.Add(budget-slack))))
	defer cancel()
	a, err := s.recorded(ctx, who, c, out, watcher)
	if joined && a.Source == verdict.FromUpstream {
		a.Source = verdict.FromFlight
	}
	if joined && err == nil {
		s.metrics.saved.WithLabelValues(savedFlight).Inc()
	}
	return a, err
}

// recorded answers with a durable row, or with the verdict when it comes in the last moment. ctx has the deadline
// of the write.
func (s *Service) recorded(ctx context.Context, who asker, c *check, out verdict.Outcome, w fallback.Watcher) (Answer, error) {
	review, final, err := s.record(ctx, c, out, w)
	switch {
	case final != nil:
		_, source, _ := c.result()
		return s.known(who, verdict.Cached{Verdict: final}, source), nil
	case err != nil:
		nd := &NotDurable{Err: err}
		if errors.Is(err, fallback.ErrUnknownCommit) {
			nd.ID = c.name()
		}
		return Answer{}, nd
	}
	a := s.pending(who, verdict.Marker{ID: review.ID, Reason: review.Reason, NextCheckAt: review.NextCheckAt})
	a.Attempts, a.Backoff = out.Sent, out.Backoff
	if out.Verdict.Reason == verdict.UpstreamTimeout {
		a.PollAfter = latePoll
	}
	return a, nil
}

// check is what those who share a flight know of it.
type check struct {
	fp    normalize.Fingerprint
	addr  normalize.Address
	local *verdict.Local
	since time.Time // what began before is no answer; zero: any may be

	mu      sync.Mutex
	id      string
	known   verdict.Cached // a verdict, or a marker of an open review: the answer
	source  verdict.Source
	stale   *verdict.Verdict // past its freshness: the answer when there is no better one at once
	offered chan struct{}    // closed once there is a stale one
	// refreshing says that the answers were given, and only what comes after is looked for.
	refreshing bool
	outcome    verdict.Outcome // of a check that ended without a verdict
	ended      bool
	open       bool                  // a review is open for it, as far as is known
	row        normalize.Fingerprint // under which that review is, or would be; a former key's for one from before a rotation
	steps      map[verdict.Cause]int // how far that review is on its ladders
	// What the check found out on the mailbox's side counts once in the review: claimed says that the loop holds the
	// row and writes it, counted that it is written, or being written.
	claimed bool
	counted bool
	// elsewhere says that another replica asks, or asked: what it learnt is its to write.
	elsewhere bool
	records   map[fallback.Watcher]*recording
	started   time.Time
}

// recording is one write of a row that several may wait for.
type recording struct {
	done   chan struct{}
	review fallback.Review
	err    error
}

func (s *Service) newCheck(fp normalize.Fingerprint, addr normalize.Address, id string, local *verdict.Local) *check {
	return &check{fp: fp, addr: addr, local: local, id: id, row: fp, started: time.Now(), offered: make(chan struct{}), records: make(map[fallback.Watcher]*recording)}
}

// claim says that the loop holds the row of this check. It returns whether a person's row counts the answer already,
// since that was written before the loop came.
func (c *check) claim() (counted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	counted = c.counted && !c.claimed
	c.claimed = true
	return counted
}

func (c *check) name() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

// result returns what is known by now. A check that is still on its way counts as a time-out of the upstream.
func (c *check) result() (k verdict.Cached, source verdict.Source, out verdict.Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out = c.outcome
	if !c.ended && c.known == (verdict.Cached{}) {
		out = verdict.Outcome{
			Verdict: verdict.Verdict{Status: verdict.NeedsReview, Reason: verdict.UpstreamTimeout},
			Cause:   verdict.CauseUpstream,
			Trail:   []verdict.Attempt{{At: c.started, Outcome: verdict.AttemptLate, LatencyMS: time.Since(c.started).Milliseconds()}},
			Sent:    1,
		}
		if c.elsewhere {
			out.Trail, out.Sent = nil, 0
		}
	}
	return c.known, c.source, out
}

// offer leaves a verdict that is past its freshness to all who wait; the newest one counts.
func (c *check) offer(v *verdict.Verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stale == nil {
		close(c.offered)
	}
	if c.stale == nil || v.CheckedAt.After(c.stale.CheckedAt) {
		c.stale = v
	}
}

// offered is the verdict that was left to all who wait; nil when there is none, its life is over, or it was erased since.
func (s *Service) offered(c *check) *verdict.Verdict {
	c.mu.Lock()
	v := c.stale
	c.mu.Unlock()
	if v == nil || (verdict.Cached{Verdict: v}).Life(time.Now()) <= 0 || s.cache.Erased(c.fp, v.ID) {
		return nil
	}
	return v
}

// inVain says that the check ended because whoever began it had no time to ask, or asked only if that cost nobody anything.
func (c *check) inVain() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended && c.known == (verdict.Cached{}) &&
		(c.refreshing || c.outcome.Sent == 0 && c.outcome.Verdict.Reason == verdict.BudgetExhausted)
}

// found says that there is an answer, and not only an offer.
func (c *check) found() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known != (verdict.Cached{})
}

// find is the work of a flight: what is known, else what the upstream says.
func (s *Service) find(ctx context.Context, c *check, plan verdict.Plan, by seeker) error {
	switch {
	case !s.look(ctx, c, by):
		return s.inquire(ctx, c, plan, by)
	case c.found():
		return nil
	case s.mayRefresh(c.fp, s.offered(c)):
		return s.refresh(ctx, c)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refreshing, c.outcome, c.ended = true, cutOff(), true
	return nil
}

// inquire asks the upstream, unless another replica does.
func (s *Service) inquire(ctx context.Context, c *check, plan verdict.Plan, by seeker) error {
	if s.cfg.Leases != nil {
		return s.askOnce(ctx, c, plan, by.marks())
	}
	return s.ask(ctx, c, plan)
}

// look searches what is known, from near to far, and says whether that is the answer. A verdict past its freshness is
// offered to whoever waits, and is the answer only for some.
func (s *Service) look(ctx context.Context, c *check, by seeker) bool {
	now := time.Now()
	take := func(k verdict.Cached) bool {
		if k.Verdict != nil && (!s.fresh(k, now) || c.predates(k.Verdict)) {
			c.offer(k.Verdict)
			return by.stale()
		}
		if k.Verdict == nil && (!k.Fresh(now) || !by.marks()) {
			return false
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.known, c.source = k, verdict.FromCache
		return true
	}
	// The process's level again: the flight before this one may have landed a moment ago.
	if k, ok := s.cache.Again(c.fp); ok && take(k) {
		return true
	}
	k, ok, silent := s.cache.Shared(ctx, c.fp)
	if ok && take(k) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, row, err := s.stored(ctx, c.fp, c.addr)
	if err != nil {
		s.metrics.lookupErrors.Inc() // answers go on without; the store's own metrics and log say more
		if silent != nil {
			if k, ok := s.cache.Held(c.fp); ok && take(k) {
				return true
			}
		}
		return false
	}
	k = verdict.Cached{Verdict: found.Verdict}
	if s.fresh(k, now) {
		s.fill(c, *k.Verdict, row)
		return take(k)
	}
	if r := found.Review; r != nil {
		c.mu.Lock()
		c.id, c.open, c.row = r.ID, true, row
		c.steps = map[verdict.Cause]int{verdict.CauseMailbox: r.Attempts, verdict.CauseUnusable: r.Unusable}
		c.mu.Unlock()
		if m := s.marker(*r); by.marks() && m.Until.After(now) {
			if by == person {
				s.cache.Mark(c.fp, m)
			}
			return take(verdict.Cached{Marker: &m}) // it is newer than a verdict that is stale
		}
	}
	if k.Verdict == nil {
		return false
	}
	s.fill(c, *k.Verdict, row)
	return take(k)
}

// fill keeps a verdict from the store, found under row, in the levels in front of it.
func (s *Service) fill(c *check, v verdict.Verdict, row normalize.Fingerprint) {
	switch {
	case row != c.fp:
		s.cache.Keep(c.fp, v) // so that it is found after the next rotation
	case s.fresh(verdict.Cached{Verdict: &v}, time.Now()):
		s.cache.Fill(c.fp, v)
	case c.older(v): // else what is in front is as good, or better
		s.cache.FillStale(c.fp, v)
	}
}

// older says that nothing as new as v was found so far.
func (c *check) older(v verdict.Verdict) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stale == nil || c.stale.CheckedAt.Before(v.CheckedAt)
}

// stored reads what the store has of an address: under its fingerprint, or else, while a secret is being rotated, under
// that of the former key. Row is the fingerprint under which it was found.
func (s *Service) stored(ctx context.Context, fp normalize.Fingerprint, addr normalize.Address) (found fallback.Found, row normalize.Fingerprint, err error) {
	defer func() { s.cache.Looked(found.Verdict != nil, err) }()
	found, err = s.store.Lookup(ctx, fp)
	if err != nil || found.Verdict != nil || found.Review != nil {
		return found, fp, err
	}
	for _, former := range s.prints.Previous(addr) {
		found, err = s.store.Lookup(ctx, former)
		if err != nil || found.Verdict != nil || found.Review != nil {
			return found, former, err
		}
	}
	return fallback.Found{}, fp, nil
}

// marker says how long an open review answers by itself: on the mailbox's side until its next check, else the
// least life of a marker from when it was last touched.
func (s *Service) marker(r fallback.Review) verdict.Marker {
	m := verdict.Marker{ID: r.ID, Reason: r.Reason, NextCheckAt: r.NextCheckAt, Until: r.UpdatedAt.Add(s.cache.MarkerMin())}
	switch {
	case r.Cause == verdict.CauseMailbox:
		m.Until = r.NextCheckAt
	case r.Reason == verdict.RevalidationRequested: // nobody was asked yet, so a person may
		m.Until = time.Time{}
	}
	return m
}

// ask puts the question to the upstream and keeps what comes: at every level of the cache, and in the review
// if one is open.
func (s *Service) ask(ctx context.Context, c *check, plan verdict.Plan) error {
	person := plan.Class == verdict.Interactive
	if reason, ok := s.recent.of(c.fp); ok && person {
		c.follow(reason) // the row of the one before is being written
		return nil
	}
	out := s.client.Check(ctx, c.addr, plan)
	if !out.Final() {
		if person && out.Sent > 0 {
			s.recent.add(c.fp, out.Verdict.Reason)
		}
		c.mu.Lock()
		c.outcome, c.ended = out, true
		c.mu.Unlock()
		s.amend(ctx, c)
		return nil
	}
	v := out.Verdict
	v.ID, v.Trail, v.Local = c.name(), out.Trail, c.local
	v = s.cache.Put(c.fp, v)
	c.mu.Lock()
	c.known, c.source, c.outcome, c.ended = verdict.Cached{Verdict: &v}, verdict.FromUpstream, out, true
	open, row := c.open, c.row
	c.mu.Unlock()
	if open && settles(plan) { // the loop settles what it claimed under its lease
		s.settle(ctx, row, v, out.Trail)
	}
	return nil
}

// settle writes a verdict into whatever review is open for the address. If it can't, the loop comes to the row
// in time and finds the verdict in the cache: nothing is paid twice.
func (s *Service) settle(ctx context.Context, fp normalize.Fingerprint, v verdict.Verdict, trail []verdict.Attempt) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	id, settled, err := s.store.SettleOpen(ctx, fp, v, trail)
	if err != nil {
		s.cfg.Log.ErrorContext(ctx, "late answer was not written; the loop will", "fingerprint", fp, "error", err)
		return
	}
	if settled {
		s.metrics.settledLate.Inc()
		s.waits.wake(id)
	}
}

// record makes the check durable for one watcher, once: equal watchers wait for one write. It returns the verdict
// instead when that has come meanwhile.
func (s *Service) record(ctx context.Context, c *check, out verdict.Outcome, w fallback.Watcher) (fallback.Review, *verdict.Verdict, error) {
	c.mu.Lock()
	if c.known.Verdict != nil {
		v := c.known.Verdict
		c.mu.Unlock()
		return fallback.Review{}, v, nil
	}
	r, shared := c.records[w]
	if !shared {
		r = &recording{done: make(chan struct{})}
		c.records[w] = r
	}
	id := c.id
	entry := s.entry(c, id, out, w)
	counts := out.Cause != verdict.CauseUpstream && !shared && !c.counted && !c.claimed
	if out.Cause != verdict.CauseUpstream && !shared {
		entry.Counted = !counts
		c.counted = true
	}
	if c.elsewhere {
		entry.Counted = true
	}
	c.mu.Unlock()
	if shared {
		select {
		case <-r.done:
			return r.review, nil, r.err
		case <-ctx.Done(): // the writer has more time than we
			return fallback.Review{}, nil, ctx.Err()
		}
	}
	defer close(r.done)
	r.review, r.err = s.store.Record(ctx, entry)
	if errors.Is(r.err, fallback.ErrErased) {
		// Whoever still waits counts as having come after the erasure: it is a new check from here on.
		entry.ID, entry.Fingerprint = s.anew(c, id)
		r.review, r.err = s.store.Record(ctx, entry)
	}
	if r.err != nil {
		s.metrics.recordErrors.Inc()
		s.cfg.Log.ErrorContext(ctx, "review was not recorded", "id", id, "fingerprint", c.fp, "error", r.err)
		c.mu.Lock()
		defer c.mu.Unlock()
		// Whoever asks next tries again: the store may be back before the flight has landed. What this write was to
		// count is counted by the next, unless it may have been written.
		delete(c.records, w)
		if counts && !errors.Is(r.err, fallback.ErrUnknownCommit) {
			c.counted = false
		}
		return r.review, c.known.Verdict, r.err // the answer may have come meanwhile, and needs no row
	}
	s.metrics.arrived(r.review.Reason)
	s.waits.watch(r.review.ID, w)
	s.cache.Mark(c.fp, s.markerOf(r.review))
	s.cfg.Recorded(r.review.NextCheckAt)
	c.mu.Lock()
	c.id, c.open = r.review.ID, true
	late, row := c.known.Verdict, c.row
	c.mu.Unlock()
	if late != nil {
		// The answer came while the row was being written: whoever is second settles it, and the cache's last
		// word must be the verdict.
		s.cache.Fill(c.fp, *late)
		s.settle(ctx, row, *late, out.Trail)
		return r.review, late, nil
	}
	s.amend(ctx, c)
	return r.review, nil, nil
}

// anew gives a check another id than the erased one, and forgets the review that was erased with it.
func (s *Service) anew(c *check, erased string) (id string, row normalize.Fingerprint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.id == erased { // else another who waits was here first
		c.id, c.row, c.open, c.steps = s.cfg.NewID(), c.fp, false, nil
	}
	return c.id, c.row
}

// amend writes into an open review what came too late for those who waited and is no verdict: the mailbox's side
// could not say, or the answer can't be used. It is paid for, and chooses the ladder; without it the review would be
// asked again within a minute, as one on which the upstream was silent. If it can't be written, that happens.
func (s *Service) amend(ctx context.Context, c *check) {
	c.mu.Lock()
	late := c.ended && c.known.Verdict == nil && c.outcome.Cause != verdict.CauseUpstream
	if !late || !c.open || len(c.records) == 0 || c.claimed || c.counted {
		c.mu.Unlock()
		return
	}
	c.counted = true
	var entry fallback.Entry
	for w := range c.records {
		entry = s.entry(c, c.id, c.outcome, w)
		break // it is a watcher already; any will do
	}
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	review, err := s.store.Record(ctx, entry)
	if errors.Is(err, fallback.ErrErased) {
		return // and nobody waits
	}
	if err != nil {
		s.cfg.Log.ErrorContext(ctx, "late answer was not written; the loop will ask again", "fingerprint", c.fp, "error", err)
		return
	}
	s.cache.Mark(c.fp, s.markerOf(review))
	s.cfg.Recorded(review.NextCheckAt)
}

// markerOf is the marker of a review that was recorded now.
func (s *Service) markerOf(r fallback.Review) verdict.Marker {
	m := verdict.Marker{ID: r.ID, Reason: r.Reason, NextCheckAt: r.NextCheckAt}
	if r.Cause == verdict.CauseMailbox {
		m.Until = r.NextCheckAt
	}
	return m // else the cache chooses
}

// entry is what Record writes of a check. Call it with c.mu held.
func (s *Service) entry(c *check, id string, out verdict.Outcome, w fallback.Watcher) fallback.Entry {
	in := spread(fallback.CheckIn(out.Cause, c.steps[out.Cause]), s.cfg.Rand)
	firm := false
	if wait := time.Until(out.NotBefore); wait > 0 {
		in, firm = max(in, wait+time.Duration(s.cfg.Rand()*float64(10*time.Second))), true
	}
	return fallback.Entry{
		ID: id, Fingerprint: c.row, DomainKey: s.prints.DomainKey(c.addr), Address: c.addr,
		Reason: out.Verdict.Reason, Cause: out.Cause, CheckIn: in, Firm: firm,
		Priority: fallback.PriorityInteractive, Watcher: w, Trail: out.Trail,
	}
}

// spread keeps what failed together from coming back together: up to 20 % later, never earlier.
func spread(d time.Duration, rand func() float64) time.Duration {
	return d + time.Duration(0.2*rand()*float64(d))
}

// Recheck checks the address of a claimed review for the loop: in the flight that anyone else may have or join. The
// verdict, when there is one, is cached already and carries its expiries; writing it into the claimed review is
// the loop's part. Where a new check was asked for, it began after that. An outcome that was cut off by a stop has the
// trail of a cancelled attempt, or none at all.
func (s *Service) Recheck(ctx context.Context, claim fallback.Claim) verdict.Outcome {
	since, ahead := askedSince(claim)
	if ahead {
		return cutOff()
	}
	for range maxAsks {
		c, counted, ok := s.fly(ctx, claim, since)
		if !ok {
			return cutOff()
		}
		k, _, out := c.result()
		switch {
		case k.Verdict != nil && k.Verdict.Began().Before(since):
			continue // joined a person's flight, which began before somebody asked for a new check
		case k.Verdict != nil:
			return verdict.Outcome{Verdict: *k.Verdict, Trail: out.Trail, Backoff: out.Backoff, Sent: out.Sent}
		case k.Marker != nil:
			// Joined a person's flight, which ended on a marker: the row itself. Nothing was asked; come again soon.
			return cutOff()
		}
		return unsettled(claim, c, out, counted)
	}
	return cutOff()
}

// fly makes or joins the check of a claim, and waits for it. What began before since is none. Counted says that a person's
// row counts what it found out. It is false when it was cut off.
func (s *Service) fly(ctx context.Context, claim fallback.Claim, since time.Time) (c *check, counted, ok bool) {
	plan := s.cfg.Background()
	limit := plan.Budget + s.cfg.LateTimeout()
	// Not the row's own fingerprint: that may be a former key's, and people who ask meanwhile must join.
	fp := s.prints.Of(claim.Address)
	f, _, err := s.flights.Start(fp, limit,
		func() *check {
			c := s.newCheck(fp, claim.Address, claim.ReviewID, localOf(s.cfg.Address().Domains.Look(claim.Address)))
			c.claimed, c.row, c.since = true, claim.Fingerprint, since
			return c
		},
		func(ctx context.Context, c *check) error {
			return s.find(ctx, c, verdict.Plan{Class: verdict.Background, Until: time.Now().Add(plan.Budget), MaxRetries: plan.MaxRetries,
				Fingerprint: claim.Fingerprint.Prefix()}, worker)
		})
	if err != nil {
		return nil, false, false
	}
	counted = f.Value().claim()
	select {
	case <-f.Done():
		return f.Value(), counted, true
	case <-ctx.Done():
		return nil, false, false
	}
}

// unsettled is the outcome of a check that brought no verdict.
func unsettled(claim fallback.Claim, c *check, out verdict.Outcome, counted bool) verdict.Outcome {
	cause := out.Cause
	if c.learnt() { // who asked counts it
		cause, counted = causeOf(out.Verdict.Reason), true
	}
	if counted && cause != verdict.CauseUpstream {
		// Counted once is enough, and the time that the answer asks for still holds.
		step := claim.Attempts
		if cause == verdict.CauseUnusable {
			step = claim.Unusable
		}
		if next := time.Now().Add(fallback.CheckIn(cause, step)); next.After(out.NotBefore) {
			out.NotBefore = next
		}
		out.Cause = verdict.CauseUpstream
	}
	return out
}

// cutOff is the outcome of a check that was not made.
func cutOff() verdict.Outcome {
	return verdict.Outcome{Verdict: verdict.Verdict{Status: verdict.NeedsReview, Reason: verdict.BudgetExhausted}, Cause: verdict.CauseUpstream}
}

// Settled tells those who wait for a review that it ended.
func (s *Service) Settled(id string) { s.waits.wake(id) }
