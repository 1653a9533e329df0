package settings

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// write puts text into a settings file of its own.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// row finds one setting.
func row(t *testing.T, s *Settings, path string) Row {
	t.Helper()
	for _, r := range s.Rows() {
		if r.Path == path {
			return r
		}
	}
	t.Fatalf("no setting %s", path)
	return Row{}
}

func TestLayers(t *testing.T) {
	t.Parallel()
	path := write(t, `
# what we tuned
retry:
  base: 100ms
  jitter: 80ms
upstream: {rate: 300/m, burst: 40}
flows:
  newsletter:
    budget: 400ms
    max_retries: 0
queue.workers: 4
retry.budget_ratio: 0.25
`)
	s, err := Load(path, []string{
		"VALIDATOR_GW_RETRY_JITTER=90ms", "VALIDATOR_GW_UPSTREAM_BURST= 50 ", "VALIDATOR_GW_FLOWS_NEWSLETTER_MAX_RETRIES=1",
		"VALIDATOR_GW_RETRY_MAX=", "PATH=/bin", "VALIDATOR_GW_FLOWS_HIGH_RISK_ON_UNVERIFIED=accept_pending",
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][2]string{
		"retry.base":                    {"100ms", "settings.yaml:4"},
		"retry.jitter":                  {"90ms", "VALIDATOR_GW_RETRY_JITTER"},
		"retry.max":                     {"400ms", "default"}, // an empty variable is not set
		"retry.budget_ratio":            {"0.25", "settings.yaml:12"},
		"upstream.rate":                 {"5/s", "settings.yaml:6"},
		"upstream.burst":                {"50", "VALIDATOR_GW_UPSTREAM_BURST"},
		"flows.newsletter.budget":       {"400ms", "settings.yaml:9"},
		"flows.newsletter.max_retries":  {"1", "VALIDATOR_GW_FLOWS_NEWSLETTER_MAX_RETRIES"},
		"flows.high_risk.on_unverified": {"accept_pending", "VALIDATOR_GW_FLOWS_HIGH_RISK_ON_UNVERIFIED"},
		"queue.workers":                 {"4", "settings.yaml:11"},
	} {
		if r := row(t, s, path); r.Value != want[0] || r.Origin != want[1] {
			t.Errorf("%s = %s (%s), want %s (%s)", path, r.Value, r.Origin, want[0], want[1])
		}
	}
	if got := s.Retry.Jitter; got != 90*time.Millisecond {
		t.Errorf("Retry.Jitter = %v", got)
	}
	want := Flow{Budget: 400 * time.Millisecond, MaxRetries: 1, OnUnverified: AcceptPending}
	if got := s.Flows["newsletter"]; got != want {
		t.Errorf("flow newsletter = %+v, want %+v", got, want)
	}
	if w := s.Warnings(); !slices.ContainsFunc(w, func(w string) bool {
		return strings.Contains(w, "retry.jitter") && strings.Contains(w, "VALIDATOR_GW_RETRY_JITTER sets it") &&
			strings.Contains(w, "settings.yaml:5")
	}) {
		t.Errorf("no word that the environment wins over the file: %q", w)
	}
}

// All faults of all layers come at once, each with its setting, value, bound and origin.
func TestAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	path := write(t, `retry:
  base: 0.2
  bse: 100ms
flows:
  signup:
    budget: 2s
breaker:
  window: 500
queue: 7
cache:
  valid: {soft: 30d, hard: 7d}
`)
	s, err := Load(path, []string{
		"VALIDATOR_GW_UPSTREAM_RATE=fast", "VALIDATOR_GW_RETRY_BASES=1s", "VALIDATOR_GW_QUEUE_BATCH=51",
	})
	if err == nil || s != nil {
		t.Fatalf("Load = %v, %v, want faults and no settings", s, err)
	}
	want := [][]string{
		{`retry.base (settings.yaml:2)`, `"0.2"`, "has no unit", "1ms–10s"},
		{`retry.bse (settings.yaml:3)`, "no such setting", "did you mean retry.base?"},
		{`flows.signup.budget (settings.yaml:6)`, `"2s"`, "above the most, 950ms", "300ms–950ms"},
		{`breaker.window (settings.yaml:8)`, `"500"`, "above the most, 50"},
		{`queue (settings.yaml:9)`, "is a section of settings"},
		{`cache.valid.soft 30d (settings.yaml:11)`, `cache.valid.hard 7d (settings.yaml:11)`},
		{`upstream.rate (VALIDATOR_GW_UPSTREAM_RATE)`, `"fast"`, "50/s, 300/m"},
		{`VALIDATOR_GW_RETRY_BASES`, "did you mean VALIDATOR_GW_RETRY_BASE?"},
		{`queue.batch (VALIDATOR_GW_QUEUE_BATCH)`, `"51"`, "above the most, 50", "1–50"},
	}
	faults := Faults(err)
	if len(faults) != len(want) {
		t.Errorf("%d faults, want %d:\n%s", len(faults), len(want), strings.Join(faults, "\n"))
	}
	for _, parts := range want {
		if !slices.ContainsFunc(faults, func(f string) bool {
			return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(f, p) })
		}) {
			t.Errorf("no fault with %q in:\n%s", parts, strings.Join(faults, "\n"))
		}
	}
}

