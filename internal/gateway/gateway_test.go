package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"validator-gw/internal/api/apitest"
	"validator-gw/internal/fallback"
	"validator-gw/internal/secret"
	"validator-gw/internal/settings"
	"validator-gw/internal/testenv"
	"validator-gw/internal/verimail/simulator"
)

var postgres = testenv.PostgresTemplate("gateway", func(ctx context.Context, url string) error {
	return fallback.MigratePostgres(ctx, secret.Text(url))
})

// busyLookUp is what Redis gets for an answer: the machine may be busy.
const busyLookUp = 2 * time.Second

// plantedKey is an upstream key that must be seen nowhere.
const plantedKey = "planted-upstream-key-5f2c"

// bench is a running gateway with its simulated upstream, over real sockets.
type bench struct {
	t       *testing.T
	url     string
	metrics string
	sim     *simulator.Simulator
	log     *lockedBuffer
	cfg     Config
	live    *settings.Live
	stop    context.CancelFunc
	ended   chan error
	gateway *Gateway
	// transport carries calls to the upstream; nil takes one of the bench's own.
	transport http.RoundTripper
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

// stores are the two ways to run: on nothing, and on Postgres and Redis.
var stores = []struct {
	name string
	set  func(t *testing.T, c *Config)
}{
	{"sqlite", func(t *testing.T, c *Config) { c.DataDir = t.TempDir() }},
	{"postgres and redis", func(t *testing.T, c *Config) {
		c.DatabaseURL = secret.Text(postgres.Database(t))
		url, _ := testenv.Redis(t) // the key space is apart by the secret, which each test draws
		c.RedisURL = secret.Text(url)
		c.RedisLookUp = busyLookUp
	}},
}

// newBench starts a simulator and a gateway. tune may change the settings before they are used.
func newBench(t *testing.T, store func(*testing.T, *Config), sim simulator.Config, tune func(*settings.Settings)) *bench {
	t.Helper()
	sim.Key = plantedKey
	s, err := simulator.New(sim)
	if err != nil {
		t.Fatal(err)
	}
	ln := listen(t)
	simCtx, stopSim := context.WithCancel(context.Background())
	simDone := make(chan error, 1)
	go func() { simDone <- s.Run(simCtx, ln) }()
	t.Cleanup(func() {
		stopSim()
		s.Close()
		if err := <-simDone; err != nil {
			t.Errorf("simulator: %v", err)
		}
	})
	set := settings.Default()
	set.Upstream.Rate, set.Upstream.Burst = 1000, 200
	if tune != nil {
		tune(set)
	}
	master, err := secret.Decode(secret.Generate())
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, sim: s, log: &lockedBuffer{}, live: settings.NewLive(set, "", nil, nil),
		cfg: Config{Mode: "test", UpstreamURL: "http://" + ln.Addr().String(), UpstreamKey: plantedKey, UpstreamProfile: "verimail_v3",
			Secret: master, Version: "test"}}
	store(t, &b.cfg)
	b.start()
	t.Cleanup(func() {
		b.halt()
		if t.Failed() {
			t.Logf("log of the gateway:\n%s", b.log)
		}
	})
	return b
}

