package normalize

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"validator-gw/internal/verdict"
)

// split finds the one '@' of an address. Whatever stands around or beside an address is refused here, the
// address in it being the suggestion; both parts come back as typed.
func (p parser) split(text string, plain bool) (local, domain string, refusal *Refusal) {
	// The common case, an address and nothing else, needs no closer look.
	at := strings.IndexByte(text, '@')
	if at < 0 || strings.IndexByte(text[at+1:], '@') >= 0 || !plain {
		if refusal = p.around(text); refusal != nil {
			return "", "", refusal
		}
		bare := maskQuoted(text)
		at = strings.IndexByte(bare, '@')
		if quoted := bare[:at] != text[:at]; quoted {
			return "", "", p.refuse(verdict.QuotedLocal, unquote(text[:at])+text[at:])
		}
	}
	switch {
	case at == 0:
		return "", "", refuse(verdict.LocalEmpty)
	case at == len(text)-1:
		return "", "", refuse(verdict.DomainEmpty)
	}
	return text[:at], text[at+1:], nil
}

// around refuses text that is not an address alone. If it refuses nothing, text has exactly one '@' outside
// quoted strings.
func (p parser) around(text string) *Refusal {
	if to, ok := p.cutScheme(text); ok {
		p.decoded = true
		return p.refuse(verdict.URIScheme, to)
	}
	if inner, ok := unwrap(text); ok {
		return p.refuse(verdict.Wrapped, inner)
	}
	if rest, ok := cutBullet(text); ok {
		return p.refuse(verdict.Wrapped, rest)
	}
	bare := maskQuoted(text)
	if refusal := p.displayName(text, bare); refusal != nil {
		return refusal
	}
	ats := strings.Count(bare, "@")
	if ats > 1 {
		if first, same, ok := severalIn(bare); ok && same && bare == text {
			return p.refuse(verdict.MultipleAddresses, first) // pasted twice
		} else if ok {
			return refuse(verdict.MultipleAddresses)
		}
	}
	if ats > 0 {
		if rest, inside, ok := cutComment(text, bare); ok {
			if inside { // a comment between two words: which of them were meant is a guess
				return refuse(verdict.Comment)
			}
			return p.refuse(verdict.Comment, rest)
		}
		if rest, ok := cutPunct(text, bare); ok {
			return p.refuse(verdict.TrailingPunct, rest)
		}
	}
	if strings.Contains(bare, "＠") || strings.Contains(bare, "﹫") {
		return p.refuse(verdict.FullwidthAt, narrow(text))
	}
	switch {
	case ats == 0 && strings.Contains(bare, "%40"):
		decoded := p.decode(text)
		p.decoded = true
		return p.refuse(verdict.PercentEncoded, decoded)
	case ats == 0:
		return refuse(verdict.MissingAt)
	case ats == 2 && strings.Contains(bare, "@@"):
		return p.refuse(verdict.MultipleAt, strings.Replace(text, "@@", "@", 1))
	case ats == 2 && bare == text:
		// A form that adds the domain by itself, and someone who typed it, too.
		parts := strings.Split(text, "@")
		if strings.EqualFold(parts[1], parts[2]) {
			return p.refuse(verdict.MultipleAt, parts[0]+"@"+parts[1])
		}
		return refuse(verdict.MultipleAt)
	case ats > 1:
		return refuse(verdict.MultipleAt)
	}
	return nil
}

// cutScheme returns the first recipient part of a mailto: URI (RFC 6068), percent-decoded, or what follows the
// label of a form that was copied with the address. The URI and an '@' that is missing are the only places where
// percent-encoding is decoded, and in one reading once.
func (p parser) cutScheme(text string) (string, bool) {
	scheme, rest, ok := strings.Cut(text, ":")
	if !ok || len(scheme) > len("mailto") {
		return "", false
	}
	switch strings.ToLower(scheme) {
	case "mailto":
		to, _, _ := strings.Cut(strings.TrimPrefix(rest, "//"), "?")
		return p.decode(to), true
	case "email", "e-mail", "mail":
		return rest, true
	}
	return "", false
}

// bullets are what lists put before an address.
var bullets = []string{"•", "· ", "- ", "* ", "– ", "— "}

// cutBullet returns text without the bullet of a list before it.
func cutBullet(text string) (string, bool) {
	for _, bullet := range bullets {
		if rest, ok := strings.CutPrefix(text, bullet); ok {
			return rest, hasAt(rest)
		}
	}
	return "", false
}

// decode undoes percent-encoding, and returns nothing if there is something else than that after a '%', or if
// it was done before.
func (p parser) decode(text string) string {
	switch {
	case strings.IndexByte(text, '%') < 0:
		return text
	case p.decoded:
		return ""
	}
	decoded, err := url.PathUnescape(text) // not QueryUnescape: '+' is itself here
	if err != nil {
		return ""
	}
	return decoded
}

// wrappers are the pairs that people and programs put round an address.
var wrappers = map[rune]rune{
	'<': '>', '(': ')', '[': ']', '{': '}', '"': '"', '\'': '\'', '`': '`',
	'“': '”', '„': '“', '‘': '’', '«': '»', '‹': '›', '＜': '＞', '（': '）', '「': '」', '〈': '〉',
}

