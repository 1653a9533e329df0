package world

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"validator-gw/internal/gateway"
	"validator-gw/internal/secret"
	"validator-gw/internal/settings"
	"validator-gw/internal/verimail"
	"validator-gw/internal/verimail/simulator"
)

// Secrets that are planted, to be looked for where they must not be.
const (
	upstreamKey = "okapi-5f1e2d3c4b5a69788796a5b4c3d2e1f0"
	clientKey   = "tapir-0123456789abcdef0123456789abcdef"
)

// Bounds of a world's end.
const (
	calm    = 30 * time.Minute    // healthy, gateway running, after people have gone
	longest = 12 * 24 * time.Hour // from the beginning until every id has ended
	stopMax = 15 * time.Second    // a stop, as the README promises
)

// world is one gateway, its upstream and its clients, in a bubble.
type world struct {
	t      *testing.T
	plan   plan
	folder string
	master []byte
	ledger *ledger
	audit  *audit
	log    logBuffer
	client *http.Client
	people sync.WaitGroup
	// answers counts what the clients read.
	answers atomic.Int64

	sim     *simulator.Simulator
	simLis  *pipes
	simStop func() error

	mu      sync.Mutex
	life    *life // nil while the gateway is stopped
	drawnAt time.Time
	drawn   uint64 // at drawnAt
}

// life is one run of the gateway.
type life struct {
	api, metrics *pipes
	stop         context.CancelFunc
	done         chan error
}

// play runs one world to its end and returns its ledger. Call it in a bubble.
func play(t *testing.T, p plan, folder string) *ledger {
	w := &world{t: t, plan: p, folder: folder, master: bytes.Repeat([]byte("world-secret-"), 4)}
	defaults := settings.Default()
	w.ledger = &ledger{
		seed: p.seed, began: time.Now(), script: p.script,
		rate: float64(defaults.Upstream.Rate), burst: defaults.Upstream.Burst,
	}
	w.audit = newAudit(folder, w.master)
	transport := &http.Transport{DialContext: w.dial, MaxIdleConnsPerHost: 100, IdleConnTimeout: 30 * time.Second}
	w.client = &http.Client{Transport: transport}
	w.startUpstream()
	w.start()

	w.theDay()
	w.afterwards()

	open, _, dead := w.audit.queue()
	w.ledger.open, w.ledger.dead = open, dead
	w.stop()
	transport.CloseIdleConnections()
	if err := w.simStop(); err != nil {
		w.fault("upstream: " + err.Error())
	}
	w.ledger.calls = w.sim.Calls()
	w.search()
	w.ledger.sort()
	return w.ledger
}

func (w *world) fault(text string) {
	w.ledger.mu.Lock()
	w.ledger.errors = append(w.ledger.errors, text)
	w.ledger.mu.Unlock()
}

func (w *world) startUpstream() {
	sim, err := simulator.New(simulator.Config{
		Key: upstreamKey, P50: 120 * time.Millisecond, P99: 450 * time.Millisecond, Seed: w.plan.seed, Script: w.plan.script,
		DripInterval: 20 * time.Millisecond, MaxCalls: 1 << 22,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.sim, w.simLis = sim, listen("upstream")
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- sim.Run(ctx, w.simLis) }()
	sim.Start()
	w.simStop = func() error {
		cancel()
		return <-done
	}
}

// start builds and runs the gateway, by the same functions as the program does.
func (w *world) start() {
	l := &life{api: listen("gateway"), metrics: listen("metrics"), done: make(chan error, 1)}
	transport := verimail.NewTransport(64)
	transport.Proxy = nil
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return w.simLis.dial(ctx) }
	ctx, cancel := context.WithCancel(w.t.Context())
	l.stop = cancel
	g, err := gateway.New(ctx, gateway.Config{
		Mode: "serve", DataDir: w.folder, UpstreamURL: "http://upstream.example", UpstreamKey: upstreamKey,
		UpstreamProfile: verimail.ProfileVerimailV3, Secret: w.master, APIKey: secret.Text(clientKey), Version: "world",
	}, gateway.Deps{
		Listener: l.api, MetricsListener: l.metrics, Transport: transport, Rand: w.draw,
		Log:      slog.New(slog.NewJSONHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Settings: settings.NewLive(settings.Default(), "", nil, nil),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	go func() {
		err := g.Run(ctx)
		transport.CloseIdleConnections()
		l.done <- err
	}()
	w.mu.Lock()
	w.life = l
	w.mu.Unlock()
	if n := len(w.ledger.stops); n > 0 {
		w.ledger.mu.Lock()
		w.ledger.stops[n-1].to = time.Now()
		w.ledger.mu.Unlock()
	}
}

// stop reads the gateway's metrics and stops it.
func (w *world) stop() {
	w.scrape()
	began := time.Now()
	w.ledger.mu.Lock()
	w.ledger.stops = append(w.ledger.stops, span{began, began.Add(100 * 365 * 24 * time.Hour)})
	w.ledger.mu.Unlock()
	w.life.stop()
	if err := <-w.life.done; err != nil {
		w.fault("Run returned " + err.Error())
	}
	if took := time.Since(began); took > stopMax {
		w.fault(fmt.Sprintf("the stop at %s took %v", w.ledger.at(began), took))
	}
	w.mu.Lock()
	w.life = nil
	w.mu.Unlock()
}

// draw is the gateway's random source. A number hangs on the seed, the instant and how many were drawn in it, and not
// on all that was drawn before: where goroutines ran in another order, only that instant differs, not the whole rest.
func (w *world) draw() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); now.Equal(w.drawnAt) {
		w.drawn++
	} else {
		w.drawnAt, w.drawn = now, 0
	}
	return rand.New(rand.NewPCG(w.plan.seed, uint64(w.drawnAt.UnixNano())+w.drawn<<56)).Float64()
}

// nowhere refuses connections, as a stopped gateway's port does.
var nowhere = func() *pipes {
	p := listen("gateway")
	_ = p.Close()
	return p
}

func (w *world) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	w.mu.Lock()
	l := w.life
	w.mu.Unlock()
	if l == nil {
		return nowhere().dial(ctx)
	}
	return l.api.dial(ctx)
}

