package callback

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
	"validator-gw/internal/verdict"
)

// The vector is that of the specification's own libraries: standard-webhooks/standard-webhooks, libraries/go/webhook_test.go.
func TestSignature(t *testing.T) {
	t.Parallel()
	keys, err := ReadKeys(keyFile(t, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"))
	if err != nil {
		t.Fatal(err)
	}
	const want = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	if got := sign(keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`)); got != want {
		t.Errorf("sign = %s, want %s", got, want)
	}
	two := append([]secret.Text{secret.Text(strings.Repeat("k", 24))}, keys...)
	if got := sign(two, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`)); !strings.HasSuffix(got, " "+want) || strings.Count(got, "v1,") != 2 {
		t.Errorf("sign with two keys = %s, want another and then %s", got, want)
	}
}

func keyFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadKeys(t *testing.T) {
	t.Parallel()
	of := func(n int) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{'k'}, n)) }
	for _, c := range []struct {
		name, text string
		keys       int
		fault      string
	}{
		{"one", "whsec_" + of(32), 1, ""},
		{"without its prefix", of(32) + "\n", 1, ""},
		{"without padding", strings.TrimRight(of(32), "="), 1, ""},
		{"two, and empty lines", "\n" + of(24) + "\r\n\n  whsec_" + of(64) + " \n", 2, ""},
		{"four", strings.Repeat(of(24)+"\n", 4), 4, ""},
		{"five", strings.Repeat(of(24)+"\n", 5), 0, "more than 4"},
		{"none", " \n", 0, "holds no keys"},
		{"too short", of(23), 0, "line 1 is not a key of 24 to 64 bytes"},
		{"too long", of(65), 0, "line 1 is not a key"},
		{"no base64", of(24) + "\nhunter2-hunter2-hunter2-hunter2\n", 0, "line 2 is not a key"},
		{"a large file", strings.Repeat("\n", maxKeyFile) + of(24), 0, "larger than 4 KiB"},
		{"behind an empty line", "\nx", 0, "line 2 is not a key"},
	} {
		keys, err := ReadKeys(keyFile(t, c.text))
		if len(keys) != c.keys || (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %d keys, %v, want %d, %q", c.name, len(keys), err, c.keys, c.fault)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error shows the key: %v", c.name, err)
		}
	}
	if _, err := ReadKeys(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ReadKeys of no file = %v, want ErrNotExist", err)
	}
}

// rig is a sender over SQLite in a bubble, and targets that answer as their functions say.
type rig struct {
	t       *testing.T
	store   *fallback.SQLite
	targets map[string]Target
	answer  func(name string, n int) (code int, err error) // of the n-th request to the target of a name, from 1
	log     bytes.Buffer
	reg     *prometheus.Registry

	mu   sync.Mutex
	seen []delivery
}

type delivery struct {
	name, id string
	at       time.Time
	body     []byte
	header   http.Header
}

var key = secret.Text(strings.Repeat("k", 32))

func (r *rig) RoundTrip(q *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(q.Body)
	name := strings.TrimSuffix(q.URL.Hostname(), ".example")
	r.mu.Lock()
	r.seen = append(r.seen, delivery{name, q.Header.Get("webhook-id"), time.Now(), body, q.Header})
	n := 0
	for _, d := range r.seen {
		n += map[bool]int{d.name == name: 1}[true]
	}
	r.mu.Unlock()
	code, err := r.answer(name, n)
	if code == hang {
		<-q.Context().Done()
		return nil, q.Context().Err()
	}
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: code, Body: http.NoBody, Header: http.Header{}, Request: q}, nil
}

// hang is a code of targets that never answer.
const hang = -1

func (r *rig) deliveries() []delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

