package verdict

// Reason is why a status was given: a closed set of codes, stable on the wire.
type Reason string

// Reasons of final verdicts.
const (
	MailboxAccepted   Reason = "mailbox_accepted"
	MailboxNotFound   Reason = "mailbox_not_found"
	MailboxFull       Reason = "mailbox_full"
	CatchAll          Reason = "catch_all"
	Disposable        Reason = "disposable"
	ReviewExpired     Reason = "review_expired"     // went on too long without an answer
	AddressUnreadable Reason = "address_unreadable" // sealed under a secret that is gone
	ReviewPoisoned    Reason = "review_poisoned"    // five claims in a row ended with nothing
)

// Reasons on the mailbox's side: asking again later may help.
const (
	MailboxTempRejected Reason = "mailbox_temp_rejected"
	MXUnreachable       Reason = "mx_unreachable"
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

// ReviewReasons lists the reasons that a needs_review answer can give.
var ReviewReasons = []Reason{
	MailboxTempRejected, MXUnreachable, VerifierError, UpstreamPending, UpstreamTimeout, UpstreamThrottled,
	UpstreamError, UpstreamQuota, UpstreamAuth, UpstreamRefused, UpstreamBadResponse, CircuitOpen,
	BudgetExhausted, LimiterSaturated, Unmapped, Contradictory,
}

// FinalReasons lists the reasons that the upstream's final verdicts and an ended review give.
var FinalReasons = []Reason{MailboxAccepted, MailboxNotFound, MailboxFull, CatchAll, Disposable, ReviewExpired, ReviewPoisoned, AddressUnreadable}
