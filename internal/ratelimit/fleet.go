package ratelimit

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"validator-gw/internal/redisconn"
)

// MaxWait is the furthest that a Fleet books ahead, whatever a caller would put up with. What was booked in Redis before
// it went must be over before a share of one's own begins, so it is bounded here.
const MaxWait = 50 * time.Millisecond

// maxHold bounds how long the fleet can be told to hold its calls, whatever Limits.MaxHold says.
const maxHold = 24 * time.Hour

// How replicas know of one another.
const (
	// beatEvery is how often a replica says that it is there; beatLimit bounds the call, and Redis does not accept a beat
	// that comes later than that: one that waited in a hung server would make a replica look alive that is not.
	beatEvery = time.Second
	beatLimit = 100 * time.Millisecond
	// silence is after how long a replica without a beat is taken to be on a share of its own, which is then kept out of
	// the fleet's bucket. A replica that lost Redis grants nothing until that has happened, so this is also the gap in
	// grants when Redis goes; five times as long would make it five times as long.
	silence = 3 * time.Second
	// alone is when a replica that last sent a beat at t may begin: the beat may take effect twice its limit later, as
	// Redis's time is known to within one call.
	alone = silence + 2*beatLimit
	// memory is how long a missing replica's share is kept for it when nobody takes its place.
	memory = 5 * time.Minute
)

// A replica on its own takes ownShare of the rate, divided by the number of replicas. What is left covers one that the
// others have not heard of yet: it takes newShare instead.
const (
	ownShare = 0.7
	newShare = 0.3
)

// How Redis is given up and taken up again.
const (
	loseAfter = 5                      // failures in a row of the bucket's own calls,
	loseSpan  = 100 * time.Millisecond // over at least this; the connection knows the rule, too, but not whose calls fail
	goodLooks = 3                      // answers in a row
	joinTries = 3                      // at the start, when the first connections are yet to be made
)

// Fleet is a bucket that all replicas share in Redis. Grants in any window of length t stay within rate·t + burst over
// all of them, whichever of them lose Redis, and when, as far as this goes:
//
//   - While Redis answers, one script decides on Redis's own clock. Nothing is asked twice.
//   - A replica that lost it (five failures in a row, or the connection at rest) grants nothing for the moment: for up to
//     3.2 s, until the others see that it is silent and leave it its share. Then it grants 0.7/n of rate and burst by
//     itself, beginning with an empty bucket. n is the most replicas that were seen at once, and at least
//     Limits.Instances. One that the others may not have heard of grants 0.3/n.
//   - Redis is taken up again after three good answers. The replica stops granting, empties the bucket in Redis, and goes
//     on there. A Redis that lost its memory has an empty bucket, too.
//
// What it does not cover, in calls over the limit: with less than one grant of burst for each replica, one call for each
// replica that is on its own; a replica that alone lost Redis for longer than five minutes, or while a newcomer took its
// place, its share (0.7/n of the rate) from then on; a replica that never saw Redis, with Limits.Instances set below the
// number of replicas, its share of that wrong number; a clock of Redis that jumps forward, one burst.
//
// Safe for concurrent use. Run must run beside it, or it stays on a share of its own.
type Fleet struct {
	conn    *redisconn.Conn
	limits  func() Limits
	log     *slog.Logger
	metrics *metrics
	id      string
	keys    []string
	began   time.Time

	mu          sync.Mutex
	mode        mode
	fails       int       // calls in a row that Redis did not do, while shared
	failing     time.Time // since when
	looks       int       // good answers in a row, while on its own
	quiet       time.Time // while on its own: no grant before
	held        time.Time // the fleet's gate, as far as it was seen from here
	known       int       // most members that were live at once; 0: never a member
	heard       bool      // the others know of this one
	joined      time.Time
	sent        time.Time     // the latest beat that may have taken effect
	redisAhead  time.Duration // Redis's Unix time less the time since began, at most
	main, floor meter         // in nanoseconds since began
}

// spareClass asks the script how much there is to spare.
const spareClass = "spare"

// mode is where grants come from.
type mode int

const (
	onItsOwn mode = iota
	between       // nobody grants: the bucket in Redis is about to be emptied
	shared
	left
)

// FleetConfig is what NewFleet needs besides the connection and the limits.
type FleetConfig struct {
	// Name tells buckets apart: replicas with one name share one. It must not be secret.
	Name string
	// Prefix goes before every key; for tests that share a server.
	Prefix string
	// Log gets a line when Redis is lost or found; nil discards.
	Log *slog.Logger
	// Registerer gets the metrics; nil keeps them unseen.
	Registerer prometheus.Registerer
}

