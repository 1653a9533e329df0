package verimail

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// provided is testdata/profiles: bodies in the shape of the vendor's documentation, and what each comes to by the mapping
// that docs/profiles.md shows.
type provided struct {
	Body  string
	Cases []providedCase
	Flag  struct{ Place, Flag string } // a boolean of the body and the flag that it becomes
}

type providedCase struct {
	HTTP       int
	Header     map[string]string
	Text       *string
	With       map[string]any // changes to Body, by path
	Want       string         // status and reason, or a class
	Reasons    []verdict.Reason
	Flags      map[string]bool // when given: these, and no others
	Suggestion string
	Score      *int
	Said       *string
	Wait       time.Duration
	Recheck    time.Duration
}

// casesAt is when the rows with a wait are read.
var casesAt = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func cases(t testing.TB, name string) provided {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "profiles", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	var p provided
	if err := dec.Decode(&p); err != nil {
		t.Fatal(err)
	}
	return p
}

func contract(t testing.TB, name string) *Profile {
	t.Helper()
	p, err := LoadProfile(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// body is the case's body: its own text, or the provider's with its changes.
func (c providedCase) body(t testing.TB, base string) string {
	t.Helper()
	if c.Text != nil {
		return *c.Text
	}
	var root map[string]any
	if err := json.Unmarshal([]byte(base), &root); err != nil {
		t.Fatal(err)
	}
	for path, v := range c.With {
		keys := strings.Split(path, ".")
		at := root
		for _, k := range keys[:len(keys)-1] {
			next, ok := at[k].(map[string]any)
			if !ok {
				t.Fatalf("no object %s in the body", k)
			}
			at = next
		}
		at[keys[len(keys)-1]] = v
	}
	b, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (c providedCase) code() int {
	if c.HTTP == 0 {
		return http.StatusOK
	}
	return c.HTTP
}

func (c providedCase) name() string {
	if c.Text != nil {
		return fmt.Sprintf("%d %s", c.code(), *c.Text)
	}
	return fmt.Sprintf("%d %v", c.code(), c.With)
}

// Every row of the mapping, every class, and what is not in the mapping.
func TestProfiles(t *testing.T) {
	t.Parallel()
	for _, name := range Profiles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, set := contract(t, name), cases(t, name)
			for _, c := range set.Cases {
				a := p.decode(c.code(), []byte(c.body(t, set.Body)))
				got := string(a.class)
				if strings.Contains(c.Want, " ") {
					got = string(a.status) + " " + string(a.reason)
				}
				if got != c.Want {
					t.Errorf("%s: %s, want %s", c.name(), got, c.Want)
					continue
				}
				if len(a.reasons) == 0 || a.reasons[0] != a.reason || !slices.Contains(slices.Concat(verdict.FinalReasons, verdict.ReviewReasons), a.reason) {
					t.Errorf("%s: reason %q of %q", c.name(), a.reason, a.reasons)
				}
				if c.Reasons != nil && !slices.Equal(a.reasons, c.Reasons) {
					t.Errorf("%s: reasons %q, want %q", c.name(), a.reasons, c.Reasons)
				}
				if c.Flags != nil {
					var want verdict.Flags
					for f, v := range c.Flags {
						setFlag(&want, f, verdict.Known(v))
					}
					if d := cmp.Diff(want, a.flags); d != "" {
						t.Errorf("%s: flags (-want +got):\n%s", c.name(), d)
					}
				}
				if a.suggestion != c.Suggestion {
					t.Errorf("%s: suggestion %q, want %q", c.name(), a.suggestion, c.Suggestion)
				}
				if c.Score != nil && (a.score == nil || *a.score != *c.Score) {
					t.Errorf("%s: score %v, want %d", c.name(), a.score, *c.Score)
				}
				if said := (&provider{Profile: p}).quote(a.result, address(t, "tell-tale")); c.Said != nil && said != *c.Said {
					t.Errorf("%s: said %q, want %q", c.name(), said, *c.Said)
				}
				if wait := a.waitOf(casesAt, time.Hour); wait != c.Recheck {
					t.Errorf("%s: recheck in %v, want %v", c.name(), wait, c.Recheck)
				}
			}
		})
	}
}

