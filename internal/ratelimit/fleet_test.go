package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"validator-gw/internal/redisconn"
	"validator-gw/internal/testenv"
)

// TestMeterIsGCRA holds the meter to the textbook: a theoretical arrival time in whole microseconds, at rates where an
// emission is a whole number of them.
func TestMeterIsGCRA(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		rate := rapid.SampledFrom([]int64{1, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100, 250, 1000, 1_000_000}).Draw(rt, "rate")
		burst := rapid.Int64Range(1, 50).Draw(rt, "burst")
		emission := 1_000_000 / rate
		s := share{rate: float64(rate), burst: float64(burst)}
		var m meter
		tat := burst * emission // empty at 0
		now := int64(0)
		for range rapid.IntRange(1, 200).Draw(rt, "calls") {
			now += rapid.Int64Range(0, 3*burst*emission).Draw(rt, "gap")
			n := rapid.Int64Range(1, 3).Draw(rt, "n")
			// However big it is, a full bucket has n besides.
			reserve := min(rapid.Int64Range(0, burst).Draw(rt, "reserve"), max(burst-n, 0))
			maxWait := rapid.Int64Range(0, 3*emission).Draw(rt, "wait")
			next := max(tat, now) + n*emission
			ahead := next - now - emission*(burst-reserve)
			wantOK, wantWait := ahead <= maxWait, max(ahead, 0)
			wait, ok := m.take(now, perMicro, s, float64(n), float64(reserve), float64(maxWait))
			if ok != wantOK || wait != wantWait {
				rt.Fatalf("at %d: %d, %v; the textbook says %d, %v", now, wait, ok, wantWait, wantOK)
			}
			if ok {
				tat = next
			}
		}
	})
}

// model is what the shared bucket must do, number by number, in Go.
type model struct {
	main, floor meter
	fresh       bool
}

func (m *model) take(now int64, lim Limits, c class, maxWait time.Duration, live, peak int) (ok bool, wait int64) {
	rate, burst := lim.Rate, float64(max(lim.Burst, 1))
	if peak > live {
		keep := 1 - ownShare*float64(peak-live)/float64(max(peak, lim.Instances, 1))
		rate, burst = rate*keep, max(burst*keep, 1)
	}
	main, floor := split(rate, burst, lim.Floor)
	if m.fresh {
		m.main.empty(now, main.rate, float64(MaxWait.Microseconds()))
		m.floor.empty(now, floor.rate, float64(MaxWait.Microseconds()))
		m.fresh = false
	}
	if floor.rate == 0 {
		m.floor.off()
	}
	if c == interactive {
		wait, ok = m.main.take(now, perMicro, main, 1, 0, float64(maxWait.Microseconds()))
		return ok, wait
	}
	_, ok = m.main.take(now, perMicro, main, 1, lim.Reserve*main.burst, 0)
	if !ok && floor.rate > 0 {
		_, ok = m.floor.take(now, perMicro, floor, 1, 0, 0)
	}
	return ok, 0
}

