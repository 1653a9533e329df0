package api

import (
	"context"
	"errors"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
)

func TestLogLine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.do(t, request{body: `{"email":"slow@example.com","flow":"high_risk"}`,
		header: map[string]string{"X-Request-Id": "signup-1"}})
	lines := b.log.lines(t)
	if len(lines) != 1 {
		t.Fatalf("%d lines for one request: %v", len(lines), lines)
	}
	got := lines[0]
	if d, ok := got["duration_us"].(float64); !ok || d < 0 {
		t.Errorf("duration_us = %v, want a number", got["duration_us"])
	}
	delete(got, "duration_us")
	delete(got, "time")
	want := map[string]any{
		"level": "INFO", "msg": "request", "request_id": "signup-1", "route": "/validate", "method": "POST",
		"http_status": 202., "client": "backend", "flow": "high_risk", "check_id": checkID, "fingerprint": "Zk3_9a",
		"status": "needs_review", "decision": "accept_pending", "reason": "upstream_timeout", "source": "none",
		"attempts": 1., "backoff_ms": 130.,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("line:\n%s", diff)
	}
}

func TestLogLevels(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		q           request
		level, code string
		err         string
	}{
		{request{body: `{"email":"ana@example.com"}`}, "INFO", "", ""},
		{request{body: `{`}, "INFO", "malformed_body", ""},
		{request{body: `{"email":"nodb@example.com"}`}, "WARN", "not_durable",
			"no answer and nothing durable could be written: unexpected EOF"},
		{request{body: `{"email":"strange@example.com"}`}, "ERROR", "internal", "io: read/write on closed pipe"},
		{request{method: "GET", target: "/livez"}, "DEBUG", "", ""},
		{request{method: "BREW", target: "/livez"}, "INFO", "method_not_allowed", ""},
	} {
		b := setup(t)
		res := b.do(t, c.q)
		line := b.log.lines(t)[0]
		code, _ := line["code"].(string)
		text, _ := line["error"].(string)
		if diff := cmp.Diff([]string{c.level, c.code, c.err}, []string{line["level"].(string), code, text}); diff != "" {
			t.Errorf("%s %s: level, code, error:\n%s", c.q.method, c.q.target, diff)
		}
		if c.err != "" && strings.Contains(string(res.body), c.err) {
			t.Errorf("the error's own text went on the wire: %s", res.body)
		}
	}
}

