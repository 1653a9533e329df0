package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
)

func TestGoldenAnswers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	es := map[string]string{"Accept-Language": "es-MX,es;q=0.9,en;q=0.5"}
	for name, q := range map[string]request{
		"valid":         {body: `{"email":"ana@example.com"}`},
		"syntax_es":     {body: `{"email":"ana@example.con"}`, header: es},
		"risky_cached":  {body: `{"email":"any@example.org"}`},
		"needs_review":  {body: `{"email":"slow@example.com"}`},
		"status_open":   {method: "GET", target: "/status/" + checkID},
		"status_done":   {method: "GET", target: "/status/01989f6e-7d3a-7c1e-9a44-0f3b8f6f2c12"},
		"status_erased": {method: "GET", target: "/status/01989f6e-7d3a-7c1e-9a44-0f3b8f6f2c13"},
		"unknown_field": {body: `{"email":"ana@example.com","name":"Ana"}`},
		"not_durable":   {body: `{"email":"nodb@example.com"}`},
		"commit":        {body: `{"email":"commit@example.com"}`},
		"no_key":        {body: `{"email":"ana@example.com"}`, key: "none"},
		"livez":         {method: "GET", target: "/livez", key: "none"},
	} {
		golden(t, name, b.do(t, q))
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	form := map[string]string{"Content-Type": mediaForm}
	for _, c := range []struct {
		name       string
		q          request
		status     int
		normalized any
		location   string
		retryAfter string
	}{
		{"json", request{body: `{"email":"ana@example.com"}`}, 200, "ana@example.com", "", ""},
		{"json with a charset", request{body: `{"email":"ana@example.com"}`,
			header: map[string]string{"Content-Type": "application/json; charset=UTF-8"}}, 200, "ana@example.com", "", ""},
		{"json with escapes", request{body: `{"email":"\u0061na@example.com"}`}, 200, "ana@example.com", "", ""},
		{"json with spaces around", request{body: " {\"email\" : \"ana@example.com\"}\r\n"}, 200, "ana@example.com", "", ""},
		{"text is handed on as typed", request{body: `{"email":" Ana@Example.com "}`}, 200, "ana@example.com", "", ""},
		{"an empty address is an answer", request{body: `{"email":""}`}, 200, nil, "", ""},
		{"all fields", request{body: `{"email":"ana@example.com","flow":"high_risk","typing":false,` +
			`"session_id":"s1","callback":""}`}, 200, "ana@example.com", "", ""},
		{"form", request{body: "email=ana%40example.com", header: form}, 200, "ana@example.com", "", ""},
		{"form with a plus sign", request{body: "email=ana%2Bnews@example.com", header: form}, 200,
			"ana+news@example.com", "", ""},
		{"form with plus for space", request{body: "email=+Ana@Example.com+", header: form}, 200,
			"ana@example.com", "", ""},
		{"form with other fields", request{body: "csrf=1&csrf=2&email=ana@example.com&name=A&typing=off", header: form},
			200, "ana@example.com", "", ""},
		{"pending", request{body: `{"email":"slow@example.com"}`}, 202, "slow@example.com", "/status/" + checkID, "30"},
		{"any Accept", request{body: `{"email":"ana@example.com"}`,
			header: map[string]string{"Accept": "text/html"}}, 200, "ana@example.com", "", ""},
	} {
		res := b.do(t, c.q)
		email, _ := res.json["email"].(map[string]any)
		if res.status != c.status || email["normalized"] != c.normalized {
			t.Errorf("%s: %d %s, want %d with %v", c.name, res.status, res.body, c.status, c.normalized)
		}
		got := []string{res.header.Get("Location"), res.header.Get("Retry-After")}
		if diff := cmp.Diff([]string{c.location, c.retryAfter}, got); diff != "" {
			t.Errorf("%s: Location and Retry-After:\n%s", c.name, diff)
		}
	}
}

