package simulator_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"validator-gw/internal/verimail/simulator"
)

// Each magic name that ends in a whole answer: its status, its result word, whether it is billed.
func TestMagicAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		local       string
		status      int
		result      string
		deliverable bool
		billed      int64
	}{
		{"deliverable", 200, "deliverable", true, 1},
		{"inbox-full", 200, "inbox_full", false, 1},
		{"hardbounce", 200, "hardbounce", false, 1},
		{"softbounce", 200, "softbounce", false, 1},
		{"catch-all", 200, "catch_all", false, 1},
		{"disposable", 200, "disposable", false, 1},
		{"undeliverable", 200, "undeliverable", false, 1},
		{"unknown", 200, "unknown", false, 1},
		{"unmapped", 200, "quarantined", false, 1},
		{"contradictory", 200, "hardbounce", true, 1},
		{"contradictory-deliverable", 200, "deliverable", false, 1},
		{"did-you-mean", 200, "hardbounce", false, 1},
		{"did-you-mean-deliverable", 200, "deliverable", true, 1},
		{"did-you-mean-local", 200, "hardbounce", false, 1},
		{"oversized", 200, "deliverable", true, 1},
		{"status-error", 200, "", false, 1},
		{"bad-request", 400, "", false, 0},
		{"unauthorized", 401, "", false, 0},
		{"payment-required", 402, "", false, 0},
		{"forbidden", 403, "", false, 0},
		{"throttled", 429, "", false, 0},
		{"throttled-60", 429, "", false, 0},
		{"throttled-nonsense", 429, "", false, 0},
		{"server-error", 500, "", false, 0},
		{"unavailable", 503, "", false, 0},
		{"status-502", 502, "", false, 0},
		{"status-404", 404, "", false, 1}, // not among the answers that are free
		{"redirect", 307, "", false, 1},

		// Spellings of one name.
		{"HardBounce", 200, "hardbounce", false, 1},
		{"hardbounce+tag", 200, "hardbounce", false, 1},
		{"hardbounce-17", 200, "hardbounce", false, 1},
		{"hardbounce.17", 200, "hardbounce", false, 1},
		{"hardbounce.17-4+x+y", 200, "hardbounce", false, 1},
		{"inbox_full.3", 200, "inbox_full", false, 1},
		{"status-502.7", 502, "", false, 0},
		{"unavailable.9", 503, "", false, 0},

		// Not magic, so deliverable.
		{"ana", 200, "deliverable", true, 1},
		{"hardbounced", 200, "deliverable", true, 1},
		{"a.hardbounce", 200, "deliverable", true, 1},
		{"hardbounce17", 200, "deliverable", true, 1},
		{"hardbounce.", 200, "deliverable", true, 1},
		{"hardbounce.x", 200, "deliverable", true, 1},
		{"status-200", 200, "deliverable", true, 1},
		{"status-999", 200, "deliverable", true, 1},
		{"status", 200, "deliverable", true, 1},
		{"delay", 200, "deliverable", true, 1},
		{"delay.500", 200, "deliverable", true, 1}, // set off by a dot: no number of its own
		{"delay-600001", 200, "deliverable", true, 1},
		{"12345", 200, "deliverable", true, 1},
		{"-1", 200, "deliverable", true, 1},
	}
	for _, tt := range tests {
		t.Run(tt.local, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSimulator(t, simulator.Config{})
				address := tt.local + "@example.com"
				a := call(t, s, address)
				if a.err != nil || a.status != tt.status || a.word() != tt.result || a.took != 0 {
					t.Errorf("call(%q) = %d %q in %v, %v; want %d %q at once", tt.local, a.status, a.word(), a.took, a.err,
						tt.status, tt.result)
				}
				var body struct {
					Deliverable bool   `json:"deliverable"`
					Status      string `json:"status"`
				}
				if err := json.Unmarshal([]byte(a.body), &body); err != nil {
					t.Fatalf("body of %q is not JSON: %v", tt.local, err)
				}
				if body.Deliverable != tt.deliverable {
					t.Errorf("call(%q): deliverable = %v, want %v", tt.local, body.Deliverable, tt.deliverable)
				}
				if success := body.Status == "success"; success != (tt.result != "") {
					t.Errorf("call(%q): status = %q", tt.local, body.Status)
				}
				if st := s.Stats(); st.Billed != tt.billed || st.ByAddress[address] != tt.billed || st.Calls != 1 ||
					st.CallsByAddress[address] != 1 || st.ByStatus[strconv.Itoa(tt.status)] != 1 || st.InFlight != 0 {
					t.Errorf("after %q: stats = %+v, want %d billed", tt.local, st, tt.billed)
				}
			})
		})
	}
}

