package normalize

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"log/slog"
	"sync"

	"golang.org/x/net/idna"
)

// Fingerprint is a keyed hash of a normalized address: what keys, logs and stores hold instead of it. 128
// bits: at 10^9 addresses the odds of a collision are about 1.5e-21.
type Fingerprint [16]byte

// fingerprintVersion is the version of our algorithm, hashed in with every address. The versions below are not:
// a new Go release would empty every cache. They are stored beside a verdict, to tell the few that they concern.
const fingerprintVersion = 1

const (
	// UnicodeVersion is that of the tables by which domains are mapped. It comes with the Go release: Unicode 17
	// maps a capital sharp s to itself in lower case, Unicode 15 to "ss", so that one such domain has two
	// fingerprints on the two.
	UnicodeVersion = idna.UnicodeVersion
	// RulesVersion counts the changes of Parse by which a text would be normalized otherwise than before.
	RulesVersion = 1
)

// Version bytes of the other functions under the same key. They keep any two from ever being the same function.
const (
	dedupeVersion = 0x40 | 1
	domainVersion = 0x80 | 1
)

// String returns 22 characters of unpadded base64url.
func (f Fingerprint) String() string { return base64.RawURLEncoding.EncodeToString(f[:]) }

// Prefix returns the first 6 characters, enough to join two log lines and too few to look an entry up.
func (f Fingerprint) Prefix() string { return f.String()[:6] }

// LogValue logs the prefix only.
func (f Fingerprint) LogValue() slog.Value { return slog.StringValue(f.Prefix()) }

// Fingerprinter makes fingerprints under one key, and reads what was kept under former ones. Safe for concurrent
// use.
type Fingerprinter struct {
	key    *keyed
	former []*keyed
}

// NewFingerprinter returns one for key. The previous keys, the youngest first, are for reading only: whoever
// finds nothing under the key looks under those, and writes under the key. The keys are copied.
func NewFingerprinter(key []byte, previous ...[]byte) *Fingerprinter {
	f := &Fingerprinter{key: newKeyed(key)}
	for _, k := range previous {
		f.former = append(f.former, newKeyed(k))
	}
	return f
}

// Of returns the fingerprint of a: HMAC-SHA-256 over a version byte and the normalized text, cut to 128 bits.
func (f *Fingerprinter) Of(a Address) Fingerprint {
	return Fingerprint(f.key.sum(fingerprintVersion, a.local, a.domain))
}

// Previous returns the fingerprints that a had under the previous keys, in their order; none without such keys.
// They are for reading only.
func (f *Fingerprinter) Previous(a Address) []Fingerprint {
	if len(f.former) == 0 {
		return nil
	}
	fps := make([]Fingerprint, len(f.former))
	for i, k := range f.former {
		fps[i] = Fingerprint(k.sum(fingerprintVersion, a.local, a.domain))
	}
	return fps
}

// DomainKey returns a keyed hash of the address's domain, by which the review queue is fair without
// knowing domains. It is never negative, so that a cursor over all keys can start at 0.
func (f *Fingerprinter) DomainKey(a Address) int64 {
	sum := f.key.sum(domainVersion, "", a.domain)
	return int64(binary.BigEndian.Uint64(sum[:]) >> 1)
}

// keyed is HMAC-SHA-256 under one key. It keeps its states, since to take a key in costs as much as to hash an
// address.
type keyed struct {
	states sync.Pool // of *state
}

type state struct {
	mac hash.Hash
	buf []byte
}

func newKeyed(key []byte) *keyed {
	key = bytes.Clone(key)
	return &keyed{states: sync.Pool{New: func() any {
		return &state{mac: hmac.New(sha256.New, key), buf: make([]byte, 0, 1+maxAddress)}
	}}}
}

// sum hashes a version byte and local@domain, or the domain alone without a local part, and cuts to 128 bits.
func (k *keyed) sum(version byte, local, domain string) (cut [16]byte) {
	s := k.states.Get().(*state)
	defer k.states.Put(s)
	s.buf = append(s.buf[:0], version)
	if local != "" {
		s.buf = append(append(s.buf, local...), '@')
	}
	s.buf = append(s.buf, domain...)
	s.mac.Reset()
	s.mac.Write(s.buf)
	s.buf = s.mac.Sum(s.buf[:0])
	copy(cut[:], s.buf)
	clear(s.buf[:cap(s.buf)]) // of the address as of the hash
	return cut
}
