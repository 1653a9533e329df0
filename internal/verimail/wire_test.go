package verimail

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// wired is a client that reaches a handler over real sockets by NewTransport.
func wired(t testing.TB, handler http.Handler, change ...func(*Config)) *Client {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	cfg := Config{
		Profile: ProfileVerimailV3, URL: server.URL, Key: testKey, Limiter: &allowance{}, Rand: half,
		Seal: func(text string) []byte { return []byte(text) },
	}
	for _, f := range change {
		f(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	t.Cleanup(c.Close) // first, or the server waits for connections that are kept
	return c
}

func newSimulator(t testing.TB) *simulator.Simulator {
	t.Helper()
	s, err := simulator.New(simulator.Config{Key: testKey})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// generous is a plan that a slow machine does not spoil.
func generous(retries int) verdict.Plan { return plan(30*time.Second, retries) }

func TestOverSockets(t *testing.T) {
	t.Parallel()
	tests := []struct {
		local  string
		status verdict.Status
		reason verdict.Reason
		calls  int
	}{
		{"ana+tag", verdict.Valid, verdict.MailboxAccepted, 1},
		{"hardbounce", verdict.Invalid, verdict.MailboxNotFound, 1},
		{"reset", verdict.NeedsReview, verdict.UpstreamError, 3},
		{"recover-after-2", verdict.Valid, verdict.MailboxAccepted, 3},
		{"cut-off", verdict.NeedsReview, verdict.UpstreamError, 1},
		{"truncated", verdict.NeedsReview, verdict.UpstreamBadResponse, 1},
		{"oversized", verdict.NeedsReview, verdict.UpstreamBadResponse, 1},
		{"html", verdict.NeedsReview, verdict.UpstreamBadResponse, 1},
		{"empty", verdict.NeedsReview, verdict.UpstreamBadResponse, 1},
		{"redirect", verdict.NeedsReview, verdict.UpstreamRefused, 1}, // not followed: it would carry address and key along
		{"bad-request", verdict.NeedsReview, verdict.UpstreamRefused, 1},
		{"forbidden", verdict.NeedsReview, verdict.UpstreamQuota, 1},
	}
	for _, tt := range tests {
		t.Run(tt.local, func(t *testing.T) {
			t.Parallel()
			s := newSimulator(t)
			var paths atomic.Int64
			c := wired(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/v3/verify" {
					paths.Add(1)
				}
				s.ServeHTTP(w, r)
			}))
			out := c.Check(t.Context(), address(t, tt.local), generous(2))
			if out.Verdict.Status != tt.status || out.Verdict.Reason != tt.reason || out.Sent != tt.calls {
				t.Errorf("%s %s after %d calls, want %s %s after %d", out.Verdict.Status, out.Verdict.Reason, out.Sent, tt.status, tt.reason, tt.calls)
			}
			if n := s.Stats().CallsByAddress[tt.local+"@"+domain]; n != int64(tt.calls) || paths.Load() != 0 {
				t.Errorf("%d calls for the address, %d to other paths; want %d and none", n, paths.Load(), tt.calls)
			}
		})
	}
}

// net/http sends some requests again by itself when a kept connection turns out dead. Ours are billed: the server
// must see one.
func TestNoResendOnAReusedConnection(t *testing.T) {
	t.Parallel()
	s := newSimulator(t)
	var conns atomic.Int64
	c := wired(t, s, func(cfg *Config) {
		transport := NewTransport(1)
		dial := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conns.Add(1)
			return dial(ctx, network, addr)
		}
		cfg.Transport = transport
	})
	for _, local := range []string{"ana", "ben", "reset"} {
		c.Check(t.Context(), address(t, local), generous(0))
	}
	if conns.Load() != 1 {
		t.Fatalf("%d connections: the one that resets was not a reused one", conns.Load())
	}
	if n := s.Stats().CallsByAddress["reset@"+domain]; n != 1 {
		t.Errorf("the server saw the request %d times, want once", n)
	}
}

