package verimail

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
	"validator-gw/internal/verimail/simulator"
)

// asked is one request as the server has it.
type asked struct {
	method, path  string
	query, form   url.Values
	object        map[string]any
	header        http.Header
	user, pass    string
	contentLength int64
}

func readRequest(t *testing.T, q *http.Request) asked {
	t.Helper()
	a := asked{method: q.Method, path: q.URL.Path, query: q.URL.Query(), header: q.Header.Clone(), contentLength: q.ContentLength}
	a.user, a.pass, _ = q.BasicAuth()
	var body []byte
	if q.Body != nil {
		body, _ = io.ReadAll(q.Body)
	}
	switch q.Header.Get("Content-Type") {
	case "application/x-www-form-urlencoded":
		a.form, _ = url.ParseQuery(string(body))
	case "application/json":
		if err := json.Unmarshal(body, &a.object); err != nil {
			t.Error(err)
		}
	default:
		if len(body) > 0 {
			t.Errorf("a body without a type: %q", body)
		}
	}
	return a
}

// Where each provider takes address and key, by its documentation; and that an address arrives as it is.
func TestProfileRequests(t *testing.T) {
	t.Parallel()
	const base = "/base/"
	want := map[string]struct {
		method, path string
		address, key func(asked) string
	}{
		"verimail_v3": {"POST", "v3/verify", func(a asked) string { return a.form.Get("email") }, func(a asked) string { return a.form.Get("key") }},
		"kickbox":     {"GET", "v2/verify", query("email"), bearer},
		"emailable":   {"GET", "v1/verify", query("email"), bearer},
		"bouncer":     {"GET", "v1.1/email/verify", query("email"), header("x-api-key")},
		"zerobounce":  {"GET", "v2/validate", query("email"), query("api_key")},
		"neverbounce": {"POST", "v4.2/single/check", object("email"), object("key")},
		"mailgun":     {"GET", "v4/address/validate", query("address"), func(a asked) string { return a.pass }},
		"hunter":      {"GET", "v2/email-verifier", query("email"), header("X-API-KEY")},
		"reacher":     {"POST", "v1/check_email", object("to_email"), header("x-reacher-secret")},
		"abstract":    {"GET", "v1/", query("email"), query("api_key")},
	}
	for _, name := range Profiles {
		w, ok := want[name]
		if !ok {
			t.Errorf("%s: where it takes the key is not written down here", name)
			continue
		}
		for _, local := range []string{"ana", "ana+news", "a.b-c_d", "jörg", "o'neil", "a%2bb", "50%", "a&key=x", "a=b", "a#b", "a/b?c", "<a>"} {
			addr, err := normalize.Parse(local + "@" + domain)
			if err != nil {
				continue // can't be asked about
			}
			var got asked
			c, err := New(Config{Contract: contract(t, name), URL: "http://user:hunter2@upstream.invalid:8080" + base, Key: testKey, Limiter: &allowance{}, Rand: half,
				Seal: func(string) []byte { return nil }, Transport: roundTrip(func(q *http.Request) (*http.Response, error) {
					got = readRequest(t, q)
					return nil, http.ErrHandlerTimeout
				})})
			if err != nil {
				t.Fatal(err)
			}
			c.Check(t.Context(), addr, plan(time.Second, 0))
			if got.method != w.method || got.path != base+w.path {
				t.Errorf("%s: %s %s, want %s %s", name, got.method, got.path, w.method, base+w.path)
			}
			if w.address(got) != local+"@"+domain || w.key(got) != testKey {
				t.Errorf("%s: address %q, want %q; key right: %v", name, w.address(got), local+"@"+domain, w.key(got) == testKey)
			}
			if name == "mailgun" && got.user != "api" {
				t.Errorf("%s: user %q", name, got.user)
			}
			if got.header.Get("Accept") != "application/json" || got.header.Get("Idempotency-Key") != "" {
				t.Errorf("%s: headers %v", name, got.header)
			}
		}
	}
}

func query(name string) func(asked) string { return func(a asked) string { return a.query.Get(name) } }
func header(name string) func(asked) string {
	return func(a asked) string { return a.header.Get(name) }
}
func object(name string) func(asked) string {
	return func(a asked) string { return fmt.Sprint(a.object[name]) }
}
func bearer(a asked) string {
	key, _ := strings.CutPrefix(a.header.Get("Authorization"), "Bearer ")
	return key
}

