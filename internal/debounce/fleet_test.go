package debounce

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"validator-gw/internal/redisconn"
	"validator-gw/internal/secret"
	"validator-gw/internal/testenv"
)

// fleet is some processes on one Redis, stepped by hand; the bare client makes time pass.
type fleet struct {
	t    *testing.T
	bare *redis.Client
	all  []*process
}

type process struct {
	*Fleet
	fired []string
	err   error // what Fire returns
}

func half() float64 { return 0.5 }

func newFleet(t *testing.T, url, name string, n int, tune func(*FleetConfig)) *fleet {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, bare: redis.NewClient(o)}
	t.Cleanup(func() { _ = f.bare.Close() })
	for range n {
		conn, err := redisconn.Open(redisconn.Config{URL: secret.Text(url), LookUp: 5 * time.Second}) // the machine may be busy
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		p := &process{}
		cfg := FleetConfig{Name: name, Window: Window{Quiet: time.Hour, Max: 10 * time.Hour}, Rand: half, // no real time reaches it
			Fire: func(_ context.Context, keys []string) error {
				if p.err == nil {
					p.fired = append(p.fired, keys...)
				}
				return p.err
			}}
		if tune != nil {
			tune(&cfg)
		}
		if p.Fleet, err = NewFleet(conn, cfg); err != nil {
			t.Fatal(err)
		}
		f.all = append(f.all, p)
	}
	return f
}

// own is a fleet with a name that no other test has, in the shared Redis.
func own(t *testing.T, n int, tune func(*FleetConfig)) *fleet {
	t.Helper()
	url, prefix := testenv.Redis(t)
	f := newFleet(t, url, "test-"+strings.TrimSuffix(prefix, ":"), n, tune)
	t.Cleanup(func() { f.bare.Del(context.Background(), f.all[0].keys...) })
	return f
}

// pass lets time pass for what is armed and for leases.
func (f *fleet) pass(d time.Duration) {
	f.t.Helper()
	ctx, keys := f.t.Context(), f.all[0].keys
	for _, set := range keys[:2] {
		all, err := f.bare.ZRange(ctx, set, 0, -1).Result()
		if err != nil {
			f.t.Fatal(err)
		}
		for _, key := range all {
			f.bare.ZIncrBy(ctx, set, -float64(d.Milliseconds()), key)
		}
	}
	bursts, err := f.bare.HGetAll(ctx, keys[2]).Result()
	if err != nil {
		f.t.Fatal(err)
	}
	for key, burst := range bursts {
		generation, first, _ := strings.Cut(burst, ":")
		ms, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			f.t.Fatalf("burst %q", burst)
		}
		f.bare.HSet(ctx, keys[2], key, fmt.Sprintf("%s:%d", generation, ms-d.Milliseconds()))
	}
}

func (f *fleet) arm(i int, key string, want time.Duration) {
	f.t.Helper()
	in, err := f.all[i].Arm(f.t.Context(), key)
	if err != nil || in > want || in < want-30*time.Minute { // as much as a test may take
		f.t.Errorf("Arm(%s) = %v, %v, want %v", key, in, err, want)
	}
}

