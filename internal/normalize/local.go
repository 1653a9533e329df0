package normalize

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"
	"golang.org/x/text/cases"
	"golang.org/x/text/language"
	"golang.org/x/text/unicode/norm"

	"validator-gw/internal/verdict"
)

// local returns the normal form of a local part: a dot-atom (RFC 5322 3.2.3) with the characters beyond ASCII
// that RFC 6532 adds, in NFC and lower case. domain is for suggestions only.
//
// Lower case is our choice: RFC 5321 2.4 leaves the case of a local part to its host and in the same breath
// advises against using that.
func (p parser) local(text, domain string) (string, *Refusal) {
	if reason := checkLocal(text); reason != "" {
		switch reason {
		case verdict.InvisibleChar:
			shown := strings.Map(dropShapeless, text) // joiners may have their place once the rest is gone
			if shown == text {
				shown = strings.Map(dropInvisible, text)
			}
			return "", p.refuse(reason, shown+"@"+domain)
		case verdict.FullwidthLocal:
			return "", p.refuse(reason, narrow(text)+"@"+domain)
		case verdict.SmartPunctuation:
			return "", p.refuse(reason, straighten(text)+"@"+domain)
		case verdict.ConfusableLocal:
			if len(text) <= maxAddress { // NFKC makes text longer, too
				return "", p.refuse(reason, norm.NFKC.String(text)+"@"+domain)
			}
		case verdict.WhitespaceInside:
			// A blank that is no U+0020 is void beside '@' and dots in the eyes of whoever typed it.
			if plain := strings.Map(plainSpace, text); plain != text {
				return "", p.refuse(reason, plain+"@"+domain)
			}
		}
		return "", refuse(reason)
	}
	if isASCII(text) {
		return strings.ToLower(text), nil
	}
	if len(text) > maxAddress {
		// Refused whatever it folds to, and folding takes its time.
		if p.rules.LongLocal {
			return "", refuse(verdict.AddressTooLong)
		}
		return "", refuse(verdict.LocalTooLong)
	}
	folded := foldLocal(text)
	// What was fine apart need not be fine together.
	if reason := checkLocal(folded); reason != "" {
		return "", refuse(reason)
	}
	return folded, nil
}

// checkLocal returns why text can't be a local part, or nothing. The first character that can't be in one
// decides, then the dots.
func checkLocal(text string) verdict.Reason {
	if text == "" {
		return verdict.LocalEmpty
	}
	before := rune(0)
	for _, r := range text {
		if r < utf8.RuneSelf {
			if !isAtext(byte(r)) && r != '.' {
				if r == ' ' {
					return verdict.WhitespaceInside
				}
				return verdict.LocalChar
			}
		} else if reason := checkLocalRune(r, before); reason != "" && (!isJoiner(r) || !joins(text)) {
			return reason
		}
		before = r
	}
	if text[0] == '.' || text[len(text)-1] == '.' || strings.Contains(text, "..") {
		return verdict.LocalDot
	}
	return ""
}

// checkLocalRune judges a character beyond ASCII, which follows before (0 at the start). RFC 6532 allows them
// all; what is refused here can't be seen, can't be exchanged, or turns into something else.
func checkLocalRune(r, before rune) verdict.Reason {
	switch {
	case unicode.Is(unicode.Cc, r): // C1, NEL among them
		return verdict.LocalChar
	case unicode.IsSpace(r):
		return verdict.WhitespaceInside
	case r == emojiSelector && unicode.Is(unicode.So, before):
		return "" // part of an emoji such as U+2764 U+FE0F, and put there by the keyboard
	case isInvisible(r):
		return verdict.InvisibleChar
	case unicode.Is(unicode.Co, r), unicode.Is(unicode.Noncharacter_Code_Point, r):
		return verdict.LocalChar
	case before == 0 && unicode.Is(unicode.M, r): // would combine with whatever is put before the address
		return verdict.LocalChar
	case narrowRune(r) != r:
		return verdict.FullwidthLocal
	case isSmart(r):
		return verdict.SmartPunctuation
	case becomesASCII(r), isStyled(r):
		return verdict.ConfusableLocal
	}
	return ""
}

// foldLocal returns NFC (RFC 6532 3.1; never NFKC, which joins different addresses) in lower case by the full
// mappings of Unicode: U+0130 becomes i and a combining dot, and stays different from a plain i.
func foldLocal(text string) string {
	// Composed first: whether a sigma is the last of its word is looked up in x/text within a bound that is in octets,
	// so the same word, decomposed, could end in another letter. And composed again: lower case may take apart.
	// A Caser holds state, so each call has its own.
	return norm.NFC.String(cases.Lower(language.Und).String(norm.NFC.String(text)))
}

