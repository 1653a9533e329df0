package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"validator-gw/internal/secret"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// leave posts and hangs up once the gateway has the request in work.
func (b *bench) leave(email string, inWork func() bool) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		body, _ := json.Marshal(map[string]string{"email": email})
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+"/validate", strings.NewReader(string(body)))
		if err != nil {
			b.t.Error(err)
			return
		}
		req.Header.Set("Content-Type", "application/json")
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
		}
	}()
	b.eventually("the request is in work", inWork)
	cancel()
	<-left
}

// TestCallersLeave: whoever began the call hangs up, and so does one who waits at another replica; those who stay have
// the verdict, here and there, from the one call.
func TestCallersLeave(t *testing.T) {
	t.Parallel()
	fleet, server := newFleet(t, simulator.Config{P50: 500 * time.Millisecond}, nil)
	c := redisOf(t, server)
	const email = "deliverable@example.com"
	fleet[0].leave(email, func() bool { return fleet[0].sim.Stats().Calls == 1 })
	stays := make(chan answer, 1)
	go func() { stays <- fleet[1].post(email) }()
	fleet[2].leave(email, func() bool { return lease(t, c) > 0 || fleet[0].sim.Stats().InFlight == 0 })
	if a := <-stays; a.Status != "valid" {
		t.Errorf("who stays: %d %s %s", a.code, a.Status, a.Reason)
	}
	fleet[0].eventually("each has it", func() bool {
		return all(fleet, func(b *bench) bool { return b.post(email).Source.Kind == "cache" })
	})
	if got := fleet[0].billed(email); got != 1 {
		t.Errorf("billed %d calls, want 1", got)
	}
}

// panics is a transport that has a bug.
type panics struct {
	http.RoundTripper
	mu   sync.Mutex
	left int
}

func (p *panics) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	p.left--
	now := p.left >= 0
	p.mu.Unlock()
	if now {
		panic("a bug")
	}
	return p.RoundTripper.RoundTrip(r)
}

// TestLeaderPanics: a bug in one replica's call ends neither the process nor the check: who asked and who waits elsewhere
// are answered, and nobody waits out a lease.
func TestLeaderPanics(t *testing.T) {
	t.Parallel()
	fleet, server := newFleet(t, simulator.Config{P50: 20 * time.Millisecond}, nil)
	const email = "deliverable@example.com"
	fleet[0].halt()
	fleet[0].transport = &panics{RoundTripper: http.DefaultTransport, left: 3}
	fleet[0].start()
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	var wg sync.WaitGroup
	answers := make([]answer, len(fleet))
	for i, b := range fleet {
		wg.Go(func() { answers[i] = b.post(email) })
	}
	wg.Wait()
	for i, a := range answers {
		if a.Status != "valid" && a.Status != "needs_review" {
			t.Errorf("answer %d: %d %s %s", i, a.code, a.Status, a.Reason)
		}
	}
	c := redisOf(t, server)
	fleet[0].eventually("the lease has ended", func() bool { return lease(t, c) <= 0 })
	// What waits for review is found in the cache, or asked for, by the loop; a fresh address shows that all three work.
	n := 0
	for _, b := range fleet {
		b.eventually("the replica answers", func() bool {
			n++
			return b.post(fmt.Sprintf("deliverable+%d@example.com", n)).Status == "valid"
		})
	}
	if got := fleet[0].billed(email); got > 1 {
		t.Errorf("billed %d calls, want 1 at the most", got)
	}
}

