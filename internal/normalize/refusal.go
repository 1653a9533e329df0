package normalize

import (
	"log/slog"

	"validator-gw/internal/verdict"
)

// Refusal is the error of Parse, always as a *Refusal: the text can't be an address. Like an Address it
// prints without any of the text; Reason and Suggestion are the deliberate way.
type Refusal struct {
	// Reason is one of verdict.SyntaxReasons.
	Reason verdict.Reason
	// Suggestion is the normalized address that was probably meant, or empty. Parse accepts it. It is personal
	// data as the address is, and is only ever offered, never used in its place.
	Suggestion string `json:"-"`
}

// Error names the reason, never the text. The receiver is a value so that a copy prints no more than that.
func (r Refusal) Error() string { return "not an address: " + string(r.Reason) }

// GoString names the reason, for %#v.
func (r Refusal) GoString() string { return r.Error() }

// LogValue logs the reason.
func (r Refusal) LogValue() slog.Value { return slog.StringValue(string(r.Reason)) }
