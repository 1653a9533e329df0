package normalize

import (
	"strings"

	"validator-gw/internal/verdict"
)

// Flags returns what the text alone tells: SMTPUTF8, whether delivery needs that extension (RFC 6531) since
// the local part isn't ASCII, and Subaddressed, whether a '+' tag (RFC 5233) follows a non-empty user part.
// All other flags are Unknown.
func (a Address) Flags() verdict.Flags {
	return verdict.Flags{
		SMTPUTF8:     verdict.Known(!isASCII(a.local)),
		Subaddressed: verdict.Known(strings.IndexByte(a.local, '+') > 0),
	}
}
