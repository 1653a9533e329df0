package verimail

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// Whatever closes the not-before gate of this process is told to the fleet, once, for as long; what does not is not.
func TestFleetIsTold(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		asks  []string // one after another
		holds []time.Duration
	}{
		{"429 with a hint", []string{"throttled-60"}, []time.Duration{time.Minute}},
		{"503 with a hint", []string{"unavailable-60"}, []time.Duration{time.Minute}},
		{"a hint over the limit", []string{"throttled-86400"}, []time.Duration{time.Hour}},
		{"one 429 without a hint", []string{"throttled"}, nil},
		{"two", []string{"throttled", "throttled"}, nil},
		{"three in a row", []string{"throttled", "throttled", "throttled"}, []time.Duration{time.Second}},
		{"a verdict between", []string{"throttled", "throttled", "ana", "throttled"}, nil},
		{"503 without a hint", []string{"unavailable", "unavailable", "unavailable"}, nil},
		{"the account's own trouble", []string{"forbidden"}, nil}, // each replica has its own gate for that
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, simulator.Config{Key: testKey})
				for _, local := range tt.asks {
					r.ask(local, 0)
				}
				synctest.Wait()
				if len(r.limits.holds) != len(tt.holds) || len(tt.holds) > 0 && r.limits.holds[0] != tt.holds[0] {
					t.Errorf("the fleet was told %v, want %v", r.limits.holds, tt.holds)
				}
			})
		})
	}
}

// slowHold is a limiter whose fleet can't be told in time.
type slowHold struct {
	allowance
	takes time.Duration // longer than the context's time: until that ends
	now   int
	most  int
	ends  []error
}

func (s *slowHold) Hold(ctx context.Context, d time.Duration) {
	s.mu.Lock()
	s.now++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	sleep(ctx, s.takes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
	s.holds = append(s.holds, d)
	s.ends = append(s.ends, ctx.Err())
}

// Telling the fleet takes nobody's time, not even when it hangs; it has an end; and a hundred hints at once are one
// message, and one more for what came meanwhile.
func TestTellingTheFleetDelaysNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limits := &slowHold{takes: time.Hour}
		var n atomic.Int64
		r := newRig(t, simulator.Config{}, func(c *Config) {
			c.Limiter = limits
			c.Transport = roundTrip(func(q *http.Request) (*http.Response, error) {
				wait, after := int64(60), 10*ms // all hundred are on the wire by then
				if n.Add(1)%2 == 0 {
					wait, after = 90, time.Second
				}
				time.Sleep(after)
				return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {strconv.FormatInt(wait, 10)}}, Body: http.NoBody, Request: q}, nil
			})
		})
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { r.Check(ctx, address(t, "ana"), plan(650*ms, 0)) })
		}
		all.Wait()
		cancel() // the wait concerns those who stay
		told := time.Now()
		if took := told.Sub(began); took != time.Second {
			t.Errorf("callers waited %v, want the upstream's second", took)
		}
		if out := r.ask("ana", 0); out.Verdict.Reason != verdict.UpstreamThrottled || !out.NotBefore.Equal(told.Add(90*time.Second)) {
			t.Errorf("%s, not before %v; want 90s", out.Verdict.Reason, out.NotBefore.Sub(told))
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		limits.mu.Lock()
		defer limits.mu.Unlock()
		// The first message hangs for its two seconds; the next asks for what is left of the longer wait by then.
		want := []time.Duration{time.Minute, 91*time.Second - (10*ms + holdTimeout)}
		if limits.most != 1 || limits.now != 0 || !slices.Equal(limits.holds, want) {
			t.Errorf("%d messages at a time, %d on their way, for %v; want one, none, %v", limits.most, limits.now, limits.holds, want)
		}
		for i, err := range limits.ends {
			if err == nil {
				t.Errorf("message %d had no end", i)
			}
		}
	})
}

// A wait over retry_after.max is cut, and one line says so however often it is asked for.
func TestLongWaitIsCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		r.retune(func(t *Tuning) { t.RetryAfterMax = 10 * time.Minute })
		lines := func() int { return strings.Count(r.log.String(), "retry_after.max") }
		for range 5 {
			began := time.Now()
			if out := r.ask("throttled-86400", 2); !out.NotBefore.Equal(began.Add(10*time.Minute)) || out.Sent != 1 {
				t.Fatalf("sent %d, not before %v; want one and 10m", out.Sent, out.NotBefore.Sub(began))
			}
			time.Sleep(10 * time.Minute)
		}
		if lines() != 1 {
			t.Errorf("%d lines say so, want one:\n%s", lines(), r.log)
		}
		r.ask("throttled-60", 0) // a wait within the limit, and then it begins anew
		time.Sleep(time.Minute)
		r.ask("throttled-86400", 0)
		if lines() != 2 {
			t.Errorf("%d lines after a second beginning, want two", lines())
		}
	})
}
