package normalize

import (
	"runtime"
	"strings"
	"testing"
)

// BenchmarkCheck is all that is done for one address without asking anybody: Parse, Look, fingerprint.
func BenchmarkCheck(b *testing.B) {
	l, f := mustLists(b, Own{Allow: []string{"example.org"}, Deny: []string{"example.net"}}), NewFingerprinter(countingKey(0))
	for _, bc := range []struct{ name, in string }{
		{"known provider", "anna.lee+news@gmail.com"},
		{"unknown domain", "anna.lee@mail.example.com"},
		{"disposable", "anna.lee@mailinator.com"},
		{"misspelt", "anna.lee@gmial.com"},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				a, _ := Parse(bc.in)
				_ = l.Look(a)
				_ = f.Of(a)
			}
		})
	}
}

// longest is the longest domain that the local parts here leave room for, in 120 labels.
var longest = strings.Repeat("a.", 118) + "abc.com"

func BenchmarkLook(b *testing.B) {
	l := mustLists(b, Own{Allow: []string{"a.a.a.a.a.a.a.example.org"}, Deny: []string{"example.net"}})
	for _, bc := range []struct{ name, domain string }{
		{"known provider", "gmail.com"},
		{"unknown", "example.com"},
		{"free", "123india.com"},
		{"disposable", "mailinator.com"},
		{"misspelt", "gmial.com"},
		{"misspelt by two", "hotmial.co"},
		{"near many", "hotmaol.co"}, // eleven of the targets are hotmail.* or have its letters
		{"near many, national", "yahoo.co.tk"},
		{"idn", "bücher.com"},
		{"lookalike", "gmаil.com"},
		{"longest", longest},
		{"longest idn", strings.Repeat("ü.", 25) + "com"},
	} {
		a := mustParse(b, "anna.lee@"+bc.domain)
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = l.Look(a)
			}
		})
	}
}

func BenchmarkDedupeKey(b *testing.B) {
	f, a := NewFingerprinter(countingKey(0)), mustParse(b, "anna.lee+news@gmail.com")
	b.ReportAllocs()
	for b.Loop() {
		_ = f.DedupeKey(a)
	}
}

// BenchmarkLists tells what the search in the text costs beside a map: the time of a look-up, and the octets
// that each takes on the heap, or in the program for the text.
func BenchmarkLists(b *testing.B) {
	names := append(disposableList.names(), freeList.names()...)
	probes := []string{"mailinator.com", "example.com", "0-mail.com", "zzz.com"}
	b.Run("text", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for _, probe := range probes {
				_ = disposableList.has(probe)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(probes)), "ns/look-up")
		b.ReportMetric(float64(len(disposableText)+len(freeText)), "octets")
	})
	b.Run("map", func(b *testing.B) {
		var set map[string]struct{}
		size := heap(func() {
			set = make(map[string]struct{}, len(names))
			for _, name := range names {
				set[name] = struct{}{}
			}
		})
		b.ResetTimer()
		for b.Loop() {
			for _, probe := range probes {
				_ = set[probe]
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(probes)), "ns/look-up")
		b.ReportMetric(size+float64(len(disposableText)+len(freeText)), "octets") // the names are in the program as well
	})
	b.Run("short", func(b *testing.B) {
		var keep map[string]entry
		size := heap(func() { keep = mustMap(protectedList, aliasesList, knownList) })
		for b.Loop() {
			_ = keep["gmail.com"]
		}
		b.ReportMetric(size, "octets")
	})
}

// heap returns how much of the heap what make leaves behind takes.
func heap(make func()) float64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	make()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return float64(after.HeapAlloc) - float64(before.HeapAlloc)
}

// TestLookAllocs holds the budget of the common cases.
func TestLookAllocs(t *testing.T) {
	l := mustLists(t, Own{Deny: []string{"example.net"}})
	for _, in := range []string{"anna.lee@gmail.com", "anna.lee@example.com", "anna.lee@mailinator.com", "anna.lee@" + longest} {
		a := mustParse(t, in)
		if got := testing.AllocsPerRun(100, func() { _ = l.Look(a) }); got != 0 {
			t.Errorf("Look(%q) allocates %v times, want 0", in, got)
		}
	}
}