func TestRequestReachesTheValidator(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, timeout string
		body, flow    string
		budget        time.Duration
	}{
		{"nothing asked", "", `{"email":"ana@example.com"}`, "", 0},
		{"a flow", "", `{"email":"ana@example.com","flow":"high_risk"}`, "high_risk", 0},
		{"within", "500", `{"email":"ana@example.com"}`, "", 500 * time.Millisecond},
		{"too short", "20", `{"email":"ana@example.com"}`, "", 300 * time.Millisecond},
		{"negative", "-5", `{"email":"ana@example.com"}`, "", 300 * time.Millisecond},
		{"too long", "60000", `{"email":"ana@example.com"}`, "", 950 * time.Millisecond},
		{"overflowing when multiplied", "9223372036854775807", `{"email":"ana@example.com"}`, "", 950 * time.Millisecond},
	} {
		b := setup(t)
		b.do(t, request{body: c.body, header: map[string]string{
			"X-Request-Timeout-Ms": c.timeout, "X-Request-Id": "signup-1"}})
		want := []validate.Request{{
			Raw: "ana@example.com", Flow: c.flow, Client: "backend", RequestID: "signup-1", Budget: c.budget,
		}}
		if diff := cmp.Diff(want, b.desk.asked); diff != "" {
			t.Errorf("%s: asked of the validator:\n%s", c.name, diff)
		}
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	b := setup(t)
	h := func(kv ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	form := h("Content-Type", mediaForm)
	ok := `{"email":"ana@example.com"}`
	for _, c := range []struct {
		name   string
		q      request
		status int
		code   string
	}{
		{"malformed JSON", request{body: `{"email":`}, 400, "malformed_body"},
		{"no JSON", request{body: `ana@example.com`}, 400, "malformed_body"},
		{"an array", request{body: `["ana@example.com"]`}, 400, "malformed_body"},
		{"a string", request{body: `"ana@example.com"`}, 400, "malformed_body"},
		{"null", request{body: `null`}, 400, "malformed_body"},
		{"single quotes", request{body: `{'email':'ana@example.com'}`}, 400, "malformed_body"},
		{"trailing comma", request{body: `{"email":"ana@example.com",}`}, 400, "malformed_body"},
		{"two values", request{body: ok + ok}, 400, "malformed_body"},
		{"trailing data", request{body: ok + " x"}, 400, "malformed_body"},
		{"trailing bracket", request{body: ok + "]"}, 400, "malformed_body"},
		{"unclosed", request{body: ok[:len(ok)-1]}, 400, "malformed_body"},
		{"only blanks", request{body: "  \n"}, 400, "malformed_body"},
		{"empty body", request{header: h("Content-Type", mediaJSON)}, 400, "malformed_body"},
		{"byte order mark", request{body: "\uFEFF" + ok}, 400, "malformed_body"},
		{"wrong type", request{body: `{"email":7}`}, 400, "malformed_body"},
		{"wrong type of a boolean", request{body: `{"email":"ana@example.com","typing":"yes"}`}, 400, "malformed_body"},
		{"object for a string", request{body: `{"email":{"a":1}}`}, 400, "malformed_body"},
		{"null for a string", request{body: `{"email":null}`}, 400, "malformed_body"},
		{"null for an optional", request{body: `{"email":"ana@example.com","flow":null}`}, 400, "malformed_body"},
		{"unknown field", request{body: `{"email":"ana@example.com","name":"x"}`}, 400, "malformed_body"},
		{"field in another case", request{body: `{"Email":"ana@example.com"}`}, 400, "malformed_body"},
		{"field twice", request{body: `{"email":"ana@example.com","email":"ben@example.com"}`}, 400, "malformed_body"},
		{"field twice, escaped", request{body: `{"email":"ana@example.com","\u0065mail":"b"}`}, 400, "malformed_body"},
		{"invalid UTF-8", request{body: "{\"email\":\"an\xffa@example.com\"}"}, 400, "malformed_body"},
		{"half a surrogate pair", request{body: `{"email":"\ud83dana@example.com"}`}, 400, "malformed_body"},
		{"halves the wrong way round", request{body: `{"email":"\udc00\ud800@example.com"}`}, 400, "malformed_body"},
		{"deep", request{body: `{"email":` + strings.Repeat("[", 8000) + strings.Repeat("]", 8000) + `}`}, 400,
			"malformed_body"},
		{"deep and unknown", request{body: strings.Repeat(`{"a":`, 3000)}, 400, "malformed_body"},
		{"long session", request{body: `{"email":"a","session_id":"` + strings.Repeat("x", 129) + `"}`}, 400,
			"malformed_body"},
		{"no email", request{body: `{"flow":"signup"}`}, 400, "missing_email"},
		{"empty object", request{body: `{}`}, 400, "missing_email"},
		{"form without email", request{body: "mail=ana@example.com", header: form}, 400, "missing_email"},
		{"empty form", request{header: form}, 400, "missing_email"},
		{"form with a bad escape", request{body: "email=ana%zz", header: form}, 400, "malformed_body"},
		{"form with semicolons", request{body: "email=ana@example.com;flow=x", header: form}, 400, "malformed_body"},
		{"form with email twice", request{body: "email=a&email=b", header: form}, 400, "malformed_body"},
		{"form with a bad boolean", request{body: "email=a&typing=perhaps", header: form}, 400, "malformed_body"},
		{"over 16 KiB", request{body: `{"email":"` + strings.Repeat("a", 16<<10) + `"}`}, 413, "body_too_large"},
		{"1 MiB", request{body: strings.Repeat(" ", 1<<20)}, 413, "body_too_large"},
		{"no content type", request{body: ok, header: h("Content-Type", "")}, 415, "unsupported_media_type"},
		{"text", request{body: ok, header: h("Content-Type", "text/plain")}, 415, "unsupported_media_type"},
		{"multipart", request{body: ok, header: h("Content-Type", "multipart/form-data; boundary=x")}, 415,
			"unsupported_media_type"},
		{"unreadable content type", request{body: ok, header: h("Content-Type", "application/json;;")}, 415,
			"unsupported_media_type"},
		{"latin-1", request{body: ok, header: h("Content-Type", "application/json; charset=iso-8859-1")}, 415,
			"unsupported_media_type"},
		{"compressed", request{body: ok, header: h("Content-Encoding", "gzip")}, 415, "unsupported_media_type"},
		{"timeout that is no number", request{body: ok, header: h("X-Request-Timeout-Ms", "fast")}, 400,
			"malformed_parameter"},
		{"timeout with a unit", request{body: ok, header: h("X-Request-Timeout-Ms", "500ms")}, 400, "malformed_parameter"},
		{"timeout beyond numbers", request{body: ok, header: h("X-Request-Timeout-Ms", "99999999999999999999")}, 400,
			"malformed_parameter"},
		{"unknown flow", request{body: `{"email":"ana@example.com","flow":"nope"}`}, 422, "unknown_flow"},
		{"unknown callback", request{body: `{"email":"ana@example.com","callback":"nobody"}`}, 422, "unknown_callback"},
		{"typing without a session", request{body: `{"email":"ana@example.com","typing":true}`}, 400, "malformed_body"},
		{"typing in a form without a session", request{body: "email=a&typing=on&session_id=", header: form}, 400, "malformed_body"},
		{"session with a blank", request{body: `{"email":"a","session_id":"a b"}`}, 400, "malformed_body"},
		{"session with a letter that is not ASCII", request{body: `{"email":"a","session_id":"sesión"}`}, 400, "malformed_body"},
		{"session with a control", request{body: `{"email":"a","session_id":"a\u0007"}`}, 400, "malformed_body"},
		{"typing with a key", request{body: typing("ana@example.com"), header: h("Idempotency-Key", "k1")}, 400, "malformed_parameter"},
		{"superseded", request{body: typing("super@example.com")}, 409, "superseded"},
		{"typing unanswered", request{body: typing("mute@example.com")}, 503, "typing_unanswered"},
		{"blank in a key", request{body: ok, header: h("Idempotency-Key", "a b")}, 400, "malformed_parameter"},
		{"key without an end", request{body: ok, header: h("Idempotency-Key", `"k1`)}, 400, "malformed_parameter"},
		{"empty key", request{body: ok, header: h("Idempotency-Key", `""`)}, 400, "malformed_parameter"},
		{"long key", request{body: ok, header: h("Idempotency-Key", strings.Repeat("k", 256))}, 400, "malformed_parameter"},
		{"key of another request", request{body: `{"email":"reused@example.com"}`, header: h("Idempotency-Key", "k1")}, 422,
			"idempotency_key_reused"},
		{"key in work", request{body: `{"email":"inflight@example.com"}`, header: h("Idempotency-Key", "k1")}, 409,
			"idempotency_in_flight"},
		{"wrong method", request{method: "GET", target: "/validate"}, 405, "method_not_allowed"},
		{"wrong method with a key missing", request{method: "PUT", target: "/status/1", key: "none"}, 405,
			"method_not_allowed"},
		{"unknown path", request{method: "GET", target: "/nothing"}, 404, "not_found"},
		{"unknown path without a key", request{method: "GET", target: "/nothing", key: "none"}, 404, "not_found"},
		{"root", request{method: "GET", target: "/"}, 404, "not_found"},
		{"trailing slash", request{target: "/validate/", body: ok}, 404, "not_found"},
		{"no id", request{method: "GET", target: "/status/"}, 404, "not_found"},
		{"malformed id", request{method: "GET", target: "/status/7"}, 404, "unknown_id"},
		{"id with braces", request{method: "GET", target: "/status/%7B" + checkID + "%7D"}, 404, "unknown_id"},
		{"id with a bad escape", request{method: "GET", target: "/status/%2e%2e"}, 404, "unknown_id"},
		{"unknown or expired id", request{method: "GET", target: "/status/01989f6e-7d3a-7c1e-9a44-0f3b8f6f2cff"}, 404,
			"unknown_id"},
		{"wait without a unit", request{method: "GET", target: "/status/" + checkID + "?wait=20"}, 400,
			"malformed_parameter"},
		{"wait too long", request{method: "GET", target: "/status/" + checkID + "?wait=31s"}, 400, "malformed_parameter"},
		{"wait in minutes", request{method: "GET", target: "/status/" + checkID + "?wait=1m"}, 400, "malformed_parameter"},
		{"wait negative", request{method: "GET", target: "/status/" + checkID + "?wait=-1s"}, 400, "malformed_parameter"},
		{"wait twice", request{method: "GET", target: "/status/" + checkID + "?wait=1s&wait=2s"}, 400,
			"malformed_parameter"},
		{"status with an unknown flow", request{method: "GET", target: "/status/" + checkID + "?flow=nope"}, 422,
			"unknown_flow"},
		{"full", request{body: `{"email":"full@example.com"}`}, 503, "saturated"},
		{"nothing durable", request{body: `{"email":"nodb@example.com"}`}, 503, "not_durable"},
		{"flow removed meanwhile", request{body: `{"email":"flow@example.com"}`}, 422, "unknown_flow"},
		{"any other error", request{body: `{"email":"strange@example.com"}`}, 500, "internal"},
		{"revalidate nothing", request{target: "/revalidate", body: `{}`}, 400, "malformed_body"},
		{"revalidate two", request{target: "/revalidate", body: `{"email":"a@example.com","id":"` + checkID + `"}`}, 400, "malformed_body"},
		{"revalidate with a field too many", request{target: "/revalidate", body: `{"email":"a@example.com","typing":true}`}, 400, "malformed_body"},
		{"revalidate with a form", request{target: "/revalidate", body: "email=a", header: form}, 415, "unsupported_media_type"},
		{"revalidate too much", request{target: "/revalidate", body: strings.Repeat(" ", 1<<20)}, 413, "body_too_large"},
		{"revalidate in an unknown flow", request{target: "/revalidate", body: `{"email":"a@example.com","flow":"nope"}`}, 422, "unknown_flow"},
		{"revalidate with a callback", request{target: "/revalidate", body: `{"email":"a@example.com","callback":"nobody"}`}, 422, "unknown_callback"},
		{"revalidate a malformed id", request{target: "/revalidate", body: `{"id":"x"}`}, 404, "unknown_id"},
		{"revalidate an unknown id", request{target: "/revalidate", body: `{"id":"` + unknownCheck + `"}`}, 404, "unknown_id"},
		{"revalidate an erased address", request{target: "/revalidate", body: `{"id":"` + erasedID + `"}`}, 409, "address_erased"},
		{"revalidate while full", request{target: "/revalidate", body: `{"email":"full@example.com"}`}, 503, "saturated"},
		{"revalidate without a store", request{target: "/revalidate", body: `{"email":"nodb@example.com"}`}, 503, "not_durable"},
		{"revalidate an id while the store is away", request{target: "/revalidate", body: `{"email":"away@example.com"}`}, 503, "store_unavailable"},
		{"revalidate without a key", request{target: "/revalidate", body: ok, key: "none"}, 401, "unauthorized"},
		{"queue", request{method: "GET", target: "/queue"}, 501, "not_implemented"},
		{"erase what is none", request{method: "DELETE", target: "/addresses", body: `{"email":"none"}`}, 400, "malformed_body"},
		{"erase nothing", request{method: "DELETE", target: "/addresses", body: `{}`}, 400, "missing_email"},
		{"erase with a form", request{method: "DELETE", target: "/addresses", body: "email=a", header: form}, 415, "unsupported_media_type"},
		{"erase with a flow", request{method: "DELETE", target: "/addresses", body: `{"email":"a@example.com","flow":"signup"}`}, 400,
			"malformed_body"},
		{"erase too much", request{method: "DELETE", target: "/addresses", body: strings.Repeat(" ", 1<<20)}, 413, "body_too_large"},
		{"erase while the store is away", request{method: "DELETE", target: "/addresses", body: `{"email":"away@example.com"}`}, 503,
			"store_unavailable"},
		{"erase without a key", request{method: "DELETE", target: "/addresses", body: ok, key: "none"}, 401, "unauthorized"},
		{"docs", request{method: "GET", target: "/docs", key: "none"}, 501, "not_implemented"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := b.do(t, c.q)
			if res.status != c.status || res.json["code"] != c.code {
				t.Errorf("%d %s, want %d %s", res.status, res.body, c.status, c.code)
			}
		})
	}
}

