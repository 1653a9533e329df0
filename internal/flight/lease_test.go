package flight

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"validator-gw/internal/redisconn"
	"validator-gw/internal/secret"
	"validator-gw/internal/testenv"
)

// process is what one replica has: leases on a connection of its own.
type process struct {
	*Leases
	t    *testing.T
	conn *redisconn.Conn
}

func newProcess(t *testing.T, url, prefix string) *process {
	t.Helper()
	conn, err := redisconn.Open(redisconn.Config{URL: secret.Text(url), LookUp: 5 * time.Second}) // the machine may be busy
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Leases: NewLeases(conn, prefix), t: t, conn: conn}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
		_ = conn.Close()
	})
	return p
}

func (p *process) take(key string) (*Lease, Seen) {
	p.t.Helper()
	lease, seen, err := p.Take(p.t.Context(), key)
	if err != nil {
		p.t.Fatal(err)
	}
	return lease, seen
}

func (p *process) look(key string) Seen {
	p.t.Helper()
	seen, err := p.Look(p.t.Context(), key)
	if err != nil {
		p.t.Fatal(err)
	}
	return seen
}

// eventually polls; the bound is for a test that would hang.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	give := time.After(time.Minute)
	for !is() {
		select {
		case <-tick.C:
		case <-give:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func bare(t *testing.T, url string) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestLeaseHasOneHolder(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	a, b := newProcess(t, url, prefix), newProcess(t, url, prefix)
	var held atomic.Int64
	var leases [64]*Lease
	var all sync.WaitGroup
	for i := range leases {
		all.Go(func() {
			lease, seen, err := []*process{a, b}[i%2].Take(t.Context(), "k")
			if err != nil {
				t.Error(err)
				return
			}
			if leases[i] = lease; lease != nil {
				held.Add(1)
			} else if !seen.Held || seen.Failed != "" || seen.Value != nil {
				t.Errorf("who did not get it saw %+v, want that it is held", seen)
			}
		})
	}
	all.Wait()
	if held.Load() != 1 {
		t.Errorf("%d holders, want 1", held.Load())
	}
	if other, _ := b.take("another key"); other == nil {
		t.Error("another key is held")
	} else {
		other.Release()
	}
	for _, l := range leases {
		l.Release()
		l.Release() // nothing
	}
	eventually(t, "it is given back", func() bool { return !b.look("k").Held })
}

// What was learnt is there before the lease is gone; a failure stands in its place for a moment.
func TestLeaseEnds(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	a, b, c := newProcess(t, url, prefix), newProcess(t, url, prefix), bare(t, url)
	lease, _ := a.take("k")
	written := make(chan struct{})
	lease.Landed(written)
	lease.Release() // too late: it has been ended
	if s := b.look("k"); !s.Held || s.Value != nil {
		t.Errorf("before it is written: %+v, want it held", s)
	}
	if err := c.Set(t.Context(), prefix+"k", "value", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	close(written)
	eventually(t, "it is given back", func() bool {
		s := b.look("k")
		if string(s.Value) != "value" {
			t.Fatalf("%+v, want the value all the time", s)
		}
		return !s.Held
	})
	next, seen := b.take("k")
	if next == nil || string(seen.Value) != "value" || seen.Held {
		t.Errorf("taken again: %v, %+v; want it and the value", next, seen)
	}
	next.Failed("upstream_error")
	eventually(t, "a failure stands in its place", func() bool { return a.look("k").Failed == "upstream_error" })
	if lease, seen := a.take("k"); lease != nil || seen.Held || seen.Failed != "upstream_error" {
		t.Errorf("after a failure: %v, %+v; want no lease and the word", lease, seen)
	}
	key := a.keys("k")[1]
	if ttl, err := c.PTTL(t.Context(), key).Result(); err != nil || ttl > failedLife {
		t.Errorf("the word stands for %v, %v; want %v at the most", ttl, err, failedLife)
	}
	eventually(t, "it ends by itself", func() bool { return a.look("k").Failed == "" })
	if want := "lease:{" + prefix + "k}"; key != want { // a cluster's slot is that of what is in braces
		t.Errorf("key %s, want %s", key, want)
	}
}

// A lease lasts as long as its check, also when Redis forgot it, and never takes or ends another's.
func TestLeaseIsKept(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	a, c := newProcess(t, url, prefix), bare(t, url)
	key := a.keys("k")[1]
	lease, _ := a.take("k")
	token := func() string {
		v, err := c.Get(t.Context(), key).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
		return v
	}
	mine := token()
	if mine == "" {
		t.Fatal("there is no lease")
	}
	for range 2 {
		low := leaseLife
		eventually(t, "it is renewed", func() bool {
			ttl, err := c.PTTL(t.Context(), key).Result()
			if err != nil || ttl > leaseLife {
				t.Fatalf("it lives for %v, %v; want %v at the most", ttl, err, leaseLife)
			}
			renewed := ttl > low+renewEvery/4
			low = ttl
			return renewed
		})
	}
	if token() != mine {
		t.Errorf("the token changed")
	}
	if err := c.Del(t.Context(), key).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is taken again", func() bool { return token() == mine })
	if err := c.Set(t.Context(), key, "another's", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	<-time.After(2 * renewEvery) // in which a renewal could take it
	if got := token(); got != "another's" {
		t.Errorf("a renewal took another's lease: %q", got)
	}
	lease.Failed("why")
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := token(); got != "another's" {
		t.Errorf("the other's lease became %q", got)
	}
}

// A holder that lost its connection holds on for its life and no longer.
func TestLeaseOfTheDead(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	a, b := newProcess(t, url, prefix), newProcess(t, url, prefix)
	lease, _ := a.take("k")
	began := time.Now()
	_ = a.conn.Close()
	var next *Lease
	eventually(t, "it is taken over", func() bool { next, _ = b.take("k"); return next != nil })
	t.Logf("taken over after %v", time.Since(began))
	lease.Release()
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if !b.look("k").Held {
		t.Error("the dead gave back what is another's")
	}
	next.Release()
}

// While Redis is away nobody waits, and what is left of a lease ends.
func TestLeaseWithoutRedis(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	conn, err := redisconn.Open(redisconn.Config{URL: secret.Text(server.URL())})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	l := NewLeases(conn, "")
	server.Pause()
	for rested := false; !rested; {
		lease, seen, err := l.Take(t.Context(), "k")
		if err == nil || seen.Held || seen.Value != nil {
			t.Fatalf("Take of a hung Redis = %+v, %v", seen, err)
		}
		if rested = errors.Is(err, redisconn.ErrResting); rested && lease != nil {
			t.Error("a lease of which nothing was sent")
		}
		lease.Failed("why")
		if _, err := l.Look(t.Context(), "k"); err == nil {
			t.Error("Look of a hung Redis says something")
		}
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
	server.Resume()
	conn.Wake()
	eventually(t, "what came to Redis late ends by itself", func() bool {
		lease, _, err := l.Take(t.Context(), "k")
		conn.Wake()
		lease.Release()
		return err == nil && lease != nil
	})
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
	var none *Leases
	if err := none.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
