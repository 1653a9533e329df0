package fallback

import "time"

// Notice is one message of the outbox: a callback has to be told how a review ended. It is written in the transaction that
// ends the review, one a watcher with a callback, and holds no address: what is told is read from the review.
type Notice struct {
	// ID is that of the message (a UUID), the same at each delivery.
	ID, ReviewID string
	// Watcher is who is told; its Callback is never empty.
	Watcher Watcher
	// Event is NoticeSettled or NoticeDead.
	Event string
	// RecordedAt is when the review ended, or when the watcher came to one that had.
	RecordedAt time.Time
	// Attempts counts the claims, this one included.
	Attempts int
	// Token is the lease under which it was claimed.
	Token int64
	// Now is the store's clock at the claim.
	Now time.Time
}

// The events of a Notice.
const (
	NoticeSettled = "review.settled"
	NoticeDead    = "review.dead"
)

// MaxNotices bounds one ClaimNotices.
const MaxNotices = 100

// OutboxStats are the facts of the outbox at one moment.
type OutboxStats struct {
	// Waiting are to be delivered, held ones included; GivenUp are kept for a week.
	Waiting, GivenUp int64
	// Oldest is the age of the longest waiting one, 0 when there is none.
	Oldest time.Duration
}

// keepNotices is how long a message is kept after it was given up; one that nobody took, since its callback is not
// configured any more, from its beginning.
const keepNotices = 7 * 24 * time.Hour

// rooms are the callbacks of a claim and the most messages of each, MaxNotices in all.
func rooms(room map[string]int) (names []string, most []int) {
	left := MaxNotices
	for name, n := range room {
		if n = min(n, left); n > 0 {
			names, most = append(names, name), append(most, n)
			left -= n
		}
	}
	return names, most
}
