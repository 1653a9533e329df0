package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/normalize"
	"validator-gw/internal/testenv"
	"validator-gw/internal/verdict"
)

// check is the id of the check with this number, in the order in which they began.
func check(n int) string { return fmt.Sprintf("01989f6e-%04d-7000-8000-000000000000", n) }

func erase(t *testing.T, r *rig, upTo int, fps ...normalize.Fingerprint) (pending int) {
	t.Helper()
	pending, err := r.Erase(t.Context(), fps, check(upTo))
	if err != nil {
		t.Fatalf("Erase = %v, want no error", err)
	}
	return pending
}

func TestEraseInTheProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.Put(fp(1), valid(check(1)))
		r.Mark(fp(2), verdict.Marker{ID: check(2)})
		r.Put(fp(3), valid(check(3)))
		if n := erase(t, r, 4, fp(1), fp(2)); n != 1 {
			t.Errorf("Erase = %d, want the verdict that was not durable", n)
		}
		// A late answer, what a look-up had found before, and a marker: all of checks from before.
		late := r.Put(fp(1), valid(check(4)))
		if late.HardUntil.IsZero() {
			t.Error("Put returned a verdict without its expiries")
		}
		r.Fill(fp(1), late)
		r.Keep(fp(1), late)
		r.Mark(fp(2), verdict.Marker{ID: check(2)})
		gone := func() {
			t.Helper()
			for _, n := range []int{1, 2} {
				if k, ok := r.Local(fp(n)); ok {
					t.Errorf("address %d came back: %+v", n, k)
				}
			}
			for _, n := range []int{1, 4} {
				if _, ok := r.Pending(check(n)); ok {
					t.Errorf("verdict %d is pending", n)
				}
			}
		}
		gone()
		if _, ok := r.Local(fp(3)); !ok {
			t.Error("another address is gone")
		}
		// A check from after it is like any other, and an older erasure changes nothing.
		erase(t, r, 3, fp(1))
		gone()
		stop := r.run()
		r.Put(fp(1), valid(check(5)))
		time.Sleep(time.Second)
		stop()
		if ids := r.store.ids(); !slices.Equal(ids, []string{check(3), check(5)}) {
			t.Errorf("the store has %v, want those of the other address and of after the erasure", ids)
		}
		if _, ok := r.Local(fp(1)); !ok {
			t.Error("the verdict from after the erasure is not kept")
		}
		r.Close()
	})
}

// What is being written when the erasure comes is written before Erase returns: then the store can remove it.
func TestEraseWaitsForTheWriteUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.store.enter = make(chan struct{})
		stop := r.run()
		r.Put(fp(1), valid(check(1)))
		time.Sleep(flushEvery)
		synctest.Wait() // the batch is on its way
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Erase(short, []normalize.Fingerprint{fp(1)}, check(2)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Erase beside a write that hangs = %v, want its context's error", err)
		}
		r.Put(fp(2), valid(check(3)))
		erased := make(chan error, 1)
		go func() {
			_, err := r.Erase(t.Context(), []normalize.Fingerprint{fp(1)}, check(2))
			erased <- err
		}()
		synctest.Wait()
		select {
		case err := <-erased:
			t.Fatalf("Erase = %v before the write ended", err)
		default:
		}
		close(r.store.enter)
		if err := <-erased; err != nil {
			t.Errorf("Erase = %v, want no error", err)
		}
		if ids := r.store.ids(); !slices.Contains(ids, check(1)) {
			t.Errorf("the store has %v when Erase returns, want what was on its way", ids)
		}
		stop()
		if ids := r.store.ids(); !slices.Equal(ids, []string{check(1), check(3)}) {
			t.Errorf("the store has %v, want each verdict once", ids)
		}
		r.Close()
	})
}

func TestErasureIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		for n := range 100 {
			erase(t, r, 1, fp(n))
		}
		time.Sleep(rememberLocal + time.Second)
		erase(t, r, 1, fp(0))
		if n := len(r.erased.m); n != 1 {
			t.Errorf("%d erasures are remembered, want 1", n)
		}
		r.Close()
	})
}

