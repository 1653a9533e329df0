package verimail

import "validator-gw/internal/verdict"

// class is what an exchange with the upstream comes down to. The first nine are the words of profiles; the others come of
// reading a body and of a broken exchange.
type class string

const (
	classVerdict    class = "verdict"     // its body is an answer
	classInProgress class = "in_progress" // it is still at work
	classSoftError  class = "soft_error"  // an error under a success status
	classThrottled  class = "throttled"   // too many calls
	classQuota      class = "quota"       // the account is used up
	classAuth       class = "auth"        // the key is refused
	classRefused    class = "refused"     // our fault, or this address's
	classFault      class = "fault"       // the upstream's fault
	classLegalStop  class = "legal_stop"  // the owner of the address forbade it

	classTransient     class = "transient"     // a verdict of "not now": the mailbox's side
	classUnmapped      class = "unmapped"      // a word that the profile does not have
	classContradictory class = "contradictory" // two parts of an answer that disagree
	classBadBody       class = "bad_body"      // not what was agreed at all
)

// profileClasses are those that a profile may name.
var profileClasses = []class{
	classVerdict, classInProgress, classSoftError, classThrottled, classQuota, classAuth, classRefused, classFault,
	classLegalStop,
}

// gateEffect is what a class does to the gates before the upstream.
type gateEffect string

const (
	gateNone    gateEffect = "–"
	gateOpens   gateEffect = "opens both"
	gateAccount gateEffect = "closes the account gate"
	gateHint    gateEffect = "hint moves not-before; three without a hint pause" // for the whole fleet
	gateHint503 gateEffect = "a 503's hint moves not-before"
)

// action is what one class means for all who want to know: the retry loop, the breaker, the gates, the ladder on which a
// review is tried again, and whoever is on call.
type action struct {
	outcome string         // of verdict.AttemptOutcomes: the trail, the log, provider_attempts_total
	status  verdict.Status // of a class that is an answer by itself
	reason  verdict.Reason // empty: the mapping's
	cause   verdict.Cause  // empty: nothing is left to do
	health  error          // what the breaker is told
	retry   bool           // inside the same request
	gate    gateEffect     // the client's learn does it, by outcome; a test holds the two together
	alarm   string         // for people
}

// actions is the one table of what is done about each class. docs/profiles.md shows it.
var actions = map[class]action{
	classVerdict:    {outcome: verdict.AttemptAnswered, gate: gateOpens, alarm: "–"},
	classTransient:  {outcome: verdict.AttemptTransient, cause: verdict.CauseMailbox, gate: gateOpens, alarm: "share of unknowns"},
	classInProgress: {verdict.AttemptPending, "", verdict.UpstreamPending, verdict.CauseUpstream, errNeutral, false, gateNone, "–"},
	classSoftError:  {verdict.AttemptUnusable, "", verdict.UpstreamError, verdict.CauseUnusable, errNeutral, false, gateNone, "rate"},
	classUnmapped: {verdict.AttemptUnusable, "", verdict.Unmapped, verdict.CauseUnusable, errNeutral, false, gateNone,
		"any: the profile needs a row"},
	classContradictory: {verdict.AttemptUnusable, "", verdict.Contradictory, verdict.CauseUnusable, errNeutral, false, gateNone, "any"},
	classThrottled:     {verdict.AttemptThrottled, "", verdict.UpstreamThrottled, verdict.CauseUpstream, errNeutral, true, gateHint, "rate"},
	classQuota: {verdict.AttemptQuota, "", verdict.UpstreamQuota, verdict.CauseUpstream, errNeutral, false, gateAccount,
		"at once: top up the account"},
	classAuth: {verdict.AttemptAuth, "", verdict.UpstreamAuth, verdict.CauseUpstream, errNeutral, false, gateAccount,
		"at once: mend the key"},
	// Eight of them end as a dead review that someone looks at, instead of being asked for ever.
	classRefused: {verdict.AttemptRefused, "", verdict.UpstreamRefused, verdict.CauseUnusable, errNeutral, false, gateNone, "rate"},
	classFault:   {verdict.AttemptFault, "", verdict.UpstreamError, verdict.CauseUpstream, errFailure, true, gateHint503, "breaker"},
	// A page of a proxy, half a body, nothing: the upstream is not well. Billed, so not asked again at once.
	classBadBody: {verdict.AttemptBadBody, "", verdict.UpstreamBadResponse, verdict.CauseUpstream, errFailure, false, gateNone, "breaker"},
	classLegalStop: {verdict.AttemptAnswered, verdict.Unresolved, verdict.ClaimedByPerson, "", nil, false, gateOpens,
		"–"},
}

// defaultClass sorts a status that a profile does not name.
func defaultClass(code int) class {
	switch {
	case code < 200:
		return classBadBody // a switch of protocols, which is no answer
	case code == 202:
		return classInProgress
	case code >= 200 && code < 300:
		return classVerdict
	case code == 401, code == 403:
		return classAuth
	case code == 402:
		return classQuota
	case code == 429:
		return classThrottled
	case code == 408, code >= 500:
		return classFault
	}
	return classRefused // 3xx too: redirects are not followed
}
