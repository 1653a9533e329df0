package normalize

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/publicsuffix"
	"pgregory.net/rapid"
)

var shippedLists = map[string]list{
	"disposable": disposableList, "free": freeList, "protected": protectedList, "aliases": aliasesList, "known": knownList,
	"providers": providersList, "roles": rolesList,
}

func TestShippedLists(t *testing.T) {
	t.Parallel()
	for file, l := range shippedLists {
		names := l.names()
		if len(names) != l.ref.Count || l.ref.Count == 0 || l.ref.Name == "" || l.ref.Version == "" {
			t.Errorf("%s: has %d entries and says %+v", file, len(names), l.ref)
		}
		if file != "providers" && !slices.IsSorted(names) { // that one is by rank
			t.Errorf("%s: is not sorted", file)
		}
		seen := map[string]bool{}
		for _, name := range names {
			if seen[name] {
				t.Errorf("%s: has %s twice", file, name)
			}
			seen[name] = true
			if file == "roles" {
				if a, err := Parse(name + "@example.com"); err != nil || a.Local() != name || strings.Contains(name, "+") {
					t.Errorf("roles: %q is no local part of its own normal form", name)
				}
				continue
			}
			if a, err := Parse("x@" + name); err != nil || a.Domain() != name {
				t.Errorf("%s: %q is no domain in its normal form", file, name)
			}
			if suffix, _ := publicsuffix.PublicSuffix(name); suffix == name {
				t.Errorf("%s: %s is a public suffix", file, name)
			}
		}
	}
}

// TestListsAgree holds what the lists promise one another.
func TestListsAgree(t *testing.T) {
	t.Parallel()
	for _, name := range disposableList.names() {
		if freeList.has(name) {
			t.Errorf("%s is both disposable and free", name)
		}
		if e, _, ok := lookup(name); ok {
			t.Errorf("%s is disposable, and in or below the short lists as kind %d", name, e.kind)
		}
	}
	for _, l := range []list{protectedList, aliasesList, freeList} {
		for _, name := range l.names() {
			if disposableList.covers(name) {
				t.Errorf("%s is in %s, and disposable", name, l.ref.Name)
			}
		}
	}
	for _, tg := range targets {
		if e, ok := domains[tg.domain]; !ok || e.kind != protected {
			t.Errorf("%s may be suggested and is not protected", tg.domain)
		}
		// One edit up to ten characters, two above; fewer is a matter of judgement.
		if most := 1 + min(len(tg.domain)/11, 1); tg.edits > most {
			t.Errorf("%s allows %d edits, want at most %d", tg.domain, tg.edits, most)
		}
	}
}

// TestListSearch holds the search in the text against a plain one.
func TestListSearch(t *testing.T) {
	t.Parallel()
	for file, l := range shippedLists {
		if !slices.IsSorted(l.names()) || file == "protected" { // that one has two words a line
			continue
		}
		names := l.names()
		for _, name := range names {
			if !l.has(name) {
				t.Errorf("%s: does not find %s", file, name)
			}
			for _, other := range []string{name[1:], name[:len(name)-1], name + "a", "a" + name, ""} {
				_, want := slices.BinarySearch(names, other)
				if got := l.has(other); got != want {
					t.Errorf("%s: has(%q) = %v", file, other, got)
				}
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[ab]{1,3}`), 0, 8, rapid.ID).Draw(t, "names")
		slices.Sort(names)
		l := list{}
		for _, name := range names {
			l.text += name + "\n"
		}
		name := rapid.StringMatching(`[ab]{0,4}`).Draw(t, "name")
		if got := l.has(name); got != slices.Contains(names, name) {
			t.Errorf("%q in %q: %v", name, names, got)
		}
	})
}

// TestCovers: a list speaks for all below an entry, but for what a company gives names under.
func TestCovers(t *testing.T) {
	t.Parallel()
	l := list{text: "amazonaws.com\nexample.com\n", labels: 2}
	for domain, want := range map[string]bool{
		"example.com": true, "a.b.example.com": true, "xexample.com": false, "com": false, "amazonaws.com": true, "a.amazonaws.com": true,
		"bucket.s3.amazonaws.com": false, // s3.amazonaws.com is a public suffix
	} {
		if got := l.covers(domain); got != want {
			t.Errorf("covers(%q) = %v, want %v", domain, got, want)
		}
	}
}

func TestParents(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		domain string
		most   int
		want   string
	}{
		{"a.b.c.example.com", 9, "a.b.c.example.com b.c.example.com c.example.com example.com"},
		{"a.b.c.example.com", 5, "a.b.c.example.com b.c.example.com c.example.com example.com"},
		{"a.b.c.example.com", 3, "c.example.com example.com"},
		{"a.b.c.example.com", 2, "example.com"},
		{"a.b.c.example.com", 0, ""},
		{"example.com", 4, "example.com"},
	} {
		if got := strings.Join(slices.Collect(parents(tc.domain, tc.most)), " "); got != tc.want {
			t.Errorf("parents of %s up to %d labels = %q, want %q", tc.domain, tc.most, got, tc.want)
		}
	}
}

func TestMustReadPanics(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "a.com\n", "# name 1 licence\na.com\n", "# name 1 one licence\na.com\n"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a list that begins with %q is read", text)
				}
			}()
			mustRead(text)
		}()
	}
}
