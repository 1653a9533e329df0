package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const committed = "../data"

// pack writes a package as npm does.
func pack(t *testing.T, files map[string]string) string {
	t.Helper()
	var buf bytes.Buffer
	zipped := gzip.NewWriter(&buf)
	archive := tar.NewWriter(zipped)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := archive.WriteHeader(&tar.Header{Name: "package/" + name, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "package.tgz")
	if err := os.WriteFile(file, buf.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// names returns what a committed list has.
func names(t *testing.T, file string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(committed, file))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			names = append(names, strings.TrimSpace(line))
		}
	}
	return names
}

func licence(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(committed, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// packages returns both packages, such that the committed lists come of them, with all that has to be left out.
func packages(t *testing.T) (disposable, free map[string]string) {
	t.Helper()
	short := names(t, "disposable.txt")
	long := slices.DeleteFunc(names(t, "free.txt"), func(name string) bool { return slices.Contains(freeToo, name) })
	long = append(long, short[17], "below."+short[17], "yaho.com", "404: not found", "asean-mail", "co.uk", "github.io", "x.zzz", "", "MAIL.RU", long[3])
	short = append(short, "opayq.com", "simplelogin.com", "Yopmail.COM", "com", "not a domain", "-a.com", strings.Repeat("a", 64)+".com")
	slices.Reverse(short)
	slices.Reverse(long)
	text, err := json.Marshal(short)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
			"package.json": `{"name":"disposable-email-domains-js","version":"1.26.0","license":"CC0-1.0"}`,
			"dist/dict/disposable_email_blocklist.json": string(text), "LICENSE": licence(t, "LICENSE.disposable"), "dist/index.js": "x",
		}, map[string]string{
			"package.json":  `{"name":"freemail","version":"1.7.0","license":"ISC"}`,
			"data/free.txt": strings.Join(long, "\r\n"), "LICENSE": licence(t, "LICENSE.freemail"), "data/disposable.txt": "x",
		}
}

// folder returns a folder with the lists that are kept by hand.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"protected.txt", "aliases.txt", "squats.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(licence(t, name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestRebuild holds that the committed lists are what this command writes, octet by octet, and again.
func TestRebuild(t *testing.T) {
	t.Parallel()
	short, long := packages(t)
	for range 2 {
		dir := folder(t)
		var out strings.Builder
		if err := run(pack(t, short), pack(t, long), dir, &out); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"disposable.txt", "free.txt", "LICENSE.disposable", "LICENSE.freemail"} {
			got, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != licence(t, file) {
				t.Errorf("%s is not what is committed", file)
			}
		}
		for _, want := range []string{"without 2 that forward mail to a lasting mailbox: opayq.com simplelogin.com", "without 1 that give no mailboxes to the public: yaho.com"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("it does not say %q:\n%s", want, out.String())
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	many := make([]string, maxDomains+1)
	for i := range many {
		many[i] = fmt.Sprintf("a%d.com", i)
	}
	list := func(names ...string) func(d, f map[string]string) {
		return func(d, _ map[string]string) {
			text, _ := json.Marshal(names)
			d["dist/dict/disposable_email_blocklist.json"] = string(text)
		}
	}
	for _, tc := range []struct {
		name   string
		change func(d, f map[string]string)
		want   string
	}{
		{"a major provider", list(append(names(t, "disposable.txt"), "gmail.com")...), "lists major providers as disposable: gmail.com"},
		{"below a major provider", list(append(names(t, "disposable.txt"), "x.gmail.com")...), "lists major providers as disposable: x.gmail.com"},
		{"a parent of one", list(append(names(t, "disposable.txt"), "softbank.jp")...), "lists major providers as disposable: softbank.jp"},
		{"too few", list("a.com", "b.com"), "has 2 domains, want 1000 to 100000"},
		{"too many", list(many...), "has 100001 domains"},
		{"too large", func(d, _ map[string]string) {
			d["dist/dict/disposable_email_blocklist.json"] = strings.Repeat(" ", maxFile+1)
		}, "has 8388609 octets, more than 8388608"},
		{"no JSON", func(d, _ map[string]string) { d["dist/dict/disposable_email_blocklist.json"] = "a.com\n" }, "disposable_email_blocklist.json: invalid"},
		{"another package", func(d, _ map[string]string) {
			d["package.json"] = `{"name":"disposable-email-domains","version":"1.0.62","license":"MIT"}`
		}, `holds the package "disposable-email-domains"`},
		{"no version", func(_, f map[string]string) {
			f["package.json"] = `{"name":"freemail","version":"1\n7","license":"ISC"}`
		}, `in version "1\n7"`},
		{"another licence", func(_, f map[string]string) {
			f["package.json"] = `{"name":"freemail","version":"1.8.0","license":"GPL-3.0"}`
		},
			`the licence is "GPL-3.0" now, it was ISC`},
		{"no licence file", func(_, f map[string]string) { delete(f, "LICENSE") }, "has no licence file"},
		{"no data", func(_, f map[string]string) { delete(f, "data/free.txt") }, "has 0 domains"},
		{"no package.json", func(_, f map[string]string) { delete(f, "package.json") }, "package.json: unexpected end"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			short, long := packages(t)
			tc.change(short, long)
			dir := folder(t)
			var out strings.Builder
			err := run(pack(t, short), pack(t, long), dir, &out)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("run: %v, want %q in it", err, tc.want)
			}
			if files, _ := os.ReadDir(dir); len(files) != 3 {
				t.Errorf("it wrote something all the same: %v", files)
			}
		})
	}
	if err := run("", "", folder(t), &strings.Builder{}); err == nil {
		t.Error("run without packages: no error")
	}
}
