package verimail

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"validator-gw/internal/verdict"
)

// sound is a profile without a fault; the tests break it.
const sound = `name: example
version: 1
request:
  method: POST
  url: https://api.example.com
  path: v1/check
  key: {in: header, name: X-Api-Key}
  address: {in: json, name: email}
fields:
  result: data.status
  detail: [data.detail, errors.0.id]
  accept_all: data.accept_all
http: {402: quota, 5xx: fault}
bodies:
  - {when: {detail: "*limit*"}, class: throttled}
verdicts:
  - {when: {result: ok}, give: valid mailbox_accepted}
  - {when: {result: [bad, gone], accept_all: true}, give: risky catch_all, flags: {catch_all: true}}
  - {when: {result: [bad, gone]}, give: invalid mailbox_not_found}
flags: {catch_all: accept_all}
`

func TestSoundProfile(t *testing.T) {
	t.Parallel()
	p := parsed(t, sound)
	if p.Name() != "example" || p.Version() != "example@1" || p.URL() != "https://api.example.com" || !p.NeedsKey() {
		t.Errorf("%s %s %s %v", p.Name(), p.Version(), p.URL(), p.NeedsKey())
	}
	for _, tt := range []struct {
		body string
		want string
	}{
		{`{"data":{"status":"OK"}}`, "valid mailbox_accepted"},
		{`{"data":{"status":"gone","accept_all":"yes"}}`, "risky catch_all"},
		{`{"data":{"status":"gone"}}`, "invalid mailbox_not_found"},
		{`{"errors":[{"id":"rate_limit_hit"}]}`, " upstream_throttled"},
		{`{"data":{"status":"ok","detail":null},"errors":[{"id":"rate_limit_hit"}]}`, " upstream_throttled"},
		{`{"data":{"status":"ok","detail":"fine"},"errors":[{"id":"rate_limit_hit"}]}`, "valid mailbox_accepted"},
	} {
		if a := p.decode(200, []byte(tt.body)); string(a.status)+" "+string(a.reason) != tt.want {
			t.Errorf("%s is %s %s, want %s", tt.body, a.status, a.reason, tt.want)
		}
	}
}

