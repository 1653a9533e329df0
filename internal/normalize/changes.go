package normalize

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
	"golang.org/x/text/unicode/norm"
)

// Changes is the set of what was done to an accepted text to make it normal. It is empty when the text was
// normal already.
type Changes uint8

// What can be done to a text.
const (
	Trimmed          Changes = 1 << iota // white space at the edges was cut
	InvisibleRemoved                     // characters without a shape were cut from the edges, or dropped from the domain by UTS 46
	SpaceRemoved                         // spaces beside '@' or a dot were dropped
	LowerCased                           // capital letters were made small
	Composed                             // the text was put into NFC
	WidthFolded                          // full-width letters and dots of the domain were made ASCII
	IDNMapped                            // the domain was written in A-labels, or other characters of it mapped by UTS 46
)

var changeNames = [...]string{"trimmed", "invisible_removed", "space_removed", "lower_cased", "nfc", "width_folded", "idn_mapped"}

// Names returns the names of the changes, in the order above and never nil: trimmed, invisible_removed,
// space_removed, lower_cased, nfc, width_folded, idn_mapped.
func (c Changes) Names() []string {
	names := make([]string, 0, len(changeNames))
	for i, name := range changeNames {
		if c&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// changesOf returns what parsing did to raw, which it accepted. It looks at the text and not at the work, so
// that Parse, which is called for every request, need not keep a record.
func changesOf(raw string) (c Changes) {
	text := strings.TrimFunc(raw, isEdge)
	start := strings.Index(raw, text)
	for _, edge := range []string{raw[:start], raw[start+len(text):]} {
		for _, r := range edge {
			if unicode.IsSpace(r) {
				c |= Trimmed
			} else {
				c |= InvisibleRemoved
			}
		}
	}
	closed := closeUp(text)
	if closed != text {
		c |= SpaceRemoved
	}

	local, domain, _ := strings.Cut(closed, "@")
	lower := cases.Lower(language.Und).String(local)
	if lower != local {
		c |= LowerCased
	}
	if !norm.NFC.IsNormalString(lower) {
		c |= Composed
	}
	if !norm.NFC.IsNormalString(domain) {
		c |= Composed
	}
	for _, r := range domain {
		switch {
		case r < utf8.RuneSelf:
			if 'A' <= r && r <= 'Z' {
				c |= LowerCased
			}
		case narrowRune(r) != r:
			c |= WidthFolded
			if n := narrowRune(r); 'A' <= n && n <= 'Z' {
				c |= LowerCased
			}
		case isInvisible(r) && !isJoiner(r): // a joiner that was let in has a shape, and stays
			c |= InvisibleRemoved
		default:
			c |= IDNMapped
			if unicode.IsUpper(r) {
				c |= LowerCased
			}
		}
	}
	return c
}
