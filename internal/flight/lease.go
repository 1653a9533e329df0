package flight

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"validator-gw/internal/redisconn"
)

// The times of a lease. It is renewed three times in its life, so that two answers of Redis may be lost; whoever waits for
// a holder that died takes over when that life ends, which is a little more than the longest budget of a form.
const (
	leaseLife  = 1200 * time.Millisecond
	renewEvery = 400 * time.Millisecond
	// failedLife is how long others are told that the check ended without a result: longer than they wait between two looks.
	failedLife = 1500 * time.Millisecond
	// keepLimit bounds a call for which nobody waits.
	keepLimit = 200 * time.Millisecond
	// landLimit is how long a lease waits for its result to be written: two writes, and less than is left of its life.
	landLimit = 500 * time.Millisecond
)

// failedPrefix begins what stands in a lease's place after a failure. No token holds a colon.
const failedPrefix = "failed:"

// Leases keep one piece of work in the air per key in all processes that share a Redis, as Group does in one: who has the
// key's lease does the work, and the others look for its result. It knows keys and bytes only; what a result is, its
// callers know. A lease is advice and no lock: while Redis is away or forgets, each process goes on by itself.
// Safe for concurrent use.
type Leases struct {
	conn   *redisconn.Conn
	values string
	work   sync.WaitGroup
}

// NewLeases returns leases on conn, which stays the caller's. values is what goes before a key where its result is kept;
// the lease's key has that whole key as its hash tag, so that a cluster keeps both in one place.
func NewLeases(conn *redisconn.Conn, values string) *Leases {
	return &Leases{conn: conn, values: values}
}

// keys returns that of the result and that of the lease.
func (l *Leases) keys(key string) []string {
	value := l.values + key
	return []string{value, "lease:{" + value + "}"}
}

// Seen is what stands under a key.
type Seen struct {
	// Value is the result; nil when there is none.
	Value []byte
	// Held says that somebody does the work.
	Held bool
	// Failed is what the last holder left instead of a result, for a moment.
	Failed string
}

// Lease is one key's, held by this process. Exactly one of Release, Landed and Failed ends it; what comes after that does
// nothing. All are nothing on a nil Lease, and none waits.
type Lease struct {
	leases *Leases
	key    string
	token  string
	end    chan ending
}

// ending is how a lease ends.
type ending struct {
	written <-chan struct{} // give it back once this is closed; nil: now
	failed  string
}

// Take takes the lease of key if nobody has it, and tells what stands there. It waits for the connection's LookUp at most.
// The lease is nil when another has it, or a failure stands in its place. After an error it is not known whether it was
// taken: the work goes on without, and a lease that comes with the error has to be ended all the same, as it may be held.
func (l *Leases) Take(ctx context.Context, key string) (*Lease, Seen, error) {
	keys, token := l.keys(key), rand.Text()
	var got []any
	err := l.conn.Call(ctx, l.conn.LookUp(), func(ctx context.Context, c redis.UniversalClient) (err error) {
		got, err = luaTake.Run(ctx, c, keys, token, leaseLife.Milliseconds()).Slice()
		return err
	})
	if errors.Is(err, redisconn.ErrResting) {
		return nil, Seen{}, err // nothing was sent
	}
	var seen Seen
	if err == nil {
		if seen = read(got); seen.Held || seen.Failed != "" {
			return nil, seen, nil
		}
	}
	lease := &Lease{leases: l, key: keys[1], token: token, end: make(chan ending, 1)}
	l.work.Add(1)
	go lease.keep(context.WithoutCancel(ctx))
	return lease, seen, err
}

// Look tells what stands under key, in one round trip of the connection's LookUp at most.
func (l *Leases) Look(ctx context.Context, key string) (Seen, error) {
	var got []any
	err := l.conn.Call(ctx, l.conn.LookUp(), func(ctx context.Context, c redis.UniversalClient) (err error) {
		got, err = c.MGet(ctx, l.keys(key)...).Result()
		return err
	})
	if err != nil {
		return Seen{}, err
	}
	return read(got), nil
}

// read reads a value and a lease.
func read(got []any) (s Seen) {
	if len(got) != 2 {
		return Seen{}
	}
	if v, ok := got[0].(string); ok {
		s.Value = []byte(v)
	}
	if lease, ok := got[1].(string); ok {
		s.Failed, ok = strings.CutPrefix(lease, failedPrefix)
		if s.Held = !ok; s.Held {
			s.Failed = ""
		}
	}
	return s
}

// Close waits until every lease that was ended is given back, a fraction of a second, or ctx ends. Call it when nothing
// takes any more.
func (l *Leases) Close(ctx context.Context) error {
	if l == nil {
		return nil
	}
	done := make(chan struct{})
	go func() {
		l.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Release gives the lease back: whoever waits takes over.
func (l *Lease) Release() { l.finish(ending{}) }

// Landed gives it back once written is closed, which says that others find the result. If that does not come within half a
// second, the lease ends with its life: until then others may find the result elsewhere.
func (l *Lease) Landed(written <-chan struct{}) { l.finish(ending{written: written}) }

// Failed leaves word that there will be no result: why, which must not be empty, stands in the lease's place for 1.5 s.
func (l *Lease) Failed(why string) { l.finish(ending{failed: why}) }

func (l *Lease) finish(e ending) {
	if l == nil {
		return
	}
	select {
	case l.end <- e:
	default: // it has ended
	}
}

// keep renews the lease until it is ended, and then gives it back. An error of Redis is of no consequence: there is another
// renewal, and a lease that nobody renews ends by itself.
func (l *Lease) keep(ctx context.Context) {
	defer l.leases.work.Done()
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for held := true; ; {
		select {
		case <-tick.C:
			if held {
				held = l.renew(ctx)
			}
		case e := <-l.end:
			if held {
				l.giveBack(ctx, e)
			}
			return
		}
	}
}

// renew says whether the lease may still be ours.
func (l *Lease) renew(ctx context.Context) bool {
	mine, err := l.run(ctx, luaRenew, l.token, leaseLife.Milliseconds())
	return err != nil || mine
}

func (l *Lease) giveBack(ctx context.Context, e ending) {
	if e.written != nil {
		late := time.NewTimer(landLimit)
		defer late.Stop()
		select {
		case <-e.written:
		case <-late.C:
			return
		}
	}
	word := ""
	if e.failed != "" {
		word = failedPrefix + e.failed
	}
	_, _ = l.run(ctx, luaEnd, l.token, word, failedLife.Milliseconds())
}

func (l *Lease) run(ctx context.Context, s *redis.Script, args ...any) (done bool, err error) {
	err = l.leases.conn.Call(ctx, max(keepLimit, l.leases.conn.LookUp()), func(ctx context.Context, c redis.UniversalClient) (err error) {
		done, err = s.Run(ctx, c, []string{l.key}, args...).Bool()
		return err
	})
	return done, err
}

var (
	// luaTake: KEYS result, lease; ARGV token, life in ms. Gives both as they stood.
	luaTake = redis.NewScript(`
local value, lease = redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])
if not lease then redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2]) end
return {value, lease}`)

	// luaRenew: KEYS lease; ARGV token, life in ms. A lease that Redis forgot is taken again.
	luaRenew = redis.NewScript(`
local lease = redis.call('GET', KEYS[1])
if lease and lease ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1`)

	// luaEnd: KEYS lease; ARGV token, what to leave in its place or nothing, its life in ms.
	luaEnd = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return 1`)
)
