package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"validator-gw/internal/api/apitest"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// desk is a validator for tests: it knows some addresses and the checks that it gave ids for. A check whose settled
// channel is closed has its final answer.
type desk struct {
	mu      sync.Mutex
	answers map[string]validate.Answer // by address as typed
	errs    map[string]error           // by address as typed, or by id
	checks  map[string]*check          // by id
	asked   []validate.Request
	events  []validate.Event
	erased  []string
	block   chan struct{} // when set, Validate waits for it or for the context
	panics  any
	during  func() // called by Validate
}

type check struct {
	pending, final validate.Answer
	settled        chan struct{}
}

func (d *desk) Validate(ctx context.Context, req validate.Request) (validate.Answer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, req)
	if d.panics != nil {
		panic(d.panics)
	}
	if d.during != nil {
		d.during()
	}
	if d.block != nil {
		select {
		case <-d.block:
		case <-ctx.Done():
			return validate.Answer{}, fmt.Errorf("desk: %w", context.Cause(ctx))
		}
	}
	if err := d.errs[req.Raw]; err != nil {
		return validate.Answer{}, err
	}
	answer, ok := d.answers[req.Raw]
	if !ok {
		return validate.Answer{}, fmt.Errorf("desk: no answer is prepared")
	}
	answer.Flow = cmp.Or(req.Flow, "signup")
	return answer, nil
}

func (d *desk) Status(_ context.Context, q validate.Inquiry) (validate.Answer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.errs[q.ID]; err != nil {
		return validate.Answer{}, err
	}
	c, ok := d.checks[q.ID]
	if !ok {
		return validate.Answer{}, validate.ErrUnknownID
	}
	answer := c.pending
	select {
	case <-c.settled:
		answer = c.final
	default:
	}
	answer.Flow = cmp.Or(q.Flow, "signup")
	return answer, nil
}

func (d *desk) Wait(ctx context.Context, q validate.Inquiry, wait time.Duration) (validate.Answer, error) {
	d.mu.Lock()
	c, ok := d.checks[q.ID]
	d.mu.Unlock()
	if ok {
		select {
		case <-c.settled:
		case <-time.After(wait):
		case <-ctx.Done():
			return validate.Answer{}, ctx.Err()
		}
	}
	return d.Status(ctx, q)
}

func (d *desk) Retry(_ context.Context, id string) error { return d.errs[id] }

// Revalidate knows by their text what it has errors and answers for, and schedules the rest.
func (d *desk) Revalidate(_ context.Context, e validate.Event) (validate.Scheduled, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events = append(d.events, e)
	if err := d.errs[cmp.Or(e.Raw, e.ID)]; err != nil {
		return validate.Scheduled{}, err
	}
	if a, ok := d.answers[e.Raw]; ok && e.ID == "" && a.Source == verdict.FromLocal {
		a.Flow = "signup"
		return validate.Scheduled{Local: &a}, nil
	}
	return validate.Scheduled{ID: checkID, NextCheckAt: checkedAt.Add(400 * time.Millisecond), PollAfter: 2 * time.Second, Merged: e.ID != ""}, nil
}

func (d *desk) Erase(_ context.Context, raw string) (validate.Removed, error) {
	if err := d.errs[raw]; err != nil {
		return validate.Removed{}, err
	}
	d.erased = append(d.erased, raw)
	return validate.Removed{Reviews: 1, Verdicts: 2, Answers: 3, BackfillRows: 4}, nil
}

func (d *desk) HasFlow(name string) bool { return name == "signup" || name == "high_risk" }

func (d *desk) HasCallback(name string) bool { return name == "crm" }

// clinic is a health for tests.
type clinic struct {
	mu  sync.Mutex
	now Readiness
}

func (c *clinic) Readiness() Readiness {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// lockedBuffer is a log's end that goroutines share.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// lines returns the log lines as objects.
func (l *lockedBuffer) lines(t *testing.T) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(l.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		all = append(all, m)
	}
	return all
}

const (
	testKey  = "vgw_test_Pq83hZ0c"
	otherKey = "vgw_test_other"
	checkID  = "01989f6e-7d3a-7c1e-9a44-0f3b8f6f2c11"
)

