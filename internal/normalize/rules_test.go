package normalize

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"validator-gw/internal/verdict"
)

func TestRules(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 65)
	for _, tc := range []struct {
		name  string
		rules Rules
		parseCase
	}{
		{"default", Rules{}, refuses(47, long+"@example.com", verdict.LocalTooLong)},
		{"long local", Rules{LongLocal: true}, accepts(47, long+"@example.com", long+"@example.com")},
		{"long local, all of 254", Rules{LongLocal: true},
			accepts(47, strings.Repeat("a", 242)+"@example.com", strings.Repeat("a", 242)+"@example.com")},
		{"long local, 255", Rules{LongLocal: true}, refuses(50, strings.Repeat("a", 243)+"@example.com", verdict.AddressTooLong)},
		{"long local, in UTF-8", Rules{LongLocal: true},
			accepts(47, strings.Repeat("é", 100)+"@example.com", strings.Repeat("é", 100)+"@example.com")},
		{"long local, suggested", Rules{LongLocal: true},
			suggests(18, "<"+long+"@example.com>", verdict.Wrapped, long+"@example.com")},
		{"default, not suggested", Rules{}, refuses(18, "<"+long+"@example.com>", verdict.Wrapped)},

		{"default", Rules{}, refuses(67, "ana@example.test", verdict.ReservedDomain)},
		{"test domains", Rules{TestDomains: true}, accepts(67, "ana@example.TEST", "ana@example.test")},
		{"test domains", Rules{TestDomains: true}, accepts(67, "ana@mail.example.test", "ana@mail.example.test")},
		{"test domains", Rules{TestDomains: true}, refuses(39, "ana@test", verdict.DomainNoDot)},
		{"test domains", Rules{TestDomains: true}, refuses(66, "ana@example.invalid", verdict.ReservedDomain)},
		{"test domains, suggested", Rules{TestDomains: true},
			suggests(16, "mailto:ana@example.test", verdict.URIScheme, "ana@example.test")},

		{"default", Rules{}, refuses(65, "ana@host.corp", verdict.TLDUnknown)},
		{"a tld", Rules{TLDs: []string{"lan", "CORP"}}, accepts(65, "ana@host.Corp", "ana@host.corp")},
		{"a tld", Rules{TLDs: []string{"corp"}}, refuses(65, "ana@host.lan", verdict.TLDUnknown)},
		{"a tld", Rules{TLDs: []string{"corp"}}, refuses(65, "ana@corp.lan", verdict.TLDUnknown)},
		{"a tld, suggested", Rules{TLDs: []string{"corp"}}, suggests(20, "ana@host.corp.", verdict.DomainDot, "ana@host.corp")},
		{"a U-label for an A-label", Rules{TLDs: []string{"Bücher"}}, accepts(65, "ana@host.xn--bcher-kva", "ana@host.xn--bcher-kva")},
		{"an A-label for a U-label", Rules{TLDs: []string{"xn--bcher-kva"}}, accepts(65, "ana@host.bücher", "ana@host.xn--bcher-kva")},
		{"a tld, con", Rules{TLDs: []string{"con"}}, accepts(65, "ana@example.con", "ana@example.con")},
		{"not even so", Rules{TLDs: []string{"local", "test"}}, refuses(66, "ana@host.local", verdict.ReservedDomain)},
		{"not even so", Rules{TLDs: []string{"local", "test"}}, refuses(67, "ana@host.test", verdict.ReservedDomain)},
	} {
		got, changes, err := tc.rules.Read(tc.in)
		if tc.reason == "" {
			if err != nil || got.Text() != tc.want {
				t.Errorf("%s: Read(%q) = %q, %v; want %q", tc.name, tc.in, got.Text(), err, tc.want)
			}
			continue
		}
		refusal, ok := errors.AsType[*Refusal](err)
		if !ok || !got.IsZero() || changes != 0 {
			t.Errorf("%s: Read(%q) = %q, %v, %v; want a *Refusal alone", tc.name, tc.in, got.Text(), changes.Names(), err)
			continue
		}
		if refusal.Reason != tc.reason || refusal.Suggestion != tc.suggestion {
			t.Errorf("%s: Read(%q) refuses by %s, suggests %q; want %s, %q",
				tc.name, tc.in, refusal.Reason, refusal.Suggestion, tc.reason, tc.suggestion)
		}
	}
}

