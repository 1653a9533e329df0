package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
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

// While the breaker is half-open and reviews wait, the loop's checks are the probes: a sign-up is answered without one.
func TestReviewsProbeFirst(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		sim, err := simulator.New(simulator.Config{Key: plantedKey, P50: 50 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
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
		ask := func(n int) validate.Answer {
			a, err := g.service.Validate(t.Context(), validate.Request{Raw: fmt.Sprintf("ana%d@example.com", n)})
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
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
		time.Sleep(5 * time.Second) // the bucket starts empty
		if err := sim.SetMode(simulator.Mode{Fault: simulator.Error500}); err != nil {
			t.Fatal(err)
		}
		for n := 0; g.client.Standing().Breaker != "open"; n++ {
			ask(n)
			time.Sleep(300 * time.Millisecond)
		}
		if err := sim.SetMode(simulator.Mode{}); err != nil {
			t.Fatal(err)
		}
		until("half-open")
		if a := ask(1000); a.Reason != verdict.CircuitOpen || a.Status != verdict.NeedsReview {
			t.Errorf("a sign-up while reviews wait: %s %s, want a review without a call", a.Status, a.Reason)
		}
		until("closed")
		if a := ask(1001); a.Status != verdict.Valid {
			t.Errorf("a sign-up once it is closed: %s %s", a.Status, a.Reason)
		}
		time.Sleep(time.Minute)
		if a := ask(1000); a.Status != verdict.Valid || a.Source != verdict.FromCache {
			t.Errorf("the review of the first a minute later: %s from %s, want settled", a.Status, a.Source)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		sim.Close()
	})
}
