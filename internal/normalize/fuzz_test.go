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

// checkLaws checks what holds for every text under every choice of rules.
func checkLaws(t rapid.TB, rules Rules, raw string) {
	t.Helper()
	a, changes, err := rules.Read(raw)
	if err != nil {
		refusal, ok := errors.AsType[*Refusal](err)
		if !ok {
			t.Fatalf("Read(%q): %T, want *Refusal", raw, err)
		}
		if !a.IsZero() || changes != 0 {
			t.Fatalf("Read(%q) = %q, %v beside an error", raw, a.Text(), changes.Names())
		}
		if !slices.Contains(verdict.SyntaxReasons, refusal.Reason) {
			t.Fatalf("Read(%q): reason %q is not a syntax reason", raw, refusal.Reason)
		}
		if refusal.Error() != "not an address: "+string(refusal.Reason) {
			t.Fatalf("Read(%q): error says %q", raw, refusal.Error())
		}
		if s := refusal.Suggestion; s != "" {
			if b, err := rules.Parse(s); err != nil || b.Text() != s {
				t.Fatalf("Read(%q) suggests %q, which parses to %q, %v", raw, s, b.Text(), err)
			}
		}
		return
	}

	text := a.Text()
	if again, more, err := rules.Read(text); err != nil || again != a || more != 0 {
		t.Fatalf("Read(%q) = %q, which reads as %q, %v, %v", raw, text, again.Text(), more.Names(), err)
	}
	if (changes == 0) != (raw == text) {
		t.Fatalf("Read(%q) = %q, by %q", raw, text, changes.Names())
	}
	if restored, err := Restore(text); err != nil || restored != a {
		t.Fatalf("Read(%q) = %q, restored as %q, %v", raw, text, restored.Text(), err)
	}
	if strings.Count(text, "@") != 1 || a.Local() == "" || a.Domain() == "" {
		t.Fatalf("Read(%q) = %q: not two parts at one '@'", raw, text)
	}
	if !utf8.ValidString(text) || !norm.NFC.IsNormalString(text) {
		t.Fatalf("Read(%q) = %q: not UTF-8 in NFC", raw, text)
	}
	for _, r := range text {
		if unicode.IsControl(r) || unicode.IsSpace(r) || isInvisible(r) && !isJoiner(r) && r != emojiSelector {
			t.Fatalf("Read(%q) = %q: holds %U", raw, text, r)
		}
	}
	if len(a.Local()) > 64 && !rules.LongLocal || len(a.Domain()) > 253 || len(text) > 254 {
		t.Fatalf("Read(%q) = %q: over the limits of SMTP", raw, text)
	}
	if !strings.Contains(a.Domain(), ".") {
		t.Fatalf("Read(%q) = %q: no dot in the domain", raw, text)
	}
	for label := range strings.SplitSeq(a.Domain(), ".") {
		if len(label) < 1 || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			t.Fatalf("Read(%q) = %q: label %q", raw, text, label)
		}
	}
	if wire, err := strict.ToASCII(a.Domain()); err != nil || wire != a.Domain() {
		t.Fatalf("Read(%q) = %q: the profile makes %q of its domain, %v", raw, text, wire, err)
	}
	if shown := a.Unicode(); shown != "" {
		if again, err := rules.Parse(shown); len(shown) <= maxAddress && (err != nil || again != a) {
			t.Fatalf("Read(%q) = %q, shown as %q, which parses to %q, %v", raw, text, shown, again.Text(), err)
		}
	}
	if upper, err := rules.Parse(strings.ToUpper(raw)); isASCII(raw) && (err != nil || upper != a) {
		t.Fatalf("Read(%q) = %q, but %q in upper case, %v", raw, text, upper.Text(), err)
	}
	if spelled, err := rules.Parse(norm.NFD.String(raw)); err == nil && spelled != a {
		t.Fatalf("Read(%q) = %q, but %q when decomposed", raw, text, spelled.Text())
	}
	if isASCII(text) {
		if oracle, err := mail.ParseAddress(text); err != nil || oracle.Address != text || oracle.Name != "" {
			t.Fatalf("Read(%q) = %q, net/mail says %v, %v", raw, text, oracle, err)
		}
	}
	if isASCII(a.Local()) {
		// The raw text held that local part in ASCII: nothing came to look like it.
		local, _, _ := strings.Cut(raw, "@")
		if got := strings.ToLower(strings.ReplaceAll(strings.TrimFunc(local, isEdge), " ", "")); got != a.Local() {
			t.Fatalf("Read(%q) = %q: local part was %q", raw, text, got)
		}
	}
	if strict := (Rules{}); rules.LongLocal || rules.TestDomains || len(rules.TLDs) > 0 {
		if b, err := strict.Parse(raw); err == nil && b != a {
			t.Fatalf("Read(%q) = %q, but %q without rules", raw, text, b.Text())
		}
	} else if b, err := loose.Parse(raw); err != nil || b != a {
		t.Fatalf("Read(%q) = %q, but %q, %v under rules that let more in", raw, text, b.Text(), err)
	}
}

// loose are rules that let more in than the zero Rules.
var loose = Rules{LongLocal: true, TestDomains: true, TLDs: []string{"corp", "Bücher", "xn--e1afmkfd"}}

// checkPair checks what holds for two texts.
func checkPair(t rapid.TB, x, y string) {
	t.Helper()
	a, err := Parse(x)
	if err != nil {
		return
	}
	b, err := Parse(y)
	if err != nil {
		return
	}
	same := a.Text() == b.Text()
	if (a == b) != same {
		t.Fatalf("%q and %q: equal %v as addresses, %v as text", a.Text(), b.Text(), a == b, same)
	}
	if (prints.Of(a) == prints.Of(b)) != same {
		t.Fatalf("%q and %q: fingerprints %s and %s", a.Text(), b.Text(), prints.Of(a), prints.Of(b))
	}
	if (prints.DomainKey(a) == prints.DomainKey(b)) != (a.Domain() == b.Domain()) {
		t.Fatalf("%q and %q: domain keys %d and %d", a.Text(), b.Text(), prints.DomainKey(a), prints.DomainKey(b))
	}
}

