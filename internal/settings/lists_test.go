package settings

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func writeSettings(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Lists may be written as YAML lists or with commas, in the file and in the environment, and be empty.
func TestListForms(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "settings.yaml")
	for _, tc := range []struct {
		text, env string
		want      []string
	}{
		{"lists: {deny: [one.example.com, two.example.org]}", "", []string{"one.example.com", "two.example.org"}},
		{"lists:\n  deny:\n    - one.example.com\n    - two.example.org\n", "", []string{"one.example.com", "two.example.org"}},
		{"lists: {deny: 'one.example.com, two.example.org'}", "", []string{"one.example.com", "two.example.org"}},
		{"lists: {deny: [one.example.com]}", "two.example.org,three.example.net", []string{"two.example.org", "three.example.net"}},
		{"lists: {deny: []}", "", nil},
		{"lists: {deny: }", "", nil},
	} {
		writeSettings(t, path, tc.text)
		var environ []string
		if tc.env != "" {
			environ = []string{"VALIDATOR_GW_LISTS_DENY=" + tc.env}
		}
		s, err := Load(path, environ)
		if err != nil {
			t.Errorf("%q: %v", tc.text, err)
			continue
		}
		if !slices.Equal(s.Lists.Deny, tc.want) {
			t.Errorf("%q with %q: deny %q, want %q", tc.text, tc.env, s.Lists.Deny, tc.want)
		}
	}
}

// What is wrong with lists is told like every other fault, all at once.
func TestListFaults(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "settings.yaml")
	writeSettings(t, path, "lists:\n  allow: [ok.example.com]\n  deny: [ok.example.com, gmail.com, not a domain!, ana.planted@example.com]\n"+
		"address:\n  extra_tlds: ['bad tld']\nretry:\n  base: never\n")
	_, err := Load(path, nil)
	faults := strings.Join(Faults(err), "\n")
	for _, want := range []string{"ok.example.com is in", "lists.deny_major", `entry 3: "not a domain!"`, "address.extra_tlds", "retry.base"} {
		if !strings.Contains(faults, want) {
			t.Errorf("no fault says %q:\n%s", want, faults)
		}
	}
	if strings.Contains(faults, "ana.planted") {
		t.Errorf("a fault quotes an address:\n%s", faults)
	}
	for _, text := range []string{"lists: {deny: {a: b}}", "lists: {deny: [[a.example.com]]}"} {
		writeSettings(t, path, text)
		if _, err := Load(path, nil); err == nil || !strings.Contains(err.Error(), "lists.deny") {
			t.Errorf("%s: %v, want a fault of lists.deny", text, err)
		}
	}
}

// The lists may name what the address rules beside them let in, and what is wrong with a long one is told in short.
func TestListsByAddressRules(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "settings.yaml")
	writeSettings(t, path, "lists: {deny: [spam.corp, spam.test]}\naddress: {extra_tlds: [corp], test_domains: true}\n")
	if _, err := Load(path, nil); err != nil {
		t.Error(err)
	}
	writeSettings(t, path, "lists: {deny: '"+strings.Repeat("http://spam.corp/,", 10_000)+"'}\n")
	_, err := Load(path, nil)
	if faults := Faults(err); len(faults) < 2 || len(faults) > 100 || !strings.Contains(faults[len(faults)-1], "more entries are wrong") {
		t.Errorf("%d faults, the last %q", len(faults), faults[max(len(faults), 1)-1:])
	}
}

// A long list changes live, and the log line on it stays short.
func TestLongListInLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "settings.yaml")
	writeSettings(t, path, "")
	s, err := Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	live := NewLive(s, path, nil, nil)
	var log strings.Builder
	live.Log = slog.New(slog.NewTextHandler(&log, nil))
	text := "lists:\n  deny:\n"
	for i := range 5000 {
		text += fmt.Sprintf("    - d%d.example.com\n", i)
	}
	writeSettings(t, path, text)
	if err := live.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(live.Current().Lists.Deny); n != 5000 {
		t.Errorf("%d denied, want 5000", n)
	}
	if !strings.Contains(log.String(), "5000 entries") || log.Len() > 1000 {
		t.Errorf("log of %d bytes: %.300s", log.Len(), log.String())
	}
}
