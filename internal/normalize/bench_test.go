package normalize

import (
	"net/mail"
	"testing"
)

func BenchmarkParse(b *testing.B) {
	for _, bc := range []struct{ name, in string }{
		{"ascii", "anna.lee+news@mail.example.com"},
		{"ascii upper case, edges", " Anna.Lee+News@Mail.Example.COM\n"},
		{"ascii, other tld", "anna.lee@example.photography"},
		{"a-label", "anna.lee@xn--bcher-kva.com"},
		{"idn", "anna.lee@bücher.com"},
		{"idn, ideographs", "anna.lee@例え.jp"},
		{"idn, right to left", "anna.lee@אבג.com"},
		{"utf8 local part", "jürgen@example.com"},
		{"refused", "anna lee@example.com"},
		{"suggested", "Anna Lee <anna.lee@example.com>"},
		{"no such tld", "anna.lee@example.con"},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = Parse(bc.in)
			}
		})
	}
	rules := Rules{LongLocal: true, TestDomains: true, TLDs: []string{"corp", "lan"}}
	for _, bc := range []struct{ name, in string }{
		{"read, rules", " Anna.Lee@mail.example.com"},
		{"read, rules, an operator's tld", "anna.lee@mail.example.lan"},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _, _ = rules.Read(bc.in)
			}
		})
	}
}

// BenchmarkNetMail is what the standard library's parser takes for the same texts. It checks no domain, and
// neither lower-cases nor maps anything.
func BenchmarkNetMail(b *testing.B) {
	for _, bc := range []struct{ name, in string }{
		{"ascii", "anna.lee+news@mail.example.com"},
		{"idn", "anna.lee@bücher.com"},
		{"utf8 local part", "jürgen@example.com"},
		{"refused", "anna lee@example.com"},
		{"with a name", "Anna Lee <anna.lee@example.com>"},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = mail.ParseAddress(bc.in)
			}
		})
	}
}

func BenchmarkUnicode(b *testing.B) {
	a := mustParse(b, "anna.lee@bücher.com")
	b.ReportAllocs()
	for b.Loop() {
		_ = a.Unicode()
	}
}

func BenchmarkFingerprint(b *testing.B) {
	f := NewFingerprinter(countingKey(0))
	a := mustParse(b, "anna.lee+news@mail.example.com")
	b.ReportAllocs()
	for b.Loop() {
		_ = f.Of(a)
	}
}

// TestParseAllocs holds the budget of the common case.
func TestParseAllocs(t *testing.T) {
	for _, in := range []string{"anna.lee+news@mail.example.com", " Anna.Lee+News@Mail.Example.COM\n", "anna.lee@example.photography"} {
		if got := testing.AllocsPerRun(100, func() { _, _ = Parse(in) }); got > 2 {
			t.Errorf("Parse(%q) allocates %v times, want at most 2", in, got)
		}
	}
}
