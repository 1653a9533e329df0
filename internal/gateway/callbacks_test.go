package gateway

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"validator-gw/internal/settings"
	"validator-gw/internal/verimail/simulator"
)

const plantedHook = "planted-hook-token-77ab"

// receiver is a system that is called back. It verifies as docs/callbacks.md says, with nothing of ours.
type receiver struct {
	t      *testing.T
	url    string
	secret string // path of its file
	key    []byte

	mu   sync.Mutex
	down bool
	got  map[string][]message // by webhook-id
}

type message struct {
	Type      string         `json:"type"`
	Timestamp time.Time      `json:"timestamp"`
	Data      map[string]any `json:"data"`
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{t: t, secret: filepath.Join(t.TempDir(), "key"), key: []byte("planted-signing-key-of-32-bytes."), got: map[string][]message{}}
	if err := os.WriteFile(r.secret, []byte("whsec_"+base64.StdEncoding.EncodeToString(r.key)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.url = server.URL + "/" + plantedHook
	return r
}

// ServeHTTP takes a message.
func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	id := q.Header.Get("webhook-id")
	mac := hmac.New(sha256.New, r.key)
	mac.Write([]byte(id + "." + q.Header.Get("webhook-timestamp") + "." + string(body)))
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); q.Header.Get("webhook-signature") != want {
		r.t.Errorf("signature is %q, want %q", q.Header.Get("webhook-signature"), want)
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		r.t.Errorf("body %s: %v", body, err)
	}
	r.got[id] = append(r.got[id], m)
}

// messages returns what came, and fails when one came twice.
func (r *receiver) messages() (all []message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, of := range r.got {
		if len(of) != 1 {
			r.t.Errorf("message %s came %d times, want once", id, len(of))
		}
		all = append(all, of...)
	}
	return all
}

func (r *receiver) set(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
}

// withCallbacks configures crm, which is told everything.
func (r *receiver) withCallbacks(s *settings.Settings) {
	s.Callbacks["crm"] = settings.Callback{URL: r.url, SecretFile: r.secret, Events: settings.Events, AllowPrivate: true}
	s.LateTimeout, s.Breaker.Cooldown, s.Upstream.Rate, s.Upstream.Burst = 3*time.Second, time.Second, 50, 100
}

// sameAsStatus compares a message with what GET /status says, but for the age, which goes on.
func (b *bench) sameAsStatus(m message, flow string) {
	b.t.Helper()
	id, _ := m.Data["id"].(string)
	code, _, text := b.send(http.MethodGet, "/status/"+id+"?flow="+flow, "", "")
	var status map[string]any
	if err := json.Unmarshal([]byte(text), &status); err != nil || code != 200 {
		b.t.Fatalf("GET /status/%s: %d %s", id, code, text)
	}
	for _, a := range []map[string]any{status, m.Data} {
		delete(a["source"].(map[string]any), "age_ms")
	}
	if diff := cmp.Diff(status, m.Data); diff != "" {
		b.t.Errorf("the message is not what GET /status says (-status +message):\n%s", diff)
	}
}