func TestVerdictBody(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{})
	want := map[string]any{
		"status": "success", "email": "Catch-All+news@Example.com", "result": "catch_all", "deliverable": false,
		"user": "Catch-All+news", "domain": "Example.com", "did_you_mean": "", "code": 200.0, "message": "",
	}
	a := call(t, s, "Catch-All+news@Example.com")
	var got map[string]any
	if err := json.Unmarshal([]byte(a.body), &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("body (-want +got):\n%s", d)
	}
	if ct := a.header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("Content-Type = %q", ct)
	}
}

func TestSuggestions(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{})
	for email, want := range map[string]string{
		"did-you-mean.3@gmial.com":           "did-you-mean.3@gmail.com",
		"did-you-mean-deliverable@gmial.com": "did-you-mean-deliverable@gmail.com",
		"did-you-mean-local@gmial.com":       "someone.else@gmail.com",
		"deliverable@gmial.com":              "",
	} {
		var body struct {
			DidYouMean string `json:"did_you_mean"`
		}
		if err := json.Unmarshal([]byte(call(t, s, email).body), &body); err != nil || body.DidYouMean != want {
			t.Errorf("call(%q): did_you_mean = %q, %v, want %q", email, body.DidYouMean, err, want)
		}
	}
}

// A text that is no address gets the vendor's only definite no.
func TestNoAddress(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{})
	for _, email := range []string{"ana", "@example.com", "ana@"} {
		if got := call(t, s, email).word(); got != "hardbounce" {
			t.Errorf("call(%q) = %q, want hardbounce", email, got)
		}
	}
}

func TestUnreadableBodies(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{})
	tests := []struct{ local, contentType, prefix string }{
		{"html", "text/html; charset=utf-8", "<!doctype html>"},
		{"truncated", "application/json", `{"status":"success"`},
		{"empty", "application/json", ""},
	}
	for _, tt := range tests {
		a := call(t, s, tt.local+"@example.com")
		if a.err != nil || a.status != 200 || a.header.Get("Content-Type") != tt.contentType {
			t.Errorf("%s: %d %q, %v", tt.local, a.status, a.header.Get("Content-Type"), a.err)
		}
		if json.Valid([]byte(a.body)) || !strings.HasPrefix(a.body, tt.prefix) || (tt.prefix == "") != (a.body == "") {
			t.Errorf("%s: body = %q, want something that starts with %q and is not JSON", tt.local, a.body, tt.prefix)
		}
	}
	if st := s.Stats(); st.Billed != 3 {
		t.Errorf("billed = %d, want 3", st.Billed)
	}
}

func TestHints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // a bubble begins at 2000-01-01 00:00:00 UTC
		s := newSimulator(t, simulator.Config{})
		time.Sleep(250 * time.Millisecond)
		const midnight = 946684800
		tests := []struct{ local, header, want string }{
			{"throttled", "Retry-After", ""},
			{"throttled.17", "Retry-After", ""},
			{"throttled-3600", "Retry-After", "3600"},
			{"throttled-60.17", "Retry-After", "60"},
			{"throttled-date-90", "Retry-After", "Sat, 01 Jan 2000 00:01:31 GMT"},
			{"throttled-date", "Retry-After", "Sat, 01 Jan 2000 00:00:03 GMT"},
			{"throttled-epoch-10", "X-Ratelimit-Reset", strconv.Itoa(midnight + 11)},
			{"throttled-ratelimit-epoch-10", "Ratelimit-Reset", strconv.Itoa(midnight + 11)},
			{"throttled-ratelimit-delta-10", "Ratelimit-Reset", "10"},
			{"throttled-nonsense", "Retry-After", "soon"},
			{"unavailable", "Retry-After", ""},
			{"unavailable-30", "Retry-After", "30"},
		}
		for _, tt := range tests {
			a := call(t, s, tt.local+"@example.com")
			got := make(http.Header)
			for _, name := range []string{"Retry-After", "X-Ratelimit-Reset", "Ratelimit-Reset"} {
				if v := a.header.Values(name); v != nil {
					got[name] = v
				}
			}
			want := http.Header{}
			if tt.want != "" {
				want.Set(tt.header, tt.want)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", tt.local, d)
			}
		}
	})
}

func TestMagicTimes(t *testing.T) {
	t.Parallel()
	const kept = 20 * time.Second
	tests := []struct {
		local   string
		timeout time.Duration
		took    time.Duration
		err     error
		label   string
	}{
		{"delay-750", time.Minute, 750 * time.Millisecond, nil, "200"},
		{"delay-750.2", 500 * time.Millisecond, 500 * time.Millisecond, context.DeadlineExceeded, "200"},
		{"hang", time.Second, time.Second, context.DeadlineExceeded, "hang"},
		{"hang.2", time.Minute, kept, io.EOF, "hang"},
		{"reset", time.Second, 0, syscall.ECONNRESET, "reset"},
		{"cut-off", time.Second, 0, io.ErrUnexpectedEOF, "200"},
		{"slow-drip", time.Second, time.Second, context.DeadlineExceeded, "200"},
	}
	for _, tt := range tests {
		t.Run(tt.local, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSimulator(t, simulator.Config{MaxHang: kept, DripInterval: 10 * time.Millisecond})
				a := callWithin(t, s, tt.local+"@example.com", tt.timeout)
				if a.took != tt.took || !errors.Is(a.err, tt.err) {
					t.Errorf("call(%q) took %v, error %v; want %v, %v", tt.local, a.took, a.err, tt.took, tt.err)
				}
				if st := s.Stats(); st.Billed != 1 || st.ByStatus[tt.label] != 1 || st.InFlight != 0 {
					t.Errorf("stats = %+v, want 1 billed %s, none in flight", st, tt.label)
				}
			})
		})
	}
}