func bubble(t *testing.T, story func(t *testing.T, r *rig)) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gateway.db")
	synctest.Test(t, func(t *testing.T) {
		sealer, err := secret.NewSealer(bytes.Repeat([]byte{1}, 32))
		if err != nil {
			t.Fatal(err)
		}
		store, err := fallback.OpenSQLite(t.Context(), fallback.SQLiteConfig{Path: path, Sealer: sealer})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		r := &rig{t: t, store: store, reg: prometheus.NewRegistry(), answer: func(string, int) (int, error) { return 200, nil }}
		r.targets = map[string]Target{}
		for _, name := range []string{"crm", "slow"} {
			r.targets[name] = Target{URL: "https://" + name + ".example/T0KEN", Keys: []secret.Text{key}, Events: Events}
		}
		story(t, r)
	})
}

// sender makes one over the rig's store, or another that stands before it.
func (r *rig) sender(box outbox) *Sender {
	r.t.Helper()
	s, err := New(box, Config{
		Names: func() []string {
			r.mu.Lock()
			defer r.mu.Unlock()
			return slices.Collect(maps.Keys(r.targets))
		},
		Target: func(name string) (Target, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			target, ok := r.targets[name]
			if !ok {
				return Target{}, ErrNotConfigured
			}
			return target, nil
		},
		Data: func(ctx context.Context, n fallback.Notice) ([]byte, error) {
			rev, err := r.store.Review(ctx, n.ReviewID)
			if errors.Is(err, fallback.ErrUnknownID) {
				return nil, ErrGone
			}
			return fmt.Appendf(nil, `{"id":%q,"flow":%q}`, rev.ID, n.Watcher.Flow), err
		},
		Rand: func() float64 { return 0 }, Log: slog.New(slog.NewTextHandler(&lockedWriter{r}, nil)), Registerer: r.reg, Transport: r,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// configure changes the target of a name; nil is none.
func (r *rig) configure(name string, target *Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.targets, name); target != nil {
		r.targets[name] = *target
	}
}

type lockedWriter struct{ r *rig }

func (w *lockedWriter) Write(b []byte) (int, error) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	return w.r.log.Write(b)
}

func (r *rig) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// start runs a sender; stop ends it and waits.
func start(t *testing.T, s *Sender) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run = %v", err)
		}
	}()
	return func() { cancel(); <-done }
}

// end opens a review with a watcher and ends it.
func (r *rig) end(callback string, dead bool) (id string) {
	r.t.Helper()
	id = uuid.Must(uuid.NewV7()).String()
	a, err := normalize.Restore("planted." + id + "@domain.example")
	if err != nil {
		r.t.Fatal(err)
	}
	fp := normalize.NewFingerprinter([]byte("key")).Of(a)
	ctx := r.t.Context()
	_, err = r.store.Record(ctx, fallback.Entry{ID: id, Fingerprint: fp, DomainKey: 1, Address: a, Reason: verdict.UpstreamTimeout,
		Cause: verdict.CauseUpstream, Watcher: fallback.Watcher{Client: "forms", Flow: "signup", Callback: callback}})
	if err != nil {
		r.t.Fatal(err)
	}
	if dead {
		claimed, err := r.store.Claim(ctx, fallback.ClaimRequest{Max: 1, Lease: time.Minute})
		if err == nil {
			err = r.store.Kill(ctx, claimed.Claims[0], verdict.Unmapped)
		}
		if err != nil {
			r.t.Fatal(err)
		}
		return id
	}
	now := time.Now()
	_, settled, err := r.store.SettleOpen(ctx, fp, verdict.Verdict{ID: id, Status: verdict.Valid, Reason: verdict.MailboxAccepted, CheckedAt: now, SoftUntil: now}, nil)
	if err != nil || !settled {
		r.t.Fatalf("SettleOpen = %v, %v", settled, err)
	}
	return id
}

