package soak

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"validator-gw/internal/gateway"
	"validator-gw/internal/secret"
	"validator-gw/internal/settings"
	"validator-gw/internal/verimail/simulator"
)

// inProcess is the gateway that the program builds, in this process.
type inProcess struct {
	url, metrics string
	cancel       context.CancelFunc
	ended        chan error
	transport    *http.Transport
	log          *os.File
	stopped      bool
}

func (g *inProcess) URL() string        { return g.url }
func (g *inProcess) MetricsURL() string { return g.metrics }

func (g *inProcess) Kill() { _ = g.Stop() }

func (g *inProcess) Stop() error {
	if g.stopped {
		return nil
	}
	g.stopped = true
	g.cancel()
	err := <-g.ended
	g.transport.CloseIdleConnections()
	return errors.Join(err, g.log.Close())
}

// startInProcess reads the environment that a run makes as the program would.
func startInProcess(folder string) func(context.Context, string, []string) (Gateway, error) {
	return func(ctx context.Context, name string, env []string) (Gateway, error) {
		v := map[string]string{}
		var live []string // what is not fixed at the start
		for _, e := range env {
			key, value, _ := strings.Cut(e, "=")
			v[key] = value
			if strings.HasPrefix(key, "VALIDATOR_GW_UPSTREAM_RATE") || strings.HasPrefix(key, "VALIDATOR_GW_UPSTREAM_BURST") {
				live = append(live, e)
			}
		}
		set, err := settings.Load("", live)
		if err != nil {
			return nil, err
		}
		master, err := secret.Decode(secret.Text(v["VALIDATOR_GW_SECRET"]))
		if err != nil {
			return nil, err
		}
		lis, err := new(net.ListenConfig).Listen(ctx, "tcp", v["VALIDATOR_GW_LISTEN"])
		if err != nil {
			return nil, err
		}
		mls, err := new(net.ListenConfig).Listen(ctx, "tcp", v["VALIDATOR_GW_METRICS_LISTEN"])
		if err != nil {
			return nil, errors.Join(err, lis.Close())
		}
		log, err := os.Create(filepath.Join(folder, name+".log"))
		if err != nil {
			return nil, errors.Join(err, lis.Close(), mls.Close())
		}
		transport := &http.Transport{MaxIdleConnsPerHost: 64}
		run, cancel := context.WithCancel(context.WithoutCancel(ctx))
		g := &inProcess{url: "http://" + lis.Addr().String(), metrics: "http://" + mls.Addr().String() + "/metrics",
			cancel: cancel, ended: make(chan error, 1), transport: transport, log: log}
		gw, err := gateway.New(ctx, gateway.Config{Mode: "test", DataDir: v["VALIDATOR_GW_DATA"], UpstreamURL: v["VALIDATOR_GW_UPSTREAM_URL"],
			UpstreamKey: secret.Text(v["VALIDATOR_GW_UPSTREAM_KEY"]), UpstreamProfile: "verimail_v3", Secret: master,
			APIKey: secret.Text(v["VALIDATOR_GW_API_KEY"]), Migrate: true, Version: "test"},
			gateway.Deps{Listener: lis, MetricsListener: mls, Transport: transport, Log: slog.New(slog.NewTextHandler(log, nil)),
				Settings: settings.NewLive(set, "", nil, nil)})
		if err != nil {
			cancel()
			return nil, errors.Join(err, log.Close())
		}
		go func() { g.ended <- gw.Run(run) }()
		return g, nil
	}
}

// smoke is a profile of three seconds: an upstream that is well, one that is late, so that there are reviews, and one
// that is well again.
func smoke() Profile {
	p := Profile{Name: "smoke", Knobs: Knobs{Profile: "smoke", Seed: 1, Rate: 10, Gateways: 1, Store: "sqlite"},
		Habits: Habits{Double: 0.2}, Upstream: simulator.Config{P50: 5 * time.Millisecond, Mix: mix}, Rate: 200, Burst: 50}
	late := simulator.Mode{Fault: simulator.Slow, P50: 1300 * time.Millisecond}
	p.Stages = []Stage{
		{Name: "healthy", For: time.Second, From: 10, To: 10},
		{Name: "late", For: time.Second, From: 10, To: 10, Mode: late, Trouble: true},
		{Name: "healthy again", For: time.Second, From: 10, To: 10},
	}
	return p
}

// TestSmoke plays a whole run against a whole gateway. What hangs on the speed of the machine is not judged: neither
// times, nor a 503, which is what the gateway says when no row could be written in time and nothing was promised. It is
// not parallel, so that the package's other tests do not slow it.
func TestSmoke(t *testing.T) {
	folder := t.TempDir()
	var progress bytes.Buffer
	l, err := Run(t.Context(), smoke(), Bench{Gateway: startInProcess(folder), Folder: folder, Patience: time.Minute, Progress: &progress})
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	var page strings.Builder
	l.Print(&page)
	given := *l
	given.Answers = slices.DeleteFunc(slices.Clone(l.Answers), func(a Answer) bool { return a.Code == http.StatusServiceUnavailable })
	busy := len(given.Answers) < len(l.Answers)
	for _, b := range l.Check() {
		if !b.Timing && (b.Promise != codesPromise || len(checkCodes(&given)) > 0) {
			t.Errorf("%s: %v", b.Promise, b.What)
		}
	}
	if (len(l.accepted()) == 0 && !busy) || len(l.people(Answer.verdict)) == 0 || len(l.Calls) == 0 || len(l.Samples) == 0 || l.control().Count() == 0 {
		t.Errorf("%d accepted, %d calls, %d samples, %d controls: the run saw nothing", len(l.accepted()), len(l.Calls), len(l.Samples),
			l.control().Count())
	}
	if t.Failed() {
		t.Logf("%s\n%s", progress.String(), page.String())
	}
}

// TestRunStopsWhenTold: an interrupt in the middle leaves nothing behind, which TestMain's leak check sees to.
func TestRunStopsWhenTold(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	why := errors.New("told to stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	p := smoke()
	p.Stages[0].For = time.Hour
	p.Stages[0].From, p.Stages[0].To = 0.01, 0.01
	start := startInProcess(folder)
	_, err := Run(ctx, p, Bench{Folder: folder, Patience: time.Minute, Progress: new(bytes.Buffer),
		Gateway: func(ctx context.Context, name string, env []string) (Gateway, error) {
			g, err := start(ctx, name, env)
			cancel(why)
			return g, err
		}})
	if !errors.Is(err, why) {
		t.Errorf("Run = %v, want %v", err, why)
	}
}

func TestLeaksAreFound(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a.log", "fine\nfine\n")
	write("data", "zsoak1@example.com\n") // not a log
	if found, err := leaks(folder, tokens); err != nil || len(found) != 0 {
		t.Errorf("found %v, %v in clean logs", found, err)
	}
	write("b.log", "fine\nemail=zsoak1.5@mail7.example.net\n")
	found, err := leaks(folder, tokens)
	if err != nil || len(found) != 1 || !strings.Contains(found[0], "b.log, line 2") || strings.Contains(found[0], "zsoak") {
		t.Errorf("found %v, %v", found, err)
	}
}
