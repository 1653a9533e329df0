package fallback

import (
	"errors"
	"fmt"
	"time"

	"validator-gw/internal/normalize"
)

// Erasure says what to erase.
type Erasure struct {
	// Fingerprints are those of one address under each key that it may have been stored with, 1 to MaxErasure.
	Fingerprints []normalize.Fingerprint
	// UpTo is a new UUIDv7: checks up to this id are erased, also those whose answer is still on its way.
	UpTo string
}

// MaxErasure bounds the fingerprints of one erasure.
const MaxErasure = 8

// Erased counts what an erasure removed.
type Erased struct {
	Reviews, Verdicts int64
	// Answers are those kept under an Idempotency-Key, and the keys that were held by a request in work.
	Answers int64
	// Backfill are the rows of lists that the address was in. Their line stays, without it.
	Backfill int64
}

// forgetAfter is how long an erasure is remembered, as a fingerprint and an id, so that what began before it can't
// bring the address back. It is longer than anything can be on its way: a late answer is given up within seconds,
// and the write-behind of another replica holds what a store that is away is owed for about a quarter of an hour.
const forgetAfter = time.Hour

func (e Erasure) check() error {
	if n := len(e.Fingerprints); n == 0 || n > MaxErasure {
		return fmt.Errorf("erasure: %d fingerprints, want 1 to %d", n, MaxErasure)
	}
	if canonicalID(e.UpTo) == "" {
		return errors.New("erasure: the id is not a uuid")
	}
	return nil
}
