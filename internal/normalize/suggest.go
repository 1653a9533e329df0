package normalize

import (
	"fmt"
	"math/bits"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/publicsuffix"

	"validator-gw/internal/verdict"
)

// target is a domain that others may be a misspelling of.
type target struct {
	domain, name, suffix string
	joined               string // the domain without its dots
	// edits is how many may lie between: none where the name is a word, or too short to tell a misspelling of it
	// from a name of its own.
	edits   int
	letters uint64
}

// ranked are targets by rank, the most used first. Ties go by it.
type ranked []target

var targets = mustRank(providersList)

func mustRank(l list) ranked {
	all := make(ranked, 0, l.ref.Count)
	for line := range strings.Lines(l.text) {
		domain, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		edits, err := strconv.Atoi(number)
		if err != nil {
			panic(fmt.Sprintf("normalize: a list has the line %q", line))
		}
		suffix, _ := publicsuffix.PublicSuffix(domain)
		all = append(all, target{
			domain: domain, name: strings.TrimSuffix(domain, "."+suffix), suffix: suffix,
			joined: strings.ReplaceAll(domain, ".", ""), edits: edits, letters: letters(domain),
		})
	}
	return all
}

// maxTarget is the length of the longest target in octets.
var maxTarget = len(slices.MaxFunc(targets, func(a, b target) int { return len(a.domain) - len(b.domain) }).domain)

// maxEdits is the most edits that a target allows.
const maxEdits = 2

// letters returns which characters are in text. An edit changes two of them at most.
func letters(text string) (set uint64) {
	for i := range len(text) {
		set |= 1 << (text[i] % 64)
	}
	return set
}

// suggest returns a with its domain as it was meant (empty for unchanged) and its local part without percent-
// encoding, and why; nothing if neither changes anything.
func (a Address) suggest(domain string, reason verdict.Reason) (string, verdict.Reason) {
	local, changed := a.local, false
	if strings.IndexByte(local, '%') >= 0 {
		local, changed = decodeLocal(local)
	}
	if domain == "" && !changed {
		return "", ""
	}
	if domain == "" {
		domain = a.domain
	}
	if changed {
		reason = verdict.PercentEncoded
	}
	text := local + "@" + domain
	if len(text) > maxAddress {
		return "", ""
	}
	if changed {
		if b, err := Parse(text); err != nil || b.Text() != text {
			return "", ""
		}
	}
	return text, reason
}

// decodeLocal decodes the percent-encoding in a local part, once. What still has some after that is left alone:
// to go on decoding is how filters are got around.
func decodeLocal(local string) (string, bool) {
	decoded, err := url.PathUnescape(local)
	if err != nil || decoded == local {
		return local, false
	}
	if again, err := url.PathUnescape(decoded); err == nil && again != decoded {
		return local, false
	}
	a, err := Parse(decoded + "@example.com")
	if err != nil {
		return local, false
	}
	return a.local, true
}

// nearest returns the provider that a domain was meant to be, the edits between and the reason, or nothing. It
// is for domains that no list knows.
func nearest(domain string) (string, int, verdict.Reason) {
	if strings.Contains(domain, acePrefix) {
		if twin, foreign := lookalike(domain); twin != "" {
			if foreign {
				return twin, 1, verdict.MixedScript
			}
			return twin, 1, verdict.TypoDomain
		}
		return "", 0, ""
	}
	if t, edits := targets.closest(domain); t != nil {
		return t.domain, edits, verdict.TypoDomain
	}
	return "", 0, ""
}

// closest returns the target with the fewest edits to a domain in ASCII, the first by rank among equals, or nil.
func (r ranked) closest(domain string) (best *target, edits int) {
	if len(domain) > maxTarget+maxEdits {
		return nil, 0
	}
	set := letters(domain)
	for i := range r {
		t := &r[i]
		limit := t.edits
		if best != nil {
			limit = min(limit, edits-1) // only fewer are better
		}
		if limit < 1 || bits.OnesCount64(set^t.letters) > 2*limit {
			continue
		}
		if n := distance(domain, t.domain, limit); n <= limit && plausible(domain, t, n) {
			best, edits = t, n
		}
	}
	return best, edits
}

