package validate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"validator-gw/internal/fallback"
)

// Errors of Retry, beside ErrUnknownID and ErrUnavailable.
var (
	// ErrNotDead: the review is being worked on, or it has ended with an answer.
	ErrNotDead = errors.New("review is not dead")
	// ErrReplaced: another review of the same address is open.
	ErrReplaced = errors.New("another review of this address is open")
)

// retryTimeout bounds Retry. Nobody sits at a form for it.
const retryTimeout = 5 * time.Second

type replayer interface {
	Replay(ctx context.Context, id string) error
}

// Retry makes a dead review open and due again, with everything that was counted reset.
func Retry(ctx context.Context, store replayer, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), retryTimeout)
	defer cancel()
	err := store.Replay(ctx, id)
	for _, answer := range []struct{ from, to error }{
		{fallback.ErrUnknownID, ErrUnknownID}, {fallback.ErrNotDead, ErrNotDead}, {fallback.ErrReplaced, ErrReplaced},
	} {
		if errors.Is(err, answer.from) {
			return answer.to
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}
