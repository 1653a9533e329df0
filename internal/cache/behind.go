package cache

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"validator-gw/internal/normalize"
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

// behind carries what was put to Redis and to the durable store, in the order in which it was put.
type behind struct {
	store   durable
	redis   *Redis
	log     *slog.Logger
	metrics *metrics
	wake    chan struct{}

	mu      sync.Mutex
	queue   []Stored                   // not yet durable, oldest first
	ids     map[string]verdict.Verdict // the same, by id
	sharing []sharedEntry
}

type sharedEntry struct {
	fp normalize.Fingerprint
	e  verdict.Cached
}

func newBehind(store durable, redis *Redis, log *slog.Logger, m *metrics) *behind {
	return &behind{store: store, redis: redis, log: log, metrics: m, wake: make(chan struct{}, 1), ids: make(map[string]verdict.Verdict)}
}

func (b *behind) verdict(fp normalize.Fingerprint, v verdict.Verdict) {
	b.shared(fp, verdict.Cached{Verdict: &v})
	b.mu.Lock()
	if len(b.queue) >= keepVerdicts {
		// Paid for and lost to the store, though not to the caches: counted, and an alarm.
		delete(b.ids, b.queue[0].Verdict.ID)
		b.queue = b.queue[1:]
		b.metrics.lost.Inc()
	}
	b.queue = append(b.queue, Stored{Fingerprint: fp, Verdict: v})
	b.ids[v.ID] = v
	n := len(b.queue)
	b.mu.Unlock()
	b.metrics.waiting.Set(float64(n))
	if n >= batchSize {
		b.poke()
	}
}

func (b *behind) shared(fp normalize.Fingerprint, e verdict.Cached) {
	if b.redis == nil {
		return
	}
	b.mu.Lock()
	if len(b.sharing) < keepShared { // over it Redis is slow or away: a miss there costs a look-up in the store
		b.sharing = append(b.sharing, sharedEntry{fp, e})
	}
	b.mu.Unlock()
	b.poke()
}

func (b *behind) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *behind) byID(id string) (verdict.Verdict, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.ids[id]
	return v, ok
}

func (b *behind) run(ctx context.Context) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			// What is paid for is not left behind: one last flush on a time of its own.
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
			defer cancel()
			b.flushShared(last)
			if err := b.flushVerdicts(last); err != nil {
				b.log.Error("verdicts were not written before the end", "error", err)
			}
			return nil
		case <-b.wake:
			b.flushShared(ctx)
			if b.waiting() < batchSize {
				continue
			}
		case <-tick.C:
		}
		call, cancel := context.WithTimeout(ctx, flushTimeout)
		err := b.flushVerdicts(call)
		cancel()
		switch {
		case err != nil && !failing && ctx.Err() == nil:
			b.log.Error("verdicts can't be written now; they are kept and tried again", "error", err)
			failing = true
		case err == nil && failing:
			b.log.Info("verdicts are written again")
			failing = false
		}
	}
}

func (b *behind) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)
}

// flushVerdicts writes all that waits, oldest first, and forgets a batch only once it is durable.
func (b *behind) flushVerdicts(ctx context.Context) error {
	for {
		b.mu.Lock()
		batch := b.queue[:min(len(b.queue), batchSize):min(len(b.queue), batchSize)]
		b.mu.Unlock()
		if len(batch) == 0 {
			return nil
		}
		if err := b.store.PutVerdicts(ctx, batch); err != nil {
			b.metrics.writeErrors.Inc()
			return err
		}
		b.metrics.written.Add(float64(len(batch)))
		b.mu.Lock()
		for _, s := range batch {
			delete(b.ids, s.Verdict.ID)
		}
		// The front may have been dropped for want of room meanwhile: cut up to the batch's last one.
		last := batch[len(batch)-1].Verdict.ID
		for i, s := range b.queue {
			if s.Verdict.ID == last {
				b.queue = b.queue[i+1:]
				break
			}
		}
		b.metrics.waiting.Set(float64(len(b.queue)))
		b.mu.Unlock()
	}
}

func (b *behind) flushShared(ctx context.Context) {
	for ctx.Err() == nil {
		b.mu.Lock()
		batch := b.sharing
		b.sharing = nil
		b.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for len(batch) > 0 {
			n := min(len(batch), batchSize)
			b.metrics.wrote(b.redis.put(ctx, batch[:n]))
			batch = batch[n:]
		}
	}
}
