// Package verdict holds the nouns that the other packages pass to one another: what is known about an
// address (Verdict), what one check of the upstream brought (Outcome), and the closed sets of words used
// for both. It has no behaviour beyond small questions on those values and imports the standard library only.
//
// No value in this package ever holds an address: a suggestion is kept as its domain, or sealed.
package verdict

import (
	"slices"
	"strconv"
	"time"
)

// Status is what a caller is told about an address. The words are those of openapi.yaml.
type Status string

// The five statuses. Valid, Invalid and Risky come from the upstream (Invalid also from local syntax),
// NeedsReview is work that goes on, Unresolved is work that was given up and is never to be treated as verified.
const (
	Valid       Status = "valid"
	Invalid     Status = "invalid"
	Risky       Status = "risky"
	NeedsReview Status = "needs_review"
	Unresolved  Status = "unresolved"
)

// Statuses lists every status, for metrics that are set to zero at start.
var Statuses = []Status{Valid, Invalid, Risky, NeedsReview, Unresolved}

// Final says whether the gateway has stopped working on it.
func (s Status) Final() bool {
	return s == Valid || s == Invalid || s == Risky || s == Unresolved
}

// Source says where an answer came from. The words are those of openapi.yaml.
type Source string

// The sources: the upstream asked for this request, a flight shared with another request, a cached verdict,
// the background loop, local syntax, and nothing yet.
const (
	FromUpstream Source = "upstream"
	FromFlight   Source = "flight"
	FromCache    Source = "cache"
	FromReview   Source = "review"
	FromLocal    Source = "local"
	FromNone     Source = "none"
)

// Sources lists every source, for metrics that are set to zero at start.
var Sources = []Source{FromUpstream, FromFlight, FromCache, FromReview, FromLocal, FromNone}

// Tri is a fact that may be unknown. The zero value is Unknown and reads null in JSON.
type Tri uint8

// The three states of a fact.
const (
	Unknown Tri = iota
	False
	True
)

// Known turns a boolean into a Tri.
func Known(b bool) Tri {
	if b {
		return True
	}
	return False
}

// Ptr returns nil for Unknown, as JSON wants it.
func (t Tri) Ptr() *bool {
	if t == Unknown {
		return nil
	}
	b := t == True
	return &b
}

// MarshalJSON writes true, false or null.
func (t Tri) MarshalJSON() ([]byte, error) {
	switch t {
	case True:
		return []byte("true"), nil
	case False:
		return []byte("false"), nil
	default:
		return []byte("null"), nil
	}
}

// UnmarshalJSON reads true, false or null; anything else is an error.
func (t *Tri) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case "null":
		*t = Unknown
		return nil
	default:
		v, err := strconv.ParseBool(string(b))
		if err != nil {
			return err
		}
		*t = Known(v)
		return nil
	}
}

// Flags are facts beside the status; each may be unknown.
type Flags struct {
	Disposable   Tri `json:"disposable"`
	Role         Tri `json:"role"`
	Free         Tri `json:"free"`
	CatchAll     Tri `json:"catch_all"`
	MailboxFull  Tri `json:"mailbox_full"`
	SMTPUTF8     Tri `json:"smtputf8"`
	Subaddressed Tri `json:"subaddressed"`
	MixedScript  Tri `json:"mixed_script"`
}

// Over returns f with every known fact of g taken over: what the upstream says beats what a local list says.
func (f Flags) Over(g Flags) Flags {
	pick := func(a, b Tri) Tri {
		if b != Unknown {
			return b
		}
		return a
	}
	return Flags{
		Disposable:   pick(f.Disposable, g.Disposable),
		Role:         pick(f.Role, g.Role),
		Free:         pick(f.Free, g.Free),
		CatchAll:     pick(f.CatchAll, g.CatchAll),
		MailboxFull:  pick(f.MailboxFull, g.MailboxFull),
		SMTPUTF8:     pick(f.SMTPUTF8, g.SMTPUTF8),
		Subaddressed: pick(f.Subaddressed, g.Subaddressed),
		MixedScript:  pick(f.MixedScript, g.MixedScript),
	}
}

