package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/testenv"
)

// asProgram makes the test binary the program itself: for tests that end it by force.
const asProgram = "TEST_BINARY_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		_ = os.Unsetenv(asProgram)
		main()
	}
	testenv.Main(m)
}

// output collects what several goroutines print.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// process is one run of the program.
type process struct {
	stdout, stderr output
	signals        chan os.Signal
	code           int
	done           chan struct{}
}

// begin runs the program in the background and ends it with the test.
func begin(t *testing.T, environ []string, args ...string) *process {
	t.Helper()
	p := &process{signals: make(chan os.Signal, 2), done: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(p.done)
		p.code = run(ctx, args, environ, strings.NewReader(""), &p.stdout, &p.stderr, p.signals)
	}()
	t.Cleanup(func() { cancel(); <-p.done })
	return p
}

// end waits for the program's end and returns its exit code.
func (p *process) end(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		t.Fatalf("still running; stdout:\n%s\nstderr:\n%s", p.stdout.String(), p.stderr.String())
	}
	return p.code
}

// wait returns the first group of the pattern once stdout or stderr has it.
func (p *process) wait(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	limit := time.After(time.Minute)
	for {
		text := p.stdout.String() + p.stderr.String()
		if m := re.FindStringSubmatch(text); m != nil {
			return m[len(m)-1]
		}
		select {
		case <-p.done:
			// What was printed last may have come between the look and the end.
			if m := re.FindStringSubmatch(p.stdout.String() + p.stderr.String()); m != nil {
				return m[len(m)-1]
			}
			t.Fatalf("ended with %d and without %q:\n%s", p.code, pattern, p.stdout.String()+p.stderr.String())
		case <-limit:
			t.Fatalf("no %q in:\n%s", pattern, text)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// call runs the program to its end.
func call(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := begin(t, environ, args...)
	code = p.end(t)
	return code, p.stdout.String(), p.stderr.String()
}

// file writes a file of its own and returns its path.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUsage(t *testing.T) {
	t.Parallel()
	tests := []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{nil, 2, "", `expected one of "dev", "serve"`},
		{[]string{"bogus"}, 2, "", "unexpected argument bogus"},
		{[]string{"serve", "--bogus"}, 2, "", "unknown flag --bogus"},
		{[]string{"config"}, 2, "", `expected "check"`},
		{[]string{"healthcheck", "--timeout", "soon"}, 2, "", "--timeout"},
		{[]string{"--help"}, 0, "Commands:", ""},
		{[]string{"serve", "--help"}, 0, "VALIDATOR_GW_METRICS_LISTEN", ""},
		{[]string{"version"}, 0, "validator-gw ", ""},
		{[]string{"--version"}, 0, "validator-gw ", ""},
	}
	for _, tc := range tests {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := call(t, nil, tc.args...)
			if code != tc.code || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("code %d, stdout %q, stderr %q, want %d, %q, %q", code, stdout, stderr, tc.code, tc.stdout, tc.stderr)
			}
			if (stderr == "") != (tc.stderr == "") {
				t.Errorf("stderr %q", stderr)
			}
		})
	}
}

