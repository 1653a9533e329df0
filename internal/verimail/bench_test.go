package verimail

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"validator-gw/internal/ratelimit"
)

// BenchmarkCheck is what Check costs on a healthy upstream beside the bare call that it makes: calls of the two take
// turns against one server, and the medians and their difference are reported. The log is off, at its usual level, and
// with a line for each attempt.
func BenchmarkCheck(b *testing.B) {
	for _, tt := range []struct {
		name string
		log  *slog.Logger
	}{
		{"log=off", nil},
		{"log=info", slog.New(slog.NewJSONHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelInfo}))},
		{"log=debug", slog.New(slog.NewJSONHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}))},
	} {
		b.Run(tt.name, func(b *testing.B) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"status":"success","result":"deliverable","deliverable":true}`)
			}))
			b.Cleanup(server.Close)
			limits := ratelimit.NewLocal(func() ratelimit.Limits { return ratelimit.Limits{Rate: 1e6, Burst: 1e6, Reserve: 0.5, Floor: 0.1} })
			c := wired(b, http.NotFoundHandler(), func(cfg *Config) { cfg.URL, cfg.Limiter, cfg.Log = server.URL, limits, tt.log })
			transport := NewTransport(64)
			b.Cleanup(transport.CloseIdleConnections)
			bare := &http.Client{Transport: transport}
			addr := address(b, "ana")
			p := named(0, 2)
			check := func() {
				p.Until = time.Now().Add(650 * time.Millisecond)
				if out := c.Check(b.Context(), addr, p); !out.Final() {
					b.Fatal(out.Verdict.Reason)
				}
			}
			call := func() {
				if !bareCall(b, bare, server.URL) {
					b.Fatal("no answer")
				}
			}
			var tookCheck, tookCall []time.Duration
			timed := func(f func(), took *[]time.Duration) {
				began := time.Now()
				f()
				*took = append(*took, time.Since(began))
			}
			for b.Loop() {
				timed(call, &tookCall)
				timed(check, &tookCheck)
			}
			slices.Sort(tookCheck)
			slices.Sort(tookCall)
			micro := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
			mid := len(tookCheck) / 2
			b.ReportMetric(micro(tookCall[mid]), "bare-µs")
			b.ReportMetric(micro(tookCheck[mid]), "check-µs")
			b.ReportMetric(micro(tookCheck[mid]-tookCall[mid]), "added-µs")
		})
	}
}

// bareCall asks with a deadline and reads the answer, as anybody would.
func bareCall(b *testing.B, client *http.Client, base string) bool {
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
	defer cancel()
	form := url.Values{"email": {"ana@" + domain}, "key": {testKey}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v3/verify", strings.NewReader(form))
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := client.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	var answer struct {
		Result string `json:"result"`
	}
	err = json.NewDecoder(res.Body).Decode(&answer)
	_, _ = io.Copy(io.Discard, res.Body)
	return err == nil && answer.Result == "deliverable"
}
