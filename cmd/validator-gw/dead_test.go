package main

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"validator-gw/internal/gateway"
	"validator-gw/internal/secret"
)

func TestDead(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	environ := []string{"VALIDATOR_GW_DATA=" + folder, "VALIDATOR_GW_SECRET=" + secret.Generate().Reveal()}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"dead", "list"}, "no store: there is no validator-gw.db in " + folder},
		{[]string{"dead", "replay"}, "give ids, or --all"},
		{[]string{"dead", "drop", "--all", "x"}, "give ids, or --all"},
	} {
		if code, stdout, stderr := call(t, environ, c.args...); code != exitUsage || stdout != "" || !strings.Contains(stderr, c.says) {
			t.Errorf("%v: %d %q %q, want %d and %q", c.args, code, stdout, stderr, exitUsage, c.says)
		}
	}
	if code, _, stderr := call(t, environ, "migrate"); code != exitDone {
		t.Fatalf("migrate: %d %s", code, stderr)
	}
	id := func(n int) string { return fmt.Sprintf("01989f6e-7d3a-7c1e-9a44-00000000000%d", n) }
	db, err := sql.Open("sqlite", filepath.Join(folder, gateway.SQLiteFile))
	if err != nil {
		t.Fatal(err)
	}
	for n := range 4 {
		_, err := db.ExecContext(t.Context(), `
INSERT INTO reviews (id, fingerprint, domain_key, address, state, reason, cause, recorded_at, updated_at, ended_at)
VALUES (?, ?, 1, x'00', 'dead', 'review_poisoned', 'unusable', 1000000, 1000000, ?)`, id(n), fmt.Appendf(nil, "fingerprint %04d", n), 9_000_000-n*1_000_000)
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := call(t, environ, "dead", "list", "--json")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	want := `{"id":"` + id(3) + `","reason":"review_poisoned","recorded_at":"1970-01-01T00:00:01Z","died_at":"1970-01-01T00:00:06Z","checks":0}`
	if code != exitDone || len(lines) != 4 || lines[0] != want {
		t.Errorf("list --json: %d %q %q, want 4 lines, of which the longest dead is the first: %s", code, stdout, stderr, want)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
		errs string
	}{
		{[]string{"replay", id(1), id(9)}, exitFailed, "replayed 1 of 2 reviews\n", id(9) + ": unknown id"},
		{[]string{"drop", id(2), id(1)}, exitFailed, "dropped 1 of 2 reviews\n", id(1) + ": review is not dead"},
		{[]string{"drop", id(0)}, exitDone, "dropped 1 of 1 reviews\n", ""},
		{[]string{"list"}, exitDone, id(3) + "  review_poisoned  ", ""},
		{[]string{"replay", "--all"}, exitDone, "replayed 1 of 1 reviews\n", ""},
		{[]string{"drop", "--all"}, exitDone, "dropped 0 of 0 reviews\n", ""},
	} {
		code, stdout, stderr := call(t, environ, append([]string{"dead"}, c.args...)...)
		if code != c.code || !strings.Contains(stdout, c.says) || !strings.Contains(stderr, c.errs) {
			t.Errorf("dead %v: %d %q %q, want %d, %q and %q", c.args, code, stdout, stderr, c.code, c.says, c.errs)
		}
	}
}
