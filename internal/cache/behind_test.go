package cache

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/verdict"
)

// put puts verdicts with the ids from … to-1.
func (r *rig) put(from, to int) (ids []string) {
	for i := from; i < to; i++ {
		id := fmt.Sprint(i)
		r.Put(fp(i), valid(id))
		ids = append(ids, id)
	}
	return ids
}

func TestVerdictsAreDurableWithinASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		stop := r.run()
		defer stop()
		for i := range 20 {
			time.Sleep(137 * time.Millisecond)
			v := r.Put(fp(i), valid(fmt.Sprint(i)))
			if got, ok := r.Pending(v.ID); !ok || !got.HardUntil.Equal(v.HardUntil) {
				t.Fatalf("%s is not pending, or without its expiries", v.ID)
			}
			time.Sleep(time.Second)
			if ids := r.store.ids(); len(ids) != i+1 {
				t.Fatalf("after a second the store has %d, want %d", len(ids), i+1)
			}
			if _, ok := r.Pending(v.ID); ok {
				t.Fatalf("%s is durable and pending", v.ID)
			}
			if s := r.store.stored[i]; s.Fingerprint != fp(i) || !s.Verdict.HardUntil.Equal(v.HardUntil) {
				t.Fatalf("stored %+v", s)
			}
		}
		if n := r.metric("verdicts_written_total"); n != 20 {
			t.Errorf("written = %v, want 20", n)
		}
		r.Close()
	})
}

// A full batch does not wait for the tick.
func TestFullBatchGoesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		stop := r.run()
		defer stop()
		ids := r.put(0, batchSize)
		synctest.Wait()
		if got := r.store.ids(); !slices.Equal(got, ids) {
			t.Errorf("the store has %d, want %d", len(got), len(ids))
		}
		r.Close()
	})
}

func TestFailingStore(t *testing.T) {
	t.Parallel()
	for name, hang := range map[string]bool{"errors": false, "hangs": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				r.store.set(errDown, hang)
				stop := r.run()
				defer stop()
				var ids []string
				for i := range 60 { // ten minutes
					ids = append(ids, r.put(10*i, 10*i+10)...)
					time.Sleep(10 * time.Second)
				}
				if n := r.metric("verdicts_waiting"); n != 600 || len(r.store.ids()) != 0 {
					t.Fatalf("%v wait, %d stored; want 600 and none", n, len(r.store.ids()))
				}
				for _, id := range []string{"0", "300", "599"} {
					if _, ok := r.Pending(id); !ok {
						t.Errorf("%s can't be read while the store is down", id)
					}
				}
				if r.metric("verdicts_write_errors_total") < 60 {
					t.Errorf("%v tries in ten minutes", r.metric("verdicts_write_errors_total"))
				}
				if n := strings.Count(r.log.String(), "level=ERROR"); n != 1 {
					t.Errorf("%d error lines for one outage, want one", n)
				}
				r.store.set(nil, false)
				time.Sleep(4 * time.Second) // the try that hangs ends, then all go
				if got := r.store.ids(); !slices.Equal(got, ids) {
					t.Errorf("the store has %d of %d, or in another order", len(got), len(ids))
				}
				if _, ok := r.Pending("300"); ok || r.metric("verdicts_waiting") != 0 || r.metric("verdicts_lost_total") != 0 {
					t.Error("something still waits, or was lost")
				}
				if !strings.Contains(r.log.String(), "written again") {
					t.Error("no line says that it is over")
				}
				r.Close()
			})
		})
	}
}

// A failing store is asked five times a second, however much comes in, and one at rest not at all.
func TestFailingStoreIsNotHammered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.store.set(errDown, false)
		stop := r.run()
		for i := range 2000 { // 100 a second
			r.put(i, i+1)
			time.Sleep(10 * time.Millisecond)
		}
		if n := r.metric("verdicts_write_errors_total"); n < 90 || n > 101 {
			t.Errorf("%v tries in 20 s, want 100", n)
		}
		r.store.set(nil, false)
		time.Sleep(flushEvery)
		synctest.Wait()
		calls := r.store.calls
		time.Sleep(time.Minute)
		if r.store.calls != calls || len(r.store.ids()) != 2000 {
			t.Errorf("%d calls at rest, %d stored; want none and 2000", r.store.calls-calls, len(r.store.ids()))
		}
		stop()
		r.Close()
	})
}

// A store that takes some and then fails gets each verdict once, in order.
func TestStoreThatFailsNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		stop := r.run()
		var ids []string
		for i := range 50 {
			if i%3 == 0 {
				r.store.set(errDown, false)
			} else {
				r.store.set(nil, false)
			}
			ids = append(ids, r.put(70*i, 70*i+70)...)
			time.Sleep(130 * time.Millisecond)
		}
		r.store.set(nil, false)
		stop()
		if got := r.store.ids(); !slices.Equal(got, ids) {
			t.Errorf("the store has %d of %d, or in another order", len(got), len(ids))
		}
		r.Close()
	})
}

