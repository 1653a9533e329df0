package simulator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"validator-gw/internal/verimail/simulator"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		cfg  simulator.Config
		want string
	}{
		{"rate", simulator.Config{Rate: -1}, "rate -1"},
		{"rate not a number", simulator.Config{Rate: math.NaN()}, "rate NaN"},
		{"burst without rate", simulator.Config{Burst: 5}, "needs a rate"},
		{"burst", simulator.Config{Rate: 1, Burst: -5}, "burst -5"},
		{"quota", simulator.Config{Quota: -1}, "quota -1"},
		{"hint", simulator.Config{Hint: "smoke signal"}, "ratelimit-epoch"},
		{"percentiles crossed", simulator.Config{P50: 2 * time.Second, P99: time.Second}, "less than p50"},
		{"p99 alone", simulator.Config{P99: time.Second}, "needs p50"},
		{"latency too long", simulator.Config{P50: time.Hour}, "at most 10m"},
		{"script", simulator.Config{Script: simulator.Script{{}, {}}}, "only the last phase"},
		{"mode", simulator.Config{Script: simulator.Script{{Mode: simulator.Mode{Fault: "x"}}}}, "unknown mode"},
		{"mix", simulator.Config{Mix: simulator.Mix{{Name: "ana", Weight: 1}}}, "unknown name"},
		{"drip", simulator.Config{DripInterval: time.Minute}, "drip interval"},
	}
	for _, tt := range tests {
		if _, err := simulator.New(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: New = %v, want an error with %q", tt.name, err, tt.want)
		}
	}
	_, err := simulator.New(simulator.Config{Rate: -1, Quota: -1})
	if err == nil || !strings.Contains(err.Error(), "rate -1") || !strings.Contains(err.Error(), "quota -1") {
		t.Errorf("New = %v, want both faults named", err)
	}
}

// Requests that are not the well-formed call with a valid key: their answer, and that none is billed.
func TestMalformedCalls(t *testing.T) {
	t.Parallel()
	const formType = "application/x-www-form-urlencoded"
	good := form("ana@example.com", testKey)
	tests := []struct {
		name, method, query, contentType, body string
		status                                 int
		billed                                 int64
	}{
		{"a form", "POST", "", formType, good, 200, 1},
		{"a form with charset", "POST", "", formType + "; charset=utf-8", good, 200, 1},
		{"a query", "GET", good, "", "", 200, 1},
		{"no email", "GET", "key=" + testKey, "", "", 400, 0},
		{"empty email", "GET", "email=&key=" + testKey, "", "", 400, 0},
		{"nothing", "POST", "", formType, "", 400, 0},
		{"no key", "GET", "email=ana@example.com", "", "", 401, 0},
		{"another key", "GET", form("ana@example.com", "wrong"), "", "", 401, 0},
		{"POST with a query", "POST", good, formType, "", 400, 0},
		{"JSON", "POST", "", "application/json", `{"email":"ana@example.com"}`, 400, 0},
		{"no content type", "POST", "", "", good, 400, 0},
		{"bad escape", "GET", "email=%zz&key=" + testKey, "", "", 400, 0},
		{"PUT", "PUT", "", formType, good, 405, 0},
		{"HEAD", "HEAD", good, "", "", 405, 0},
		{"64 KiB", "POST", "", formType, good + "&x=" + strings.Repeat("x", 64<<10), 413, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSimulator(t, simulator.Config{Key: testKey})
			r, err := http.NewRequestWithContext(t.Context(), tt.method, simulated+"/v3/verify?"+tt.query,
				strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", tt.contentType)
			a := do(s.RoundTripper(), r)
			if a.err != nil || a.status != tt.status {
				t.Errorf("status = %d, %v, want %d", a.status, a.err, tt.status)
			}
			if st := s.Stats(); st.Billed != tt.billed || st.Calls != 1 {
				t.Errorf("calls = %d, billed = %d, want 1 and %d", st.Calls, st.Billed, tt.billed)
			}
			if strings.Contains(a.body, testKey) {
				t.Error("the answer holds the key")
			}
		})
	}
}

type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, syscall.EPIPE }
func (brokenBody) Close() error             { return nil }

