// Package cache keeps verdicts so that no address is billed twice without need: in the process (otter), in
// Redis behind it when there is one, and, written behind, in the durable store. A fault of any level counts as
// a miss. Values hold no address; keys are fingerprints.
//
// Beside verdicts it keeps markers: "this address is recorded for review under this id", for seconds, so that
// repeats during an outage cost nothing. A marker is never a verdict.
package cache

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// TTL is how long a verdict is fresh and how long it is kept.
type TTL struct{ Soft, Hard time.Duration }

// Tuning are the settings that may change while the cache runs; they apply to what is put from then on.
type Tuning struct {
	Valid, Invalid, Risky, MailboxFull, Unresolved TTL
	// Jitter spreads expiries by ± this share, so that what was put together does not expire together.
	Jitter float64
	// MarkerMin and MarkerMax bound a marker's life on the upstream's side of trouble.
	MarkerMin, MarkerMax time.Duration
}

// DefaultTuning returns the defaults of docs/settings.md.
func DefaultTuning() Tuning {
	const day = 24 * time.Hour
	return Tuning{
		Valid:       TTL{7 * day, 30 * day},
		Invalid:     TTL{day, 3 * day},
		Risky:       TTL{7 * day, 30 * day},
		MailboxFull: TTL{time.Hour, day},
		Unresolved:  TTL{day, day},
		Jitter:      0.1,
		MarkerMin:   30 * time.Second,
		MarkerMax:   60 * time.Second,
	}
}

// claimed is the life of a verdict on an address whose owner forbade asking about it: nobody asks again before.
var claimed = TTL{30 * 24 * time.Hour, 30 * 24 * time.Hour}

// localMarker bounds a marker's life in the process: another replica may have settled the review since.
const localMarker = 2 * time.Second

// localVerdict is how long the process answers with a verdict by itself when there is a Redis behind it, where another
// replica may have put a newer one. It is kept for longer, for when nobody else can be asked: see Held.
const localVerdict = time.Minute

// durable is what keeps verdicts for good.
type durable interface {
	PutVerdicts(ctx context.Context, batch []Stored) error
}

// Stored is a verdict with its key, as the write-behind hands it over.
type Stored struct {
	Fingerprint normalize.Fingerprint
	Verdict     verdict.Verdict
}

// DefaultMemory has room for more than 100,000 verdicts.
const DefaultMemory = 32 << 20

// Config is what New needs besides the durable store.
type Config struct {
	// Memory bounds the entries in the process, in bytes, about; DefaultMemory when zero.
	Memory int64
	// Redis is the second level; nil for none.
	Redis *Redis
	// Tuning is read at each Put; nil takes DefaultTuning.
	Tuning func() Tuning
	// Rand returns numbers in [0, 1) and must be safe for concurrent use.
	Rand func() float64
	// Log gets warnings; nil discards.
	Log *slog.Logger
	// Registerer gets the metrics; nil keeps them unseen.
	Registerer prometheus.Registerer
}

// Cache is the three levels. Safe for concurrent use. Run must run beside it, or nothing reaches Redis and the
// durable store; Close ends it.
type Cache struct {
	local   *otter.Cache[normalize.Fingerprint, packed]
	redis   *Redis
	behind  *behind
	tuning  func() Tuning
	rand    func() float64
	metrics *metrics
	erased  erasures
}

