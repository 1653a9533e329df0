package normalize

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"validator-gw/internal/verdict"
)

// Limits in octets of what goes on the wire: the local part in UTF-8, the domain as A-labels.
const (
	// maxInput bounds what is looked at, white space at the edges included. Ours; four times the longest address.
	maxInput = 1024
	// maxLocal: RFC 5321 4.5.3.1.1.
	maxLocal = 64
	// maxLabel: RFC 1035 2.3.4.
	maxLabel = 63
	// maxDomain: 255 octets in the form of RFC 1035 2.3.4, less the root label and one length octet.
	maxDomain = 253
	// maxAddress: a path of 256 octets (RFC 5321 4.5.3.1.3) less its angle brackets; RFC 3696 erratum 1690.
	maxAddress = 254
)

// maxRepairs bounds how many repairs lead to one suggestion: "Bob <mailto:b@example.com>," takes three.
const maxRepairs = 3

// parser is one reading of a text.
type parser struct {
	rules   Rules
	repairs int  // how many repairs a suggestion may still take
	decoded bool // percent-encoding was undone; doing that twice would let text in that nobody has looked at
}

func (p parser) parse(raw string) (a Address, refusal *Refusal) {
	text, plain, reason := clean(raw)
	if reason != "" {
		return Address{}, refuse(reason)
	}
	local, domain, refusal := p.split(text, plain)
	if refusal != nil {
		return Address{}, refusal
	}
	if a.local, refusal = p.local(local, domain); refusal != nil {
		return Address{}, refusal
	}
	if a.domain, refusal = p.domain(local, domain); refusal != nil {
		return Address{}, refusal
	}
	if reason := p.checkLengths(text, a); reason != "" {
		return Address{}, refuse(reason)
	}
	switch reason := p.rules.allows(a.domain); reason {
	case "":
		return a, nil
	case verdict.TLDUnknown:
		return Address{}, p.refuseDomain(reason, a.local, repairTLD(a.domain))
	default:
		return Address{}, refuse(reason)
	}
}

func refuse(reason verdict.Reason) *Refusal { return &Refusal{Reason: reason} }

// refuse refuses with what can be made of the repaired text as the suggestion.
func (p parser) refuse(reason verdict.Reason, repaired string) *Refusal {
	return &Refusal{Reason: reason, Suggestion: p.suggest(repaired)}
}

// refuseDomain refuses with the better domain in place of the one typed, if there is one.
func (p parser) refuseDomain(reason verdict.Reason, local, better string) *Refusal {
	if better == "" {
		return refuse(reason)
	}
	return p.refuse(reason, local+"@"+better)
}

// suggest returns the address in a repaired text, after further repairs if there are some left, or nothing.
func (p parser) suggest(repaired string) string {
	if p.repairs == 0 {
		return ""
	}
	p.repairs--
	a, refusal := p.parse(repaired)
	if refusal != nil {
		return refusal.Suggestion
	}
	return a.Text()
}

// clean does all that comes before the split. A text that is all ASCII comes back in lower case, so that
// the rest of the way need not copy it. Plain says that it is ASCII that can hold neither quoting, nor a
// comment, nor anything wrapped.
func clean(raw string) (text string, plain bool, reason verdict.Reason) {
	if len(raw) > maxInput { // before all that takes longer for a longer text
		return "", false, verdict.AddressTooLong
	}
	found := kindsIn(raw)
	ascii := found&beyond == 0
	if !ascii && (!utf8.ValidString(raw) || strings.ContainsRune(raw, utf8.RuneError)) {
		// U+FFFD is what decoders, encoding/json among them, put in the place of bytes that were no UTF-8.
		return "", false, verdict.Encoding
	}
	text = raw
	if found&(void|beyond) != 0 {
		text = strings.TrimFunc(raw, isEdge)
	}
	if text == "" {
		return "", false, verdict.Empty
	}
	if found&void != 0 {
		for i := 0; i < len(text); i++ {
			if text[i] < ' ' || text[i] == 0x7f {
				return "", false, verdict.ControlChar
			}
		}
		text = closeUp(text)
		found = kindsIn(text)
	}
	if ascii {
		if found&capital != 0 {
			text = strings.ToLower(text)
		}
		return text, found&(void|other) == 0 && !hasMarks(text), ""
	}
	if strings.ContainsFunc(text, isBidiControl) {
		return "", false, verdict.BidiControl
	}
	return text, false, ""
}

