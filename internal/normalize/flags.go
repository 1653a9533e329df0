package normalize

import (
	"strings"
	"unicode"

	"golang.org/x/net/idna"

	"validator-gw/internal/verdict"
)

// Flags returns what the text alone tells: SMTPUTF8, whether delivery needs that extension (RFC 6531) since
// the local part isn't ASCII, and Subaddressed, whether a '+' tag (RFC 5233) follows a non-empty user part.
// All other flags are Unknown; Lists.Look has them.
func (a Address) Flags() verdict.Flags {
	return verdict.Flags{
		SMTPUTF8:     verdict.Known(!isASCII(a.local)),
		Subaddressed: verdict.Known(strings.IndexByte(a.local, '+') > 0),
	}
}

// mixed says whether a label of the domain is not in one script, or the local part has Latin letters beside
// Cyrillic or Greek ones. A local part may mix others: there it is no sign of a forgery.
func (a Address) mixed() bool {
	return !isASCII(a.local) && mixesLookalikes(a.local) || mixesScripts(a.domain)
}

// isRole says whether the local part, less its tag, is the name of a role.
func isRole(local string) bool {
	if tag := strings.IndexByte(local, '+'); tag > 0 {
		local = local[:tag]
	}
	_, ok := roles[local]
	return ok
}

// mixesLookalikes says whether text has Latin letters beside letters of a script that shares shapes with Latin.
func mixesLookalikes(text string) bool {
	latin, other := false, false
	for _, r := range text {
		latin = latin || unicode.Is(unicode.Latin, r)
		other = other || unicode.In(r, unicode.Cyrillic, unicode.Greek)
	}
	return latin && other
}

// mixesScripts says whether a label of a domain in A-labels is not in one script.
func mixesScripts(domain string) bool {
	if !strings.Contains(domain, acePrefix) {
		return false
	}
	for label := range strings.SplitSeq(domain, ".") {
		if strings.HasPrefix(label, acePrefix) && !singleScript(unicodeLabel(label)) {
			return true
		}
	}
	return false
}

// unicodeLabel returns an A-label as a U-label, or unchanged if it is none. A label is at most 63 octets, which
// bounds the time that punycode takes.
func unicodeLabel(label string) string {
	text, err := idna.Punycode.ToUnicode(label)
	if err != nil {
		return label
	}
	return text
}
