package cache

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"validator-gw/internal/normalize"
	"validator-gw/internal/redisconn"
	"validator-gw/internal/secret"
	"validator-gw/internal/testenv"
	"validator-gw/internal/verdict"
)

// openRedis opens the level on a server, and a bare client beside it.
func openRedis(t *testing.T, url, prefix string) (*Redis, *redis.Client) {
	t.Helper()
	conn, err := redisconn.Open(redisconn.Config{URL: secret.Text(url)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r := NewRedis(conn, "k1", prefix)
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	bare := redis.NewClient(o)
	t.Cleanup(func() { _ = bare.Close() })
	return r, bare
}

// patient retries what a busy machine may let time out: a look-up has 40 ms.
func patient(t *testing.T, r *Redis, do func() error) {
	t.Helper()
	var err error
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 1000 { // after many failed dials the driver waits a second before it dials again
		if err = do(); err == nil {
			return
		}
		r.conn.Wake()
		<-tick.C
	}
	t.Fatal(err)
}

func mustGet(t *testing.T, r *Redis, f normalize.Fingerprint) (e verdict.Cached, ok bool) {
	t.Helper()
	patient(t, r, func() (err error) { e, ok, err = r.get(t.Context(), f); return err })
	return e, ok
}

func mustPut(t *testing.T, r *Redis, batch ...sharedEntry) {
	t.Helper()
	patient(t, r, func() error { return r.put(t.Context(), batch) })
}

func TestRedisKeepsWhatWasPut(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	r, bare := openRedis(t, url, prefix)
	now := time.Now().Round(0)
	v := verdict.Verdict{
		ID: "0197-a", Status: verdict.Risky, Reason: verdict.CatchAll, Reasons: []verdict.Reason{verdict.CatchAll},
		Flags: verdict.Flags{CatchAll: verdict.True, Free: verdict.False}, Suggestion: verdict.Suggestion{Domain: "gmail.com"},
		Attempts: 2, Provider: "verimail_v3", CheckedAt: now, SoftUntil: now.Add(time.Hour), HardUntil: now.Add(2 * time.Hour),
	}
	m := verdict.Marker{ID: "0197-b", Reason: verdict.UpstreamTimeout, NextCheckAt: now.Add(time.Minute), Until: now.Add(30 * time.Second)}
	over := verdict.Marker{ID: "0197-c", Until: now.Add(-time.Second)}
	mustPut(t, r, sharedEntry{fp: fp(1), e: verdict.Cached{Verdict: &v}}, sharedEntry{fp: fp(2), e: verdict.Cached{Marker: &m}}, sharedEntry{fp: fp(3), e: verdict.Cached{Marker: &over}})
	mustPut(t, r, sharedEntry{fp: fp(3), e: verdict.Cached{Marker: &over}}) // a batch of nothing

	equal := cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) })
	if e, ok := mustGet(t, r, fp(1)); !ok || !cmp.Equal(e, verdict.Cached{Verdict: &v}, equal) {
		t.Errorf("verdict: %v\n%s", ok, cmp.Diff(verdict.Cached{Verdict: &v}, e, equal))
	}
	if e, ok := mustGet(t, r, fp(2)); !ok || !cmp.Equal(e, verdict.Cached{Marker: &m}, equal) {
		t.Errorf("marker: %v\n%s", ok, cmp.Diff(verdict.Cached{Marker: &m}, e, equal))
	}
	for _, n := range []int{3, 4} {
		if e, ok := mustGet(t, r, fp(n)); ok {
			t.Errorf("%d: found %+v", n, e)
		}
	}
	// Each ends by itself, when its life is over.
	for n, life := range map[int]time.Duration{1: 2 * time.Hour, 2: 30 * time.Second} {
		ttl, err := bare.PTTL(t.Context(), prefix+"ev1:k1:"+fp(n).String()).Result()
		if err != nil || ttl > life || ttl < life-20*time.Second {
			t.Errorf("%d: ends in %v, %v; want %v", n, ttl, err, life)
		}
	}
	// A later value takes the place of an earlier one, also within one batch.
	mustPut(t, r, sharedEntry{fp: fp(2), e: verdict.Cached{Marker: &m}}, sharedEntry{fp: fp(2), e: verdict.Cached{Verdict: &v}})
	if e, ok := mustGet(t, r, fp(2)); !ok || e.Verdict == nil {
		t.Errorf("%v, %+v; want the verdict that replaced the marker", ok, e)
	}
}

