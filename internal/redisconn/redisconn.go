// Package redisconn is the one connection pool to Redis that every part of a process shares. It is tuned so that a
// Redis that hangs or is away costs a few short waits a process and not one a request: each call has a short limit of
// its own, nothing is sent twice, and after a few failures in a row Redis is left alone until it answers a question
// that no caller waits for. The package knows commands of nobody; what a failure means is its callers' matter.
package redisconn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"validator-gw/internal/secret"
)

// lookUp is the default limit of a call that somebody waits for: a form's budget holds a few of them.
const lookUp = 30 * time.Millisecond

// While the latest call failed, one that somebody waits for gets but this part of its time. A request makes more than one:
// one that hangs may cost it 45 ms in all (30, then 7.5 for each further one), and those after it next to nothing.
const doubtPart = 4

// The limits below a call's own. go-redis ignores a context's deadline unless told otherwise, and retries unless told
// not to: with its defaults a hung Redis holds a call for seconds.
const (
	ioTimeout    = 50 * time.Millisecond
	dialTimeout  = 150 * time.Millisecond
	poolTimeout  = 30 * time.Millisecond
	poolSize     = 48
	probeTimeout = 200 * time.Millisecond
)

// Config says where Redis is.
type Config struct {
	// URL is in go-redis's own form: redis://, rediss:// or unix://; for cluster and sentinel with addr= parameters.
	URL secret.Text
	// Mode is single (default when empty), sentinel or cluster.
	Mode string
	// LookUp is the limit of a call that somebody waits for; 30 ms when zero. More is for tests on busy machines.
	LookUp time.Duration
}

// Conn is the pool. Safe for concurrent use. Run may run beside it.
type Conn struct {
	client redis.UniversalClient
	lookUp time.Duration
	rest   rest
}

// Open returns a pool without connecting: a Redis that is away at start is a degraded start, no failure. The error
// never holds the URL, which may hold a password.
func Open(cfg Config) (*Conn, error) {
	// The driver writes a line to stderr for each failed dial, past our log and without bound. Errors are counted by callers.
	logging.Disable()
	c := &Conn{lookUp: cmp.Or(cfg.LookUp, lookUp)}
	ioTimeout, dialTimeout, poolTimeout := max(ioTimeout, cfg.LookUp), max(dialTimeout, cfg.LookUp), max(poolTimeout, cfg.LookUp)
	c.rest.began = make(chan struct{}, 1)
	switch cfg.Mode {
	case "", "single":
		o, err := redis.ParseURL(cfg.URL.Reveal())
		if err != nil {
			return nil, errors.New("REDIS_URL is not a redis:// URL (redis://[user:password@]host:port[/db])")
		}
		o.ContextTimeoutEnabled, o.MaxRetries = true, -1
		o.ReadTimeout, o.WriteTimeout = ioTimeout, ioTimeout
		o.DialTimeout, o.DialerRetries = dialTimeout, 1
		o.PoolTimeout, o.PoolSize, o.MinIdleConns = poolTimeout, poolSize, 4
		c.client = redis.NewClient(o)
	case "cluster":
		o, err := redis.ParseClusterURL(cfg.URL.Reveal())
		if err != nil {
			return nil, errors.New("REDIS_URL is not a cluster URL (redis://host:port?addr=host2:port2)")
		}
		o.ContextTimeoutEnabled, o.MaxRetries, o.MaxRedirects = true, -1, 3
		o.ReadTimeout, o.WriteTimeout = ioTimeout, ioTimeout
		o.DialTimeout, o.DialerRetries = dialTimeout, 1
		o.PoolTimeout, o.PoolSize = poolTimeout, poolSize
		c.client = redis.NewClusterClient(o)
	case "sentinel":
		o, err := redis.ParseFailoverURL(cfg.URL.Reveal())
		if err != nil {
			return nil, errors.New("REDIS_URL is not a sentinel URL (redis://host:port?master_name=name&addr=host2:port2)")
		}
		o.ContextTimeoutEnabled, o.MaxRetries = true, -1
		o.ReadTimeout, o.WriteTimeout = ioTimeout, ioTimeout
		o.DialTimeout, o.DialerRetries = dialTimeout, 1
		o.PoolTimeout, o.PoolSize = poolTimeout, poolSize
		c.client = redis.NewFailoverClient(o)
	default:
		return nil, fmt.Errorf("redis mode %q is none of single, sentinel, cluster", cfg.Mode)
	}
	return c, nil
}

// Close ends the pool's connections and goroutines.
func (c *Conn) Close() error { return c.client.Close() }

// LookUp is the limit to give a call that somebody waits for.
func (c *Conn) LookUp() time.Duration { return c.lookUp }

// Call makes one call of at most limit, unless Redis is left alone just then: that is ErrResting, at once. A call is
// what do does with the client and the context that it is given; it may be several commands. The error is one of this
// package's or redis.Nil, and holds nothing of what was sent or where to.
func (c *Conn) Call(ctx context.Context, limit time.Duration, do func(context.Context, redis.UniversalClient) error) error {
	resting, doubt := c.rest.state()
	if resting {
		return ErrResting
	}
	if doubt && limit <= c.lookUp {
		limit = min(limit, c.lookUp/doubtPart)
	}
	call, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := do(call, c.client)
	if err == nil || ctx.Err() == nil { // a caller that left or ran out of time says nothing of Redis
		c.rest.report(err)
	}
	return redact(err)
}

// Resting says that Redis is left alone at the moment.
func (c *Conn) Resting() bool {
	resting, _ := c.rest.state()
	return resting
}

// Wake ends a rest: Redis was seen to answer.
func (c *Conn) Wake() { c.rest.wake() }

// Ping asks Redis whether it is there, also while it is left alone. The answer has no effect on that.
func (c *Conn) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return redact(c.client.Ping(ctx).Err())
}

// Run asks, while Redis is left alone, whether it answers again, so that no caller's call has to find out. It returns
// when ctx ends; without it the first call after a rest finds out.
func (c *Conn) Run(ctx context.Context) error {
	c.rest.watched(true)
	defer c.rest.watched(false)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.rest.began:
		}
		for c.Resting() {
			wait := time.NewTimer(restFor)
			select {
			case <-ctx.Done():
				wait.Stop()
				return nil
			case <-wait.C:
			}
			if c.Ping(ctx) == nil {
				c.Wake()
			}
		}
	}
}

// The errors of a call.
var (
	// ErrResting: nothing was sent.
	ErrResting = errors.New("redis is left alone after failures")
	// ErrTimeout: nothing is known of what was sent.
	ErrTimeout = errors.New("redis did not answer in time")
	// ErrUnreachable: nothing is known of what was sent.
	ErrUnreachable = errors.New("redis could not be reached")
	// ErrReply: Redis answered and did not do it, as when it is out of memory, loading, or a replica.
	ErrReply = errors.New("redis refused the command")
)

// redact keeps the kind of an error and drops what could carry a URL or a value.
func redact(err error) error {
	var slow net.Error
	var reply redis.Error
	switch {
	case err == nil, errors.Is(err, redis.Nil):
		return err
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, redis.ErrPoolTimeout), errors.As(err, &slow) && slow.Timeout():
		return ErrTimeout
	case errors.As(err, &reply):
		return ErrReply
	default:
		return ErrUnreachable
	}
}