// A request that did not arrive whole is counted and not billed.
func TestUnreadRequest(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, simulated+"/v3/verify", brokenBody{})
	if err != nil {
		t.Fatal(err)
	}
	if a := do(s.RoundTripper(), r); !errors.Is(a.err, syscall.EPIPE) {
		t.Errorf("error = %v, want EPIPE", a.err)
	}
	want := simulator.Stats{
		Calls: 1, Untracked: 1, ByStatus: map[string]int64{"unread": 1}, ByAddress: map[string]int64{},
		CallsByAddress: map[string]int64{}, Mode: "healthy",
	}
	if d := cmp.Diff(want, s.Stats()); d != "" {
		t.Errorf("stats (-want +got):\n%s", d)
	}
}

// What each mode does to a good address, and whether that is billed.
func TestModes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		mode   string
		status int
		took   time.Duration
		err    error
		billed int64
		hint   string // Retry-After
	}{
		{"healthy", 200, 100 * time.Millisecond, nil, 1, ""},
		{"slow", 200, 2 * time.Second, nil, 1, ""},
		{"slow p50=700ms", 200, 700 * time.Millisecond, nil, 1, ""},
		{"hang", 0, 30 * time.Second, context.DeadlineExceeded, 1, ""},
		{"reset", 0, 0, syscall.ECONNRESET, 1, ""},
		{"reset latency=3s", 0, 3 * time.Second, syscall.ECONNRESET, 1, ""},
		{"drip", 200, 30 * time.Second, context.DeadlineExceeded, 1, ""},
		{"error500", 500, 0, nil, 0, ""},
		{"error500 p50=1s", 500, time.Second, nil, 0, ""},
		{"error503", 503, 0, nil, 0, ""},
		{"error503 retry-after=7", 503, 0, nil, 0, "7"},
		{"throttle", 429, 0, nil, 0, ""},
		{"throttle retry-after=90s", 429, 0, nil, 0, "90"},
		{"429 retry-after=1 hint=date", 429, 0, nil, 0, "Sat, 01 Jan 2000 00:00:01 GMT"},
		{"quota", 403, 0, nil, 0, ""},
		{"auth", 401, 0, nil, 0, ""},
		{"garbage", 200, 100 * time.Millisecond, nil, 1, ""},
	}
	for _, tt := range tests {
		t.Run(tt.mode, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSimulator(t, simulator.Config{
					P50: 100 * time.Millisecond, DripInterval: time.Second, Script: parseScript(t, tt.mode),
				})
				a := callWithin(t, s, "ana@example.com", 30*time.Second)
				if a.status != tt.status || a.took != tt.took || !errors.Is(a.err, tt.err) {
					t.Errorf("%s: %d in %v, %v; want %d in %v, %v", tt.mode, a.status, a.took, a.err,
						tt.status, tt.took, tt.err)
				}
				if got := a.header.Get("Retry-After"); got != tt.hint {
					t.Errorf("%s: Retry-After = %q, want %q", tt.mode, got, tt.hint)
				}
				if st := s.Stats(); st.Billed != tt.billed || st.InFlight != 0 {
					t.Errorf("%s: billed = %d, in flight = %d; want %d, 0", tt.mode, st.Billed, st.InFlight, tt.billed)
				}
			})
		})
	}
}

// A fault that strikes whatever the parameters are still bills good calls only.
func TestModesBillGoodCallsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, fault := range []simulator.Fault{simulator.Hang, simulator.Reset, simulator.Garbage} {
			s := newSimulator(t, simulator.Config{Key: testKey})
			if err := s.SetMode(simulator.Mode{Fault: fault}); err != nil {
				t.Fatal(err)
			}
			for _, query := range []string{form("ana@example.com", "wrong"), form("", testKey), form("ana@example.com", "")} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, simulated+"/v3/verify?"+query, nil)
				if err != nil {
					t.Fatal(err)
				}
				do(s.RoundTripper(), r)
				cancel()
			}
			if st := s.Stats(); st.Calls != 3 || st.Billed != 0 {
				t.Errorf("%s: calls = %d, billed = %d, want 3 and 0", fault, st.Calls, st.Billed)
			}
		}
	})
}

func TestGarbageTakesTurns(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{Script: parseScript(t, "garbage")})
	for round := range 2 {
		for _, prefix := range []string{"<!doctype", `{"status"`, ""} {
			a := call(t, s, "ana@example.com")
			if a.status != 200 || !strings.HasPrefix(a.body, prefix) || (prefix == "") != (a.body == "") || a.word() != "" {
				t.Errorf("round %d: %d %q, want one with %q", round, a.status, a.body, prefix)
			}
		}
	}
}