var checkedAt = time.Date(2026, 11, 30, 10, 15, 30, 482_900_000, time.UTC)

// bench is an edge over a desk, with its log and metrics.
type bench struct {
	api      *API
	desk     *desk
	clinic   *clinic
	log      *lockedBuffer
	registry *prometheus.Registry
}

// setup returns a bench whose clients are "backend" and "other". change may alter the configuration.
func setup(t testing.TB, change ...func(*Config)) *bench {
	t.Helper()
	b := &bench{
		desk:     newDesk(),
		clinic:   &clinic{now: Readiness{State: Ready}},
		log:      &lockedBuffer{},
		registry: prometheus.NewPedanticRegistry(),
	}
	config := Config{
		Keys:       []Key{{Name: "backend", Key: testKey}, {Name: "other", Key: otherKey}},
		Log:        slog.New(slog.NewJSONHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Registerer: b.registry,
		Rand:       func() float64 { return .5 },
		RequestID:  func() string { return "01989f6e-0000-7000-8000-000000000001" },
	}
	for _, f := range change {
		f(&config)
	}
	var err error
	if b.api, err = New(b.desk, b.clinic, config); err != nil {
		t.Fatalf("New: %v", err)
	}
	return b
}

func localFlags() verdict.Flags {
	return verdict.Flags{
		Disposable: verdict.False, Role: verdict.False, Free: verdict.False,
		SMTPUTF8: verdict.False, Subaddressed: verdict.False, MixedScript: verdict.False,
	}
}

func newDesk() *desk {
	pending := validate.Answer{
		ID: checkID, Status: verdict.NeedsReview, Decision: validate.AcceptPending, Reason: verdict.UpstreamTimeout,
		Reasons: []verdict.Reason{verdict.UpstreamTimeout}, Normalized: "slow@example.com", Flags: localFlags(),
		Attempts: 1, Source: verdict.FromNone, NextCheckAt: checkedAt.Add(30 * time.Second), PollAfter: 30 * time.Second,
		Fingerprint: "Zk3_9a", Backoff: 130 * time.Millisecond,
	}
	valid := validate.Answer{
		ID: checkID, Status: verdict.Valid, Decision: validate.Accept, Reason: verdict.MailboxAccepted,
		Reasons: []verdict.Reason{verdict.MailboxAccepted}, Normalized: "ana@example.com", Flags: localFlags(),
		Attempts: 1, Source: verdict.FromUpstream, Provider: "verimail_v3", CheckedAt: checkedAt,
		ExpiresAt: checkedAt.Add(7 * 24 * time.Hour), Fingerprint: "Zk3_9a", Backoff: 130 * time.Millisecond,
	}
	risky := valid
	risky.Status, risky.Reason = verdict.Risky, verdict.CatchAll
	risky.Reasons = []verdict.Reason{verdict.CatchAll, verdict.MailboxFull}
	risky.Flags.CatchAll, risky.Flags.MailboxFull = verdict.True, verdict.True
	risky.Source, risky.Age, risky.Stale, risky.ExpiresAt = verdict.FromCache, 90*time.Minute, true, checkedAt.Add(time.Hour)
	syntax := validate.Answer{
		Status: verdict.Invalid, Decision: validate.Reject, Reason: verdict.TLDUnknown,
		Reasons: []verdict.Reason{verdict.TLDUnknown}, Suggestion: "ana@example.com", Source: verdict.FromLocal,
	}
	empty := syntax
	empty.Reason, empty.Reasons, empty.Suggestion = verdict.Empty, []verdict.Reason{verdict.Empty}, ""
	tagged := valid
	tagged.Normalized = "ana+news@example.com"
	tagged.Flags.Subaddressed = verdict.True

	waiting, settled, erased := pending, valid, valid
	trail := []verdict.Attempt{
		{At: checkedAt, Outcome: verdict.AttemptTimeout, LatencyMS: 650},
		{At: checkedAt.Add(30 * time.Second), Outcome: verdict.AttemptAnswered, HTTPStatus: 200, LatencyMS: 218,
			UpstreamRequestID: "req_8c1d90", ProviderResult: "deliverable"},
	}
	waiting.Trail = trail[:1]
	settled.Trail, settled.Source = trail, verdict.FromReview
	erased.Trail, erased.Source, erased.Normalized, erased.Erased = trail, verdict.FromReview, "", true
	done := make(chan struct{})
	close(done)
	return &desk{
		answers: map[string]validate.Answer{
			"ana@example.com": valid, " Ana@Example.com ": valid, "any@example.org": risky, "ana@example.con": syntax,
			"": empty, "slow@example.com": pending, "ana+news@example.com": tagged,
		},
		errs: map[string]error{
			"full@example.com":     fmt.Errorf("admit: %w", validate.ErrSaturated),
			"reused@example.com":   validate.ErrKeyReused,
			"inflight@example.com": validate.ErrKeyInFlight,
			"none":                 validate.ErrNoAddress,
			"away@example.com":     validate.ErrUnavailable,
			"nodb@example.com":     &validate.NotDurable{Err: io.ErrUnexpectedEOF},
			"commit@example.com":   &validate.NotDurable{ID: checkID, Err: io.ErrUnexpectedEOF},
			"flow@example.com":     validate.ErrUnknownFlow,
			"super@example.com":    validate.ErrSuperseded,
			"mute@example.com":     validate.ErrTypingUnanswered,
			erasedID:               validate.ErrAddressErased,
			unknownCheck:           validate.ErrUnknownID,
			"strange@example.com":  io.ErrClosedPipe,
		},
		checks: map[string]*check{
			checkID:                                {waiting, settled, make(chan struct{})},
			"01989f6e-7d3a-7c1e-9a44-0f3b8f6f2c12": {waiting, settled, done},
			"01989f6e-7d3a-7c1e-9a44-0f3b8f6f2c13": {waiting, erased, done},
		},
	}
}

// request is a request of a test. Without a body it has no Content-Type; the default method is POST /validate's.
type request struct {
	method, target, body string
	header               map[string]string
	key                  string // testKey when empty; "none" for none
	ctx                  context.Context
}

func (q request) build(t testing.TB) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(cmp.Or[any](q.ctx, context.Background()).(context.Context),
		cmp.Or(q.method, "POST"), cmp.Or(q.target, "/validate"), strings.NewReader(q.body))
	if q.body != "" {
		r.Header.Set("Content-Type", mediaJSON)
	}
	if key := cmp.Or(q.key, testKey); key != "none" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	for k, v := range q.header {
		if v == "" {
			r.Header.Del(k)
		} else {
			r.Header.Set(k, v)
		}
	}
	return r
}

