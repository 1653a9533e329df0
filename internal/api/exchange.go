package api

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"validator-gw/internal/validate"
)

// exchange is one request and its response: the ResponseWriter that handlers get, and what the log line and the metrics
// need to know. It belongs to the goroutine of its request.
type exchange struct {
	http.ResponseWriter
	route  *route
	start  time.Time
	id     string // X-Request-Id
	client string // name of the key
	flow   string // only a name that the settings have
	status int    // 0 until the header is written
	code   string // of the problem
	err    error  // why there was a 5xx
	answer *validate.Answer
	buffer *[]byte // of the pool; see scratch
}

// buffers are for bodies, in and out. None is kept that grew beyond maxKept.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, 0, 1<<10)
	return &b
}}

const maxKept = 32 << 10

// scratch returns an empty buffer that is the exchange's until it ends. It is the same each time, so what was in it before
// must not be needed any more.
func (x *exchange) scratch() []byte {
	if x.buffer == nil {
		x.buffer = buffers.Get().(*[]byte)
	}
	return (*x.buffer)[:0]
}

// keep takes back what scratch gave, which may have grown.
func (x *exchange) keep(b []byte) {
	if x.buffer != nil && cap(b) <= maxKept {
		*x.buffer = b
	}
}

// release gives the buffer to those who come next.
func (x *exchange) release() {
	if x.buffer != nil {
		buffers.Put(x.buffer)
		x.buffer = nil
	}
}

// Unwrap lets http.ResponseController reach the server's own writer.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// WriteHeader notes the status.
func (x *exchange) WriteHeader(status int) {
	if x.status == 0 {
		x.status = status
	}
	x.ResponseWriter.WriteHeader(status)
}

// Write notes the status that goes without saying.
func (x *exchange) Write(b []byte) (int, error) {
	if x.status == 0 {
		x.status = http.StatusOK
	}
	return x.ResponseWriter.Write(b)
}

// gone ends an exchange whose caller left. Nothing is written, since nobody reads.
func (x *exchange) gone() {
	x.status, x.code = statusClientGone, "client_gone"
}

// writeJSON writes body as the whole response.
func (x *exchange) writeJSON(status int, mediaType string, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		panic(err) // our own types always marshal
	}
	x.writeBytes(status, []string{mediaType}, append(b, '\n'))
}

// writeBytes writes b as the whole response. The media type is a header's value.
func (x *exchange) writeBytes(status int, mediaType []string, b []byte) {
	h := x.Header()
	h["Content-Type"] = mediaType
	h["Content-Length"] = []string{strconv.Itoa(len(b))}
	x.WriteHeader(status)
	_, _ = x.Write(b) // an error means that the caller left
}

// serve wraps a route's handler: it names the request, recovers, logs and counts, and asks for the key.
func (a *API) serve(rt *route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{ResponseWriter: w, route: rt, start: time.Now()}
		rt.inFlight.Inc()
		defer a.finish(x, r)
		a.prepare(x, r)
		if rt.keyed && !a.authenticate(x, r) {
			return
		}
		rt.handler(x, r)
	}
}

// prepare names the request and brings the headers into the form that the generated glue reads: at most one value each.
func (a *API) prepare(x *exchange, r *http.Request) {
	x.id = a.requestID(r)
	delete(r.Header, "X-Request-Id")                  // x.id is what counts from here on
	if v := r.Header["Accept-Language"]; len(v) > 1 { // RFC 9110 5.3: a list may come in several lines
		r.Header["Accept-Language"] = []string{strings.Join(v, ", ")}
	}
	if len(r.Header["Traceparent"]) > 1 { // W3C Trace Context 3.2: more than one is none
		delete(r.Header, "Traceparent")
	}
	h := x.Header()
	h["X-Request-Id"] = []string{x.id}
	h["Cache-Control"] = noStore
	h["X-Content-Type-Options"] = noSniff
}

// Values of headers that all responses share. A header is set anew, never appended to or changed in place.
var (
	noStore  = []string{"no-store"}
	noSniff  = []string{"nosniff"}
	onlyJSON = []string{mediaJSON}
)

// finish recovers from a panic, and logs and counts the request.
func (a *API) finish(x *exchange, r *http.Request) {
	if v := recover(); v != nil {
		defer a.recovered(x, r, v)()
	}
	if x.status == 0 {
		x.status = http.StatusOK // what net/http sends for a handler that writes nothing
	}
	took := time.Since(x.start)
	x.route.inFlight.Dec()
	a.metrics.count(x.route, r.Method, x.status, took)
	a.log(x, r, took)
	x.release()
}