func (r *rig) stats() fallback.OutboxStats {
	r.t.Helper()
	st, err := r.store.OutboxStats(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return st
}

func (r *rig) results(s *Sender) map[string]int {
	out := map[string]int{}
	for _, name := range []string{resultDelivered, resultFailed, resultGivenUp, resultGone, resultUnwanted} {
		if n := int(testutil.ToFloat64(s.metrics.deliveries.WithLabelValues(name))); n > 0 {
			out[name] = n
		}
	}
	return out
}

func wantResults(t *testing.T, got map[string]int, want map[string]int) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("results are %v, want %v", got, want)
	}
}

func TestDelivers(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		s := r.sender(r.store)
		defer start(t, s)()
		ended := time.Now()
		settled, dead := r.end("crm", false), r.end("crm", true)
		r.end("", false)
		time.Sleep(3 * time.Second)
		got := r.deliveries()
		if len(got) != 2 || got[0].id == got[1].id {
			t.Fatalf("%d deliveries, want 2 with ids of their own", len(got))
		}
		told := map[string]string{}
		for _, d := range got {
			if uuid.Validate(d.id) != nil || d.header.Get("Content-Type") != "application/json" {
				t.Errorf("headers are %v", d.header)
			}
			if stamp := fmt.Sprint(d.at.Unix()); d.header.Get("webhook-timestamp") != stamp ||
				d.header.Get("webhook-signature") != sign([]secret.Text{key}, d.id, d.at, d.body) {
				t.Errorf("timestamp %s and signature %s are not those of the time and the body", d.header.Get("webhook-timestamp"), d.header.Get("webhook-signature"))
			}
			var m struct {
				Type      string
				Timestamp time.Time
				Data      struct{ ID, Flow string }
			}
			if err := json.Unmarshal(d.body, &m); err != nil {
				t.Fatal(err)
			}
			if m.Timestamp.Sub(ended).Abs() > time.Second || m.Data.Flow != "signup" {
				t.Errorf("message is %s, ended at %v", d.body, ended)
			}
			told[m.Data.ID] = m.Type
		}
		if told[settled] != "review.settled" || told[dead] != "review.dead" {
			t.Errorf("told %v", told)
		}
		time.Sleep(10 * time.Minute)
		if n := len(r.deliveries()); n != 2 || r.stats() != (fallback.OutboxStats{}) {
			t.Errorf("%d deliveries and %+v after ten minutes, want no more", n, r.stats())
		}
		wantResults(t, r.results(s), map[string]int{resultDelivered: 2})
	})
}

// A wake-up saves the wait for the next look.
func TestWake(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		s := r.sender(r.store)
		defer start(t, s)()
		time.Sleep(3 * time.Second)
		for range 2*perCallback + 1 { // more than fit at once
			r.end("crm", false)
		}
		s.Wake()
		time.Sleep(time.Second)
		if n := len(r.deliveries()); n != 2*perCallback+1 {
			t.Errorf("%d deliveries a second after a wake-up, want all", n)
		}
	})
}

// patient is an outbox of one message that saves the looks that would find nothing: a day has 40,000.
type patient struct {
	outbox
	due atomic.Pointer[time.Time]
}

func (p *patient) ClaimNotices(ctx context.Context, room map[string]int, lease time.Duration) ([]fallback.Notice, error) {
	if due := p.due.Load(); due != nil && time.Now().Before(*due) {
		return nil, nil
	}
	return p.outbox.ClaimNotices(ctx, room, lease)
}

func (p *patient) DelayNotice(ctx context.Context, n fallback.Notice, in time.Duration, why string) error {
	due := time.Now().Add(in)
	p.due.Store(&due)
	return p.outbox.DelayNotice(ctx, n, in, why)
}

func (p *patient) EndNotice(ctx context.Context, n fallback.Notice, delivered bool, why string) error {
	due := time.Now().Add(1000 * time.Hour)
	p.due.Store(&due)
	return p.outbox.EndNotice(ctx, n, delivered, why)
}

