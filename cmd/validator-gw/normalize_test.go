package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

// feed runs the program with something on its standard input.
func feed(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), args, nil, strings.NewReader(stdin), &out, &err, nil)
	return code, out.String(), err.String()
}

// normalizedLine is what scripts read of one line.
type normalizedLine struct {
	Input      string          `json:"input"`
	Outcome    string          `json:"outcome"`
	Normalized *string         `json:"normalized"`
	Reason     *string         `json:"reason"`
	Suggestion *string         `json:"suggestion"`
	Flags      map[string]any  `json:"flags"`
	Changes    []string        `json:"changes"`
	Line       int             `json:"line"`
	Error      string          `json:"error"`
	Raw        json.RawMessage `json:"-"`
}

func readLines(t *testing.T, out string) (lines []normalizedLine) {
	t.Helper()
	for text := range strings.Lines(out) {
		var l normalizedLine
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("line %q: %v", text, err)
		}
		l.Raw = json.RawMessage(text)
		lines = append(lines, l)
	}
	return lines
}

func text(s *string) string {
	if s == nil {
		return "null"
	}
	return *s
}

func TestNormalizeJSON(t *testing.T) {
	t.Parallel()
	in := `" Ana@Example.com "
{"email":"info@gmal.com","name":"ignored"}

"ana@"
"ana@yahoo.con"
"ana﹫example.com"
nonsense
{"mail":"ana@example.com"}
["ana@example.com"]
"a@example.com" "b@example.com"
`
	code, stdout, stderr := feed(t, in, "normalize", "--json", "-")
	if code != 1 || !strings.Contains(stderr, "4 lines could not be read") {
		t.Errorf("exit code %d, %q; want 1, and how many lines could not be read", code, stderr)
	}
	want := []struct{ outcome, normalized, reason, suggestion string }{
		{"valid", "ana@example.com", "null", "null"},
		{"suggest", "info@gmal.com", "typo_domain", "info@gmail.com"},
		{"invalid", "null", "domain_empty", "null"},
		{"suggest", "null", "tld_unknown", "ana@yahoo.com"},
		{"suggest", "null", "fullwidth_at", "ana@example.com"},
	}
	lines := readLines(t, stdout)
	if len(lines) != len(want)+4 {
		t.Fatalf("%d lines out, want %d:\n%s", len(lines), len(want)+4, stdout)
	}
	for i, w := range want {
		l := lines[i]
		if l.Outcome != w.outcome || text(l.Normalized) != w.normalized || text(l.Reason) != w.reason || text(l.Suggestion) != w.suggestion {
			t.Errorf("line %d: %s, want %+v", i, l.Raw, w)
		}
		if l.Changes == nil {
			t.Errorf("line %d has no changes, want a list, if an empty one", i)
		}
	}
	if got := fmt.Sprint(lines[0].Changes); !strings.Contains(got, "trimmed") || !strings.Contains(got, "lower") {
		t.Errorf("changes %v, want trimmed and in lower case", got)
	}
	if lines[1].Flags["role"] != true {
		t.Errorf("flags %v of info@, want role", lines[1].Flags)
	}
	for i, l := range lines[len(want):] {
		if l.Error == "" || l.Line != 7+i || strings.Contains(l.Error, "ana@") {
			t.Errorf("line %s, want an error of line %d that does not quote the input", l.Raw, 7+i)
		}
	}
}

// A name beside the address comes out as it was typed, for who looks at the lines.
func TestNormalizeJSONIsReadable(t *testing.T) {
	t.Parallel()
	if _, stdout, _ := feed(t, "", "normalize", "--json", "Ana <ana@example.com>"); !strings.Contains(stdout, `"input":"Ana <ana@example.com>"`) {
		t.Errorf("output %s, want the input with < and >", stdout)
	}
}

