package simulator_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"validator-gw/internal/verimail/simulator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "0123456789abcdef0123456789abcdef"

func newSimulator(t *testing.T, cfg simulator.Config) *simulator.Simulator {
	t.Helper()
	s, err := simulator.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// answer is what a call came to, read to the end.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // of the call or of reading the body
	took   time.Duration
}

// word is the result in the body; empty if there is none, or no JSON.
func (a answer) word() string {
	var v struct {
		Result string `json:"result"`
	}
	if json.Unmarshal([]byte(a.body), &v) != nil {
		return ""
	}
	return v.Result
}

func form(email, key string) string {
	return url.Values{"email": {email}, "key": {key}}.Encode()
}

// post calls the verify endpoint as the gateway does.
func post(ctx context.Context, rt http.RoundTripper, base, email string) answer {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v3/verify", strings.NewReader(form(email, testKey)))
	if err != nil {
		return answer{err: err}
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return do(rt, r)
}

func do(rt http.RoundTripper, r *http.Request) answer {
	began := time.Now()
	resp, err := rt.RoundTrip(r)
	if err != nil {
		return answer{err: err, took: time.Since(began)}
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	return answer{status: resp.StatusCode, header: resp.Header, body: string(body), err: err, took: time.Since(began)}
}

// simulated is the base URL for calls that go through a RoundTripper.
const simulated = "http://upstream.example"

func call(t *testing.T, s *simulator.Simulator, email string) answer {
	t.Helper()
	return post(t.Context(), s.RoundTripper(), simulated, email)
}

// callWithin gives up after d.
func callWithin(t *testing.T, s *simulator.Simulator, email string, d time.Duration) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return post(ctx, s.RoundTripper(), simulated, email)
}

func parseScript(t *testing.T, text string) simulator.Script {
	t.Helper()
	script, err := simulator.ParseScript(text)
	if err != nil {
		t.Fatalf("ParseScript(%q): %v", text, err)
	}
	return script
}