func TestShare(t *testing.T) {
	t.Parallel()
	failures := func() (n int) {
		s := newSimulator(t, simulator.Config{Seed: 3, Script: parseScript(t, "error500 share=0.3")})
		for range 2000 {
			if call(t, s, "ana@example.com").status == 500 {
				n++
			}
		}
		return n
	}
	n := failures()
	if n < 600-82 || n > 600+82 { // four standard deviations
		t.Errorf("%d of 2000 failed, want about 600", n)
	}
	if again := failures(); again != n {
		t.Errorf("the same seed: %d, then %d", n, again)
	}
}

// The fate is settled when the request was read: a mode that changes does not free what hangs.
func TestHangOutlivesItsMode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulator(t, simulator.Config{})
		if err := s.SetMode(simulator.Mode{Fault: simulator.Hang}); err != nil {
			t.Fatal(err)
		}
		var hung answer
		var wg sync.WaitGroup
		wg.Go(func() { hung = call(t, s, "ana@example.com") })
		synctest.Wait()
		if st := s.Stats(); st.InFlight != 1 || st.Billed != 1 || st.Mode != "hang" {
			t.Errorf("while it hangs: %+v, want 1 in flight, billed already", st)
		}
		time.Sleep(5 * time.Second)
		if err := s.SetMode(simulator.Mode{}); err != nil {
			t.Fatal(err)
		}
		if a := call(t, s, "ben@example.com"); a.word() != "deliverable" {
			t.Errorf("after the hang: %q", a.word())
		}
		wg.Wait()
		if hung.took != time.Minute || !errors.Is(hung.err, io.EOF) {
			t.Errorf("hung for %v, %v, want 1m, EOF", hung.took, hung.err)
		}
	})
}

func TestCloseEndsWhatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulator(t, simulator.Config{})
		var got sync.Map
		var wg sync.WaitGroup
		for _, local := range []string{"hang", "delay-60000", "slow-drip"} {
			wg.Go(func() { got.Store(local, call(t, s, local+"@example.com")) })
		}
		time.Sleep(time.Second)
		s.Close()
		s.Close()
		wg.Wait()
		for local, want := range map[string]error{"hang": io.EOF, "delay-60000": io.EOF, "slow-drip": io.ErrUnexpectedEOF} {
			v, _ := got.Load(local)
			if a := v.(answer); a.took != time.Second || !errors.Is(a.err, want) {
				t.Errorf("%s: %v after %v, want %v after 1s", local, a.err, a.took, want)
			}
		}
		if a := call(t, s, "ana@example.com"); !errors.Is(a.err, net.ErrClosed) {
			t.Errorf("after Close: %v", a.err)
		}
		if st := s.Stats(); st.Calls != 3 || st.InFlight != 0 {
			t.Errorf("calls = %d, in flight = %d, want 3 and 0", st.Calls, st.InFlight)
		}
	})
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	for hint, want := range map[simulator.Hint]http.Header{
		"":                           {},
		simulator.HintSeconds:        {"Retry-After": {"1"}},
		simulator.HintDate:           {"Retry-After": {"Sat, 01 Jan 2000 00:00:11 GMT"}},
		simulator.HintEpoch:          {"X-Ratelimit-Reset": {"946684811"}},
		simulator.HintRateLimitEpoch: {"Ratelimit-Reset": {"946684811"}},
		simulator.HintRateLimitDelta: {"Ratelimit-Reset": {"1"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSimulator(t, simulator.Config{Rate: 10, Burst: 5, Hint: hint})
			time.Sleep(10 * time.Second) // a long rest does not save up more than the burst
			var got []int
			for range 7 {
				got = append(got, call(t, s, "ana@example.com").status)
			}
			if want := []int{200, 200, 200, 200, 200, 429, 429}; !slices.Equal(got, want) {
				t.Errorf("a burst of 7: %v, want %v", got, want)
			}
			a := call(t, s, "ana@example.com")
			hints := http.Header{}
			for _, name := range []string{"Retry-After", "X-Ratelimit-Reset", "Ratelimit-Reset"} {
				if v := a.header.Values(name); v != nil {
					hints[name] = v
				}
			}
			if d := cmp.Diff(want, hints); d != "" {
				t.Errorf("hint %q (-want +got):\n%s", hint, d)
			}
			time.Sleep(100*time.Millisecond - 1)
			if got := call(t, s, "ana@example.com").status; got != 429 {
				t.Errorf("1 ns before the token: %d", got)
			}
			time.Sleep(1)
			if got := call(t, s, "ana@example.com").status; got != 200 {
				t.Errorf("at the token: %d", got)
			}
			if st := s.Stats(); st.Billed != 6 || st.Calls != 10 {
				t.Errorf("calls = %d, billed = %d, want 10 and 6", st.Calls, st.Billed)
			}
		})
	}
}

