package gateway

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"validator-gw/internal/api/apitest"
	"validator-gw/internal/fallback"
	"validator-gw/internal/validate"
	"validator-gw/internal/verimail/simulator"
)

// send is do with a header, and returns the body as it is. Conformance to the document is part of it.
func (b *bench) send(method, path, body, key string) (code int, header http.Header, text string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	all, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	sent := req.Clone(b.t.Context())
	sent.Body = io.NopCloser(strings.NewReader(body))
	if err := apitest.Conforms(sent, res.StatusCode, res.Header, all); err != nil {
		b.t.Error(err)
	}
	return res.StatusCode, res.Header, string(all)
}

// patient is send again after a 503: a busy test machine is no reason to fail.
func (b *bench) patient(method, path, body, key string) (code int, header http.Header, text string) {
	b.t.Helper()
	for range 30 {
		if code, header, text = b.send(method, path, body, key); code != http.StatusServiceUnavailable && code != http.StatusConflict {
			return code, header, text
		}
		<-time.After(time.Second)
	}
	b.t.Fatalf("%s %s: %d %s for half a minute", method, path, code, text)
	return 0, nil, ""
}

// An answer under a key is byte for byte the same after a restart, whatever became of the check.
func TestIdempotentAnswerOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store func(*testing.T, *Config)) {
		b := newBench(t, store, simulator.Config{}, nil)
		if err := b.sim.SetMode(simulator.Mode{Fault: simulator.Hang}); err != nil {
			t.Fatal(err)
		}
		const body, other = `{"email":"Ana@Example.com"}`, `{"email":"ben@example.com"}`
		code, header, first := b.patient("POST", "/validate", body, `"k1"`)
		if code != http.StatusAccepted || header.Get("Idempotency-Replayed") != "" || !strings.Contains(first, `"ana@example.com"`) {
			t.Fatalf("the first: %d %s, want 202", code, first)
		}
		where := header.Get("Location")
		if err := b.sim.SetMode(simulator.Mode{}); err != nil {
			t.Fatal(err)
		}
		b.halt()
		b.start()
		code, header, again := b.patient("POST", "/validate", body, "k1")
		if code != http.StatusAccepted || again != first || header.Get("Idempotency-Replayed") != "true" || header.Get("Location") != where {
			t.Errorf("the second: %d %s\n%v, want a replay of\n%s", code, again, header, first)
		}
		if code, _, text := b.patient("POST", "/validate", other, "k1"); code != http.StatusUnprocessableEntity {
			t.Errorf("another request: %d %s, want 422", code, text)
		}
		if code, header, _ := b.patient("POST", "/validate", other, "k2"); code != http.StatusOK || header.Get("Idempotency-Replayed") != "" {
			t.Errorf("another key: %d, want 200 of its own", code)
		}
	})
}

func TestEraseAddress(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store func(*testing.T, *Config)) {
		b := newBench(t, store, simulator.Config{}, nil)
		const body = `{"email":"ana@example.com"}`
		_, _, first := b.patient("POST", "/validate", body, "k")
		id := idOf(t, first)
		b.eventually("the verdict is durable", func() bool {
			_, err := b.gateway.store.Verdict(t.Context(), id)
			return err == nil
		})
		code, _, text := b.patient("DELETE", "/addresses", `{"email":" ANA@example.com"}`, "")
		if want := "{\"backfill_rows\":0,\"idempotent_answers\":1,\"reviews\":0,\"verdicts\":1}\n"; code != http.StatusOK || text != want {
			t.Errorf("DELETE: %d %s, want 200 %s", code, text, want)
		}
		if code, _, text := b.patient("GET", "/status/"+id, "", ""); code != http.StatusNotFound {
			t.Errorf("status: %d %s, want 404", code, text)
		}
		code, header, again := b.patient("POST", "/validate", body, "k")
		if code != http.StatusOK || header.Get("Idempotency-Replayed") != "" || idOf(t, again) == id {
			t.Errorf("a new post: %d %s, want a new check", code, again)
		}
		if n := b.sim.Stats().ByAddress["ana@example.com"]; n != 2 {
			t.Errorf("billed %d times, want 2", n)
		}
		if code, _, text := b.patient("DELETE", "/addresses", `{"email":"no address"}`, ""); code != http.StatusBadRequest {
			t.Errorf("DELETE of no address: %d %s, want 400", code, text)
		}
		if log := b.log.String(); strings.Contains(log, "ana@") || strings.Contains(log, "ANA@") {
			t.Error("the log holds the address")
		}
	})
}