// start runs a gateway on the bench's configuration; after halt it is a restart.
func (b *bench) start() {
	b.t.Helper()
	lis, mls := listen(b.t), listen(b.t)
	own := &http.Transport{MaxIdleConnsPerHost: 64}
	transport := b.transport
	if transport == nil {
		transport = own
	}
	g, err := New(b.t.Context(), b.cfg, Deps{Listener: lis, MetricsListener: mls, Transport: transport,
		Log: slog.New(slog.NewJSONHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Settings: b.live})
	if err != nil {
		b.t.Fatal(err)
	}
	b.gateway = g
	ctx, cancel := context.WithCancel(context.Background())
	b.url, b.metrics, b.stop, b.ended = "http://"+lis.Addr().String(), "http://"+mls.Addr().String()+"/metrics", cancel, make(chan error, 1)
	go func() {
		err := g.Run(ctx)
		own.CloseIdleConnections()
		b.ended <- err
	}()
}

// halt stops the gateway in order; a second halt is nothing.
func (b *bench) halt() {
	b.t.Helper()
	if b.stop == nil {
		return
	}
	b.stop()
	b.stop = nil
	select {
	case err := <-b.ended:
		if err != nil {
			b.t.Errorf("Run = %v, want nil", err)
		}
	case <-time.After(20 * time.Second):
		b.t.Fatal("the gateway did not stop within 20 s")
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l // closed by whoever serves it
}

// answer is the part of an answer that these tests look at.
type answer struct {
	code     int
	took     time.Duration
	ID       string `json:"id"`
	Status   string `json:"status"`
	Decision string `json:"decision"`
	Reason   string `json:"reason"`
	Source   struct {
		Kind  string `json:"kind"`
		Stale bool   `json:"stale"`
	} `json:"source"`
	NextCheckAt time.Time `json:"next_check_at"`
	Email       struct {
		Normalized *string `json:"normalized"`
		Suggestion *string `json:"suggestion"`
	} `json:"email"`
	Trail []struct {
		Outcome string `json:"outcome"`
	} `json:"trail"`
}

func (b *bench) post(email string) answer {
	b.t.Helper()
	body, _ := json.Marshal(map[string]string{"email": email})
	return b.do(http.MethodPost, "/validate", string(body))
}

func (b *bench) status(id string) answer {
	b.t.Helper()
	return b.do(http.MethodGet, "/status/"+id, "")
}

func (b *bench) do(method, path, body string) answer {
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, strings.NewReader(body))
	if err != nil {
		b.t.Error(err)
		return answer{}
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	began := time.Now()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Error(err)
		return answer{}
	}
	defer res.Body.Close()
	a := answer{code: res.StatusCode, took: time.Since(began)}
	text, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Error(err)
	}
	sent := req.Clone(b.t.Context())
	sent.Body = io.NopCloser(strings.NewReader(body))
	if err := apitest.Conforms(sent, res.StatusCode, res.Header, text); err != nil {
		b.t.Error(err)
	}
	if res.StatusCode >= 400 {
		return a // a problem; its status is a number
	}
	if err := json.Unmarshal(text, &a); err != nil {
		b.t.Errorf("%s %s: %d %s", method, path, res.StatusCode, text)
	}
	return a
}

// eventually polls until ok or a minute is over.
func (b *bench) eventually(what string, ok func() bool) {
	b.t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			b.t.Fatalf("not within a minute: %s", what)
		}
	}
}

func eachStore(t *testing.T, test func(t *testing.T, store func(*testing.T, *Config))) {
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			test(t, s.set)
		})
	}
}

func TestAnswersByStatus(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store func(*testing.T, *Config)) {
		b := newBench(t, store, simulator.Config{}, nil)
		for _, c := range []struct {
			email, status, decision, reason string
			code                            int
		}{
			{"deliverable@example.com", "valid", "accept", "mailbox_accepted", 200},
			{"hardbounce@example.com", "invalid", "reject", "mailbox_not_found", 200},
			{"catch-all@example.com", "risky", "accept", "catch_all", 200},
			{"disposable@example.com", "risky", "reject", "disposable", 200},
			{"inbox-full@example.com", "risky", "accept", "mailbox_full", 200},
			{"softbounce@example.com", "needs_review", "accept_pending", "mailbox_temp_rejected", 202},
			{"undeliverable@example.com", "needs_review", "accept_pending", "mx_unreachable", 202},
			{"unmapped@example.com", "needs_review", "accept_pending", "unmapped", 202},
			{"server-error@example.com", "needs_review", "accept_pending", "upstream_error", 202},
			{"not an address", "invalid", "reject", "missing_at", 200},
		} {
			a := b.post(c.email)
			if a.code != c.code || a.Status != c.status || a.Decision != c.decision || a.Reason != c.reason {
				t.Errorf("%s: %d %s %s %s, want %d %s %s %s", c.email, a.code, a.Status, a.Decision, a.Reason, c.code, c.status, c.decision, c.reason)
			}
			if a.ID == "" {
				if c.reason != "missing_at" {
					t.Errorf("%s: no id", c.email)
				}
				continue
			}
			if s := b.status(a.ID); s.code != 200 || s.Status != c.status || s.Decision != c.decision || s.Reason != c.reason || s.ID != a.ID {
				t.Errorf("status of %s: %d %s %s %s, want 200 %s %s %s", c.email, s.code, s.Status, s.Decision, s.Reason, c.status, c.decision, c.reason)
			}
		}
		before := b.sim.Stats().Billed
		if a := b.post("DELIVERABLE@Example.COM "); a.Source.Kind != "cache" || a.Status != "valid" {
			t.Errorf("again: %s from %s, want valid from cache", a.Status, a.Source.Kind)
		}
		if a := b.post("softbounce@example.com"); a.Status != "needs_review" {
			t.Errorf("a review's marker: %s, want needs_review", a.Status)
		}
		if after := b.sim.Stats().Billed; after != before {
			t.Errorf("repeats were billed %d times, want 0", after-before)
		}
	})
}

