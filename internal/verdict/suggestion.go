package verdict

// Reasons of a suggestion beside an address that is accepted as it was typed: they never refuse.
const (
	TypoDomain  Reason = "typo_domain"  // the domain is a misspelt provider's
	MixedScript Reason = "mixed_script" // the domain looks like a provider's, in letters of another script
)

// SuggestionReasons lists the reasons of a suggestion beside an accepted address. PercentEncoded is a reason of
// a refusal too.
var SuggestionReasons = []Reason{TypoDomain, MixedScript, PercentEncoded}