// NewFleet returns a bucket on conn, which stays the caller's; limits is read at each call. It does no I/O.
func NewFleet(conn *redisconn.Conn, limits func() Limits, cfg FleetConfig) *Fleet {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	tag := cfg.Prefix + "rl1:{" + cfg.Name + "}:"
	now := time.Now()
	return &Fleet{
		conn: conn, limits: limits, log: cfg.Log, metrics: newMetrics(cfg.Registerer), id: rand.Text(), began: now,
		keys: []string{tag + "bucket", tag + "gate", tag + "members"}, quiet: now.Add(alone),
	}
}

// TakeInteractive asks for one grant that may start within maxWait, or MaxWait if that is less. When granted, the slot is
// booked: sleep wait, then go. A refusal books nothing. notBefore is set when the fleet's gate is closed. It waits for
// Redis no longer than the connection's LookUp; no answer is a refusal.
func (f *Fleet) TakeInteractive(ctx context.Context, maxWait time.Duration) (wait time.Duration, notBefore time.Time, ok bool) {
	return f.take(ctx, interactive, min(maxWait, MaxWait))
}

// TakeBackground asks for one grant at once: from what lies above the reserve, else from the floor.
func (f *Fleet) TakeBackground(ctx context.Context) (notBefore time.Time, ok bool) {
	_, notBefore, ok = f.take(ctx, background, 0)
	return notBefore, ok
}

// Spare is how many grants TakeBackground would give now, one after the other; another replica may be quicker to take
// them. It takes none, waits for Redis no longer than the connection's LookUp, and is 0 without an answer.
func (f *Fleet) Spare(ctx context.Context) int {
	lim := f.limits()
	now := time.Now()
	f.mu.Lock()
	f.refresh(ctx, now, lim)
	shut, inRedis := now.Before(f.held) || lim.Rate < minRate, f.mode == shared
	own := 0
	if !shut && !inRedis {
		own = f.spareOwn(now, lim)
	}
	f.mu.Unlock()
	if shut || !inRedis {
		return own
	}
	got, err := f.askBucket(ctx, lim, spareClass, 0)
	if err != nil {
		return 0
	}
	return int(got[0])
}

func (f *Fleet) take(ctx context.Context, c class, maxWait time.Duration) (wait time.Duration, notBefore time.Time, ok bool) {
	lim := f.limits()
	now := time.Now()
	f.mu.Lock()
	f.refresh(ctx, now, lim)
	inRedis, held := f.mode == shared, f.held
	source := fromLocal
	if inRedis {
		source = fromRedis
	}
	if now.Before(held) {
		f.mu.Unlock()
		f.metrics.takes[c][fromRedis][resultHeld].Inc()
		return 0, held, false
	}
	if !inRedis || lim.Rate < minRate {
		if lim.Rate >= minRate {
			wait, ok = f.takeOwn(now, lim, c, maxWait)
		}
		f.mu.Unlock()
		f.metrics.took(c, source, ok, wait)
		return wait, time.Time{}, ok
	}
	f.mu.Unlock()

	got, err := f.askBucket(ctx, lim, classNames[c], maxWait)
	switch {
	case err != nil:
		f.metrics.takes[c][source][resultError].Inc()
		return 0, time.Time{}, false
	case got[2] > 0:
		f.metrics.takes[c][source][resultHeld].Inc()
		f.mu.Lock()
		defer f.mu.Unlock()
		return 0, f.held, false
	}
	if ok = got[0] == 1; ok {
		wait = time.Duration(got[1]) * time.Microsecond
	}
	f.metrics.took(c, source, ok, wait)
	return wait, time.Time{}, ok
}

// refresh brings what is known of Redis and of the gate up to now. The caller holds mu.
func (f *Fleet) refresh(ctx context.Context, now time.Time, lim Limits) {
	if f.mode == shared && f.conn.Resting() {
		f.lose(ctx, now, lim)
	}
	f.shorten(now, lim)
}

// askBucket runs luaTake and notes what it says of Redis and of the gate.
func (f *Fleet) askBucket(ctx context.Context, lim Limits, class string, maxWait time.Duration) ([]int64, error) {
	began := time.Now()
	got, err := f.ask(ctx, luaTake, f.conn.LookUp(), class, text(lim.Rate), lim.burst(), text(lim.Reserve), text(lim.Floor),
		micros(maxWait), micros(MaxWait), micros(silence), text(ownShare), max(lim.Instances, 1), micros(lim.hold()))
	took := time.Now()
	f.metrics.latency.Observe(took.Sub(began).Seconds())
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && got[2] > 0 {
		f.held = later(f.held, took.Add(time.Duration(got[2])*time.Microsecond))
	}
	f.done(ctx, took, lim, err)
	return got, err
}

