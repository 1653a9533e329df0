package validate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
)

// eraseTimeout bounds an erasure. Nobody sits at a form for it.
const eraseTimeout = 10 * time.Second

// ErrNoAddress: the text can't be an address, so nothing is kept of it.
var ErrNoAddress = errors.New("text can't be an address")

// Removed counts what an erasure removed.
type Removed struct {
	Reviews int64
	// Verdicts are those in the store, and those that were about to be.
	Verdicts int64
	// Answers are those kept under an Idempotency-Key.
	Answers int64
	// BackfillRows are those of lists. Each stays as an empty one.
	BackfillRows int64
}

// Erase removes all that is kept of an address: in the process, in Redis and in the store, under the present key and the
// former ones. A check that is on its way keeps nothing any more, but for callers who still wait for it: they count as
// having come after the erasure. After an error some may be left; calling again does no harm. Errors are ErrNoAddress
// and ErrUnavailable.
func (s *Service) Erase(ctx context.Context, raw string) (Removed, error) {
	addr, err := s.cfg.Address().Rules.Parse(raw)
	if err != nil {
		return Removed{}, ErrNoAddress
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), eraseTimeout)
	defer cancel()
	fps := append([]normalize.Fingerprint{s.prints.Of(addr)}, s.prints.Previous(addr)...)
	upTo := s.cfg.NewID()
	pending, err := s.cache.Erase(ctx, fps, upTo)
	if err != nil {
		return Removed{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	gone, err := s.store.Erase(ctx, fallback.Erasure{Fingerprints: fps, UpTo: upTo})
	if err != nil {
		return Removed{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return Removed{Reviews: gone.Reviews, Verdicts: gone.Verdicts + int64(pending), Answers: gone.Answers, BackfillRows: gone.Backfill}, nil
}