// Every row of every shipped profile has a case that it answers.
func TestEveryRowHasACase(t *testing.T) {
	t.Parallel()
	for _, name := range Profiles {
		p, set := contract(t, name), cases(t, name)
		reached := map[int]bool{}
		for _, c := range set.Cases {
			var body any
			if json.Unmarshal([]byte(c.body(t, set.Body)), &body) != nil {
				continue
			}
			for i, r := range p.rows {
				if r.when.hold(body) {
					reached[i] = true
					break
				}
			}
		}
		for i, r := range p.rows {
			if !reached[i] {
				t.Errorf("%s: no case reaches the row on line %d", name, r.line)
			}
		}
	}
}

// What is no answer gives no verdict, whoever sends it.
func TestProfilesGarbage(t *testing.T) {
	t.Parallel()
	for _, name := range Profiles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, set := contract(t, name), cases(t, name)
			bad := map[string]string{
				"a page": "<!DOCTYPE html><html><body>" + set.Body + "</body></html>", "nothing": "", "spaces": " \n", "a text": `"valid"`, "a list": "[" + set.Body + "]",
				"a number": "1", "true": "true", "half": set.Body[:len(set.Body)-1], "two": set.Body + set.Body,
				"nesting": strings.Repeat("[", 32<<10), "nested objects": strings.Repeat(`{"a":`, 11_000) + "1" + strings.Repeat("}", 11_000),
			}
			for what, body := range bad {
				if a := p.decode(200, []byte(body)); a.class != classBadBody || a.status.Final() {
					t.Errorf("%s: %s %s", what, a.class, a.status)
				}
			}
			for what, body := range map[string]string{"null": "null", "empty": "{}", "deep": strings.Repeat(`{"result":`, 5000) + `"valid"` + strings.Repeat("}", 5000)} {
				if a := p.decode(200, []byte(body)); a.class != classSoftError && a.class != classUnmapped {
					t.Errorf("%s: %s %s", what, a.class, a.status)
				}
			}
			// A part of the body that is something else: no panic, and never a verdict when it was the result.
			var root map[string]any
			if err := json.Unmarshal([]byte(set.Body), &root); err != nil {
				t.Fatal(err)
			}
			for key, old := range root {
				for _, other := range []any{"nothing", 7, true, nil, []any{}, map[string]any{}, []any{map[string]any{"status": "valid"}}} {
					root[key] = other
					body, err := json.Marshal(root)
					if err != nil {
						t.Fatal(err)
					}
					a := p.decode(200, body)
					if key == p.result[0][0] && len(p.result) == 1 && a.status.Final() && name != "kickbox" && name != "emailable" && name != "bouncer" {
						t.Errorf("%s = %v is %s %s", key, other, a.status, a.reason)
					}
				}
				root[key] = old
			}
		})
	}
}

// The spellings of a boolean, in a flag of each provider.
func TestProfilesBooleans(t *testing.T) {
	t.Parallel()
	for _, name := range Profiles {
		p, set := contract(t, name), cases(t, name)
		if set.Flag.Flag == "" {
			continue
		}
		for _, b := range []struct {
			value any
			want  verdict.Tri
		}{
			{true, verdict.True}, {"true", verdict.True}, {"TRUE", verdict.True}, {"yes", verdict.True}, {1, verdict.True}, {"1", verdict.True},
			{map[string]any{"value": true, "text": "TRUE"}, verdict.True},
			{false, verdict.False}, {"false", verdict.False}, {"no", verdict.False}, {0, verdict.False}, {map[string]any{"value": false}, verdict.False},
			{nil, verdict.Unknown}, {"unknown", verdict.Unknown}, {"", verdict.Unknown}, {2, verdict.Unknown}, {"perhaps", verdict.Unknown},
			{[]any{true}, verdict.Unknown}, {map[string]any{}, verdict.Unknown}, {map[string]any{"value": map[string]any{"value": true}}, verdict.Unknown},
		} {
			body := providedCase{With: map[string]any{set.Flag.Place: b.value}}.body(t, set.Body)
			var want verdict.Flags
			setFlag(&want, set.Flag.Flag, b.want)
			var got verdict.Flags
			a := p.decode(200, []byte(body))
			switch set.Flag.Flag {
			case "role":
				got.Role = a.flags.Role
			case "free":
				got.Free = a.flags.Free
			case "disposable":
				got.Disposable = a.flags.Disposable
			}
			if a.class != classVerdict || got != want {
				t.Errorf("%s: %s = %v is %+v (%s), want %+v", name, set.Flag.Place, b.value, got, a.class, want)
			}
		}
	}
}