// Suggestion is a better spelling that the upstream offered, kept without the address: as the suggested
// domain when the local part stays as it is, else sealed (encrypted). At most one of the two is set.
type Suggestion struct {
	Domain string `json:"domain,omitempty"`
	Sealed []byte `json:"sealed,omitempty"`
}

// List names a list of domains, so that a flag which comes from it can be explained.
type List struct {
	// Name is that of the package that it was taken from, or "operator".
	Name string `json:"name"`
	// Version is the package's; empty for the operator's.
	Version string `json:"version,omitempty"`
	// Entries counts its domains.
	Entries int `json:"entries"`
}

// Local is what the program knew of an address by itself when it was checked. It is made anew for each request that
// brings the address; what is kept serves those who come with an id alone.
type Local struct {
	Flags Flags `json:"flags"`
	// Disposable is the list that set that flag; the zero List when none did.
	Disposable List `json:"disposable,omitzero"`
	// Unicode is the version of the tables by which the address was normalized, and Rules that of our own rules: an
	// address that is normalized differently one day can be told from two addresses.
	Unicode string `json:"unicode"`
	Rules   int    `json:"rules"`
}

// Verdict is one final word on one address, in the form in which it is cached and stored. It is immutable
// once made: share it freely, change a copy.
type Verdict struct {
	// ID names the check that found it (UUIDv7, canonical text).
	ID      string   `json:"id"`
	Status  Status   `json:"status"`
	Reason  Reason   `json:"reason"`
	Reasons []Reason `json:"reasons,omitempty"`
	Flags   Flags    `json:"flags"`
	// Suggestion is the upstream's; a local one is made anew for each request.
	Suggestion Suggestion `json:"suggestion,omitzero"`
	// Local is what was known of the address without asking anyone; nil in verdicts from before it was kept. Flags are
	// the upstream's alone.
	Local *Local `json:"local,omitempty"`
	// Attempts counts the calls to the upstream that this check took, the answered one included.
	Attempts int `json:"attempts"`
	// Provider is the profile's name, such as verimail_v3; empty for an unresolved verdict that no provider gave.
	Provider string `json:"provider,omitempty"`
	// Profile is that with the version of its mapping, such as verimail_v3@1; empty in verdicts that no provider gave, and in
	// those from before it was kept.
	Profile string `json:"profile,omitempty"`
	// CheckedAt is when the upstream answered.
	CheckedAt time.Time `json:"checked_at"`
	// Trail has the calls of this check, for whoever must explain it.
	Trail []Attempt `json:"trail,omitempty"`
	// SoftUntil and HardUntil end its freshness and its life; cache.Put sets both.
	SoftUntil time.Time `json:"soft_until"`
	HardUntil time.Time `json:"hard_until"`
}

// Began is when the call that brought the verdict was sent: what happened to the address after that is not in it. It is
// CheckedAt where the trail does not say.
func (v Verdict) Began() time.Time {
	for _, a := range slices.Backward(v.Trail) {
		if a.Outcome == AttemptAnswered && !a.At.IsZero() && a.At.Before(v.CheckedAt) {
			return a.At
		}
	}
	return v.CheckedAt
}

// Attempt is one line of a check's trail: one call to the upstream, or one reason not to call.
type Attempt struct {
	At time.Time `json:"at"`
	// Outcome is one of AttemptOutcomes.
	Outcome string `json:"outcome"`
	// HTTPStatus is 0 when no response was read.
	HTTPStatus        int    `json:"http_status,omitempty"`
	LatencyMS         int64  `json:"latency_ms"`
	UpstreamRequestID string `json:"upstream_request_id,omitempty"`
	// ProviderResult is what the provider called its result, in its own words, as far as they are plain and short; the
	// verdict is our reading of it.
	ProviderResult string `json:"provider_result,omitempty"`
	// ProviderScore is the provider's confidence from 0 to 100; nil when it gave none.
	ProviderScore *int `json:"provider_score,omitempty"`
}

