package fallback

import (
	"errors"
	"fmt"
	"time"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// Event asks for a new check of an address, however fresh the verdict is that is known. All durations are positive.
type Event struct {
	// ID is used when no review is open for the fingerprint. UUIDv7, canonical text.
	ID          string
	Fingerprint normalize.Fingerprint
	DomainKey   int64
	Address     normalize.Address
	Watcher     Watcher
	// A burst of events is one check: it is due Quiet after the last of them, and Max after the first at the latest.
	Quiet, Max time.Duration
	// Held says that somebody else watches for the quiet and calls Ripen then. Until that comes the check is due at the
	// latest time, and further events of the burst write nothing.
	Held bool
}

// Asked is the check that an event asked for.
type Asked struct {
	ID string
	// In is the time until it is due; not positive when it is due now.
	In time.Duration
	// Fresh says that the event opened the review: no other event asked for it, and nobody waited for it.
	Fresh bool
}

// MaxRipen bounds the fingerprints of one Ripen.
const MaxRipen = 500

// check refuses events that no row can hold.
func (e Event) check() error {
	if e.Quiet <= 0 || e.Max < e.Quiet {
		return errors.New("event: the quiet is not positive, or longer than the longest wait")
	}
	return Entry{ID: e.ID, DomainKey: e.DomainKey, Address: e.Address, Cause: verdict.CauseUpstream, Priority: PriorityBackground}.check()
}

func checkRipen(fps []normalize.Fingerprint) error {
	if len(fps) > MaxRipen {
		return fmt.Errorf("ripen: %d fingerprints, at most %d", len(fps), MaxRipen)
	}
	return nil
}
