package normalize

import (
	"strings"
	"testing"
	"time"
)

// fill returns as many parts as fit into size octets.
func fill(part string, size int) string { return strings.Repeat(part, max(0, size/len(part))) }

// between returns as many parts as fit into size octets together with what is before and after them.
func between(before, part, after string, size int) string {
	return before + fill(part, size-len(before)-len(after)) + after
}

// hostile are texts made to take long, by the size that they should have, in octets.
var hostile = []struct {
	name string
	of   func(size int) string
}{
	{"letters", func(n int) string { return fill("a", n) }},
	{"spaces", func(n int) string { return fill(" ", n) }},
	{"spaces inside", func(n int) string { return between("a", " ", "b@example.com", n) }},
	{"zero-width spaces", func(n int) string { return fill("\u200b", n) }},
	{"zero-width spaces in a local part", func(n int) string { return between("", "a\u200b", "@example.com", n) }},
	{"zero-width spaces in a domain", func(n int) string { return between("a@", "\u200b", "example.com", n) }},
	{"at signs", func(n int) string { return fill("@", n) }},
	{"addresses", func(n int) string { return fill("a@b.c ", n) }},
	{"the same address, with names", func(n int) string { return fill("a@b.com <a@b.com> ", n) }},
	{"dots", func(n int) string { return between("a@", ".", "", n) }},
	{"dots in a local part", func(n int) string { return between("", ".", "@a", n) }},
	{"commas", func(n int) string { return between("a@", ",a", "", n) }},
	{"quotes", func(n int) string { return between("", `"`, "@example.com", n) }},
	{"quotes, escaped", func(n int) string { return between(`"`, `\"`, `"@example.com`, n) }},
	{"apostrophes all around", func(n int) string { return fill("'", n/2-7) + "a@example.com" + fill("'", n/2-7) }},
	{"angles all around", func(n int) string { return fill("<", n/2-7) + "a@example.com" + fill(">", n/2-7) }},
	{"half pairs", func(n int) string { return between("", "<(“„", "a@example.com", n) }},
	{"comments", func(n int) string { return fill("(", n/2-7) + fill(")", n/2-7) + "a@example.com" }},
	{"comments, open", func(n int) string { return between("", "(", "a@example.com", n) }},
	{"names", func(n int) string { return between("", "a <", "a@example.com>", n) }},
	{"names that are addresses", func(n int) string { return between("", "a@b.com <", "a@example.com>", n) }},
	{"mailto", func(n int) string { return between("", "mailto:", "a@example.com", n) }},
	{"percent", func(n int) string { return fill("%40", n) }},
	{"percent, nested", func(n int) string { return between("mailto:", "%25", "40a.com", n) }},
	{"combining marks", func(n int) string { return between("a", "\u0301", "@example.com", n) }},
	{"combining marks out of order", func(n int) string { return between("a", "\u0301\u0323\u0315", "@example.com", n) }},
	{"combining marks in a domain", func(n int) string { return between("a@a", "\u0301", ".com", n) }},
	{"combining marks in a domain, 254 octets", func(n int) string { return between("a@a", "\u0301\u0323", ".com", min(n, maxAddress)) }},
	{"jamo", func(n int) string { return between("", "\u1112\u1161\u11ab", "@example.com", n) }},
	{"ligatures that grow", func(n int) string { return between("", "\ufdfa", "\ufb01@example.com", n) }},
	{"joiners", func(n int) string { return between("", "क\u094d\u200d", "@example.com", n) }},
	{"joiners, no place", func(n int) string { return between("", "a\u200d", "@example.com", n) }},
	{"full-width", func(n int) string { return between("", "ａ", "＠ａ．ｃｏｍ", n) }},
	{"smart punctuation", func(n int) string { return between("", "“’–", "@example.com", n) }},
	{"capital I with a dot", func(n int) string { return between("", "İ", "@example.com", n) }},
	{"sigmas", func(n int) string { return between("", "Σ", "@example.com", n) }},
	{"punycode", func(n int) string { return between("a@xn--", "a", ".com", n) }},
	{"punycode of legal labels", func(n int) string { return between("a@", "xn--"+strings.Repeat("a", 59)+".", "com", n) }},
	{"punycode of short labels", func(n int) string { return between("a@", "xn--tda.", "com", n) }},
	{"a u-label", func(n int) string { return between("a@", "ü", ".com", n) }},
	{"u-labels, 254 octets", func(n int) string { return between("a@", "ü.", "com", min(n, maxAddress)) }},
	{"a u-label, 254 octets", func(n int) string { return between("a@", "龘", ".com", min(n, maxAddress)) }},
	{"smart u-labels, 254 octets", func(n int) string { return between("a@", "–ü.", "com", min(n, maxAddress)) }},
	{"labels", func(n int) string { return between("a@", "a.", "com", n) }},
	{"no known end", func(n int) string { return between("a@", "a.", "conn", n) }},
	{"no dot", func(n int) string { return between("a@", "gmail", "", n) }},
	{"ideographs", func(n int) string { return fill("漢", n) }},
	{"no UTF-8", func(n int) string { return fill("\xff", n) }},
	{"a local part", func(n int) string { return between("", "a.", "@example.com", n) }},
}

// BenchmarkHostile lists what the worst texts of all allowed sizes cost. Each is to stay under a millisecond.
func BenchmarkHostile(b *testing.B) {
	for _, h := range hostile {
		text := h.of(maxInput)
		if len(text) > maxInput {
			b.Fatalf("%s: %d octets", h.name, len(text))
		}
		b.Run(h.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = Parse(text)
			}
		})
	}
	big := fill("a@example.com, ", 1<<20)
	b.Run("1 MiB", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = Parse(big)
		}
	})
}

// least returns the shortest of a few measurements of Parse, which the other work of a machine disturbs least.
func least(text string) time.Duration {
	shortest := time.Hour
	for range 50 {
		start := time.Now()
		_, _ = Parse(text)
		shortest = min(shortest, time.Since(start))
	}
	return shortest
}

// TestSizeComesFirst holds that a text over the limit costs no more for being longer: a megabyte takes no longer
// than many times what a kilobyte of the same takes, though it is a thousand times as long.
func TestSizeComesFirst(t *testing.T) {
	t.Parallel()
	for _, h := range hostile {
		small, big := h.of(maxInput), h.of(1<<20)
		// The goal is a millisecond, which a benchmark shows; this is to notice what grows with the square.
		if s := least(small); s > 10*time.Millisecond {
			t.Errorf("%s: 1 KiB takes %v", h.name, s)
		}
		if len(big) <= maxInput {
			continue // made for the length of a domain
		}
		if _, err := Parse(big); err == nil {
			t.Errorf("%s: a megabyte is accepted", h.name)
		}
		if s, b := least(small), least(big); b > 20*s+20*time.Microsecond {
			t.Errorf("%s: 1 MiB takes %v, 1 KiB takes %v", h.name, b, s)
		}
	}
}
