package normalize

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"log/slog"
)

// Fingerprint is a keyed hash of a normalized address: what keys, logs and stores hold instead of it. 128
// bits: at 10^9 addresses the odds of a collision are about 1.5e-21.
type Fingerprint [16]byte

// fingerprintVersion is the version of our algorithm, hashed in with every address. The version of the
// Unicode tables is not: a new Go release would empty every cache.
const fingerprintVersion = 1

// String returns 22 characters of unpadded base64url.
func (f Fingerprint) String() string { return base64.RawURLEncoding.EncodeToString(f[:]) }

// Prefix returns the first 6 characters, enough to join two log lines and too few to look an entry up.
func (f Fingerprint) Prefix() string { return f.String()[:6] }

// LogValue logs the prefix only.
func (f Fingerprint) LogValue() slog.Value { return slog.StringValue(f.Prefix()) }

// Fingerprinter makes fingerprints under one key. Safe for concurrent use.
type Fingerprinter struct {
	key []byte
}

// NewFingerprinter returns one for key, which is kept and must not change afterwards.
func NewFingerprinter(key []byte) *Fingerprinter { return &Fingerprinter{key: key} }

// Of returns the fingerprint of a: HMAC-SHA-256 over a version byte and the normalized text, cut to 128 bits.
func (f *Fingerprinter) Of(a Address) Fingerprint {
	var fp Fingerprint
	copy(fp[:], f.sum(fingerprintVersion, a.Text()))
	return fp
}

// DomainKey returns a keyed hash of the address's domain, by which the review queue is fair without
// knowing domains. It is never negative, so that a cursor over all keys can start at 0.
func (f *Fingerprinter) DomainKey(a Address) int64 {
	// A version byte of its own keeps domain keys and fingerprints from ever being the same function.
	return int64(binary.BigEndian.Uint64(f.sum(0x80|fingerprintVersion, a.Domain())) >> 1)
}

func (f *Fingerprinter) sum(version byte, text string) []byte {
	mac := hmac.New(sha256.New, f.key)
	mac.Write([]byte{version})
	mac.Write([]byte(text))
	return mac.Sum(nil)
}