func TestHeadersOfErrors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.desk.errs[checkID] = validate.ErrUnavailable
	for _, c := range []struct {
		name         string
		q            request
		header, want string
		retryMS      any
		id           any
	}{
		{"405 on POST", request{method: "PATCH"}, "Allow", "POST", nil, nil},
		{"405 on GET", request{method: "POST", target: "/livez"}, "Allow", "GET, HEAD", nil, nil},
		{"405 with a parameter", request{method: "DELETE", target: "/status/x"}, "Allow", "GET, HEAD", nil, nil},
		{"405 for a made-up method", request{method: "BREW"}, "Allow", "POST", nil, nil},
		{"415", request{body: "x", header: map[string]string{"Content-Type": "text/csv"}}, "Accept",
			"application/json, application/x-www-form-urlencoded", nil, nil},
		{"401 without a key", request{key: "none"}, "WWW-Authenticate", `Bearer realm="validator-gw"`, nil, nil},
		{"401 with another key", request{key: "nope"}, "WWW-Authenticate",
			`Bearer realm="validator-gw", error="invalid_token"`, nil, nil},
		// The base is 1 s or 3 s and the bench draws 0.5: half as much again, rounded up in whole seconds.
		{"full", request{body: `{"email":"full@example.com"}`}, "Retry-After", "2", 1500., nil},
		{"nothing durable", request{body: `{"email":"nodb@example.com"}`}, "Retry-After", "5", 4500., nil},
		{"outcome unknown", request{body: `{"email":"commit@example.com"}`}, "Retry-After", "5", 4500., checkID},
		{"store away", request{method: "GET", target: "/status/" + checkID}, "Retry-After", "5", 4500., nil},
		{"key in work", request{body: `{"email":"inflight@example.com"}`, header: map[string]string{"Idempotency-Key": "k"}},
			"Retry-After", "2", 1500., nil},
		{"superseded", request{body: typing("super@example.com")}, "Retry-After", "", nil, nil},
		{"typing unanswered", request{body: typing("mute@example.com")}, "Retry-After", "2", 1500., nil},
	} {
		res := b.do(t, c.q)
		if got := res.header.Get(c.header); got != c.want {
			t.Errorf("%s: %s = %q, want %q", c.name, c.header, got, c.want)
		}
		if res.json["retry_after_ms"] != c.retryMS || res.json["id"] != c.id {
			t.Errorf("%s: %s, want retry_after_ms %v and id %v", c.name, res.body, c.retryMS, c.id)
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct {
		name   string
		header []string
		client string // empty: 401
	}{
		{"right", []string{"Bearer " + testKey}, "backend"},
		{"the other", []string{"Bearer " + otherKey}, "other"},
		{"scheme in lower case", []string{"bearer " + testKey}, "backend"},
		{"more space", []string{"Bearer   " + testKey + " "}, "backend"},
		{"none", nil, ""},
		{"unknown", []string{"Bearer vgw_test_nope"}, ""},
		{"a prefix", []string{"Bearer " + testKey[:10]}, ""},
		{"longer", []string{"Bearer " + testKey + "x"}, ""},
		{"empty", []string{"Bearer "}, ""},
		{"no scheme", []string{testKey}, ""},
		{"basic", []string{"Basic " + testKey}, ""},
		{"two", []string{"Bearer " + testKey, "Bearer " + otherKey}, ""},
	} {
		q := request{body: `{"email":"ana@example.com"}`, key: "none"}
		r := q.build(t)
		r.Header["Authorization"] = c.header
		rec := httptest.NewRecorder()
		b.api.Handler().ServeHTTP(rec, r)
		want := 200
		if c.client == "" {
			want = 401
		}
		if rec.Code != want {
			t.Errorf("%s: %d, want %d", c.name, rec.Code, want)
		}
		if lines := b.log.lines(t); lines[len(lines)-1]["client"] != c.client {
			t.Errorf("%s: client %v in the log, want %q", c.name, lines[len(lines)-1]["client"], c.client)
		}
	}
	// The key comes before the body: who has none learns nothing.
	if res := b.do(t, request{body: `{`, key: "none"}); res.status != 401 {
		t.Errorf("bad body without a key: %d, want 401", res.status)
	}
	garbage := map[string]string{"X-Request-Timeout-Ms": "x"}
	if res := b.do(t, request{body: `{}`, key: "none", header: garbage}); res.status != 401 {
		t.Errorf("bad header without a key: %d, want 401", res.status)
	}
}

func TestOpenWithoutKeys(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *Config) { c.Keys = nil })
	if res := b.do(t, request{body: `{"email":"ana@example.com"}`, key: "none"}); res.status != 200 {
		t.Errorf("without keys: %d, want 200", res.status)
	}
	if got := b.desk.asked[0].Client; got != anonymous {
		t.Errorf("client = %q, want %q", got, anonymous)
	}
}

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	_, err := New(newDesk(), &clinic{}, Config{MaxBody: -1, Keys: []Key{
		{"a", "secret-one"}, {"a", "secret-two"}, {"b", "secret-one"}, {"c", ""}, {"white space", "secret-three"},
	}})
	if err == nil {
		t.Fatal("New with faults gave no error")
	}
	for _, want := range []string{
		"two keys are named a", "key b is the same", "key c is empty", "a key's name", "negative",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name: %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "secret-") {
		t.Errorf("error %q holds a key", err)
	}
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const fresh = "01989f6e-0000-7000-8000-000000000001"
	for _, c := range []struct{ sent, want string }{
		{"signup-7f3a91", "signup-7f3a91"},
		{"A.b_c-9", "A.b_c-9"},
		{strings.Repeat("a", 128), strings.Repeat("a", 128)},
		{strings.Repeat("a", 129), fresh},
		{"", fresh},
		{"a b", fresh},
		{"ana@example.com", fresh},
		{"a\"b", fresh},
		{"ñ", fresh},
		{testKey, fresh},
		{otherKey, fresh},
		{"x-" + testKey, fresh},
	} {
		res := b.do(t, request{body: `{"email":"ana@example.com"}`, header: map[string]string{"X-Request-Id": c.sent}})
		if got := res.header.Get("X-Request-Id"); got != c.want {
			t.Errorf("X-Request-Id %q gave %q, want %q", c.sent, got, c.want)
		}
	}
}