func TestBoundDropsTheOldest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.store.set(errDown, false)
		stop := r.run()
		ids := r.put(0, keepVerdicts)
		if n := r.metric("verdicts_lost_total"); n != 0 {
			t.Fatalf("%v lost below the bound", n)
		}
		ids = append(ids, r.put(keepVerdicts, keepVerdicts+5)...)
		if lost, waiting := r.metric("verdicts_lost_total"), r.metric("verdicts_waiting"); lost != 5 || waiting != keepVerdicts {
			t.Errorf("lost %v, waiting %v; want 5 and %d", lost, waiting, keepVerdicts)
		}
		if _, ok := r.Pending("4"); ok {
			t.Error("what was dropped is pending")
		}
		if _, ok := r.Pending("5"); !ok {
			t.Error("what was kept is not pending")
		}
		r.store.set(nil, false)
		stop()
		if got := r.store.ids(); !slices.Equal(got, ids[5:]) {
			t.Errorf("the store has %d, want all but the five oldest, in order", len(got))
		}
		r.Close()
	})
}

// Room runs out while a batch is being written: what is dropped then may be that batch, and nothing behind it may be
// taken for written.
func TestBoundDuringAWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.store.enter = make(chan struct{})
		ids := r.put(0, keepVerdicts)
		stop := r.run()
		synctest.Wait()
		time.Sleep(flushEvery) // the first batch is on its way to the store
		synctest.Wait()
		ids = append(ids, r.put(keepVerdicts, keepVerdicts+batchSize+50)...)
		close(r.store.enter)
		stop()
		got := r.store.ids()
		want := append(slices.Clone(ids[:batchSize]), ids[batchSize+50:]...)
		if !slices.Equal(got, want) {
			t.Errorf("the store has %d, want %d: the batch in work and all that was not dropped, once", len(got), len(want))
		}
		r.Close()
	})
}

func TestLastFlush(t *testing.T) {
	t.Parallel()
	t.Run("well", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, nil)
			stop := r.run()
			synctest.Wait()
			ids := r.put(0, 450)
			began := time.Now()
			stop()
			if got := r.store.ids(); !slices.Equal(got, ids) || time.Since(began) != 0 {
				t.Errorf("the store has %d after %v, want 450 at once", len(got), time.Since(began))
			}
			r.Close()
		})
	})
	t.Run("store down", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, nil)
			r.store.set(errDown, true)
			stop := r.run()
			r.put(0, 450)
			time.Sleep(10 * time.Second)
			began := time.Now()
			stop()
			if took := time.Since(began); took > flushTimeout {
				t.Errorf("the end took %v, want at most %v", took, flushTimeout)
			}
			if !strings.Contains(r.log.String(), "count=450") {
				t.Errorf("the log does not say what was lost: %s", r.log)
			}
			r.Close()
		})
	})
}

// Two verdicts of one check may wait: the later one is what its id stands for, until it too is durable.
func TestPendingIsTheLatest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.store.enter = make(chan struct{}, 10)
		stop := r.run()
		r.Put(fp(1), verdict.Verdict{ID: "a", Status: verdict.Unresolved, Reason: verdict.ReviewExpired})
		time.Sleep(flushEvery)
		synctest.Wait() // the first is on its way
		r.Put(fp(1), valid("a"))
		if v, ok := r.Pending("a"); !ok || v.Status != verdict.Valid {
			t.Errorf("pending %v %s, want the later", ok, v.Status)
		}
		r.store.enter <- struct{}{}
		synctest.Wait() // the first is written, the second on its way
		if v, ok := r.Pending("a"); !ok || v.Status != verdict.Valid {
			t.Errorf("pending %v %s; the later one is not durable yet", ok, v.Status)
		}
		r.store.enter <- struct{}{}
		synctest.Wait()
		if _, ok := r.Pending("a"); ok {
			t.Error("pending after both are durable")
		}
		stop()
		if ids := r.store.ids(); len(ids) != 2 {
			t.Errorf("stored %q", ids)
		}
		r.Close()
	})
}

// What waits for Redis is bounded too.
func TestSharedIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &Redis{}) // never reached: the cache does not run
		for i := range keepShared + 100 {
			r.Mark(fp(i), verdict.Marker{ID: "a"})
		}
		if n := len(r.behind.sharing); n != keepShared {
			t.Errorf("%d wait for Redis, want %d", n, keepShared)
		}
		r.Close()
	})
}
