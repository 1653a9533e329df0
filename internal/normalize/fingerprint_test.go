package normalize

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func mustParse(t testing.TB, raw string) Address {
	t.Helper()
	a, err := Parse(raw)
	if err != nil {
		t.Fatalf("Parse(%q): %v", raw, err)
	}
	return a
}

// countingKey returns the bytes from, from+1, ... .
func countingKey(from byte) []byte {
	key := make([]byte, 32)
	for i := range key {
		key[i] = from + byte(i)
	}
	return key
}

// TestFingerprintKnownAnswers holds the algorithm still, since stored fingerprints depend on it. The answers
// were computed apart from this code, under the key 00 01 .. 1f:
//
//	printf '\001ana@example.com' | openssl dgst -sha256 -mac HMAC -macopt hexkey:000102...1f
//
// and cut to 16 octets; the domain key likewise over '\201example.com', 8 octets big-endian, shifted right by one.
func TestFingerprintKnownAnswers(t *testing.T) {
	t.Parallel()
	f := NewFingerprinter(countingKey(0))
	for _, tc := range []struct{ in, want string }{
		{"ana@example.com", "39_JWJkQ70fowHez3DSOZQ"},
		{" ANA@Example.COM ", "39_JWJkQ70fowHez3DSOZQ"},
		{"üna@example.com", "VhJ04zJrk8Nah75GnCGyTg"},
		{"u\u0308na@example.com", "VhJ04zJrk8Nah75GnCGyTg"},
	} {
		fp := f.Of(mustParse(t, tc.in))
		if fp.String() != tc.want {
			t.Errorf("fingerprint of %q = %s, want %s", tc.in, fp, tc.want)
		}
		if fp.Prefix() != tc.want[:6] || fp.LogValue().String() != tc.want[:6] {
			t.Errorf("prefix of %q = %s, logged as %s; want %s", tc.in, fp.Prefix(), fp.LogValue(), tc.want[:6])
		}
	}
	if got, want := f.DomainKey(mustParse(t, "ana@example.com")), int64(941858174944991484); got != want {
		t.Errorf("domain key = %d, want %d", got, want)
	}
}

func TestFingerprintLaws(t *testing.T) {
	t.Parallel()
	f, other := NewFingerprinter(countingKey(0)), NewFingerprinter(countingKey(1))
	address := rapid.Custom(func(t *rapid.T) Address {
		// Few letters, so that equal pairs are drawn too.
		raw := rapid.StringMatching(`[aAbü][bB+]?@[aAü]\.(com|org)`).Draw(t, "raw")
		a, err := Parse(raw)
		if err != nil {
			t.Fatalf("Parse(%q): %v", raw, err)
		}
		return a
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := address.Draw(t, "a"), address.Draw(t, "b")
		if (f.Of(a) == f.Of(b)) != (a.Text() == b.Text()) || (a == b) != (a.Text() == b.Text()) {
			t.Errorf("%q and %q: fingerprints %s and %s", a.Text(), b.Text(), f.Of(a), f.Of(b))
		}
		if (f.DomainKey(a) == f.DomainKey(b)) != (a.Domain() == b.Domain()) || f.DomainKey(a) < 0 {
			t.Errorf("%q and %q: domain keys %d and %d", a.Text(), b.Text(), f.DomainKey(a), f.DomainKey(b))
		}
		if f.Of(a) == other.Of(a) || f.DomainKey(a) == other.DomainKey(a) {
			t.Errorf("%q: the same under two keys", a.Text())
		}
	})
}

func TestFingerprintRotation(t *testing.T) {
	t.Parallel()
	a := mustParse(t, "ana@example.com")
	now, before, first := countingKey(0), countingKey(1), countingKey(2)
	f := NewFingerprinter(now, before, first)
	if got, want := f.Of(a), NewFingerprinter(now).Of(a); got != want {
		t.Errorf("with previous keys the fingerprint is %s, want %s", got, want)
	}
	want := []Fingerprint{NewFingerprinter(before).Of(a), NewFingerprinter(first).Of(a)}
	if got := f.Previous(a); !slices.Equal(got, want) {
		t.Errorf("previous fingerprints %v, want %v", got, want)
	}
	if got := NewFingerprinter(now).Previous(a); len(got) != 0 {
		t.Errorf("without previous keys there are %v", got)
	}
	if f.DomainKey(a) != NewFingerprinter(now).DomainKey(a) || f.DedupeKey(a) != NewFingerprinter(now).DedupeKey(a) {
		t.Error("the other keys are not those of the present key")
	}
	unused := NewFingerprinter(now)
	clear(now) // its own copy stays
	if got := unused.Of(a); got != NewFingerprinter(countingKey(0)).Of(a) {
		t.Errorf("after the caller cleared the key, the fingerprint is %s", got)
	}
}

// TestFingerprintConcurrently is for the race detector: the states behind a key are shared.
func TestFingerprintConcurrently(t *testing.T) {
	t.Parallel()
	f := NewFingerprinter(countingKey(0))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			a := mustParse(t, strings.Repeat("a", i+1)+"@example.com")
			want := NewFingerprinter(countingKey(0)).Of(a)
			for range 200 {
				if got := f.Of(a); got != want {
					t.Errorf("fingerprint %s, want %s", got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}