// theDay lets people come, and stops the gateway once.
func (w *world) theDay() {
	until := func(at time.Duration) { time.Sleep(time.Until(w.ledger.began.Add(at))) }
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		until(w.plan.stopAt)
		w.stop()
		time.Sleep(w.plan.down)
		w.start()
	}()
	for _, v := range w.plan.visits {
		until(v.at)
		w.visit(w.t.Context(), v)
	}
	until(w.plan.day)
	<-stopped
	w.people.Wait()
}

// afterwards lets the gateway bring everything to its end. The upstream is healthy. After half an hour it is stopped
// for hours at a time, as over nights; each time what has come due meanwhile is waited for.
func (w *world) afterwards() {
	time.Sleep(calm)
	for _, pause := range w.plan.pauses {
		if w.quiet() {
			break
		}
		if open, _, _ := w.audit.queue(); open == 0 {
			break
		}
		w.stop()
		time.Sleep(pause)
		w.start()
	}
	w.ledger.rested = time.Now()
	if open, _, _ := w.audit.queue(); open > 0 {
		w.ledger.stuck = fmt.Sprintf("%d reviews are open at %s", open, w.ledger.at(time.Now()))
	}
	ids := make(map[string]bool)
	for _, a := range w.ledger.answers {
		if a.code == http.StatusAccepted && !ids[a.id] {
			ids[a.id] = true
			w.look(w.t.Context(), a.id, a.flow, 0)
		}
	}
}

// quiet waits until nothing is due, and says whether the world's time is over.
func (w *world) quiet() bool {
	for began := time.Now(); time.Since(began) < 2*time.Hour; time.Sleep(30 * time.Second) {
		if _, busy, _ := w.audit.queue(); busy == 0 {
			break
		}
	}
	return time.Since(w.ledger.began) > longest
}

var lostMetric = regexp.MustCompile(`(?m)^validator_gw_verdicts_lost_total ([0-9.e+]+)$`)

// scrape reads the metrics as Prometheus does.
func (w *world) scrape() {
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return w.life.metrics.dial(ctx)
	}}
	defer t.CloseIdleConnections()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://metrics.example/metrics", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	res, err := t.RoundTrip(req)
	if err != nil {
		w.fault("metrics: " + err.Error())
		return
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	m := lostMetric.FindSubmatch(text)
	if err != nil || m == nil {
		w.fault("metrics: validator_gw_verdicts_lost_total is not there")
		return
	}
	lost, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		w.fault("metrics: " + err.Error())
	}
	w.ledger.lost += lost
	w.seek("the metrics", text)
}

// search looks for what was planted, in the log and in the files, and for errors in the log.
func (w *world) search() {
	text := w.log.bytes()
	w.seek("the log", text)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, `"level":"ERROR"`) && !expectedError(line) {
			w.fault("log: " + strings.TrimSpace(line))
		}
	}
	files, err := filepath.Glob(filepath.Join(w.folder, "*"))
	if err != nil || len(files) == 0 {
		w.fault("no files in the data folder")
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			w.fault(err.Error())
		}
		w.seek("the file "+filepath.Base(name), text)
	}
}

// expectedError says that a log line is about trouble that the world made: answers that can't be used, a refused
// account.
func expectedError(line string) bool {
	return strings.Contains(line, `"msg":"review is dead: its answers can't be used"`) ||
		strings.Contains(line, `"msg":"upstream refuses our account: nothing is sent until the time given"`)
}

func (w *world) seek(where string, text []byte) {
	for _, token := range []string{localToken, domainToken, upstreamKey, clientKey} {
		if bytes.Contains(text, []byte(token)) {
			w.ledger.leaks = append(w.ledger.leaks, fmt.Sprintf("%q is in %s", token, where))
		}
	}
}

// logBuffer keeps a log. Safe for concurrent use.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.b.Bytes())
}
