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
func (p parser) split(text string) (local, domain string, refusal *Refusal) {
	// The common case, an address and nothing else, needs no closer look.
	at := strings.IndexByte(text, '@')
	if at < 0 || strings.IndexByte(text[at+1:], '@') >= 0 || !isPlain(text) {
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

// isPlain says whether text is ASCII that can hold neither quoting, nor a comment, nor anything wrapped.
func isPlain(text string) bool {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c >= utf8.RuneSelf:
			return false
		case isAtext(c), c == '.', c == '@':
		default:
			return false
		}
	}
	return text[0] != '\'' && text[0] != '`' && text[0] != '{'
}

// around refuses text that is not an address alone. If it refuses nothing, text has exactly one '@' outside
// quoted strings.
func (p parser) around(text string) *Refusal {
	if to, ok := cutScheme(text); ok {
		return p.refuse(verdict.URIScheme, to)
	}
	if inner, ok := unwrap(text); ok {
		return p.refuse(verdict.Wrapped, inner)
	}
	bare := maskQuoted(text)
	if refusal := p.displayName(text, bare); refusal != nil {
		return refusal
	}
	ats := strings.Count(bare, "@")
	if ats > 1 && hasSeveral(bare) {
		return refuse(verdict.MultipleAddresses)
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
	if strings.ContainsAny(bare, "＠﹫") {
		return p.refuse(verdict.FullwidthAt, narrow(text))
	}
	switch {
	case ats == 0:
		return refuse(verdict.MissingAt)
	case ats == 2 && strings.Contains(bare, "@@"):
		return p.refuse(verdict.MultipleAt, strings.Replace(text, "@@", "@", 1))
	case ats > 1:
		return refuse(verdict.MultipleAt)
	}
	return nil
}

// cutScheme returns the first recipient part of a mailto: URI (RFC 6068), percent-decoded. It is the only
// place where percent-encoding is decoded, and once.
func cutScheme(text string) (string, bool) {
	const scheme = "mailto:"
	if len(text) < len(scheme) || !strings.EqualFold(text[:len(scheme)], scheme) {
		return "", false
	}
	to, _, _ := strings.Cut(text[len(scheme):], "?")
	decoded, err := url.PathUnescape(to) // not QueryUnescape: '+' is itself here
	if err != nil {
		return "", true
	}
	return decoded, true
}

// wrappers are the pairs that people and programs put round an address.
var wrappers = map[rune]rune{
	'<': '>', '(': ')', '[': ']', '{': '}', '"': '"', '\'': '\'', '`': '`',
	'“': '”', '„': '“', '‘': '’', '«': '»', '‹': '›', '＜': '＞', '（': '）', '「': '」', '〈': '〉',
}

// unwrap returns what one pair of wrappers holds, if that is the whole text and may be an address.
func unwrap(text string) (string, bool) {
	open, n := utf8.DecodeRuneInString(text)
	end, m := utf8.DecodeLastRuneInString(text)
	if closing, ok := wrappers[open]; !ok || closing != end || len(text) <= n+m {
		return "", false
	}
	inner := text[n : len(text)-m]
	if !strings.ContainsAny(inner, "@＠﹫") || strings.ContainsAny(inner, string([]rune{open, end})) {
		return "", false
	}
	return inner, true
}

// displayName refuses `name <address>` (RFC 5322 3.4), with or without quotes round the name.
func (p parser) displayName(text, bare string) *Refusal {
	open := strings.LastIndexByte(bare, '<')
	if open <= 0 || bare[len(bare)-1] != '>' {
		return nil
	}
	inner := text[open+1 : len(text)-1]
	if !strings.ContainsAny(inner, "@＠﹫") {
		return nil
	}
	suggestion := p.suggest(inner)
	if name := text[:open]; strings.Contains(bare[:open], "@") && (suggestion == "" || p.suggest(name) != suggestion) {
		// The name is an address too, and another one.
		return refuse(verdict.MultipleAddresses)
	}
	return &Refusal{Reason: verdict.DisplayName, Suggestion: suggestion}
}

// hasSeveral says whether two words or more of the text look like addresses.
func hasSeveral(bare string) bool {
	found := 0
	for word := range strings.FieldsFuncSeq(bare, isSeparator) {
		if at := strings.IndexByte(word, '@'); at > 0 && at < len(word)-1 {
			found++
		}
	}
	return found > 1
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

// cutPunct returns text without the punctuation that a sentence or a list left at its end.
func cutPunct(text, bare string) (string, bool) {
	rest := strings.TrimRight(text, ",;: ")
	if rest == text && !strings.Contains(bare, "<") {
		rest = strings.TrimRight(text, ">")
	}
	if rest == text && !strings.Contains(bare, "(") {
		rest = strings.TrimRight(text, ")")
	}
	return rest, rest != text
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