// plausible says whether a domain at so many edits may be a misspelling of t, and not a name of its own.
//
// Most edits at the first letter of a name, and most edits of a top-level domain, make another name that exists:
// of the 26 that are gmail.com with another first letter nearly all are taken, as are most national domains.
func plausible(domain string, t *target, edits int) bool {
	if edits == 1 && strings.Count(domain, ".") > 0 && strings.ReplaceAll(domain, ".", "") == t.joined {
		return true // a dot too many, or too few
	}
	if name, ok := strings.CutSuffix(domain, "."+t.suffix); ok {
		return plausibleName(name, t.name, edits)
	}
	if strings.Contains(t.suffix, ".") { // co.uk: what the country comes after
		name, ok := strings.CutPrefix(domain, t.name+".")
		return ok && edits == 1 && strings.HasSuffix(name, t.suffix[strings.LastIndexByte(t.suffix, '.'):])
	}
	if t.suffix != "com" {
		return false
	}
	dot := strings.LastIndexByte(domain, '.')
	inSuffix := distance(domain[dot+1:], t.suffix, 1)
	return inSuffix == 1 && (domain[:dot] == t.name || edits > inSuffix && plausibleName(domain[:dot], t.name, edits-inSuffix))
}

// minName is the least length of a name that has misspellings. One letter more or less in four is another word.
const minName = 5

func plausibleName(name, meant string, edits int) bool {
	switch {
	case len(meant) < minName || name == "":
		return false
	case edits > 1:
		return name[0] == meant[0] && sameLetters(name, meant)
	case name[0] == meant[0]:
		return true
	case name == meant[1:]: // left out
		return true
	case len(name) != len(meant): // one more before it
		return false
	default: // swapped with the next, or replaced
		return name[0] == meant[1] && name[1] == meant[0] || strings.IndexByte(beside[meant[0]], name[0]) >= 0
	}
}

// sameLetters says whether two names have the same letters but for one more or less, or one for another. At two
// edits that tells "hotmiall" and "hormial" from "hotair", and "googelmial" from "googlemaps".
func sameLetters(a, b string) bool {
	var count [256]int8
	for i := range len(a) {
		count[a[i]]++
	}
	for i := range len(b) {
		count[b[i]]--
	}
	differ := 0
	for _, n := range count {
		differ += max(int(n), -int(n))
	}
	return differ <= 1 || differ == 2 && len(a) == len(b)
}

// beside are the letters to the left and right of each on a keyboard, which the first letter is mistaken for.
var beside = [256]string{
	'b': "vn", 'c': "xv", 'e': "wr", 'f': "dg", 'g': "fh", 'h': "gj", 'i': "uo", 'k': "jl", 'l': "k", 'n': "bm", 'o': "ip",
	'p': "o", 'r': "et", 's': "ad", 't': "ry", 'v': "cb", 'w': "qe", 'y': "tu", 'z': "x",
}

// completeDomain returns the provider that a domain without a dot was meant to be ("gmail", "gmailcom"), or
// nothing. domain is in lower case.
func completeDomain(domain string) string {
	for _, t := range targets {
		// What is a word by itself ("mail", "free") may as well be a host of the network that it was typed in.
		if domain == t.joined || domain == t.name && t.edits > 0 {
			return t.domain
		}
	}
	for _, t := range targets {
		if t.edits > 0 && len(t.name) >= minName &&
			(distance(domain, t.joined, 1) == 1 || distance(domain, t.name, 1) == 1) && plausibleName(domain, t.joined, 1) {
			return t.domain
		}
	}
	return ""
}

// ends are the top-level domains that a repair may lead to, by rank: the old ones of three letters and more. In
// two letters every slip is another country. None is near to an end of private networks (RFC 6762 appendix G).
var ends = []string{"com", "net", "org", "edu", "gov", "info"}

// isForeignGov says whether a label is what other countries have where the United States have gov: what was left out
// is the country behind it (go.jp, gob.mx, gouv.fr, govt.nz, gv.at), and one government is not another's misspelling.
func isForeignGov(label string) bool {
	switch label {
	case "go", "gob", "gouv", "govt", "gv":
		return true
	}
	return false
}

// repairTLD returns domain with its last label, which is no top-level domain, as the one that was meant
// ("yahoo.con"), or nothing. Where what comes out is a misspelt provider, it is that provider. domain is in
// lower case.
func repairTLD(domain string) string {
	if strings.Contains(domain, acePrefix) {
		if twin, _ := lookalike(domain); twin != "" {
			return twin
		}
	}
	dot := strings.LastIndexByte(domain, '.')
	if dot <= 0 {
		return ""
	}
	joined := strings.ReplaceAll(domain, ".", "")
	for i := range targets {
		t := &targets[i]
		if t.edits > 0 && joined == t.joined || strings.HasPrefix(domain, t.name+".") && distance(domain, t.domain, 1) == 1 {
			return t.domain
		}
	}
	for _, end := range ends {
		if distance(domain[dot+1:], end, 1) != 1 || end == "gov" && isForeignGov(domain[dot+1:]) {
			continue
		}
		repaired := domain[:dot+1] + end
		if _, _, found := lookup(repaired); !found && !freeList.covers(repaired) {
			if t, _ := targets.closest(repaired); t != nil {
				return t.domain
			}
		}
		return repaired
	}
	return ""
}