// TestScriptIsTheModel draws calls of both classes, pauses, changes of the limits and missing replicas, and compares each
// answer of the script, and what it stored, with the model. Time passes by moving the stored times back: Redis's clock
// stays what the script reads.
func TestScriptIsTheModel(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	conn, bare := connect(t, url, patient), bareClient(t, url)
	var runs atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		ctx := t.Context()
		lim := Limits{}
		f := NewFleet(conn, func() Limits { return lim }, FleetConfig{Name: fmt.Sprint(runs.Add(1)), Prefix: prefix})
		bucket, members := f.keys[0], f.keys[2]
		must := func(err error) {
			if err != nil {
				rt.Fatal(err)
			}
		}
		m := &model{fresh: true}
		live, peak := 0, 0
		change := func() {
			lim = Limits{
				Rate: rapid.Float64Range(0.01, 2000).Draw(rt, "rate"), Burst: rapid.IntRange(1, 50).Draw(rt, "burst"),
				Reserve: rapid.Float64Range(0, 1).Draw(rt, "reserve"), Instances: rapid.IntRange(0, 8).Draw(rt, "instances"),
				Floor: rapid.SampledFrom([]float64{0, 0.1, 0.25, 0.5}).Draw(rt, "floor"),
			}
		}
		change()
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			switch step := rapid.IntRange(0, 11).Draw(rt, "step"); step {
			case 0:
				change()
			case 1: // time passes, or jumps back
				d := rapid.Int64Range(-2_000_000, 20_000_000).Draw(rt, "µs")
				if !m.fresh {
					must(bare.HIncrBy(ctx, bucket, "main_at", -d).Err())
					must(bare.HIncrBy(ctx, bucket, "floor_at", -d).Err())
					m.main.at -= d
					m.floor.at -= d
				}
			case 2:
				live, peak = rapid.IntRange(0, 4).Draw(rt, "live"), rapid.IntRange(0, 6).Draw(rt, "peak")
				must(bare.Del(ctx, members).Err())
				for i := range live { // seen in an hour: live as long as the test runs
					must(bare.ZAdd(ctx, members, redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMicro()), Member: i}).Err())
				}
				must(bare.HSet(ctx, bucket, "peak", peak).Err())
			default:
				c := class(step % 2)
				maxWait := time.Duration(rapid.IntRange(0, 50_000).Draw(rt, "wait")) * time.Microsecond
				if c == background {
					maxWait = 0
				}
				got, err := run(ctx, bare, luaTake, f.keys, classNames[c], text(lim.Rate), lim.burst(), text(lim.Reserve), text(lim.Floor),
					micros(maxWait), micros(MaxWait), micros(silence), text(ownShare), max(lim.Instances, 1), micros(maxHold))
				must(err)
				ok, wait := m.take(got[3], lim, c, maxWait, live, peak)
				if (got[0] == 1) != ok || c == interactive && got[1] != wait {
					rt.Fatalf("%s: granted %v wait %d; the model says %v, %d", classNames[c], got[0] == 1, got[1], ok, wait)
				}
				stored, err := bare.HMGet(ctx, bucket, "main", "main_at", "floor", "floor_at").Result()
				must(err)
				want := []string{whole(m.main.have), strconv.FormatInt(m.main.at, 10), whole(m.floor.have), strconv.FormatInt(m.floor.at, 10)}
				if fmt.Sprint(stored) != fmt.Sprint(want) {
					rt.Fatalf("stored %v, the model says %v", stored, want)
				}
			}
		}
	})
}

func whole(x float64) string {
	if x == 0 {
		x = 0 // not minus nothing
	}
	return strconv.FormatFloat(x, 'f', 0, 64)
}

