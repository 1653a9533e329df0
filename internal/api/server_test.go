package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener in memory, so that a server can live in a bubble.
type pipes struct {
	conns chan net.Conn
	ctx   context.Context
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { return nil }
func (p *pipes) Addr() net.Addr { return &net.IPAddr{} }

// serve runs the server of the edge over pipes until the test ends, and returns a way to connect.
func serve(t *testing.T, b *bench) (dial func() net.Conn) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &pipes{conns: make(chan net.Conn), ctx: ctx}
	s := Server(b.api.Handler(), b.api.config.Log)
	done := make(chan error)
	go func() { done <- s.Serve(p) }()
	t.Cleanup(func() {
		cancel()
		_ = s.Close()
		if err := <-done; !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
		time.Sleep(time.Second) // in the bubble: net/http lingers for 0.5 s over a connection that it cut
	})
	return func() net.Conn {
		here, there := net.Pipe()
		p.conns <- there
		t.Cleanup(func() { _ = here.Close() })
		return here
	}
}

const head = "POST /validate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + testKey +
	"\r\nContent-Type: application/json\r\n"

func TestServerCutsSlowClients(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, sent string
		cut        time.Duration
		status     string // what comes before the cut
	}{
		{"unfinished header", "POST /validate HTTP/1.1\r\nHost", 5 * time.Second, "400"}, // net/http's own
		{"unfinished body", head + "Content-Length: 99\r\n\r\n{", 10 * time.Second, "400"},
		{"idle", head + "Content-Length: 27\r\n\r\n" + `{"email":"ana@example.com"}`, 60 * time.Second, "200"},
	} {
		synctest.Test(t, func(t *testing.T) {
			conn := serve(t, setup(t))()
			start := time.Now()
			if _, err := io.WriteString(conn, c.sent); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(conn)
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took.Round(time.Second) != c.cut {
				t.Errorf("%s: cut after %v, want %v", c.name, took, c.cut)
			}
			if _, after, _ := strings.Cut(string(got), " "); !strings.HasPrefix(after, c.status) {
				t.Errorf("%s: got %q, want status %q", c.name, got, c.status)
			}
		})
	}
}

// The longest wait fits the server's write deadline, and a body that goes on is refused before it has been read.
func TestServerLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dial := serve(t, setup(t))
		conn := dial()
		start := time.Now()
		fmt.Fprintf(conn, "GET /status/%s?wait=30s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", checkID, testKey)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != 200 || time.Since(start) != MaxWait {
			t.Errorf("the longest wait: %v %v after %v, want 200 after %v", res, err, time.Since(start), MaxWait)
		}

		for name, header := range map[string]string{
			"1 MiB, announced": "Content-Length: 1048576\r\n\r\n", "1 MiB, in chunks": "Transfer-Encoding: chunked\r\n\r\n",
		} {
			conn := dial()
			go func() { // the server closes before all is sent, which is an error here and fine
				_, _ = io.WriteString(conn, head+header)
				for range 64 {
					chunk := bytes.Repeat([]byte(" "), 16<<10)
					if strings.Contains(header, "chunked") {
						chunk = fmt.Appendf(nil, "%x\r\n%s\r\n", len(chunk), chunk)
					}
					if _, err := conn.Write(chunk); err != nil {
						return
					}
				}
			}()
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || res.StatusCode != 413 || res.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s: %v %v, want 413 problem+json", name, res, err)
			}
			_ = conn.Close()
		}

		conn = dial()
		go fmt.Fprintf(conn, "GET /livez HTTP/1.1\r\nHost: x\r\nX-Pad: %s\r\n\r\n", strings.Repeat("a", 32<<10))
		res, err = http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("a header of 32 KiB: %v %v, want 431", res, err)
		}
	})
}
