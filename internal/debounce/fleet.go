package debounce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"validator-gw/internal/redisconn"
)

// Bounds of the debouncer in Redis.
const (
	// maxSweep bounds the bursts of one sweep.
	maxSweep = 100
	// sweepLease is how long a sweeper has for what it took; then another takes it.
	sweepLease = 2 * time.Second
	// idle is how often a process looks for what others armed and did not sweep.
	idle = time.Second
	// callLimit bounds a call for which nobody waits.
	callLimit = 200 * time.Millisecond
	// keysLife is how long all of it stays in Redis after the last event: far longer than a burst.
	keysLife = time.Minute
)

// ErrFull: as many bursts are in Redis as may be.
var ErrFull = errors.New("too many bursts")

// FleetConfig is what NewFleet needs besides its connection.
type FleetConfig struct {
	// Name is this debouncer's in Redis: all of one name are one. It must hold no brace.
	Name   string
	Window Window
	// MaxKeys bounds the bursts in Redis; 100,000 when zero.
	MaxKeys int
	// Fire is called by Run with the keys whose bursts are over, at most 100 at a time. After an error they are fired
	// again two seconds later; after a crash as well, so that twice must do no harm.
	Fire func(ctx context.Context, keys []string) error
	// Rand returns numbers in [0, 1) and must be safe for concurrent use.
	Rand func() float64
	// Log gets warnings; nil discards.
	Log *slog.Logger
	// Registerer gets the metrics; nil keeps them unseen.
	Registerer prometheus.Registerer
}

// Fleet debounces among all processes that share a Redis: whoever armed last decides when a burst is over, and any of them
// fires it. Times are those of Redis's clock. Every change is one script, and no command is sent twice, so that a reply
// that is lost puts nothing off. Redis may forget all of it. Safe for concurrent use.
type Fleet struct {
	conn    *redisconn.Conn
	cfg     FleetConfig
	keys    []string // due, running, bursts, generation
	metrics *metrics
	wake    chan struct{}

	mu    sync.Mutex
	until time.Time // the end of Run's present sleep
}

// Swept is a burst that is over, held by this process for two seconds.
type Swept struct {
	Key string
	// Generation is that of the burst's last event.
	Generation int64
	// Again says that another process had it before, and did not say that it fired.
	Again bool
}

// NewFleet returns one on conn, which stays the caller's. It does no I/O.
func NewFleet(conn *redisconn.Conn, cfg FleetConfig) (*Fleet, error) {
	switch {
	case cfg.Name == "" || cfg.Fire == nil || cfg.Rand == nil:
		return nil, errors.New("debounce: Name, Fire and Rand are required")
	case cfg.Window.Quiet <= 0 || cfg.Window.Max < cfg.Window.Quiet:
		return nil, fmt.Errorf("debounce: a window of %v and %v", cfg.Window.Quiet, cfg.Window.Max)
	}
	cfg.MaxKeys = cmp.Or(cfg.MaxKeys, 100_000)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	tag := "debounce:{" + cfg.Name + "}:" // one place in a cluster
	return &Fleet{conn: conn, cfg: cfg, keys: []string{tag + "due", tag + "running", tag + "bursts", tag + "generation"},
		metrics: newMetrics(cfg.Registerer), wake: make(chan struct{}, 1)}, nil
}

// Arm notes an event and returns the time until its burst is over, as things stand. It waits for the connection's LookUp at
// most. After an error the event may have been noted, or not; after ErrFull it was not.
func (f *Fleet) Arm(ctx context.Context, key string) (in time.Duration, err error) {
	var ms int64
	err = f.conn.Call(ctx, f.conn.LookUp(), func(ctx context.Context, c redis.UniversalClient) (err error) {
		ms, err = luaArm.Run(ctx, c, f.keys, key, f.cfg.Window.Quiet.Milliseconds(), f.cfg.Window.Max.Milliseconds(),
			f.cfg.MaxKeys, (keysLife + f.cfg.Window.Max).Milliseconds()).Int64()
		return err
	})
	switch {
	case err != nil:
		f.metrics.count(fleetAway)
		return 0, err
	case ms < 0:
		f.metrics.count(fleetFull)
		return 0, ErrFull
	}
	f.metrics.count(fleetArmed)
	in = time.Duration(ms) * time.Millisecond
	f.mu.Lock()
	late := time.Now().Add(in).Before(f.until)
	f.mu.Unlock()
	if late {
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
	return in, nil
}

// Sweep takes bursts that are over, and those whose sweeper did not say in two seconds that it fired them. next is the time
// until there may be more, negative when none is armed.
func (f *Fleet) Sweep(ctx context.Context) (swept []Swept, next time.Duration, err error) {
	var got []any
	err = f.conn.Call(ctx, max(callLimit, f.conn.LookUp()), func(ctx context.Context, c redis.UniversalClient) (err error) {
		got, err = luaSweep.Run(ctx, c, f.keys, sweepLease.Milliseconds(), maxSweep, keysLife.Milliseconds()).Slice()
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	ms, ok := got[0].(int64)
	if !ok || len(got)%3 != 1 {
		return nil, 0, redisconn.ErrReply
	}
	for i := 1; i < len(got); i += 3 {
		key, _ := got[i].(string)
		generation, _ := got[i+1].(string)
		n, _ := strconv.ParseInt(generation, 10, 64)
		again := got[i+2] == int64(1)
		swept = append(swept, Swept{key, n, again})
		f.metrics.count(fleetSwept)
		if again {
			f.metrics.count(fleetAgain)
		}
	}
	return swept, time.Duration(ms) * time.Millisecond, nil
}

// Ack says that bursts have fired. One that had an event since is left as it is: it is armed anew.
func (f *Fleet) Ack(ctx context.Context, swept []Swept) error {
	if len(swept) == 0 {
		return nil
	}
	args := make([]any, 0, 2*len(swept))
	for _, s := range swept {
		args = append(args, s.Key, s.Generation)
	}
	return f.conn.Call(ctx, max(callLimit, f.conn.LookUp()), func(ctx context.Context, c redis.UniversalClient) error {
		return luaAck.Run(ctx, c, f.keys, args...).Err()
	})
}

// Run sweeps and fires until ctx ends, and returns nil. What is armed by then is for other processes, if there are any.
func (f *Fleet) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		f.sleep(ctx, f.Step(ctx))
	}
	return nil
}

// Step sweeps once, fires what is over, and returns how long to wait before the next step. While Redis does not answer it
// only waits.
func (f *Fleet) Step(ctx context.Context) time.Duration {
	swept, next, err := f.Sweep(ctx)
	if err != nil {
		return idle
	}
	if len(swept) > 0 {
		keys := make([]string, len(swept))
		for i, s := range swept {
			keys[i] = s.Key
		}
		if err := f.cfg.Fire(ctx, keys); err != nil {
			if ctx.Err() == nil {
				f.cfg.Log.WarnContext(ctx, "bursts that are over were not acted on; it is tried again", "bursts", len(keys), "error", err)
			}
			return idle
		}
		_ = f.Ack(ctx, swept) // else they are fired again
	}
	if next < 0 || next > idle {
		return idle
	}
	return next
}

// sleep waits for d, or until something is armed that is due sooner. A whole idle time is spread by a fifth, so that
// processes do not all look at once.
func (f *Fleet) sleep(ctx context.Context, d time.Duration) {
	if d == idle {
		d += time.Duration((0.4*f.cfg.Rand() - 0.2) * float64(idle))
	}
	f.mu.Lock()
	f.until = time.Now().Add(d)
	f.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.wake:
	case <-ctx.Done():
	}
}