// dev runs with nothing set up: it answers, takes a changed setting on SIGHUP and stops cleanly on SIGTERM; the next
// start finds the same secret.
func TestDev(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	config := file(t, "settings.yaml", "retry: {base: 100ms}\n")
	// Variables of other programs on the same machine change nothing.
	environ := []string{"DATABASE_URL=postgres://nobody@127.0.0.1:1/none", "REDIS_URL=redis://127.0.0.1:1"}
	args := []string{
		"dev", "--data", data, "--config", config,
		"--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--simulator-listen", "127.0.0.1:0",
	}
	p := begin(t, environ, args...)
	api := p.wait(t, `listening +(http://127\.0\.0\.1:\d+)`)
	upstream := p.wait(t, `(http://127\.0\.0\.1:\d+)/control/stats`)
	p.wait(t, "SIMULATED")
	p.wait(t, "dev does not use DATABASE_URL")
	// The rate's bucket starts empty, so that restarts can't exceed it: the first moments have no token to give.
	body := ""
	for try := 0; try < 100 && !strings.Contains(body, `"status":"valid"`); try++ {
		<-time.After(20 * time.Millisecond)
		body = post(t, api+"/validate", fmt.Sprintf(`{"email":"ana.%d@example.com"}`, try))
	}
	if !strings.Contains(body, `"status":"valid"`) {
		t.Errorf("POST /validate: %s", body)
	}
	if body := fetch(t, upstream+"/control/stats"); !strings.Contains(body, `"billed":1`) {
		t.Errorf("the simulated upstream was not asked: %s", body)
	}
	address := strings.TrimPrefix(api, "http://")
	for _, args := range [][]string{{"healthcheck", "--listen", address}, {"healthcheck", "--ready", "--listen", address}} {
		if code, stdout, stderr := call(t, nil, args...); code != 0 {
			t.Errorf("%q: code %d, %s%s", args, code, stdout, stderr)
		}
	}

	if err := os.WriteFile(config, []byte("retry: {base: 150ms}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.signals <- syscall.SIGHUP
	p.wait(t, "setting=retry.base old=100ms new=150ms")

	secretPath := filepath.Join(data, "secret")
	before, err := os.ReadFile(secretPath)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(secretPath); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the secret's mode is %v, %v, want 0600", info.Mode(), err)
	}
	p.signals <- syscall.SIGTERM
	if code := p.end(t); code != 0 {
		t.Errorf("after SIGTERM code %d:\n%s", code, p.stderr.String())
	}
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("the address is still served after the end")
	}

	p = begin(t, nil, args...)
	p.wait(t, `listening +(http://127\.0\.0\.1:\d+)`)
	if after, err := os.ReadFile(secretPath); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the second start has another secret (%v)", err)
	}
	p.signals <- os.Interrupt
	if code := p.end(t); code != 0 {
		t.Errorf("after SIGINT code %d:\n%s", code, p.stderr.String())
	}
	if out := p.stdout.String() + p.stderr.String(); strings.Contains(out, strings.TrimSpace(string(before))) {
		t.Errorf("dev's secret is printed:\n%s", out)
	}
}

// A second start while the first one runs fails at once and says which address is taken.
func TestTakenPort(t *testing.T) {
	t.Parallel()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() }) // after the parallel tests below
	taken := ln.Addr().String()
	data := t.TempDir()
	for _, tc := range []struct {
		name string
		args []string
		flag string
	}{
		{"api", []string{"dev", "--listen", taken, "--metrics-listen", "127.0.0.1:0", "--simulator-listen", "127.0.0.1:0"},
			"--listen"},
		{"metrics", []string{"dev", "--listen", "127.0.0.1:0", "--metrics-listen", taken, "--simulator-listen", "127.0.0.1:0"},
			"--metrics-listen"},
		{"simulator", []string{"dev", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--simulator-listen", taken},
			"--simulator-listen"},
		{"simulate", []string{"simulate", "--listen", taken}, "--listen"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.args[0] == "dev" {
				tc.args = append(tc.args, "--data", filepath.Join(data, tc.name))
			}
			code, stdout, stderr := call(t, nil, tc.args...)
			if code != 1 || stdout != "" || !strings.Contains(stderr, taken) || !strings.Contains(stderr, tc.flag) {
				t.Errorf("code %d, stdout %q, stderr %q, want 1 and the address and %s", code, stdout, stderr, tc.flag)
			}
		})
	}
}

