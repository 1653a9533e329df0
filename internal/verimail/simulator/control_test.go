package simulator_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"validator-gw/internal/verimail/simulator"
)

func request(t *testing.T, method, target, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestControlStats(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{})
	for _, local := range []string{"ana", "ana", "unavailable", "hardbounce.1"} {
		call(t, s, local+"@example.com")
	}
	var got map[string]any
	a := do(s.RoundTripper(), request(t, "GET", simulated+"/control/stats", ""))
	if err := json.Unmarshal([]byte(a.body), &got); err != nil || a.status != 200 {
		t.Fatalf("%d %q: %v", a.status, a.body, err)
	}
	want := map[string]any{
		"calls": 4.0, "billed": 3.0,
		"by_address": map[string]any{"ana@example.com": 2.0, "hardbounce.1@example.com": 1.0},
		"calls_by_address": map[string]any{
			"ana@example.com": 2.0, "unavailable@example.com": 1.0, "hardbounce.1@example.com": 1.0,
		},
		"by_status": map[string]any{"200": 3.0, "503": 1.0},
		"in_flight": 0.0, "untracked": 0.0, "mode": "healthy",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("stats (-want +got):\n%s", d)
	}
}

// An unused simulator shows objects, not null.
func TestControlStatsEmpty(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{})
	a := do(s.RoundTripper(), request(t, "GET", simulated+"/control/stats", ""))
	if !strings.HasPrefix(a.body, `{"calls":0,"billed":0,"by_address":{}`) {
		t.Errorf("stats = %s", a.body)
	}
}

func TestControlMode(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, query, body string
		status            int
		want              string // the mode then, or a part of the error
	}{
		{"JSON", "", `{"mode":"hang"}`, 200, "hang"},
		{"a form", "", "mode=hang", 200, "hang"},
		{"a query", "?mode=hang", "", 200, "hang"},
		{
			"JSON with options", "", ` {"mode":"throttle","retry_after":5,"hint":"date"}`, 200,
			"throttle retry-after=5s hint=date",
		},
		{"JSON with texts", "", `{"mode":"429","retry_after":"5"}`, 200, "throttle retry-after=5s"},
		{"form with options", "", "mode=error503&retry_after=5&share=0.5", 200, "error503 retry-after=5s share=0.5"},
		{"latency", "", `{"mode":"slow","latency":"800ms"}`, 200, "slow p50=800ms"},
		{"percentiles", "", `{"mode":"slow","p50":"800ms","p99":"2s"}`, 200, "slow p50=800ms p99=2s"},
		{"a script", "", "script=hang 30s, 429", 200, "hang"},
		{"a script in JSON", "", `{"script":"quota 30s, healthy"}`, 200, "quota"},
		{"unknown", "", "mode=sleepy", 400, "one of healthy, slow, hang, reset, drip, error500"},
		{"none", "", "", 400, "one of healthy, slow, hang, reset, drip, error500"},
		{"empty JSON", "", "{}", 400, "one of healthy"},
		{"bad JSON", "", `{"mode":`, 400, "not a JSON object"},
		{"two values", "", `{"mode":"hang"}{}`, 400, "more after"},
		{"a list", "", `{"mode":["hang"]}`, 400, "text or a number"},
		{"unknown option", "", `{"mode":"hang","colour":"red"}`, 400, "unknown option"},
		{"a latency without unit", "", `{"mode":"slow","latency":800}`, 400, "option latency"},
		{"twice", "", "mode=hang&mode=reset", 400, "given twice"},
		{"query and body", "?mode=hang", "mode=reset", 400, "given twice"},
		{"two spellings", "", `{"mode":"429","retry_after":1,"retry-after":2}`, 400, "given twice"},
		{"contradiction", "", "mode=hang&retry_after=5", 400, "retry-after is for"},
		{"script and mode", "", "mode=hang&script=hang", 400, "goes alone"},
		{"bad script", "", "script=hang, hang", 400, "only the last"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSimulator(t, simulator.Config{Script: parseScript(t, "auth")})
			a := do(s.RoundTripper(), request(t, "POST", simulated+"/control/mode"+tt.query, tt.body))
			var got struct{ Mode, Error string }
			if err := json.Unmarshal([]byte(a.body), &got); err != nil {
				t.Fatalf("%q: %v", a.body, err)
			}
			if a.status != tt.status {
				t.Errorf("status = %d %s, want %d", a.status, a.body, tt.status)
			}
			if tt.status != 200 {
				if !strings.Contains(got.Error, tt.want) || s.Mode().Fault != simulator.Auth {
					t.Errorf("error %q, mode %v; want an error with %q and the mode as it was", got.Error, s.Mode(), tt.want)
				}
				return
			}
			if got.Mode != tt.want || s.Mode().String() != tt.want {
				t.Errorf("mode = %q, %q; want %q", got.Mode, s.Mode(), tt.want)
			}
		})
	}
}

func TestControlReset(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{Rate: 0.001, Burst: 2})
	call(t, s, "flip-after-1@example.com")
	call(t, s, "flip-after-1@example.com")
	do(s.RoundTripper(), request(t, "POST", simulated+"/control/mode", "mode=auth"))
	a := do(s.RoundTripper(), request(t, "POST", simulated+"/control/reset", ""))
	if a.status != 200 || a.body != `{"mode":"healthy"}`+"\n" {
		t.Errorf("reset: %d %s", a.status, a.body)
	}
	if st := s.Stats(); st.Calls != 0 || st.Billed != 0 || len(st.ByAddress) != 0 || len(st.ByStatus) != 0 {
		t.Errorf("after reset: %+v", st)
	}
	if calls := s.Calls(); len(calls) != 0 {
		t.Errorf("after reset: a log of %d", len(calls))
	}
	if a := call(t, s, "flip-after-1@example.com"); a.word() != "unknown" {
		t.Errorf("after reset: %d %q, want an unflipped address and a full bucket", a.status, a.word())
	}
}

func TestControlPathsAndMethods(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{})
	tests := []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "/control/mode", 200, ""},
		{"POST", "/control/stats", 405, "GET"},
		{"POST", "/livez", 405, "GET"},
		{"GET", "/livez", 200, ""},
		{"GET", "/control/reset", 405, "POST"},
		{"DELETE", "/control/mode", 405, "GET, POST"},
		{"GET", "/", 404, ""},
		{"POST", "/v3/verify/", 404, ""},
		{"POST", "/moved", 404, ""},
	}
	for _, tt := range tests {
		a := do(s.RoundTripper(), request(t, tt.method, simulated+tt.path, ""))
		if a.status != tt.status || a.header.Get("Allow") != tt.allow {
			t.Errorf("%s %s: %d, Allow %q; want %d, %q",
				tt.method, tt.path, a.status, a.header.Get("Allow"), tt.status, tt.allow)
		}
	}
	big := do(s.RoundTripper(), request(t, "POST", simulated+"/control/mode", strings.Repeat("x", 65<<10)))
	if big.status != 413 {
		t.Errorf("65 KiB: %d, want 413", big.status)
	}
	if st := s.Stats(); st.Calls != 0 || st.InFlight != 0 {
		t.Errorf("stats = %+v, want no calls", st)
	}
}