func TestPanics(t *testing.T) {
	t.Parallel()
	var index []int
	runtimeError := func() (v any) {
		defer func() { v = recover() }()
		return index[len(index)]
	}()
	for name, v := range map[string]any{
		"text": "planted.person@example.com", "error": errors.New("planted.person@example.com"), "runtime": runtimeError,
	} {
		b := setup(t)
		b.desk.panics = v
		res := b.do(t, request{body: `{"email":"planted.person@example.com"}`})
		if res.status != 500 || res.json["code"] != "internal" {
			t.Errorf("%s: %d %s, want 500 internal", name, res.status, res.body)
		}
		lines := b.log.lines(t)
		if len(lines) != 2 || lines[0]["msg"] != "panic" || lines[0]["level"] != "ERROR" ||
			!strings.Contains(lines[0]["stack"].(string), "ValidateAddress") || lines[1]["msg"] != "request" {
			t.Errorf("%s: log %v, want a panic with its stack, then the request", name, lines)
		}
		if strings.Contains(b.log.String(), "planted") || strings.Contains(string(res.body), "planted") {
			t.Errorf("%s: the panic's text got out", name)
		}
		b.desk.panics = nil
		if got := testutil.ToFloat64(b.api.metrics.inFlight.WithLabelValues("/validate")); got != 0 {
			t.Errorf("%s: %v requests in flight after the panic", name, got)
		}
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	b := setup(t)
	count := func(labels ...string) float64 {
		return testutil.ToFloat64(b.api.metrics.requests.WithLabelValues(labels...))
	}
	series := func() int {
		n, err := testutil.GatherAndCount(b.registry, "validator_gw_http_requests_total")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := series()
	if before < 50 {
		t.Errorf("%d series before the first request, want all that the document allows", before)
	}
	for _, q := range []request{
		{body: `{"email":"ana@example.com"}`}, {body: `{"email":"any@example.org"}`}, {body: `{"email":"slow@example.com"}`},
		{body: `{`}, {body: `{}`, key: "none"}, {method: "GET", target: "/status/" + checkID},
		{method: "GET", target: "/status/7"}, {method: "GET", target: "/livez"},
	} {
		b.do(t, q)
	}
	if got := series(); got != before {
		t.Errorf("documented requests made %d new series", got-before)
	}
	b.do(t, request{method: "GET", target: "/ana@example.com"})
	b.do(t, request{method: "ANA", target: "/validate"})
	for _, c := range []struct {
		labels []string
		want   float64
	}{
		{[]string{"/validate", "POST", "200"}, 2}, {[]string{"/validate", "POST", "202"}, 1},
		{[]string{"/validate", "POST", "400"}, 1}, {[]string{"/validate", "POST", "401"}, 1},
		{[]string{"/status/{id}", "GET", "200"}, 1}, {[]string{"/status/{id}", "GET", "404"}, 1},
		{[]string{"/livez", "GET", "200"}, 1}, {[]string{"unmatched", "GET", "404"}, 1},
		{[]string{"unmatched_method", "other", "405"}, 1},
	} {
		if got := count(c.labels...); got != c.want {
			t.Errorf("requests%v = %v, want %v", c.labels, got, c.want)
		}
	}
	families, err := b.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	edges := map[float64]bool{}
	observed := map[string]uint64{}
	for _, f := range families {
		if f.GetName() != "validator_gw_http_request_duration_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			observed[labels["route"]+" "+labels["class"]] = m.GetHistogram().GetSampleCount()
			for _, bucket := range m.GetHistogram().GetBucket() {
				edges[bucket.GetUpperBound()] = true
			}
		}
	}
	if !edges[.8] || !edges[1.05] {
		t.Errorf("bucket edges %v, want .8 and 1.05 among them", slices.Sorted(maps.Keys(edges)))
	}
	if observed["/validate 2xx"] != 3 || observed["/validate 4xx"] != 2 || observed["/validate 5xx"] != 0 {
		t.Errorf("observed %v, want 3, 2 and 0 for /validate", observed)
	}
	if problems, err := testutil.GatherAndLint(b.registry); err != nil || len(problems) > 0 {
		t.Errorf("metrics lint: %v %v", problems, err)
	}
}

func TestInFlight(t *testing.T) {
	t.Parallel()
	b := setup(t)
	gauge := b.api.metrics.inFlight.WithLabelValues("/validate")
	var during float64
	b.desk.during = func() { during = testutil.ToFloat64(gauge) }
	b.do(t, request{body: `{"email":"ana@example.com"}`})
	if after := testutil.ToFloat64(gauge); during != 1 || after != 0 {
		t.Errorf("in flight during a request %v, after it %v, want 1 and 0", during, after)
	}
}

// An address and a key are planted in every place that a caller can write to; neither may be seen in what we keep or
// in an error. The answer's own body is the one place where the address belongs.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	const (
		address = "planted.person@leak.example"
		local   = "planted.person"
		domain  = "leak.example"
		key     = "vgw_live_plantedkey42"
	)
	for name, withKey := range map[string]bool{"known key": true, "unknown key": false} {
		b := setup(t, func(c *Config) {
			if withKey {
				c.Keys = append(c.Keys, Key{Name: "planted", Key: key})
			}
		})
		answer := b.desk.answers["ana@example.com"]
		answer.Normalized = address
		answer.Suggestion = address
		b.desk.answers[address] = answer
		form := map[string]string{"Content-Type": mediaForm}
		var requests []request
		for _, secret := range []string{address, key} {
			quoted := `"` + secret + `"`
			for _, body := range []string{
				`{"email":` + quoted + `}`, `{"email":` + quoted + `,"flow":` + quoted + `}`,
				`{"email":` + quoted + `,"callback":` + quoted + `}`, `{"email":"x","session_id":` + quoted + `,"typing":true}`,
				`{` + quoted + `:1}`, `{"email":` + quoted, quoted, secret, `{"email":` + quoted + `}` + quoted,
				`{"email":[` + quoted + `]}`, `{"typing":` + quoted + `}`,
				`{"email":"` + strings.Repeat(secret, 1000) + `"}`,
			} {
				requests = append(requests, request{body: body})
			}
			for _, h := range []string{"X-Request-Id", "X-Request-Timeout-Ms", "Idempotency-Key", "Accept-Language",
				"Traceparent", "Content-Type", "Content-Encoding", "Accept", "Cookie", "Referer", "User-Agent",
				"X-Forwarded-For", "Origin", "Authorization", "X-Other", "Expect"} {
				requests = append(requests, request{body: `{"email":"ana@example.com"}`, header: map[string]string{h: secret}})
			}
			requests = append(requests,
				request{body: "email=" + secret + "&flow=" + secret, header: form},
				request{body: secret + "=" + secret, header: form},
				request{body: "email=" + secret + "&email=" + secret, header: form},
				request{target: "/validate?email=" + secret, body: `{}`},
				request{target: "/validate?key=" + secret + "&" + secret, body: `{}`},
				request{method: "GET", target: "/" + secret}, request{method: "GET", target: "/status/" + secret},
				request{method: "GET", target: "/status/" + checkID + "?flow=" + secret},
				request{method: "GET", target: "/status/" + checkID + "?wait=" + secret},
				request{method: "GET", target: "/status/" + checkID + "?" + secret + "=1"},
				request{method: "GET", target: "/backfills/" + secret + "/results"},
				request{method: "POST", target: "/backfills?rate=" + secret + "&max_credits=" + secret, body: secret},
				request{method: "DELETE", target: "/addresses", body: `{"email":` + quoted + `}`},
				request{target: "/revalidate", body: `{"email":` + quoted + `}`},
				request{target: "/revalidate", body: `{"id":` + quoted + `,"flow":` + quoted + `}`},
				request{method: "PLANTED.PERSON", target: "/validate"},
				request{method: "GET", target: "/livez?" + secret},
			)
		}
		for _, q := range requests {
			if q.key == "" {
				q.key = key
			}
			rec := httptest.NewRecorder()
			b.api.Handler().ServeHTTP(rec, q.build(t))
			out := rec.Body.String()
			for k, values := range rec.Header() {
				out += k + strings.Join(values, "\n")
			}
			leaks := []string{key}
			if rec.Code >= 400 || q.method == "GET" {
				leaks = append(leaks, local, domain)
			}
			for _, secret := range leaks {
				if strings.Contains(strings.ToLower(out), secret) {
					t.Errorf("%s: %s %s: the response holds %q: %s", name, q.method, q.target, secret, out)
				}
			}
		}
		if got := len(b.log.lines(t)); got != len(requests) {
			t.Errorf("%s: %d lines for %d requests", name, got, len(requests))
		}
		families, err := b.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var kept strings.Builder
		kept.WriteString(b.log.String())
		for _, f := range families {
			kept.WriteString(f.String())
		}
		for _, secret := range []string{local, domain, key} {
			if i := strings.Index(strings.ToLower(kept.String()), secret); i >= 0 {
				t.Errorf("%s: logs or metrics hold %q: …%s…", name, secret, kept.String()[max(0, i-100):i+50])
			}
		}
	}
}