func TestNewRequestID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // a bubble's clock starts at 2000-01-01T00:00:00Z
		seen := map[string]bool{}
		for range 1000 {
			id := newRequestID()
			if !strings.HasPrefix(id, "00dc6acf-ac00-7") || !strings.ContainsRune("89ab", rune(id[19])) || len(id) != 36 ||
				!isRequestID(id) || seen[id] {
				t.Fatalf("newRequestID() = %q, want a fresh UUIDv7 of that millisecond", id)
			}
			seen[id] = true
		}
	})
}

func TestStatusFlowAndCase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	res := b.do(t, request{method: "GET", target: "/status/" + strings.ToUpper(checkID) + "?flow=high_risk"})
	if res.status != 200 || res.json["status"] != "needs_review" || res.header.Get("Retry-After") != "30" {
		t.Errorf("%d %s, want 200 needs_review with Retry-After 30", res.status, res.body)
	}
	lines := b.log.lines(t)
	if got := lines[len(lines)-1]["flow"]; got != "high_risk" {
		t.Errorf("flow in the log = %v, want high_risk", got)
	}
}

func TestLongPoll(t *testing.T) {
	t.Parallel()
	target := "/status/" + checkID + "?wait=20s"
	poll := func(t *testing.T, b *bench) (response, time.Duration) {
		start := time.Now()
		res := b.do(t, request{method: "GET", target: target})
		return res, time.Since(start)
	}
	t.Run("settled meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := setup(t)
			time.AfterFunc(7*time.Second, func() { close(b.desk.checks[checkID].settled) })
			res, took := poll(t, b)
			if res.json["status"] != "valid" || took != 7*time.Second || res.header.Get("Retry-After") != "" {
				t.Errorf("%s after %v, want valid after 7s", res.body, took)
			}
		})
	})
	t.Run("time over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			res, took := poll(t, setup(t))
			if res.status != 200 || res.json["status"] != "needs_review" || took != 20*time.Second {
				t.Errorf("%d %s after %v, want needs_review after 20s", res.status, res.body, took)
			}
		})
	})
	t.Run("drained", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := setup(t)
			time.AfterFunc(3*time.Second, func() { b.api.Drain(); b.api.Drain() })
			res, took := poll(t, b)
			if res.status != 200 || res.json["status"] != "needs_review" || took != 3*time.Second {
				t.Errorf("%d %s after %v, want needs_review after 3s", res.status, res.body, took)
			}
			if _, took := poll(t, b); took != 0 {
				t.Errorf("a later poll waited for %v, want none", took)
			}
		})
	})
	t.Run("caller left", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := setup(t)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			q := request{method: "GET", target: target}
			rec := httptest.NewRecorder()
			left, leave := context.WithCancel(ctx)
			time.AfterFunc(time.Second, leave)
			b.api.Handler().ServeHTTP(rec, q.build(t).WithContext(left))
			if rec.Body.Len() > 0 {
				t.Errorf("body %q for a caller that left, want none", rec.Body)
			}
			if got := b.log.lines(t)[0]["http_status"]; got != 499. {
				t.Errorf("http_status in the log = %v, want 499", got)
			}
		})
	})
}