func TestNormalizeTable(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := feed(t, "", "normalize", "Ana+news@GMAIL.com", "ana lee@example.com", "\x1b[2J@example.com")
	if code != 0 || stderr != "" {
		t.Errorf("exit code %d, %q; want 0: an address that can't be one is no failure", code, stderr)
	}
	rows := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	if len(rows) != 4 || !strings.HasPrefix(rows[0], "INPUT") {
		t.Fatalf("output:\n%s\nwant a head and three rows", stdout)
	}
	if f := strings.Fields(rows[1]); len(f) != 6 || f[1] != "valid" || f[2] != "ana+news@gmail.com" || f[5] != "free,subaddressed" {
		t.Errorf("row %q, want valid ana+news@gmail.com with free,subaddressed", rows[1])
	}
	if !strings.Contains(rows[2], "invalid") || !strings.Contains(rows[2], "whitespace_inside") {
		t.Errorf("row %q, want invalid whitespace_inside", rows[2])
	}
	if strings.Contains(stdout, "\x1b") {
		t.Error("a control sequence reached the terminal")
	}
}

// Standard input may be anything: long lines, no line end, bytes that are no UTF-8.
func TestNormalizeStdin(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 200<<10)
	code, stdout, _ := feed(t, long+"@example.com\r\nana@example.com\r\n\xff@example.com\nbob@example.com", "normalize", "-")
	rows := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	if code != 0 || len(rows) != 5 {
		t.Fatalf("exit code %d and\n%s\nwant 0, a head and four rows", code, stdout)
	}
	for i, want := range []string{"address_too_long", "ana@example.com", "encoding", "bob@example.com"} {
		if !strings.Contains(rows[i+1], want) {
			t.Errorf("row %d: %q, want %q in it", i+1, rows[i+1], want)
		}
	}
	if code, stdout, _ := feed(t, `"`+long+`"`, "normalize", "--json", "-"); code != 1 || !strings.Contains(stdout, "64 KiB") || strings.Contains(stdout, "aaa") {
		t.Errorf("a line of 200 KiB: exit code %d, %.200q; want 1 and the bound", code, stdout)
	}
}

func TestNormalizeUsage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"normalize"}, "no addresses given"},
		{[]string{"normalize", "-", "ana@example.com"}, "give it alone"},
		{[]string{"normalize", "--config", file(t, "s.yaml", "lists:\n  deny: [gmail.com]\n"), "ana@example.com"}, "lists.deny_major"},
	} {
		if code, _, stderr := feed(t, "", tc.args...); code != 2 || !strings.Contains(stderr, tc.want) {
			t.Errorf("%q: exit code %d, %q; want 2 with %q", tc.args, code, stderr, tc.want)
		}
	}
}

// The operator's lists count, from the file as in the gateway.
func TestNormalizeOwnLists(t *testing.T) {
	t.Parallel()
	config := file(t, "settings.yaml", "lists:\n  deny:\n    - spam-farm.com\n    - gmai.com\n  allow: [mailinator.com]\naddress:\n  extra_tlds: [newtld]\n")
	code, stdout, stderr := feed(t, "", "normalize", "--json", "--config", config, "ana@sub.spam-farm.com", "ana@mailinator.com", "ana@example.newtld", "ana@gmai.com")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	lines := readLines(t, stdout)
	if l := lines[0]; l.Outcome != "invalid" || text(l.Reason) != "local_denylist" || text(l.Normalized) != "ana@sub.spam-farm.com" {
		t.Errorf("denied: %s", l.Raw)
	}
	if l := lines[1]; l.Flags["disposable"] == true {
		t.Errorf("allowed: %s", l.Raw)
	}
	if l := lines[2]; l.Outcome != "valid" {
		t.Errorf("a new top-level domain: %s", l.Raw)
	}
	if l := lines[3]; l.Outcome != "invalid" || text(l.Reason) != "local_denylist" || text(l.Suggestion) != "ana@gmail.com" {
		t.Errorf("denied, and misspelt: %s", l.Raw)
	}
}

// Half of an output must not pass for the whole: who is stopped before the end of the input says so.
func TestNormalizeStopped(t *testing.T) {
	t.Parallel()
	stdin, end := io.Pipe() // nothing comes, and it does not end
	t.Cleanup(func() { end.Close() })
	signals := make(chan os.Signal, 1)
	signals <- os.Interrupt
	var out, err bytes.Buffer
	if code := run(t.Context(), []string{"normalize", "--json", "-"}, nil, stdin, &out, &err, signals); code != 1 {
		t.Errorf("exit code %d, %q; want 1", code, err.String())
	}
	if !strings.Contains(err.String(), "before the end of standard input") {
		t.Errorf("stderr %q, want that it was stopped before the end", err.String())
	}
}