// Whatever is not ours to read is a miss: never an error, never an answer.
func TestRedisUnknownValues(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	r, bare := openRedis(t, url, prefix)
	const ends = `,"soft_until":"2099-01-01T00:00:00Z","hard_until":"2099-01-01T00:00:00Z"`
	good := `1{"v":{"id":"a","status":"valid","reason":"mailbox_accepted"` + ends + `}}`
	values := map[string]string{
		"empty":              "",
		"version only":       "1",
		"another version":    "2" + good[1:],
		"no version":         good[1:],
		"cut":                good[:len(good)-3],
		"more after":         good + "x",
		"text":               "hello",
		"binary":             "1\x00\xff",
		"null":               "1null",
		"neither":            "1{}",
		"both":               `1{"v":{"id":"a","status":"valid"` + ends + `},"m":{"id":"a","until":"2099-01-01T00:00:00Z"}}`,
		"unknown status":     strings.Replace(good, `"valid"`, `"splendid"`, 1),
		"not a final status": strings.Replace(good, `"valid"`, `"needs_review"`, 1),
		"no id":              strings.Replace(good, `"a"`, `""`, 1),
		"marker without id":  `1{"m":{"until":"2099-01-01T00:00:00Z"}}`,
		"wrong type":         `1{"v":17}`,
	}
	if _, ok := decode([]byte(good)); !ok {
		t.Fatal("the good value is a miss: the table proves nothing")
	}
	rig := newRig(t, r)
	n := 0
	for name, value := range values {
		n++
		if err := bare.Set(t.Context(), prefix+"ev1:k1:"+fp(n).String(), value, time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		if e, ok := mustGet(t, r, fp(n)); ok {
			t.Errorf("%s: found %+v", name, e)
		}
		if e, ok, _ := rig.Shared(t.Context(), fp(n)); ok {
			t.Errorf("%s: served %+v", name, e)
		}
	}
	// Past its own end, though Redis still has it.
	past := strings.ReplaceAll(good, "2099", "2001")
	if err := bare.Set(t.Context(), prefix+"ev1:k1:"+fp(0).String(), past, time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := rig.Shared(t.Context(), fp(0)); ok {
		t.Error("a verdict past its hard end is served")
	}
}

// Keys hold a keyed hash and values no address, in whichever form a verdict comes.
func TestRedisHoldsNoAddress(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	r, bare := openRedis(t, url, prefix)
	addr, err := normalize.Parse("tell-tale@secret-place.com")
	if err != nil {
		t.Fatal(err)
	}
	f := normalize.NewFingerprinter([]byte(strings.Repeat("k", 32))).Of(addr)
	rig := newRig(t, r)
	stop := rig.run()
	v := valid("0197-a")
	v.Suggestion = verdict.Suggestion{Sealed: []byte{1, 2, 3}}
	rig.Put(f, v)
	stop()
	keys, err := bare.Keys(t.Context(), prefix+"*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys %q, %v", keys, err)
	}
	if !regexp.MustCompile(`^ev1:k1:[A-Za-z0-9_-]{22}$`).MatchString(strings.TrimPrefix(keys[0], prefix)) {
		t.Errorf("key %q, want ev1:, the key's id and 22 letters", keys[0])
	}
	value, err := bare.Get(t.Context(), keys[0]).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"tell-tale", "secret-place", "@"} {
		if strings.Contains(keys[0]+value, part) {
			t.Errorf("%q in %q = %q", part, keys[0], value)
		}
	}
}

