package cache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
	"validator-gw/internal/verdict"
)

// callTimeout bounds one look-up in Redis, and writeTimeout one batch of writes: a hung Redis must not eat a
// form's budget. go-redis ignores the context's deadline unless told otherwise, and retries unless told not to.
const (
	callTimeout  = 40 * time.Millisecond
	writeTimeout = 200 * time.Millisecond
	ioTimeout    = 50 * time.Millisecond
	dialTimeout  = 150 * time.Millisecond
)

// valueVersion is the first byte of a value; another one is a miss.
const valueVersion = '1'

// Redis is the level that replicas share. Each call has a short time-out of its own; after five failures in a
// row it is left alone for three seconds, and from then on after each failure until one call succeeds. Safe for
// concurrent use.
type Redis struct {
	client redis.UniversalClient
	prefix string
	rest   *rest
}

// RedisConfig says where Redis is.
type RedisConfig struct {
	// URL is in go-redis's own form: redis://, rediss:// or unix://; for cluster and sentinel with addr= parameters.
	URL secret.Text
	// Mode is single (default when empty), sentinel or cluster.
	Mode string
	// KeyID names the fingerprint key in use; a new key is a new key space.
	KeyID string
	// Prefix goes before every key; for tests that share a server.
	Prefix string
}

// OpenRedis returns a client without connecting: a Redis that is away at start is a degraded start, no failure.
// The error never holds the URL, which may hold a password.
func OpenRedis(cfg RedisConfig) (*Redis, error) {
	// The driver writes a line to stderr for each failed dial, past our log and without bound. Errors are counted here.
	logging.Disable()
	r := &Redis{prefix: cfg.Prefix + "ev1:" + cfg.KeyID + ":", rest: &rest{}}
	switch cfg.Mode {
	case "", "single":
		o, err := redis.ParseURL(cfg.URL.Reveal())
		if err != nil {
			return nil, errors.New("REDIS_URL is not a redis:// URL (redis://[user:password@]host:port[/db])")
		}
		o.ContextTimeoutEnabled, o.MaxRetries = true, -1
		o.ReadTimeout, o.WriteTimeout = ioTimeout, ioTimeout
		o.DialTimeout, o.DialerRetries = dialTimeout, 1
		o.PoolTimeout, o.PoolSize, o.MinIdleConns = 30*time.Millisecond, 48, 4
		r.client = redis.NewClient(o)
	case "cluster":
		o, err := redis.ParseClusterURL(cfg.URL.Reveal())
		if err != nil {
			return nil, errors.New("REDIS_URL is not a cluster URL (redis://host:port?addr=host2:port2)")
		}
		o.ContextTimeoutEnabled, o.MaxRetries, o.MaxRedirects = true, -1, 3
		o.ReadTimeout, o.WriteTimeout = ioTimeout, ioTimeout
		o.DialTimeout, o.DialerRetries = dialTimeout, 1
		o.PoolTimeout, o.PoolSize = 30*time.Millisecond, 48
		r.client = redis.NewClusterClient(o)
	case "sentinel":
		o, err := redis.ParseFailoverURL(cfg.URL.Reveal())
		if err != nil {
			return nil, errors.New("REDIS_URL is not a sentinel URL (redis://host:port?master_name=name&addr=host2:port2)")
		}
		o.ContextTimeoutEnabled, o.MaxRetries = true, -1
		o.ReadTimeout, o.WriteTimeout = ioTimeout, ioTimeout
		o.DialTimeout, o.DialerRetries = dialTimeout, 1
		o.PoolTimeout, o.PoolSize = 30*time.Millisecond, 48
		r.client = redis.NewFailoverClient(o)
	default:
		return nil, fmt.Errorf("redis mode %q is none of single, sentinel, cluster", cfg.Mode)
	}
	return r, nil
}

// Ping says whether Redis answers.
func (r *Redis) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return redact(r.client.Ping(ctx).Err())
}

// Close ends the client's connections and goroutines.
func (r *Redis) Close() error { return r.client.Close() }

func (r *Redis) key(fp normalize.Fingerprint) string { return r.prefix + fp.String() }

func (r *Redis) get(ctx context.Context, fp normalize.Fingerprint) (verdict.Cached, bool, error) {
	if r.rest.resting() {
		return verdict.Cached{}, false, errResting
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	b, err := r.client.Get(ctx, r.key(fp)).Bytes()
	r.rest.report(err)
	if errors.Is(err, redis.Nil) {
		return verdict.Cached{}, false, nil
	}
	if err != nil {
		return verdict.Cached{}, false, redact(err)
	}
	e, ok := decode(b)
	return e, ok, nil
}

// decode reads a value. Another version's, or a damaged one, is a miss.
func decode(b []byte) (e verdict.Cached, ok bool) {
	if len(b) == 0 || b[0] != valueVersion || json.Unmarshal(b[1:], &e) != nil {
		return verdict.Cached{}, false
	}
	switch v, m := e.Verdict, e.Marker; {
	case v != nil && m == nil && v.ID != "" && v.Status.Final():
	case m != nil && v == nil && m.ID != "":
	default:
		return verdict.Cached{}, false
	}
	return e, true
}

// put writes a batch in one round trip, each with its own expiry.
func (r *Redis) put(ctx context.Context, batch []sharedEntry) error {
	if r.rest.resting() {
		return errResting
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	now := time.Now()
	pipe := r.client.Pipeline()
	for _, s := range batch {
		d := s.e.Life(now)
		if d < time.Millisecond {
			continue
		}
		b, err := json.Marshal(s.e)
		if err != nil {
			return err
		}
		pipe.Set(ctx, r.key(s.fp), append([]byte{valueVersion}, b...), d)
	}
	if pipe.Len() == 0 {
		return nil
	}
	_, err := pipe.Exec(ctx)
	r.rest.report(err)
	return redact(err)
}

// redact keeps the kind of a Redis error and drops what could carry a URL or a value.
func redact(err error) error {
	var slow net.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, redis.ErrPoolTimeout), errors.As(err, &slow) && slow.Timeout():
		return errTimeout
	default:
		return errUnreachable
	}
}

var (
	errResting     = errors.New("redis is left alone after failures")
	errTimeout     = errors.New("redis did not answer in time")
	errUnreachable = errors.New("redis could not be reached")
)

// rest is a small breaker: after restAfter failures in a row, calls fail at once for restFor, so that a hung Redis
// costs a few time-outs a process and not one a request. It is not hung into go-redis's limiter, which clusters
// and sentinels do not have.
type rest struct {
	mu    sync.Mutex
	run   int
	until time.Time
}

const (
	restAfter = 5
	restFor   = 3 * time.Second
)

func (r *rest) resting() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Before(r.until)
}

// report notes how a call ended. A caller that left says nothing of Redis, and neither do calls from before the rest.
func (r *rest) report(err error) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case now.Before(r.until), errors.Is(err, context.Canceled):
	case err == nil, errors.Is(err, redis.Nil):
		r.run = 0
	default:
		if r.run++; r.run >= restAfter {
			r.run = restAfter - 1 // one more failure after the rest begins the next
			r.until = now.Add(restFor)
		}
	}
}
