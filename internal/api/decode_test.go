package api

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"validator-gw/internal/validate"
)

// What decodeJSON lets through is what encoding/json reads, text for text, and nothing that it would have replaced.
func FuzzDecodeJSON(f *testing.F) {
	for _, s := range []string{
		`{"email":"ana@example.com"}`, `{"email":"\u00f1\ud83d\ude00\\u\"","typing":true}`, `{"email":"\ud800"}`,
		`{"email":"a","email":"b"}`, `{"email":"a"} x`, `{"email":null}`, `{"email":"\\\ud83d\ude00"}`,
		"{\"email\":\"\xff\"}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var email, flow *string
		var typing *bool
		if decodeJSON(body, fields{"email": &email, "flow": &flow, "typing": &typing}) != nil {
			return
		}
		var want struct {
			Email  *string `json:"email"`
			Flow   *string `json:"flow"`
			Typing *bool   `json:"typing"`
		}
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatalf("decodeJSON took %q, encoding/json does not: %v", body, err)
		}
		same := func(a, b *string) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
		if !same(email, want.Email) || !same(flow, want.Flow) || (typing == nil) != (want.Typing == nil) {
			t.Fatalf("decodeJSON(%q) differs from encoding/json", body)
		}
		if email != nil && strings.ContainsRune(*email, utf8.RuneError) &&
			!strings.ContainsRune(string(body), utf8.RuneError) && !strings.Contains(strings.ToLower(string(body)), `\ufffd`) {
			t.Fatalf("decodeJSON(%q) = %q, a character was replaced", body, *email)
		}
	})
}

// BenchmarkValidate is one answered request through the whole edge with logging on, against a bare handler that decodes
// and encodes the same JSON.
func BenchmarkValidate(b *testing.B) {
	bench := setup(b, func(c *Config) {
		c.Log = slog.New(slog.NewJSONHandler(discard{}, nil))
	})
	bench.desk.asked = make([]validate.Request, 0, 1<<20)
	run := func(b *testing.B, h http.Handler) {
		b.ReportAllocs()
		for b.Loop() {
			bench.desk.asked = bench.desk.asked[:0]
			r := httptest.NewRequest("POST", "/validate", strings.NewReader(`{"email":"ana@example.com"}`))
			r.Header.Set("Content-Type", mediaJSON)
			r.Header.Set("Authorization", "Bearer "+testKey)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != 200 {
				b.Fatal(w.Code)
			}
		}
	}
	b.Run("edge", func(b *testing.B) { run(b, bench.api.Handler()) })
	b.Run("bare", func(b *testing.B) {
		answer := toWire(bench.desk.answers["ana@example.com"], english)
		run(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var body struct{ Email string }
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				b.Fatal(err)
			}
			w.Header().Set("Content-Type", mediaJSON)
			_ = json.NewEncoder(w).Encode(answer)
		}))
	})
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
