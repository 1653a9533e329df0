package cache

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/verdict"
)

// almostOne is the largest draw there is.
var almostOne = math.Nextafter(1, 0)

// How long each status is fresh and kept: the table of the contract, ± 10 %.
func TestLifetimes(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	tests := []struct {
		status     verdict.Status
		reason     verdict.Reason
		soft, hard time.Duration
	}{
		{verdict.Valid, verdict.MailboxAccepted, 7 * day, 30 * day},
		{verdict.Invalid, verdict.MailboxNotFound, day, 3 * day},
		{verdict.Risky, verdict.CatchAll, 7 * day, 30 * day},
		{verdict.Risky, verdict.Disposable, 7 * day, 30 * day},
		{verdict.Risky, verdict.MailboxFull, time.Hour, day},
		{verdict.Unresolved, verdict.MailboxTempRejected, day, day},
		{verdict.Unresolved, verdict.ReviewExpired, day, day},
		{verdict.Unresolved, verdict.ClaimedByPerson, 30 * day, 30 * day},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.status, " ", tt.reason), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				for draw, share := range map[float64]float64{0: 0.9, 0.25: 0.95, 0.5: 1, almostOne: 1.1} {
					r.draw.Store(draw)
					v := r.Put(fp(1), verdict.Verdict{ID: "a", Status: tt.status, Reason: tt.reason})
					near := func(got time.Time, want time.Duration) bool {
						off := time.Until(got) - time.Duration(float64(want)*share)
						return off < time.Microsecond && off > -time.Microsecond
					}
					if !near(v.SoftUntil, tt.soft) || !near(v.HardUntil, tt.hard) {
						t.Errorf("draw %v: fresh %v, kept %v; want %v of %v, %v", draw, time.Until(v.SoftUntil), time.Until(v.HardUntil), share, tt.soft, tt.hard)
					}
					if k, ok := r.Local(fp(1)); !ok || !k.Verdict.HardUntil.Equal(v.HardUntil) {
						t.Errorf("draw %v: what is kept is not what was returned", draw)
					}
				}
				r.Close()
			})
		})
	}
}

// Fresh, then stale and still there, then gone, to the nanosecond. Short lives: otter wakes up every second.
func TestStaleUntilTheHardEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tuning := DefaultTuning()
		tuning.Valid = TTL{time.Minute, 10 * time.Minute}
		c, err := New(&store{}, Config{Rand: half, Tuning: func() Tuning { return tuning }})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.Put(fp(1), valid("a"))
		began := time.Now()
		for _, tt := range []struct {
			at        time.Duration
			ok, fresh bool
		}{
			{0, true, true}, {time.Minute - 1, true, true}, {time.Minute, true, false}, {9 * time.Minute, true, false},
			{10*time.Minute - 1, true, false}, {10 * time.Minute, false, false}, {time.Hour, false, false},
		} {
			time.Sleep(tt.at - time.Since(began))
			if k, ok := c.Local(fp(1)); ok != tt.ok || ok && k.Fresh(time.Now()) != tt.fresh {
				t.Errorf("after %v: there %v, fresh %v; want %v, %v", tt.at, ok, k.Fresh(time.Now()), tt.ok, tt.fresh)
			}
		}
		// What was put keeps what it was given; what is put from now on gets the new settings.
		c.Put(fp(1), valid("a"))
		tuning.Valid = TTL{time.Second, 2 * time.Second}
		c.Put(fp(2), valid("b"))
		time.Sleep(time.Minute)
		_, old := c.Local(fp(1))
		if _, fresh := c.Local(fp(2)); !old || fresh {
			t.Errorf("put before the change: there %v, want true; put after it: there %v, want false", old, fresh)
		}
	})
}

func TestPutKeepsFinalVerdictsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		for _, status := range []verdict.Status{verdict.NeedsReview, ""} {
			if v := r.Put(fp(1), verdict.Verdict{ID: "a", Status: status}); !v.HardUntil.IsZero() {
				t.Errorf("%q got an expiry", status)
			}
		}
		_, known := r.Local(fp(1))
		if _, pending := r.Pending("a"); known || pending {
			t.Error("a verdict that is not final was kept")
		}
		r.Close()
	})
}

// With a Redis behind it, the process forgets a verdict within a minute: another replica may know better.
func TestLocalLifeBeforeRedis(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &Redis{}) // never reached: the cache does not run
		r.Put(fp(1), valid("a"))
		time.Sleep(time.Minute - 1)
		if _, ok := r.Local(fp(1)); !ok {
			t.Error("gone within the minute")
		}
		time.Sleep(1)
		if _, ok := r.Local(fp(1)); ok {
			t.Error("there after a minute")
		}
		if k, ok := r.Held(fp(1)); !ok || k.Verdict == nil || k.Verdict.ID != "a" {
			t.Error("not held for when nobody else can be asked")
		}
		r.Mark(fp(1), verdict.Marker{ID: "m"})
		if k, ok := r.Local(fp(1)); !ok || k.Marker == nil {
			t.Error("a verdict that is no answer any more stands in a marker's way")
		}
		r.Put(fp(1), valid("b"))
		time.Sleep(34 * 24 * time.Hour) // its hard end, with the jitter
		if _, ok := r.Held(fp(1)); ok {
			t.Error("held after its hard end")
		}
		r.Close()
	})
}

