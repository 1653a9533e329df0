// Package secret keeps what must not be seen: a string type that can't be printed by accident, and the keys
// that are derived from the operator's one secret. It seals addresses before they are written to a store.
package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// MinLength is the least length of the operator's secret in bytes, after base64 decoding.
const MinLength = 32

const redacted = "[redacted]"

// Text is a string such as an API key or a password. Every common way of printing it gives a redaction;
// Reveal is the deliberate way. Out of reach are a whole struct printed by package fmt with a Text in an unexported field,
// where it calls no methods, and a Text as the key of a map in JSON: hold it in neither way where that may happen.
type Text string

// String redacts.
func (Text) String() string { return redacted }

// Format redacts for every verb: with String alone, %d would print the text in its complaint.
func (Text) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue redacts.
func (Text) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText redacts, for JSON, YAML and the like.
func (Text) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Reveal returns the text itself.
func (t Text) Reveal() string { return string(t) }

// Errors that callers tell apart.
var (
	// ErrTooShort: the secret has fewer than MinLength bytes.
	ErrTooShort = errors.New("secret is shorter than 32 bytes")
	// ErrUnreadable: sealed bytes were not made under this key, or were changed.
	ErrUnreadable = errors.New("sealed bytes can't be opened with this key")
)

// Decode reads base64 (standard or URL alphabet, padded or not) into the bytes of a secret.
func Decode(text Text) ([]byte, error) {
	s := strings.TrimRight(strings.TrimSpace(text.Reveal()), "=")
	s = strings.NewReplacer("-", "+", "_", "/").Replace(s)
	b, err := base64.RawStdEncoding.DecodeString(s)
	if err != nil {
		// The decoder's error quotes the input's offset only, but nothing of it helps: say what to do.
		return nil, errors.New("secret is not base64; make one with: openssl rand -base64 32")
	}
	if len(b) < MinLength {
		return nil, ErrTooShort
	}
	return b, nil
}

// Generate returns a fresh random secret as base64.
func Generate() Text {
	b := make([]byte, MinLength)
	rand.Read(b) // never fails: crypto/rand.Read ends the program instead
	return Text(base64.StdEncoding.EncodeToString(b))
}

// Derive returns a 32-byte key for one purpose by HKDF-SHA-256 (RFC 5869). Keys of different purposes tell
// nothing about one another or about the secret.
func Derive(master []byte, purpose string) ([]byte, error) {
	if len(master) < MinLength {
		return nil, ErrTooShort
	}
	return hkdf.Key(sha256.New, master, nil, "validator-gw/"+purpose, 32)
}

// Sealer encrypts short texts with AES-256-GCM. Safe for concurrent use.
type Sealer struct {
	write cipher.AEAD
	read  []cipher.AEAD
}

// sealVersion is the first byte of sealed bytes.
const sealVersion = 1

// NewSealer returns a Sealer that writes under the first key and reads under all, for rotation. Each key has
// 32 bytes.
func NewSealer(keys ...[]byte) (*Sealer, error) {
	if len(keys) == 0 {
		return nil, errors.New("sealer: no key")
	}
	s := &Sealer{}
	for _, key := range keys {
		if len(key) != 32 {
			return nil, fmt.Errorf("sealer: key has %d bytes, want 32", len(key))
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		s.read = append(s.read, aead)
	}
	s.write = s.read[0]
	return s, nil
}

// Seal encrypts text, bound to context: the same context must be given to Open, so that sealed bytes moved to
// another row can't be read there.
func (s *Sealer) Seal(text, context string) []byte {
	return s.write.Seal([]byte{sealVersion}, nil, []byte(text), []byte(context))
}

// Open reverses Seal. Its only error is ErrUnreadable.
func (s *Sealer) Open(sealed []byte, context string) (string, error) {
	if len(sealed) < 1 || sealed[0] != sealVersion {
		return "", ErrUnreadable
	}
	for _, aead := range s.read {
		if text, err := aead.Open(nil, nil, sealed[1:], []byte(context)); err == nil {
			return string(text), nil
		}
	}
	return "", ErrUnreadable
}
