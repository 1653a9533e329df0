package normalize

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// ErrNotStored: the text is not what Text returns for any address.
var ErrNotStored = errors.New("stored text is no normalized address")

// Restore reads back what Text returned, for stores that keep an address sealed. It trusts that the text was
// normalized once and does not parse it again, since the rules of today must not lose an address that the
// rules of then let in; it checks only that there is one local part and one domain. Its only error is
// ErrNotStored, which does not quote the text.
func Restore(text string) (Address, error) {
	local, domain, ok := strings.Cut(text, "@")
	if !ok || local == "" || domain == "" || strings.Contains(domain, "@") || !utf8.ValidString(text) {
		return Address{}, ErrNotStored
	}
	return Address{local: local, domain: domain}, nil
}