func TestEraseInRedis(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	r, bare := openRedis(t, url, prefix)
	other := NewRedis(r.conn, "k2", prefix)
	entry := func(n int) verdict.Cached {
		v := valid(check(n))
		v.HardUntil = time.Now().Add(time.Hour)
		return verdict.Cached{Verdict: &v}
	}
	mustPut(t, r, sharedEntry{fp: fp(1), e: entry(1)}, sharedEntry{fp: fp(2), e: entry(1)})
	mustPut(t, other, sharedEntry{fp: fp(1), e: entry(1)}, sharedEntry{fp: fp(2), e: entry(1)})
	erasing := NewRedis(r.conn, "k1", prefix, "k2")
	patient(t, r, func() error { return erasing.Erase(t.Context(), []normalize.Fingerprint{fp(1), fp(3)}, check(2)) })
	// Another replica's batch comes late.
	mustPut(t, r, sharedEntry{fp: fp(1), e: entry(2)}, sharedEntry{fp: fp(3), e: entry(2)}, sharedEntry{fp: fp(4), e: entry(2)})
	for _, c := range []struct {
		r    *Redis
		n    int
		want bool
	}{{r, 1, false}, {r, 2, true}, {r, 3, false}, {r, 4, true}, {other, 1, false}, {other, 2, true}} {
		if _, ok := mustGet(t, c.r, fp(c.n)); ok != c.want {
			t.Errorf("address %d under %s: there %t, want %t", c.n, c.r.prefix, ok, c.want)
		}
	}
	life, err := bare.PTTL(t.Context(), r.key(fp(1))).Result()
	if err != nil || life <= rememberShared-time.Minute || life > rememberShared {
		t.Errorf("the tombstone lives for %v, %v, want %v", life, err, rememberShared)
	}
	if life, err := bare.PTTL(t.Context(), r.key(fp(4))).Result(); err != nil || life <= 50*time.Minute || life > time.Hour {
		t.Errorf("an entry lives for %v, %v, want an hour", life, err)
	}
}

// What is found out after an erasure is shared at once, and what was found out before it does not come in its place; not
// even when another replica, whose clock is behind, erases the address again.
func TestSharedAfterAnErasure(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	r, bare := openRedis(t, url, prefix)
	entry := func(n int) sharedEntry {
		v := valid(check(n))
		v.HardUntil = time.Now().Add(time.Hour)
		return sharedEntry{fp: fp(1), e: verdict.Cached{Verdict: &v}}
	}
	marker := func(n int) sharedEntry {
		return sharedEntry{fp: fp(1), e: verdict.Cached{Marker: &verdict.Marker{ID: check(n), Until: time.Now().Add(time.Hour)}}}
	}
	erase := func(upTo int) {
		t.Helper()
		patient(t, r, func() error { return r.Erase(t.Context(), []normalize.Fingerprint{fp(1)}, check(upTo)) })
	}
	holds := func(when, want string) {
		t.Helper()
		got := ""
		if e, ok := mustGet(t, r, fp(1)); ok {
			got = idOf(e)
		}
		if got != want {
			t.Errorf("%s: Redis has %q, want %q", when, got, want)
		}
	}
	mustPut(t, r, entry(1))
	erase(3)
	mustPut(t, r, entry(2), marker(3))
	holds("checks from before the erasure", "")
	mustPut(t, r, marker(4))
	holds("a review from after it", check(4))
	mustPut(t, r, entry(5))
	holds("a verdict from after it", check(5))
	mustPut(t, r, entry(2))
	holds("a late verdict from before it", check(5))
	erase(1)
	mustPut(t, r, entry(3))
	holds("an erasure of a clock that is behind", "")
	mustPut(t, r, entry(6))
	holds("a verdict from after both", check(6))

	// An earlier program leaves a tombstone alone, which says nothing of when.
	if err := bare.Del(t.Context(), erasureKeys(r.key(fp(1)))...).Err(); err != nil {
		t.Fatal(err)
	}
	if err := bare.Set(t.Context(), r.key(fp(1)), tombstone, time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	mustPut(t, r, entry(7))
	holds("a tombstone alone", "")
}

// A Redis that can't be reached is an error: what it holds is not erased.
func TestEraseWithoutRedis(t *testing.T) {
	t.Parallel()
	redis, _ := openRedis(t, "redis://127.0.0.1:1", "")
	r := newRig(t, redis)
	r.Put(fp(1), valid(check(1)))
	if n, err := r.Erase(t.Context(), []normalize.Fingerprint{fp(1)}, check(2)); err == nil || n != 1 {
		t.Errorf("Erase = %d, %v, want 1 and an error", n, err)
	}
	if _, ok := r.Local(fp(1)); ok {
		t.Error("the process still has the verdict")
	}
}