func TestMissingFileDoesNotHideOtherFaults(t *testing.T) {
	t.Parallel()
	_, err := Load(filepath.Join(t.TempDir(), "none.yaml"), []string{"VALIDATOR_GW_RETRY_BASE=x"})
	if faults := Faults(err); len(faults) != 2 || !strings.Contains(faults[0], "none.yaml") ||
		!strings.Contains(faults[1], "VALIDATOR_GW_RETRY_BASE") {
		t.Errorf("faults = %q", faults)
	}
}

func TestFileForms(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, text, fault string }{
		{"empty", "", ""},
		{"blank", " \n\n", ""},
		{"comments only", "# retry:\n#   base: 1s\n", ""},
		{"document mark only", "---\n", ""},
		{"null section", "retry:\ncache:\n", ""},
		{"empty section", "retry: {}\nflows: {signup: {}, newsletter: {}}\n", ""},
		{"null", "null\n", ""},
		{"anchors", "x: &b 100ms\n", "x (settings.yaml:1): no such setting"},
		{"a number where digits suffice", "queue: {max_open: 1000}\n", ""},
		{"null value", "retry: {base: }\n", "retry.base (settings.yaml:1): wants one value"},
		{"list value", "retry: {base: [1s, 2s]}\n", "wants one value"},
		{"list section", "retry: [1s]\n", "is a section of settings, not a list"},
		{"map for a value", "retry: {base: {min: 1s}}\n",
			"retry.base.min (settings.yaml:1): no such setting; did you mean retry.base?"},
		{"list", "- a\n", "not a YAML mapping"},
		{"scalar", "hello\n", "not a YAML mapping"},
		{"two documents", "retry: {base: 1ms}\n---\nretry: {base: 2ms}\n", "more than one YAML document"},
		{"twice the same key", "retry: {base: 1ms}\nretry: {max: 1s}\n", "already defined"},
		{"not YAML", "retry: {base: 1s\n", "settings.yaml: yaml: "},
		{"tab", "retry:\n\tbase: 1s\n", "settings.yaml: yaml: "},
		{"flow name", "flows: {Sign Up: {budget: 500ms}}\n", "a flow's name is"},
		{"flows of one variable", "flows: {a-b: {}, a_b: {}}\n", "have the same variable, VALIDATOR_GW_FLOWS_A_B_BUDGET"},
		{"not a setting of a flow", "flows: {signup: {bugdet: 500ms}}\n", "did you mean flows.signup.budget?"},
		{"nothing near", "telemetry: true\n", "telemetry (settings.yaml:1): no such setting"},
		{"large", "#" + strings.Repeat("x", 1<<20), "larger than 1 MiB"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := Load(write(t, tc.text), nil)
			switch {
			case tc.fault == "" && err != nil:
				t.Errorf("Load(%q): %v", tc.text, err)
			case tc.fault != "" && (err == nil || !strings.Contains(err.Error(), tc.fault)):
				t.Errorf("Load(%q): %v, want %q", tc.text, err, tc.fault)
			}
		})
	}
}