// Over a long time no more gets through than the rate, and no less.
func TestRateLimitSustained(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulator(t, simulator.Config{Rate: 20}) // so the burst is 20
		for range 1000 {
			call(t, s, "ana@example.com")
			time.Sleep(10 * time.Millisecond)
		}
		// 10 s at 20/s, and the burst at the beginning.
		if n := s.Stats().ByStatus["200"]; n < 218 || n > 220 {
			t.Errorf("%d of 1000 got through, want 220 or a little less", n)
		}
		granted := slices.DeleteFunc(s.Calls(), func(c simulator.Call) bool { return c.Status != 200 })
		if b := simulator.PeakBurst(granted, 20); b > 20.001 {
			t.Errorf("PeakBurst of what got through = %v, want 20 at most", b)
		}
	})
}

func TestQuota(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{Quota: 2})
	steps := []struct {
		local  string
		status int
	}{
		{"server-error", 500}, // free
		{"ana", 200},
		{"unavailable", 503},
		{"truncated", 200},
		{"ana", 403},
		{"unavailable", 403},
	}
	for i, step := range steps {
		if got := call(t, s, step.local+"@example.com").status; got != step.status {
			t.Errorf("step %d, %s: %d, want %d", i, step.local, got, step.status)
		}
	}
	s.Reset()
	if got := call(t, s, "ana@example.com").status; got != 200 {
		t.Errorf("after Reset: %d", got)
	}
}

func TestLatency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 4000
		cfg := simulator.Config{P50: 300 * time.Millisecond, P99: 2 * time.Second, Seed: 11}
		run := func() []time.Duration {
			s := newSimulator(t, cfg)
			took := make([]time.Duration, n)
			var wg sync.WaitGroup
			for i := range took {
				wg.Go(func() { took[i] = call(t, s, fmt.Sprintf("ana.%d@example.com", i)).took })
			}
			wg.Wait()
			return took
		}
		first := run()
		if !slices.Equal(first, run()) {
			t.Error("the same seed gave other latencies, though nothing but the order can have changed")
		}
		slices.Sort(first)
		p50, p99, longest := first[n/2], first[n*99/100], first[n-1]
		if p50 < 280*time.Millisecond || p50 > 320*time.Millisecond {
			t.Errorf("p50 = %v, want about 300ms", p50)
		}
		if p99 < 1700*time.Millisecond || p99 > 2300*time.Millisecond {
			t.Errorf("p99 = %v, want about 2s", p99)
		}
		if longest > 20*time.Second {
			t.Errorf("longest = %v, want ten times p99 at most", longest)
		}
		s := newSimulator(t, cfg)
		if a := call(t, s, "unavailable@example.com"); a.took != 0 {
			t.Errorf("an error took %v, want none", a.took)
		}
		if a := call(t, s, "delay-40@example.com"); a.took != 40*time.Millisecond {
			t.Errorf("delay-40 took %v", a.took)
		}
	})
}

// A caller that leaves while the answer is on its way is billed, and no longer in flight.
func TestCallerLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulator(t, simulator.Config{P50: time.Second})
		cause := errors.New("budget spent")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, cause)
		defer cancel()
		a := post(ctx, s.RoundTripper(), simulated, "ana@example.com")
		if !errors.Is(a.err, cause) || a.took != 300*time.Millisecond {
			t.Errorf("error = %v after %v, want the cause after 300ms", a.err, a.took)
		}
		if st := s.Stats(); st.Billed != 1 || st.InFlight != 0 {
			t.Errorf("billed = %d, in flight = %d", st.Billed, st.InFlight)
		}
		if a := post(ctx, s.RoundTripper(), simulated, "ana@example.com"); !errors.Is(a.err, cause) {
			t.Errorf("error = %v", a.err)
		}
		if st := s.Stats(); st.Calls != 1 {
			t.Errorf("calls = %d: one with a dead context was sent", st.Calls)
		}
	})
}