// A wrong profile says where, and what to do.
func TestProfileFaults(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, old, new, want string }{
		{"unknown key", "version: 1", "version: 1\nverdict: []", "test.yaml:3:1: verdict: is not known here; did you mean verdicts?"},
		{"unknown key inside", "method: POST", "methods: POST", "test.yaml:4:3: request.methods: is not known here; did you mean method?"},
		{"missing", "version: 1\n", "", "test.yaml:1:1: version: is missing; begin with 1"},
		{"missing part", "  path: v1/check\n", "", "request.path: is missing; write what follows the base URL"},
		{"missing result", "  result: data.status\n", "", "fields.result: is missing; say where the body has the verdict"},
		{"twice", "version: 1", "version: 1\nversion: 2", "test.yaml:3:1: version: is there twice; line 2 has the first; keep one"},
		{"name", "name: example", "name: Example One", `name: "Example One": a name is a lower-case letter`},
		{"version", "version: 1", "version: one", `version: "one" is no whole number from 1`},
		{"method", "method: POST", "method: PUT", `test.yaml:4:11: request.method: "PUT" is not one of GET, POST`},
		{"get with a body", "method: POST", "method: GET", "request.method: a GET has no body"},
		{"url", "url: https://api.example.com", "url: api.example.com", "request.url: is not a base URL; write it such as https://api.example.com"},
		{"url with a key", "url: https://api.example.com", "url: https://api.example.com/?k=hunter2", "without user, query or fragment"},
		{"path with a query", "path: v1/check", "path: v1/check?a=b", "request.path: has a query"},
		{"key nowhere", "key: {in: header, name: X-Api-Key}", "key: {in: cookie, name: k}", `request.key.in: "cookie" is not one of query, form, json, header, bearer, basic`},
		{"key without a name", "key: {in: header, name: X-Api-Key}", "key: {in: header}", "request.key.name: is missing"},
		{"bearer with a name", "key: {in: header, name: X-Api-Key}", "key: {in: bearer, name: k}", "request.key.name: a bearer key has no name"},
		{"basic without a user", "key: {in: header, name: X-Api-Key}", "key: {in: basic}", "request.key.user: is missing"},
		{"header name", "name: X-Api-Key", `name: "X Key"`, `"X Key" is no name of a header`},
		{"reserved header", "address: {in: json, name: email}", "address: {in: json, name: email}\n  params: {header: {Host: a}}", "Host is not a profile's to set"},
		{"idempotency in params", "address: {in: json, name: email}", "address: {in: json, name: email}\n  params: {header: {Idempotency-Key: a}}", "goes into request.idempotency_header"},
		{"form and json", "address: {in: json, name: email}", "address: {in: json, name: email}\n  params: {form: {a: b}}", "has both form and json values"},
		{"one name for two", "key: {in: header, name: X-Api-Key}", "key: {in: json, name: email}", "json email is filled twice"},
		{"path syntax", "result: data.status", "result: data..status", `test.yaml:10:11: fields.result: "data..status" is no path; write keys with dots between`},
		{"path syntax in a list", "[data.detail, errors.0.id]", "[data.detail, 'errors[0].id']", `fields.detail: "errors[0].id" is no path`},
		{"path twice", "[data.detail, errors.0.id]", "[data.detail, data.detail]", `fields.detail: "data.detail" is there twice`},
		{"http", "402: quota", "4o2: quota", `http.4o2: "4o2" is no HTTP status`},
		{"class", "402: quota", "402: quotas", `http.402: "quotas" is no class; it is one of verdict, in_progress`},
		{"class suggestion", "402: quota", "402: quotas", "did you mean quota?"},
		{"verdict by status", "402: quota", "404: invalid mailbox_not_found", "can't make an address invalid; that takes a row of verdicts"},
		{"body class", "class: throttled", "class: slow down", `"slow" is no status`},
		{"unknown field", `{detail: "*limit*"}`, `{details: "*limit*"}`, `bodies[0].when.details: "details" is none of fields; add it there; did you mean detail?`},
		{"unknown flag field", "{catch_all: accept_all}", "{catch_all: acceptall}", `flags.catch_all: "acceptall" is none of fields; add it there; did you mean accept_all?`},
		{"unknown flag", "{catch_all: accept_all}", "{catchall: accept_all}", "flags.catchall: is not known here; did you mean catch_all?"},
		{"inner star", `"*limit*"`, `"li*mit"`, `has a * inside`},
		{"asks for nothing", "{when: {result: ok}, give", "{when: {}, give", "verdicts[0].when: asks for nothing"},
		{"no when", "{when: {result: ok}, give", "{give", "verdicts[0].when: is missing"},
		{"no give", "{when: {result: ok}, give: valid mailbox_accepted}", "{when: {result: ok}}", "verdicts[0].give: is missing"},
		{"status word", "give: valid mailbox_accepted", "give: vaild mailbox_accepted", `test.yaml:17:32: verdicts[0].give: "vaild" is no status; it is one of valid, invalid, risky, needs_review, unresolved; did you mean valid?`},
		{"reason word", "give: valid mailbox_accepted", "give: valid mailbox_acepted", `"mailbox_acepted" is no reason; with valid it is one of mailbox_accepted, alias_accepted, local_allowlist; did you mean mailbox_accepted?`},
		{"pair", "give: valid mailbox_accepted", "give: valid mailbox_full", "mailbox_full does not go with valid; it goes with risky"},
		{"pair of a fault", "give: valid mailbox_accepted", "give: needs_review upstream_error", `"upstream_error" is no reason; with needs_review it is one of mailbox_temp_rejected`},
		{"one word", "give: valid mailbox_accepted", "give: valid", `verdicts[0].give: "valid" must be a status and a reason`},
		{"value twice", "result: [bad, gone]}, give: invalid", "result: [bad, bad]}, give: invalid", `"bad" is there twice`},
		{"value of a row above", "result: [bad, gone]}, give: invalid", "result: [gone, ok]}, give: invalid",
			`test.yaml:19:5: verdicts[2]: is never reached for result "ok": the row on line 17 takes it; put it above that one, or drop it`},
		{"condition below the rest", "  - {when: {result: ok}, give: valid mailbox_accepted}\n", "  - {when: {result: [ok, bad]}, give: valid mailbox_accepted}\n", `verdicts[1]: is never reached for result "bad", accept_all "true"`},
		{"no rows", sound[strings.Index(sound, "verdicts:"):strings.Index(sound, "flags: {catch_all: accept_all}")], "verdicts: []\n", "verdicts: is empty; without a row no answer is ever a verdict"},
		{"list for a mapping", "http: {402: quota, 5xx: fault}", "http: [402]", "http: must be a mapping"},
		{"mapping for a list", "bodies:\n  - {when", "bodies:\n  a: {when", "bodies: must be a list of mappings"},
		{"mapping for a value", "method: POST", "method: {a: b}", "request.method: must be one value"},
		{"syntax", "name: example", "name: [", "test.yaml: yaml:"},
		{"two documents", "name: example", "name: example\n---\na: b", "has more than one YAML document"},
		{"score", "flags: {catch_all: accept_all}", "score: {field: detail, times: none}", `score.times: "none" is no factor`},
		{"hint", "flags: {catch_all: accept_all}", "hints: [{header: X, form: ms}]", `hints[0].form: "ms" is not one of http, seconds, epoch, auto`},
		{"pending", "flags: {catch_all: accept_all}", "pending: costly", `pending: "costly" is not one of free, billed`},
		{"contradiction", "flags: {catch_all: accept_all}", "contradictions: [{when: {result: ok}, never: [ivalid]}]", `contradictions[0].never: "ivalid" is not one of`},
		{"addition of nothing", "flags: {catch_all: accept_all}", "also: [{when: {result: ok}}]", "also[0]: adds nothing; give it a reason or flags"},
		{"too many rows", "flags: {catch_all: accept_all}", "also: [" + strings.Repeat("{}, ", maxRows+1) + "]", "also: has 401 items, and 400 is the most"},
		{"too many words", "[bad, gone]}, give: invalid", "[" + strings.Repeat("w, ", maxWords+1) + "]}, give: invalid", "has 101 words, and 100 is the most"},
		{"too many conditions", "[bad, gone]}, give: invalid", "[bad, gone]" + manyConditions() + "}, give: invalid", "has 13 conditions, and 12 is the most"},
		{"an alias of itself", "flags: {catch_all: accept_all}", "also: &a [*a]", "also[0]"},
	}
	for _, tt := range tests {
		text := strings.Replace(sound, tt.old, tt.new, 1)
		if text == sound {
			t.Errorf("%s: nothing was changed", tt.name)
			continue
		}
		_, err := parseProfile("test.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: error %v\nwant %s", tt.name, err, tt.want)
		}
	}
	for _, text := range []string{"", "# nothing\n", "a", "[]", "null", "name: *x"} {
		if _, err := parseProfile("test.yaml", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), "test.yaml:") {
			t.Errorf("%q: error %v", text, err)
		}
	}
}

