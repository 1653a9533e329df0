package redisconn

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"validator-gw/internal/secret"
	"validator-gw/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func open(t *testing.T, url string) *Conn {
	t.Helper()
	c, err := Open(Config{URL: secret.Text(url)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func ping(ctx context.Context, c redis.UniversalClient) error { return c.Ping(ctx).Err() }

// Each mode leaves a Redis that is away alone after five failures, and no error quotes its URL.
func TestModes(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away := ln.Addr().String()
	_ = ln.Close()
	for mode, url := range map[string]string{
		"single":   "redis://user:hunter2@" + away + "/0",
		"cluster":  "redis://user:hunter2@" + away + "?addr=" + away,
		"sentinel": "redis://user:hunter2@" + away + "?master_name=main",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c, err := Open(Config{URL: secret.Text(url), Mode: mode})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			began := time.Now()
			for n := 0; ; n++ { // as fast as they fail, until it rests
				err := c.Call(t.Context(), time.Second, ping)
				if err == nil || strings.Contains(err.Error(), "hunter2") {
					t.Fatalf("Call = %v", err)
				}
				if errors.Is(err, ErrResting) {
					if n < restAfter || time.Since(began) < restSpan {
						t.Errorf("rests after %d failures in %v, want %d in %v at the least", n, time.Since(began), restAfter, restSpan)
					}
					return
				}
			}
		})
	}
	for _, bad := range []Config{
		{URL: "http://user:hunter2@host"}, {URL: "redis://user:hunter2@host:port%zz"}, {URL: "redis://user:hunter2@host/notanumber"},
		{Mode: "cluster", URL: "http://user:hunter2@host"}, {Mode: "sentinel", URL: "http://user:hunter2@host"}, {Mode: "ring", URL: "redis://h"},
	} {
		if _, err := Open(bad); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Open(%q, %s) = %v; want an error without the password", bad.Mode, bad.URL.Reveal(), err)
		}
	}
}