// Hold tells the fleet that nobody calls for d from now, Limits.MaxHold at most. It only ever moves the gate later. It returns
// within the connection's LookUp; a failure is counted, and what Redis was not told it is told once it answers again.
func (f *Fleet) Hold(ctx context.Context, d time.Duration) {
	d = min(d, f.limits().hold())
	if d <= 0 {
		return
	}
	f.mu.Lock()
	f.held = later(f.held, time.Now().Add(d))
	inRedis := f.mode == shared
	f.mu.Unlock()
	err := redisconn.ErrResting
	if inRedis {
		// Whoever was told to wait may be about to leave; the others need to know all the same.
		_, err = f.call(context.WithoutCancel(ctx), luaHold, f.conn.LookUp(), f.keys[1:2], micros(d))
	}
	f.metrics.held(err)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// shorten keeps the gate within what the limits allow. The caller holds mu.
func (f *Fleet) shorten(now time.Time, lim Limits) {
	if most := now.Add(lim.hold()); f.held.After(most) {
		f.held = most
	}
}

// takeOwn takes from this replica's own share. The caller holds mu.
func (f *Fleet) takeOwn(now time.Time, lim Limits, c class, maxWait time.Duration) (time.Duration, bool) {
	if f.mode != onItsOwn || now.Before(f.quiet) {
		return 0, false
	}
	main, floor := f.own(lim)
	return takeEither(&f.main, &f.floor, now.Sub(f.began), main, floor, c, lim.Reserve, maxWait)
}

// spareOwn is how much takeOwn would give to background work. The caller holds mu.
func (f *Fleet) spareOwn(now time.Time, lim Limits) int {
	if f.mode != onItsOwn || now.Before(f.quiet) {
		return 0
	}
	main, floor := f.own(lim)
	return spareOfBoth(&f.main, &f.floor, now.Sub(f.began), main, floor, lim.Reserve)
}

// own is the share of a replica on its own. The caller holds mu.
func (f *Fleet) own(lim Limits) (main, floor share) {
	n := max(f.known, lim.Instances, 1)
	part := ownShare / float64(n)
	if f.known > max(lim.Instances, 1) && !f.heard {
		part = newShare / float64(n)
	}
	return split(lim.Rate*part, float64(lim.Burst)*part, lim.Floor)
}

// done notes how a call of the bucket's own ended. The caller holds mu.
func (f *Fleet) done(ctx context.Context, now time.Time, lim Limits, err error) {
	switch {
	case f.mode != shared:
	case err == nil:
		f.fails = 0
	case ctx.Err() == nil: // else the caller left
		if f.fails == 0 {
			f.failing = now
		}
		if f.fails++; errors.Is(err, redisconn.ErrResting) || f.fails >= loseAfter && now.Sub(f.failing) >= loseSpan {
			f.lose(ctx, now, lim)
		}
	}
}

// lose begins the time on its own. The caller holds mu.
func (f *Fleet) lose(ctx context.Context, now time.Time, lim Limits) {
	f.startOwn(later(now.Add(MaxWait), f.sent.Add(alone)))
	f.metrics.shared.Set(0)
	main, floor := f.own(lim)
	f.log.WarnContext(ctx, "redis gives no grants; this replica keeps to its own share of the upstream's rate",
		"rate", main.rate+floor.rate, "instances", max(f.known, lim.Instances, 1))
}

// startOwn sets an empty bucket that begins to fill at quiet. The caller holds mu.
func (f *Fleet) startOwn(quiet time.Time) {
	f.mode, f.looks, f.fails, f.quiet = onItsOwn, 0, 0, quiet
	at := int64(quiet.Sub(f.began))
	f.main.empty(at, 0, 0)
	f.floor.empty(at, 0, 0)
}

// Join makes this replica a member at once, if Redis answers within a fraction of a second; else Run does so later. Let
// Run follow, or the others will miss this one.
func (f *Fleet) Join(ctx context.Context) {
	for range joinTries {
		if f.step(ctx); f.member() {
			return
		}
	}
}

// Run keeps this replica known to the others, and finds Redis again when it was lost. When ctx ends it takes leave of
// them, within a bounded time, and returns; grants end with it.
func (f *Fleet) Run(ctx context.Context) error {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	if !f.member() {
		f.step(ctx)
	}
	for {
		select {
		case <-ctx.Done():
			f.leave(context.WithoutCancel(ctx))
			return nil
		case <-tick.C:
			f.step(ctx)
		}
	}
}

func (f *Fleet) member() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mode == shared
}