// Cause says whose side holds an answer up; it chooses the ladder on which a review is tried again.
type Cause string

// The causes of a missing answer.
const (
	// CauseUpstream: the upstream as a whole, or our own limits towards it. Does not use up attempts.
	CauseUpstream Cause = "upstream"
	// CauseMailbox: the mailbox's own server (greylisted, full, temporary). Three, then Unresolved.
	CauseMailbox Cause = "mailbox"
	// CauseUnusable: an answer came that can't be used (unmapped, contradictory, soft error). Eight, then dead.
	CauseUnusable Cause = "unusable"
)

// Causes lists every cause.
var Causes = []Cause{CauseUpstream, CauseMailbox, CauseUnusable}

// Outcome is what one check of the upstream brought: a final Verdict, or the reason why there is none. Not
// having an answer is a value here and not an error, since it is always recorded and never just reported.
type Outcome struct {
	// Verdict is final, or has Status NeedsReview with Reason saying why. Its expiries are not set yet.
	Verdict Verdict
	// Cause is set when the verdict is not final.
	Cause Cause
	// NotBefore is the earliest moment at which asking again makes sense; zero when nobody said.
	NotBefore time.Time
	// Trail has one entry a call, oldest first.
	Trail []Attempt
	// Backoff is the time slept between attempts.
	Backoff time.Duration
	// Sent counts the calls that reached the wire; 0 means that a gate, the breaker or the limiter said no.
	Sent int
}

// Final says whether the outcome holds a final verdict.
func (o Outcome) Final() bool { return o.Verdict.Status.Final() }

// Class says who waits for a check; it chooses the time budget, the retries and the share of the rate.
type Class uint8

// The classes.
const (
	// Interactive: a person waits.
	Interactive Class = iota
	// Background: the revalidation loop.
	Background
)

// Classes lists every class.
var Classes = []Class{Interactive, Background}

// String returns the class's name, as metrics carry it.
func (c Class) String() string {
	if c == Background {
		return "background"
	}
	return "interactive"
}

// Plan says what one check may cost.
type Plan struct {
	Class Class
	// Until is when the caller stops waiting: no attempt, sleep or booking that would not fit begins. A call
	// that is on the wire by then is waited for until the context ends, since it is billed already.
	Until time.Time
	// MaxRetries bounds the attempts after the first.
	MaxRetries int
	// Once says that the check is made now or not at all: it does not wait for a token. With the class Background that is
	// a call which nobody else could use.
	Once bool
	// RequestID names the request that a person waits for, and Fingerprint is the prefix of the address's; both are
	// for the log and may be empty.
	RequestID, Fingerprint string
}

// Outcomes of one attempt, as the trail, the log and the metrics name them.
const (
	AttemptAnswered  = "answered"  // a verdict
	AttemptPending   = "pending"   // the upstream is still at work
	AttemptTransient = "transient" // the mailbox's side could not say
	AttemptUnusable  = "unusable"  // an answer that could not be used
	AttemptThrottled = "throttled" // 429
	AttemptQuota     = "quota"     // 402, 403
	AttemptAuth      = "auth"      // 401
	AttemptRefused   = "refused"   // another 4xx
	AttemptFault     = "fault"     // 5xx
	AttemptBadBody   = "bad_body"  // 2xx that is not what was agreed
	AttemptNetwork   = "network"   // connect, TLS, reset
	AttemptLate      = "late"      // silent when its callers had to be answered; waited for
	AttemptTimeout   = "timeout"   // silent until the end
	AttemptCancelled = "cancelled" // we gave up on it: shutdown
	AttemptNotSent   = "not_sent"  // breaker, gate or limiter
)

// AttemptOutcomes lists every outcome of an attempt.
var AttemptOutcomes = []string{
	AttemptAnswered, AttemptPending, AttemptTransient, AttemptUnusable, AttemptThrottled, AttemptQuota, AttemptAuth,
	AttemptRefused, AttemptFault, AttemptBadBody, AttemptNetwork, AttemptLate, AttemptTimeout, AttemptCancelled, AttemptNotSent,
}
