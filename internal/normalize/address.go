package normalize

import (
	"log/slog"
	"strings"
	"unicode"
)

// Address is a normalized address, and Parse is the only way to get one (but for Restore, which reads back
// what was stored). The zero value is no address. It is comparable; two are equal when their normalized text is.
//
// It prints as a redaction by every common route, so that it can't reach a log or an error by accident; Text
// is the deliberate way to the full text.
type Address struct {
	local, domain string
}

// Text returns the normalized address: local part in UTF-8 (NFC, lower case), domain as A-labels.
func (a Address) Text() string {
	if a == (Address{}) {
		return ""
	}
	return a.local + "@" + a.domain
}

// Local returns the normalized local part.
func (a Address) Local() string { return a.local }

// Domain returns the normalized domain, as A-labels in lower case without a trailing dot.
func (a Address) Domain() string { return a.domain }

// Unicode returns the address with its domain in U-labels, to be shown beside Text and never in its place. It
// is empty when the domain is all ASCII anyway, and when a label of it mixes scripts (UTS 39 5.1) or holds a sign:
// such a label may look like another one, or, with U+2044, like the end of the domain.
func (a Address) Unicode() string {
	if !strings.Contains(a.domain, acePrefix) {
		return ""
	}
	shown, err := profile.ToUnicode(a.domain)
	if err != nil || shown == a.domain {
		return ""
	}
	if back, err := profile.ToASCII(shown); err != nil || back != a.domain {
		return "" // a stored address may be older than a rule
	}
	for label := range strings.SplitSeq(shown, ".") {
		if !singleScript(label) || strings.ContainsFunc(label, isSign) {
			return ""
		}
	}
	return a.local + "@" + shown
}

// isSign says whether r is punctuation or a symbol that no U-label may hold (RFC 5891 4.2.2, RFC 5892 2), though
// UTS 46 lets it through. The exceptions are those of RFC 5892 2.6.
func isSign(r rune) bool {
	switch r {
	case '-', '\u00b7', '\u0375', '\u05f3', '\u05f4', '\u06fd', '\u06fe', '\u0f0b', '\u30fb':
		return false
	}
	return unicode.IsPunct(r) || unicode.IsSymbol(r)
}

// IsZero says whether a holds no address.
func (a Address) IsZero() bool { return a == Address{} }

const redacted = "[address]"

// String redacts.
func (a Address) String() string { return redacted }

// GoString redacts, for %#v.
func (a Address) GoString() string { return redacted }

// LogValue redacts.
func (a Address) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalJSON redacts: an address goes on the wire only where Text is asked for.
func (a Address) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }
