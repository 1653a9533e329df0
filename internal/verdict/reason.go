package verdict

import "slices"

// Reason is why a status was given: a closed set of codes, stable on the wire.
type Reason string

// Reasons of a valid address.
const (
	MailboxAccepted Reason = "mailbox_accepted"
	AliasAccepted   Reason = "alias_accepted"  // accepted, and another name of a mailbox
	LocalAllowlist  Reason = "local_allowlist" // on the account's own list at the provider
)

// Reasons of an invalid address that a provider found; SyntaxReasons are those found here.
const (
	MailboxNotFound       Reason = "mailbox_not_found"
	MailboxDisabled       Reason = "mailbox_disabled"
	SyntaxInvalid         Reason = "syntax_invalid"
	ProviderRuleViolation Reason = "provider_rule_violation" // a name that its mail provider does not give out
	TypoSuspected         Reason = "typo_suspected"
	DomainNotFound        Reason = "domain_not_found"
	NoMX                  Reason = "no_mx"
	UnroutableMX          Reason = "unroutable_mx"
	DoesNotAcceptMail     Reason = "does_not_accept_mail"
)

// Reasons of a risky address.
const (
	CatchAll             Reason = "catch_all"
	RoleCatchAll         Reason = "role_catch_all"
	ProviderUnverifiable Reason = "provider_unverifiable" // the mail provider tells nobody; needs_review too
	LowDeliverability    Reason = "low_deliverability"
	MailboxFull          Reason = "mailbox_full"
	Disposable           Reason = "disposable"
	DisposableLongTerm   Reason = "disposable_long_term"
	Role                 Reason = "role"
	LowQuality           Reason = "low_quality"
	Gibberish            Reason = "gibberish"
	NoReply              Reason = "no_reply"
	HighRiskDomain       Reason = "high_risk_domain"
	ImmatureDomain       Reason = "immature_domain"
	RiskyTLD             Reason = "risky_tld"
	SubdomainMailer      Reason = "subdomain_mailer"
	UnknownMailProvider  Reason = "unknown_mail_provider"
	MXForward            Reason = "mx_forward"
	AIAgentMailbox       Reason = "ai_agent_mailbox"
	Toxic                Reason = "toxic"
	Spamtrap             Reason = "spamtrap"
	SpamtrapSuspected    Reason = "spamtrap_suspected"
	AbuseComplainer      Reason = "abuse_complainer"
	GloballySuppressed   Reason = "globally_suppressed"
	LocalDenylist        Reason = "local_denylist" // on the operator's own list, or on the account's at the provider
)

// Reasons of an unresolved address beside those of reviews.
const (
	ClaimedByPerson   Reason = "claimed_by_person"  // its owner forbade processing it (451); never asked again while this is kept
	ReviewExpired     Reason = "review_expired"     // went on too long without an answer
	AddressUnreadable Reason = "address_unreadable" // sealed under a secret that is gone
	ReviewPoisoned    Reason = "review_poisoned"    // five claims in a row ended with nothing
)

// Reasons on the mailbox's side: asking again later may help.
const (
	MailboxTempRejected Reason = "mailbox_temp_rejected"
	Greylisted          Reason = "greylisted"
	MXUnreachable       Reason = "mx_unreachable"
	SMTPTimeout         Reason = "smtp_timeout"
	SMTPConnectFailed   Reason = "smtp_connect_failed"
	SMTPDisconnected    Reason = "smtp_disconnected"
	SMTPTempError       Reason = "smtp_temp_error"
	SMTPInvalidResponse Reason = "smtp_invalid_response"
	AntispamBlocked     Reason = "antispam_blocked"
	DNSTempError        Reason = "dns_temp_error"
	VerifierError       Reason = "verifier_error"
)

// Reasons on the upstream's side, or on ours towards it.
const (
	UpstreamPending     Reason = "upstream_pending"
	UpstreamTimeout     Reason = "upstream_timeout"
	UpstreamThrottled   Reason = "upstream_throttled"
	UpstreamError       Reason = "upstream_error"
	UpstreamQuota       Reason = "upstream_quota"
	UpstreamAuth        Reason = "upstream_auth"
	UpstreamRefused     Reason = "upstream_refused" // 400, 404 and the like: our own fault
	UpstreamBadResponse Reason = "upstream_bad_response"
	CircuitOpen         Reason = "circuit_open"
	BudgetExhausted     Reason = "budget_exhausted"
	LimiterSaturated    Reason = "limiter_saturated"
)

// Reasons for answers that came and can't be used.
const (
	Unmapped      Reason = "unmapped"
	Contradictory Reason = "contradictory"
)

// RevalidationRequested is why a review is open that somebody asked for: nothing was asked of the upstream yet.
const RevalidationRequested Reason = "revalidation_requested"

