package fallback

import (
	"errors"
	"time"

	"validator-gw/internal/verdict"
)

// Errors of Replay and Drop, beside ErrUnknownID.
var (
	// ErrNotDead: the review is open, or it has ended with a verdict.
	ErrNotDead = errors.New("review is not dead")
	// ErrReplaced: another review of the same address is open by now; its answer is the one that was wanted.
	ErrReplaced = errors.New("another review of this address is open")
)

// MaxDead bounds the rows of one call of DeadReviews.
const MaxDead = 500

// DeadPage says where DeadReviews goes on: after a review that died then and has this id. The zero value is the beginning.
type DeadPage struct {
	EndedAt time.Time
	ID      string
}

// nobody sorts before every id.
const nobody = "00000000-0000-0000-0000-000000000000"

func (p DeadPage) after() (time.Time, string) {
	if p.ID == "" {
		return time.Unix(0, 0), nobody
	}
	return p.EndedAt, canonicalID(p.ID)
}

// dropped is the verdict of a dead review that nobody will replay: what its status was before.
func dropped(r Review) verdict.Verdict {
	return verdict.Verdict{ID: r.ID, Status: verdict.Unresolved, Reason: r.Reason, Reasons: []verdict.Reason{r.Reason},
		CheckedAt: r.EndedAt, SoftUntil: r.EndedAt.AddDate(100, 0, 0)}
}