// pass lets time pass for a bucket.
func pass(t *testing.T, bare *redis.Client, f *Fleet, d time.Duration) {
	t.Helper()
	for _, at := range []string{"main_at", "floor_at"} {
		if err := bare.HIncrBy(t.Context(), f.keys[0], at, -d.Microseconds()).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// takes asks until Redis answered in time: the box may be busy.
func takes(t *testing.T, r *replica, c class, maxWait time.Duration) (wait time.Duration, ok bool) {
	t.Helper()
	for {
		errs := count(t, r.metrics.takes[c][fromRedis][resultError])
		eventually(t, "the rate is shared", shares(r))
		own := count(t, r.metrics.takes[c][fromLocal][resultRefused]) + count(t, r.metrics.takes[c][fromLocal][resultGranted])
		wait, _, ok = r.take(t.Context(), c, maxWait)
		if count(t, r.metrics.takes[c][fromRedis][resultError]) == errs &&
			count(t, r.metrics.takes[c][fromLocal][resultRefused])+count(t, r.metrics.takes[c][fromLocal][resultGranted]) == own {
			return wait, ok
		}
		r.conn.Wake()
	}
}

func TestFleetStartsEmptyAndFills(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	bare := bareClient(t, url)
	r := newReplica(t, url, prefix, fixed(Limits{Rate: 0.01, Burst: 5}))
	if _, ok := takes(t, r, interactive, 0); ok {
		t.Fatal("a new bucket granted at once, want it to start empty")
	}
	pass(t, bare, r.Fleet, 500*time.Second)
	got := 0
	for {
		if _, ok := takes(t, r, interactive, 0); !ok {
			break
		}
		got++
	}
	if got != 5 {
		t.Errorf("a full bucket granted %d at once, want its burst of 5", got)
	}
	// A second replica finds the bucket as it is: joining is no way to a second burst.
	if _, ok := takes(t, newReplica(t, url, prefix, fixed(Limits{Rate: 0.01, Burst: 5})), interactive, 0); ok {
		t.Error("a newcomer was granted what the others had spent")
	}
}

// What Redis says to be to spare is what background work then gets; a closed gate leaves nothing.
func TestFleetSpare(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	bare := bareClient(t, url)
	r := newReplica(t, url, prefix, fixed(Limits{Rate: 0.001, Burst: 20, Reserve: 0.5, Floor: 0.1}))
	takes(t, r, interactive, 0)
	for i := range 8 {
		pass(t, bare, r.Fleet, time.Duration(i)*40*time.Minute)
		want, got := r.Spare(t.Context()), 0
		for _, ok := takes(t, r, background, 0); ok; _, ok = takes(t, r, background, 0) {
			got++
		}
		if got != want {
			t.Errorf("%d to spare, %d taken", want, got)
		}
	}
	pass(t, bare, r.Fleet, 10*time.Hour)
	if n := r.Spare(t.Context()); n != 11 { // half of 18, and the floor's 2
		t.Errorf("%d to spare of a full bucket, want 11", n)
	}
	r.Hold(t.Context(), time.Hour)
	if n := r.Spare(t.Context()); n != 0 {
		t.Errorf("%d to spare while nobody may call", n)
	}
}

// The reserve keeps interactive calls at 99 % and more under a background flood.
func TestFleetReserve(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	bare := bareClient(t, url)
	r := newReplica(t, url, prefix, fixed(Limits{Rate: 1, Burst: 20, Reserve: 0.5, Floor: 0.1}))
	takes(t, r, interactive, 0)
	granted, asked, floods := 0, 0, 0
	for i := range 3000 { // 100 ms each, of a bucket at 1/s: a flood of 20 a second beside a person every 2 s
		pass(t, bare, r.Fleet, 100*time.Millisecond)
		for range 2 {
			if _, ok := takes(t, r, background, 0); ok {
				floods++
			}
		}
		if i >= 400 && i%20 == 0 { // once the bucket was full
			asked++
			if _, ok := takes(t, r, interactive, MaxWait); ok {
				granted++
			}
		}
	}
	if granted*100 < asked*99 {
		t.Errorf("%d of %d people were let through beside a flood, want 99 %%", granted, asked)
	}
	if floods < 100 {
		t.Errorf("background work got %d: there was no flood", floods)
	}
}

// The floor is background work's, whatever comes in.
func TestFleetFloor(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	bare := bareClient(t, url)
	r := newReplica(t, url, prefix, fixed(Limits{Rate: 1, Burst: 20, Reserve: 0.5, Floor: 0.1}))
	takes(t, r, interactive, 0)
	got := 0
	for range 2000 { // 100 ms each
		pass(t, bare, r.Fleet, 100*time.Millisecond)
		takes(t, r, interactive, MaxWait)
		takes(t, r, interactive, MaxWait)
		if _, ok := takes(t, r, background, 0); ok {
			got++
		}
	}
	if got < 19 { // 0.1/s for 200 s
		t.Errorf("background got %d in 200 s of flood, want its floor of 20", got)
	}
}

// TestThreeReplicas hammers one bucket from three sides, changes the limits under way, and checks every window.
func TestThreeReplicas(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	var lim atomic.Pointer[Limits]
	lim.Store(&Limits{Rate: 300, Burst: 20, Reserve: 0.5, Floor: 0.1})
	limits := func() Limits { return *lim.Load() }
	var all []*replica
	for range 3 {
		all = append(all, newReplica(t, url, prefix, limits))
	}
	eventually(t, "all share", shares(all...))
	c := hammer(2, time.Millisecond, all...)
	eventually(t, "two seconds of it", func() bool { return c.now() > 2*time.Second })
	lim.Store(&Limits{Rate: 100, Burst: 10, Reserve: 0.5, Floor: 0.3})
	eventually(t, "another second", func() bool { return c.now() > 3*time.Second })
	slow := c.now()
	eventually(t, "another second", func() bool { return c.now() > 4*time.Second })
	fast := c.now()
	if n := c.count(slow, fast, func(grant) bool { return true }); float64(n) > 100*(fast-slow).Seconds()+10 {
		t.Errorf("%d grants in %v after the rate was lowered to 100/s", n, fast-slow)
	}
	lim.Store(&Limits{Rate: 300, Burst: 20, Reserve: 0.5, Floor: 0.1})
	eventually(t, "another second", func() bool { return c.now() > 5*time.Second })
	c.end(t, 300, 20)
	if n := len(c.grants); n < 400 { // 300/s for 3 s and 100/s for 2 s, on a box that may be busy
		t.Errorf("%d grants, want about 1100: the bucket gives too little", n)
	}
}

// outage is one story of a Redis that goes and comes back under three replicas.
func outage(t *testing.T, hangs bool, down, up func(*testenv.Server)) *crowd {
	t.Helper()
	server := testenv.RedisServer(t)
	lim := Limits{Rate: 100, Burst: 30, Reserve: 0.5, Floor: 0.1}
	var all []*replica
	for range 3 {
		all = append(all, startReplica(t, connect(t, server.URL(), 0), "", fixed(lim)))
	}
	eventually(t, "all share and know of one another", func() bool {
		for _, r := range all {
			r.mu.Lock()
			settled := r.known == 3 && r.heard && r.mode == shared
			r.mu.Unlock()
			if !settled {
				return false
			}
		}
		return true
	})
	c := hammer(2, 2*time.Millisecond, all...)
	eventually(t, "two seconds of it", func() bool { return c.now() > 2*time.Second })
	errs := func(r *replica) float64 {
		return count(t, r.metrics.takes[interactive][fromRedis][resultError]) + count(t, r.metrics.takes[background][fromRedis][resultError])
	}
	down(server)
	gone := c.now()
	eventually(t, "each has found out", func() bool { return !slices.ContainsFunc(all, func(r *replica) bool { return r.in(shared) }) })
	var before []float64
	for _, r := range all {
		before = append(before, errs(r))
	}
	eventually(t, "each is on a share of its own, and it gives something", func() bool {
		for i := range all {
			if c.count(gone, c.now(), func(g grant) bool { return g.own && g.replica == i }) < 5 {
				return false
			}
		}
		return true
	})
	// Only those wait that find out, and those in the air with them: 4 loops at a time. How many find out in 100 ms is the machine's.
	for i, r := range all {
		if n := errs(r) - before[i]; hangs && n > 4 {
			t.Errorf("replica %d: %v calls waited for a Redis that was known to hang, want at most the 4 in the air", i, n)
		}
	}
	on := c.now()
	eventually(t, "another second", func() bool { return c.now() > on+time.Second })
	up(server)
	eventually(t, "all share again", shares(all...))
	back := c.now()
	eventually(t, "two seconds of grants from Redis", func() bool {
		return c.now() > back+2*time.Second && c.count(back, c.now(), func(g grant) bool { return !g.own }) > 20
	})
	t.Logf("gap of %v, back after %v", firstOwn(c, gone)-gone, back-on)
	c.end(t, lim.Rate, lim.Burst)
	return c
}

func firstOwn(c *crowd, after time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := time.Duration(math.MaxInt64)
	for _, g := range c.grants {
		if g.own && g.sent > after {
			first = min(first, g.sent)
		}
	}
	return first
}

func TestRedisKilled(t *testing.T) {
	t.Parallel()
	outage(t, false, (*testenv.Server).Kill, (*testenv.Server).Start)
}

// A hung Redis slows down only the calls that find out, and those in the air with them.
func TestRedisHung(t *testing.T) {
	t.Parallel()
	c := outage(t, true, (*testenv.Server).Pause, (*testenv.Server).Resume)
	slices.Sort(c.slow)
	// Each is bounded by its context, which redisconn's tests look at; what they took shows how busy the machine is.
	t.Logf("%d calls took more than 20ms, the slowest %v", len(c.slow), c.slow[max(len(c.slow)-5, 0):])
}

// A Redis that forgets everything is no second burst.
func TestRedisFlushed(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	bare := bareClient(t, server.URL())
	lim := Limits{Rate: 50, Burst: 40, Reserve: 0.5, Floor: 0.1}
	a, b := newReplica(t, server.URL(), "", fixed(lim)), newReplica(t, server.URL(), "", fixed(lim))
	eventually(t, "both share", shares(a, b))
	c := hammer(2, 2*time.Millisecond, a, b)
	for i := range 3 {
		eventually(t, "another second", func() bool { return c.now() > time.Duration(i+1)*time.Second })
		if err := bare.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if err := bare.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "another second", func() bool { return c.now() > 4*time.Second })
	c.end(t, lim.Rate, lim.Burst)
	if own := c.count(0, c.now(), func(g grant) bool { return g.own }); own == 0 && len(c.grants) < 60 && shares(a, b)() {
		t.Errorf("%d grants, want about 190", len(c.grants))
	}
}

// One replica alone loses Redis, and the others leave it its share, until it is back.
func TestOneIsCutOff(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	lim := Limits{Rate: 100, Burst: 30, Reserve: 0.5, Floor: 0.1}
	relay := newRelay(t, url)
	a := newReplica(t, relay.url, prefix, fixed(lim))
	b, c := newReplica(t, url, prefix, fixed(lim)), newReplica(t, url, prefix, fixed(lim))
	eventually(t, "all share and know of one another", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.known == 3 && a.heard
	})
	all := hammer(2, 2*time.Millisecond, a, b, c)
	eventually(t, "two seconds of it", func() bool { return all.now() > 2*time.Second })
	relay.cut(true)
	eventually(t, "it is on its own, and gets something", func() bool {
		return all.count(0, all.now(), func(g grant) bool { return g.own && g.replica == 0 }) > 40
	})
	if b.in(onItsOwn) || c.in(onItsOwn) {
		t.Log("another one lost Redis, too, on this busy machine")
	}
	relay.cut(false)
	eventually(t, "all share again", shares(a, b, c))
	back := all.now()
	eventually(t, "two seconds of it", func() bool { return all.now() > back+2*time.Second })
	all.end(t, lim.Rate, lim.Burst)
}

// A replica that was on a share of its own comes back to an empty bucket, full as it may have become meanwhile; one that
// was not, and one whose entry Redis did not answer, change nothing.
func TestComingBackEmptiesTheBucket(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	bare := bareClient(t, url)
	conn := connect(t, url, patient)
	lim := Limits{Rate: 0.01, Burst: 10}
	f := NewFleet(conn, fixed(lim), FleetConfig{Name: "test", Prefix: prefix})
	f.quiet = time.Now().Add(time.Hour)
	join := func() {
		t.Helper()
		eventually(t, "it is a member", func() bool { f.Join(t.Context()); return f.member() })
	}
	granted := func() (n int) {
		t.Helper()
		for {
			if _, _, ok := f.TakeInteractive(t.Context(), 0); !ok {
				return n
			}
			n++
		}
	}
	join()
	pass(t, bare, f, time.Hour)
	if n := granted(); n != 10 {
		t.Fatalf("%d grants from a full bucket of 10", n)
	}
	pass(t, bare, f, time.Hour)
	f.mu.Lock()
	f.lose(t.Context(), time.Now(), lim)
	f.mu.Unlock()
	join()
	if n := granted(); n != 0 {
		t.Errorf("%d grants at once after it came back, want an empty bucket", n)
	}
	pass(t, bare, f, time.Hour)
	if n := granted(); n != 10 {
		t.Errorf("%d grants later, want 10", n)
	}
	// Another one that begins leaves the bucket as it is.
	pass(t, bare, f, time.Hour)
	other := NewFleet(conn, fixed(lim), FleetConfig{Name: "test", Prefix: prefix})
	eventually(t, "the other is a member", func() bool { other.Join(t.Context()); return other.member() })
	if n := granted(); n != 10 {
		t.Errorf("%d grants after another began, want 10", n)
	}
}

// While nobody knows whether Redis made it a member, a replica keeps still as long as if it had.
func TestEntryWithoutAnswer(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	lim := Limits{Rate: 1000, Burst: 10}
	f := NewFleet(connect(t, server.URL(), 0), fixed(lim), FleetConfig{Name: "test"})
	f.began = f.began.Add(-time.Hour)
	f.quiet = time.Now().Add(-time.Minute)
	if _, _, ok := f.TakeInteractive(t.Context(), 0); !ok {
		t.Fatal("no grant from its own share")
	}
	server.Pause()
	before := time.Now()
	f.enter(t.Context(), lim)
	if f.mode != onItsOwn || f.quiet.Before(before.Add(alone)) {
		t.Errorf("mode %d, quiet until %v, want on its own and %v at the least", f.mode, f.quiet.Sub(before), alone)
	}
	if _, _, ok := f.TakeInteractive(t.Context(), MaxWait); ok {
		t.Error("a grant while Redis may count it as a member")
	}
	server.Resume()
}

// What one is told to wait for, all wait for; also what was said while Redis was away.
func TestHold(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	lim := fixed(Limits{Rate: 100, Burst: 10})
	relay := newRelay(t, url)
	a, b, c := newReplica(t, relay.url, prefix, lim), newReplica(t, url, prefix, lim), newReplica(t, url, prefix, lim)
	eventually(t, "all share", shares(a, b, c))
	held := func(r *replica) (until time.Time) {
		t.Helper()
		eventually(t, "it is held", func() bool {
			_, until, _ = r.TakeInteractive(t.Context(), MaxWait)
			return !until.IsZero()
		})
		return until
	}
	hold := func(r *replica, d time.Duration) {
		t.Helper()
		eventually(t, "Redis was told", func() bool {
			before := count(t, r.metrics.holds[0])
			r.Hold(t.Context(), d)
			return count(t, r.metrics.holds[0]) > before
		})
	}
	began := time.Now()
	hold(a, time.Hour)
	first := held(b)
	if d := first.Sub(began); d < time.Hour-time.Second || d > time.Hour+time.Minute {
		t.Errorf("held for %v, want an hour", d)
	}
	hold(b, time.Minute) // never earlier
	if u := held(c); u.Before(first.Add(-time.Second)) {
		t.Errorf("held until %v, before it was until %v", u, first)
	}
	if u, ok := b.TakeBackground(t.Context()); ok || u.IsZero() {
		t.Errorf("background: %v, %v", u, ok)
	}

	relay.cut(true)
	eventually(t, "it is on its own", func() bool { a.step(t.Context()); return a.in(onItsOwn) })
	a.Hold(t.Context(), 3*time.Hour)
	if count(t, a.metrics.holds[1]) == 0 {
		t.Error("a hold that Redis was not told is not counted")
	}
	if u := held(a); u.Before(began.Add(3 * time.Hour)) {
		t.Errorf("on its own it is held until %v", u)
	}
	relay.cut(false)
	eventually(t, "all share again", shares(a))
	d := newReplica(t, url, prefix, lim)
	eventually(t, "the newcomer shares", shares(d))
	if u := held(d); u.Before(began.Add(3*time.Hour - time.Second)) {
		t.Errorf("a newcomer is held until %v, want what was said while Redis was away", u)
	}
}

// A call whose answer is lost is charged once, and so is one whose script Redis had to be sent.
func TestNothingIsAskedTwice(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	bare := bareClient(t, server.URL())
	r := newReplica(t, server.URL(), "", fixed(Limits{Rate: 0.001, Burst: 100}))
	eventually(t, "it shares", shares(r))
	takes(t, r, interactive, 0)
	pass(t, bare, r.Fleet, 200_000*time.Second)
	have := func() float64 {
		t.Helper()
		x, err := bare.HGet(t.Context(), r.keys[0], "main").Float64()
		if err != nil {
			t.Fatal(err)
		}
		return x / perMicro
	}
	takes(t, r, interactive, 0)
	full := have()
	if full < 98.9 || full > 99.1 {
		t.Fatalf("it holds %v after one grant, want 99", full)
	}
	if err := bare.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	r.conn.Wake()
	if _, _, ok := r.TakeInteractive(t.Context(), 0); !ok && count(t, r.metrics.takes[interactive][fromRedis][resultError]) == 0 {
		t.Error("refused after the script was forgotten")
	}
	if d := full - have(); d < 0.9 || d > 1.1 {
		t.Errorf("charged %v for a script that had to be sent, want 1", d)
	}
	full = have()
	server.Pause()
	_, _, ok := r.TakeInteractive(t.Context(), 0)
	server.Resume()
	if ok {
		t.Error("granted by a hung server")
	}
	eventually(t, "the server has done what it was sent", func() bool { return full-have() > 0.9 })
	if d := full - have(); d > 1.1 {
		t.Errorf("charged %v for a call whose answer was lost, want 1", d)
	}
}

// Members come and go with and without a word, and no clock but Redis's counts.
func TestMembers(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	bare := bareClient(t, url)
	lim := Limits{Rate: 100, Burst: 10}
	var fleet []*Fleet
	conn := connect(t, url, patient)
	for i := range 4 {
		f := NewFleet(conn, fixed(lim), FleetConfig{Name: "test", Prefix: prefix})
		f.began = f.began.Add(time.Duration(i-2) * 1000 * time.Hour) // each thinks that it is another time
		f.quiet = time.Now().Add(time.Hour)
		fleet = append(fleet, f)
	}
	enter := func(f *Fleet) {
		t.Helper()
		eventually(t, "it is a member", func() bool {
			conn.Wake()
			f.step(t.Context())
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.mode == shared
		})
	}
	look := func() (live, peak int64) {
		t.Helper()
		got, err := run(t.Context(), bare, luaMember, fleet[0].keys, "look", "x", 0, 0, micros(silence), micros(memory), "1", 1, "0", 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return got[1], got[2]
	}
	want := func(what string, wantLive, wantPeak int64) {
		t.Helper()
		if live, peak := look(); live != wantLive || peak != wantPeak {
			t.Errorf("%s: %d live of %d, want %d of %d", what, live, peak, wantLive, wantPeak)
		}
	}
	age := func(f *Fleet, d time.Duration) {
		t.Helper()
		if err := bare.ZIncrBy(t.Context(), f.keys[2], -float64(d.Microseconds()), f.id).Err(); err != nil {
			t.Fatal(err)
		}
	}
	day := 24 * time.Hour // a busy box may need a while: nobody falls silent by itself
	for i, f := range fleet[:3] {
		enter(f)
		age(f, -day)
		want("entered", int64(i+1), int64(i+1))
	}
	fleet[2].leave(t.Context())
	want("one took leave", 2, 2)
	age(fleet[1], day+silence)
	want("one fell silent", 1, 2)
	enter(fleet[3])
	age(fleet[3], -day)
	want("another came for it", 2, 2)
	// A beat that comes too late does not count.
	got, err := run(t.Context(), bare, luaMember, fleet[0].keys, "beat", fleet[1].id, 1, 2, micros(silence), micros(memory), "1", 1, "0", 0, 0)
	if err != nil || got[1] != -1 {
		t.Errorf("a beat from long ago: %v, %v; want it refused", got, err)
	}
	want("a late beat", 2, 2)
	for _, m := range bare.ZRange(t.Context(), fleet[0].keys[2], 0, -1).Val() {
		if len(m) != 26 {
			t.Errorf("member %q, want a random name", m)
		}
	}
}

// A share of one's own is such that all of them stay within the rate.
func TestOwnShare(t *testing.T) {
	t.Parallel()
	f := &Fleet{}
	for _, c := range []struct {
		known, instances int
		heard            bool
		want             float64
	}{
		{0, 0, false, 0.7}, {0, 1, false, 0.7}, {0, 4, false, 0.175}, {3, 1, true, 0.7 / 3}, {3, 1, false, 0.1}, {3, 5, false, 0.14}, {3, 5, true, 0.14},
		{1, 1, false, 0.7}, {50, 1, true, 0.014},
	} {
		f.known, f.heard = c.known, c.heard
		main, floor := f.own(Limits{Rate: 100, Burst: 1000, Floor: 0.1, Instances: c.instances})
		if got := (main.rate + floor.rate) / 100; math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%+v: %v of the rate, want %v", c, got, c.want)
		}
		if got := (main.burst + floor.burst) / 1000; math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%+v: %v of the burst, want %v", c, got, c.want)
		}
	}
}