// A key that is not needed is not sent when there is none.
func TestOptionalKey(t *testing.T) {
	t.Parallel()
	p := contract(t, "reacher")
	for _, key := range []secret.Text{"", "k"} {
		bound, err := newProvider(p, testURL, key)
		if err != nil {
			t.Fatal(err)
		}
		req, err := bound.request(t.Context(), address(t, "ana"))
		if err != nil {
			t.Fatal(err)
		}
		if _, has := req.Header["X-Reacher-Secret"]; has != (key != "") {
			t.Errorf("with the key %q: header sent: %v", key.Reveal(), has)
		}
	}
}

// idempotent is a provider that recognizes repetitions by a header.
const idempotent = `
name: idem
version: 3
request:
  method: POST
  path: check
  key: {in: header, name: X-Key}
  address: {in: json, name: email}
  params: {json: {strict: true, limit: 5, tag: "7"}, query: {a: "1"}}
  idempotency_header: Idempotency-Key
fields: {result: result}
verdicts:
  - {when: {result: ok}, give: valid mailbox_accepted}
`

func parsed(t testing.TB, text string) *Profile {
	t.Helper()
	p, err := parseProfile("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// All attempts of one check are one to the provider; another check is another.
func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var keys []string
		r := newRig(t, simulator.Config{}, func(c *Config) {
			c.Contract = parsed(t, idempotent)
			c.Transport = roundTrip(func(q *http.Request) (*http.Response, error) {
				a := readRequest(t, q)
				keys = append(keys, a.header.Get("Idempotency-Key"))
				if a.object["strict"] != true || a.object["limit"] != 5.0 || a.object["tag"] != "7" || a.query.Get("a") != "1" {
					t.Errorf("fixed parameters: %v %v", a.object, a.query)
				}
				return &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody, Request: q}, nil
			})
		})
		r.askWithin("ana", 20*time.Second, 1)
		r.askWithin("ana", 20*time.Second, 1)
		if len(keys) != 4 || keys[0] == "" || keys[0] != keys[1] || keys[2] != keys[3] || keys[0] == keys[2] {
			t.Errorf("keys %q: want one for each check", keys)
		}
		if r.ProfileVersion() != "idem@3" {
			t.Errorf("version %q", r.ProfileVersion())
		}
	})
}

// net/http repeats a GET, and a POST with an idempotency header, on a kept connection that turns out dead. The server must
// see each of ours once.
func TestNoResendWhateverTheProfile(t *testing.T) {
	t.Parallel()
	profiles := map[string]*Profile{"idempotency header": parsed(t, idempotent)}
	for _, name := range Profiles {
		profiles[name] = contract(t, name)
	}
	for name, p := range profiles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls, bodies atomic.Int64
			var conns atomic.Int64
			c := wired(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet && (r.ContentLength != 0 || len(r.TransferEncoding) > 0) {
					bodies.Add(1)
				}
				_, _ = io.Copy(io.Discard, r.Body)
				if calls.Add(1) < 3 {
					_, _ = io.WriteString(w, "{}")
					return
				}
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_ = conn.Close()
			}), func(cfg *Config) {
				transport := NewTransport(1)
				dial := &net.Dialer{}
				transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conns.Add(1)
					return dial.DialContext(ctx, network, addr)
				}
				cfg.Contract, cfg.Transport = p, transport
			})
			for range 3 {
				c.Check(t.Context(), address(t, "ana"), generous(0))
			}
			if conns.Load() != 1 {
				t.Fatalf("%d connections: the one that was cut was not a kept one", conns.Load())
			}
			if calls.Load() != 3 {
				t.Errorf("the server saw %d requests, want 3", calls.Load())
			}
			if bodies.Load() != 0 {
				t.Error("a GET came with a body")
			}
		})
	}
}

