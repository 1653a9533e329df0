package validate

import "validator-gw/internal/verdict"

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

// Decide applies the policy to what is known. A flag set by a local list weighs at most a warning.
func (p Policy) Decide(status verdict.Status, reason verdict.Reason, flags verdict.Flags) Decision {
	switch status {
	case verdict.Valid:
		if flags.Disposable == verdict.True {
			return Warn
		}
		return Accept
	case verdict.Invalid:
		return Reject
	case verdict.Risky:
		switch {
		case reason == verdict.LocalDenylist, reason == verdict.Disposable:
			return Reject // the operator's word, or the upstream's; never a shipped list's
		case flags.Disposable == verdict.True:
			return Warn
		}
		return Accept
	default: // needs_review, unresolved: nothing is known, so nothing is refused
		return p.OnUnverified
	}
}
