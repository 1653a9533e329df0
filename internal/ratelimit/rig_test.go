package ratelimit

import (
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"

	"validator-gw/internal/redisconn"
	"validator-gw/internal/secret"
	"validator-gw/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// connect opens a connection with the usual time for a call, or with more.
func connect(t testing.TB, url string, lookUp time.Duration) *redisconn.Conn {
	t.Helper()
	c, err := redisconn.Open(redisconn.Config{URL: secret.Text(url), LookUp: lookUp})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func bareClient(t testing.TB, url string) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	o.ReadTimeout = time.Minute // whoever looks needs every answer
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// replica is a Fleet with a connection of its own, as in a process of its own.
type replica struct {
	*Fleet
	conn *redisconn.Conn
	stop func()
}

// patient is for tests that are not about time: the machine may be busy.
const patient = 2 * time.Second

// newReplica starts a replica; its Runs end with the test or with stop.
func newReplica(t testing.TB, url, prefix string, limits func() Limits) *replica {
	t.Helper()
	return startReplica(t, connect(t, url, patient), prefix, limits)
}

func startReplica(t testing.TB, conn *redisconn.Conn, prefix string, limits func() Limits) *replica {
	t.Helper()
	r := &replica{conn: conn, Fleet: NewFleet(conn, limits, FleetConfig{Name: "test", Prefix: prefix})}
	ctx, cancel := context.WithCancel(context.Background())
	var runs sync.WaitGroup
	runs.Go(func() { _ = conn.Run(ctx) })
	runs.Go(func() { _ = r.Run(ctx) })
	r.stop = func() { cancel(); runs.Wait() }
	t.Cleanup(r.stop)
	return r
}

func (r *replica) in(m mode) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mode == m
}

// eventually polls; the test's own time-out is its end.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	give := time.After(60 * time.Second)
	for !is() {
		select {
		case <-tick.C:
		case <-give:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func shares(replicas ...*replica) func() bool {
	return func() bool {
		return !slices.ContainsFunc(replicas, func(r *replica) bool { return !r.in(shared) })
	}
}

// grant is one grant as it is seen from outside: it was given after sent and before came, to begin wait later.
type grant struct {
	sent, came, wait time.Duration
	own              bool // from a share of one's own
	replica          int
}

// crowd hammers replicas and keeps the whole list.
type crowd struct {
	began time.Time
	stop  chan struct{}
	all   sync.WaitGroup

	mu     sync.Mutex
	grants []grant
	slow   []time.Duration // calls that took longer than 20 ms
}

// hammer starts so many loops of interactive and of background calls on each replica, with a breath between calls.
func hammer(loops int, breath time.Duration, replicas ...*replica) *crowd {
	c := &crowd{began: time.Now(), stop: make(chan struct{})}
	for i, r := range replicas {
		for n := range 2 * loops {
			c.all.Go(func() {
				tick := time.NewTicker(breath)
				defer tick.Stop()
				for {
					select {
					case <-c.stop:
						return
					case <-tick.C:
					}
					g := grant{sent: time.Since(c.began), own: r.in(onItsOwn), replica: i}
					var ok bool
					if n%2 == 0 {
						g.wait, _, ok = r.TakeInteractive(context.Background(), MaxWait)
					} else {
						_, ok = r.TakeBackground(context.Background())
					}
					g.came = time.Since(c.began)
					c.mu.Lock()
					if ok {
						c.grants = append(c.grants, g)
					}
					if d := g.came - g.sent; d > 20*time.Millisecond {
						c.slow = append(c.slow, d)
					}
					c.mu.Unlock()
				}
			})
		}
	}
	return c
}

func (c *crowd) now() time.Duration { return time.Since(c.began) }

// count is how many grants lie between two times, by what they are.
func (c *crowd) count(from, to time.Duration, is func(grant) bool) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.grants {
		if g.sent >= from && g.came <= to && is(g) {
			n++
		}
	}
	return n
}

// end stops the loops and checks every window over the whole list: whatever the true times of the grants, those that
// surely lie in a window are no more than rate·t + burst.
func (c *crowd) end(t *testing.T, rate float64, burst int) {
	t.Helper()
	close(c.stop)
	c.all.Wait()
	worst, text := 0.0, ""
	byEnd := slices.Clone(c.grants)
	slices.SortFunc(byEnd, func(a, b grant) int { return int((a.came + a.wait) - (b.came + b.wait)) })
	for _, first := range c.grants {
		n := 0
		from := first.sent + first.wait
		for _, g := range byEnd {
			if g.sent+g.wait < from {
				continue
			}
			n++
			span := g.came + g.wait - from
			if over := float64(n) - rate*span.Seconds() - float64(burst); over > worst {
				worst = over
				text = strings.Join([]string{from.String(), span.String()}, " + ")
			}
		}
	}
	t.Logf("%d grants in %v", len(c.grants), time.Since(c.began).Round(time.Millisecond))
	if worst > 0 {
		t.Errorf("%.2f grants over rate·t + burst in the window %s", worst, text)
	}
}

// relay stands between a replica and Redis, and can be cut.
type relay struct {
	url string
	to  string
	ln  net.Listener

	mu    sync.Mutex
	off   bool
	conns []net.Conn
	all   sync.WaitGroup
}

func newRelay(t *testing.T, url string) *relay {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{to: o.Addr, ln: ln, url: strings.Replace(url, o.Addr, ln.Addr().String(), 1)}
	r.all.Go(r.serve)
	t.Cleanup(func() { _ = ln.Close(); r.cut(true); r.all.Wait() })
	return r
}

func (r *relay) serve() {
	for {
		c, err := r.ln.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", r.to)
		r.mu.Lock()
		if err != nil || r.off {
			_ = c.Close()
			if err == nil {
				_ = far.Close()
			}
			r.mu.Unlock()
			continue
		}
		r.conns = append(r.conns, c, far)
		r.mu.Unlock()
		for _, way := range [][2]net.Conn{{c, far}, {far, c}} {
			r.all.Go(func() {
				_, _ = io.Copy(way[0], way[1])
				_ = way[0].Close()
				_ = way[1].Close()
			})
		}
	}
}

func (r *relay) cut(off bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.off = off
	if off {
		for _, c := range r.conns {
			_ = c.Close()
		}
		r.conns = nil
	}
}

func count(t testing.TB, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}