func TestMessages(t *testing.T) {
	t.Parallel()
	want := map[verdict.Status][]verdict.Reason{
		verdict.Valid:       verdict.ValidReasons,
		verdict.Risky:       verdict.RiskyReasons,
		verdict.Invalid:     slices.Concat(verdict.InvalidReasons, verdict.SyntaxReasons),
		verdict.NeedsReview: verdict.ReviewReasons,
		verdict.Unresolved: append([]verdict.Reason{
			verdict.ClaimedByPerson, verdict.ReviewExpired, verdict.ReviewPoisoned, verdict.AddressUnreadable,
		}, verdict.ReviewReasons...),
	}
	covered := map[verdict.Reason]bool{}
	for _, l := range langs {
		for _, status := range verdict.Statuses {
			if messages[l].otherwise[status] == "" {
				t.Errorf("%s: no text for %s", l, status)
			}
			for _, reason := range want[status] {
				covered[reason] = true
				text := messages[l].by[status][reason]
				if !strings.HasSuffix(text, ".") || strings.Contains(text, "  ") {
					t.Errorf("%s: %s %s: %q, want one or two sentences", l, status, reason, text)
				}
				if l != english && text == messages[english].by[status][reason] {
					t.Errorf("%s: %s %s is not translated", l, status, reason)
				}
			}
		}
	}
	for _, list := range [][]verdict.Reason{verdict.FinalReasons, verdict.ReviewReasons, verdict.SyntaxReasons} {
		for _, reason := range list {
			if !covered[reason] {
				t.Errorf("reason %s stands under no status here", reason)
			}
		}
	}
}

