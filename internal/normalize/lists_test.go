package normalize

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"validator-gw/internal/verdict"
)

func mustLists(t testing.TB, own Own) *Lists {
	t.Helper()
	l, err := NewLists(own)
	if err != nil {
		t.Fatalf("NewLists(%+v): %v", own, err)
	}
	return l
}

func TestNewLists(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		own  Own
		want []string // one line each, by what it must contain; none for no error
	}{
		{"nothing", Own{}, nil},
		{"domains", Own{Allow: []string{"yopmail.com"}, Deny: []string{" Example.COM ", "mail.example.org"}}, nil},
		{"beyond ASCII", Own{Deny: []string{"bücher.com", "xn--bcher-kva.org"}}, nil},
		{"a domain below in the other list", Own{Allow: []string{"good.example.com"}, Deny: []string{"example.com"}}, nil},
		{"twice in one list", Own{Deny: []string{"example.com", "EXAMPLE.com"}}, nil},
		{"a suffix that a company gives names under", Own{Deny: []string{"github.io"}}, nil},
		{"no domain", Own{Deny: []string{"example"}}, []string{`lists.deny, entry 1: "example" is not a domain (domain_no_dot): write a domain such as example.com`}},
		{"empty", Own{Allow: []string{"a.com", ""}}, []string{`lists.allow, entry 2: "" is not a domain (domain_empty)`}},
		{"wildcard", Own{Deny: []string{"*.example.com"}}, []string{`"*.example.com" is not a domain (domain_char): write example.com, which stands for all below it too`}},
		{"leading dot", Own{Deny: []string{".example.com"}}, []string{`(domain_dot): did you mean example.com?`}},
		{"misspelt end", Own{Deny: []string{"acme.con"}}, []string{`"acme.con" is not a domain (tld_unknown): did you mean acme.com?`}},
		{"top-level domain", Own{Deny: []string{"com"}}, []string{`"com" is a public suffix`}},
		{"public suffix", Own{Allow: []string{"Co.UK"}}, []string{`lists.allow, entry 1: "Co.UK" is a public suffix`}},
		{"public suffix beyond ASCII", Own{Deny: []string{"公司.cn"}}, []string{`"公司.cn" is a public suffix`}},
		{"in both", Own{Allow: []string{"example.com"}, Deny: []string{"example.com"}}, []string{`lists.deny, entry 1: example.com is in lists.allow too`}},
		{"major provider", Own{Deny: []string{"gmail.com"}},
			[]string{`lists.deny: gmail.com is a major provider: to deny it all the same, name it in lists.deny_major too`}},
		{"major provider, meant", Own{Deny: []string{"gmail.com"}, DenyMajor: []string{"gmail.com"}}, nil},
		{"a parent of a major provider", Own{Deny: []string{"onet.pl"}},
			[]string{`lists.deny: onet.pl is a major provider: to`, `lists.deny: poczta.onet.pl is a major provider, which onet.pl covers: to deny it`}},
		{"a parent of a major provider, meant", Own{Deny: []string{"onet.pl"}, DenyMajor: []string{"onet.pl", "poczta.onet.pl"}}, nil},
		{"a parent of a major provider that is allowed", Own{Deny: []string{"softbank.jp"}, Allow: []string{"i.softbank.jp"}}, nil},
		{"below a major provider", Own{Deny: []string{"lists.gmail.com"}}, nil},
		{"meant, and no major provider", Own{Deny: []string{"example.com"}, DenyMajor: []string{"example.com"}},
			[]string{`lists.deny_major, entry 1: example.com is no major provider: take it out`}},
		{"meant, and not denied", Own{DenyMajor: []string{"gmail.com"}}, []string{`lists.deny_major, entry 1: gmail.com is not denied`}},
		{"several", Own{Allow: []string{"com"}, Deny: []string{"a b.com", "gmail.com"}},
			[]string{`lists.allow, entry 1: "com" is a public suffix`, `lists.deny, entry 1: "a b.com" is not a domain`, `gmail.com is a major provider`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l, err := NewLists(tc.own)
			if len(tc.want) == 0 {
				if err != nil || l == nil {
					t.Fatalf("NewLists: %v", err)
				}
				return
			}
			if err == nil || l != nil {
				t.Fatalf("NewLists = %v, %v; want an error alone", l, err)
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(tc.want) {
				t.Fatalf("NewLists says %q, want %d faults", err, len(tc.want))
			}
			for i, want := range tc.want {
				if !strings.Contains(lines[i], want) {
					t.Errorf("fault %d is %q, want %q in it", i, lines[i], want)
				}
			}
		})
	}
}

