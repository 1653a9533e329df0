package normalize

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// lookalikes are the letters that pass for letters of ASCII, as UTS 39 confusables or in capitals, which the
// mapping of domains turns into the lower case: who typed a Cyrillic capital VE has a small one here.
var lookalikes = map[rune]string{
	// Cyrillic
	'а': "a", 'в': "b", 'г': "r", 'ԁ': "d", 'е': "e", 'һ': "h", 'н': "h", 'і': "i", 'ӏ': "li", 'ј': "j", 'к': "k", 'м': "m",
	'о': "o", 'р': "p", 'ԛ': "q", 'с': "c", 'ѕ': "s", 'т': "t", 'у': "yu", 'ѵ': "v", 'ԝ': "w", 'х': "x", 'ь': "b", 'п': "n",
	'и': "u", 'ԍ': "g", 'ѡ': "w", 'ҽ': "e", 'ѳ': "o", 'ғ': "f",
	// Greek
	'α': "a", 'β': "b", 'γ': "y", 'ε': "e", 'ζ': "z", 'η': "nh", 'ι': "i", 'κ': "k", 'μ': "um", 'ν': "vn", 'ο': "o", 'ρ': "p",
	'σ': "o", 'ς': "c", 'τ': "t", 'υ': "uy", 'χ': "x", 'ω': "w", 'ϲ': "c", 'ϳ': "j",
	// Latin beyond ASCII that has no decomposition
	'ı': "il", 'ɑ': "a", 'ɡ': "g", 'ɩ': "i", 'ø': "o", 'ł': "l", 'đ': "d", 'ħ': "h",
}

// lookalike returns the provider that a domain in A-labels looks like, and whether letters of another script
// than Latin do it; nothing if it looks like none. Accents count for nothing.
func lookalike(domain string) (provider string, foreign bool) {
	if strings.Count(domain, ".") > domainLabels {
		return "", false
	}
	labels := strings.Split(domain, ".")
	for i, label := range labels {
		if strings.HasPrefix(label, acePrefix) {
			labels[i] = unicodeLabel(label)
		}
	}
	text := strings.Join(labels, ".")
	if utf8.RuneCountInString(text) > maxCompared {
		return "", false
	}
	shape := make([]rune, 0, maxCompared)
	for _, r := range norm.NFD.String(text) {
		if !unicode.Is(unicode.Mn, r) {
			shape = append(shape, r)
			foreign = foreign || unicode.In(r, unicode.Cyrillic, unicode.Greek)
		}
	}
	for _, t := range targets {
		if looksLike(shape, t.domain) {
			return t.domain, foreign
		}
	}
	for _, name := range protectedNames {
		if looksLike(shape, name) {
			return name, foreign
		}
	}
	return "", false
}

// looksLike compares letter by letter.
func looksLike(shape []rune, name string) bool {
	if len(shape) != len(name) {
		return false
	}
	for i, r := range shape {
		if r != rune(name[i]) && (r < utf8.RuneSelf || strings.IndexByte(lookalikes[r], name[i]) < 0) {
			return false
		}
	}
	return true
}