// maxWrappers bounds how many pairs may be round an address: more are no slip of the hand.
const maxWrappers = 3

// unwrap returns what a pair of wrappers holds, if that is the whole text and may be an address, or what
// follows an opening one that was never closed. A pair may be in another.
func unwrap(text string) (string, bool) {
	for range maxWrappers {
		open, n := utf8.DecodeRuneInString(text)
		end, m := utf8.DecodeLastRuneInString(text)
		closing, ok := wrappers[open]
		if !ok || len(text) <= n+m {
			return "", false
		}
		inner := text[n : len(text)-m]
		switch {
		case closing != end:
			half := text[n:]
			return half, strings.ContainsRune(`<(["“„«＜（`, open) && !strings.ContainsRune(half, closing) && hasAt(half)
		case !hasAt(inner):
			return "", false
		case !strings.ContainsRune(inner, open) && !strings.ContainsRune(inner, end):
			return inner, true
		}
		text = inner // two pairs side by side, or a pair in a pair
	}
	return "", false
}

// hasAt says whether text has an '@' of any width.
func hasAt(text string) bool {
	return strings.IndexByte(text, '@') >= 0 || strings.Contains(text, "＠") || strings.Contains(text, "﹫")
}

// displayName refuses `name <address>` (RFC 5322 3.4), with or without quotes round the name.
func (p parser) displayName(text, bare string) *Refusal {
	open := strings.LastIndexByte(bare, '<')
	if open <= 0 || bare[len(bare)-1] != '>' {
		return nil
	}
	inner := text[open+1 : len(text)-1]
	if !hasAt(inner) {
		return nil
	}
	suggestion := p.suggest(inner)
	if name := text[:open]; strings.Contains(bare[:open], "@") && (suggestion == "" || p.suggest(name) != suggestion) {
		// The name is an address too, and another one.
		return refuse(verdict.MultipleAddresses)
	}
	return &Refusal{Reason: verdict.DisplayName, Suggestion: suggestion}
}

// severalIn says whether two words or more of the text look like addresses, which one comes first, and whether
// all are the same.
func severalIn(bare string) (first string, same, ok bool) {
	found := 0
	same = true
	for word := range strings.FieldsFuncSeq(bare, isSeparator) {
		if at := strings.IndexByte(word, '@'); at <= 0 || at == len(word)-1 {
			continue
		}
		if found++; found == 1 {
			first = word
		}
		same = same && strings.EqualFold(word, first)
	}
	return first, same, found > 1
}

func isSeparator(r rune) bool {
	return strings.ContainsRune(",;:/|&\\<>()，；、", r) || unicode.IsSpace(r)
}

// cutComment returns text without its comment (RFC 5322 3.2.2), if it has one in a place where a comment may
// stand: at an edge of the local part or of the domain. Inside tells that it was next to '@'.
func cutComment(text, bare string) (rest string, inside, ok bool) {
	open := strings.IndexByte(bare, '(')
	if open < 0 {
		return "", false, false
	}
	end, depth := -1, 0
	for i := open; i < len(bare) && end < 0; i++ {
		switch bare[i] {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				end = i + 1
			}
		}
	}
	if end < 0 {
		return "", false, false
	}
	atEdge := open == 0 || end == len(bare)
	inside = !atEdge && (bare[open-1] == '@' || bare[end] == '@')
	if !atEdge && !inside {
		return "", false, false
	}
	return text[:open] + text[end:], inside, true
}

// cutPunct returns text without the punctuation that a sentence, a list or a half-copied pair of marks left at
// its end. No domain ends in any of it.
func cutPunct(text, bare string) (string, bool) {
	if rest := strings.TrimRight(text, `,;:!?/\，；：、！？ `); rest != text {
		return rest, true
	}
	end, n := utf8.DecodeLastRuneInString(bare)
	if opening, ok := openers[end]; ok && !strings.ContainsRune(bare[:len(bare)-n], opening) {
		return strings.TrimRight(text, string(end)), true
	}
	return text, false
}

// openers are the other way round of wrappers.
var openers = map[rune]rune{
	'>': '<', ')': '(', ']': '[', '}': '{', '"': '"', '\'': '\'', '”': '“', '“': '„', '’': '‘', '»': '«', '›': '‹', '＞': '＜', '）': '（',
}

// maskQuoted returns text with every quoted string (RFC 5322 3.2.4) overwritten by as many letters, so that
// what it holds is not taken for structure. An opening quote without an end quotes nothing.
func maskQuoted(text string) string {
	if strings.IndexByte(text, '"') < 0 {
		return text
	}
	masked := []byte(text)
	for i := 0; i < len(text); i++ {
		if text[i] != '"' {
			continue
		}
		end := i + 1
		for end < len(text) && text[end] != '"' {
			if text[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(text) {
			break
		}
		for j := i; j <= end; j++ {
			masked[j] = 'q'
		}
		i = end
	}
	return string(masked)
}

// unquote returns what a quoted local part holds if it needs no quoting, so that both are the same address
// (RFC 5321 4.1.2), or else the local part unchanged.
func unquote(local string) string {
	inner := strings.TrimSuffix(strings.TrimPrefix(local, `"`), `"`)
	if len(inner) != len(local)-2 {
		return local
	}
	return inner // an inner quote, space or backslash is refused when the suggestion is parsed
}
