package debounce

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

const ms = time.Millisecond

var window = Window{Quiet: 400 * ms, Max: 5 * time.Second}

// shot is one firing.
type shot struct {
	At    time.Duration // since the story began
	Key   string
	Value int
}

// local runs a debouncer in a bubble; fired returns what it fired since the story began.
func local(t *testing.T, maxKeys int, story func(l *Local[string, int], fired func() []shot)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var shots []shot
		l := NewLocal(window, maxKeys, func(_ context.Context, key string, value int) {
			shots = append(shots, shot{time.Since(began), key, value})
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		story(l, func() []shot { synctest.Wait(); return slices.Clone(shots) })
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
}

func want(t *testing.T, got []shot, want ...shot) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fired (-want +got):\n%s", diff)
	}
}

func TestBurstFiresOnceWithItsLastValue(t *testing.T) {
	local(t, 10, func(l *Local[string, int], fired func() []shot) {
		for i := range 10 {
			if due, ok := l.Arm("a", i); !ok || time.Until(due) != 400*ms {
				t.Errorf("Arm %d = due in %v, %t; want 400ms", i, time.Until(due), ok)
			}
			time.Sleep(100 * ms)
		}
		// The last event was at 900 ms.
		time.Sleep(time.Minute)
		want(t, fired(), shot{1300 * ms, "a", 9})
		if l.Len() != 0 {
			t.Errorf("%d keys are left, want none", l.Len())
		}
	})
}

func TestStreamOfEventsFiresAtTheLatestTime(t *testing.T) {
	local(t, 10, func(l *Local[string, int], fired func() []shot) {
		for i := range 120 { // every 100 ms for 12 s
			l.Arm("a", i)
			time.Sleep(100 * ms)
		}
		time.Sleep(time.Minute)
		// The timer is older than the event of the same instant: it is the next burst's first.
		got := fired()
		if len(got) != 3 || got[0].At != 5*time.Second || got[1].At < 10*time.Second || got[1].At > 10100*ms || got[2] != (shot{12300 * ms, "a", 119}) {
			t.Errorf("fired %v, want at 5 s, some 5 s later, and 400 ms after the last", got)
		}
	})
}

func TestKeysAreApart(t *testing.T) {
	local(t, 10, func(l *Local[string, int], fired func() []shot) {
		l.Arm("slow", 1)
		time.Sleep(300 * ms)
		l.Arm("b", 2)
		l.Arm("slow", 3) // at 300 ms: it moves behind b
		time.Sleep(50 * ms)
		l.Arm("slow", 4) // at 350 ms
		time.Sleep(10 * time.Second)
		want(t, fired(), shot{700 * ms, "b", 2}, shot{750 * ms, "slow", 4})
	})
}

func TestTooManyKeys(t *testing.T) {
	local(t, 2, func(l *Local[string, int], fired func() []shot) {
		l.Arm("a", 1)
		l.Arm("b", 2)
		if _, ok := l.Arm("c", 3); ok {
			t.Error("a third key was taken, want two at the most")
		}
		if _, ok := l.Arm("a", 4); !ok {
			t.Error("an event of a known key was refused")
		}
		time.Sleep(time.Second)
		if _, ok := l.Arm("c", 5); !ok {
			t.Error("there is room again, and the key was refused")
		}
		time.Sleep(time.Second)
		want(t, fired(), shot{400 * ms, "a", 4}, shot{400 * ms, "b", 2}, shot{1400 * ms, "c", 5})
	})
}

func TestWhatIsArmedStaysWhileNobodyRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var shots []shot
		l := NewLocal(window, 10, func(_ context.Context, key string, value int) { shots = append(shots, shot{0, key, value}) })
		l.Arm("a", 1)
		ctx, cancel := context.WithTimeout(t.Context(), 399*ms)
		defer cancel()
		_ = l.Run(ctx)
		want(t, shots)
		time.Sleep(time.Minute)
		ctx, cancel = context.WithTimeout(t.Context(), ms)
		defer cancel()
		_ = l.Run(ctx)
		want(t, shots, shot{0, "a", 1})
	})
}

// An event that comes while its key fires is not swallowed by that.
func TestEventWhileItsKeyFires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		l := NewLocal(window, 10, func(context.Context, string, int) {
			at = append(at, time.Since(began))
			time.Sleep(time.Second)
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		l.Arm("a", 1)
		go func() {
			time.Sleep(900 * ms)
			l.Arm("a", 2)
		}()
		_ = l.Run(ctx)
		if !slices.Equal(at, []time.Duration{400 * ms, 1400 * ms}) { // due at 1300 ms, and Run was in work until 1400
			t.Errorf("fired at %v, want 400 ms and 1.4 s", at)
		}
	})
}

// TestLocalAgainstAModel draws events and compares with what the rule says of each key's own.
func TestLocalAgainstAModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			began := time.Now()
			var shots []shot
			l := NewLocal(window, 100, func(_ context.Context, key string, value int) {
				shots = append(shots, shot{time.Since(began), key, value})
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- l.Run(ctx) }()
			events := map[string][]shot{}
			time.Sleep(time.Nanosecond) // so that no event is at the instant of a firing
			for i := range 200 {
				key := fmt.Sprint(rnd.IntN(4))
				l.Arm(key, i)
				events[key] = append(events[key], shot{time.Since(began), key, i})
				time.Sleep(time.Duration(rnd.IntN(300))*ms + time.Duration(i)*time.Nanosecond)
			}
			time.Sleep(time.Minute)
			cancel()
			<-done
			var expected []shot
			for key, all := range events {
				for len(all) > 0 {
					first, due, n := all[0].At, time.Duration(0), 0
					for n < len(all) && (n == 0 || all[n].At < due) {
						due = min(all[n].At+window.Quiet, first+window.Max)
						n++
					}
					expected = append(expected, shot{due, key, all[n-1].Value})
					all = all[n:]
				}
			}
			byTime := func(a, b shot) int { return int(a.At - b.At) }
			slices.SortFunc(expected, byTime)
			slices.SortStableFunc(shots, byTime)
			if diff := cmp.Diff(expected, shots); diff != "" {
				t.Errorf("seed %d: fired (-want +got):\n%s", seed, diff)
			}
		})
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	first := time.Unix(1000, 0)
	for _, c := range []struct{ now, want time.Duration }{{0, 400 * ms}, {4599 * ms, 4999 * ms}, {4600 * ms, 5 * time.Second}, {6 * time.Second, 5 * time.Second}} {
		if got := window.Due(first, first.Add(c.now)).Sub(first); got != c.want {
			t.Errorf("an event at %v: due at %v, want %v", c.now, got, c.want)
		}
	}
}
