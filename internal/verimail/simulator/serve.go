package simulator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Time-outs of the HTTP server. A request that hangs has Config.MaxHang on top.
const (
	readHeaderTimeout = 5 * time.Second
	readBodyTimeout   = 10 * time.Second
	writeTimeout      = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	stopTimeout       = 2 * time.Second
)

// ServeHTTP answers the verify endpoint and the control endpoints. To end a connection without an answer it panics with
// http.ErrAbortHandler, which net/http's server takes as just that.
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.isClosed() {
		panic(http.ErrAbortHandler)
	}
	q := request{
		method: r.Method, path: r.URL.Path, query: r.URL.RawQuery,
		contentType: r.Header.Get("Content-Type"), arrived: time.Now(),
	}
	if r.Body != nil && r.Body != http.NoBody {
		// http.Server.ReadTimeout would do, but it goes on running while a call hangs, and then ends it.
		c := http.NewResponseController(w)
		_ = c.SetReadDeadline(q.arrived.Add(readBodyTimeout)) // not every ResponseWriter can
		q.body, q.err = readBody(r.Body)
		if q.err == nil && len(q.body) <= maxBody { // else the server, too, must not wait for the rest
			_ = c.SetReadDeadline(time.Time{})
		}
	}
	f := s.route(q)
	defer s.done(f)
	s.play(r.Context(), w, f)
}

// play makes the fate come true on an HTTP connection.
func (s *Simulator) play(ctx context.Context, w http.ResponseWriter, f fate) {
	if !s.sleep(ctx, f.delay) {
		panic(http.ErrAbortHandler)
	}
	switch f.ending {
	case hangs:
		s.sleep(ctx, s.cfg.MaxHang)
		panic(http.ErrAbortHandler)
	case resets:
		resetConnection(w)
		return
	case breaks:
		panic(http.ErrAbortHandler)
	}

	header := w.Header()
	for name, values := range f.header {
		header[name] = values
	}
	header.Set("Content-Length", strconv.Itoa(len(f.body)))
	w.WriteHeader(f.status)
	flush := http.NewResponseController(w).Flush
	switch f.ending {
	case drips:
		_ = flush()
		for i := range f.body {
			if !s.sleep(ctx, s.cfg.DripInterval) {
				panic(http.ErrAbortHandler)
			}
			if _, err := w.Write(f.body[i : i+1]); err != nil {
				panic(http.ErrAbortHandler)
			}
			_ = flush()
		}
	case cuts:
		_, _ = w.Write(f.body[:len(f.body)/2])
		_ = flush()
		panic(http.ErrAbortHandler)
	default:
		_, _ = w.Write(f.body) // the client may have left
	}
}

// sleep waits, and says whether it could: not when ctx or the simulator ended before.
func (s *Simulator) sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil && !s.isClosed()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	case <-s.closed:
		return false
	}
}

func (s *Simulator) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// resetConnection makes the client see a TCP reset. On connections that know none (net.Pipe, HTTP/2) it closes.
func resetConnection(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	bare := conn
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok { // below TLS
		bare = t.NetConn()
	}
	if t, ok := bare.(interface{ SetLinger(int) error }); ok {
		_ = t.SetLinger(0)
	}
	_ = bare.Close()
}

// Run serves HTTP on the listener until ctx ends, and closes it. Calls that are waiting then are cut off. Run leaves no
// goroutine behind. It returns nil when ctx ended it, and the listener's error otherwise.
func (s *Simulator) Run(ctx context.Context, ln net.Listener) error {
	base, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{
		Handler:           s,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: readHeaderTimeout,
		WriteTimeout:      max(s.cfg.MaxHang, maxDelay) + writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxBody,
		ErrorLog:          log.New(io.Discard, "", 0), // what it would print is a client's fault, and may quote it
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()

	var err error
	select {
	case err = <-served:
		err = fmt.Errorf("simulator: serve: %w", err)
	case <-ctx.Done():
	}
	cancel() // every handler that waits gives up now, so the wait for them is short
	stop, stopCancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer stopCancel()
	if server.Shutdown(stop) != nil {
		_ = server.Close()
	}
	if err == nil {
		if e := <-served; !errors.Is(e, http.ErrServerClosed) {
			err = fmt.Errorf("simulator: serve: %w", e)
		}
	}
	return err
}