// All faults are told at once, in the order of the file.
func TestAllProfileFaultsAtOnce(t *testing.T) {
	t.Parallel()
	text := strings.NewReplacer("version: 1", "version: 0", "POST", "PUT", "data.status", "data..status", "402: quota", "402: qota",
		"valid mailbox_accepted", "valid mailbox_full", "{catch_all: accept_all}", "{catch: accept_all}").Replace(sound)
	_, err := parseProfile("test.yaml", []byte(text))
	if err == nil {
		t.Fatal("no error")
	}
	lines := strings.Split(err.Error(), "\n")
	var at []string
	for _, l := range lines {
		at = append(at, strings.Join(strings.SplitN(l, ":", 4)[:2], ":"))
	}
	want := []string{"test.yaml:2", "test.yaml:4", "test.yaml:10", "test.yaml:13", "test.yaml:17", "test.yaml:20"}
	if !slices.Equal(at, want) {
		t.Errorf("faults at %q, want %q:\n%v", at, want, err)
	}
}

func TestLoadProfile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if p, err := LoadProfile(write("mine.yaml", sound)); err != nil || p.Name() != "example" {
		t.Errorf("%v, %v", p, err)
	}
	for in, want := range map[string]string{
		"verimail_v4":                   `"verimail_v4" is not one of verimail_v3, abstract, `,
		"":                              `"" is not one of verimail_v3`,
		filepath.Join(dir, "none.yaml"): "none.yaml",
		"../verimail_v3":                "verimail_v3",
		write("bad.yaml", "name: x\n"):  "bad.yaml:1:1: version: is missing",
		write("big.yaml", strings.Repeat("#", maxProfile+1)): "is larger than 256 KiB",
		dir + "/": dir,
	} {
		if _, err := LoadProfile(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("LoadProfile(%q): error %v, want %s", in, err, want)
		}
	}
	for _, name := range Profiles {
		p := contract(t, name)
		if p.Name() != name || p.version < 1 || len(p.pages) == 0 || p.checked == "" || (p.base == "") != (name == "reacher") || p.NeedsKey() == (name == "reacher") {
			t.Errorf("%s: %s, version %d, pages %q of %q, %q", name, p.Name(), p.version, p.pages, p.checked, p.base)
		}
	}
	if p := contract(t, ProfileVerimailV3); p.URL() != DefaultURL {
		t.Errorf("the default is at %s, want %s", p.URL(), DefaultURL)
	}
	files, err := shipped.ReadDir("profiles")
	if err != nil || len(files) != len(Profiles) {
		t.Errorf("%d files, %d names, %v", len(files), len(Profiles), err)
	}
}

// manyConditions are maxConditions of them, to go behind another.
func manyConditions() string {
	var b strings.Builder
	for i := range maxConditions {
		fmt.Fprintf(&b, ", f%d: w", i)
	}
	return b.String()
}

