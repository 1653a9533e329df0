package validate

import (
	"slices"

	"validator-gw/internal/verdict"
)

// Decision is what a flow's policy makes of a status: what the caller should do next.
type Decision string

// The decisions. The words are those of openapi.yaml.
const (
	Accept        Decision = "accept"
	AcceptPending Decision = "accept_pending"
	Warn          Decision = "warn"
	Hold          Decision = "hold"
	Reject        Decision = "reject"
)

// Decisions lists every decision, for metrics that are set to zero at start.
var Decisions = []Decision{Accept, AcceptPending, Warn, Hold, Reject}

// Policy turns what is known into a decision. It never rejects on an unknown, on a fault of the upstream, on a
// suggestion, or on a local list alone.
type Policy struct {
	// OnUnverified is AcceptPending or Hold: the decision while, or because, nothing is known.
	OnUnverified Decision
}

// rejected are the risky reasons for which an address is refused: the upstream's word, or the operator's own list, and
// never a shipped one. The other risky addresses may well reach a person.
var rejected = []verdict.Reason{
	verdict.LocalDenylist, verdict.Disposable, verdict.DisposableLongTerm, verdict.Toxic, verdict.Spamtrap, verdict.SpamtrapSuspected,
	verdict.AbuseComplainer, verdict.GloballySuppressed,
}

// Decide applies the policy to what is known. A flag set by a local list weighs at most a warning.
func (p Policy) Decide(status verdict.Status, reason verdict.Reason, flags verdict.Flags) Decision {
	switch status {
	case verdict.Valid:
		if flags.Disposable == verdict.True {
			return Warn
		}
		return Accept
	case verdict.Invalid:
		if reason == verdict.TypoSuspected {
			return Warn // a guess, if the upstream's
		}
		return Reject
	case verdict.Risky:
		switch {
		case slices.Contains(rejected, reason):
			return Reject
		case flags.Disposable == verdict.True:
			return Warn
		}
		return Accept
	default: // needs_review, unresolved: nothing is known, so nothing is refused
		return p.OnUnverified
	}
}
