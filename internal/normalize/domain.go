package normalize

import (
	"strings"
	"unicode"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"
	"golang.org/x/text/unicode/norm"

	"validator-gw/internal/verdict"
)

// profile maps a domain by UTS 46, non-transitional, and validates it: STD3 characters, hyphens, joiners, the
// Bidi rule (RFC 5893). Lengths and empty labels are checked on the result, to tell them apart.
var profile = idna.New(
	idna.MapForLookup(),
	idna.Transitional(false),
	idna.BidiRule(),
	idna.StrictDomainName(true),
	idna.CheckHyphens(true),
	idna.VerifyDNSLength(false),
)

const acePrefix = "xn--"

// domain returns the normal form of a domain: at least two labels in lower case, A-labels where they are not
// ASCII, without a trailing dot. local is for suggestions only.
func (p parser) domain(local, text string) (string, *Refusal) {
	if text[0] == '[' && text[len(text)-1] == ']' {
		return "", refuse(verdict.IPLiteral)
	}
	name, reason := hostName(text)
	switch reason {
	case "":
		return name, nil
	case verdict.DomainDot:
		bare := strings.Join(strings.FieldsFunc(text, isDot), ".")
		return "", p.refuseDomain(reason, local, bare)
	case verdict.DomainChar:
		if dotted := strings.Map(commaToDot, text); dotted != text && !strings.ContainsFunc(text, unicode.IsSpace) {
			return "", p.refuseDomain(reason, local, dotted)
		}
	case verdict.WhitespaceInside:
		// A space alone, and no dot: that was one. Beside a dot it could part two words of a sentence.
		if first, last, ok := strings.Cut(text, " "); ok && !strings.ContainsFunc(text, isDot) {
			return "", p.refuseDomain(reason, local, first+"."+last)
		}
	case verdict.SmartPunctuation:
		shown, _ := idna.Punycode.ToUnicode(text)
		return "", p.refuseDomain(reason, local, straighten(shown))
	case verdict.DomainNoDot:
		return "", p.refuseDomain(reason, local, completeDomain(name))
	}
	return "", refuse(reason)
}

// isDot says whether UTS 46 takes r for a dot between labels.
func isDot(r rune) bool { return r == '.' || r == '。' || r == '．' || r == '｡' }

// commaToDot returns a dot for what may have been typed in place of one.
func commaToDot(r rune) rune {
	switch r {
	case ',', ';', '，', '；', '、':
		return '.'
	}
	return r
}

// hostName returns text as a host name, or why it is none. The name is there, too, when all that it lacks is
// a dot.
func hostName(text string) (string, verdict.Reason) {
	name, reason := wireName(text)
	if reason != "" {
		return "", reason
	}
	dot := strings.LastIndexByte(name, '.')
	switch {
	case dot < 0:
		return name, verdict.DomainNoDot
	case isDigits(name[dot+1:]):
		return "", verdict.TLDNumeric
	}
	return name, ""
}

// wireName returns what text is in the DNS, one label or more, or why it can't be in it. Lengths are left to
// the caller.
func wireName(text string) (string, verdict.Reason) {
	ascii := isASCII(text)
	name := strings.ToLower(text)
	if !ascii {
		var reason verdict.Reason
		if name, reason = toASCII(text); reason != "" {
			return "", reason
		}
	}
	if reason := checkHostChars(name); reason != "" {
		return "", reason
	}
	if reason := checkLabels(name); reason != "" {
		return "", reason
	}
	// What is too long is refused for that, and the time that punycode takes grows with the square of the length.
	if strings.Contains(name, acePrefix) && len(name) <= maxDomain && !hasLongLabel(name) {
		// An A-label must be the one way to write what it stands for. This is also the second conversion of
		// names that were converted, which the first doesn't fully vouch for (golang/go#81525).
		if again, err := profile.ToASCII(name); err != nil || again != name {
			return "", verdict.IDNInvalid
		}
		if ascii && hidesSmart(name) { // toASCII saw to all else
			return "", verdict.SmartPunctuation
		}
	}
	return name, ""
}