func TestRetriesForADay(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.answer = func(string, int) (int, error) { return 0, errors.New(`Post "https://crm.example/T0KEN": refused`) }
		s := r.sender(&patient{outbox: r.store})
		defer start(t, s)()
		ended := time.Now()
		r.end("crm", false)
		time.Sleep(72 * time.Hour)
		got := r.deliveries()
		const h, m = time.Hour, time.Minute
		waits := []time.Duration{0, 5 * time.Second, 30 * time.Second, 2 * m, 10 * m, 30 * m, h, 2 * h, 4 * h, 4 * h, 4 * h, 4 * h, 4 * h}
		before := ended
		for i, d := range got {
			if i == len(got)-1 {
				break
			}
			// Found at the next look.
			if late := d.at.Sub(before) - waits[min(i, len(waits)-1)]; late < 0 || late > pollEvery+restAfter {
				t.Errorf("delivery %d is %v after the one before, want %v", i+1, d.at.Sub(before), waits[min(i, len(waits)-1)])
			}
			before = d.at
			if d.id != got[0].id {
				t.Errorf("delivery %d has another id", i+1)
			}
		}
		if n := len(got); n != len(waits)+1 {
			t.Errorf("%d deliveries, want %d", n, len(waits)+1)
		}
		if last := got[len(got)-1].at.Sub(ended); last < giveUp || last > giveUp+2*pollEvery {
			t.Errorf("the last delivery is after %v, want a day", last)
		}
		if st := r.stats(); st.GivenUp != 1 || st.Waiting != 0 {
			t.Errorf("OutboxStats = %+v, want one given up", st)
		}
		wantResults(t, r.results(s), map[string]int{resultFailed: len(waits), resultGivenUp: 1})
		text := r.logged()
		if strings.Count(text, "does not take messages") != 1 || strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, "callback was given up") {
			t.Errorf("want one warning and one error: %s", text)
		}
		for _, no := range []string{"T0KEN", "crm.example", "planted"} {
			if strings.Contains(text, no) {
				t.Errorf("the log holds %s: %s", no, text)
			}
		}
	})
}

func TestDownThenUp(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		up := time.Now().Add(30 * time.Minute)
		r.answer = func(string, int) (int, error) {
			if time.Now().Before(up) {
				return 503, nil
			}
			return 204, nil
		}
		s := r.sender(r.store)
		defer start(t, s)()
		for range 30 {
			r.end("crm", false)
		}
		time.Sleep(90 * time.Minute)
		took := map[string]int{}
		for _, d := range r.deliveries() {
			if !d.at.Before(up) {
				took[d.id]++
			}
		}
		for id, n := range took {
			if n != 1 {
				t.Errorf("message %s was taken %d times, want once", id, n)
			}
		}
		if len(took) != 30 || r.stats() != (fallback.OutboxStats{}) {
			t.Errorf("%d messages were taken, and %+v is left, want all 30", len(took), r.stats())
		}
		if text := r.logged(); strings.Count(text, "does not take messages") != 1 || strings.Count(text, "takes messages again") != 1 {
			t.Errorf("want its trouble's begin and end: %s", text)
		}
	})
}

// A target that never answers holds up nobody else's messages.
func TestHangingTarget(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.answer = func(name string, _ int) (int, error) {
			if name == "slow" {
				return hang, nil
			}
			return 200, nil
		}
		s := r.sender(r.store)
		defer start(t, s)()
		for range 50 {
			r.end("slow", false)
		}
		time.Sleep(time.Minute)
		at := time.Now()
		for range 20 {
			r.end("crm", false)
		}
		time.Sleep(5 * time.Second)
		n := 0
		for _, d := range r.deliveries() {
			if d.name == "crm" && d.at.Sub(at) < 5*time.Second {
				n++
			}
		}
		if n != 20 {
			t.Errorf("%d of 20 messages were delivered beside a target that hangs", n)
		}
		if got := r.results(s); got[resultFailed] < 4*perCallback {
			t.Errorf("results are %v, want time-outs of the one that hangs", got)
		}
	})
}