func TestConnectionsAreKept(t *testing.T) {
	t.Parallel()
	s := newSimulator(t)
	var conns atomic.Int64
	c := wired(t, s, func(cfg *Config) {
		transport := NewTransport(4)
		dial := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conns.Add(1)
			return dial(ctx, network, addr)
		}
		cfg.Transport = transport
	})
	for _, local := range []string{"ana", "hardbounce", "server-error", "truncated", "unknown", "bad-request", "ana"} {
		c.Check(t.Context(), address(t, local), generous(0))
	}
	if conns.Load() != 1 {
		t.Errorf("%d connections for seven calls, want one", conns.Load())
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + ln.Addr().String()
	_ = ln.Close()
	c := wired(t, http.NotFoundHandler(), func(cfg *Config) { cfg.URL = base })
	out := c.Check(t.Context(), address(t, "ana"), generous(2))
	if out.Verdict.Reason != verdict.UpstreamError || outcomes(out) != "network network network" {
		t.Errorf("%s %q", out.Verdict.Reason, outcomes(out))
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := newSimulator(t)
	server := httptest.NewUnstartedServer(s)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it complains of the client that does not trust it
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	var major atomic.Int64
	use := func(pool *x509.CertPool) *Client {
		transport := NewTransport(4)
		transport.TLSClientConfig.RootCAs = pool
		c := wired(t, s, func(cfg *Config) {
			cfg.URL = server.URL
			cfg.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
				res, err := transport.RoundTrip(r)
				if err == nil {
					major.Store(int64(res.ProtoMajor))
				}
				return res, err
			})
		})
		t.Cleanup(transport.CloseIdleConnections)
		return c
	}
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	if out := use(pool).Check(t.Context(), address(t, "ana"), generous(0)); !out.Final() || major.Load() != 2 {
		t.Errorf("final %v over HTTP/%d; want a verdict over HTTP/2", out.Final(), major.Load())
	}
	out := use(x509.NewCertPool()).Check(t.Context(), address(t, "ana"), generous(1))
	if out.Verdict.Reason != verdict.UpstreamError || outcomes(out) != "network network" {
		t.Errorf("unknown authority: %s %q", out.Verdict.Reason, outcomes(out))
	}
	if NewTransport(1).HTTP2.SendPingTimeout <= 0 {
		t.Error("a dead HTTP/2 connection would not be noticed")
	}
	if NewTransport(1).TLSClientConfig.MinVersion != tls.VersionTLS12 {
		t.Error("the least version of TLS is not said")
	}
}

// The address and the key appear in no error, log line, metric or outcome, whatever goes wrong.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	names := append(simulator.MagicNames(), "delay-3000", "status-404", "status-502", "flip-after-1", "recover-after-1", "throttled-5", "unavailable-5")
	broken := map[string]error{
		"url error":  &url.Error{Op: "Post", URL: "http://h/?email=tell-tale%40corp-mail.com&key=" + testKey, Err: errors.New("tell-tale@corp-mail.com")},
		"plain":      fmt.Errorf("dial with %s for tell-tale@corp-mail.com", testKey),
		"panic":      nil,
		"bad header": nil,
	}
	check := func(t *testing.T, r *rig, outs []verdict.Outcome) {
		t.Helper()
		families, err := r.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for _, f := range families {
			text.WriteString(f.String())
		}
		for _, out := range outs {
			b, err := json.Marshal(out)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&text, "%s\n%+v\n", b, out)
		}
		text.WriteString(r.log.String())
		fmt.Fprintf(&text, "%+v %s", r.Standing(), r.Host())
		for _, secret := range []string{testKey, "tell-tale", "tell.tale"} {
			if i := strings.Index(strings.ToLower(text.String()), secret); i >= 0 {
				t.Errorf("%q leaks: …%s…", secret, text.String()[max(0, i-80):min(text.Len(), i+80)])
			}
		}
	}
	t.Run("answers", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{Key: testKey}, func(c *Config) { c.Seal = func(string) []byte { return []byte("sealed") } })
			var outs []verdict.Outcome
			for _, name := range names {
				if name == "delay" || name == "status" || strings.HasSuffix(name, "-after") {
					continue
				}
				a, err := normalize.Parse(name + "+tell-tale@" + domain)
				if err != nil {
					t.Fatal(err)
				}
				outs = append(outs, r.Check(t.Context(), a, generous(3)))
				time.Sleep(2 * time.Hour)
			}
			sent := 0
			for _, out := range outs {
				sent += out.Sent
			}
			if sent < len(outs) {
				t.Errorf("%d calls for %d addresses: some were not tried", sent, len(outs))
			}
			if !strings.Contains(r.log.String(), "upstream") {
				t.Error("the log is empty: nothing was scanned")
			}
			check(t, r, outs)
		})
	})
	for name, fault := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, simulator.Config{}, func(c *Config) {
					c.Transport = roundTrip(func(q *http.Request) (*http.Response, error) {
						switch name {
						case "panic":
							panic("tell-tale@corp-mail.com " + testKey)
						case "bad header":
							return &http.Response{StatusCode: 200, Header: http.Header{"X-Request-Id": {"tell-tale@corp-mail.com"}},
								Body: io.NopCloser(iotestErr{fmt.Errorf("tell-tale@corp-mail.com %s", testKey)}), Request: q}, nil
						}
						return nil, fault
					})
				})
				a, err := normalize.Parse("tell-tale@" + domain)
				if err != nil {
					t.Fatal(err)
				}
				check(t, r, []verdict.Outcome{r.Check(t.Context(), a, generous(3))})
			})
		})
	}
}