// becomesASCII says whether NFC or lower case turns r into ASCII, so that an address typed with it would be
// another's. These are all there are in Unicode; a test holds that.
func becomesASCII(r rune) bool {
	return r == 0x037e || // GREEK QUESTION MARK, to ';'
		r == 0x1fef || // GREEK VARIA, to '`'
		r == 0x212a // KELVIN SIGN, to 'k'
}

// isStyled says whether r is a Latin letter in the dress of print, which nobody has in an address: a ligature,
// as copied from a PDF, or a mathematical letter or digit, as "fancy text" is made of.
func isStyled(r rune) bool { return 0xfb00 <= r && r <= 0xfb06 || 0x1d400 <= r && r <= 0x1d7ff }

const emojiSelector = 0xfe0f

// isInvisible says whether r is meant to have no shape of its own: zero-width characters, fillers, tags,
// variation selectors, formats, and what stands for a picture or for a blank. The few format characters that
// are drawn (around Arabic numbers) are not.
func isInvisible(r rune) bool {
	return unicode.Is(unicode.Cf, r) && !unicode.Is(unicode.Prepended_Concatenation_Mark, r) ||
		unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) ||
		unicode.Is(unicode.Variation_Selector, r) ||
		r == 0xfffc || // OBJECT REPLACEMENT CHARACTER
		r == 0x2800 // BRAILLE PATTERN BLANK
}

// isJoiner says whether r is ZERO WIDTH NON-JOINER or ZERO WIDTH JOINER.
func isJoiner(r rune) bool { return r == 0x200c || r == 0x200d }

// joiners validates the joiners of a label by the rules of RFC 5892 A.1 and A.2, and little else.
var joiners = idna.New(idna.CheckJoiners(true))

// joins says whether all joiners in a local part stand where they change a letter's shape, as spelling in
// Persian and in Indic scripts asks for. It is what UTS 46 asks of them in a domain.
func joins(text string) bool {
	if len(text) > maxAddress {
		return false // refused anyhow, and the time that this takes grows with the square of the length
	}
	_, err := joiners.ToASCII(text)
	return err == nil
}

// straightRune returns the ASCII that word processors and phones turn into r while someone types, or r.
func straightRune(r rune) rune {
	switch r {
	case '‘', '’', '‚', '‛', '′', '‵', '´':
		return '\''
	case '“', '”', '„', '‟', '″', '‶', '«', '»':
		return '"'
	case 0x2010, 0x2011, 0x2012, 0x2013, 0x2014, 0x2015, // HYPHEN, its NON-BREAKING form, FIGURE, EN and EM DASH, BAR
		0x2212, 0xfe58: // MINUS SIGN, SMALL EM DASH
		return '-'
	}
	return r
}

// isSmart says whether r comes from such a replacement. An ellipsis does, too, and can't be undone: no address
// has three dots. The letters that only look like it, as U+02BC in Breton and Ukrainian, do not.
func isSmart(r rune) bool { return r >= utf8.RuneSelf && (r == '…' || straightRune(r) != r) }

func straighten(text string) string { return strings.Map(straightRune, text) }

func plainSpace(r rune) rune {
	if r >= utf8.RuneSelf && unicode.IsSpace(r) {
		return ' '
	}
	return r
}

func dropInvisible(r rune) rune {
	if r >= utf8.RuneSelf && isInvisible(r) {
		return -1
	}
	return r
}

// dropShapeless is dropInvisible but for joiners.
func dropShapeless(r rune) rune {
	if isJoiner(r) {
		return r
	}
	return dropInvisible(r)
}

// narrow returns text with the fullwidth forms of ASCII, and the '@' and dots that input methods make, as
// ASCII.
func narrow(text string) string { return strings.Map(narrowRune, text) }

func narrowRune(r rune) rune {
	switch {
	case 0xff01 <= r && r <= 0xff5e: // FULLWIDTH EXCLAMATION MARK to FULLWIDTH TILDE, in the order of ASCII
		return r - 0xff01 + '!'
	case r == 0xfe6b: // SMALL COMMERCIAL AT
		return '@'
	case r == 0x3002, r == 0xff61: // IDEOGRAPHIC FULL STOP and its halfwidth form
		return '.'
	case r == 0x3000: // IDEOGRAPHIC SPACE
		return ' '
	}
	return r
}

// isAtext says whether c is ASCII that an atom may hold (RFC 5322 3.2.3).
func isAtext(c byte) bool { return c < utf8.RuneSelf && atext[c] }

var atext = func() (table [utf8.RuneSelf]bool) {
	for c := range byte(utf8.RuneSelf) {
		table[c] = 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
			strings.IndexByte("!#$%&'*+-/=?^_`{|}~", c) >= 0
	}
	return table
}()