// recovered answers a request whose handler panicked, and returns what is left to do after logging. The value of the
// panic may hold anything, so only its type is logged, and its text where the runtime made it.
func (a *API) recovered(x *exchange, r *http.Request, v any) func() {
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		x.gone()
		return func() { panic(v) }
	}
	attrs := []slog.Attr{slog.String("request_id", x.id), slog.String("route", x.route.pattern),
		slog.String("panic_type", fmt.Sprintf("%T", v)), slog.String("stack", string(debug.Stack()))}
	if e, ok := v.(runtime.Error); ok {
		attrs = append(attrs, slog.String("panic", e.Error()))
	}
	a.config.Log.LogAttrs(r.Context(), slog.LevelError, "panic", attrs...)
	if x.status == 0 {
		a.refuse(x, internalFault.plain())
		return func() {}
	}
	// A part of the answer is out. Cutting the connection is the only way left to say that it is not whole.
	x.code = internalFault.code
	return func() { panic(http.ErrAbortHandler) }
}

// log writes the one line of a request. Probes are logged for debugging only while all is well.
func (a *API) log(x *exchange, r *http.Request, took time.Duration) {
	level := slog.LevelInfo
	switch {
	case x.code == internalFault.code:
		level = slog.LevelError
	case x.err != nil:
		level = slog.LevelWarn
	case x.route.probe && x.status < 400:
		level = slog.LevelDebug
	}
	ctx := r.Context()
	handler := a.config.Log.Handler()
	ended := x.start.Add(took)
	if !handler.Enabled(ctx, level) || !a.admit(ctx, x, level, ended) {
		return
	}
	attrs := make([]slog.Attr, 0, 20)
	attrs = append(attrs,
		slog.String("request_id", x.id),
		slog.String("route", x.route.pattern),
		slog.String("method", methodLabel(r.Method)),
		slog.Int("http_status", x.status),
		slog.Int64("duration_us", took.Microseconds()), // slog writes a fraction in 2 µs, a whole number in 50 ns
		slog.String("client", x.client))
	if x.flow != "" {
		attrs = append(attrs, slog.String("flow", x.flow))
	}
	if x.code != "" {
		attrs = append(attrs, slog.String("code", x.code))
	}
	if x.err != nil {
		attrs = append(attrs, slog.Any("error", x.err))
	}
	if n := x.answer; n != nil {
		attrs = append(attrs,
			slog.String("check_id", n.ID),
			slog.String("fingerprint", n.Fingerprint),
			slog.String("status", string(n.Status)),
			slog.String("decision", string(n.Decision)),
			slog.String("reason", string(n.Reason)),
			slog.String("source", string(n.Source)),
			slog.Int("attempts", n.Attempts),
			slog.Int64("backoff_ms", n.Backoff.Milliseconds()))
	}
	// Not by the logger, which would look for the line of code that logs: there is this one only.
	line := slog.NewRecord(ended, level, "request", 0)
	line.AddAttrs(attrs...)
	_ = handler.Handle(ctx, line) // as the logger does: there is nowhere else to say so
}

// minToken is the least length of a token that is looked for in a request's name: a shorter one that is no key would be found by chance.
const minToken = 16

// requestID returns the caller's name for the request if it can be used, else a new one. A name that holds a key is not
// used: it would be logged.
func (a *API) requestID(r *http.Request) string {
	if v := r.Header["X-Request-Id"]; len(v) == 1 && isRequestID(v[0]) {
		token, sent := bearer(r)
		holds := sent && len(token) >= minToken && strings.Contains(v[0], token)
		if _, known := a.client(v[0]); !known && !holds {
			return v[0]
		}
	}
	return a.config.RequestID()
}

// isRequestID says whether s matches [A-Za-z0-9._-]{1,128}.
func isRequestID(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// newRequestID returns a UUIDv7 (RFC 9562 5.7) with 74 random bits.
func newRequestID() string {
	var u [16]byte
	rand.Read(u[:]) // never fails: crypto/rand.Read ends the program instead
	ms := uint64(time.Now().UnixMilli())
	binary.BigEndian.PutUint64(u[:8], ms<<16|uint64(binary.BigEndian.Uint16(u[6:8])))
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	var text [36]byte
	for i, part := range [][2]int{{0, 4}, {4, 6}, {6, 8}, {8, 10}, {10, 16}} {
		hex.Encode(text[2*part[0]+i:], u[part[0]:part[1]])
		if i > 0 {
			text[2*part[0]+i-1] = '-'
		}
	}
	return string(text[:])
}
