package simulator_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/verimail/simulator"
)

// serve runs the simulator on a socket of its own until the test ends, and says where.
func serve(t *testing.T, s *simulator.Simulator) string {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	runOn(t, s, ln)
	return "http://" + ln.Addr().String()
}

func runOn(t *testing.T, s *simulator.Simulator, ln net.Listener) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

func newTransport(t *testing.T) *http.Transport {
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// Over real sockets the answers are those of the RoundTripper, and the connection is kept for the next call.
func TestServeKeepsConnections(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{})
	base, tr := serve(t, s), newTransport(t)
	for i, local := range []string{"ana", "hardbounce", "throttled-5", "unavailable", "truncated", "empty"} {
		reused := false
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused },
		})
		a := post(ctx, tr, base, local+"@example.com")
		bare := call(t, newSimulator(t, simulator.Config{}), local+"@example.com")
		if a.err != nil || a.status != bare.status || a.body != bare.body || reused != (i > 0) {
			t.Errorf("%s: %d %q, %v, reused %v; want %d %q", local, a.status, a.body, a.err, reused, bare.status, bare.body)
		}
		for _, name := range []string{"Content-Type", "Retry-After"} {
			if a.header.Get(name) != bare.header.Get(name) {
				t.Errorf("%s: %s = %q, want %q", local, name, a.header.Get(name), bare.header.Get(name))
			}
		}
	}
}

func TestServeGet(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{})
	base, tr := serve(t, s), newTransport(t)
	a := do(tr, request(t, "GET", base+"/v3/verify?"+form("catch-all+x@example.com", testKey), ""))
	if a.status != 200 || a.word() != "catch_all" || s.Stats().ByAddress["catch-all+x@example.com"] != 1 {
		t.Errorf("%d %q, %v", a.status, a.word(), s.Stats())
	}
	if a := do(tr, request(t, "GET", base+"/control/stats", "")); a.status != 200 ||
		!strings.HasPrefix(a.body, `{"calls":1,"billed":1,"by_address":{"catch-all+x@example.com":1}`) {
		t.Errorf("stats: %d %s", a.status, a.body)
	}
}

func TestServeFaults(t *testing.T) {
	t.Parallel()
	tests := []struct {
		local string
		err   error
		label string
	}{
		{"reset", syscall.ECONNRESET, "reset"},
		{"cut-off", io.ErrUnexpectedEOF, "200"},
		{"hang", io.EOF, "hang"}, // after MaxHang
	}
	for _, tt := range tests {
		t.Run(tt.local, func(t *testing.T) {
			t.Parallel()
			s := newSimulator(t, simulator.Config{MaxHang: 20 * time.Millisecond})
			a := post(t.Context(), newTransport(t), serve(t, s), tt.local+"@example.com")
			if !errors.Is(a.err, tt.err) {
				t.Errorf("error = %v, want %v", a.err, tt.err)
			}
			if st := s.Stats(); st.Billed != 1 || st.ByStatus[tt.label] != 1 {
				t.Errorf("stats = %+v, want 1 billed %s", st, tt.label)
			}
		})
	}
}

func TestServeDrip(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{DripInterval: time.Millisecond})
	a := post(t.Context(), newTransport(t), serve(t, s), "slow-drip@example.com")
	if a.err != nil || a.word() != "deliverable" || a.took < time.Duration(len(a.body))*time.Millisecond {
		t.Errorf("%q in %v, %v; want a deliverable, not before %d ms", a.body, a.took, a.err, len(a.body))
	}
}

// Hung calls end when their clients leave.
func TestServeHangUntilClientLeaves(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{MaxHang: time.Hour})
	base, tr := serve(t, s), newTransport(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			if a := post(ctx, tr, base, fmt.Sprintf("hang.%d@example.com", i)); !errors.Is(a.err, context.Canceled) {
				t.Errorf("error = %v", a.err)
			}
		})
	}
	waitFor(t, "5 hung calls", func() bool { return s.Stats().InFlight == 5 })
	cancel()
	wg.Wait()
	waitFor(t, "none in flight", func() bool { return s.Stats().InFlight == 0 })
	if st := s.Stats(); st.Billed != 5 {
		t.Errorf("billed = %d, want 5", st.Billed)
	}
}