// The first call to a Redis that hangs waits for its limit, the next ones hardly, and from the sixth on none. Who
// watches finds out that it answers again; no caller has to.
func TestHung(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	c := open(t, server.URL())
	for c.Call(t.Context(), time.Second, ping) != nil { // a connection is there
		c.Wake()
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	for watching := false; !watching; {
		c.rest.mu.Lock()
		watching = c.rest.watch
		c.rest.mu.Unlock()
	}
	server.Pause()
	var limits []time.Duration
	for {
		var limit time.Duration
		err := c.Call(t.Context(), c.LookUp(), func(ctx context.Context, r redis.UniversalClient) error {
			at, _ := ctx.Deadline()
			limit = time.Until(at).Round(time.Millisecond)
			return ping(ctx, r)
		})
		if errors.Is(err, ErrResting) {
			break
		}
		if !errors.Is(err, ErrTimeout) {
			t.Errorf("hung: %v, want %v", err, ErrTimeout)
		}
		limits = append(limits, limit)
	}
	for i, l := range limits {
		if want := []time.Duration{lookUp, lookUp / doubtPart}[min(i, 1)]; l > want {
			t.Errorf("limits %v, want %v, then %v", limits, lookUp, lookUp/doubtPart)
			break
		}
	}
	// One, and from then on restSpan of a short limit each; a busy machine needs fewer.
	if n, most := len(limits), 2+int(restSpan/(lookUp/doubtPart)); n < restAfter || n > most {
		t.Errorf("rests after %d failures, want %d to %d", n, restAfter, most)
	}
	if err := c.Ping(t.Context()); !errors.Is(err, ErrTimeout) {
		t.Errorf("Ping of a hung Redis = %v, want %v", err, ErrTimeout)
	}
	server.Resume()
	for c.Resting() { // the watcher ends it, or the test's time-out this
		_ = c.Ping(t.Context())
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
}

// What callers do to themselves is no failure of Redis, and neither is a key that is not there.
func TestCallersDoNotCount(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	c := open(t, url)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	for range 3 * restAfter {
		for _, ctx := range []context.Context{gone, late} {
			if err := c.Call(ctx, c.LookUp(), ping); err == nil || errors.Is(err, ErrResting) {
				t.Fatalf("Call = %v", err)
			}
		}
		if err := c.Call(t.Context(), time.Second, func(ctx context.Context, r redis.UniversalClient) error {
			return r.Get(ctx, prefix+"nothing").Err()
		}); !errors.Is(err, redis.Nil) && !errors.Is(err, ErrTimeout) {
			t.Fatalf("Get = %v, want %v", err, redis.Nil)
		}
	}
	if c.Resting() {
		t.Error("rests, though Redis answered every call that it was given time for")
	}
}

func TestRest(t *testing.T) {
	t.Parallel()
	fault := errors.New("fault")
	synctest.Test(t, func(t *testing.T) {
		r := &rest{}
		report := func(errs ...error) {
			for _, err := range errs {
				r.report(err)
			}
		}
		resting := func() bool { yes, _ := r.state(); return yes }
		report(fault, fault, fault, fault, nil, fault, fault, fault, fault, redis.Nil, fault, fault, context.Canceled, fault, fault)
		if resting() {
			t.Fatal("rests without five failures in a row")
		}
		report(fault, fault, fault)
		if resting() {
			t.Fatal("rests for what failed in one moment")
		}
		time.Sleep(restSpan)
		if resting() {
			t.Fatal("rests though nothing failed since")
		}
		report(fault)
		if !resting() {
			t.Fatal("more than five in a row over the span, and no rest; a caller who leaves must not break the row")
		}
		time.Sleep(2 * time.Second)
		report(fault, fault, fault, fault, fault) // calls from before
		time.Sleep(time.Second - 1)
		if !resting() {
			t.Error("shorter than three seconds")
		}
		time.Sleep(1)
		if resting() {
			t.Fatal("longer than three seconds")
		}
		report(fault)
		if !resting() {
			t.Error("still failing after the rest, and no new rest")
		}
		time.Sleep(3 * time.Second)
		report(nil, fault, fault, fault)
		time.Sleep(restSpan)
		report(fault)
		if resting() {
			t.Error("a success must make it whole again")
		}
		// Watched, it lasts until somebody says so, and ends with the watch at the latest when its time is over.
		report(fault)
		r.watched(true)
		time.Sleep(time.Hour)
		if !resting() {
			t.Error("ended by itself under watch")
		}
		r.wake()
		if resting() {
			t.Error("woken, and resting")
		}
		report(fault, fault, fault, fault, fault)
		time.Sleep(restSpan)
		report(fault)
		time.Sleep(time.Hour)
		r.watched(false)
		if resting() {
			t.Error("nobody watches, the time is over, and it rests")
		}
	})
	// Many at once.
	r := &rest{run: 1, since: time.Now().Add(-restSpan)}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { r.state(); r.report(fault) })
	}
	all.Wait()
	if resting, _ := r.state(); !resting {
		t.Error("fifty failures, and no rest")
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	timeout := &net.OpError{Op: "read", Err: context.DeadlineExceeded}
	for err, want := range map[error]error{
		nil: nil, redis.Nil: redis.Nil, context.DeadlineExceeded: ErrTimeout, redis.ErrPoolTimeout: ErrTimeout, timeout: ErrTimeout,
		errors.New("timeout in words only"): ErrUnreachable, errors.New("redis://user:hunter2@host refused"): ErrUnreachable,
	} {
		if got := redact(err); !errors.Is(got, want) {
			t.Errorf("redact(%v) = %v, want %v", err, got, want)
		}
	}
	// The server's own words may quote a key.
	url, prefix := testenv.Redis(t)
	c := open(t, url)
	err := ErrTimeout
	for errors.Is(err, ErrTimeout) || errors.Is(err, ErrResting) {
		c.Wake()
		err = c.Call(t.Context(), time.Second, func(ctx context.Context, r redis.UniversalClient) error {
			return r.Do(ctx, "set", prefix+"hunter2", "x", "hunter2").Err()
		})
	}
	if !errors.Is(err, ErrReply) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a command that Redis refuses = %v, want %v", err, ErrReply)
	}
}