// response is what came back.
type response struct {
	status int
	header http.Header
	body   []byte
	json   map[string]any // nil when it is none
}

// do sends q and holds the exchange to the document: the response always, the request when it was answered well.
func (b *bench) do(t testing.TB, q request) response {
	t.Helper()
	r := q.build(t)
	rec := httptest.NewRecorder()
	b.api.Handler().ServeHTTP(rec, r)
	res := response{status: rec.Code, header: rec.Header(), body: rec.Body.Bytes()}
	if rec.Body.Len() > 0 && strings.HasSuffix(rec.Header().Get("Content-Type"), "json") && !strings.HasSuffix(rec.Header().Get("Content-Type"), "ndjson") {
		if err := json.Unmarshal(res.body, &res.json); err != nil {
			t.Fatalf("%s %s: body %q: %v", r.Method, r.URL.Path, res.body, err)
		}
	}
	conforms(t, q, res)
	return res
}

// conforms holds an exchange to the document.
func conforms(t testing.TB, q request, res response) {
	t.Helper()
	if err := apitest.Conforms(q.build(t), res.status, res.header, res.body); err != nil {
		t.Error(err)
	}
}

// golden compares a response to a file of testdata.
func golden(t *testing.T, name string, res response) {
	t.Helper()
	var got bytes.Buffer
	fmt.Fprintf(&got, "%d\n", res.status)
	for _, h := range []string{"Content-Type", "Content-Language", "Location", "Retry-After", "WWW-Authenticate"} {
		if v := res.header.Get(h); v != "" {
			fmt.Fprintf(&got, "%s: %s\n", h, v)
		}
	}
	got.WriteByte('\n')
	if err := json.Indent(&got, res.body, "", "  "); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%s: got\n%s\nwant\n%s", file, got.Bytes(), want)
	}
}
