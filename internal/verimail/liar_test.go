package verimail

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// blurting is a server that answers every request with the same bytes and keeps the connection. calls counts requests.
func blurting(t *testing.T, answer string) (base string, calls *atomic.Int64) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	calls = &atomic.Int64{}
	var mu sync.Mutex
	var conns []net.Conn
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			all.Go(func() {
				in := bufio.NewReader(c)
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					calls.Add(1)
					_, _ = io.WriteString(c, answer)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return "http://" + ln.Addr().String(), calls
}

// What net/http makes something special of is one call with an end like any other: a switch of protocols, whose body is the
// connection and ends with no deadline; and a redirect to what is no URL, which it takes for a failure of the exchange.
func TestAnswersThatTheTransportMinds(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, answer, outcome string
		reason                verdict.Reason
	}{
		{"switch of protocols", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
			verdict.AttemptBadBody, verdict.UpstreamBadResponse},
		{"redirect to nowhere", "HTTP/1.1 302 Found\r\nLocation: http://[::1%zz/\r\nContent-Length: 0\r\n\r\n",
			verdict.AttemptRefused, verdict.UpstreamRefused},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			base, calls := blurting(t, tt.answer)
			c := wired(t, http.NotFoundHandler(), func(cfg *Config) { cfg.URL = base })
			done := make(chan verdict.Outcome, 1)
			go func() { done <- c.Check(t.Context(), address(t, "ana"), generous(2)) }()
			select {
			case out := <-done:
				if out.Verdict.Reason != tt.reason || outcomes(out) != tt.outcome || calls.Load() != 1 {
					t.Errorf("%s %q after %d calls, want %s %q after one", out.Verdict.Reason, outcomes(out), calls.Load(), tt.reason, tt.outcome)
				}
			case <-time.After(time.Minute): // late_timeout is 10 s
				t.Error("the call has no end")
			}
		})
	}
}

// Who lowers the longest wait means the one that is under way, too: the gate opens by the new one, and the fleet is told of
// the next hint, though it is an earlier moment than what it was told before.
func TestLongestWaitLowered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		r.ask("throttled-86400", 0)
		if wait := time.Until(r.Standing().Until); wait != time.Hour {
			t.Fatalf("closed for %v, want the default of an hour", wait)
		}
		r.retune(func(t *Tuning) { t.RetryAfterMax = time.Minute })
		if wait := time.Until(r.Standing().Until); wait != time.Minute {
			t.Errorf("closed for %v, want the minute that is the most now", wait)
		}
		time.Sleep(time.Minute)
		if out := r.ask("throttled-86400", 0); out.Sent != 1 {
			t.Errorf("sent %d after the longest wait, want one", out.Sent)
		}
		synctest.Wait()
		r.limits.mu.Lock()
		defer r.limits.mu.Unlock()
		if n := len(r.limits.holds); n != 2 || r.limits.holds[1] != time.Minute {
			t.Errorf("the fleet was told %v, want an hour, then a minute", r.limits.holds)
		}
	})
}

// A longest wait of a second is for hints; the pauses of our own are as long as ever.
func TestLongestWaitLeavesOurPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{})
		r.retune(func(t *Tuning) { t.RetryAfterMax = time.Second })
		var pause time.Duration
		for range 3 * 4 { // 1, 2, 4, 8 s
			r.ask("throttled", 0)
			if until := r.Standing().Until; !until.IsZero() {
				pause = time.Until(until)
				time.Sleep(pause)
			}
		}
		if pause != 8*time.Second {
			t.Errorf("the fourth pause is %v, want 8s", pause)
		}
	})
}
