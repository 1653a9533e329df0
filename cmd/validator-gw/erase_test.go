package main

import (
	"os"
	"strings"
	"testing"

	"validator-gw/internal/secret"
)

func TestErase(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	environ := []string{"VALIDATOR_GW_DATA=" + folder, "VALIDATOR_GW_SECRET=" + secret.Generate().Reveal()}
	erase := func(environ []string, stdin string, args ...string) (code int, stdout, stderr string) {
		t.Helper()
		var out, errs output
		code = run(t.Context(), append([]string{"erase"}, args...), environ, strings.NewReader(stdin), &out, &errs, make(chan os.Signal))
		return code, out.String(), errs.String()
	}
	for _, c := range []struct {
		name    string
		environ []string
		args    []string
		says    string
	}{
		{"no store", environ, []string{"-"}, "no store: there is no validator-gw.db in " + folder},
		{"no secret", environ[:1], []string{"-"}, "no secret: set VALIDATOR_GW_SECRET"},
		{"no address", environ, nil, `expected "<address>"`},
	} {
		if code, stdout, stderr := erase(c.environ, "ana@example.com\n", c.args...); code != exitUsage || stdout != "" || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: %d %q %q, want %d and %q", c.name, code, stdout, stderr, exitUsage, c.says)
		}
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != 0 {
		t.Errorf("the folder has %v, %v, want nothing made in it", entries, err)
	}
	if code, _, stderr := call(t, environ, "migrate"); code != exitDone {
		t.Fatalf("migrate: %d %s", code, stderr)
	}
	const nothing = ": 0 reviews, 0 verdicts, 0 idempotent answers, 0 rows of lists\n"
	for _, c := range []struct{ stdin, arg, want string }{
		{"", "ana@example.com", "erased 1 of 1 addresses" + nothing},
		{"ana@example.com\n\n  Ben@Example.com \r\nana@gmail.com", "-", "erased 3 of 3 addresses" + nothing},
		{"", "-", "erased 0 of 0 addresses" + nothing},
	} {
		if code, stdout, stderr := erase(environ, c.stdin, c.arg); code != exitDone || stdout != c.want {
			t.Errorf("erase %s of %q: %d %q %q, want %q", c.arg, c.stdin, code, stdout, stderr, c.want)
		}
	}
	code, stdout, stderr := erase(environ, "ana@example.com\nplanted ana\n", "-")
	if code != exitFailed || stdout != "" || !strings.Contains(stderr, "address 2 of 2: text can't be an address") || strings.Contains(stderr, "planted") {
		t.Errorf("one that is none: %d %q %q, want %d and its number alone", code, stdout, stderr, exitFailed)
	}
	if code, stdout, _ := call(t, environ, "erase", "--help"); code != exitDone || !strings.Contains(stdout, "better -") {
		t.Errorf("help: %d %q, want it to advise standard input", code, stdout)
	}
}