// A domain that the operator's rules let in can be listed, as it can be typed.
func TestNewListsByRules(t *testing.T) {
	t.Parallel()
	rules := Rules{TestDomains: true, TLDs: []string{"corp", "पूर्ण"}}
	own := Own{Deny: []string{"spam.test", "spam.corp", "spam.पूर्ण"}, Allow: []string{"good.spam.corp"}, Rules: rules}
	l := mustLists(t, own)
	for text, denied := range map[string]bool{
		"ana@spam.test": true, "ana@spam.corp": true, "ana@mail.spam.पूर्ण": true, "ana@good.spam.corp": false, "ana@other.test": false,
	} {
		a, err := rules.Parse(text)
		if err != nil {
			t.Fatalf("Parse(%q): %v", text, err)
		}
		if got := l.Look(a).Denied; got != denied {
			t.Errorf("%s denied: %v, want %v", text, got, denied)
		}
	}
	own.Rules = Rules{}
	if _, err := NewLists(own); err == nil {
		t.Error("without the rules there are no such domains, and no error")
	}
}

// A file of URLs in place of domains is told in a few lines, each list by itself.
func TestNewListsToldInShort(t *testing.T) {
	t.Parallel()
	urls := make([]string, 1000)
	for i := range urls {
		urls[i] = "http://spam.example.com/"
	}
	_, err := NewLists(Own{Allow: urls[:maxFaults], Deny: urls})
	if err == nil {
		t.Fatal("URLs are taken for domains")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 2*maxFaults+1 || lines[len(lines)-1] != "lists.deny: 980 more entries are wrong" {
		t.Errorf("%d lines, the last %q; want %d of each list and how many more of the second", len(lines), lines[len(lines)-1], maxFaults)
	}
}

func TestNewListsNeverPrintsAnAddress(t *testing.T) {
	t.Parallel()
	for _, entry := range []string{"ana.secret@example.com", "@example.com", "ana.secret＠example.com"} {
		_, err := NewLists(Own{Deny: []string{entry}})
		if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "lists.deny, entry 1: an address") {
			t.Errorf("NewLists with %q: %v", entry, err)
		}
	}
}

func TestOwnLists(t *testing.T) {
	t.Parallel()
	l := mustLists(t, Own{
		Allow: []string{"yopmail.com", "gmial.com", "good.example.com", "bücher.com"},
		Deny:  []string{"example.com", "gmai.com", "hotmail.com", "bad.good.example.com", "münchen.com"}, DenyMajor: []string{"hotmail.com"},
	})
	for _, tc := range []struct {
		in         string
		denied     bool
		disposable verdict.Tri
		suggestion string
	}{
		{"ana@example.com", true, verdict.Unknown, ""},
		{"ana@deep.down.example.com", true, verdict.Unknown, ""},
		{"ana@notexample.com", false, verdict.Unknown, ""}, // the border of a label
		{"ana@good.example.com", false, verdict.False, ""},
		{"ana@x.good.example.com", false, verdict.False, ""},
		{"ana@bad.good.example.com", true, verdict.Unknown, ""},
		{"ana@x.bad.good.example.com", true, verdict.Unknown, ""},
		{"ana@yopmail.com", false, verdict.False, ""}, // the operator's word beats the shipped list
		{"ana@gmial.com", false, verdict.False, ""},   // and is a domain of its own
		{"ana@gmai.com", true, verdict.Unknown, "ana@gmail.com"},
		{"ana@hotmial.com", false, verdict.True, ""}, // the provider that it may be is denied
		{"ana@bücher.com", false, verdict.False, ""},
		{"ana@münchen.com", true, verdict.Unknown, ""},
		{"ana@mailinator.com", false, verdict.True, ""},
		{"ana%2bx@example.com", true, verdict.Unknown, ""},
	} {
		h := l.Look(mustParse(t, tc.in))
		if h.Denied != tc.denied || h.Flags.Disposable != tc.disposable || h.Suggestion != tc.suggestion {
			t.Errorf("Look(%q) = %+v, want denied %v, disposable %v, suggestion %q", tc.in, h, tc.denied, tc.disposable, tc.suggestion)
		}
	}
}