// What one replica puts, another finds, and keeps in its process.
func TestReplicasShare(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	ra, _ := openRedis(t, url, prefix)
	rb, _ := openRedis(t, url, prefix)
	a, b := newRig(t, ra), newRig(t, rb)
	share := func() {
		stop := a.run()
		for i := range 450 {
			a.Put(fp(i), valid(fmt.Sprint(i)))
		}
		a.Mark(fp(1000), verdict.Marker{ID: "m"})
		stop() // flushes
		if n := a.metric("cache_redis_writes_total", "error"); n > 0 {
			t.Logf("%v batches timed out: a busy machine", n)
		}
	}
	share()
	found := func(n int) (k verdict.Cached) {
		t.Helper()
		patient(t, rb, func() error {
			var ok bool
			if k, ok, _ = b.Shared(t.Context(), fp(n)); !ok {
				if a.metric("cache_redis_writes_total", "error") > 0 {
					ra.conn.Wake()
					share()
				}
				return fmt.Errorf("%d is not found at the other replica", n)
			}
			return nil
		})
		if _, ok := b.Local(fp(n)); !ok {
			t.Errorf("%d is not kept in the process", n)
		}
		return k
	}
	for _, i := range []int{0, 200, 449} {
		if k := found(i); k.Verdict == nil || k.Verdict.ID != fmt.Sprint(i) {
			t.Errorf("%d: %+v", i, k)
		}
	}
	if k := found(1000); k.Marker == nil || k.Marker.ID != "m" {
		t.Errorf("marker: %+v", k)
	}
	if b.metric("cache_requests_total", "hit", levelRedis) < 4 {
		t.Error("hits in Redis are not counted")
	}
}

// failUntilRest looks up until Redis is left alone, each failure being of that kind.
func failUntilRest(t *testing.T, r *Redis, want error) {
	t.Helper()
	var waits []time.Duration
	for {
		began := time.Now()
		_, ok, err := r.get(t.Context(), fp(1))
		if errors.Is(err, redisconn.ErrResting) {
			return
		}
		waits = append(waits, time.Since(began))
		if ok || !errors.Is(err, want) && !errors.Is(err, redisconn.ErrTimeout) {
			t.Fatalf("get = %v, %v; want %v", ok, err, want)
		}
		// 40 ms; the rest is what a busy machine may add before it lets us go on.
		if waits[len(waits)-1] > 500*time.Millisecond {
			t.Fatalf("waits %v, want 40ms at the most", waits)
		}
	}
}

// A hung Redis costs a few short waits a process, then it is left alone; once it answers again it is used again.
func TestHungRedis(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	r, _ := openRedis(t, server.URL(), "")
	rig := newRig(t, r)
	mustPut(t, r, sharedEntry{fp: fp(1), e: verdict.Cached{Verdict: &verdict.Verdict{ID: "a", Status: verdict.Valid, HardUntil: time.Now().Add(time.Hour)}}})
	if _, ok := mustGet(t, r, fp(1)); !ok {
		t.Fatal("not found before")
	}
	r.conn.Wake()
	server.Pause()
	failUntilRest(t, r, redisconn.ErrTimeout)
	began := time.Now()
	for i := range 1000 {
		if _, _, err := r.get(t.Context(), fp(i)); !errors.Is(err, redisconn.ErrResting) {
			t.Fatalf("at rest: %v, want %v", err, redisconn.ErrResting)
		}
		if time.Since(began) > time.Second { // a very busy machine
			break
		}
	}
	if _, ok, _ := rig.Shared(t.Context(), fp(1)); ok || rig.metric("cache_requests_total", "error", levelRedis) != 1 {
		t.Error("a fault must count as an error and answer as a miss")
	}
	if err := r.put(t.Context(), []sharedEntry{{fp: fp(2), e: verdict.Cached{Marker: &verdict.Marker{ID: "b", Until: time.Now().Add(time.Minute)}}}}); !errors.Is(err, redisconn.ErrResting) {
		t.Errorf("put: %v, want %v", err, redisconn.ErrResting)
	}
	server.Resume()
	r.conn.Wake() // seconds later
	if _, ok := mustGet(t, r, fp(1)); !ok {
		t.Error("not found after it answers again")
	}
}