func TestSlowDrip(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSimulator(t, simulator.Config{})
		a := call(t, s, "slow-drip@example.com")
		if want := time.Duration(len(a.body)) * 100 * time.Millisecond; a.took != want || a.word() != "deliverable" {
			t.Errorf("took %v for %q, want %v", a.took, a.body, want)
		}
	})
}

func TestFlip(t *testing.T) {
	t.Parallel()
	s := newSimulator(t, simulator.Config{MaxAddresses: 3})
	expect := func(email string, want ...string) {
		t.Helper()
		var got []string
		for range want {
			a := call(t, s, email)
			got = append(got, strings.TrimSpace(strconv.Itoa(a.status)+" "+a.word()))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", email, d)
		}
	}
	expect("flip-after-2@example.com", "200 unknown", "200 unknown", "200 deliverable", "200 deliverable")
	expect("flip-after-2.1@example.com", "200 unknown", "200 unknown", "200 deliverable") // counts for itself
	expect("recover-after-1@example.com", "503", "200 deliverable")
	expect("flip-after-0@example.com", "200 deliverable")
	expect("flip-after-1.4@example.com", "200 unknown", "200 unknown", "200 unknown") // beyond MaxAddresses
	s.Reset()
	expect("flip-after-2@example.com", "200 unknown", "200 unknown", "200 deliverable")
}

func TestMix(t *testing.T) {
	t.Parallel()
	mix, err := simulator.ParseMix("deliverable=80, hardbounce=15, unavailable-30=5")
	if err != nil {
		t.Fatal(err)
	}
	count := func(seed uint64) map[string]int {
		s := newSimulator(t, simulator.Config{Mix: mix, Seed: seed})
		got := make(map[string]int)
		for i := range 2000 {
			email := "person" + strconv.Itoa(i) + "@example.com"
			first, again := call(t, s, email), call(t, s, email)
			if first.word() != again.word() {
				t.Fatalf("%s: %q, then %q", email, first.word(), again.word())
			}
			got[strconv.Itoa(first.status)+first.word()]++
		}
		if w := call(t, s, "softbounce@example.com").word(); w != "softbounce" {
			t.Errorf("a magic name gave %q", w)
		}
		return got
	}
	got := count(7)
	// 2000 draws: four standard deviations are at most 72.
	for word, want := range map[string]int{"200deliverable": 1600, "200hardbounce": 300, "503": 100} {
		if n := got[word]; n < want-72 || n > want+72 {
			t.Errorf("%s: %d of 2000, want about %d", word, n, want)
		}
	}
	if d := cmp.Diff(got, count(7)); d != "" {
		t.Errorf("the same seed gave something else:\n%s", d)
	}
	if cmp.Equal(got, count(8)) {
		t.Error("another seed gave the same")
	}
}

func TestParseMixRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"deliverable", "ana=1", "hardbounce=x", "hardbounce=0", "hardbounce=-1", "hardbounce=NaN",
		"hardbounce=1,,unknown=2", "delay=1",
	} {
		if m, err := simulator.ParseMix(text); err == nil {
			t.Errorf("ParseMix(%q) = %v, want an error", text, m)
		}
	}
	if m, err := simulator.ParseMix(" "); m != nil || err != nil {
		t.Errorf("ParseMix of nothing = %v, %v", m, err)
	}
}

// What is documented is what there is.
func TestMagicNamesAreDocumented(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"doc.go", "../../../docs/simulator.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		words := strings.FieldsFunc(string(text), func(r rune) bool { return !strings.ContainsRune(nameRunes, r) })
		for _, name := range simulator.MagicNames() {
			found := false
			for _, w := range words {
				found = found || w == name || w == name+"-N"
			}
			if !found {
				t.Errorf("%s does not name %s", file, name)
			}
		}
	}
	text, err := os.ReadFile("../../../docs/simulator.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range simulator.Faults {
		if !strings.Contains(string(text), "`"+string(f)+"`") {
			t.Errorf("docs/simulator.md does not name the mode %s", f)
		}
	}
	for _, h := range simulator.Hints {
		if !strings.Contains(string(text), "`"+string(h)+"`") {
			t.Errorf("docs/simulator.md does not name the hint %s", h)
		}
	}
}

const nameRunes = "abcdefghijklmnopqrstuvwxyz-N"