func TestKnownNames(t *testing.T) {
	t.Parallel()
	known := []Known{
		{Env: "VALIDATOR_GW_LISTEN", Path: "listen"},
		{Env: "VALIDATOR_GW_UPSTREAM_KEY", Path: "upstream.key", Secret: true},
		{Env: "VALIDATOR_GW_CONFIG"},
		{Env: "DATABASE_URL", Path: "database_url", Secret: true},
	}
	path := write(t, "listen: 127.0.0.1:1\nupstream: {rate: 7}\n")
	s, err := Load(path, []string{"VALIDATOR_GW_LISTEN=:80", "VALIDATOR_GW_CONFIG=x", "DATABASE_URL=y"}, known...)
	if err != nil {
		t.Fatal(err)
	}
	if text, ok := s.Static("listen"); !ok || text != "127.0.0.1:1" {
		t.Errorf("Static(listen) = %q, %v", text, ok)
	}
	if _, ok := s.Static("upstream.key"); ok {
		t.Error("a key that is not in the file is reported")
	}

	_, err = Load(write(t, "upstream: {key: s3cr3t-value}\ndatabase_url: postgres://u:s3cr3t-value@h/d\nlistn: x\n"),
		[]string{"VALIDATOR_GW_UPSTREAM_KEI=s3cr3t-value"}, known...)
	if err == nil {
		t.Fatal("no faults")
	}
	for _, want := range []string{
		"upstream.key (settings.yaml:1): a secret does not belong into the settings file",
		"give it as VALIDATOR_GW_UPSTREAM_KEY",
		"give it as DATABASE_URL", "did you mean listen?", "did you mean VALIDATOR_GW_UPSTREAM_KEY?",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "s3cr3t-value") {
		t.Errorf("a secret is shown: %v", err)
	}
}

func TestWhatKubernetesInjects(t *testing.T) {
	t.Parallel()
	legal := []string{
		"VALIDATOR_GW_SERVICE_HOST=10.0.0.1", "VALIDATOR_GW_SERVICE_PORT=80", "VALIDATOR_GW_SERVICE_PORT_HTTP=80",
		"VALIDATOR_GW_PORT=tcp://10.0.0.1:80", "VALIDATOR_GW_PORT_80_TCP=tcp://10.0.0.1:80",
		"VALIDATOR_GW_PORT_80_TCP_ADDR=10.0.0.1", "VALIDATOR_GW_PORT_80_TCP_PROTO=tcp",
		"VALIDATOR_GW_METRICS_SERVICE_HOST=10.0.0.2", "VALIDATOR_GW_METRICS_SERVICE_PORT=9090",
		"VALIDATOR_GW_METRICS_PORT=tcp://10.0.0.2:9090", "VALIDATOR_GW_METRICS_PORT_9090_TCP_PORT=9090",
	}
	s, err := Load("", legal)
	if err != nil || len(s.Warnings()) > 0 {
		t.Errorf("Load: %v, warnings %q", err, s.Warnings())
	}
	for _, entry := range []string{"VALIDATOR_GW_LISTEN_PORT=8080", "VALIDATOR_GW_HOST=10.0.0.1", "VALIDATOR_GW_=1"} {
		if _, err := Load("", []string{entry}); err == nil {
			t.Errorf("%s is taken for one of Kubernetes'", entry)
		}
	}
	s, err = Load("", []string{"VALIDATOR_GW_PORT=8080"})
	if err != nil || len(s.Warnings()) != 1 || !strings.Contains(s.Warnings()[0], "VALIDATOR_GW_LISTEN") {
		t.Errorf("a port by hand: %v, %q, want a warning that names VALIDATOR_GW_LISTEN", err, s.Warnings())
	}
}