func TestReadyz(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for state, want := range map[State]int{Ready: 200, Degraded: 200, Starting: 503, Stopping: 503} {
		b.clinic.now = Readiness{State: state, Parts: []Part{{Name: "redis", Status: Down, Note: "local share"}}}
		res := b.do(t, request{method: "GET", target: "/readyz", key: "none"})
		parts := []any{map[string]any{"name": "redis", "status": "down", "note": "local share"}}
		diff := cmp.Diff(map[string]any{"status": string(state), "parts": parts}, res.json)
		if res.status != want || diff != "" {
			t.Errorf("%s: %d, want %d; body:\n%s", state, res.status, want, diff)
		}
	}
}

func TestHead(t *testing.T) {
	t.Parallel()
	res := setup(t).do(t, request{method: "HEAD", target: "/livez", key: "none"})
	if res.status != http.StatusOK {
		t.Errorf("HEAD /livez = %d, want 200", res.status)
	}
}

func TestAnswerEdges(t *testing.T) {
	t.Parallel()
	// What the validator leaves out must not break the contract.
	body := toWire(validate.Answer{ID: checkID, Status: verdict.NeedsReview, Reason: verdict.CircuitOpen,
		Age: -time.Second, CheckedAt: checkedAt}, english)
	if diff := cmp.Diff([]string{"circuit_open"}, body.Reasons); diff != "" {
		t.Errorf("reasons:\n%s", diff)
	}
	if *body.PollAfterMs < 1 || body.NextCheckAt != nil || *body.Source.AgeMs != 0 || body.Trail != nil {
		t.Errorf("toWire = %+v, want poll_after_ms of at least 1, no next_check_at, age 0, no trail", body)
	}
	if got := body.Source.CheckedAt.Format(time.RFC3339Nano); got != "2026-11-30T10:15:30.482Z" {
		t.Errorf("checked_at = %s, want milliseconds in UTC", got)
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	answer := b.desk.answers["ana@example.com"]
	answer.Replayed = true
	b.desk.answers["again@example.com"] = answer
	for _, c := range []struct{ header, email, key, replayed string }{
		{"", "ana@example.com", "", ""},
		{"k1", "ana@example.com", "k1", ""},
		{`"k1"`, "again@example.com", "k1", "true"},
	} {
		q := request{body: `{"email":"` + c.email + `"}`, header: map[string]string{}}
		if c.header != "" {
			q.header["Idempotency-Key"] = c.header
		}
		res := b.do(t, q)
		if res.status != 200 || res.header.Get("Idempotency-Replayed") != c.replayed {
			t.Errorf("%s with the key %s: %d, Idempotency-Replayed %q, want 200, %q", c.email, c.header, res.status,
				res.header.Get("Idempotency-Replayed"), c.replayed)
		}
		if got := b.desk.asked[len(b.desk.asked)-1].Key; got != c.key {
			t.Errorf("the key %s came as %q, want %q", c.header, got, c.key)
		}
	}
}

func TestRetryReview(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.desk.errs = map[string]error{"unknown": validate.ErrUnknownID, "open": validate.ErrNotDead, "twice": validate.ErrReplaced,
		"away": validate.ErrUnavailable}
	for _, c := range []struct {
		id     string
		status int
		says   string
	}{
		{"one", 202, `{"id":"one"}`}, {"unknown", 404, `"unknown_id"`}, {"open", 409, `"review_not_dead"`},
		{"twice", 409, `"review_replaced"`}, {"away", 503, `"store_unavailable"`},
	} {
		res := b.do(t, request{method: "POST", target: "/admin/reviews/" + c.id + "/retry"})
		if res.status != c.status || !strings.Contains(string(res.body), c.says) {
			t.Errorf("retry of %s: %d %s, want %d and %s", c.id, res.status, res.body, c.status, c.says)
		}
	}
}

func TestEraseAddress(t *testing.T) {
	t.Parallel()
	b := setup(t)
	res := b.do(t, request{method: "DELETE", target: "/addresses", body: `{"email":"Ana@Example.com"}`})
	if want := "{\"backfill_rows\":4,\"idempotent_answers\":3,\"reviews\":1,\"verdicts\":2}\n"; res.status != 200 || string(res.body) != want {
		t.Errorf("%d %s, want 200 %s", res.status, res.body, want)
	}
	if want := []string{"Ana@Example.com"}; !slices.Equal(b.desk.erased, want) {
		t.Errorf("erased %q, want %q", b.desk.erased, want)
	}
}

func TestCallbackReachesTheValidator(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, q := range []request{
		{body: `{"email":"ana@example.com","callback":"crm"}`},
		{body: "email=ana@example.com&callback=crm", header: map[string]string{"Content-Type": mediaForm}},
	} {
		b.desk.asked = nil
		if res := b.do(t, q); res.status != 200 || len(b.desk.asked) != 1 || b.desk.asked[0].Callback != "crm" {
			t.Errorf("%s: %d, asked of the validator: %+v, want the callback", q.body, res.status, b.desk.asked)
		}
	}
	res := b.do(t, request{target: "/revalidate", body: `{"email":"ana@example.com","callback":"crm"}`})
	if res.status != 202 || len(b.desk.events) != 1 || b.desk.events[0].Callback != "crm" {
		t.Errorf("event: %d, asked of the validator: %+v, want the callback", res.status, b.desk.events)
	}
}

// What a callback is told of a status is the body of GET /status/{id}.
func TestStatusJSON(t *testing.T) {
	t.Parallel()
	b := setup(t)
	want := b.do(t, request{method: "GET", target: "/status/" + checkID})
	answer, err := b.desk.Status(t.Context(), validate.Inquiry{ID: checkID})
	if err != nil {
		t.Fatal(err)
	}
	got, err := StatusJSON(answer)
	if err != nil || string(got) != strings.TrimSpace(string(want.body)) {
		t.Errorf("StatusJSON = %s, %v, want %s", got, err, want.body)
	}
}
