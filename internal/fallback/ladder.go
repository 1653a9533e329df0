package fallback

import (
	"time"

	"validator-gw/internal/verdict"
)

// The ladders: how long until a review is checked again. Trouble on the upstream's side is over soon or not, and does not use
// up attempts; a mailbox that can't take mail now is asked three times over days (verimail.io, docs/results:
// "re-verify in days or weeks, drop after 3 checks"); an answer that could not be used is paid for each time.
var (
	upstreamLadder = []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute}
	mailboxLadder  = []time.Duration{10 * time.Minute, 6 * time.Hour, 72 * time.Hour}
	unusableLadder = []time.Duration{2 * time.Minute, 10 * time.Minute, time.Hour}
)

// Bounds of a review's life.
const (
	// MaxAttempts on the mailbox's side; then the review ends unresolved.
	MaxAttempts = 3
	// MaxUnusable answers that could not be used; then it is dead, for someone to look at.
	MaxUnusable = 8
	// MaxClaims that ended with nothing in a row: whatever is wrong with the row, it ends workers. Dead.
	MaxClaims = 5
	// MaxAge of a review, time on the upstream's side not counted; then it ends unresolved.
	MaxAge = 7 * 24 * time.Hour
)

// CheckIn returns the time until the next check after step earlier ones for the same cause (0 for the first).
// Spread it before use: what fails together should not come back together.
func CheckIn(cause verdict.Cause, step int) time.Duration {
	ladder := upstreamLadder
	switch cause {
	case verdict.CauseMailbox:
		ladder = mailboxLadder
	case verdict.CauseUnusable:
		ladder = unusableLadder
	}
	return ladder[min(max(step, 0), len(ladder)-1)]
}
