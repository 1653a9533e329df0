package cache

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"validator-gw/internal/normalize"
	"validator-gw/internal/redisconn"
	"validator-gw/internal/verdict"
)

// Bounds of the write-behind.
const (
	flushEvery   = 200 * time.Millisecond // a 200's id is durable within a second
	flushTimeout = 3 * time.Second
	batchSize    = 200
	// keepVerdicts bounds what waits for a store that is down: about 17 minutes at 20 paid verdicts a second.
	keepVerdicts = 20_000
	keepShared   = 4_096
)

// behind carries what was put to Redis and to the durable store, each in the order in which it was put. The two
// know nothing of one another: a level that hangs does not hold up the other.
type behind struct {
	store   durable
	redis   *Redis
	log     *slog.Logger
	metrics *metrics
	some    chan struct{} // verdicts wait
	full    chan struct{} // a batch of them
	share   chan struct{} // something waits for Redis
	writing chan struct{} // holds a value while a batch is written for good

	mu      sync.Mutex
	seq     uint64
	queue   []queued          // not yet durable, oldest first
	ids     map[string]queued // the latest of each id in queue
	sharing []sharedEntry
}

// queued is a verdict with its place in the order of all that were ever put.
type queued struct {
	Stored
	seq uint64
}

// sharedEntry is an entry that waits for Redis; or a question, when told is set: closed once all before it are there.
type sharedEntry struct {
	fp   normalize.Fingerprint
	e    verdict.Cached
	weak bool // it leaves a verdict that is there alone, as a marker does
	told chan struct{}
}

func newBehind(store durable, redis *Redis, log *slog.Logger, m *metrics) *behind {
	return &behind{store: store, redis: redis, log: log, metrics: m, ids: make(map[string]queued),
		some: make(chan struct{}, 1), full: make(chan struct{}, 1), share: make(chan struct{}, 1), writing: make(chan struct{}, 1)}
}

func (b *behind) verdict(fp normalize.Fingerprint, v verdict.Verdict) {
	b.send(sharedEntry{fp: fp, e: verdict.Cached{Verdict: &v}})
	b.mu.Lock()
	if len(b.queue) >= keepVerdicts {
		// Paid for and lost to the store, though not to the caches: counted, and an alarm.
		b.forget(1)
		b.metrics.lost.Inc()
	}
	b.seq++
	q := queued{Stored{Fingerprint: fp, Verdict: v}, b.seq}
	b.queue = append(b.queue, q)
	b.ids[v.ID] = q
	n := len(b.queue)
	b.metrics.waiting.Set(float64(n))
	b.mu.Unlock()
	poke(b.some)
	if n >= batchSize {
		poke(b.full)
	}
}

// forget removes the n oldest. The caller holds mu.
func (b *behind) forget(n int) {
	for _, q := range b.queue[:n] {
		if b.ids[q.Verdict.ID].seq == q.seq { // else a later verdict of the same check waits behind it
			delete(b.ids, q.Verdict.ID)
		}
	}
	b.queue = b.queue[n:]
	b.metrics.waiting.Set(float64(len(b.queue)))
}

// send hands an entry to the writer of Redis.
func (b *behind) send(s sharedEntry) {
	if b.redis == nil {
		return
	}
	b.mu.Lock()
	if len(b.sharing) < keepShared { // over it Redis is slow or away: a miss there costs a look-up in the store
		b.sharing = append(b.sharing, s)
	}
	b.mu.Unlock()
	poke(b.share)
}

// written returns a channel that is closed once all that waits for Redis now is there, or has been erased meanwhile; it
// stays open when that was not to be.
func (b *behind) written() <-chan struct{} {
	told := make(chan struct{})
	if b.redis == nil {
		close(told)
		return told
	}
	b.mu.Lock()
	if len(b.sharing) < keepShared { // else something before it may have been left out
		b.sharing = append(b.sharing, sharedEntry{told: told})
	}
	b.mu.Unlock()
	poke(b.share)
	return told
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (b *behind) byID(id string) (verdict.Verdict, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q, ok := b.ids[id]
	return q.Verdict, ok
}

// run returns when ctx has ended and what waited then is written, or could not be within the flush time-out.
func (b *behind) run(ctx context.Context) {
	var sharing sync.WaitGroup
	defer sharing.Wait()
	if b.redis != nil {
		sharing.Go(func() { b.runShared(ctx) })
	}
	var due <-chan time.Time // set while something waits: at rest nothing ticks
	failing := false
	for {
		full := b.full
		if failing {
			full = nil // more verdicts are no reason to ask a failing store more often
		}
		select {
		case <-ctx.Done():
			if err := b.flushVerdicts(last(ctx)); err != nil {
				b.log.ErrorContext(ctx, "verdicts were not written before the end", "count", b.waiting(), "error", err)
			}
			return
		case <-b.some:
			if due == nil {
				due = time.After(flushEvery)
			}
			continue
		case <-full:
		case <-due:
		}
		due = nil
		err := b.flushVerdicts(context.WithTimeout(ctx, flushTimeout))
		if err != nil {
			due = time.After(flushEvery)
		}
		switch {
		case err != nil && !failing && ctx.Err() == nil:
			b.log.ErrorContext(ctx, "verdicts can't be written now; they are kept and tried again", "error", err)
			failing = true
		case err == nil && failing:
			b.log.InfoContext(ctx, "verdicts are written again")
			failing = false
		}
	}
}

func (b *behind) runShared(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			b.flushShared(last(ctx))
			return
		case <-b.share:
			b.flushShared(ctx, func() {})
		}
	}
}

// last gives the last flush a time of its own: what is paid for is not left behind.
func last(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
}

func (b *behind) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)
}

// flushVerdicts writes all that waits, oldest first, and forgets a batch only once it is durable.
func (b *behind) flushVerdicts(ctx context.Context, cancel context.CancelFunc) error {
	defer cancel()
	b.writing <- struct{}{} // whoever holds it but this does so for a moment
	defer func() { <-b.writing }()
	for {
		b.mu.Lock()
		n := min(len(b.queue), batchSize)
		if n == 0 {
			b.mu.Unlock()
			return nil
		}
		batch := make([]Stored, n)
		for i, q := range b.queue[:n] {
			batch[i] = q.Stored
		}
		end := b.queue[n-1].seq
		b.mu.Unlock()
		if err := b.store.PutVerdicts(ctx, batch); err != nil {
			b.metrics.writeErrors.Inc()
			return err
		}
		b.metrics.written.Add(float64(n))
		b.mu.Lock()
		// The front may have been dropped meanwhile for want of room: go by the numbers, not by the count.
		for n = 0; n < len(b.queue) && b.queue[n].seq <= end; {
			n++
		}
		b.forget(n)
		b.mu.Unlock()
	}
}

func (b *behind) flushShared(ctx context.Context, cancel context.CancelFunc) {
	defer cancel()
	for ctx.Err() == nil {
		b.mu.Lock()
		batch := b.sharing
		b.sharing = nil
		b.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		failed := false
		for len(batch) > 0 {
			n := min(len(batch), batchSize)
			err := b.redis.put(ctx, batch[:n])
			if err != nil && !errors.Is(err, redisconn.ErrResting) {
				b.metrics.wrote(err)
				err = b.redis.put(ctx, batch[:n]) // those who wait for it at other replicas would wait in vain
			}
			b.metrics.wrote(err)
			failed = failed || err != nil
			for _, s := range batch[:n] {
				if s.told != nil && !failed {
					close(s.told)
				}
			}
			batch = batch[n:]
		}
	}
}