type iotestErr struct{ err error }

func (e iotestErr) Read([]byte) (int, error) { return 0, e.err }

// A panic in the transport is one bad attempt, and everything that it held is given back.
func TestPanicIsAnAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{}, func(c *Config) {
			c.Transport = roundTrip(func(*http.Request) (*http.Response, error) { panic("boom") })
		})
		out := r.ask("ana", 2)
		synctest.Wait()
		if out.Verdict.Reason != verdict.UpstreamBadResponse || out.Cause != verdict.CauseUnusable || out.Sent != 1 {
			t.Errorf("%s by %s after %d calls", out.Verdict.Reason, out.Cause, out.Sent)
		}
		if r.inFlight.Load() != 0 || r.metric("provider_requests_in_flight") != 0 || r.health() != (health{excluded: 1}) {
			t.Errorf("in flight %d, the breaker was told %+v", r.inFlight.Load(), r.health())
		}
	})
}

// Every series is there, at zero, before anything happens; and after a story it says what happened.
func TestMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		for _, o := range verdict.AttemptOutcomes {
			if o != verdict.AttemptNotSent && o != verdict.AttemptLate && r.metric("provider_attempts_total", "outcome", o) != 0 {
				t.Errorf("attempts %s do not start at 0", o)
			}
		}
		for _, f := range hintForms {
			if r.metric("provider_rate_limited_total", "retry_after", f) != 0 {
				t.Errorf("throttles %s do not start at 0", f)
			}
		}
		r.ask("ana", 2)
		r.ask("recover-after-1", 2)
		r.ask("throttled-1", 0)
		time.Sleep(time.Minute)
		r.ask("throttled-nonsense", 0)
		r.ask("softbounce", 2)
		want := map[[3]string]float64{
			{"provider_attempts_total", "outcome", verdict.AttemptAnswered}:  2,
			{"provider_attempts_total", "outcome", verdict.AttemptFault}:     1,
			{"provider_attempts_total", "outcome", verdict.AttemptThrottled}: 2,
			{"provider_attempts_total", "outcome", verdict.AttemptTransient}: 1,
			{"provider_rate_limited_total", "retry_after", hintSeconds}:      1,
			{"provider_rate_limited_total", "retry_after", hintInvalid}:      1,
			{"provider_attempt_duration_seconds", "provider", "verimail_v3"}: 6,
			{"provider_request_retries", "result", "success"}:                2,
			{"provider_request_retries", "result", "failure"}:                3,
			{"provider_request_backoff_seconds", "result", "success"}:        2,
			{"provider_giveups_total", "reason", giveupMaxAttempts}:          2,
			{"provider_giveups_total", "reason", giveupNotRetryable}:         1,
		}
		for k, n := range want {
			if got := r.metric(k[0], k[1], k[2]); got != n {
				t.Errorf("%v = %v, want %v", k, got, n)
			}
		}
	})
}