func TestHundredEqualRequestsAreOneCall(t *testing.T) { // not parallel: a hundred at once are work enough
	for _, c := range stores {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, c.set, simulator.Config{P50: 200 * time.Millisecond}, nil)
			valid := 0
			for n := 0; n < 5 && valid < 90; n++ { // a machine that stands still for a second lets answers run out of time
				email := fmt.Sprintf("deliverable+%d@example.com", n)
				_, told := oneVerdict(t, []*bench{b}, crowd([]*bench{b}, email))
				valid = told[0]
				if got := b.billed(email); got != 1 {
					t.Errorf("billed %d calls, want 1", got)
				}
			}
			if valid < 90 {
				t.Errorf("in none of five crowds 90 of 100 had the verdict in time: %d in the last", valid)
			}
		})
	}
}

// TestHangThenHealthy: every address posted while the upstream hangs is answered inside the budget, is found by its
// id, and is settled once the upstream is healthy, without anyone asking.
func TestHangThenHealthy(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store func(*testing.T, *Config)) {
		b := newBench(t, store, simulator.Config{MaxHang: 3 * time.Second}, func(s *settings.Settings) {
			s.LateTimeout = 3 * time.Second
			s.Breaker.Cooldown = time.Second
			s.Upstream.Rate, s.Upstream.Burst = 50, 100
		})
		ids := b.outage(100)
		b.eventually("all settle by themselves", func() bool {
			for i, id := range ids {
				if a := b.status(id); a.Status != "valid" || a.Source.Kind != "review" {
					if a.code != 200 {
						t.Fatalf("status of row %d: %d", i, a.code)
					}
					return false
				}
			}
			return true
		})
	})
}

// pending posts an address that needs a row. The row has 120 ms of real time; on a machine that is busy with other tests it
// may take longer, and then nothing was promised. What is exact about time is tested where time is exact, in package world.
func (b *bench) pending(email string) answer {
	b.t.Helper()
	a := b.post(email)
	for tries := 1; a.code == http.StatusServiceUnavailable && tries < 100; tries++ {
		a = b.post(email)
	}
	return a
}

// outage posts n addresses while the upstream hangs, checks the answers, and makes it healthy.
func (b *bench) outage(n int) []string {
	b.t.Helper()
	if err := b.sim.SetMode(simulator.Mode{Fault: simulator.Hang}); err != nil {
		b.t.Fatal(err)
	}
	ids := make([]string, n)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			a := b.pending(fmt.Sprintf("person%d@example.com", i))
			if a.code != http.StatusAccepted || a.Status != "needs_review" || a.Decision != "accept_pending" {
				b.t.Errorf("answer %d: %d %s %s %s, want 202 needs_review", i, a.code, a.Status, a.Decision, a.Reason)
			}
			ids[i] = a.ID
		})
	}
	wg.Wait()
	for i, id := range ids {
		a := b.status(id)
		for tries := 1; a.code == http.StatusServiceUnavailable && tries < 100; tries++ {
			a = b.status(id) // half a second of real time, as above
		}
		if a.code != http.StatusOK || a.ID != id {
			b.t.Errorf("row %d: status %d with id %q", i, a.code, a.ID)
		}
	}
	if err := b.sim.SetMode(simulator.Mode{Fault: simulator.Healthy}); err != nil {
		b.t.Fatal(err)
	}
	return ids
}

// TestRestartKeepsWhatWasPaid: nothing that was answered is asked again after a stop and a start.
func TestRestartKeepsWhatWasPaid(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store func(*testing.T, *Config)) {
		b := newBench(t, store, simulator.Config{}, nil)
		first := b.post("deliverable@example.com")
		b.halt()
		b.start()
		again := b.post("deliverable@example.com")
		if again.ID != first.ID || again.Source.Kind != "cache" {
			t.Errorf("after a restart: id %s from %s, want %s from cache", again.ID, again.Source.Kind, first.ID)
		}
		if s := b.status(first.ID); s.Status != "valid" {
			t.Errorf("status after a restart: %d %s", s.code, s.Status)
		}
		if got := b.sim.Stats().Billed; got != 1 {
			t.Errorf("billed %d, want 1", got)
		}
	})
}