func (f *fleet) sweep(i int, want ...string) []Swept {
	f.t.Helper()
	swept, _, err := f.all[i].Sweep(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	var keys []string
	for _, s := range swept {
		keys = append(keys, s.Key)
	}
	slices.Sort(keys)
	if !slices.Equal(keys, want) {
		f.t.Errorf("Sweep = %v, want %v", keys, want)
	}
	return swept
}

func (f *fleet) ack(i int, swept []Swept) {
	f.t.Helper()
	if err := f.all[i].Ack(f.t.Context(), swept); err != nil {
		f.t.Fatal(err)
	}
}

// empty says that nothing is left but the counter.
func (f *fleet) empty() {
	f.t.Helper()
	if n, err := f.bare.Exists(f.t.Context(), f.all[0].keys[:3]...).Result(); err != nil || n != 0 {
		f.t.Errorf("%d keys are left in Redis, %v; want none", n, err)
	}
}

const hour = time.Hour

func TestFleetBurstIsOneAcrossProcesses(t *testing.T) {
	t.Parallel()
	f := own(t, 3, nil)
	for i := range 9 {
		f.arm(i%3, "a", hour)
		f.pass(30 * time.Minute)
		f.sweep((i + 1) % 3)
	}
	f.arm(0, "a", hour)
	f.arm(1, "b", hour)
	f.pass(hour)
	swept := f.sweep(2, "a", "b")
	f.sweep(0)
	f.ack(2, swept)
	f.empty()
}

func TestFleetBurstEndsAtTheLatestTime(t *testing.T) {
	t.Parallel()
	f := own(t, 2, nil)
	f.arm(0, "a", hour)
	for i := range 10 {
		f.pass(57 * time.Minute) // 9 h 30 min in the end
		f.arm(i%2, "a", min(hour, 10*hour-time.Duration(i+1)*57*time.Minute))
	}
	f.sweep(0)
	f.pass(30 * time.Minute)
	f.sweep(1, "a")
}

// An event between sweep and ack is not swallowed by the ack, and what a slow sweeper says late is not said of the next burst.
func TestFleetGenerations(t *testing.T) {
	t.Parallel()
	f := own(t, 3, nil)
	f.arm(0, "a", hour)
	f.pass(hour)
	first := f.sweep(1, "a")
	f.arm(0, "a", hour) // another burst, from its own beginning
	f.ack(1, first)
	f.sweep(2)
	f.pass(hour)
	second := f.sweep(2, "a")
	f.ack(1, first) // twice, and late: the second is not its own
	f.pass(sweepLease)
	third := f.sweep(0, "a")
	if !third[0].Again || third[0].Generation != second[0].Generation || second[0].Again {
		t.Errorf("swept %+v after %+v, want the same again", third, second)
	}
	f.ack(2, second) // the slow one fired after all: once is enough
	f.pass(sweepLease)
	f.sweep(1)
	f.empty()
}

func TestFleetSweeperThatDied(t *testing.T) {
	t.Parallel()
	f := own(t, 2, nil)
	f.arm(0, "a", hour)
	f.pass(hour)
	f.sweep(0, "a") // and dies
	f.pass(sweepLease - time.Second)
	f.arm(1, "a", hour) // an event meanwhile
	f.sweep(1)
	f.pass(time.Second)
	f.ack(1, f.sweep(1, "a"))
	f.sweep(1) // the event's own burst goes on
	f.pass(hour)
	f.ack(1, f.sweep(1, "a"))
	f.empty()
}

func TestFleetStep(t *testing.T) {
	t.Parallel()
	f := own(t, 2, nil)
	a, b := f.all[0], f.all[1]
	if wait := a.Step(t.Context()); wait != idle {
		t.Errorf("with nothing armed Step = %v, want %v", wait, idle)
	}
	f.arm(0, "a", hour)
	f.pass(hour)
	a.err = errors.New("the store is away")
	a.Step(t.Context())
	if b.Step(t.Context()); len(b.fired) != 0 {
		t.Errorf("fired %v while another has it", b.fired)
	}
	f.pass(sweepLease)
	if b.Step(t.Context()); !slices.Equal(b.fired, []string{"a"}) {
		t.Errorf("fired %v, want what the other could not", b.fired)
	}
	f.empty()
	for n := range 250 {
		f.arm(0, fmt.Sprint(n), hour)
	}
	f.pass(hour)
	for want := 100; want <= 200; want += 100 {
		b.fired = nil
		if wait := b.Step(t.Context()); wait != 0 || len(b.fired) != 100 {
			t.Errorf("Step = %v with %d fired, want at once and 100", wait, len(b.fired))
		}
	}
	b.Step(t.Context())
	f.empty()
}

func TestFleetBound(t *testing.T) {
	t.Parallel()
	f := own(t, 1, func(c *FleetConfig) { c.MaxKeys = 2 })
	f.arm(0, "a", hour)
	f.arm(0, "b", hour)
	if _, err := f.all[0].Arm(t.Context(), "c"); !errors.Is(err, ErrFull) {
		t.Errorf("Arm of a third key = %v, want ErrFull", err)
	}
	f.arm(0, "a", hour)
}

// A thousand events from three processes at once are one burst; nothing stays in Redis for ever.
func TestFleetCrowd(t *testing.T) {
	t.Parallel()
	f := own(t, 3, nil)
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			for range 10 {
				if _, err := f.all[i%3].Arm(t.Context(), "a"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for _, key := range f.all[0].keys {
		if life, err := f.bare.PTTL(t.Context(), key).Result(); err != nil || life <= 0 && key != f.all[0].keys[1] {
			t.Errorf("%s lives for %v, %v; want an end", key, life, err)
		}
	}
	f.pass(hour)
	swept := f.sweep(0, "a")
	if swept[0].Generation != 1000 {
		t.Errorf("generation %d, want that of the last of 1000 events", swept[0].Generation)
	}
	if life := f.bare.PTTL(t.Context(), f.all[0].keys[1]).Val(); life <= 0 {
		t.Errorf("what is running lives for %v, want an end", life)
	}
}

// TestFleetRun: real time, without a claim on how much of it. Redis dies, comes back empty, and all goes on.
func TestFleetRun(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	fired := make(chan string, 100)
	f := newFleet(t, server.URL(), "run", 2, func(c *FleetConfig) {
		c.Window = Window{Quiet: 20 * ms, Max: 100 * ms}
		c.Fire = func(_ context.Context, keys []string) error {
			for _, k := range keys {
				fired <- k
			}
			return nil
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, p := range f.all {
		running.Go(func() { _ = p.Run(ctx) })
	}
	wait := func(key string) {
		t.Helper()
		select {
		case got := <-fired:
			if got != key {
				t.Errorf("fired %s, want %s", got, key)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s was not fired within a minute", key)
		}
	}
	arm := func(key string) {
		t.Helper()
		give := time.After(time.Minute)
		for {
			if _, err := f.all[0].Arm(t.Context(), key); err == nil {
				return
			}
			select {
			case <-time.After(20 * ms):
			case <-give:
				t.Fatal("Redis is not back within a minute")
			}
		}
	}
	arm("a")
	wait("a")
	server.Kill()
	if _, err := f.all[0].Arm(t.Context(), "b"); err == nil {
		t.Error("Arm with Redis dead gave no error")
	}
	server.Start()
	arm("c")
	wait("c")
	cancel()
	running.Wait()
}

func TestNewFleetRefuses(t *testing.T) {
	t.Parallel()
	good := FleetConfig{Name: "n", Window: window, Rand: half, Fire: func(context.Context, []string) error { return nil }}
	for name, spoil := range map[string]func(*FleetConfig){
		"no name": func(c *FleetConfig) { c.Name = "" }, "no fire": func(c *FleetConfig) { c.Fire = nil },
		"no quiet": func(c *FleetConfig) { c.Window.Quiet = 0 }, "a quiet over the longest wait": func(c *FleetConfig) { c.Window.Max = ms },
	} {
		c := good
		spoil(&c)
		if _, err := NewFleet(nil, c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