func idOf(t *testing.T, text string) string {
	t.Helper()
	var a struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil || a.ID == "" {
		t.Fatalf("no id in %s: %v", text, err)
	}
	return a.ID
}

// What one replica erases, another forgets when it looks at the store next.
func TestReplicasForgetWhatOneErased(t *testing.T) {
	t.Parallel()
	b := newBench(t, stores[1].set, simulator.Config{}, nil)
	other := *b
	other.start()
	t.Cleanup(other.halt)
	const body = `{"email":"ana@example.com"}`
	_, _, first := b.patient("POST", "/validate", body, "")
	id := idOf(t, first)
	b.eventually("the other replica has it", func() bool {
		_, _, text := other.patient("POST", "/validate", body, "")
		return idOf(t, text) == id
	})
	if code, _, text := b.patient("DELETE", "/addresses", body, ""); code != http.StatusOK {
		t.Fatalf("DELETE: %d %s", code, text)
	}
	next := other.gateway.learnErasures(t.Context(), other.gateway.store.(remembering), time.Time{})
	if next.IsZero() {
		t.Error("the other replica learned of nothing")
	}
	if _, _, text := other.patient("POST", "/validate", body, ""); idOf(t, text) == id {
		t.Errorf("the other replica answers %s, want a new check", text)
	}
}

// The command opens the stores by itself.
func TestEraseWithoutAGateway(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store func(*testing.T, *Config)) {
		b := newBench(t, store, simulator.Config{}, nil)
		log := slog.New(slog.DiscardHandler)
		var got []validate.Removed
		erase := func(addresses ...string) error {
			got = nil
			return Erase(t.Context(), b.cfg, b.live.Current(), addresses, func(r validate.Removed) error { got = append(got, r); return nil }, log)
		}
		for _, email := range []string{"ana@example.com", "ben@example.com"} {
			b.patient("POST", "/validate", `{"email":"`+email+`"}`, "")
		}
		if b.cfg.DatabaseURL == "" {
			if err := erase("ana@example.com"); !errors.Is(err, fallback.ErrInUse) || !strings.Contains(err.Error(), "DELETE /addresses") {
				t.Errorf("beside a gateway on SQLite: %v, want ErrInUse and what to do", err)
			}
		}
		b.halt()
		if err := erase("ana@example.com", "no address"); !errors.Is(err, validate.ErrNoAddress) || len(got) != 0 {
			t.Errorf("one that is none: %v, %v, want ErrNoAddress and nothing erased", err, got)
		}
		if err := erase("ana@example.com", "never@example.com"); err != nil || len(got) != 2 || got[0] != (validate.Removed{Verdicts: 1}) || got[1] != (validate.Removed{}) {
			t.Errorf("Erase = %v, %v, want a verdict of the first and nothing of the second", err, got)
		}
		b.start()
		// A slow machine may answer it without a verdict; what counts is that the upstream is asked once more.
		if _, _, text := b.patient("POST", "/validate", `{"email":"ana@example.com"}`, ""); strings.Contains(text, `"kind":"cache"`) {
			t.Errorf("the erased one: %s, want it asked for anew", text)
		}
		b.eventually("the erased one is asked for anew", func() bool { return b.billed("ana@example.com") == 2 })
		if _, _, text := b.patient("POST", "/validate", `{"email":"ben@example.com"}`, ""); !strings.Contains(text, `"kind":"cache"`) {
			t.Errorf("another: %s, want it from the cache", text)
		}
	})
}
