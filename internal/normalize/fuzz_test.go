package normalize

import (
	"errors"
	"net/mail"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"
	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"

	"validator-gw/internal/verdict"
)

// strict is the domain profile with its own length checks, as it was measured against the conformance tests
// of UTS 46.
var strict = idna.New(
	idna.MapForLookup(),
	idna.Transitional(false),
	idna.BidiRule(),
	idna.StrictDomainName(true),
	idna.VerifyDNSLength(true),
	idna.CheckHyphens(true),
)

// checkLaws checks what holds for every text.
func checkLaws(t rapid.TB, raw string) {
	t.Helper()
	a, err := Parse(raw)
	if err != nil {
		refusal, ok := errors.AsType[*Refusal](err)
		if !ok {
			t.Fatalf("Parse(%q): %T, want *Refusal", raw, err)
		}
		if !a.IsZero() {
			t.Fatalf("Parse(%q) = %q beside an error", raw, a.Text())
		}
		if !slices.Contains(verdict.SyntaxReasons, refusal.Reason) {
			t.Fatalf("Parse(%q): reason %q is not a syntax reason", raw, refusal.Reason)
		}
		if refusal.Error() != "not an address: "+string(refusal.Reason) {
			t.Fatalf("Parse(%q): error says %q", raw, refusal.Error())
		}
		if s := refusal.Suggestion; s != "" {
			if b, err := Parse(s); err != nil || b.Text() != s {
				t.Fatalf("Parse(%q) suggests %q, which parses to %q, %v", raw, s, b.Text(), err)
			}
		}
		return
	}

	text := a.Text()
	if again, err := Parse(text); err != nil || again != a {
		t.Fatalf("Parse(%q) = %q, which parses to %q, %v", raw, text, again.Text(), err)
	}
	if strings.Count(text, "@") != 1 || a.Local() == "" || a.Domain() == "" {
		t.Fatalf("Parse(%q) = %q: not two parts at one '@'", raw, text)
	}
	if !utf8.ValidString(text) || !norm.NFC.IsNormalString(text) {
		t.Fatalf("Parse(%q) = %q: not UTF-8 in NFC", raw, text)
	}
	for _, r := range text {
		if unicode.IsControl(r) || unicode.IsSpace(r) || unicode.Is(unicode.Cf, r) && r < 0x600 {
			t.Fatalf("Parse(%q) = %q: holds %U", raw, text, r)
		}
	}
	if len(a.Local()) > 64 || len(a.Domain()) > 253 || len(text) > 254 {
		t.Fatalf("Parse(%q) = %q: over the limits of SMTP", raw, text)
	}
	if !strings.Contains(a.Domain(), ".") {
		t.Fatalf("Parse(%q) = %q: no dot in the domain", raw, text)
	}
	for label := range strings.SplitSeq(a.Domain(), ".") {
		if len(label) < 1 || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			t.Fatalf("Parse(%q) = %q: label %q", raw, text, label)
		}
	}
	if wire, err := strict.ToASCII(a.Domain()); err != nil || wire != a.Domain() {
		t.Fatalf("Parse(%q) = %q: the profile makes %q of its domain, %v", raw, text, wire, err)
	}
	if upper, err := Parse(strings.ToUpper(raw)); isASCII(raw) && (err != nil || upper != a) {
		t.Fatalf("Parse(%q) = %q, but %q in upper case, %v", raw, text, upper.Text(), err)
	}
	if spelled, err := Parse(norm.NFD.String(raw)); err == nil && spelled != a {
		t.Fatalf("Parse(%q) = %q, but %q when decomposed", raw, text, spelled.Text())
	}
	if isASCII(text) {
		if oracle, err := mail.ParseAddress(text); err != nil || oracle.Address != text || oracle.Name != "" {
			t.Fatalf("Parse(%q) = %q, net/mail says %v, %v", raw, text, oracle, err)
		}
	}
	if isASCII(a.Local()) {
		// The raw text held that local part in ASCII: nothing came to look like it.
		local, _, _ := strings.Cut(raw, "@")
		if got := strings.ToLower(strings.ReplaceAll(strings.TrimFunc(local, isEdge), " ", "")); got != a.Local() {
			t.Fatalf("Parse(%q) = %q: local part was %q", raw, text, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, tc := range slices.Concat(parseCases, idnCases) {
		f.Add(tc.in)
	}
	f.Fuzz(func(t *testing.T, raw string) { checkLaws(t, raw) })
}

// TestLaws draws texts that are nearly addresses, which random bytes hardly ever are.
func TestLaws(t *testing.T) {
	t.Parallel()
	piece := rapid.SampledFrom([]string{
		"a", "Z", "9", "ü", "É", "e\u0301", "ß", "Σ", "İ", "\u212a", "\u037e", "用", "ａ", "．", "＠", "。", "א", "ا", "1",
		".", ".", "-", "--", "_", "+", "'", `"`, `\`, "(", ")", "<", ">", ",", ";", ":", "[", "]", "@", "@", "%40", "/",
		" ", "\t", "\n", "\u00a0", "\u200b", "\u200d", "\u00ad", "\ufeff", "\u202e", "\u2066", "\u0301", "\ufe0f", "😀",
		"\x00", "\x7f", "\u0085", "\ufffd", "\xff", "xn--", "XN--", "xn--bcher-kva", "mailto:", "example", "com", ".com",
		"@example.com", "@example.com", "Bob <", "»", "«", "{", "}", "\ue000", "\ufdd0",
	})
	rapid.Check(t, func(t *rapid.T) {
		for range 50 {
			checkLaws(t, strings.Join(rapid.SliceOfN(piece, 0, 12).Draw(t, "pieces"), ""))
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		checkLaws(t, rapid.String().Draw(t, "local")+"@"+rapid.String().Draw(t, "label")+".com")
	})
}

// lastLetter is past the last character that has any mapping: above are ideographs, tags and private use.
const lastLetter = 0x323af

// TestNoRuneBecomesASCII tries all of Unicode that has mappings: what is not in becomesASCII keeps out of ASCII.
func TestNoRuneBecomesASCII(t *testing.T) {
	t.Parallel()
	for r := rune(utf8.RuneSelf); r <= lastLetter; r++ {
		if r == 0xd800 {
			r = 0xe000 // surrogates are no characters
		}
		once := foldLocal(string(r))
		if got := isASCII(once); got != becomesASCII(r) {
			t.Errorf("%U folds to %+q", r, once)
		}
		if twice := foldLocal(once); twice != once {
			t.Errorf("%U folds to %+q, then to %+q", r, once, twice)
		}
	}
}

// TestEveryRuneInALocalPart holds the laws for all of Unicode, alone and before a combining mark.
func TestEveryRuneInALocalPart(t *testing.T) {
	t.Parallel()
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if r == 0xd800 {
			r = 0xe000
		}
		// Ideographs and Hangul, and what is private or not assigned above them, are alike: some will do.
		alike := 0x3400 <= r && r <= 0xd7ff || 0x1fb00 <= r && r < 0xe0000 || 0xe1000 <= r
		if alike && r%499 != 0 {
			continue
		}
		checkLaws(t, "a"+string(r)+"@example.com")
		checkLaws(t, string(r)+"\u0307@example.com")
	}
}
