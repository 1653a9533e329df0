package normalize

import "testing"

func BenchmarkParse(b *testing.B) {
	for _, bc := range []struct{ name, in string }{
		{"ascii", "anna.lee+news@mail.example.com"},
		{"ascii upper case, edges", " Anna.Lee+News@Mail.Example.COM\n"},
		{"ascii, other tld", "anna.lee@example.photography"},
		{"a-label", "anna.lee@xn--bcher-kva.com"},
		{"idn", "anna.lee@bücher.com"},
		{"utf8 local part", "jürgen@example.com"},
		{"refused", "anna lee@example.com"},
		{"suggested", "Anna Lee <anna.lee@example.com>"},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = Parse(bc.in)
			}
		})
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
	for _, in := range []string{"anna.lee+news@mail.example.com", " Anna.Lee+News@Mail.Example.COM\n"} {
		if got := testing.AllocsPerRun(100, func() { _, _ = Parse(in) }); got > 2 {
			t.Errorf("Parse(%q) allocates %v times, want at most 2", in, got)
		}
	}
}