func TestLookFlags(t *testing.T) {
	t.Parallel()
	const yes, no, unknown = verdict.True, verdict.False, verdict.Unknown
	l := mustLists(t, Own{})
	for _, tc := range []struct {
		row                    string
		in                     string
		disposable, role, free verdict.Tri
		utf8, tagged, mixed    verdict.Tri
	}{
		{"44: in capitals too", "ANA@GMAIL.COM", no, no, yes, no, no, no},
		{"46: tag", "ana+news@gmail.com", no, no, yes, no, yes, no},
		{"46: a tag alone is a name", "+news@gmail.com", no, no, yes, no, no, no},
		{"51", "jürgen@gmx.de", no, no, yes, yes, no, no},
		{"59: Cyrillic letter in a Latin label", "ana@exаmple.com", unknown, no, unknown, no, no, yes},
		{"59: one script", "ana@пример.com", unknown, no, unknown, no, no, no},
		{"59: one script", "ana@bücher.com", unknown, no, unknown, no, no, no},
		{"59: local part in Latin and Cyrillic", "аna@example.com", unknown, no, unknown, yes, no, yes},
		{"59: local part in Latin and Greek", "αna@example.com", unknown, no, unknown, yes, no, yes},
		{"59: local part in Cyrillic with digits", "анна1@example.com", unknown, no, unknown, yes, no, no},
		{"59: local part in Latin and Han", "ana用户@example.com", unknown, no, unknown, yes, no, no},
		{"73", "ana@mailinator.com", yes, no, unknown, no, no, no},
		{"73: sub-domain", "ana@a.b.c.mailinator.com", yes, no, unknown, no, no, no},
		{"73: border of a label", "ana@xmailinator.com", unknown, no, unknown, no, no, no},
		{"73: an entry below a suffix of a company", "ana@0-mailer.dynv6.net", yes, no, unknown, no, no, no},
		{"73: its neighbour", "ana@another.dynv6.net", unknown, no, unknown, no, no, no},
		{"73: not listed is not known", "ana@example.com", unknown, no, unknown, no, no, no},
		{"74", "x@privaterelay.appleid.com", no, no, unknown, no, no, no},
		{"74", "x@duck.com", no, no, unknown, no, no, no},
		{"74", "x@mozmail.com", no, no, unknown, no, no, no},
		{"74: sub-domain of such a service", "x@ana.anonaddy.com", no, no, unknown, no, no, no},
		{"74: what a list called disposable", "x@opayq.com", no, no, unknown, no, no, no},
		{"75", "postmaster@example.com", unknown, yes, unknown, no, no, no},
		{"75: before a tag", "info+web@example.com", unknown, yes, unknown, no, yes, no},
		{"75: capitals", "No-Reply@example.com", unknown, yes, unknown, no, no, no},
		{"75: whole word", "information.desk@example.com", unknown, no, unknown, no, no, no},
		{"75: whole word", "infos@example.com", unknown, no, unknown, no, no, no},
		{"75: the tag is not the name", "ana+info@example.com", unknown, no, unknown, no, yes, no},
		{"76", "ana@proton.me", no, no, yes, no, no, no},
		{"76: below it is another's", "ana@mail.gmail.com", no, no, unknown, no, no, no},
		{"76: in its country", "ana@yahoo.com.mx", no, no, yes, no, no, no},
		{"76: a provider in the free list alone", "ana@123india.com", unknown, no, yes, no, no, no},
		{"76: below it is another's", "ana@mail.123india.com", unknown, no, unknown, no, no, no},
		{"76: a major one that is paid for", "ana@hey.com", no, no, unknown, no, no, no},
	} {
		h := l.Look(mustParse(t, tc.in))
		want := verdict.Flags{Disposable: tc.disposable, Role: tc.role, Free: tc.free, SMTPUTF8: tc.utf8, Subaddressed: tc.tagged, MixedScript: tc.mixed}
		if h.Flags != want {
			t.Errorf("row %s: flags of %q = %+v, want %+v", tc.row, tc.in, h.Flags, want)
		}
		if h.Suggestion != "" || h.SuggestionReason != "" || h.Denied {
			t.Errorf("row %s: Look(%q) = %+v, want flags alone", tc.row, tc.in, h)
		}
		wantList := ListRef{}
		if tc.disposable == yes {
			wantList = ListRef{Name: "disposable-email-domains-js", Version: "1.26.0", Count: 8882}
		}
		if h.Disposable != wantList {
			t.Errorf("row %s: Look(%q) names the list %+v, want %+v", tc.row, tc.in, h.Disposable, wantList)
		}
	}
	if h := l.Look(Address{}); h != (Hints{}) {
		t.Errorf("Look of no address = %+v", h)
	}
}