func TestContradictions(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		environ []string
		faults  []string // parts, one a fault
		warns   []string
	}{
		{"pauses", []string{"RETRY_BASE=500ms"},
			[]string{"retry.base 500ms (VALIDATOR_GW_RETRY_BASE) is more than retry.max 400ms (default)"}, nil},
		{"loop pauses", []string{"BACKGROUND_RETRY_MAX=500ms"},
			[]string{"background.retry.base 1s (default) is more than"}, nil},
		{"ratio", []string{"BREAKER_MIN_SAMPLES=31"}, []string{"breaker.min_samples 31"}, nil},
		{"grace", []string{"BREAKER_SLOW_GRACE=11s"}, []string{"breaker.slow_grace 11s"}, nil},
		{"attempt", []string{"LATE_TIMEOUT=2s", "RETRY_ATTEMPT_TIMEOUT=3s"},
			[]string{"retry.attempt_timeout 3s"}, nil},
		{"marker", []string{"CACHE_MARKER_MIN=2m"}, []string{"cache.marker.min 2m"}, nil},
		{"invalid", []string{"CACHE_INVALID_HARD=1h"},
			[]string{"cache.invalid.soft 24h (default) is more than cache.invalid.hard 1h"}, nil},
		{"unresolved", []string{"CACHE_UNRESOLVED_SOFT=25h"}, []string{"cache.unresolved.soft 25h"}, nil},
		{"shares", []string{"UPSTREAM_INTERACTIVE_RESERVE=0.95"}, []string{"are more than 1 together"}, nil},
		{"shares that just fit", []string{"UPSTREAM_INTERACTIVE_RESERVE=0.9"}, nil, nil},
		{"several", []string{"RETRY_BASE=500ms", "CACHE_MARKER_MIN=2m"},
			[]string{"retry.base", "cache.marker.min"}, nil},
		{"no guess about what is faulty itself", []string{"RETRY_MAX=x", "RETRY_BASE=9s"},
			[]string{`retry.max (VALIDATOR_GW_RETRY_MAX): "x"`}, nil},
		{"no retry fits, by default", []string{"FLOWS_SIGNUP_BUDGET=300ms"}, nil,
			[]string{"flows.signup.max_retries 2 (default) never happens"}},
		{"no retry fits, asked for", []string{"FLOWS_SIGNUP_BUDGET=300ms", "FLOWS_SIGNUP_MAX_RETRIES=1"},
			[]string{"leaves the upstream 150ms, and a retry needs 230ms"}, nil},
		{"no retry wanted", []string{"FLOWS_SIGNUP_BUDGET=300ms", "FLOWS_SIGNUP_MAX_RETRIES=0"}, nil, nil},
		{"a retry just fits", []string{"FLOWS_SIGNUP_BUDGET=380ms"}, nil, nil},
		{"jitter", []string{"RETRY_JITTER=49ms", "BACKGROUND_RETRY_JITTER=0"}, nil,
			[]string{"retry.jitter 49ms", "background.retry.jitter 0"}},
		{"jitter enough", []string{"RETRY_JITTER=50ms"}, nil, nil},
		{"workers for the backlog", []string{"UPSTREAM_RATE=260"}, nil,
			[]string{"queue.workers 8 (default) do some 26 checks a second in one process, and upstream.rate 260/s"}},
		{"workers enough", []string{"UPSTREAM_RATE=260", "QUEUE_WORKERS=78"}, nil, nil},
		{"lease", []string{"QUEUE_LEASE=5s"}, nil, []string{"queue.lease 5s"}},
		{"loop attempt", []string{"BACKGROUND_BUDGET=5s"}, nil, []string{"background.retry.attempt_timeout 10s"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for i := range tc.environ {
				tc.environ[i] = EnvPrefix + tc.environ[i]
			}
			s, err := Load("", tc.environ)
			faults := Faults(err)
			var warns []string
			if err == nil {
				warns = s.Warnings()
			}
			for _, c := range []struct {
				what      string
				got, want []string
			}{{"faults", faults, tc.faults}, {"warnings", warns, tc.warns}} {
				if len(c.got) != len(c.want) {
					t.Errorf("%s %q, want %q", c.what, c.got, c.want)
					continue
				}
				for i := range c.want {
					if !strings.Contains(c.got[i], c.want[i]) {
						t.Errorf("%s %q, want %q", c.what, c.got[i], c.want[i])
					}
				}
			}
		})
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"retry.bse", "retry.base", 1}} {
		if got := distance(tc.a, tc.b); got != tc.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}

