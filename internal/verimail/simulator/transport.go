package simulator

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// RoundTripper returns a transport that plays the same upstream without sockets, for any host. A reset is a *net.OpError
// around syscall.ECONNRESET; a hang waits for the request's context, and ends in io.EOF after Config.MaxHang or when
// the simulator is closed; a dripping body trickles; a cut one ends in io.ErrUnexpectedEOF. It calls the httptrace
// hooks GotConn (with the zero value), WroteHeaders, WroteRequest and GotFirstResponseByte. It lives in synctest
// bubbles, if the simulator was made in the bubble too.
func (s *Simulator) RoundTripper() http.RoundTripper { return transport{s} }

type transport struct{ s *Simulator }

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	if r.Body != nil {
		defer func() { _ = r.Body.Close() }()
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if t.s.isClosed() {
		return nil, net.ErrClosed
	}
	trace := httptrace.ContextClientTrace(ctx)
	if trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	q := request{
		method: r.Method, path: r.URL.Path, query: r.URL.RawQuery,
		contentType: r.Header.Get("Content-Type"), arrived: time.Now(),
	}
	if q.method == "" {
		q.method = http.MethodGet
	}
	if r.Body != nil {
		q.body, q.err = readBody(r.Body)
	}
	if trace != nil && trace.WroteHeaders != nil {
		trace.WroteHeaders()
	}
	if trace != nil && trace.WroteRequest != nil {
		trace.WroteRequest(httptrace.WroteRequestInfo{Err: q.err})
	}
	f := t.s.route(q)
	if q.err != nil {
		t.s.done(f)
		return nil, q.err
	}
	resp, err := t.play(r, f)
	if err == nil && trace != nil && trace.GotFirstResponseByte != nil {
		trace.GotFirstResponseByte()
	}
	return resp, err
}

// play makes the fate come true as a response or an error.
func (t transport) play(r *http.Request, f fate) (*http.Response, error) {
	ctx := r.Context()
	over := sync.OnceFunc(func() { t.s.done(f) })
	fail := func(err error) (*http.Response, error) {
		over()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	if !t.s.sleep(ctx, f.delay) {
		return fail(io.EOF)
	}
	switch f.ending {
	case hangs:
		t.s.sleep(ctx, t.s.cfg.MaxHang)
		return fail(io.EOF)
	case resets:
		return fail(&net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)})
	case breaks:
		return fail(io.EOF)
	}

	resp := &http.Response{
		StatusCode: f.status, Status: strconv.Itoa(f.status) + " " + http.StatusText(f.status),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: f.header, ContentLength: int64(len(f.body)), Request: r,
	}
	resp.Header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	switch f.ending {
	case drips:
		resp.Body = &dripBody{s: t.s, ctx: ctx, body: f.body, began: time.Now(), closed: make(chan struct{}), over: over}
	case cuts:
		over()
		half := bytes.NewReader(f.body[:len(f.body)/2])
		resp.Body = io.NopCloser(io.MultiReader(half, brokenReader{}))
	default:
		over()
		resp.Body = io.NopCloser(bytes.NewReader(f.body))
	}
	return resp, nil
}

// brokenReader is the rest of a body that never came.
type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// dripBody yields one byte each DripInterval. Whoever reads late finds what has come meanwhile.
type dripBody struct {
	s         *Simulator
	ctx       context.Context // the request's, which ends the reading of a response body
	body      []byte
	began     time.Time
	read      int
	closeOnce sync.Once
	closed    chan struct{}
	over      func()
}

// Read waits for the next byte.
func (d *dripBody) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if d.read == len(d.body) {
		d.over()
		return 0, io.EOF
	}
	interval := d.s.cfg.DripInterval
	due := time.NewTimer(time.Until(d.began.Add(time.Duration(d.read+1) * interval)))
	defer due.Stop()
	select {
	case <-due.C:
	case <-d.ctx.Done():
		d.over()
		return 0, context.Cause(d.ctx)
	case <-d.closed:
		return 0, http.ErrBodyReadAfterClose
	case <-d.s.closed:
		d.over()
		return 0, io.ErrUnexpectedEOF
	}
	come := max(d.read+1, min(len(d.body), int(time.Since(d.began)/interval)))
	n := copy(p, d.body[d.read:come])
	d.read += n
	return n, nil
}

// Close ends the call.
func (d *dripBody) Close() error {
	d.closeOnce.Do(func() { close(d.closed) })
	d.over()
	return nil
}