// Reasons of a local refusal: the address can't be one. Each is one row, or several, of the address rules.
const (
	Empty             Reason = "empty"
	Encoding          Reason = "encoding"
	ControlChar       Reason = "control_char"
	WhitespaceInside  Reason = "whitespace_inside"
	InvisibleChar     Reason = "invisible_char"
	BidiControl       Reason = "bidi_control"
	MissingAt         Reason = "missing_at"
	MultipleAt        Reason = "multiple_at"
	MultipleAddresses Reason = "multiple_addresses"
	LocalEmpty        Reason = "local_empty"
	LocalDot          Reason = "local_dot"
	LocalChar         Reason = "local_char"
	LocalTooLong      Reason = "local_too_long"
	QuotedLocal       Reason = "quoted_local"
	Comment           Reason = "comment"
	DisplayName       Reason = "display_name"
	Wrapped           Reason = "wrapped"
	URIScheme         Reason = "uri_scheme"
	TrailingPunct     Reason = "trailing_punct"
	PercentEncoded    Reason = "percent_encoded"
	SmartPunctuation  Reason = "smart_punctuation"
	ConfusableLocal   Reason = "confusable_local"
	FullwidthAt       Reason = "fullwidth_at"
	FullwidthLocal    Reason = "fullwidth_local"
	DomainEmpty       Reason = "domain_empty"
	DomainNoDot       Reason = "domain_no_dot"
	DomainDot         Reason = "domain_dot"
	DomainHyphen      Reason = "domain_hyphen"
	DomainChar        Reason = "domain_char"
	LabelTooLong      Reason = "label_too_long"
	DomainTooLong     Reason = "domain_too_long"
	AddressTooLong    Reason = "address_too_long"
	IPLiteral         Reason = "ip_literal"
	TLDNumeric        Reason = "tld_numeric"
	TLDUnknown        Reason = "tld_unknown"
	ReservedDomain    Reason = "reserved_domain"
	IDNInvalid        Reason = "idn_invalid"
)

// SyntaxReasons lists the reasons of a local refusal.
var SyntaxReasons = []Reason{
	Empty, Encoding, ControlChar, WhitespaceInside, InvisibleChar, BidiControl, MissingAt, MultipleAt,
	MultipleAddresses, LocalEmpty, LocalDot, LocalChar, LocalTooLong, QuotedLocal, Comment, DisplayName, Wrapped,
	URIScheme, TrailingPunct, PercentEncoded, FullwidthAt, FullwidthLocal, SmartPunctuation, ConfusableLocal,
	DomainEmpty, DomainNoDot, DomainDot, DomainHyphen, DomainChar, LabelTooLong, DomainTooLong, AddressTooLong,
	IPLiteral, TLDNumeric, TLDUnknown, ReservedDomain, IDNInvalid,
}

// ValidReasons, InvalidReasons and RiskyReasons list the reasons that the upstream's verdicts give, by status.
var (
	ValidReasons   = []Reason{MailboxAccepted, AliasAccepted, LocalAllowlist}
	InvalidReasons = []Reason{
		MailboxNotFound, MailboxDisabled, SyntaxInvalid, ProviderRuleViolation, TypoSuspected, DomainNotFound, NoMX,
		UnroutableMX, DoesNotAcceptMail,
	}
	RiskyReasons = []Reason{
		CatchAll, RoleCatchAll, ProviderUnverifiable, LowDeliverability, MailboxFull, Disposable, DisposableLongTerm, Role,
		LowQuality, Gibberish, NoReply, HighRiskDomain, ImmatureDomain, RiskyTLD, SubdomainMailer, UnknownMailProvider,
		MXForward, AIAgentMailbox, Toxic, Spamtrap, SpamtrapSuspected, AbuseComplainer, GloballySuppressed, LocalDenylist,
	}
)

// MailboxReasons lists the reasons of a needs_review answer that lie on the mailbox's side.
var MailboxReasons = []Reason{
	MailboxTempRejected, Greylisted, MXUnreachable, SMTPTimeout, SMTPConnectFailed, SMTPDisconnected, SMTPTempError,
	SMTPInvalidResponse, AntispamBlocked, DNSTempError, VerifierError, ProviderUnverifiable,
}

// UpstreamReasons lists those on the upstream's side, or on ours towards it.
var UpstreamReasons = []Reason{
	UpstreamPending, UpstreamTimeout, UpstreamThrottled, UpstreamError, UpstreamQuota, UpstreamAuth, UpstreamRefused,
	UpstreamBadResponse, CircuitOpen, BudgetExhausted, LimiterSaturated,
}

// ReviewReasons lists the reasons that a needs_review answer can give.
var ReviewReasons = slices.Concat(MailboxReasons, UpstreamReasons, []Reason{Unmapped, Contradictory, RevalidationRequested})

// FinalReasons lists the reasons that the upstream's final verdicts and an ended review give.
var FinalReasons = slices.Concat(ValidReasons, InvalidReasons, RiskyReasons,
	[]Reason{ClaimedByPerson, ReviewExpired, ReviewPoisoned, AddressUnreadable})

// Answers returns the reasons that an upstream's answer of this status can give; none for an unknown status.
func Answers(s Status) []Reason {
	switch s {
	case Valid:
		return ValidReasons
	case Invalid:
		return InvalidReasons
	case Risky:
		return RiskyReasons
	case NeedsReview:
		return MailboxReasons
	case Unresolved:
		return []Reason{ClaimedByPerson}
	}
	return nil
}