// What is done about each class, with every provider that has it: one call or two when one retry is allowed, what the
// breaker is told, which gate is closed, on which ladder the review goes.
func TestClasses(t *testing.T) {
	t.Parallel()
	const ok, bad, nothing = "a success", "a failure", "nothing"
	type doing struct {
		outcome string
		cause   verdict.Cause
		calls   int
		tells   string
		gate    string
	}
	want := map[class]doing{
		classVerdict:       {verdict.AttemptAnswered, "", 1, ok, ""},
		classLegalStop:     {verdict.AttemptAnswered, "", 1, ok, ""},
		classTransient:     {verdict.AttemptTransient, verdict.CauseMailbox, 1, ok, ""},
		classInProgress:    {verdict.AttemptPending, verdict.CauseUpstream, 1, nothing, ""}, // 2 where asking again is free
		classSoftError:     {verdict.AttemptUnusable, verdict.CauseUnusable, 1, nothing, ""},
		classUnmapped:      {verdict.AttemptUnusable, verdict.CauseUnusable, 1, nothing, ""},
		classContradictory: {verdict.AttemptUnusable, verdict.CauseUnusable, 1, nothing, ""},
		classThrottled:     {verdict.AttemptThrottled, verdict.CauseUpstream, 2, nothing, ""},
		classQuota:         {verdict.AttemptQuota, verdict.CauseUpstream, 1, nothing, "account"},
		classAuth:          {verdict.AttemptAuth, verdict.CauseUpstream, 1, nothing, "account"},
		classRefused:       {verdict.AttemptRefused, verdict.CauseUnusable, 1, nothing, ""},
		classFault:         {verdict.AttemptFault, verdict.CauseUpstream, 2, bad, ""},
		classBadBody:       {verdict.AttemptBadBody, verdict.CauseUpstream, 1, bad, ""},
	}
	seen := map[class]int{}
	for _, name := range Profiles {
		p, set := contract(t, name), cases(t, name)
		page := "<html>"
		all := append(set.Cases, providedCase{Text: &page, Want: string(classBadBody)})
		done := map[class]bool{}
		for _, c := range all {
			body := c.body(t, set.Body)
			is := p.decode(c.code(), []byte(body)).class
			if done[is] {
				continue
			}
			done[is] = true
			seen[is]++
			t.Run(name+"/"+string(is), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					var header []string
					for k, v := range c.Header {
						header = append(header, k, v)
					}
					r := newRig(t, simulator.Config{}, answering(c.code(), body, header...), func(cfg *Config) { cfg.Contract = p })
					out := r.askWithin("ana", 50*time.Second, 1)
					synctest.Wait()
					w := want[is]
					if is == classInProgress && (name == "emailable" || name == "hunter") {
						w.calls = 2
					}
					if c.Wait > 0 {
						w.gate = "not-before"
					}
					if got := strings.TrimSpace(strings.Repeat(w.outcome+" ", w.calls)); outcomes(out) != got {
						t.Errorf("trail %q, want %q", outcomes(out), got)
					}
					if out.Cause != w.cause || out.Verdict.Provider != name {
						t.Errorf("by %q of %s, want %q", out.Cause, out.Verdict.Provider, w.cause)
					}
					n := uint32(w.calls)
					told := map[string]health{ok: {successes: n}, bad: {failures: n}, nothing: {excluded: n}}[w.tells]
					if got := r.health(); got != told {
						t.Errorf("the breaker was told %+v, want %+v", got, told)
					}
					gate := ""
					if _, _, closed := r.account.blocked(time.Now()); closed {
						gate = "account"
					}
					if _, closed := r.gate.blocked(time.Now()); closed {
						gate += "not-before"
					}
					if gate != w.gate {
						t.Errorf("closed gate %q, want %q", gate, w.gate)
					}
					if wait := time.Until(out.NotBefore); w.gate == "" && (wait > 0) != (c.Recheck > 0) {
						t.Errorf("not before %v from now", wait)
					}
				})
			})
		}
	}
	for c := range want {
		if seen[c] == 0 {
			t.Errorf("no provider has %s", c)
		}
	}
	if len(want) != len(actions) {
		t.Errorf("%d classes here, %d in the table", len(want), len(actions))
	}
}

// An address that its owner took back is never asked for again, whatever is allowed.
func TestLegalStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{}, answering(451, `{"errors":[{"id":"claimed_email"}]}`), func(c *Config) { c.Contract = contract(t, "hunter") })
		out := r.askWithin("ana", 30*time.Second, 5)
		if !out.Final() || out.Verdict.Status != verdict.Unresolved || out.Verdict.Reason != verdict.ClaimedByPerson || out.Sent != 1 {
			t.Errorf("%s %s after %d calls", out.Verdict.Status, out.Verdict.Reason, out.Sent)
		}
	})
}