func TestMarkers(t *testing.T) {
	t.Parallel()
	t.Run("life", func(t *testing.T) {
		t.Parallel()
		for draw, want := range map[float64]time.Duration{0: 30 * time.Second, 0.5: 45 * time.Second, almostOne: 60 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				r.draw.Store(draw)
				r.Mark(fp(1), verdict.Marker{ID: "a", Reason: verdict.UpstreamTimeout})
				k, ok := r.Local(fp(1))
				if !ok || k.Verdict != nil || k.Marker.ID != "a" || !k.Fresh(time.Now()) {
					t.Fatalf("%v, %+v", ok, k)
				}
				if life := time.Until(k.Marker.Until); life > want || life < want-time.Microsecond {
					t.Errorf("draw %v: it holds for %v, want %v", draw, life, want)
				}
				// Not longer than two seconds in the process: another replica may have settled the review.
				time.Sleep(2*time.Second - 1)
				if _, ok := r.Local(fp(1)); !ok {
					t.Error("gone within two seconds")
				}
				time.Sleep(1)
				if _, ok := r.Local(fp(1)); ok {
					t.Error("there after two seconds")
				}
				r.Close()
			})
		}
	})
	t.Run("its own end", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, nil)
			until := time.Now().Add(500 * time.Millisecond)
			r.Mark(fp(1), verdict.Marker{ID: "a", Until: until})
			r.Mark(fp(2), verdict.Marker{ID: "b", Until: time.Now().Add(6 * time.Hour)})
			if k, _ := r.Local(fp(1)); k.Marker == nil || !k.Marker.Until.Equal(until) {
				t.Errorf("%+v, want its own end", k.Marker)
			}
			time.Sleep(500 * time.Millisecond)
			if _, ok := r.Local(fp(1)); ok {
				t.Error("there after its end")
			}
			time.Sleep(1500 * time.Millisecond)
			if _, ok := r.Local(fp(2)); ok {
				t.Error("a long one is there after two seconds")
			}
			r.Close()
		})
	})
	t.Run("it replaces no fresh verdict", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, nil)
			put := r.Put(fp(1), valid("a"))
			r.Mark(fp(1), verdict.Marker{ID: "b"})
			if k, ok := r.Local(fp(1)); !ok || k.Verdict == nil || k.Marker != nil {
				t.Errorf("beside a fresh one: %v, %+v; want the verdict", ok, k)
			}
			time.Sleep(time.Until(put.SoftUntil))
			r.Mark(fp(1), verdict.Marker{ID: "b"})
			if k, ok := r.Local(fp(1)); !ok || k.Marker == nil {
				t.Errorf("beside a stale one: %v, %+v; want the marker", ok, k)
			}
			r.Close()
		})
	})
	t.Run("a verdict replaces it", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, nil)
			r.Mark(fp(1), verdict.Marker{ID: "a"})
			r.Put(fp(1), valid("a"))
			time.Sleep(time.Minute)
			if k, ok := r.Local(fp(1)); !ok || k.Verdict == nil || k.Marker != nil {
				t.Errorf("%v, %+v; want the verdict", ok, k)
			}
			r.Mark(fp(2), verdict.Marker{ID: "b"})
			v := valid("b")
			v.SoftUntil, v.HardUntil = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
			r.Fill(fp(2), v)
			time.Sleep(90 * time.Minute)
			k, ok := r.Local(fp(2))
			if !ok || k.Verdict == nil || !k.Verdict.HardUntil.Equal(v.HardUntil) || k.Fresh(time.Now()) {
				t.Errorf("%v, %+v; want the verdict as it was, stale", ok, k)
			}
			if _, pending := r.Pending("b"); pending {
				t.Error("what came from the store is written to it again")
			}
			r.Close()
		})
	})
}

func TestFillOfWhatHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		v := valid("a")
		v.HardUntil = time.Now().Add(-time.Second)
		r.Fill(fp(1), v)
		if _, ok := r.Local(fp(1)); ok {
			t.Error("a verdict past its hard end is served")
		}
		r.Close()
	})
}

func TestNewNeedsRand(t *testing.T) {
	t.Parallel()
	if _, err := New(&store{}, Config{}); err == nil {
		t.Error("no error without Rand")
	}
}

func TestLookupsAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.Local(fp(1))
		r.Put(fp(1), valid("a"))
		r.Local(fp(1))
		r.Local(fp(1))
		if _, ok, _ := r.Shared(t.Context(), fp(1)); ok {
			t.Error("Shared found something without a Redis")
		}
		// Labels are sorted: result, tier.
		for result, want := range map[string]float64{"hit": 2, "miss": 1, "error": 0} {
			if got := r.metric("cache_requests_total", result, levelMemory); got != want {
				t.Errorf("%s in memory = %v, want %v", result, got, want)
			}
			if got := r.metric("cache_requests_total", result, levelRedis); got != 0 {
				t.Errorf("%s in Redis = %v, want 0", result, got)
			}
		}
		r.Close()
	})
}

// Everything at once, for the race detector; at the end the store has each verdict once.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		stop := r.run()
		var all sync.WaitGroup
		for w := range 8 {
			all.Go(func() {
				for i := range 500 {
					id := fmt.Sprintf("%d-%d", w, i)
					r.Mark(fp(i), verdict.Marker{ID: id})
					r.Put(fp(i), valid(id))
					r.Local(fp(i))
					r.Pending(id)
					if i%50 == 0 {
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		all.Wait()
		stop()
		seen := make(map[string]bool)
		for _, id := range r.store.ids() {
			if seen[id] {
				t.Fatalf("%s was written twice", id)
			}
			seen[id] = true
		}
		if len(seen) != 4000 {
			t.Errorf("%d verdicts in the store, want 4000", len(seen))
		}
		r.Close()
	})
}
