package api

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"validator-gw/internal/validate"
)

// What decodeJSON lets through is what encoding/json reads, text for text, and nothing that it would have replaced.
// And it refuses for the same reason as the plain way of reading JSON token by token, wherever the text is JSON at all.
func FuzzDecodeJSON(f *testing.F) {
	for _, s := range []string{
		`{"email":"ana@example.com"}`, `{"email":"\u00f1\ud83d\ude00\\u\"","typing":true}`, `{"email":"\ud800"}`,
		`{"email":"a","email":"b"}`, `{"email":"a"} x`, `{"email":null}`, `{"email":"\\\ud83d\ude00"}`,
		"{\"email\":\"\xff\"}", ` { "flow" : "" , "\u0065mail" : "x" } `, `{"other":{"a":[1,"]}",{}]},"email":"a"}`, `{"email":["a"]}`,
		`{"typing":1e5,"flow":"b"}`, `{"typing":"true"}`, `{"typing":null}`, `{"email":"a","\u0065mail":"b"}`, `{"Email":"a"}`, `{}`, ` `, `"a"`,
		`{"email":"a"}{}`, `{"email":"a",}`, "{\"email\":\"a\tb\"}", `{"email":tru}`, `{"flow":true}`, `{"typing":false , "flow":"\\"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var email, flow *string
		var typing *bool
		var slowEmail, slowFlow *string
		var slowTyping *bool
		slow := decodeByTokens(body, fields{{name: "email", text: &slowEmail}, {name: "flow", text: &slowFlow}, {name: "typing", flag: &slowTyping}})
		got := decodeJSON(body, fields{{name: "email", text: &email}, {name: "flow", text: &flow}, {name: "typing", flag: &typing}})
		if (got == nil) != (slow == nil) || json.Valid(body) && got != slow {
			t.Fatalf("decodeJSON(%q) = %v, token by token %v", body, got, slow)
		}
		if got != nil {
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

// decodeByTokens is decodeJSON by encoding/json's tokens.
func decodeByTokens(body []byte, dest fields) *problem {
	if !utf8.Valid(body) {
		return notUTF8
	}
	if !wholeEscapes(body) {
		return halfSurrogate
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return notOneObject
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return notOneObject
		}
		name := t.(string)
		i := slices.IndexFunc(dest, func(f field) bool { return f.name == name })
		switch {
		case i < 0:
			return unknownField
		case seen[name]:
			return fieldTwice
		}
		seen[name] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return notOneObject
		}
		var to any = dest[i].text
		if dest[i].flag != nil {
			to = dest[i].flag
		}
		if value[0] == 'n' || json.Unmarshal(value, to) != nil {
			return wrongType
		}
	}
	if _, err := d.Token(); err != nil {
		return notOneObject
	}
	if _, err := d.Token(); err != io.EOF {
		return notOneObject
	}
	return nil
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