// TestLeaseHolderIsKilled: a process that is killed in the middle of its call holds nobody up for longer than its lease,
// and what it has in work is asked once more.
func TestLeaseHolderIsKilled(t *testing.T) {
	t.Parallel()
	fleet, server := newFleet(t, simulator.Config{P50: 5 * time.Second}, nil)
	const email = "deliverable@example.com"
	other, kill := fleet[0].startChild()
	went := make(chan struct{})
	go func() {
		defer close(went)
		res, err := http.Post(other.url+"/validate", "application/json", strings.NewReader(`{"email":"`+email+`"}`)) // it is killed
		if err == nil {
			_ = res.Body.Close()
		}
	}()
	other.eventually("the upstream is asked", func() bool { return other.sim.Stats().Calls == 1 })
	kill()
	<-went
	if err := other.sim.SetMode(simulator.Mode{P50: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	c := redisOf(t, server)
	fleet[0].eventually("its lease has less than half a window left", func() bool { return lease(t, c) < 400*time.Millisecond })
	answers := make([]answer, len(fleet))
	var wg sync.WaitGroup
	for i, b := range fleet {
		wg.Go(func() { answers[i] = b.post(email) })
	}
	wg.Wait()
	for i, a := range answers {
		if a.Status != "valid" || a.ID != answers[0].ID {
			t.Errorf("answer %d: %d %s %s %s after %v, want valid %s", i, a.code, a.Status, a.Reason, a.ID, a.took, answers[0].ID)
		}
	}
	if got := fleet[0].billed(email); got != 2 {
		t.Errorf("billed %d calls, want 2: the one that was lost, and one more", got)
	}
}

// TestFlushedAndRestartedRedis: what was paid for is known without Redis's memory, during a call and after it.
func TestFlushedAndRestartedRedis(t *testing.T) {
	t.Parallel()
	fleet, server := newFleet(t, simulator.Config{P50: 400 * time.Millisecond}, nil)
	c := redisOf(t, server)
	const during, after = "deliverable+during@example.com", "deliverable+after@example.com"
	asked := fleet[0].onTheWire(during)
	if err := c.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for i, a := range []answer{fleet[1].post(during), <-asked} {
		if a.code != 200 && a.code != 202 && a.code != 503 { // the machine may be busy
			t.Errorf("flushed during a call, answer %d: %d %s", i, a.code, a.Reason)
		}
	}
	if got := fleet[0].billed(during); got < 1 || got > 2 {
		t.Errorf("flushed during a call: %d billed, want 1, or 2 as the lease is forgotten until it is renewed", got)
	}
	fleet[0].eventually("there is a verdict", func() bool { return fleet[0].post(after).Status == "valid" })
	fleet[0].eventually("it is durable", func() bool { return fleet[0].gauge("verdicts_waiting") == 0 })
	before := fleet[0].billed(after)
	if err := c.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	cached := func(b *bench) func() bool {
		return func() bool { a := b.post(after); return a.Status == "valid" && a.Source.Kind == "cache" }
	}
	fleet[1].eventually("it is known after the flush", cached(fleet[1]))
	server.Kill()
	server.Start()
	fleet[2].eventually("it is known after the restart", cached(fleet[2]))
	missed := fleet[1].gauge("verdict_lookup_errors_total") + fleet[2].gauge("verdict_lookup_errors_total") // the store had no time to answer
	if got := fleet[0].billed(after); float64(got-before) > missed {
		t.Errorf("billed %d more calls after it was known, and the store was silent %v times", got-before, missed)
	}
	fleet[0].eventually("all share Redis again", func() bool { return all(fleet, func(b *bench) bool { return b.gauge("ratelimit_shared") == 1 }) })
}

// lateProxy forwards to a server and holds back each of its answers while late is on.
type lateProxy struct {
	mu   sync.Mutex
	late time.Duration
}

func (p *lateProxy) set(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late = d
}

// run forwards connections of l to target until the test ends.
func (p *lateProxy) run(t *testing.T, l net.Listener, target string) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer client.Close()
				server, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
				if err != nil {
					return
				}
				defer server.Close()
				stop := context.AfterFunc(ctx, func() { _, _ = client.Close(), server.Close() })
				defer stop()
				wg.Go(func() {
					_, _ = io.Copy(server, client)
					_ = server.Close()
				})
				buf := make([]byte, 32<<10)
				for {
					n, err := server.Read(buf)
					if err != nil {
						return
					}
					p.mu.Lock()
					d := p.late
					p.mu.Unlock()
					if d > 0 {
						hold := time.NewTimer(d)
						select {
						case <-hold.C:
						case <-ctx.Done():
							hold.Stop()
							return
						}
					}
					if _, err := client.Write(buf[:n]); err != nil {
						return
					}
				}
			})
		}
	})
}