// hasMarks says whether a text of atext, '.' and '@' may yet be an address in marks, or before one.
func hasMarks(text string) bool {
	switch text[0] {
	case '\'', '`', '{':
		return true
	}
	switch text[len(text)-1] {
	case '\'', '`', '}', '!', '?', '/':
		return true
	}
	return false
}

// Kinds of octets, for the one look that tells what a text needs.
const (
	capital uint8 = 1 << iota
	void          // white space and controls
	other         // ASCII that is neither atext, nor '.' or '@'
	beyond        // part of a character beyond ASCII
)

var kinds = func() (table [256]uint8) {
	for i := range table {
		switch c := byte(i); {
		case c >= utf8.RuneSelf:
			table[i] = beyond
		case c <= ' ' || c == 0x7f:
			table[i] = void
		case 'A' <= c && c <= 'Z':
			table[i] = capital
		case !isAtext(c) && c != '.' && c != '@':
			table[i] = other
		}
	}
	return table
}()

func kindsIn(s string) (found uint8) {
	for i := 0; i < len(s); i++ {
		found |= kinds[s[i]]
	}
	return found
}

// closeUp removes the spaces beside '@' and dots: there they are void (RFC 5322 4.4), anywhere else they
// separate words that must not be joined.
func closeUp(text string) string {
	if strings.IndexByte(text, ' ') < 0 {
		return text
	}
	isVoid := func(b byte) bool { return b == '@' || b == '.' }
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] != ' ' {
			out = append(out, text[i])
			continue
		}
		end := i + 1
		for end < len(text) && text[end] == ' ' {
			end++
		}
		if !isVoid(text[i-1]) && !isVoid(text[end]) { // the edges are trimmed: both neighbours exist
			out = append(out, text[i:end]...)
		}
		i = end - 1
	}
	return string(out)
}

func (p parser) checkLengths(text string, a Address) verdict.Reason {
	if len(a.local) > maxLocal && !p.rules.LongLocal {
		return verdict.LocalTooLong
	}
	if hasLongLabel(a.domain) {
		return verdict.LabelTooLong
	}
	if len(a.domain) > maxDomain {
		return verdict.DomainTooLong
	}
	// As typed too: a sender may as well use the U-labels.
	if len(a.local)+1+len(a.domain) > maxAddress || len(text) > maxAddress {
		return verdict.AddressTooLong
	}
	return ""
}

func hasLongLabel(name string) bool {
	for len(name) > maxLabel {
		dot := strings.IndexByte(name, '.')
		if dot < 0 || dot > maxLabel {
			return true
		}
		name = name[dot+1:]
	}
	return false
}

func isASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// isEdge says whether r is void at the edges: white space, and the invisible characters that copying from a
// web page, a word processor or a contact list brings along.
func isEdge(r rune) bool {
	if r < utf8.RuneSelf {
		return r == ' ' || '\t' <= r && r <= '\r'
	}
	switch r {
	case 0x00ad, // SOFT HYPHEN
		0x061c,                         // ARABIC LETTER MARK
		0x180e,                         // MONGOLIAN VOWEL SEPARATOR
		0x200b, 0x200c, 0x200d, 0x2060, // ZERO WIDTH SPACE, NON-JOINER, JOINER; WORD JOINER
		0x200e, 0x200f, // LEFT-TO-RIGHT and RIGHT-TO-LEFT MARK
		0x202a, 0x202b, 0x202c, // embeddings and their end; an override reorders what is read, so it stays
		0x2066, 0x2067, 0x2068, 0x2069, // isolates and their end
		0xfeff, // ZERO WIDTH NO-BREAK SPACE, the byte order mark
		0xfffc: // OBJECT REPLACEMENT CHARACTER, where a picture was
		return true
	}
	return unicode.IsSpace(r)
}

// isBidiControl says whether r is an embedding, an override, an isolate or the end of one.
func isBidiControl(r rune) bool {
	return 0x202a <= r && r <= 0x202e || 0x2066 <= r && r <= 0x2069
}