// New returns a cache in front of store. It does no I/O.
func New(store durable, cfg Config) (*Cache, error) {
	if cfg.Rand == nil {
		return nil, errors.New("cache: Rand is required")
	}
	if cfg.Memory <= 0 {
		cfg.Memory = DefaultMemory
	}
	if cfg.Tuning == nil {
		cfg.Tuning = DefaultTuning
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Cache{redis: cfg.Redis, tuning: cfg.Tuning, rand: cfg.Rand}
	local, err := otter.New(&otter.Options[normalize.Fingerprint, packed]{
		MaximumWeight: uint64(cfg.Memory),
		Weigher:       func(_ normalize.Fingerprint, p packed) uint32 { return p.weight() },
		ExpiryCalculator: otter.ExpiryWritingFunc(func(e otter.Entry[normalize.Fingerprint, packed]) time.Duration {
			return max(c.localLife(e.Value), time.Nanosecond)
		}),
	})
	if err != nil {
		return nil, err
	}
	c.local = local
	c.metrics = newMetrics(cfg.Registerer, func() float64 { return float64(local.EstimatedSize()) })
	c.behind = newBehind(store, cfg.Redis, cfg.Log, c.metrics)
	return c, nil
}

func (c *Cache) localLife(p packed) time.Duration {
	d := p.life(time.Now())
	if p.more != nil && p.more.marker != nil {
		return min(d, localMarker)
	}
	return d
}

// Local looks in the process only: no I/O, no wait.
func (c *Cache) Local(fp normalize.Fingerprint) (verdict.Cached, bool) {
	k, ok := c.Again(fp)
	c.metrics.lookedLocal(ok)
	return k, ok
}

// Again is Local for whoever has looked before, or asks for nobody: it is not counted, so that of the counted look-ups each is one
// answer that was wanted.
func (c *Cache) Again(fp normalize.Fingerprint) (verdict.Cached, bool) {
	p, ok := c.local.GetIfPresent(fp)
	if !ok || !c.answers(p, time.Now()) {
		return verdict.Cached{}, false
	}
	return p.unpack(), true
}

// answers says whether an entry of the process is an answer by itself.
func (c *Cache) answers(p packed, now time.Time) bool {
	return p.life(now) > 0 && (c.redis == nil || now.UnixNano()-p.kept < int64(localVerdict))
}

// Held is Local for when neither Redis nor the store can be asked: what the process was told a while ago is better than to
// pay for it again.
func (c *Cache) Held(fp normalize.Fingerprint) (verdict.Cached, bool) {
	p, ok := c.local.GetIfPresent(fp)
	if !ok || p.life(time.Now()) <= 0 {
		return verdict.Cached{}, false
	}
	return p.unpack(), true
}

// Shared looks in Redis, when there is one, and keeps what it finds in the process. An error says that Redis did not answer.
func (c *Cache) Shared(ctx context.Context, fp normalize.Fingerprint) (verdict.Cached, bool, error) {
	if c.redis == nil {
		return verdict.Cached{}, false, nil
	}
	e, ok, err := c.redis.get(ctx, fp)
	ok = ok && e.Life(time.Now()) > 0
	c.metrics.looked(levelRedis, ok, err)
	if ok {
		c.keep(fp, e, func() { c.local.Set(fp, pack(e)) })
	}
	return e, ok, err
}

// Adopt reads a value as Redis holds it, which somebody else got from there, and keeps it in the process. It is false for
// what is none, has ended, or belongs to a check whose address was erased since.
func (c *Cache) Adopt(fp normalize.Fingerprint, value []byte) (verdict.Cached, bool) {
	e, ok := decode(value)
	if !ok || e.Life(time.Now()) <= 0 {
		return verdict.Cached{}, false
	}
	ok = false
	c.keep(fp, e, func() {
		c.local.Set(fp, pack(e))
		ok = true
	})
	return e, ok
}

// Looked counts a look-up of a verdict in the durable store, which is the level behind both and is read by others.
func (c *Cache) Looked(found bool, err error) { c.metrics.looked(levelStore, found, err) }

// Written returns a channel that is closed once what was put before the call is in Redis, or erased: within a
// millisecond or two. It stays open when Redis did not take it; without Redis it is closed.
func (c *Cache) Written() <-chan struct{} { return c.behind.written() }

// Put keeps a final verdict at every level and returns it with its expiries set. It does not wait for Redis or
// the store: the verdict is durable within a second. That of a check that began before its address was erased is kept
// nowhere; the same goes for all that is kept here. One that is not final is returned as it is and kept nowhere:
// it would be served as an answer, and the store refuses the batch that holds it.
func (c *Cache) Put(fp normalize.Fingerprint, v verdict.Verdict) verdict.Verdict {
	if !v.Status.Final() {
		return v
	}
	v = c.stamp(v)
	e := verdict.Cached{Verdict: &v}
	c.keep(fp, e, func() {
		c.local.Set(fp, pack(e))
		c.behind.verdict(fp, v)
	})
	return v
}

// Fill keeps a verdict that came from the durable store, as it is, in the levels in front of it.
func (c *Cache) Fill(fp normalize.Fingerprint, v verdict.Verdict) {
	c.put(fp, verdict.Cached{Verdict: &v})
}

// FillStale is Fill for a verdict that is no longer fresh. In Redis it does not take the place of another, which may have
// been put there since the store was read.
func (c *Cache) FillStale(fp normalize.Fingerprint, v verdict.Verdict) {
	e := verdict.Cached{Verdict: &v}
	c.keep(fp, e, func() {
		c.local.Set(fp, pack(e))
		c.behind.send(sharedEntry{fp: fp, e: e, weak: true})
	})
}

// Keep is Fill for a verdict that the durable store has under a former key: it is written under this one, too.
func (c *Cache) Keep(fp normalize.Fingerprint, v verdict.Verdict) {
	e := verdict.Cached{Verdict: &v}
	c.keep(fp, e, func() {
		c.local.Set(fp, pack(e))
		c.behind.verdict(fp, v)
	})
}

// Mark keeps a marker in the process and in Redis, but not in a fresh verdict's place: who waited too long records its row
// after another check has found one. A zero Until is set to between MarkerMin and MarkerMax from now.
func (c *Cache) Mark(fp normalize.Fingerprint, m verdict.Marker) {
	if m.Until.IsZero() {
		t := c.tuning()
		m.Until = time.Now().Add(t.MarkerMin + time.Duration(c.rand()*float64(t.MarkerMax-t.MarkerMin)))
	}
	e := verdict.Cached{Marker: &m}
	c.keep(fp, e, func() {
		c.local.Compute(fp, func(old packed, there bool) (packed, otter.ComputeOp) {
			now := time.Now()
			if k := old.unpack(); there && k.Verdict != nil && k.Fresh(now) && c.answers(old, now) {
				return old, otter.CancelOp
			}
			return pack(e), otter.WriteOp
		})
		c.behind.send(sharedEntry{fp: fp, e: e})
	})
}

// put keeps an entry in the process and in Redis.
func (c *Cache) put(fp normalize.Fingerprint, e verdict.Cached) {
	c.keep(fp, e, func() {
		c.local.Set(fp, pack(e))
		c.behind.send(sharedEntry{fp: fp, e: e})
	})
}

// MarkerMin is the least life of a marker on the upstream's side.
func (c *Cache) MarkerMin() time.Duration { return c.tuning().MarkerMin }

// Pending returns a verdict that is not in the durable store yet, by the id of its check.
func (c *Cache) Pending(id string) (verdict.Verdict, bool) { return c.behind.byID(id) }

// stamp sets the expiries by status and reason.
func (c *Cache) stamp(v verdict.Verdict) verdict.Verdict {
	t := c.tuning()
	ttl := t.Unresolved
	switch {
	case v.Reason == verdict.ClaimedByPerson:
		ttl = claimed
	case v.Reason == verdict.MailboxFull:
		ttl = t.MailboxFull
	case v.Status == verdict.Valid:
		ttl = t.Valid
	case v.Status == verdict.Invalid:
		ttl = t.Invalid
	case v.Status == verdict.Risky:
		ttl = t.Risky
	}
	spread := 1 + t.Jitter*(2*c.rand()-1)
	now := time.Now()
	v.SoftUntil = now.Add(time.Duration(float64(ttl.Soft) * spread))
	v.HardUntil = now.Add(time.Duration(float64(ttl.Hard) * spread))
	return v
}

// Run writes behind until ctx ends, then flushes within the flush time-out and returns nil.
func (c *Cache) Run(ctx context.Context) error {
	c.behind.run(ctx)
	return nil
}

// Close ends the cache's own goroutines. Call it after Run has returned.
func (c *Cache) Close() { c.local.StopAllGoroutines() }