// hidesSmart says whether A-labels stand for smart punctuation.
func hidesSmart(name string) bool {
	shown, _ := idna.Punycode.ToUnicode(name)
	return strings.ContainsFunc(shown, isSmart)
}

// toASCII maps a name that is not ASCII. The result still needs to be checked.
func toASCII(text string) (string, verdict.Reason) {
	if reason := checkHostChars(text); reason != "" {
		return "", reason
	}
	if len(text) > maxAddress {
		// Refused whatever it maps to, and the time that punycode takes grows with the square of the length.
		return "", verdict.AddressTooLong
	}
	mapped := skeleton(text)
	if strings.ContainsFunc(mapped, isSmart) {
		return "", verdict.SmartPunctuation
	}
	for label := range strings.SplitSeq(mapped, ".") {
		switch {
		case !strings.HasPrefix(label, acePrefix):
		case !isASCII(label):
			return "", verdict.IDNInvalid // idna decodes it all the same (golang/go#81116)
		case hidesSmart(label):
			return "", verdict.SmartPunctuation
		}
	}
	name, err := profile.ToASCII(text)
	if err != nil { // then name is worth nothing
		reason := checkHostChars(mapped)
		if reason == "" {
			reason = checkLabels(mapped)
		}
		if reason != verdict.DomainChar && reason != verdict.DomainDot && reason != verdict.DomainHyphen {
			reason = verdict.IDNInvalid
		}
		return "", reason
	}
	return name, ""
}

// skeleton is about what UTS 46 maps text to. It only serves to tell why a name was refused, and to see an
// "xn--" or a dash that is spelled in other characters.
func skeleton(text string) string {
	text = strings.Map(dropInvisible, strings.ToLower(norm.NFKC.String(text)))
	return strings.ReplaceAll(text, "。", ".")
}

// checkHostChars looks at the ASCII characters of a name (RFC 1123 2.1) and at white space.
func checkHostChars(name string) verdict.Reason {
	for _, r := range name {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '-', r == '.', 'A' <= r && r <= 'Z':
		case r == ' ':
			return verdict.WhitespaceInside
		case r < 0x80 || unicode.IsSpace(r):
			return verdict.DomainChar
		}
	}
	return ""
}

// checkLabels looks at the dots and hyphens of a name (RFC 1034 3.5; RFC 5891 4.2.3.1 for "--"). What follows
// "xn--" in a label is left to idna.
func checkLabels(name string) verdict.Reason {
	for start := 0; start <= len(name); {
		end := start
		for end < len(name) && name[end] != '.' {
			end++
		}
		label := name[start:end]
		start = end + 1
		switch {
		case label == "":
			return verdict.DomainDot
		case strings.HasPrefix(label, acePrefix):
		case label[0] == '-', label[len(label)-1] == '-', len(label) > 4 && label[2:4] == "--":
			return verdict.DomainHyphen
		}
	}
	return ""
}

func isDigits(label string) bool {
	for i := 0; i < len(label); i++ {
		if label[i] < '0' || '9' < label[i] {
			return false
		}
	}
	return true
}

// isReserved says whether no public mail domain can ever be under a top-level domain.
func isReserved(tld string) bool {
	switch tld {
	case "test", "invalid", "localhost", // RFC 6761
		"local", // RFC 6762
		"onion", // RFC 7686
		"alt",   // RFC 9476
		"arpa":  // RFC 3172, RFC 8375
		return true
	}
	return false
}

// isDelegated says whether the public suffix list knows the top-level domain of a host name.
func isDelegated(name, tld string) bool {
	switch tld {
	case "com", "net", "org", "de", "uk", "fr", "es", "it", "br", "mx", "edu":
		return true // the list has them; asking it costs an allocation
	}
	// Two labels, since a few top-level domains are in the list only by what is below them, as "*.ck".
	two := name[strings.LastIndexByte(name[:len(name)-len(tld)-1], '.')+1:]
	// PublicSuffix never fails: for a domain that it doesn't know it returns the last label, not icann.
	suffix, icann := publicsuffix.PublicSuffix(two)
	return icann || strings.IndexByte(suffix, '.') >= 0
}
