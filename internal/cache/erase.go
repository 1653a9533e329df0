package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// How long an erasure is remembered, so that what began before it can't bring the address back: an answer on its way, or
// a batch that another replica is about to write.
const (
	// rememberLocal is longer than a check may outlive its callers.
	rememberLocal = 10 * time.Minute
	// rememberShared is how long Redis keeps nothing of checks from before the erasure.
	rememberShared = 10 * time.Minute
	// maxErasures bounds what is remembered in the process. Over it an arbitrary one is forgotten.
	maxErasures = 100_000
)

// tombstone is what Redis holds for an erased address: a miss to whoever reads it.
const tombstone = "0"

// Erase removes what every level but the durable store keeps of an address under these fingerprints, and what waits to
// be written there; checks up to the id upTo (UUIDv7, canonical text, new) put nothing any more. It returns the number of
// verdicts that were not durable yet, and waits for a write that is under way, so that the store may be asked to
// erase next. After an error some may be left: call it again.
//
// Other replicas forget what they hold in the process when they are told to (Forget), and after a minute at the latest
// where there is a Redis.
func (c *Cache) Erase(ctx context.Context, fps []normalize.Fingerprint, upTo string) (pending int, err error) {
	pending = c.Forget(fps, upTo)
	if err := c.behind.settle(ctx); err != nil {
		return pending, fmt.Errorf("erase: %w", err)
	}
	if c.redis == nil {
		return pending, nil
	}
	if err := c.redis.Erase(ctx, fps, upTo); err != nil {
		return pending, fmt.Errorf("erase: %w", err)
	}
	return pending, nil
}

// Forget is Erase in the process only, at once.
func (c *Cache) Forget(fps []normalize.Fingerprint, upTo string) (pending int) {
	c.erased.add(fps, upTo, func() {
		for _, fp := range fps {
			c.local.Invalidate(fp) // a newer check's, too, if there is one: clocks of replicas differ, and it is a miss at most
		}
		pending = c.behind.drop(fps, upTo)
	})
	return pending
}

// Erased says that the check of this id is one whose address was erased, as far as this process remembers.
func (c *Cache) Erased(fp normalize.Fingerprint, id string) bool {
	c.erased.mu.RLock()
	defer c.erased.mu.RUnlock()
	gone, ok := c.erased.m[fp]
	return ok && id <= gone.id
}

// keep calls put unless the check of e is erased. No erasure comes between the two.
func (c *Cache) keep(fp normalize.Fingerprint, e verdict.Cached, put func()) {
	c.erased.mu.RLock()
	defer c.erased.mu.RUnlock()
	if gone, ok := c.erased.m[fp]; ok && idOf(e) <= gone.id {
		return
	}
	put()
}

// idOf is the id of an entry's check. Ids are UUIDv7 in canonical text, so their order is that in which checks began.
func idOf(e verdict.Cached) string {
	if e.Marker != nil {
		return e.Marker.ID
	}
	return e.Verdict.ID
}

// erasures are the latest ones.
type erasures struct {
	mu sync.RWMutex
	m  map[normalize.Fingerprint]erasure
}

type erasure struct {
	id     string // checks up to it are erased
	forget time.Time
}

// add remembers erasures, and then calls remove while nothing can be put.
func (e *erasures) add(fps []normalize.Fingerprint, upTo string, remove func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	for fp, old := range e.m {
		if now.After(old.forget) || len(e.m) > maxErasures {
			delete(e.m, fp)
		}
	}
	if e.m == nil {
		e.m = make(map[normalize.Fingerprint]erasure)
	}
	for _, fp := range fps {
		e.m[fp] = erasure{max(upTo, e.m[fp].id), now.Add(rememberLocal)}
	}
	remove()
}

// drop removes what waits for Redis and for the store.
func (b *behind) drop(fps []normalize.Fingerprint, upTo string) (verdicts int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sharing = slices.DeleteFunc(b.sharing, func(s sharedEntry) bool { return s.told == nil && slices.Contains(fps, s.fp) && idOf(s.e) <= upTo })
	b.queue = slices.DeleteFunc(b.queue, func(q queued) bool {
		gone := slices.Contains(fps, q.Fingerprint) && q.Verdict.ID <= upTo
		if gone {
			verdicts++
			delete(b.ids, q.Verdict.ID)
		}
		return gone
	})
	b.metrics.waiting.Set(float64(len(b.queue)))
	return verdicts
}

// settle waits until the batch that is being written for good is written, or could not be.
func (b *behind) settle(ctx context.Context) error {
	select {
	case b.writing <- struct{}{}:
		<-b.writing
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Erase puts a tombstone in the place of what is kept under these fingerprints, and notes beside it up to which check they
// are erased. For ten minutes nothing of those checks can be put there. Under former keys' ids it deletes.
func (r *Redis) Erase(ctx context.Context, fps []normalize.Fingerprint, upTo string) error {
	err := r.conn.Call(ctx, writeTimeout, func(ctx context.Context, c redis.UniversalClient) error {
		_, err := c.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, fp := range fps {
				pipe.Eval(ctx, eraseUpTo, erasureKeys(r.key(fp)), tombstone, upTo, rememberShared.Milliseconds())
				for _, former := range r.former {
					pipe.Del(ctx, former+fp.String())
				}
			}
			return nil
		})
		return err
	})
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// erasureKeys are an entry's key and that of the id up to which it is erased. A cluster keeps both in one place.
func erasureKeys(key string) []string { return []string{key, "erased:{" + key + "}"} }

// eraseUpTo: KEYS entry, erasure; ARGV tombstone, id, life in ms. Of two erasures the later one counts. The tombstone is what
// programs before this one look at.
const eraseUpTo = `local old = redis.call('GET', KEYS[2])
if not old or old < ARGV[2] then old = ARGV[2] end
redis.call('SET', KEYS[2], old, 'PX', ARGV[3])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
return 1`

// setUnlessErased is one SET: KEYS entry, erasure; ARGV value, life in ms, 1 if it is weak, the id of its check. It leaves
// alone what was erased since that check began, a tombstone without an erasure, as an earlier program leaves it, and, when
// it brings something weak, a verdict: a marker, as one replica may have recorded the review in the moment in which
// another's answer came, or an old verdict.
const setUnlessErased = `local old, upTo = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])
if upTo and ARGV[4] <= upTo then return 0 end
if old == '` + tombstone + `' and not upTo then return 0 end
if old and string.sub(old, 1, 5) == '1{"v"' and ARGV[3] == '1' then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1`