// step is one beat, or one look for a Redis that was lost.
func (f *Fleet) step(ctx context.Context) {
	lim := f.limits()
	f.mu.Lock()
	f.shorten(time.Now(), lim)
	joined := f.mode == shared
	if joined && f.conn.Resting() {
		f.lose(ctx, time.Now(), lim)
		joined = false
	}
	first := f.known == 0 && time.Now().Before(f.quiet) // and nothing was granted yet
	f.mu.Unlock()
	if joined {
		f.beat(ctx, lim)
		return
	}
	before := time.Now()
	got, err := f.tell(ctx, "look", time.Time{}, 0, lim, 0)
	f.mu.Lock()
	if err != nil {
		f.looks = 0
		f.mu.Unlock()
		return
	}
	f.looks++
	f.sync(before, got)
	enough := f.looks >= goodLooks || first
	f.mu.Unlock()
	if enough {
		f.enter(ctx, lim)
	}
}

// sync notes what time it is in Redis, given an answer to a call that began at before. The true time was read after
// that, so the estimate is never behind. The caller holds mu.
func (f *Fleet) sync(before time.Time, got []int64) {
	f.redisAhead = time.Duration(got[0])*time.Microsecond - before.Sub(f.began)
}

func (f *Fleet) beat(ctx context.Context, lim Limits) {
	before := time.Now()
	f.mu.Lock()
	f.sent = before
	known := f.known
	f.mu.Unlock()
	got, err := f.tell(ctx, "beat", before, known, lim, 0)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done(ctx, time.Now(), lim, err)
	if err != nil {
		return
	}
	f.sync(before, got)
	if got[1] < 0 { // too late, or the clock there jumped; the next one goes by the new time
		return
	}
	f.heard = before.Sub(f.joined) >= silence
	f.seen(got)
}

// seen notes the members that an answer told of. The caller holds mu.
func (f *Fleet) seen(got []int64) {
	f.known = int(got[2])
	f.metrics.instances.Set(float64(got[1]))
	f.metrics.missing.Set(float64(max(got[2]-got[1], 0)))
}

// enter makes this replica a member. Until Redis says yes it grants nothing, and after no answer it must keep still as
// after a beat.
func (f *Fleet) enter(ctx context.Context, lim Limits) {
	before := time.Now()
	f.mu.Lock()
	known, hold := f.known, time.Until(f.held)
	if known == 0 && before.After(f.quiet) {
		known = 1 // it was on a share of its own, so the bucket must be emptied
	}
	f.mode = between
	f.mu.Unlock()
	got, err := f.tell(ctx, "enter", before, known, lim, hold)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil && got[1] >= 0:
		f.mode, f.fails, f.heard = shared, 0, false
		f.sent, f.joined = before, before
		f.sync(before, got)
		f.seen(got)
		f.metrics.shared.Set(1)
		f.log.InfoContext(ctx, "the upstream's rate is shared in redis", "instances", got[1])
	case err == nil, errors.Is(err, redisconn.ErrResting), errors.Is(err, redisconn.ErrReply):
		f.mode, f.looks = onItsOwn, 0 // it did not happen
	default:
		f.sent = before
		f.startOwn(before.Add(alone))
	}
}

// leave tells the others that this replica takes no more.
func (f *Fleet) leave(ctx context.Context) {
	f.mu.Lock()
	was := f.mode
	f.mode = left
	f.mu.Unlock()
	f.metrics.shared.Set(0)
	if was == shared {
		_, _ = f.tell(ctx, "leave", time.Time{}, 0, f.limits(), 0) // unsaid, it is missed for a while
	}
}

// tell runs luaMember. A sent time makes Redis refuse what comes to it much later.
func (f *Fleet) tell(ctx context.Context, op string, sent time.Time, known int, lim Limits, hold time.Duration) ([]int64, error) {
	var notAfter int64
	if !sent.IsZero() {
		f.mu.Lock()
		notAfter = (f.redisAhead + sent.Sub(f.began) + beatLimit).Microseconds()
		f.mu.Unlock()
	}
	return f.ask(ctx, luaMember, beatLimit, op, f.id, notAfter, known, micros(silence), micros(memory), text(lim.Rate), lim.burst(),
		text(lim.Floor), micros(MaxWait), micros(max(hold, 0)), micros(lim.hold()))
}

func (f *Fleet) ask(ctx context.Context, s *redis.Script, limit time.Duration, args ...any) ([]int64, error) {
	return f.call(ctx, s, limit, f.keys, args...)
}

func (f *Fleet) call(ctx context.Context, s *redis.Script, limit time.Duration, keys []string, args ...any) (got []int64, err error) {
	err = f.conn.Call(ctx, limit, func(ctx context.Context, c redis.UniversalClient) (err error) {
		got, err = run(ctx, c, s, keys, args...)
		return err
	})
	return got, err
}

func (l Limits) burst() int { return max(l.Burst, 1) }

func (l Limits) hold() time.Duration {
	if l.MaxHold <= 0 {
		return maxHold
	}
	return min(l.MaxHold, maxHold)
}

func micros(d time.Duration) int64 { return d.Microseconds() }

// text writes a number such that Lua reads the same double.
func text(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