// The key and the address appear nowhere, whatever the provider and whatever goes wrong; also where the key is in the URL.
func TestNothingLeaksWhateverTheProfile(t *testing.T) {
	t.Parallel()
	const local = "tell-tale"
	for _, name := range Profiles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := contract(t, name)
			set := cases(t, name)
			echo := func(q *http.Request, code int, body string) (*http.Response, error) {
				h := http.Header{"X-Request-Id": {local + "@" + domain}, "Location": {q.URL.String()}}
				return &http.Response{StatusCode: code, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: q}, nil
			}
			// Every text of the provider's own body becomes the address, the local part, or the key.
			planted := func(text string) string {
				var root map[string]any
				if err := json.Unmarshal([]byte(set.Body), &root); err != nil {
					t.Fatal(err)
				}
				var plant func(any) any
				plant = func(v any) any {
					switch x := v.(type) {
					case map[string]any:
						for k := range x {
							x[k] = plant(x[k])
						}
					case []any:
						for i := range x {
							x[i] = plant(x[i])
						}
					case string, nil:
						return text
					}
					return v
				}
				b, err := json.Marshal(plant(root))
				if err != nil {
					t.Fatal(err)
				}
				return string(b)
			}
			faults := []func(q *http.Request) (*http.Response, error){
				func(q *http.Request) (*http.Response, error) {
					return nil, &url.Error{Op: q.Method, URL: q.URL.String(), Err: errors.New(local + testKey)}
				},
				func(q *http.Request) (*http.Response, error) { return nil, fmt.Errorf("%v %v", q.URL, q.Header) },
				func(q *http.Request) (*http.Response, error) { panic(q.URL.String() + q.Header.Get("Authorization")) },
				func(q *http.Request) (*http.Response, error) { return echo(q, 200, planted(local+"@"+domain)) },
				func(q *http.Request) (*http.Response, error) { return echo(q, 200, planted(local)) },
				func(q *http.Request) (*http.Response, error) { return echo(q, 301, q.URL.String()) },
				func(q *http.Request) (*http.Response, error) { return echo(q, 400, planted(local+testKey)) },
				func(q *http.Request) (*http.Response, error) { return echo(q, 503, planted(local)) },
				func(q *http.Request) (*http.Response, error) { return echo(q, 429, planted(local)) },
				func(q *http.Request) (*http.Response, error) { return echo(q, 401, planted(testKey)) },
				func(q *http.Request) (*http.Response, error) {
					res, err := echo(q, 200, planted("X-"+strings.ToUpper(local)+"-1"))
					res.Header.Set("X-Request-Id", "req."+local)
					res.Header.Set("Cf-Ray", "k"+testKey)
					return res, err
				},
			}
			for i, fault := range faults {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t, simulator.Config{}, func(c *Config) { c.Contract, c.Transport = p, roundTrip(fault) },
						func(c *Config) { c.Seal = func(string) []byte { return []byte("sealed") } })
					addr, err := normalize.Parse(local + "@" + domain)
					if err != nil {
						t.Fatal(err)
					}
					out := r.Check(t.Context(), addr, plan(20*time.Second, 2))
					if out.Sent == 0 {
						t.Fatal("nothing was sent")
					}
					families, err := r.reg.Gather()
					if err != nil {
						t.Fatal(err)
					}
					b, err := json.Marshal(out)
					if err != nil {
						t.Fatal(err)
					}
					text := fmt.Sprintf("%s\n%+v\n%s\n%v %+v %s %s", b, out, r.log, families, r.Standing(), r.Host(), r.ProfileVersion())
					for _, planted := range []string{testKey, local, domain} {
						if j := strings.Index(strings.ToLower(text), planted); j >= 0 {
							t.Errorf("fault %d: %q leaks: …%s…", i, planted, text[max(0, j-80):min(len(text), j+80)])
						}
					}
				})
			}
		})
	}
}

// An error of New names neither.
func TestNewWithAContract(t *testing.T) {
	t.Parallel()
	good := Config{Contract: contract(t, "zerobounce"), URL: testURL, Key: testKey, Limiter: &allowance{}, Seal: func(string) []byte { return nil }, Rand: half}
	c, err := New(good)
	if err != nil || c.ProfileVersion() != "zerobounce@1" {
		t.Fatal(c, err)
	}
	good.URL = "https://user:hunter2@host:port"
	if _, err := New(good); err == nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), testKey) {
		t.Errorf("error %v", err)
	}
}
