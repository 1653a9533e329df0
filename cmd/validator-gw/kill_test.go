package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"validator-gw/internal/secret"
	"validator-gw/internal/testenv"
	"validator-gw/internal/verimail/simulator"
)

// served is the program, run for real so that it can be killed for real.
type served struct {
	t            *testing.T
	cmd          *exec.Cmd
	url, metrics string
}

// serveProcess runs "validator-gw serve" and waits until it says where it listens.
func serveProcess(t *testing.T, env []string, args ...string) *served {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"serve"}, args...)...)
	cmd.Env = append(env, asProgram+"=1", "VALIDATOR_GW_LISTEN=127.0.0.1:0", "VALIDATOR_GW_METRICS_LISTEN=127.0.0.1:0",
		"VALIDATOR_GW_LOG_FORMAT=text")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &served{t: t, cmd: cmd}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("log of the program:\n%s", text[max(0, len(text)-4000):])
		}
		_ = log.Close()
	})
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), "listening http://"); ok {
			host, rest, _ := strings.Cut(rest, " ")
			p.url, p.metrics = "http://"+host, strings.Trim(strings.TrimPrefix(strings.TrimSpace(rest), "(metrics "), ")")
			go func() { _, _ = io.Copy(io.Discard, stdout) }()
			return p
		}
	}
	text, _ := os.ReadFile(log.Name())
	t.Fatalf("the program ended without listening: %s", text)
	return nil
}

// kill is kill -9; a second one is nothing.
func (p *served) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

func (p *served) call(method, path string, form url.Values) (code int, id, status string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), method, p.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		p.t.Error(err)
		return
	}
	req.Header.Set("Authorization", "Bearer client-key")
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Error(err)
		return
	}
	defer res.Body.Close()
	var a struct {
		ID     string `json:"id"`
		Status any    `json:"status"`
	}
	if err := json.NewDecoder(res.Body).Decode(&a); err != nil {
		p.t.Error(err)
	}
	return res.StatusCode, a.ID, fmt.Sprint(a.Status)
}

// TestKilledBetweenOutageAndRecovery: what was accepted while the upstream hung is there after kill -9, and is settled
// once the upstream is well, without anyone asking.
func TestKilledBetweenOutageAndRecovery(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"sqlite", "postgres"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			sim, err := simulator.New(simulator.Config{Key: "upstream-key", MaxHang: 20 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- sim.Run(ctx, l) }()
			t.Cleanup(func() { cancel(); sim.Close(); <-ended })

			env := []string{"PATH=" + os.Getenv("PATH"), "VALIDATOR_GW_DATA=" + t.TempDir(),
				"VALIDATOR_GW_UPSTREAM_URL=http://" + l.Addr().String(), "VALIDATOR_GW_UPSTREAM_KEY=upstream-key",
				"VALIDATOR_GW_SECRET=" + secret.Generate().Reveal(), "VALIDATOR_GW_API_KEY=client-key",
				"VALIDATOR_GW_UPSTREAM_RATE=100/s", "VALIDATOR_GW_UPSTREAM_BURST=100", "VALIDATOR_GW_MIGRATE=true"}
			if store == "postgres" {
				env = append(env, "DATABASE_URL="+testenv.Postgres(t))
			}
			p := serveProcess(t, env)
			if err := sim.SetMode(simulator.Mode{Fault: simulator.Hang}); err != nil {
				t.Fatal(err)
			}
			ids := make([]string, 100)
			var wg sync.WaitGroup
			for i := range ids {
				wg.Go(func() {
					form := url.Values{"email": {fmt.Sprintf("person%d@example.com", i)}}
					code, id, status := p.call(http.MethodPost, "/validate", form)
					for tries := 1; code == http.StatusServiceUnavailable && tries < 100; tries++ { // a busy machine: nothing was promised
						code, id, status = p.call(http.MethodPost, "/validate", form)
					}
					if code != http.StatusAccepted || status != "needs_review" {
						t.Errorf("answer %d: %d %s, want 202 needs_review", i, code, status)
					}
					ids[i] = id
				})
			}
			wg.Wait()
			p.kill()
			if t.Failed() {
				return
			}

			if err := sim.SetMode(simulator.Mode{Fault: simulator.Healthy}); err != nil {
				t.Fatal(err)
			}
			p = serveProcess(t, env)
			deadline := time.NewTimer(90 * time.Second)
			defer deadline.Stop()
			tick := time.NewTicker(200 * time.Millisecond)
			defer tick.Stop()
			for i := 0; i < len(ids); {
				code, _, status := p.call(http.MethodGet, "/status/"+ids[i], nil)
				switch {
				case code == http.StatusNotFound:
					t.Fatalf("row %d is lost", i)
				case code == http.StatusOK && status == "valid":
					i++
					continue
				}
				select {
				case <-tick.C:
				case <-deadline.C:
					t.Fatalf("row %d is %s 90 s after the recovery", i, status)
				}
			}
		})
	}
}
