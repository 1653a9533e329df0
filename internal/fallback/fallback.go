// Package fallback is the durable memory of the gateway: the reviews (what could not be answered in time, and
// how it went on), the queue of work that is still outstanding, and the verdicts that were paid for. Two
// stores, Postgres and SQLite, pass one conformance suite.
//
// # States of a review
//
//	          Record                 Settle / SettleOpen (valid, invalid, risky, unresolved)
//	(nothing) ------> open (queued) --------------------------------------------------> settled
//	                    |    ^
//	              Claim |    | Postpone, GiveBack, or the lease ran out
//	                    v    |
//	                  open (leased) --Kill--> dead
//
// A row of review_queue exists exactly while its review is open. There is at most one open review a
// fingerprint: Record is an upsert. A lease is due_at moved forward plus a fencing token: Settle, Postpone,
// Heartbeat, GiveBack and Kill change nothing, and say ErrLeaseLost, when the token is not the row's own.
// Postgres uses the database's clock, so that replicas agree; SQLite has one process and takes Go's, so that
// it can live in a test's bubble.
//
// The address is sealed at rest and erased when the review ends; a fingerprint is all that stays. Erase removes that,
// too, with all that hangs on it.
package fallback

import (
	"errors"
	"time"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// Errors that callers act on. Everything else means that the store could not do it.
var (
	// ErrLeaseLost: the row was claimed by another worker, settled, or given back since. Drop the write.
	ErrLeaseLost = errors.New("lease lost")
	// ErrUnknownID: no review and no verdict has this id (any more).
	ErrUnknownID = errors.New("unknown id")
	// ErrQueueFull: MaxOpen reviews are open, or 80 % of that many and this one is of a backfill.
	ErrQueueFull = errors.New("review queue is full")
	// ErrUnknownCommit: the commit was sent and its outcome is not known; the row may be there.
	ErrUnknownCommit = errors.New("outcome of the commit is unknown")
	// ErrSchema: the schema is older or newer than this program; see Migrate.
	ErrSchema = errors.New("schema version does not fit")
	// ErrWrongSecret: the rows of this store are sealed with another secret; nothing is touched.
	ErrWrongSecret = errors.New("store was written with another secret: set VALIDATOR_GW_SECRET to it, " +
		"or, to change secrets, set VALIDATOR_GW_SECRET_PREVIOUS to it")
	// ErrUnsafeServer: the server may lose a commit that it confirmed (fsync or synchronous_commit is off).
	ErrUnsafeServer = errors.New("server does not keep what it commits")
)

// Priority orders claims: the higher is claimed first.
type Priority int16

// The priorities, by who waits.
const (
	PriorityBackfill    Priority = 0
	PriorityBackground  Priority = 10
	PriorityInteractive Priority = 20
)

// Watcher is one who waits for a review. Equal watchers are one.
type Watcher struct {
	Client   string // name of the client's key
	Flow     string // name of the flow whose policy decides for it
	Callback string // name of a configured callback, or empty
}

// Entry is what Record writes. All durations are non-negative.
type Entry struct {
	// ID is used when no review is open for the fingerprint. UUIDv7, canonical text.
	ID          string
	Fingerprint normalize.Fingerprint
	DomainKey   int64
	Address     normalize.Address
	Reason      verdict.Reason
	Cause       verdict.Cause
	// CheckIn is the time from now to the first check by the loop. An open review is never made due later
	// than it was by an entry with CauseUpstream and no Firm; it is by CauseMailbox.
	CheckIn time.Duration
	// Firm says that the upstream itself named the time (Retry-After): an open review moves to it too.
	Firm bool
	// Counted says that what this check found out is written already, or will be by the worker that holds the row:
	// an open review gets the watcher and the priority, and stays as it is otherwise. One answer counts once,
	// however many wait for it.
	Counted  bool
	Priority Priority
	Watcher  Watcher // the zero Watcher is nobody
	// Trail is appended to the review's, of which the newest MaxTrail are kept.
	Trail []verdict.Attempt
}

// MaxTrail bounds the entries of a review's trail.
const MaxTrail = 50

// State is where a review stands.
type State string

// The states; see the package documentation.
const (
	Open    State = "open"
	Settled State = "settled"
	Dead    State = "dead"
)

// Review is one review as Status and Record report it.
type Review struct {
	ID          string
	Fingerprint normalize.Fingerprint
	State       State
	Reason      verdict.Reason // why it is open, or why it is dead
	Cause       verdict.Cause
	// Address is zero once it is erased.
	Address    normalize.Address
	Trail      []verdict.Attempt
	RecordedAt time.Time
	// UpdatedAt is the last Record or Postpone; a marker of our side lasts from there.
	UpdatedAt time.Time
	// NextCheckAt is zero when the review is not open. While a worker holds it, it is the lease's end.
	NextCheckAt time.Time
	// Attempts and Unusable are those of Claim: the steps of the ladders. Lookup and Review set them while it is open.
	Attempts, Unusable int
	EndedAt            time.Time
	// Verdict is set when settled.
	Verdict *verdict.Verdict
}

// Found is what Lookup knows of a fingerprint: a verdict within its hard expiry, an open review, both or neither.
type Found struct {
	Verdict *verdict.Verdict
	Review  *Review
}

// Claim is a leased piece of work.
type Claim struct {
	ReviewID    string
	Token       int64
	Fingerprint normalize.Fingerprint
	DomainKey   int64
	Address     normalize.Address
	Reason      verdict.Reason
	Cause       verdict.Cause
	Priority    Priority
	// Attempts counts answers on the mailbox's side, Snoozes postponements on the upstream's side since the
	// last other answer, Unusable answers that could not be used, Claims the claims (this one included) since
	// the last orderly end: five that ended with nothing are a crash loop.
	Attempts, Snoozes, Unusable, Claims int
	RecordedAt                          time.Time
	// Outage is the time the review spent waiting on the upstream's side; it does not count towards its age.
	Outage time.Duration
	// AskedAt is when somebody last asked for a new check, zero when nobody did: a verdict that began before does not end
	// the review. It may be later than Now while events are expected.
	AskedAt time.Time
	// Now is the store's clock at the claim.
	Now time.Time
}

// ClaimRequest bounds a Claim.
type ClaimRequest struct {
	// Max is the most rows to claim, at most MaxBatch.
	Max int
	// Lease is how long the rows are ours.
	Lease time.Duration
	// Cursor is the domain key after which to go on; take it from the last ClaimResult, 0 at first.
	Cursor int64
	// PerDomain bounds the first pass, 2 when zero. The second pass fills the batch from any domain.
	PerDomain int
}

// MaxBatch bounds one Claim.
const MaxBatch = 50

// ClaimResult is what a Claim brought.
type ClaimResult struct {
	Claims []Claim
	Cursor int64
	// Idle is how long nothing will be due, as far as the store knows, at most MaxIdle; zero when it does not know,
	// since other processes write too.
	Idle time.Duration
}

// MaxIdle bounds ClaimResult.Idle.
const MaxIdle = time.Minute

// Postponement says how a claimed review goes on.
type Postponement struct {
	CheckIn time.Duration
	Reason  verdict.Reason
	Cause   verdict.Cause
	Trail   []verdict.Attempt
}

// Stored is a verdict with its fingerprint, as the write-behind hands it over.
type Stored struct {
	Fingerprint normalize.Fingerprint
	Verdict     verdict.Verdict
}

// Stats are the facts of the queue at one moment.
type Stats struct {
	Open      int64 // all outstanding rows
	Leased    int64 // held by a worker
	Overdue   int64 // due_at has passed
	Scheduled int64 // due later, not held
	Dead      int64
	// OldestOverdue is the age of the longest overdue row, 0 when there is none.
	OldestOverdue time.Duration
}

// Retention says how long ended things are kept. The zero value keeps the defaults of DefaultRetention.
type Retention struct {
	Ended time.Duration // settled reviews
}

// DefaultRetention keeps ended reviews for 30 days; verdicts go at their hard expiry, answers under an Idempotency-Key
// when the time that they were given is over.
var DefaultRetention = Retention{Ended: 30 * 24 * time.Hour}