func TestRestartedRedis(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	r, _ := openRedis(t, server.URL(), "")
	entry := sharedEntry{fp: fp(1), e: verdict.Cached{Verdict: &verdict.Verdict{ID: "a", Status: verdict.Valid, HardUntil: time.Now().Add(time.Hour)}}}
	mustPut(t, r, entry)
	server.Kill()
	failUntilRest(t, r, redisconn.ErrUnreachable)
	server.Start()
	r.conn.Wake()
	if _, ok := mustGet(t, r, fp(1)); ok {
		t.Error("an empty Redis had the value")
	}
	mustPut(t, r, entry)
	if _, ok := mustGet(t, r, fp(1)); !ok {
		t.Error("a restarted Redis is not used again")
	}
}

// A Redis that hangs does not hold up the durable store, nor the end.
func TestHungRedisDoesNotDelayTheStore(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	r, _ := openRedis(t, server.URL(), "")
	rig := newRig(t, r)
	server.Pause()
	defer server.Resume()
	stop := rig.run()
	ids := rig.put(0, 3000)
	began := time.Now()
	stop()
	if got := rig.store.ids(); len(got) != len(ids) {
		t.Errorf("the store has %d of %d", len(got), len(ids))
	}
	// Five writes of 200 ms, then the rest is refused at once.
	if took := time.Since(began); took > flushTimeout+time.Second {
		t.Errorf("the end took %v", took)
	}
	if rig.metric("cache_redis_writes_total", "error") == 0 {
		t.Error("failed writes are not counted")
	}
}

// A replica may record a review in the moment in which another's answer comes: the answer stays.
func TestMarkerDoesNotReplaceAVerdict(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	r, _ := openRedis(t, url, prefix)
	v := valid("0197-a")
	v.HardUntil = time.Now().Add(time.Hour)
	m := verdict.Marker{ID: "0197-b", Reason: verdict.UpstreamTimeout, Until: time.Now().Add(time.Minute)}
	mustPut(t, r, sharedEntry{fp: fp(1), e: verdict.Cached{Verdict: &v}})
	mustPut(t, r, sharedEntry{fp: fp(1), e: verdict.Cached{Marker: &m}}, sharedEntry{fp: fp(2), e: verdict.Cached{Marker: &m}})
	if e, ok := mustGet(t, r, fp(1)); !ok || e.Verdict == nil {
		t.Errorf("%t %+v, want the verdict", ok, e)
	}
	if e, ok := mustGet(t, r, fp(2)); !ok || e.Marker == nil {
		t.Errorf("%t %+v, want the marker", ok, e)
	}
}

// Who asks is told once the others can find what was put, and what another got from Redis is kept unless it is erased.
func TestWrittenAndAdopted(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	r, bare := openRedis(t, url, prefix)
	c := newRig(t, r)
	defer c.run()()
	var value []byte
	patient(t, r, func() error { // a write has 200 ms, and is not tried again
		c.Put(fp(1), valid("0197-a"))
		select {
		case <-c.Written():
		case <-time.After(time.Second):
			return errors.New("nobody was told")
		}
		var err error
		value, err = bare.Get(t.Context(), prefix+"ev1:k1:"+fp(1).String()).Bytes()
		if err != nil {
			t.Fatalf("told, and there is nothing: %v", err)
		}
		return nil
	})
	other := newRig(t, nil)
	if e, ok := other.Adopt(fp(1), value); !ok || e.Verdict == nil || e.Verdict.ID != "0197-a" {
		t.Errorf("Adopt = %+v, %t, want the verdict", e, ok)
	}
	if _, ok := other.Local(fp(1)); !ok {
		t.Error("it is not kept")
	}
	other.Forget([]normalize.Fingerprint{fp(1)}, "0197-b")
	if e, ok := other.Adopt(fp(1), value); ok {
		t.Errorf("Adopt of what is erased = %+v", e)
	}
	if _, ok := other.Local(fp(1)); ok {
		t.Error("what is erased is kept")
	}
	for _, bad := range []string{"", "0", "hello"} {
		if e, ok := other.Adopt(fp(2), []byte(bad)); ok {
			t.Errorf("Adopt of %q = %+v", bad, e)
		}
	}
	select {
	case <-other.Written():
	default:
		t.Error("without Redis there is nothing to wait for")
	}
}