func TestQuotas(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	bare := bareClient(t, url)
	conn := connect(t, url, patient)
	q := NewQuotas(conn, "key", prefix)
	take := func(key string, n int) (after time.Duration, ok bool) {
		t.Helper()
		eventually(t, "an answer", func() bool {
			conn.Wake()
			var err error
			after, ok, err = q.Take(t.Context(), key, 0.01, 10, n)
			return err == nil
		})
		return after, ok
	}
	if _, ok := take("a", 4); !ok {
		t.Error("a caller that was never seen was refused 4 of 10")
	}
	if _, ok := take("a", 6); !ok {
		t.Error("refused 6 of the 6 that are left")
	}
	if after, ok := take("a", 2); ok || after > 200*time.Second || after < 190*time.Second {
		t.Errorf("2 of an empty bucket: %v after %v, want a refusal and 200s", ok, after)
	}
	if _, ok := take("b", 10); !ok {
		t.Error("another caller was refused its full burst")
	}
	if _, ok := take("c", 11); ok {
		t.Error("granted more than the burst")
	}
	ttl, err := bare.PTTL(t.Context(), prefix+"rq1:key:a").Result()
	if err != nil || ttl > 1001*time.Second || ttl < 980*time.Second {
		t.Errorf("kept for %v, %v; want 1001s: the time to full and a second", ttl, err)
	}
	dead := connect(t, "redis://127.0.0.1:1", 0)
	if _, ok, err := NewQuotas(dead, "key", "").Take(t.Context(), "a", 1, 1, 1); ok || err == nil {
		t.Errorf("without Redis: %v, %v; want an error", ok, err)
	}
}

// Without Redis from the start, a replica is on its own, and its Run ends.
func TestNeverAnyRedis(t *testing.T) {
	t.Parallel()
	r := newReplica(t, "redis://127.0.0.1:1", "", fixed(Limits{Rate: 100, Burst: 10}))
	eventually(t, "a grant", func() bool { _, _, ok := r.TakeInteractive(t.Context(), 0); return ok })
	if d := time.Since(r.began); d < alone {
		t.Errorf("the first grant after %v, want nothing before %v", d, alone)
	}
	if err := r.conn.Call(t.Context(), time.Second, func(ctx context.Context, c redis.UniversalClient) error { return c.Ping(ctx).Err() }); !errors.Is(err, redisconn.ErrResting) &&
		!errors.Is(err, redisconn.ErrUnreachable) {
		t.Errorf("a call gives %v", err)
	}
	r.stop()
	if _, _, ok := r.TakeInteractive(t.Context(), MaxWait); ok {
		t.Error("a grant after Run ended")
	}
}