func TestScriptPlays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulator(t, simulator.Config{
			Script: parseScript(t, "healthy 30s, error500 60s, 429 30s retry-after=5, healthy"),
		})
		time.Sleep(time.Hour) // the first call begins the script
		at := func(since time.Duration, began time.Time, want int) {
			t.Helper()
			time.Sleep(time.Until(began.Add(since)))
			if got := call(t, s, "ana@example.com").status; got != want {
				t.Errorf("%v after the beginning: %d, want %d", since, got, want)
			}
		}
		began := time.Now()
		at(0, began, 200)
		at(30*time.Second-1, began, 200)
		at(30*time.Second, began, 500)
		at(90*time.Second-1, began, 500)
		at(90*time.Second, began, 429)
		at(120*time.Second, began, 200)
		at(1000*time.Hour, began, 200)

		s.Reset()
		began = time.Now()
		s.Start()
		time.Sleep(10 * time.Second)
		s.Start() // has begun already
		at(30*time.Second, began, 500)
		if err := s.SetMode(simulator.Mode{Fault: simulator.Auth}); err != nil {
			t.Fatal(err)
		}
		at(95*time.Second, began, 401)

		if err := s.SetScript(parseScript(t, "quota 1s, error503 1s")); err != nil {
			t.Fatal(err)
		}
		began = time.Now()
		at(0, began, 403)
		at(time.Second, began, 503)
		at(2*time.Second, began, 200) // healthy once it is over
	})
}

func TestBubbleOfCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulator(t, simulator.Config{MaxCalls: 50, MaxAddresses: 10})
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				call(t, s, fmt.Sprintf("ana.%d@example.com", i))
			})
		}
		wg.Wait()
		st := s.Stats()
		if st.Calls != 100 || st.Billed != 100 || len(st.ByAddress) != 10 || st.Untracked != 90 {
			t.Errorf("calls %d, billed %d, addresses %d, untracked %d; want 100, 100, 10, 90",
				st.Calls, st.Billed, len(st.ByAddress), st.Untracked)
		}
		calls := s.Calls()
		if len(calls) != 50 || calls[0].Address != "ana.50@example.com" || calls[49].Address != "ana.99@example.com" {
			t.Fatalf("log of %d, from %q", len(calls), calls[0].Address)
		}
		if n := simulator.MaxInWindow(calls, time.Second); n != 10 {
			t.Errorf("MaxInWindow(1s) = %d, want 10", n)
		}
		if n := simulator.MaxInWindow(calls, time.Second+1); n != 11 {
			t.Errorf("MaxInWindow(1s+1ns) = %d, want 11", n)
		}
	})
}

func TestWindows(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	log := func(offsets ...time.Duration) []simulator.Call {
		calls := make([]simulator.Call, len(offsets))
		for i, o := range offsets {
			calls[i].At = began.Add(o)
		}
		return calls
	}
	const s = time.Second
	tests := []struct {
		name   string
		calls  []simulator.Call
		window time.Duration
		rate   float64
		most   int
		peak   float64
	}{
		{"none", nil, s, 1, 0, 0},
		{"one", log(0), s, 1, 1, 1},
		{"at once", log(0, 0, 0), s, 1, 3, 3},
		{"in step", log(0, s, 2*s, 3*s), s, 1, 1, 1},
		{"at twice the rate", log(0, s/2, s, 3*s/2), s, 1, 2, 2.5},
		{"a burst after a rest", log(0, 60*s, 60*s, 60*s), 2 * s, 1, 3, 3},
		{"two bursts too close", log(0, 0, s, s), 2 * s, 1, 4, 3},
	}
	for _, tt := range tests {
		if got := simulator.MaxInWindow(tt.calls, tt.window); got != tt.most {
			t.Errorf("%s: MaxInWindow = %d, want %d", tt.name, got, tt.most)
		}
		if got := simulator.PeakBurst(tt.calls, tt.rate); got != tt.peak {
			t.Errorf("%s: PeakBurst = %v, want %v", tt.name, got, tt.peak)
		}
	}
}

func TestTrace(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{})
	trace := func(email string) (events []string) {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn:              func(httptrace.GotConnInfo) { events = append(events, "conn") },
			WroteRequest:         func(httptrace.WroteRequestInfo) { events = append(events, "wrote") },
			GotFirstResponseByte: func() { events = append(events, "byte") },
		})
		post(ctx, s.RoundTripper(), simulated, email)
		return events
	}
	if got, want := trace("ana@example.com"), []string{"conn", "wrote", "byte"}; !slices.Equal(got, want) {
		t.Errorf("answered: %v, want %v", got, want)
	}
	if got, want := trace("reset@example.com"), []string{"conn", "wrote"}; !slices.Equal(got, want) {
		t.Errorf("reset: %v, want %v", got, want)
	}
}