var prints = NewFingerprinter(countingKey(0))

func FuzzParse(f *testing.F) {
	addCorpus(f, "FuzzParse")
	for _, tc := range slices.Concat(parseCases, idnCases) {
		f.Add(tc.in)
	}
	f.Fuzz(func(t *testing.T, raw string) { checkLaws(t, Rules{}, raw) })
}

func FuzzRules(f *testing.F) {
	addCorpus(f, "FuzzRules")
	for i, tc := range slices.Concat(parseCases, idnCases) {
		f.Add(tc.in, i%2 == 0, i%3 == 0, "corp")
	}
	f.Add("ana@example.bücher", true, true, "xn--bcher-kva")
	f.Fuzz(func(t *testing.T, raw string, long, test bool, tld string) {
		rules := Rules{LongLocal: long, TestDomains: test, TLDs: []string{tld}}
		if err := rules.Check(); err == nil {
			if _, err := rules.Parse("ana@example." + tld); err != nil {
				t.Fatalf("%q is taken as a top-level domain, and %v", tld, err)
			}
		}
		checkLaws(t, rules, raw)
	})
}

// FuzzNearly puts texts together from pieces, an octet of the input for each: they are nearly addresses, which
// random octets hardly ever are.
func FuzzNearly(f *testing.F) {
	addCorpus(f, "FuzzNearly")
	f.Add([]byte{0, 53}, false)
	f.Add([]byte{57, 0, 53, 33}, true)
	f.Fuzz(func(t *testing.T, choice []byte, isLoose bool) {
		var text strings.Builder
		for _, c := range choice[:min(len(choice), 40)] {
			text.WriteString(pieces[int(c)%len(pieces)])
		}
		rules := Rules{}
		if isLoose {
			rules = loose
		}
		checkLaws(t, rules, text.String())
	})
}

func FuzzFingerprint(f *testing.F) {
	addCorpus(f, "FuzzFingerprint")
	all := slices.Concat(parseCases, idnCases)
	for i, tc := range all {
		f.Add(tc.in, all[(i+1)%len(all)].in)
		if tc.want != "" {
			f.Add(tc.in, tc.want)
		}
	}
	f.Fuzz(func(t *testing.T, x, y string) { checkPair(t, x, y) })
}

// pieces are what addresses and what is nearly one are made of.
var pieces = []string{
	"a", "Z", "9", "ü", "É", "e\u0301", "ß", "Σ", "İ", "\u212a", "\u037e", "用", "ａ", "．", "＠", "。", "א", "ا", "1",
	".", ".", "-", "--", "_", "+", "'", `"`, `\`, "(", ")", "<", ">", ",", ";", ":", "[", "]", "@", "@", "%40", "/",
	" ", "\t", "\n", "\u00a0", "\u200b", "\u200d", "\u00ad", "\ufeff", "\u202e", "\u2066", "\u0301", "\ufe0f", "😀",
	"\x00", "\x7f", "\u0085", "\ufffd", "\xff", "xn--", "XN--", "xn--bcher-kva", "mailto:", "example", "com", ".com",
	"@example.com", "@example.com", "Bob <", "»", "«", "{", "}", "\ue000", "\ufdd0", "%", "%25", "\u2019", "\u2013", "“", "”",
	"\u200c", "م", "क\u094d", "\ufb01", "\ufffc", ".test", ".corp", "gmail", ".con", "!", "?", "，", "ａｎａ", "бүк", "例え", "\u2260", "\U0001d41a",
}

// TestLaws draws texts that are nearly addresses, which random octets hardly ever are.
func TestLaws(t *testing.T) {
	t.Parallel()
	piece := rapid.SampledFrom(pieces)
	rapid.Check(t, func(t *rapid.T) {
		rules := Rules{}
		if rapid.Bool().Draw(t, "loose") {
			rules = loose
		}
		for range 50 {
			checkLaws(t, rules, strings.Join(rapid.SliceOfN(piece, 0, 12).Draw(t, "pieces"), ""))
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		checkLaws(t, Rules{}, rapid.String().Draw(t, "local")+"@"+rapid.String().Draw(t, "label")+".com")
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

// TestEveryRune holds the laws for all of Unicode: in a local part, alone and before a combining mark, and in a
// domain, where none may bring in a dash that nobody can register.
func TestEveryRune(t *testing.T) {
	t.Parallel()
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if r == 0xd800 {
			r = 0xe000
		}
		// Ideographs, Hangul, Yi, cuneiform, hieroglyphs and Tangut, what is private and what is not assigned above
		// them are alike: some will do.
		alike := 0x3400 <= r && r <= 0xd7ff || 0xe000 <= r && r <= 0xf8ff || 0x12000 <= r && r < 0x14680 ||
			0x17000 <= r && r < 0x18d80 || 0x1fb00 <= r && r < 0xe0000 || 0xe1000 <= r
		if alike && r%499 != 0 {
			continue
		}
		checkLaws(t, Rules{}, "a"+string(r)+"@example.com")
		checkLaws(t, Rules{}, string(r)+"\u0307@example.com")
		domain := "ana@a" + string(r) + "b.com"
		checkLaws(t, Rules{}, domain)
		if a, err := Parse(domain); err == nil && strings.ContainsFunc(a.Unicode(), isSmart) {
			t.Errorf("%U in a domain becomes %+q", r, a.Unicode())
		}
	}
}