func TestCallbacks(t *testing.T) {
	t.Parallel()
	path := write(t, `
callbacks:
  crm: {url: "https://crm.example.com/hooks/T0KEN?x=1", secret_file: /run/secrets/crm}
  mail: {url: "http://10.0.0.5:8080", secret_file: mail.key, events: [review.dead], allow_private: true}
`)
	s, err := Load(path, []string{"VALIDATOR_GW_CALLBACKS_MAIL_SECRET_FILE=other.key"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Callback{
		"crm":  {URL: "https://crm.example.com/hooks/T0KEN?x=1", SecretFile: "/run/secrets/crm", Events: []string{"review.settled", "review.dead"}},
		"mail": {URL: "http://10.0.0.5:8080", SecretFile: "other.key", Events: []string{"review.dead"}, AllowPrivate: true},
	}
	if diff := cmp.Diff(want, s.Callbacks); diff != "" {
		t.Errorf("Callbacks (-want +got):\n%s", diff)
	}
	for path, want := range map[string][2]string{
		"callbacks.crm.url":            {"https://crm.example.com/…", "settings.yaml:3"},
		"callbacks.crm.events":         {"review.settled,review.dead", "default"},
		"callbacks.mail.url":           {"http://10.0.0.5:8080", "settings.yaml:4"},
		"callbacks.mail.secret_file":   {"other.key", "VALIDATOR_GW_CALLBACKS_MAIL_SECRET_FILE"},
		"callbacks.mail.allow_private": {"true", "settings.yaml:4"},
	} {
		if r := row(t, s, path); r.Value != want[0] || r.Origin != want[1] || !r.Live {
			t.Errorf("%s = %s (%s), want %s (%s) and live", path, r.Value, r.Origin, want[0], want[1])
		}
	}
}

func TestFaultyCallbacks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, callback, want string }{
		{"no URL", `{secret_file: a}`, "callbacks.crm.url is not set"},
		{"no secret", `{url: "https://a.example"}`, "callbacks.crm.secret_file is not set"},
		{"http", `{url: "HTTP://a.example/T0KEN", secret_file: a}`, "callbacks.crm.url (settings.yaml:1) is not https"},
		{"another scheme", `{url: "ftp://a.example/T0KEN", secret_file: a, allow_private: true}`, `"ftp://a.example/…" is not https`},
		{"no host", `{url: "https:///T0KEN", secret_file: a}`, `"(not shown)" is not a URL`},
		{"no URL at all", `{url: "T0KEN", secret_file: a}`, `"(not shown)" is not a URL`},
		{"a user", `{url: "https://me:T0KEN@a.example", secret_file: a}`, "has a user or a fragment"},
		{"unknown event", `{url: "https://a.example", secret_file: a, events: [review.settled, other]}`, "names an event that there is not"},
		{"no event", `{url: "https://a.example", secret_file: a, events: []}`, "names no event"},
		{"a key in the file", `{url: "https://a.example", secret: whsec_T0KEN}`, "callbacks.crm.secret (settings.yaml:1): no such setting"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := Load(write(t, "callbacks: {crm: "+c.callback+"}\n"), nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Load = %v, want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "T0KEN") {
				t.Errorf("the fault shows what may be a secret: %v", err)
			}
		})
	}
	if _, err := Load(write(t, "callbacks: {CRM: {}}\n"), nil); err == nil || !strings.Contains(err.Error(), "callbacks.CRM (settings.yaml:1): a callback's name is") {
		t.Errorf("Load with a bad name = %v", err)
	}
}
