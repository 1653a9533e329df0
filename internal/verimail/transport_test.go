package verimail

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"validator-gw/internal/verdict"
)

// shedding is an HTTP/2 server that sheds every call (REFUSED_STREAM, RFC 9113 8.7), and counts them.
func shedding(t *testing.T) (base string, calls *atomic.Int64) {
	t.Helper()
	authority := httptest.NewTLSServer(http.NotFoundHandler())
	cert := authority.TLS.Certificates[0]
	authority.Close()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	calls = &atomic.Int64{}
	var all sync.WaitGroup
	t.Cleanup(func() { _ = ln.Close(); all.Wait() })
	serve := func(conn net.Conn) {
		defer conn.Close()
		if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		f := http2.NewFramer(conn, conn)
		_ = f.WriteSettings()
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				if !frame.IsAck() {
					_ = f.WriteSettingsAck()
				}
			case *http2.DataFrame: // the whole request is here
				if frame.StreamEnded() {
					calls.Add(1)
					_ = f.WriteRSTStream(frame.StreamID, http2.ErrCodeRefusedStream)
				}
			}
		}
	}
	all.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() { serve(conn) })
		}
	})
	return "https://" + ln.Addr().String(), calls
}

// Over HTTP/2 net/http asks again by itself, up to six times, when the server sheds a call. Those would be calls past the
// rate, the gates and the retry budget.
func TestNoResendOfAShedCall(t *testing.T) {
	t.Parallel()
	base, calls := shedding(t)
	transport := NewTransport(4)
	transport.TLSClientConfig.InsecureSkipVerify = true // the certificate is of another name
	t.Cleanup(transport.CloseIdleConnections)
	c := wired(t, http.NotFoundHandler(), func(cfg *Config) { cfg.URL, cfg.Transport = base, transport })
	out := c.Check(t.Context(), address(t, "ana"), generous(0))
	if out.Verdict.Reason != verdict.UpstreamError || outcomes(out) != verdict.AttemptNetwork {
		t.Errorf("%s %q", out.Verdict.Reason, outcomes(out))
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("the server saw the request %d times, want once", n)
	}
}

// One deadline is over all of a call: headers that do not come and a body that comes a byte at a time end
// with it.
func TestOneDeadlineOverAll(t *testing.T) {
	t.Parallel()
	body := strings.Repeat(" ", 1000) + `{"status":"success","result":"deliverable"}`
	tests := map[string]http.HandlerFunc{
		"headers": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // or the server does not notice that the client left
			<-r.Context().Done()
		},
		"body": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for i := range body {
				_, _ = io.WriteString(w, body[i:i+1])
				_ = http.NewResponseController(w).Flush()
				select {
				case <-tick.C:
				case <-r.Context().Done():
					return
				}
			}
		},
	}
	for name, handler := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := wired(t, handler, func(cfg *Config) {
				cfg.Tuning = func() Tuning {
					t := DefaultTuning()
					t.LateTimeout = 300 * time.Millisecond
					return t
				}
			})
			out := c.Check(t.Context(), address(t, "ana"), generous(2))
			if out.Verdict.Reason != verdict.UpstreamTimeout || outcomes(out) != verdict.AttemptTimeout {
				t.Errorf("%s %q, want one time-out", out.Verdict.Reason, outcomes(out))
			}
		})
	}
}

// As many connections are kept as calls may be in flight: none is opened anew while traffic is steady.
func TestPoolIsAsLargeAsTheTraffic(t *testing.T) {
	t.Parallel()
	const together = 100
	var conns atomic.Int64
	arrived := make(chan struct{}, together)
	release := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-release
		_, _ = io.WriteString(w, `{"status":"success","result":"deliverable"}`)
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	c := wired(t, http.NotFoundHandler(), func(cfg *Config) { cfg.URL = server.URL })
	for range 3 {
		var all sync.WaitGroup
		for range together {
			all.Go(func() {
				if out := c.Check(t.Context(), address(t, "ana"), generous(0)); !out.Final() {
					t.Errorf("%s", out.Verdict.Reason)
				}
			})
		}
		for range together {
			<-arrived
		}
		for range together {
			release <- struct{}{}
		}
		all.Wait()
	}
	if n := conns.Load(); n > together+5 {
		t.Errorf("%d connections for three times %d calls: they are not kept", n, together)
	}
}