func TestSimulate(t *testing.T) {
	t.Parallel()
	p := begin(t, nil, "simulate", "--listen", "127.0.0.1:0", "--rate", "60/m", "--burst", "1", "--key", "planted-key",
		"--hint", "seconds", "--seed", "7")
	url := p.wait(t, `on (http://127\.0\.0\.1:\d+), seed 7`)
	if body := fetch(t, url+"/v3/verify?email=ana@example.com&key=planted-key"); !strings.Contains(body, "deliverable") {
		t.Errorf("first call: %s", body)
	}
	status, header, _ := exchange(t, http.MethodGet, url+"/v3/verify?email=bob@example.com&key=planted-key", "")
	if status != 429 || header.Get("Retry-After") == "" {
		t.Errorf("second call: %d, Retry-After %q, want 429 with a hint", status, header.Get("Retry-After"))
	}
	p.signals <- syscall.SIGTERM
	if code := p.end(t); code != 0 {
		t.Errorf("code %d:\n%s", code, p.stderr.String())
	}
	if out := p.stdout.String() + p.stderr.String(); strings.Contains(out, "planted-key") {
		t.Errorf("the key is printed:\n%s", out)
	}

	code, _, stderr := call(t, nil, "simulate", "--rate", "x", "--script", "nonsense 1s", "--hint", "y", "--p50", "2s",
		"--p99", "1s", "--listen", "here")
	if code != 2 {
		t.Errorf("code %d, want 2", code)
	}
	for _, want := range []string{"--rate", "--script", "--hint", "--listen", "p99"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("no %q in:\n%s", want, stderr)
		}
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	for range 2 { // the second time there is nothing to do
		code, stdout, stderr := call(t, []string{"VALIDATOR_GW_DATA=" + data}, "migrate")
		if code != 0 || !strings.Contains(stdout, "up to date") {
			t.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
	}
	if entries, err := os.ReadDir(data); err != nil || len(entries) == 0 {
		t.Errorf("no store in the data folder: %v", err)
	}
	blocked := file(t, "data", "a file where a folder should be")
	if code, _, stderr := call(t, []string{"VALIDATOR_GW_DATA=" + blocked}, "migrate"); code != 1 || stderr == "" {
		t.Errorf("code %d, stderr %q, want 1 and why", code, stderr)
	}
}

func TestHealthcheck(t *testing.T) {
	t.Parallel()
	status := func(code int) string {
		ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/readyz" {
				w.WriteHeader(code)
			}
		})}
		go func() { _ = s.Serve(ln) }()
		t.Cleanup(func() { s.Close() })
		return ln.Addr().String()
	}
	ready, starting := status(200), status(503)
	silent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0") // accepts, never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	_, port, _ := net.SplitHostPort(ready)

	tests := []struct {
		name    string
		environ []string
		args    []string
		code    int
	}{
		{"alive", nil, []string{"--listen", ready}, 0},
		{"ready", nil, []string{"--ready", "--listen", ready}, 0},
		{"alive and not ready", nil, []string{"--listen", starting}, 0},
		{"not ready", nil, []string{"--ready", "--listen", starting}, 1},
		{"silent", nil, []string{"--listen", silent.Addr().String(), "--timeout", "50ms"}, 1},
		{"variable", []string{"VALIDATOR_GW_LISTEN=" + ready}, nil, 0},
		{"every interface", []string{"VALIDATOR_GW_LISTEN=:" + port}, nil, 0},
		{"every interface, written out", []string{"VALIDATOR_GW_LISTEN=0.0.0.0:" + port}, nil, 0},
		{"file", []string{"VALIDATOR_GW_CONFIG=" + file(t, "s.yaml", "listen: "+ready+"\n")}, nil, 0},
		{"flag above variable", []string{"VALIDATOR_GW_LISTEN=" + starting}, []string{"--ready", "--listen", ready}, 0},
		{"not its business", []string{"VALIDATOR_GW_RETRY_BASE=x", "VALIDATOR_GW_LISTEN=" + ready}, nil, 0},
		{"a proxy in the environment", []string{"HTTP_PROXY=http://127.0.0.1:1", "VALIDATOR_GW_LISTEN=" + ready}, nil, 0},
		{"any port", nil, []string{"--listen", ":0"}, 2},
		{"no address", nil, []string{"--listen", "8080"}, 2},
		{"no time", nil, []string{"--listen", ready, "--timeout", "0s"}, 2},
	}
	for _, tc := range tests {
		if code, stdout, stderr := call(t, tc.environ, append([]string{"healthcheck"}, tc.args...)...); code != tc.code {
			t.Errorf("%s: code %d, want %d; %s%s", tc.name, code, tc.code, stdout, stderr)
		}
	}
}