func TestRoles(t *testing.T) {
	t.Parallel()
	// RFC 2142, sections 3 to 5.
	for _, name := range strings.Fields("info marketing sales support abuse noc security postmaster hostmaster usenet news webmaster www uucp ftp") {
		if !isRole(name) {
			t.Errorf("%s is no role", name)
		}
	}
	// What other lists have, and people are called by.
	for _, name := range strings.Fields("2019 it ceo user me test mail jobsen hans") {
		if isRole(name) {
			t.Errorf("%s is a role", name)
		}
	}
}

func TestShippedRefs(t *testing.T) {
	t.Parallel()
	l := mustLists(t, Own{})
	refs := l.Shipped()
	if len(refs) != len(shippedLists) || refs[0].Name != "disposable-email-domains-js" || refs[1].Name != "freemail" {
		t.Errorf("shipped lists %+v", refs)
	}
	refs[0] = ListRef{}
	if l.Shipped()[0] == refs[0] {
		t.Error("who changes what Shipped returned changes the lists")
	}
}

// TestLookLaws draws domains near the lists, which random ones hardly ever are.
func TestLookLaws(t *testing.T) {
	t.Parallel()
	l, again := mustLists(t, Own{}), mustLists(t, Own{})
	pool := append(append(providersList.names(), protectedList.names()...), "mailinator.com", "example.com", "bücher.com", "gmаil.com")
	piece := rapid.SampledFrom([]string{"", "", "a", "o", "m", "-", ".", "l", "х", "é", "com", "xn--"})
	suggested := 0
	rapid.Check(t, func(t *rapid.T) {
		for range 20 {
			domain := []rune(rapid.SampledFrom(pool).Draw(t, "domain"))
			for range rapid.IntRange(0, 3).Draw(t, "edits") {
				i := rapid.IntRange(0, len(domain)).Draw(t, "at")
				j := min(len(domain), i+rapid.IntRange(0, 1).Draw(t, "instead of"))
				domain = []rune(string(domain[:i]) + piece.Draw(t, "piece") + string(domain[j:]))
			}
			local := rapid.SampledFrom([]string{"ana", "info+x", "a%2bb", "a%252bb", "аna", "a%00b", "%40", strings.Repeat("l", 64)}).Draw(t, "local")
			a, err := Parse(local + "@" + string(domain))
			if err != nil {
				continue
			}
			h := l.Look(a)
			if again.Look(a) != h || l.Look(a) != h {
				t.Fatalf("Look(%q) = %+v, then %+v", a.Text(), h, l.Look(a))
			}
			if (h.Suggestion == "") != (h.SuggestionReason == "") || (h.Disposable == ListRef{}) != (h.Flags.Disposable != verdict.True) || h.Denied {
				t.Fatalf("Look(%q) = %+v", a.Text(), h)
			}
			if h.Suggestion == "" {
				continue
			}
			suggested++
			b, err := Parse(h.Suggestion)
			if err != nil || b.Text() != h.Suggestion || b == a {
				t.Fatalf("Look(%q) suggests %q, which parses to %q, %v", a.Text(), h.Suggestion, b.Text(), err)
			}
			if next := l.Look(b); next.Suggestion != "" {
				t.Fatalf("Look(%q) suggests %q, and for that %q", a.Text(), h.Suggestion, next.Suggestion)
			}
			if h.Flags.Disposable == verdict.True && b.Domain() != a.Domain() {
				t.Fatalf("Look(%q) = %+v: disposable, and a misspelling", a.Text(), h)
			}
		}
	})
	if suggested == 0 {
		t.Error("nothing was ever suggested")
	}
}
