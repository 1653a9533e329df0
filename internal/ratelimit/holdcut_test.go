package ratelimit

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/testenv"
)

// A gate that lies further ahead than it may is moved to where it may, whatever brought it there: a longer limit before, a
// clock of Redis that was ahead, or somebody's hand. What is no number is no gate.
func TestHoldIsCut(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	bare := bareClient(t, url)
	var most atomic.Int64
	most.Store(int64(time.Hour))
	lim := func() Limits { return Limits{Rate: 1000, Burst: 10, MaxHold: time.Duration(most.Load())} }
	a, b := newReplica(t, url, prefix, lim), newReplica(t, url, prefix, lim)
	eventually(t, "both share", shares(a, b))
	gate := a.keys[1]
	grants := func(r *replica) func() bool {
		return func() bool { _, _, ok := r.TakeInteractive(t.Context(), MaxWait); return ok }
	}
	held := func(r *replica) (left time.Duration) {
		t.Helper()
		eventually(t, "it is held", func() bool {
			_, until, _ := r.TakeInteractive(t.Context(), MaxWait)
			left = time.Until(until)
			return !until.IsZero()
		})
		return left
	}
	set := func(value any) {
		t.Helper()
		if err := bare.Set(t.Context(), gate, value, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}

	eventually(t, "a grant", grants(a))
	set("rubbish")
	eventually(t, "a grant beside rubbish", grants(a))
	set(time.Now().Add(10 * 365 * 24 * time.Hour).UnixMicro())
	for _, r := range []*replica{a, b} {
		if left := held(r); left > time.Hour {
			t.Errorf("held for %v, want an hour at most", left)
		}
	}
	if left, err := bare.PTTL(t.Context(), gate).Result(); err != nil || left <= 0 || left > time.Hour+time.Minute {
		t.Errorf("the gate in Redis is kept for %v, %v; want about an hour", left, err)
	}
	if left := held(newReplica(t, url, prefix, lim)); left > time.Hour {
		t.Errorf("a newcomer is held for %v, want an hour at most", left)
	}
	most.Store(int64(time.Second))
	eventually(t, "a grant after the limit was lowered", grants(a))
	eventually(t, "a grant by the other", grants(b))
}

// Who must leave a reserve gets something from a small bucket, too: when it is full.
func TestSmallBucketHasSomethingForTheBackground(t *testing.T) {
	t.Parallel()
	for _, lim := range []Limits{
		{Rate: 10, Burst: 1, Reserve: 0.5, Floor: 0.1}, // too small for a floor
		{Rate: 10, Burst: 2, Reserve: 0.75, Floor: 0},
		{Rate: 10, Burst: 20, Reserve: 1, Floor: 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := NewLocal(fixed(lim))
			full := time.Duration(lim.Burst) * 100 * time.Millisecond
			time.Sleep(full - time.Millisecond)
			if _, ok := l.TakeBackground(t.Context()); ok {
				t.Errorf("%+v: a grant from what is reserved", lim)
			}
			time.Sleep(time.Millisecond)
			if _, ok := l.TakeBackground(t.Context()); !ok {
				t.Errorf("%+v: no grant from a full bucket", lim)
			}
			if _, ok := l.TakeBackground(t.Context()); ok {
				t.Errorf("%+v: a second grant at once", lim)
			}
		})
	}
}
