package fallback

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"validator-gw/internal/normalize"
)

// Hash is a keyed hash of 128 bits: what is kept of an Idempotency-Key and of the request under it.
type Hash [16]byte

// MaxAnswer bounds the bytes of an answer under a key. Answers have less than one kilobyte.
const MaxAnswer = 8192

// ErrErased: the address was erased since this check began. Nothing was written.
var ErrErased = errors.New("address was erased")

// Reservation is what ReserveKey writes.
type Reservation struct {
	Key, Request Hash
	// Fingerprint is the address's, so that erasure finds the answer; zero when the text can't be an address.
	Fingerprint normalize.Fingerprint
	// Lease is how long the key is held at most. It must be positive.
	Lease time.Duration
}

// Held is what stands under a key.
type Held struct {
	// Token is not 0 when the caller holds the key: it ends that with KeepAnswer or FreeKey.
	Token int64
	// Free: nothing stands under it. Request and Answer are zero.
	Free bool
	// Request is that of whoever holds the key, or was answered under it.
	Request Hash
	// Answer is nil while that request is in work.
	Answer []byte
}

// newToken draws a token. No two requests ever draw the same, so that one whose key was taken over, erased or swept
// meanwhile is not mistaken for the one that holds it now.
func newToken() int64 {
	var b [8]byte
	rand.Read(b[:]) // never fails: crypto/rand.Read ends the program instead
	return int64(binary.BigEndian.Uint64(b[:])>>1) | 1
}

func (r Reservation) check() error {
	if r.Lease <= 0 {
		return errors.New("reservation: no lease")
	}
	return nil
}

// fingerprint is its column: NULL when there is none.
func (r Reservation) fingerprint() []byte {
	if r.Fingerprint == (normalize.Fingerprint{}) {
		return nil
	}
	return r.Fingerprint[:]
}

func checkAnswer(answer []byte, keep time.Duration) error {
	switch {
	case len(answer) == 0 || len(answer) > MaxAnswer:
		return fmt.Errorf("answer has %d bytes, want 1 to %d", len(answer), MaxAnswer)
	case keep <= 0:
		return errors.New("answer: no time to keep it for")
	}
	return nil
}