// Posted while the upstream hangs, it heals, and each flow that asked is told once. The receiver is down at first, and the
// gateway is restarted before it is up.
func TestCallback(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store func(*testing.T, *Config)) {
		r := newReceiver(t)
		r.set(true)
		b := newBench(t, store, simulator.Config{MaxHang: 3 * time.Second}, r.withCallbacks)
		if err := b.sim.SetMode(simulator.Mode{Fault: simulator.Hang}); err != nil {
			t.Fatal(err)
		}
		const body = `{"email":"deliverable@example.com","callback":"crm"}`
		code, _, text := b.patient(http.MethodPost, "/validate", body, "")
		if code != http.StatusAccepted {
			t.Fatalf("post while the upstream hangs: %d %s, want 202", code, text)
		}
		id := idOf(t, text)
		// A marker answers these; the watcher is written all the same.
		for range 2 {
			code, _, text = b.patient(http.MethodPost, "/validate", strings.Replace(body, `"callback"`, `"flow":"high_risk","callback"`, 1), "")
			if code != http.StatusAccepted || idOf(t, text) != id {
				t.Fatalf("post of another flow: %d %s, want 202 and %s", code, text, id)
			}
		}
		if code, _, text := b.send(http.MethodPost, "/validate", `{"email":"a@example.com","callback":"nobody"}`, ""); code != 422 || !strings.Contains(text, "unknown_callback") {
			t.Errorf("an unknown callback: %d %s, want 422", code, text)
		}
		if err := b.sim.SetMode(simulator.Mode{Fault: simulator.Healthy}); err != nil {
			t.Fatal(err)
		}
		b.eventually("the review is settled", func() bool { return b.status(id).Status == "valid" })
		b.eventually("a delivery failed", func() bool { return strings.Contains(b.log.String(), "callback does not take messages") })
		b.halt()
		r.set(false)
		b.start()
		b.eventually("both are told", func() bool { return len(r.messages()) == 2 })
		for _, m := range r.messages() {
			if m.Type != "review.settled" || m.Data["id"] != id || m.Data["status"] != "valid" || m.Data["email"].(map[string]any)["normalized"] != nil {
				t.Errorf("message is %+v", m)
			}
			b.sameAsStatus(m, "signup")
		}
		b.eventually("nothing waits", func() bool {
			st, err := b.gateway.store.OutboxStats(t.Context())
			return err == nil && st.Waiting == 0 && st.GivenUp == 0
		})
		if n := len(r.messages()); n != 2 {
			t.Errorf("%d messages, want 2", n)
		}
		res, err := http.Get(b.metrics)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		metrics, err := io.ReadAll(res.Body)
		if err != nil || !strings.Contains(string(metrics), `validator_gw_callback_deliveries_total{result="delivered"} 2`) {
			t.Errorf("the metrics don't count both deliveries (%v)", err)
		}
		for _, secret := range []string{plantedHook, string(r.key), base64.StdEncoding.EncodeToString(r.key), "deliverable@example.com"} {
			if strings.Contains(b.log.String(), secret) || strings.Contains(string(metrics), secret) {
				t.Errorf("the log or the metrics hold %q", secret)
			}
		}
	})
}

// An event that asks for a check is told its end, too.
func TestCallbackOfAnEvent(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store func(*testing.T, *Config)) {
		r := newReceiver(t)
		b := newBench(t, store, simulator.Config{}, r.withCallbacks)
		code, _, text := b.patient(http.MethodPost, "/revalidate", `{"email":"deliverable@example.com","callback":"crm"}`, "")
		if code != http.StatusAccepted {
			t.Fatalf("event: %d %s, want 202", code, text)
		}
		b.eventually("it is told", func() bool { return len(r.messages()) == 1 })
		if m := r.messages()[0]; m.Data["id"] != idOf(t, text) || m.Data["status"] != "valid" {
			t.Errorf("message is %+v", m)
		} else {
			b.sameAsStatus(m, "signup")
		}
		// A final answer is not told again.
		if code, _, text := b.patient(http.MethodPost, "/validate", `{"email":"deliverable@example.com","callback":"crm"}`, ""); code != 200 {
			t.Errorf("post: %d %s, want 200", code, text)
		}
		if st, err := b.gateway.store.OutboxStats(t.Context()); err != nil || st.Waiting != 0 {
			t.Errorf("OutboxStats = %+v, %v, want nothing", st, err)
		}
	})
}

func TestCheckCallbacks(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	s := settings.Default()
	r.withCallbacks(s)
	if err := CheckCallbacks(s); err != nil {
		t.Errorf("CheckCallbacks = %v, want no fault", err)
	}
	for _, name := range []string{"mail", "other"} {
		s.Callbacks[name] = settings.Callback{URL: r.url, SecretFile: filepath.Join(t.TempDir(), name)}
	}
	err := CheckCallbacks(s)
	if faults := settings.Faults(err); len(faults) != 2 || !strings.HasPrefix(faults[0], "callbacks.mail.secret_file: ") || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("CheckCallbacks = %q, want both faults", faults)
	}
}
