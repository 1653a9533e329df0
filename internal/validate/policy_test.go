package validate_test

import (
	"testing"

	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
)

// The default policy, row by row: an unknown is never refused, a shipped list at most warns, and what the upstream calls
// a danger is refused.
func TestPolicy(t *testing.T) {
	t.Parallel()
	listed := verdict.Flags{Disposable: verdict.True}
	for _, tc := range []struct {
		status verdict.Status
		reason verdict.Reason
		flags  verdict.Flags
		want   validate.Decision
	}{
		{verdict.Valid, verdict.MailboxAccepted, verdict.Flags{}, validate.Accept},
		{verdict.Valid, verdict.AliasAccepted, verdict.Flags{Role: verdict.True, MixedScript: verdict.True}, validate.Accept},
		{verdict.Valid, verdict.MailboxAccepted, listed, validate.Warn},
		{verdict.Invalid, verdict.MailboxNotFound, verdict.Flags{}, validate.Reject},
		{verdict.Invalid, verdict.DomainNotFound, verdict.Flags{}, validate.Reject},
		{verdict.Invalid, verdict.TypoSuspected, verdict.Flags{}, validate.Warn},
		{verdict.Invalid, verdict.MissingAt, verdict.Flags{}, validate.Reject},
		{verdict.Risky, verdict.CatchAll, verdict.Flags{}, validate.Accept},
		{verdict.Risky, verdict.MailboxFull, verdict.Flags{}, validate.Accept},
		{verdict.Risky, verdict.Role, verdict.Flags{}, validate.Accept},
		{verdict.Risky, verdict.CatchAll, listed, validate.Warn},
		{verdict.Risky, verdict.Disposable, verdict.Flags{}, validate.Reject},
		{verdict.Risky, verdict.Spamtrap, verdict.Flags{}, validate.Reject},
		{verdict.Risky, verdict.SpamtrapSuspected, verdict.Flags{}, validate.Reject},
		{verdict.Risky, verdict.Toxic, verdict.Flags{}, validate.Reject},
		{verdict.Risky, verdict.AbuseComplainer, verdict.Flags{}, validate.Reject},
		{verdict.Risky, verdict.GloballySuppressed, verdict.Flags{}, validate.Reject},
		{verdict.Risky, verdict.LocalDenylist, verdict.Flags{}, validate.Reject},
		{verdict.NeedsReview, verdict.UpstreamTimeout, listed, validate.AcceptPending},
		{verdict.Unresolved, verdict.ReviewExpired, verdict.Flags{}, validate.AcceptPending},
		{verdict.Unresolved, verdict.ClaimedByPerson, verdict.Flags{}, validate.AcceptPending},
	} {
		if got := (validate.Policy{OnUnverified: validate.AcceptPending}).Decide(tc.status, tc.reason, tc.flags); got != tc.want {
			t.Errorf("%s %s %+v: %s, want %s", tc.status, tc.reason, tc.flags, got, tc.want)
		}
	}
	for _, status := range []verdict.Status{verdict.NeedsReview, verdict.Unresolved} {
		if got := (validate.Policy{OnUnverified: validate.Hold}).Decide(status, verdict.UpstreamTimeout, verdict.Flags{}); got != validate.Hold {
			t.Errorf("%s in a flow that holds: %s", status, got)
		}
	}
}