// waitFor polls what another goroutine brings about outside a bubble.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline, tick := time.NewTimer(10*time.Second), time.NewTicker(time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: not within 10 s", what)
		}
	}
}

// Run ends at once, whatever hangs, and leaves nothing behind (goleak looks).
func TestRunEnds(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{MaxHang: time.Hour})
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, ln) }()
	tr := newTransport(t)
	base := "http://" + ln.Addr().String()
	post(t.Context(), tr, base, "ana@example.com") // leaves an idle connection
	var wg sync.WaitGroup
	for _, local := range []string{"hang", "delay-60000", "slow-drip"} {
		wg.Go(func() {
			if a := post(t.Context(), tr, base, local+"@example.com"); a.err == nil {
				t.Errorf("%s: answered %d", local, a.status)
			}
		})
	}
	waitFor(t, "3 in flight", func() bool { return s.Stats().InFlight == 3 })
	cancel()
	wg.Wait()
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
	if st := s.Stats(); st.InFlight != 0 {
		t.Errorf("in flight = %d", st.InFlight)
	}
	if a := post(t.Context(), tr, base, "ana@example.com"); a.err == nil {
		t.Error("the listener is still open")
	}
}

func TestRunReportsItsListener(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{})
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	if err := s.Run(t.Context(), ln); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Run on a closed listener = %v", err)
	}
}

func TestServeAfterClose(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{})
	base := serve(t, s)
	s.Close()
	if a := post(t.Context(), newTransport(t), base, "ana@example.com"); !errors.Is(a.err, io.EOF) {
		t.Errorf("after Close: %d, %v, want EOF", a.status, a.err)
	}
}

// pipes is a listener whose connections are net.Pipe, for HTTP inside a bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "pipe"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Real net/http on both sides, in a bubble: exact times, and no time-out of the server ends a hang early.
func TestServeInBubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulator(t, simulator.Config{P50: 250 * time.Millisecond, MaxHang: 45 * time.Minute})
		ln := newPipes()
		runOn(t, s, ln)
		tr := &http.Transport{DialContext: ln.dial}
		t.Cleanup(tr.CloseIdleConnections)
		tests := []struct {
			local string
			took  time.Duration
			err   error
		}{
			{"ana", 250 * time.Millisecond, nil},
			{"delay-600000", 10 * time.Minute, nil},
			{"reset", 0, io.EOF}, // a pipe knows no reset
			{"hang", 45 * time.Minute, io.EOF},
		}
		for _, tt := range tests {
			a := post(t.Context(), tr, simulated, tt.local+"@example.com")
			if a.took != tt.took || !errors.Is(a.err, tt.err) {
				t.Errorf("%s: %v, %v; want %v, %v", tt.local, a.took, a.err, tt.took, tt.err)
			}
		}
		a := post(t.Context(), tr, simulated, "slow-drip@example.com")
		if want := 250*time.Millisecond + time.Duration(len(a.body))*100*time.Millisecond; a.took != want {
			t.Errorf("slow-drip took %v, want %v", a.took, want)
		}
	})
}

// A client that stops half way through its request does not hold its connection, and is not billed.
func TestServeSlowRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulator(t, simulator.Config{})
		ln := newPipes()
		runOn(t, s, ln)
		for head, want := range map[string]time.Duration{
			"POST /v3/verify HTTP/1.1\r\nHost: a\r\nContent-Le": 5 * time.Second,
			"POST /v3/verify HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\n" +
				"Content-Length: 100\r\n\r\nemail=ana": 10 * time.Second,
		} {
			c, err := ln.dial(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if _, err := io.WriteString(c, head); err != nil {
				t.Fatal(err)
			}
			_, err = bufio.NewReader(c).ReadString(0)
			if took := time.Since(began); took != want || err == nil {
				t.Errorf("closed after %v, %v; want %v", took, err, want)
			}
			_ = c.Close()
		}
		if st := s.Stats(); st.Billed != 0 || st.Calls != 1 || st.ByStatus["unread"] != 1 || st.InFlight != 0 {
			t.Errorf("stats = %+v, want one unread call", st)
		}
	})
}
