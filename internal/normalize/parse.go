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

// Parse returns the normalized address in raw. Its error is always a *Refusal.
func Parse(raw string) (Address, error) {
	a, refusal := parser{repairs: maxRepairs}.parse(raw)
	if refusal != nil {
		return Address{}, refusal
	}
	return a, nil
}

// parser is one reading of a text; repairs is how many repairs a suggestion may still take.
type parser struct {
	repairs int
}

func (p parser) parse(raw string) (Address, *Refusal) {
	text, reason := clean(raw)
	if reason != "" {
		return Address{}, refuse(reason)
	}
	local, domain, refusal := p.split(text)
	if refusal != nil {
		return Address{}, refusal
	}
	a := Address{}
	if a.local, refusal = p.local(local, domain); refusal != nil {
		return Address{}, refusal
	}
	if a.domain, refusal = p.domain(local, domain); refusal != nil {
		return Address{}, refusal
	}
	if reason := checkLengths(text, a); reason != "" {
		return Address{}, refuse(reason)
	}
	if reason := checkTLD(a.domain); reason != "" {
		return Address{}, refuse(reason)
	}
	return a, nil
}

func refuse(reason verdict.Reason) *Refusal { return &Refusal{Reason: reason} }

// refuse refuses with what can be made of the repaired text as the suggestion.
func (p parser) refuse(reason verdict.Reason, repaired string) *Refusal {
	return &Refusal{Reason: reason, Suggestion: p.suggest(repaired)}
}

// suggest returns the address in a repaired text, after further repairs if there are some left, or nothing.
func (p parser) suggest(repaired string) string {
	if p.repairs == 0 {
		return ""
	}
	a, refusal := parser{repairs: p.repairs - 1}.parse(repaired)
	if refusal != nil {
		return refusal.Suggestion
	}
	return a.Text()
}

// clean does all that comes before the split. A text that is all ASCII comes back in lower case, so that
// the rest of the way need not copy it.
func clean(raw string) (string, verdict.Reason) {
	if len(raw) > maxInput {
		return "", verdict.AddressTooLong
	}
	ascii := isASCII(raw)
	if !ascii && (!utf8.ValidString(raw) || strings.ContainsRune(raw, utf8.RuneError)) {
		// U+FFFD is what decoders, encoding/json among them, put in the place of bytes that were no UTF-8.
		return "", verdict.Encoding
	}
	text := strings.TrimFunc(raw, isEdge)
	if text == "" {
		return "", verdict.Empty
	}
	for i := 0; i < len(text); i++ {
		if text[i] < ' ' || text[i] == 0x7f {
			return "", verdict.ControlChar
		}
	}
	text = closeUp(text)
	if ascii {
		return strings.ToLower(text), ""
	}
	if strings.ContainsFunc(text, isBidiControl) {
		return "", verdict.BidiControl
	}
	return text, ""
}

// closeUp removes the spaces beside '@' and dots: there they are void (RFC 5322 4.4), anywhere else they
// separate words that must not be joined.
func closeUp(text string) string {
	if strings.IndexByte(text, ' ') < 0 {
		return text
	}
	void := func(b byte) bool { return b == '@' || b == '.' }
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
		if !void(text[i-1]) && !void(text[end]) { // the edges are trimmed: both neighbours exist
			out = append(out, text[i:end]...)
		}
		i = end - 1
	}
	return string(out)
}

func checkLengths(text string, a Address) verdict.Reason {
	if len(a.local) > maxLocal {
		return verdict.LocalTooLong
	}
	if len(a.domain) > maxLabel { // else no label can be
		for label := range strings.SplitSeq(a.domain, ".") {
			if len(label) > maxLabel {
				return verdict.LabelTooLong
			}
		}
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
		0xfeff: // ZERO WIDTH NO-BREAK SPACE, the byte order mark
		return true
	}
	return unicode.IsSpace(r)
}

// isBidiControl says whether r is an embedding, an override, an isolate or the end of one.
func isBidiControl(r rune) bool {
	return 0x202a <= r && r <= 0x202e || 0x2066 <= r && r <= 0x2069
}