// FuzzProfile: no text makes the reader panic, and what it takes can be asked with.
func FuzzProfile(f *testing.F) {
	f.Add([]byte(sound))
	for _, name := range Profiles {
		data, err := shipped.ReadFile("profiles/" + name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("also: &a [*a]"))
	addr := address(f, "ana")
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 16<<10 {
			return
		}
		p, err := parseProfile("fuzz.yaml", data)
		if err != nil {
			return
		}
		bound, err := newProvider(p, testURL, testKey)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bound.request(t.Context(), addr); err != nil {
			t.Fatalf("%v for:\n%s", err, data)
		}
		p.decode(200, []byte(`{"data":{"status":"ok"}}`))
	})
}

var update = flag.Bool("update", false, "write the tables of docs/profiles.md")

// The documentation's tables are the code's.
func TestProfileDocumentationIsCurrent(t *testing.T) {
	t.Parallel()
	var classes strings.Builder
	classes.WriteString("| class | outcome in the trail | reason | again in the same request | the breaker is told | gates | ladder of the review | alarm on |\n|---|---|---|---|---|---|---|---|\n")
	order := slices.Concat(profileClasses, []class{classTransient, classUnmapped, classContradictory, classBadBody})
	for _, c := range order {
		a := actions[c]
		retry, told, cause, reason := "no", "success", "–", string(a.reason)
		if a.retry {
			retry = "yes"
		}
		if c == classInProgress {
			retry = "where `pending: free`"
		}
		if errors.Is(a.health, errNeutral) {
			told = "nothing"
		} else if a.health != nil {
			told = "failure"
		}
		if a.cause != "" {
			cause = string(a.cause)
		}
		if reason == "" {
			reason = "the mapping's"
		} else {
			reason = "`" + reason + "`"
		}
		fmt.Fprintf(&classes, "| `%s` | `%s` | %s | %s | %s | %s | %s | %s |\n", c, a.outcome, reason, retry, told, a.gate, cause, a.alarm)
	}
	if len(order) != len(actions) {
		t.Errorf("%d classes in order, %d in the table", len(order), len(actions))
	}
	var list strings.Builder
	list.WriteString("| profile | asked at | key | rows | from | read on |\n|---|---|---|---|---|---|\n")
	for _, name := range Profiles {
		p := contract(t, name)
		key := p.key.in + " `" + p.key.name + "`"
		switch p.key.in {
		case inBearer:
			key = "bearer"
		case inBasic:
			key = "basic, user `" + p.key.name + "`"
		}
		if p.keyOptional {
			key += ", optional"
		}
		base := p.base
		if base == "" {
			base = "(yours)"
		}
		var pages []string
		for i, page := range p.pages {
			pages = append(pages, fmt.Sprintf("[%d](%s)", i+1, page))
		}
		fmt.Fprintf(&list, "| `%s` | `%s %s/%s` | %s | %d | %s | %s |\n", p.Version(), p.method, base, p.path, key, len(p.rows), strings.Join(pages, " "), p.checked)
	}
	var words strings.Builder
	words.WriteString("| status | reasons |\n|---|---|\n")
	for _, s := range statusWords {
		fmt.Fprintf(&words, "| `%s` | `%s` |\n", s, strings.Join(names(verdict.Answers(verdict.Status(s))), "`, `"))
	}

	const path = "../../docs/profiles.md"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for name, table := range map[string]string{"classes": classes.String(), "profiles": list.String(), "words": words.String()} {
		begin, end := "<!-- "+name+": written by go test ./internal/verimail -run Documentation -update -->\n", "<!-- end of "+name+" -->\n"
		head, rest, ok1 := strings.Cut(text, begin)
		_, tail, ok2 := strings.Cut(rest, end)
		if !ok1 || !ok2 {
			t.Fatalf("%s lacks the marks of %s", path, name)
		}
		text = head + begin + table + end + tail
	}
	if text == string(data) {
		return
	}
	if !*update {
		t.Fatalf("%s is out of date; run: go test ./internal/verimail -run Documentation -update", path)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The worked example of the documentation is a profile.
func TestDocumentedExample(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../docs/profiles.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(data), "```yaml\nname: acme\n")
	text, _, ok2 := strings.Cut(rest, "```")
	if !ok || !ok2 {
		t.Fatal("no example that begins with name: acme")
	}
	p := parsed(t, "name: acme\n"+text)
	for body, want := range map[string]string{
		`{"ok":true,"data":{"verdict":"exists","flags":["role"]}}`: "valid mailbox_accepted",
		`{"ok":true,"data":{"verdict":"unsure","catch_all":true}}`: "risky catch_all",
		`{"ok":true,"data":{"verdict":"unsure"}}`:                  "risky low_deliverability",
		`{"ok":true,"data":{"verdict":"try_later"}}`:               "needs_review greylisted",
		`{"ok":false,"error":"credit limit reached"}`:              " upstream_quota",
	} {
		if a := p.decode(200, []byte(body)); string(a.status)+" "+string(a.reason) != want {
			t.Errorf("%s is %s %s, want %s", body, a.status, a.reason, want)
		}
	}
}