// failingEnd is an outbox whose first writes after a delivery are lost, as in a crash.
type failingEnd struct {
	outbox
	left atomic.Int32
}

func (f *failingEnd) EndNotice(ctx context.Context, n fallback.Notice, delivered bool, why string) error {
	if f.left.Add(-1) >= 0 {
		return errors.New("crash")
	}
	return f.outbox.EndNotice(ctx, n, delivered, why)
}

func TestCrashBetweenDeliveryAndWrite(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		box := &failingEnd{outbox: r.store}
		box.left.Store(1)
		defer start(t, r.sender(box))()
		r.end("crm", false)
		time.Sleep(lease - time.Second)
		if n := len(r.deliveries()); n != 1 {
			t.Fatalf("%d deliveries within the lease, want 1", n)
		}
		time.Sleep(10 * time.Second)
		got := r.deliveries()
		if len(got) != 2 || got[0].id != got[1].id {
			t.Errorf("%d deliveries after the lease, want the same message again", len(got))
		}
		if r.stats() != (fallback.OutboxStats{}) {
			t.Errorf("OutboxStats = %+v, want nothing", r.stats())
		}
	})
}

func TestTwoSenders(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		one := r.sender(r.store)
		r.reg = prometheus.NewRegistry()
		two := r.sender(r.store)
		for range 60 {
			r.end("crm", false)
		}
		defer start(t, one)()
		defer start(t, two)()
		time.Sleep(time.Minute)
		took := map[string]int{}
		for _, d := range r.deliveries() {
			took[d.id]++
		}
		if len(took) != 60 || len(r.deliveries()) != 60 {
			t.Errorf("%d messages in %d deliveries, want 60 once each", len(took), len(r.deliveries()))
		}
		if a, b := r.results(one)[resultDelivered], r.results(two)[resultDelivered]; a == 0 || b == 0 {
			t.Errorf("they delivered %d and %d, want both to have a share", a, b)
		}
	})
}

func TestStop(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.answer = func(name string, _ int) (int, error) {
			if name == "slow" {
				return hang, nil
			}
			time.Sleep(2 * time.Second)
			return 200, nil
		}
		s := r.sender(r.store)
		stop := start(t, s)
		r.end("crm", false)
		r.end("slow", false)
		s.Wake()
		time.Sleep(time.Second)
		if n := len(r.deliveries()); n != 2 {
			t.Fatalf("%d deliveries begun, want 2", n)
		}
		began := time.Now()
		stop()
		if took := time.Since(began); took != stopTime {
			t.Errorf("stopping took %v, want %v for the one that hangs", took, stopTime)
		}
		if st := r.stats(); st.Waiting != 1 {
			t.Errorf("OutboxStats = %+v, want the one that hangs", st)
		}
		// It was given back: another takes it at once.
		got, err := r.store.ClaimNotices(t.Context(), map[string]int{"slow": 1}, lease)
		if err != nil || len(got) != 1 {
			t.Errorf("ClaimNotices = %d, %v, want it due at once", len(got), err)
		}
		if strings.Contains(r.logged(), "WARN") {
			t.Errorf("the target is blamed for the stop: %s", r.logged())
		}
	})
}

