package verimail

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// logged makes a client that logs at level in JSON, and returns a reader of the lines of attempts.
func logged(t *testing.T, level slog.Level, change ...func(*Config)) (*rig, func() []map[string]any) {
	t.Helper()
	var text lockedBuffer
	change = append(change, func(c *Config) { c.Log = slog.New(slog.NewJSONHandler(&text, &slog.HandlerOptions{Level: level})) })
	r := newRig(t, simulator.Config{Key: testKey, P50: 20 * ms}, change...)
	return r, func() (lines []map[string]any) {
		t.Helper()
		for line := range strings.Lines(text.String()) {
			var m map[string]any
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err)
			}
			if m["msg"] == "upstream attempt" {
				delete(m, "time")
				delete(m, "msg")
				lines = append(lines, m)
			}
		}
		return lines
	}
}

func named(budget time.Duration, retries int) verdict.Plan {
	p := plan(budget, retries)
	p.RequestID, p.Fingerprint = "req-17", "abc123"
	return p
}

// Each attempt is one line that says all there is to know of it.
func TestAttemptLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, lines := logged(t, slog.LevelDebug)
		r.Check(t.Context(), address(t, "recover-after-1"), named(650*ms, 2))
		r.Check(t.Context(), address(t, "throttled-60"), named(650*ms, 2))
		p := named(15*time.Second, 0)
		p.Class, p.RequestID = verdict.Background, ""
		r.Check(t.Context(), address(t, "ana"), p)
		synctest.Wait()
		got := lines()
		ids := map[string]bool{}
		for _, l := range got {
			if id, _ := l["upstream_request_id"].(string); id != "" {
				ids[id] = true
				l["upstream_request_id"] = "given"
			}
		}
		base := map[string]any{"request_id": "req-17", "fingerprint": "abc123", "class": "interactive", "attempt": 1.0, "http_status": 200.0,
			"upstream_request_id": "given", "latency_ms": 20.0, "backoff_ms": 0.0, "gate": "open", "breaker": "closed"}
		with := func(change map[string]any) map[string]any {
			m := maps.Clone(base)
			maps.Copy(m, change)
			return m
		}
		notSent := map[string]any{"level": "DEBUG", "request_id": "", "fingerprint": "abc123", "class": "background", "attempt": 1.0,
			"outcome": "not_sent", "reason": "upstream_throttled", "backoff_ms": 0.0, "gate": "not_before", "breaker": "closed"}
		want := []map[string]any{
			with(map[string]any{"level": "INFO", "outcome": "fault", "http_status": 503.0, "latency_ms": 0.0}), // faults come at once
			with(map[string]any{"level": "DEBUG", "outcome": "answered", "attempt": 2.0, "backoff_ms": 160.0}),
			with(map[string]any{"level": "INFO", "outcome": "throttled", "http_status": 429.0, "latency_ms": 0.0, "gate": "not_before"}),
			notSent,
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("lines (-want +got):\n%s", d)
		}
		if len(ids) != 3 {
			t.Errorf("%d upstream request ids, want three", len(ids))
		}
	})
}

// At the usual level there is a line for what is no verdict, whichever it is, and none for the rest.
func TestAttemptLineLevels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, lines := logged(t, slog.LevelInfo)
		for _, local := range []string{"ana", "hardbounce", "softbounce", "html", "hang", "reset", "bad-request", "contradictory", "server-error", "forbidden", "ben"} {
			r.Check(t.Context(), address(t, local), named(650*ms, 0))
			time.Sleep(time.Minute)
		}
		var outcomes []string
		for _, l := range lines() {
			outcomes = append(outcomes, l["outcome"].(string))
		}
		want := []string{"transient", "bad_body", "timeout", "network", "refused", "unusable", "fault", "quota"}
		if !slices.Equal(outcomes, want) {
			t.Errorf("lines for %v, want %v", outcomes, want)
		}
	})
}

// A late attempt is one line, at its end.
func TestAttemptLineOfALateOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, lines := logged(t, slog.LevelDebug)
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.Check(context.WithoutCancel(t.Context()), address(t, "delay-5000"), named(650*ms, 2))
		}()
		time.Sleep(4 * time.Second)
		if n := len(lines()); n != 0 {
			t.Errorf("%d lines while it is on the wire", n)
		}
		<-done
		if got := lines(); len(got) != 1 || got[0]["latency_ms"] != 5000.0 || got[0]["outcome"] != "answered" {
			t.Errorf("lines %v, want one of 5 s", got)
		}
	})
}

// Neither the address nor the key is in any of them, whatever the upstream answers.
func TestAttemptLineHoldsNoAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{Key: testKey})
		n := 0
		for _, name := range simulator.MagicNames() {
			a, err := normalize.Parse(name + "+tell-tale@" + domain)
			if err != nil {
				t.Fatal(err)
			}
			n += r.Check(t.Context(), a, named(650*ms, 1)).Sent
			time.Sleep(2 * time.Hour)
		}
		text := r.log.String()
		if got := strings.Count(text, `msg="upstream attempt"`); got < n || n < 20 {
			t.Errorf("%d lines for %d calls", got, n)
		}
		for _, secret := range []string{testKey, "tell-tale", "tell.tale", domain} {
			if i := strings.Index(strings.ToLower(text), secret); i >= 0 {
				t.Errorf("%q leaks: …%s…", secret, text[max(0, i-80):min(len(text), i+80)])
			}
		}
	})
}