func TestMessageWording(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lang   lang
		answer validate.Answer
		want   string
	}{
		{english, validate.Answer{Status: verdict.Invalid, Reason: verdict.MissingAt},
			"An address needs an @, as in name@example.com."},
		{english, validate.Answer{Status: verdict.Invalid, Reason: verdict.TrailingPunct, Suggestion: "ana@example.com"},
			"There is a punctuation mark after the address. Please remove it. Did you mean ana@example.com?"},
		{english, validate.Answer{Status: verdict.Valid, Reason: verdict.MailboxAccepted, Suggestion: "ana@example.com"},
			"Did you mean ana@example.com?"},
		{spanish, validate.Answer{Status: verdict.NeedsReview, Reason: verdict.CircuitOpen, Suggestion: "ana@example.com"},
			"¿Quisiste decir ana@example.com?"},
		{english, validate.Answer{Status: verdict.Valid, Decision: validate.Warn, Reason: verdict.MailboxAccepted},
			"This looks like a temporary address. Please use one that you will keep."},
		{english, validate.Answer{Status: verdict.Invalid, Reason: "newer_than_this"},
			"This address can't receive mail. Please check the spelling."},
	} {
		if got := message(c.lang, c.answer); got != c.want {
			t.Errorf("message(%s, %+v) = %q, want %q", c.lang, c.answer, got, c.want)
		}
	}
}

func TestLanguages(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]lang{
		"": english, "en": english, "es": spanish, "es-MX": spanish, "es-419,en;q=0.5": spanish, "en-GB,es;q=0.9": english,
		"de,es;q=0.7,en;q=0.3": spanish, "de": english, "*": english, "garbage;;;": english, "es;q=0": english,
		strings.Repeat("es,", 200): english,
	} {
		if got := preferred(header); got != want {
			t.Errorf("preferred(%q) = %s, want %s", header, got, want)
		}
	}
	b := setup(t)
	q := request{body: `{"email":"ana@example.com"}`}
	r := q.build(t)
	r.Header["Accept-Language"] = []string{"de", "es;q=0.8"} // a list in two lines
	rec := httptest.NewRecorder()
	b.api.Handler().ServeHTTP(rec, r)
	if got := rec.Header().Get("Content-Language"); rec.Code != 200 || got != "es" {
		t.Errorf("%d in %q, want 200 in es", rec.Code, got)
	}
}

// A caller that leaves while the validator works gets nothing, and is no fault of ours.
func TestCallerLeft(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.desk.block = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q := request{body: `{"email":"ana@example.com"}`, ctx: ctx}
	rec := httptest.NewRecorder()
	b.api.Handler().ServeHTTP(rec, q.build(t))
	line := b.log.lines(t)[0]
	if line["http_status"] != 499. || line["code"] != "client_gone" || line["level"] != "INFO" || rec.Body.Len() > 0 {
		t.Errorf("line %v, body %q, want 499 client_gone and no body", line, rec.Body)
	}
}