// The rules of stopping, with exact times.
func TestUntilStopped(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	// obedient ends a second after it was asked to.
	obedient := func(ctx context.Context) error {
		<-ctx.Done()
		time.Sleep(time.Second)
		return nil
	}
	// deaf ends after a minute, whatever it is asked.
	deaf := func(context.Context) error { time.Sleep(time.Minute); return nil }
	tests := []struct {
		name    string
		signals []os.Signal   // one a second
		hangup  time.Duration // what a reload takes; 0: none
		work    func(context.Context) error
		took    time.Duration
		err     string
		hangups int
	}{
		{"ends by itself", nil, 0, func(context.Context) error { return nil }, 0, "", 0},
		{"fails by itself", nil, 0, func(context.Context) error { return broken }, 0, "broken", 0},
		{"SIGTERM", []os.Signal{syscall.SIGTERM}, 0, obedient, 2 * time.Second, "", 0},
		{"SIGINT", []os.Signal{os.Interrupt}, 0, obedient, 2 * time.Second, "", 0},
		{"while starting", []os.Signal{os.Interrupt}, 0,
			func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }, time.Second, "", 0},
		{"twice", []os.Signal{os.Interrupt, os.Interrupt}, 0, deaf, 2 * time.Second, "stopped at once", 0},
		{"deaf", []os.Signal{syscall.SIGTERM}, 0, deaf, 19 * time.Second, "not stopped within 18s", 0},
		{"SIGHUP reloads", []os.Signal{syscall.SIGHUP, syscall.SIGHUP, syscall.SIGTERM}, time.Millisecond, obedient, 4 * time.Second, "", 2},
		{"a reload that hangs", []os.Signal{syscall.SIGHUP, syscall.SIGHUP, syscall.SIGHUP, syscall.SIGHUP, syscall.SIGTERM}, 30 * time.Second,
			obedient, 6 * time.Second, "", 1},
		{"SIGHUP stops what has nothing to reload", []os.Signal{syscall.SIGHUP}, 0, obedient, 2 * time.Second, "", 0},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				signals := make(chan os.Signal, 2)
				p := &program{stdout: &output{}, stderr: &output{}, signals: signals}
				go func() {
					for _, s := range tc.signals {
						time.Sleep(time.Second)
						signals <- s
					}
				}()
				var hangups atomic.Int64
				var onHangup func(context.Context)
				if tc.hangup > 0 {
					onHangup = func(context.Context) { hangups.Add(1); time.Sleep(tc.hangup) }
				}
				start := time.Now()
				err := p.untilStopped(t.Context(), onHangup, tc.work)
				if took := time.Since(start); took != tc.took {
					t.Errorf("took %v, want %v", took, tc.took)
				}
				if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				if n := hangups.Load(); n != int64(tc.hangups) {
					t.Errorf("%d reloads, want %d", n, tc.hangups)
				}
				time.Sleep(time.Minute) // the deaf end too, and with them the bubble
			})
		})
	}
}

// post sends JSON and returns the body.
func post(t *testing.T, url, body string) string {
	t.Helper()
	_, _, text := exchange(t, http.MethodPost, url, body)
	return text
}

// fetch returns the body of a GET.
func fetch(t *testing.T, url string) string {
	t.Helper()
	_, _, text := exchange(t, http.MethodGet, url, "")
	return text
}

// exchange sends one request and returns status, header and body of its answer.
func exchange(t *testing.T, method, url, body string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, b.String()
}