func TestRulesCheck(t *testing.T) {
	t.Parallel()
	if err := (Rules{LongLocal: true, TestDomains: true, TLDs: []string{"corp", "CORP", "bücher", "xn--bcher-kva", "com"}}).Check(); err != nil {
		t.Errorf("Check of good rules = %v, want nil", err)
	}
	bad := []string{"", ".corp", "co.rp", "corp.", "c orp", "-corp", "123", "xn--", "xn--ü", "a_b", "local", "test", "arpa", label63 + "a"}
	err := Rules{TLDs: append([]string{"corp"}, bad...)}.Check()
	if err == nil {
		t.Fatal("Check of bad rules = nil")
	}
	faults := strings.Split(err.Error(), "\n")
	if len(faults) != len(bad) {
		t.Fatalf("Check = %d faults, want %d:\n%v", len(faults), len(bad), err)
	}
	for i, tld := range bad {
		if !strings.Contains(faults[i], `"`+tld+`"`) {
			t.Errorf("fault %d is %q, want one about %q", i, faults[i], tld)
		}
	}
	// What is at fault has no effect.
	for _, in := range []string{"ana@example.123", "ana@a_b", "ana@host.co.rp", "ana@example.xn--ü", "ana@host.local"} {
		if a, err := (Rules{TLDs: bad}).Parse(in); err == nil {
			t.Errorf("Parse(%q) = %q under rules with faults, want a refusal", in, a.Text())
		}
	}
}

func TestChanges(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in   string
		want string
	}{
		{"ana@example.com", ""},
		{"jürgen@xn--bcher-kva.com", ""},
		{"می\u200cخواهم@example.com", ""},
		{" ana@example.com\r\n", "trimmed"},
		{"\u3000ana@example.com", "trimmed"},
		{"\ufeffana@example.com", "invisible_removed"},
		{"ana@example.com \u200b", "trimmed invisible_removed"},
		{"ana@exam\u00adple.com", "invisible_removed"},
		{"ana @ example . com", "space_removed"},
		{"Ana@example.com", "lower_cased"},
		{"ana@Example.com", "lower_cased"},
		{"ÉVA@example.com", "lower_cased"},
		{"jose\u0301@example.com", "nfc"},
		{"ana@example。com", "width_folded"},
		{"ana@ｅxample.com", "width_folded"},
		{"ana@Ｅxample.com", "lower_cased width_folded"},
		{"ana@bücher.com", "idn_mapped"},
		{"ana@BÜCHER.com", "lower_cased idn_mapped"},
		{"ana@bu\u0308cher.com", "nfc idn_mapped"},
		{"ana@\u0915\u094d\u200d\u0937.com", "idn_mapped"},
		{"ana@ex\u2090mple.com", "idn_mapped"}, // SUBSCRIPT A
		{"\u200b JOSE\u0301 @BU\u0308CHER\u200b．com", "trimmed invisible_removed space_removed lower_cased nfc width_folded idn_mapped"},
	} {
		a, changes, err := Rules{}.Read(tc.in)
		if err != nil {
			t.Errorf("Read(%q): %v", tc.in, err)
			continue
		}
		names := changes.Names()
		if names == nil {
			t.Errorf("Read(%q): names are nil, want a list", tc.in)
		}
		if got := strings.Join(names, " "); got != tc.want {
			t.Errorf("Read(%q) did %q, want %q", tc.in, got, tc.want)
		}
		if _, again, _ := (Rules{}).Read(a.Text()); again != 0 {
			t.Errorf("Read(%q) did %q to what is normal", a.Text(), again.Names())
		}
	}
	if all := Changes(0x7f).Names(); !slices.Equal(all, changeNames[:]) {
		t.Errorf("Names of all changes = %q, want %q", all, changeNames)
	}
}

func TestUnicode(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ in, want string }{
		{"ana@example.com", ""},
		{"jürgen@example.com", ""},
		{"Jürgen@xn--bcher-kva.com", "jürgen@bücher.com"},
		{"ana@mail.BÜCHER.com", "ana@mail.bücher.com"},
		{"ana@пример.xn--p1ai", "ana@пример.рф"},
		{"ana@例え.jp", "ana@例え.jp"},
		{"ana@אבג.com", "ana@אבג.com"}, // a script for each label
		{"ana@p\u0430ypal.com", ""},    // CYRILLIC SMALL LETTER A
		{"ana@xn--pypal-4ve.com", ""},
		{"ana@p\u0430ypal.bücher.com", ""},
		{"ana@example.com\u2044b.com", ""}, // FRACTION SLASH, which looks like the end of a domain
		{"ana@½.com", ""},                  // the same, by mapping
		{"ana@example.com\u2215b.com", ""}, // DIVISION SLASH
		{"ana@☃.com", ""},
		{"ana@col·legi.cat", "ana@col·legi.cat"},
		{"ana@カ・ナ.jp", "ana@カ・ナ.jp"},
	} {
		if got := mustParse(t, tc.in).Unicode(); got != tc.want {
			t.Errorf("Unicode of %q = %q, want %q", tc.in, got, tc.want)
		}
	}
	if got := (Address{}).Unicode(); got != "" {
		t.Errorf("Unicode of no address = %q", got)
	}
	for _, text := range []string{"ana@xn--a.com", "ana@xn--.com", "ana@xn--99999999.com"} {
		a, err := Restore(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Unicode(); got != "" {
			t.Errorf("Unicode of %q, which is no IDN = %q", text, got)
		}
	}
}