// TestRedisRepliesTooLate: what Redis did and said too late confuses nobody: answers as without it, one call a replica
// at the most, and nobody takes a late reply for the one to another question.
func TestRedisRepliesTooLate(t *testing.T) { // not parallel: a hundred at once are work enough
	proxy, lis := &lateProxy{}, listen(t)
	fleet, _ := newFleet(t, simulator.Config{P50: 50 * time.Millisecond}, func(c *Config) {
		u, err := url.Parse(c.RedisURL.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		proxy.run(t, lis, u.Host)
		u.Host = lis.Addr().String()
		c.RedisURL, c.RedisLookUp = secret.Text(u.String()), 0
	})
	proxy.set(100 * time.Millisecond) // look-ups have 30 ms
	emails := []string{"deliverable@example.com", "hardbounce@example.com", "deliverable+two@example.com"}
	for range 2 {
		for _, email := range emails {
			for i, a := range crowd(fleet, email) {
				if a.code != 200 && a.code != 202 && a.code != 503 { // a busy machine may have no connection to the store to spare
					t.Errorf("%s, answer %d: %d", email, i, a.code)
				}
				if a.Status == "valid" != strings.HasPrefix(email, "deliverable") && a.code == 200 {
					t.Errorf("%s, answer %d: %s", email, i, a.Status)
				}
			}
			if got := fleet[0].billed(email); got > 3 {
				t.Errorf("%s: billed %d calls, want 3 at the most", email, got)
			}
		}
	}
	proxy.set(0)
	fleet[0].eventually("all share Redis again", func() bool { return all(fleet, func(b *bench) bool { return b.gauge("ratelimit_shared") == 1 }) })
}

// TestReplicaWithAWrongClock: what a replica writes whose clock is an hour off is of no harm to the others: a verdict
// stays the verdict, and a marker that it left ends when Redis lets it go.
func TestReplicaWithAWrongClock(t *testing.T) {
	t.Parallel()
	fleet, server := newFleet(t, simulator.Config{P50: 20 * time.Millisecond}, nil)
	c := redisOf(t, server)
	shift := func(off time.Duration) { // all that Redis holds of checks, as if written by such a replica
		keys, err := c.Keys(t.Context(), "ev1:*").Result()
		if err != nil || len(keys) == 0 {
			t.Fatalf("keys %q, %v", keys, err)
		}
		for _, k := range keys {
			text, err := c.Get(t.Context(), k).Result()
			if err != nil {
				t.Fatal(err)
			}
			var e verdict.Cached
			if err := json.Unmarshal([]byte(text[1:]), &e); err != nil {
				t.Fatal(err)
			}
			if v := e.Verdict; v != nil {
				v.CheckedAt, v.SoftUntil, v.HardUntil = v.CheckedAt.Add(off), v.SoftUntil.Add(off), v.HardUntil.Add(off)
			}
			if m := e.Marker; m != nil {
				m.Until, m.NextCheckAt = m.Until.Add(off), m.NextCheckAt.Add(off)
			}
			b, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.SetArgs(t.Context(), k, text[:1]+string(b), redis.SetArgs{KeepTTL: true}).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, off := range []time.Duration{time.Hour, -time.Hour} {
		email := fmt.Sprintf("deliverable+%d@example.com", i)
		var first answer
		fleet[0].eventually("there is a verdict in Redis", func() bool {
			first = fleet[0].post(email)
			keys, err := c.Keys(t.Context(), "ev1:*").Result()
			return first.Status == "valid" && err == nil && len(keys) > i
		})
		billed := fleet[0].billed(email)
		shift(off)
		if a := fleet[1].post(email); a.Status != "valid" || a.ID != first.ID || a.Source.Kind != "cache" || a.Source.Stale {
			t.Errorf("written %v off: %d %s %s from %s, stale %v; want valid %s from cache", off, a.code, a.Status, a.ID, a.Source.Kind, a.Source.Stale, first.ID)
		}
		if got := fleet[0].billed(email); got != billed {
			t.Errorf("written %v off: billed %d more", off, got-billed)
		}
	}
	// A marker from the future: its review is settled, and the others say so as soon as they would have without it.
	if err := fleet[0].sim.SetMode(simulator.Mode{P50: 1500 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	const late = "deliverable+late@example.com"
	if a := fleet[0].post(late); a.Status != "needs_review" {
		t.Fatalf("%d %s, want needs_review", a.code, a.Status)
	}
	shift(time.Hour)
	fleet[1].eventually("the answer is known", func() bool { return fleet[1].post(late).Status == "valid" })
	if got := fleet[0].billed(late); got != 1 {
		t.Errorf("billed %d calls, want 1", got)
	}
}

// TestMarkerEndsWithItsReview: every replica answers needs_review from the marker while the upstream is asked, and with
// the verdict soon after it came; nobody asks again.
func TestMarkerEndsWithItsReview(t *testing.T) {
	t.Parallel()
	fleet, _ := newFleet(t, simulator.Config{P50: 3 * time.Second}, nil)
	const email = "deliverable@example.com"
	first := fleet[0].post(email)
	if first.Status != "needs_review" {
		t.Fatalf("%d %s, want needs_review", first.code, first.Status)
	}
	for i, b := range fleet {
		if a := b.post(email); a.ID != first.ID || a.Status != "needs_review" && a.Status != "valid" {
			t.Errorf("replica %d: %d %s %s, want needs_review %s", i, a.code, a.Status, a.ID, first.ID)
		}
	}
	for i, b := range fleet {
		b.eventually("the verdict is told", func() bool { a := b.post(email); return a.Status == "valid" && a.ID == first.ID })
		if a := b.status(first.ID); a.Status != "valid" {
			t.Errorf("replica %d: the review is %s", i, a.Status)
		}
	}
	if got := fleet[0].billed(email); got != 1 {
		t.Errorf("billed %d calls, want 1", got)
	}
}