func TestWhatIsNotDelivered(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.answer = func(string, int) (int, error) { return http.StatusGone, nil }
		s := r.sender(r.store)
		defer start(t, s)()
		crm := r.targets["crm"]
		r.configure("crm", nil)
		r.end("crm", false)
		time.Sleep(10 * time.Minute)
		if n := len(r.deliveries()); n != 0 || r.stats().Waiting != 1 {
			t.Errorf("%d deliveries and %+v while it is not configured, want it to wait", n, r.stats())
		}
		crm.Events = []string{fallback.NoticeDead}
		r.configure("crm", &crm)
		time.Sleep(time.Minute)
		if n := len(r.deliveries()); n != 0 || r.stats() != (fallback.OutboxStats{}) {
			t.Errorf("%d deliveries and %+v of an event that it is not told, want nothing", n, r.stats())
		}
		r.end("crm", true)
		time.Sleep(10 * time.Minute)
		if n := len(r.deliveries()); n != 1 || r.stats() != (fallback.OutboxStats{}) {
			t.Errorf("%d deliveries and %+v after 410, want one and nothing", n, r.stats())
		}
		wantResults(t, r.results(s), map[string]int{resultUnwanted: 1, resultGone: 1})
	})
}

func TestMetrics(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.sender(r.store)
		families, err := r.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		series := 0
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), "validator_gw_callback_") {
				t.Errorf("metric %s", f.GetName())
			}
			for _, m := range f.GetMetric() {
				series++
				if h := m.GetHistogram(); h != nil {
					series += len(h.GetBucket()) + 2 // +Inf, sum and count
				}
			}
		}
		if len(families) != 3 || series > 20 {
			t.Errorf("%d metrics with %d series at the start, want 3 with 20 at the most", len(families), series)
		}
	})
}

// Over real sockets.
func TestDeliverOnTheWire(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int32
	mux := http.NewServeMux()
	target := httptest.NewServer(mux)
	defer target.Close()
	mux.HandleFunc("POST /ok", func(w http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err != nil || string(body) != "{}" || r.Header.Get("User-Agent") != userAgent {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	mux.HandleFunc("/elsewhere", func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
	for _, code := range []int{301, 302, 303, 307, 308} {
		mux.HandleFunc(fmt.Sprint("/", code), func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", code) })
	}
	cut := make(chan error, 1)
	mux.HandleFunc("/huge", func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				cut <- err
				return
			}
		}
	})
	mux.HandleFunc("/headers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Huge", strings.Repeat("x", 1<<20))
	})
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, _ := http.NewResponseController(w).Hijack()
		conn.Close()
	})
	mux.HandleFunc("/500", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })

	s, err := New(nil, Config{Names: func() []string { return nil }, Target: func(string) (Target, error) { return Target{}, nil },
		Data: func(context.Context, fallback.Notice) ([]byte, error) { return nil, nil }, Rand: func() float64 { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.private.CloseIdleConnections()
	const redirects = "target redirects, which is refused: configure the URL that it points to"
	for _, c := range []struct {
		path        string
		result, why string
	}{
		{"/ok", resultDelivered, ""},
		{"/301", resultFailed, redirects}, {"/302", resultFailed, redirects}, {"/303", resultFailed, redirects},
		{"/307", resultFailed, redirects}, {"/308", resultFailed, redirects},
		{"/huge", resultDelivered, ""},
		{"/headers", resultFailed, "target could not be reached"},
		{"/broken", resultFailed, "target could not be reached"},
		{"/500", resultFailed, "target answered 500"},
		{"/none", resultFailed, "target answered 404"},
	} {
		result, why := s.deliver(t.Context(), "id", Target{URL: target.URL + c.path, Keys: []secret.Text{key}, Private: true}, []byte("{}"))
		if result != c.result || why != c.why {
			t.Errorf("%s: %s, %q, want %s, %q", c.path, result, why, c.result, c.why)
		}
	}
	<-cut // the rest of a huge answer is not read
	if result, why := s.deliver(t.Context(), "id", Target{URL: target.URL + "/ok", Keys: []secret.Text{key}}, []byte("{}")); result != resultFailed || why != ErrForbidden.Error() {
		t.Errorf("this machine without allow_private: %s, %q, want it refused", result, why)
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("redirects were followed %d times", n)
	}
}

func TestNewWantsItsParts(t *testing.T) {
	t.Parallel()
	if _, err := New(nil, Config{}); err == nil {
		t.Error("New without its functions = no error")
	}
}