// TestNothingLeaks plants an address and the upstream's key and looks for them wherever they must not be.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	const planted = "planted.person.9c41@example.com"
	store := stores[1].set
	b := newBench(t, store, simulator.Config{}, nil)
	for _, mode := range []simulator.Fault{simulator.Healthy, simulator.Reset, simulator.Garbage, simulator.Error500, simulator.Throttle, simulator.Auth} {
		if err := b.sim.SetMode(simulator.Mode{Fault: mode}); err != nil {
			t.Fatal(err)
		}
		b.post(planted)
		b.post(string(mode) + "." + planted)
		b.do(http.MethodPost, "/validate", `{"email":"`+planted+`","unknown":"`+planted+`"}`)
		b.do(http.MethodPost, "/validate?email="+planted, `{"email":"`+planted+`"`)
		b.do(http.MethodGet, "/status/"+planted, "")
		b.do(http.MethodGet, "/"+planted, "")
	}
	res, err := http.Get(b.metrics)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	metrics, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	b.halt()
	for name, text := range map[string]string{
		"log": b.log.String(), "metrics": string(metrics), "redis": dumpRedis(t, b.cfg.RedisURL.Reveal()),
	} {
		if len(text) < 20 {
			t.Errorf("%s holds only %q: the test looks at nothing", name, text)
		}
		for _, secret := range []string{"planted.person", plantedKey} {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s holds %q: …%s…", name, secret, text[max(0, i-100):min(len(text), i+100)])
			}
		}
	}
}

// TestFaultyStart: what can't work is said at once, in one error, and nothing is left open.
func TestFaultyStart(t *testing.T) {
	t.Parallel()
	live := settings.NewLive(settings.Default(), "", nil, nil)
	good := Config{UpstreamURL: "http://127.0.0.1:1", UpstreamKey: "k", UpstreamProfile: "verimail_v3", Secret: bytes.Repeat([]byte{7}, 32)}
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   error
		text   string
	}{
		{"old schema", func(c *Config) { c.DatabaseURL = secret.Text(testenv.Postgres(t)) }, fallback.ErrSchema, "validator-gw migrate"},
		{"no such database", func(c *Config) {
			u := databaseURL(t)
			u.Path += "_is_not_there"
			c.DatabaseURL = secret.Text(u.String())
		}, nil, "3D000"},
		{"wrong credentials", func(c *Config) {
			u := databaseURL(t)
			u.User = url.UserPassword("nobody_of_this_name", "wrong")
			c.DatabaseURL = secret.Text(u.String())
		}, nil, "SQLSTATE 28"},
		{"short secret", func(c *Config) { c.Secret = []byte("short"); c.DataDir = t.TempDir() }, secret.ErrTooShort, "32 bytes"},
		{"unknown profile", func(c *Config) { c.UpstreamProfile = "nobody"; c.DataDir = t.TempDir() }, nil, "nobody"},
		{"bad redis url", func(c *Config) { c.RedisURL = "http://x"; c.DataDir = t.TempDir() }, nil, "redis://"},
		{"bad upstream url", func(c *Config) { c.UpstreamURL = "ftp://x"; c.DataDir = t.TempDir() }, nil, "http(s)://"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := good
			c.change(&cfg)
			log := &lockedBuffer{}
			_, err := New(t.Context(), cfg, Deps{Settings: live, Listener: listen(t), MetricsListener: listen(t),
				Log: slog.New(slog.NewTextHandler(log, nil))})
			if strings.Contains(log.String(), "trying on") {
				t.Error("it was tried again, want an end at once")
			}
			if err == nil || (c.want != nil && !errors.Is(err, c.want)) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("New = %v, want %v with %q", err, c.want, c.text)
			}
		})
	}
}

func databaseURL(t *testing.T) *url.URL {
	t.Helper()
	u, err := url.Parse(testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestStartWithoutDatabase: while the database can't be reached nothing hangs: alive, not ready, and 503 for what needs it.
func TestStartWithoutDatabase(t *testing.T) {
	t.Parallel()
	dead := listen(t)
	at := dead.Addr().String()
	_ = dead.Close()
	cfg := Config{UpstreamURL: "http://127.0.0.1:1", UpstreamKey: "k", UpstreamProfile: "verimail_v3", Secret: bytes.Repeat([]byte{7}, 32),
		DatabaseURL: secret.Text("postgres://u:p@" + at + "/d")}
	lis := listen(t)
	b := &bench{t: t, url: "http://" + lis.Addr().String()}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := New(ctx, cfg, Deps{Settings: settings.NewLive(settings.Default(), "", nil, nil), Listener: lis, MetricsListener: listen(t)})
		ended <- err
	}()
	for _, c := range []struct {
		method, path, body string
		code               int
	}{
		{http.MethodGet, "/livez", "", 200},
		{http.MethodGet, "/readyz", "", 503},
		{http.MethodPost, "/validate", `{"email":"ana@example.com"}`, 503},
		{http.MethodGet, "/status/01a22cc6-b6d8-7448-864e-fac0ea95d656", "", 503},
	} {
		if a := b.do(c.method, c.path, c.body); a.code != c.code {
			t.Errorf("%s %s: %d, want %d", c.method, c.path, a.code, c.code)
		}
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("New = nil, want an error: there is no database")
	}
	if _, err := http.Get(b.url + "/livez"); err == nil {
		t.Error("the listener is open after New failed")
	}
}
