package validate

import (
	"errors"
	"time"

	"validator-gw/internal/verdict"
)

// Errors that the API maps to status codes. None holds an address.
var (
	// ErrUnknownFlow: the request names a flow that the settings do not have.
	ErrUnknownFlow = errors.New("unknown flow")
	// ErrUnknownID: no check has this id, or it is no longer kept.
	ErrUnknownID = errors.New("unknown id")
	// ErrNotDurable: there is no answer and nothing durable could be written. See NotDurable for the id.
	ErrNotDurable = errors.New("no answer and nothing durable could be written")
	// ErrUnavailable: the store can't be reached to read what was asked for; trying again may help.
	ErrUnavailable = errors.New("store can't be reached")
	// ErrKeyReused: another request was sent under this Idempotency-Key.
	ErrKeyReused = errors.New("idempotency key was used for another request")
	// ErrKeyInFlight: the first request under this Idempotency-Key is in work, and its answer did not come in time.
	ErrKeyInFlight = errors.New("request with this idempotency key is in work")
	// ErrSaturated: the gateway has as many requests in work as it takes.
	ErrSaturated = errors.New("gateway is full")
)

// NotDurable is ErrNotDurable with what is known of the row. Ask with errors.As; errors.Is(err, ErrNotDurable)
// holds too.
type NotDurable struct {
	// ID is set only when a commit was sent and its outcome is unknown: the row may be found under it.
	ID  string
	Err error // the store's error, without an address
}

// Error says what happened, without the id.
func (e *NotDurable) Error() string { return ErrNotDurable.Error() + ": " + e.Err.Error() }

// Unwrap gives both ErrNotDurable and the store's error.
func (e *NotDurable) Unwrap() []error { return []error{ErrNotDurable, e.Err} }

// Request is one address to validate, as the API hands it over.
type Request struct {
	// Raw is the text as typed. It is never logged.
	Raw string
	// Flow is the name of a flow in the settings; empty means "signup".
	Flow string
	// Client is the name of the caller's key.
	Client string
	// RequestID names the request in the log; it may be empty.
	RequestID string
	// Callback is the name of a configured callback, or empty.
	Callback string
	// Budget caps the flow's budget; 0 means the flow's own. Clamped to 300-950 ms.
	Budget time.Duration
	// Typing says that the person is still typing: nothing is recorded, and of a session's checks only the newest goes on.
	Typing bool
	// SessionID names the typing session among those of the Client. It is kept as a keyed hash only.
	SessionID string
	// Key is the Idempotency-Key, as idempotency.ParseKey read it; empty: none.
	Key string
}

// Inquiry asks how a check stands.
type Inquiry struct {
	ID string
	// Flow is the one whose policy decides; empty means the one with which Client asked for the check, else DefaultFlow.
	Flow string
	// Client is the name of the caller's key.
	Client string
}

// Answer is what the caller is told. It holds the address: it goes on the wire to that caller and nowhere else.
type Answer struct {
	// ID names the check; empty for a local refusal, which checked nothing.
	ID       string
	Status   verdict.Status
	Decision Decision
	Reason   verdict.Reason
	Reasons  []verdict.Reason
	// Normalized is empty when the text can't be an address, or once the address is erased (status only).
	Normalized string
	// Unicode is the same with the domain as people read it; empty where that is the same or might mislead.
	Unicode string
	// Suggestion is a better spelling, or empty. It never changes Normalized. SuggestionReason is why we make it; empty
	// for the upstream's.
	Suggestion       string
	SuggestionReason verdict.Reason
	// DedupeKey is equal for spellings that one provider delivers to one mailbox; empty unless it is switched on.
	DedupeKey string
	Flags     verdict.Flags
	// DisposableList is the list that set that flag; zero when the upstream did, or nobody.
	DisposableList verdict.List
	Attempts       int
	Source         verdict.Source
	Provider       string
	// CheckedAt is zero while nothing is known.
	CheckedAt time.Time
	Age       time.Duration
	Stale     bool
	// ExpiresAt is when the verdict stops, or stopped, being fresh; zero while nothing is known, and for what is kept nowhere.
	ExpiresAt time.Time
	// NextCheckAt and PollAfter are set while Status is needs_review.
	NextCheckAt time.Time
	PollAfter   time.Duration
	// Trail is set by Status only.
	Trail []verdict.Attempt

	// The rest is for the log line and the metrics, not for the wire.

	Fingerprint string        // prefix only
	Backoff     time.Duration // slept between attempts
	Flow        string
	// Replayed: it is the stored answer to an earlier request under the same Idempotency-Key, as it was.
	Replayed bool
	// Erased says that the check had an address that is erased now.
	Erased bool
}