// A wait that a body asks for concerns this address: its review waits, the others do not.
func TestBodyWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{}, answering(200, `{"status":"unknown","reason":"timeout","retryAfter":600}`),
			func(c *Config) { c.Contract = contract(t, "bouncer") })
		out := r.ask("ana", 1)
		if out.Verdict.Reason != verdict.Greylisted || time.Until(out.NotBefore) != 10*time.Minute {
			t.Errorf("%s, not before %v from now", out.Verdict.Reason, time.Until(out.NotBefore))
		}
		if st := r.Standing(); st.Closed {
			t.Errorf("the upstream is closed for everybody: %s", st.Reason)
		}
	})
}

// What the provider said is in the trail, and its reading in the metrics; the words of an address are in neither.
func TestProviderResult(t *testing.T) {
	t.Parallel()
	tests := []struct{ body, said, reading string }{
		{`{"success":true,"result":"deliverable","reason":"accepted_email"}`, "deliverable/accepted_email", "verdict"},
		{`{"success":true,"result":"Brand New","reason":"v2.1-x"}`, "Brand New/v2.1-x", "unmapped"},
		{`{"success":true,"result":"undeliverable","reason":"accepted_email"}`, "undeliverable/accepted_email", "contradictory"},
		{`{"success":true,"result":"accepted_email.person","reason":"x"}`, "x", "unmapped"},
		{`{"success":true,"result":"corp-mail.com","reason":"PERSON"}`, "", "unmapped"},
		{`{"success":true,"result":"a@b","reason":"a\nb"}`, "", "unmapped"},
		{`{"success":true,"result":"` + strings.Repeat("x", 65) + `","reason":"<b>"}`, "", "unmapped"},
		{`{"success":false,"result":"late","message":"person@corp-mail.com"}`, "late", "soft_error"},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{}, answering(200, tt.body), func(c *Config) { c.Contract = contract(t, "kickbox") })
			out := r.ask("person", 0)
			if got := out.Trail[0].ProviderResult; got != tt.said {
				t.Errorf("%s: said %q, want %q", tt.body, got, tt.said)
			}
			if n := r.metric("provider_readings_total", "reading", tt.reading); n != 1 {
				t.Errorf("%s: %v read as %s, want 1", tt.body, n, tt.reading)
			}
		})
	}
}

// FuzzDecode: whatever a provider sends, nothing panics, and there is a verdict only where the profile's own words stand.
func FuzzDecode(f *testing.F) {
	profiles := map[string]*Profile{}
	for _, name := range Profiles {
		profiles[name] = contract(f, name)
		set := cases(f, name)
		for _, c := range set.Cases {
			f.Add(c.code(), []byte(c.body(f, set.Body)))
		}
	}
	f.Add(200, []byte(`{"a":{"a":[{"a":1}]}}`))
	classes := slices.Collect(maps.Keys(actions))
	f.Fuzz(func(t *testing.T, code int, body []byte) {
		if code < 200 || code > 599 || len(body) > maxBody {
			return
		}
		for name, p := range profiles {
			a := p.decode(code, body)
			if !slices.Contains(classes, a.class) || len(a.reasons) == 0 || a.reasons[0] != a.reason {
				t.Fatalf("%s: %+v", name, a)
			}
			if len(a.reasons) > 20 || len(a.result) > 6 || a.score != nil && (*a.score < 0 || *a.score > 100) {
				t.Fatalf("%s: out of bounds: %+v", name, a)
			}
			if a.waitOf(casesAt, time.Hour) < 0 || a.waitOf(casesAt, time.Hour) > time.Hour {
				t.Fatalf("%s: waits %v", name, a.waitOf(casesAt, time.Hour))
			}
			if a.class != classVerdict {
				if a.status.Final() && a.class != classLegalStop {
					t.Fatalf("%s: %s with %s", name, a.class, a.status)
				}
				continue
			}
			if !a.status.Final() || !slices.Contains(verdict.Answers(a.status), a.reason) {
				t.Fatalf("%s: a verdict of %s %s", name, a.status, a.reason)
			}
			if !slices.ContainsFunc(a.result, func(w string) bool { return p.known[strings.ToLower(w)] }) {
				t.Fatalf("%s: %s %s out of %q", name, a.status, a.reason, a.result)
			}
		}
	})
}
