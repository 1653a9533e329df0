package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/settings"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// The line of an attempt can be joined with the line of the request that it was made for.
func TestAttemptsNameTheirRequest(t *testing.T) {
	t.Parallel()
	b := newBench(t, stores[0].set, simulator.Config{}, nil)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/validate", strings.NewReader(`{"email":"html@example.com"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", "signup-17")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	line := func(message string) (found map[string]any) {
		for text := range strings.Lines(b.log.String()) {
			var m map[string]any
			if json.Unmarshal([]byte(text), &m) == nil && m["msg"] == message && m["request_id"] == "signup-17" {
				found = m
			}
		}
		return found
	}
	b.eventually("the request is logged", func() bool { return line("request") != nil })
	attempt, request := line("upstream attempt"), line("request")
	if attempt == nil || attempt["outcome"] != "bad_body" || attempt["class"] != "interactive" || attempt["level"] != "INFO" {
		t.Fatalf("line of the attempt: %v", attempt)
	}
	if fp, _ := attempt["fingerprint"].(string); len(fp) != 6 || fp != request["fingerprint"] {
		t.Errorf("fingerprint %v in the attempt's line, %v in the request's", attempt["fingerprint"], request["fingerprint"])
	}
}

// silent is a listener to which nobody connects.
type silent struct{ closed chan struct{} }

func (s silent) Accept() (net.Conn, error) { <-s.closed; return nil, net.ErrClosed }
func (s silent) Addr() net.Addr            { return &net.IPAddr{} }
func (s silent) Close() error {
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	return nil
}

// inBubble tells a story of a gateway on SQLite and a simulated upstream in a bubble, without sockets.
func inBubble(t *testing.T, config simulator.Config, story func(t *testing.T, g *Gateway, sim *simulator.Simulator)) {
	t.Helper()
	t.Parallel()
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		config.Key = plantedKey
		sim, err := simulator.New(config)
		if err != nil {
			t.Fatal(err)
		}
		defer sim.Close()
		g, err := New(t.Context(), Config{Mode: "test", DataDir: folder, UpstreamURL: "http://upstream.invalid", UpstreamKey: plantedKey,
			UpstreamProfile: "verimail_v3", Secret: []byte(strings.Repeat("k", 32)), Version: "test"},
			Deps{Listener: silent{make(chan struct{})}, MetricsListener: silent{make(chan struct{})}, Transport: sim.RoundTripper(),
				Rand: func() float64 { return 0.5 }, Log: slog.New(slog.DiscardHandler), Settings: settings.NewLive(settings.Default(), "", nil, nil)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()
		time.Sleep(5 * time.Second) // the bucket starts empty
		story(t, g, sim)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// signUp posts the n-th address.
func signUp(t *testing.T, g *Gateway, n int) validate.Answer {
	t.Helper()
	a, err := g.service.Validate(t.Context(), validate.Request{Raw: fmt.Sprintf("ana%d@example.com", n)})
	if err != nil {
		t.Errorf("sign-up %d: %v", n, err)
	}
	return a
}

// While the breaker is half-open and reviews wait, the loop's checks are the probes: a sign-up is answered without one.
func TestReviewsProbeFirst(t *testing.T) {
	inBubble(t, simulator.Config{P50: 50 * time.Millisecond}, func(t *testing.T, g *Gateway, sim *simulator.Simulator) {
		until := func(state string) {
			t.Helper()
			for range 100_000 {
				if g.client.Standing().Breaker == state {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Fatalf("breaker is not %s after a quarter of an hour", state)
		}
		if err := sim.SetMode(simulator.Mode{Fault: simulator.Error500}); err != nil {
			t.Fatal(err)
		}
		for n := 0; g.client.Standing().Breaker != "open"; n++ {
			signUp(t, g, n)
			time.Sleep(300 * time.Millisecond)
		}
		if err := sim.SetMode(simulator.Mode{}); err != nil {
			t.Fatal(err)
		}
		until("half-open")
		if a := signUp(t, g, 1000); a.Reason != verdict.CircuitOpen || a.Status != verdict.NeedsReview {
			t.Errorf("a sign-up while reviews wait: %s %s, want a review without a call", a.Status, a.Reason)
		}
		until("closed")
		if a := signUp(t, g, 1001); a.Status != verdict.Valid {
			t.Errorf("a sign-up once it is closed: %s %s", a.Status, a.Reason)
		}
		time.Sleep(time.Minute)
		if a := signUp(t, g, 1000); a.Status != verdict.Valid || a.Source != verdict.FromCache {
			t.Errorf("the review of the first a minute later: %s from %s, want settled", a.Status, a.Source)
		}
	})
}

// A healthy upstream that takes 832 ms on average, for five minutes: most sign-ups get a review, and each review is settled
// by the late answer of its own call. None is asked twice, and the breaker stays closed.
func TestSlowUpstreamSettlesItsRows(t *testing.T) {
	inBubble(t, simulator.Config{P50: 800 * time.Millisecond, P99: 1600 * time.Millisecond, Seed: 7}, func(t *testing.T, g *Gateway, sim *simulator.Simulator) {
		draw := rand.New(rand.NewPCG(7, 2))
		var mu sync.Mutex
		var all sync.WaitGroup
		pending, asked, last := []string{}, 0, time.Now().Add(5*time.Minute)
		for ; ; asked++ {
			time.Sleep(time.Duration(draw.ExpFloat64() / 2 * float64(time.Second)))
			if time.Now().After(last) {
				break
			}
			n := asked
			all.Go(func() {
				if a := signUp(t, g, n); a.Status == verdict.NeedsReview {
					mu.Lock()
					defer mu.Unlock()
					pending = append(pending, a.ID)
				} else if a.Status != verdict.Valid {
					t.Errorf("sign-up: %s %s", a.Status, a.Reason)
				}
			})
		}
		all.Wait()
		time.Sleep(5 * time.Second) // less than the loop's first step for them, 30 s
		for _, id := range pending {
			a, err := g.service.Status(t.Context(), validate.Inquiry{ID: id})
			if err != nil || a.Status != verdict.Valid || a.Attempts != 1 {
				t.Errorf("review %s: %s after %d calls, %v; want valid after its own", id, a.Status, a.Attempts, err)
			}
		}
		if n := sim.Stats(); n.Calls != int64(asked) || n.Billed != int64(asked) {
			t.Errorf("%d calls, %d billed, for %d addresses", n.Calls, n.Billed, asked)
		}
		if asked < 500 || len(pending) < asked/2 || g.client.Standing().Breaker != "closed" {
			t.Errorf("%d of %d sign-ups got a review, breaker %s", len(pending), asked, g.client.Standing().Breaker)
		}
		t.Logf("%d of %d sign-ups got a review first", len(pending), asked)
	})
}
