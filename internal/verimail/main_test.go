package verimail

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testKey = "0123456789abcdef0123456789abcdef"
	testURL = "http://upstream.invalid"
	domain  = "corp-mail.com"
)

// half makes every draw the middle one: jitter is half of its most, the breaker's cool-down is what was set.
func half() float64 { return 0.5 }

// allowance is a limiter that grants as it is told. The zero value grants everything at once.
type allowance struct {
	mu      sync.Mutex
	wait    time.Duration // before each interactive grant
	refuse  bool
	from    time.Time       // nothing is granted to background work before
	held    time.Time       // the fleet's gate: nothing is granted before
	holds   []time.Duration // what the fleet was told
	granted int
	asked   []time.Duration // the waits that interactive calls would have put up with
}

func (a *allowance) TakeInteractive(_ context.Context, maxWait time.Duration) (time.Duration, time.Time, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, maxWait)
	if time.Now().Before(a.held) {
		return 0, a.held, false
	}
	if a.refuse || a.wait > maxWait {
		return 0, time.Time{}, false
	}
	a.granted++
	return a.wait, time.Time{}, true
}

func (a *allowance) TakeBackground(context.Context) (time.Time, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Now().Before(a.held) {
		return a.held, false
	}
	if a.refuse || time.Now().Before(a.from) {
		return time.Time{}, false
	}
	a.granted++
	return time.Time{}, true
}

func (a *allowance) Hold(_ context.Context, d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.holds = append(a.holds, d)
}

// rig is a client in front of a simulated upstream.
type rig struct {
	*Client
	t      *testing.T
	sim    *simulator.Simulator
	limits *allowance
	tune   *atomic.Pointer[Tuning]
	reg    *prometheus.Registry
	log    *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newRig makes a client of the simulator's RoundTripper; change may set other things before it is made.
func newRig(t *testing.T, sim simulator.Config, change ...func(*Config)) *rig {
	t.Helper()
	s, err := simulator.New(sim)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, sim: s, limits: &allowance{}, tune: &atomic.Pointer[Tuning]{}, reg: prometheus.NewRegistry(), log: &lockedBuffer{}}
	tuning := DefaultTuning()
	r.tune.Store(&tuning)
	cfg := Config{
		Profile: ProfileVerimailV3, URL: testURL, Key: testKey, Transport: s.RoundTripper(), Limiter: r.limits,
		Seal: func(text string) []byte { return []byte(strings.ToUpper(text)) }, Tuning: func() Tuning { return *r.tune.Load() },
		Rand: half, Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Registerer: r.reg,
	}
	for _, f := range change {
		f(&cfg)
	}
	if r.Client, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	return r
}

// retune changes the tuning for the calls to come.
func (r *rig) retune(change func(*Tuning)) {
	t := *r.tune.Load()
	change(&t)
	r.tune.Store(&t)
}

func (r *rig) mode(m simulator.Mode) {
	r.t.Helper()
	if err := r.sim.SetMode(m); err != nil {
		r.t.Fatal(err)
	}
}

// ask checks local@domain interactively within 650 ms, as a sign-up does, with so many retries.
func (r *rig) ask(local string, retries int) verdict.Outcome {
	r.t.Helper()
	return r.askWithin(local, 650*time.Millisecond, retries)
}

func (r *rig) askWithin(local string, budget time.Duration, retries int) verdict.Outcome {
	r.t.Helper()
	return r.Check(r.t.Context(), address(r.t, local), plan(budget, retries))
}

func plan(budget time.Duration, retries int) verdict.Plan {
	return verdict.Plan{Class: verdict.Interactive, Until: time.Now().Add(budget), MaxRetries: retries}
}

func address(t testing.TB, local string) normalize.Address {
	t.Helper()
	a, err := normalize.Parse(local + "@" + domain)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// health is how often the breaker was told what, in its present state.
type health struct{ successes, failures, excluded uint32 }

func (r *rig) health() health {
	n := r.breaker.current().Counts()
	return health{n.TotalSuccesses, n.TotalFailures, n.TotalExclusions}
}

func (r *rig) state() string { return r.breaker.state().String() }

// metric is the sum of a metric's series that have these label values, in the form "name value".
func (r *rig) metric(name string, labels ...string) float64 {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	found, sum := false, 0.0
	for _, f := range families {
		if f.GetName() != "validator_gw_"+name {
			continue
		}
	series:
		for _, m := range f.GetMetric() {
			for i := 0; i < len(labels); i += 2 {
				ok := false
				for _, l := range m.GetLabel() {
					ok = ok || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
				}
				if !ok {
					continue series
				}
			}
			found = true
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	if !found {
		r.t.Fatalf("no series %s%v", name, labels)
	}
	return sum
}

// roundTrip is a transport of one function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answering is a transport that gives this answer to every call.
func answering(status int, body string, header ...string) func(*Config) {
	return func(c *Config) {
		c.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.Body != nil {
				_, _ = io.Copy(io.Discard, r.Body)
				_ = r.Body.Close()
			}
			h := http.Header{}
			for i := 0; i < len(header); i += 2 {
				h.Add(header[i], header[i+1])
			}
			return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		})
	}
}

func outcomes(out verdict.Outcome) string {
	var all []string
	for _, a := range out.Trail {
		all = append(all, a.Outcome)
	}
	return strings.Join(all, " ")
}

// cancelAfter ends a context at its time, with the cause of a stop and not of a deadline.
func cancelAfter(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(d, cancel)
	return ctx
}

// roundTripError is a transport that can't reach anybody.
func roundTripError(err error) roundTrip {
	return func(r *http.Request) (*http.Response, error) {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
}
