package normalize

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"validator-gw/internal/verdict"
)

// sources says for each row of the address rules where it comes from. Where it says "ours", the standards leave
// the choice. Rows that need the DNS (a null MX, no MX at all) have no number here.
var sources = map[int]string{
	0:  "UTS 46 4, measured with golang.org/x/net/idna",
	1:  "HTML, 4.10.5.1.5: sanitization of type=email",
	2:  "Unicode, White_Space",
	3:  "ours: what copying brings along has no meaning at the edges",
	4:  "RFC 5322 4.4: CFWS there is void",
	5:  "RFC 5322 3.2.3: no space in an atom",
	6:  "UTS 46, and RFC 5322 3.2.3",
	7:  "UTS 46: ignored",
	8:  "ours; RFC 5892 A.1, A.2 for joiners in their place",
	9:  "RFC 5892 A.1, A.2",
	10: "RFC 5321 4.1.2; header injection",
	11: "ours: can't be exchanged; RFC 6532 3.1 alone would allow it",
	12: "RFC 6531 3.3: '@' is U+0040",
	13: "UTS 46: mapped",
	14: "RFC 6531 3.3; input methods type it so",
	15: "RFC 6532 3.1: NFC, not NFKC",
	16: "RFC 6068 2",
	17: "RFC 5322 3.4: name-addr is no addr-spec",
	18: "RFC 5322 3.4.1: nothing around an addr-spec",
	19: "RFC 5322 3.2.2: comments carry no meaning",
	20: "RFC 5321 4.1.2: no dot at the end",
	21: "RFC 5322 3.4.1: nothing after an addr-spec",
	22: "RFC 1123 2.1",
	23: "RFC 5322 3.4.1",
	24: "RFC 5322 3.4.1",
	25: "RFC 5322 3.4.1",
	26: "HTML, 4.10.5.1.5: one address without multiple",
	27: "RFC 5322 3.4.1",
	28: "RFC 5322 3.2.3: dot-atom",
	29: "RFC 1035 2.3.1",
	30: "ours; HTML 4.10.5.1.5 has no quoting either",
	31: "RFC 5321 4.1.2: quote no more than needed",
	32: "RFC 5322 3.2.3: specials",
	33: "RFC 5322 3.2.3: atext",
	34: "RFC 5322 3.2.3: atext",
	35: "RFC 5322 3.2.3: specials",
	36: "ours; RFC 5321 4.1.3 has them",
	37: "RFC 3696 2: not all digits",
	38: "RFC 1123 2.1: digits may come first",
	39: "RFC 5321 2.3.5: fully qualified",
	40: "RFC 5321 2.3.5; the suggestion is ours",
	41: "RFC 1123 2.1, STD 3",
	42: "RFC 1034 3.5",
	43: "RFC 5891 4.2.3.1",
	44: "RFC 4343 for domains; ours for local parts, RFC 5321 2.4",
	45: "ours: what is not ASCII never becomes another's ASCII address",
	46: "RFC 5233 1",
	47: "RFC 5321 4.5.3.1.1",
	48: "RFC 1035 2.3.4",
	49: "RFC 1035 2.3.4: 255 octets on the wire",
	50: "RFC 5321 4.5.3.1.3, RFC 3696 erratum 1690",
	51: "RFC 6531 3.3, RFC 6532 3.1",
	52: "RFC 6532 3.1, UTS 46",
	53: "UTS 46 4.1: no combining mark first",
	54: "UTS 46, non-transitional",
	55: "RFC 5891 5.3, 5.4",
	56: "CVE-2026-39821, golang/go#81116, golang/go#81549",
	57: "RFC 5893 2",
	58: "UTS 46: disallowed; Unicode TR 36",
	59: "UTS 39 5.1; a flag, no refusal",
	60: "UTS 39 4; a flag, no refusal",
	61: "RFC 6531 3.3; UTS 46 allows it where IDNA 2008 does not",
	62: "RFC 5892: disallowed in domains; ours for local parts",
	63: "RFC 5322 3.2.3: '%' is atext; RFC 3986 2.4: never decode twice",
	64: "RFC 1034 3.1: labels up to 63 octets",
	65: "the root zone by way of the public suffix list",
	66: "RFC 6761, RFC 6762, RFC 7686, RFC 9476, RFC 3172, RFC 8375",
	67: "RFC 6761 6.2",
	68: "RFC 6761 6.5: as any other name",
	71: "no refusal: one letter from a provider's name",
	72: "no refusal: a provider whose name is near another's",
	73: "no refusal: a disposable domain",
	74: "no refusal: a forwarding alias",
	75: "RFC 2142; a flag, no refusal",
	76: "no refusal: a free provider",
	77: "RFC 5322 3.4.1",
	78: "RFC 3986: a URL is no address",
	79: "RFC 3629 3",
}

// parseCase is one case of a row of the address rules: what is typed, and either the normal form or the reason
// for refusing it with the suggestion, if there is one.
type parseCase struct {
	row        int
	in         string
	want       string
	reason     verdict.Reason
	suggestion string
}

func accepts(row int, in, want string) parseCase { return parseCase{row: row, in: in, want: want} }

func refuses(row int, in string, reason verdict.Reason) parseCase {
	return parseCase{row: row, in: in, reason: reason}
}

func suggests(row int, in string, reason verdict.Reason, suggestion string) parseCase {
	return parseCase{row: row, in: in, reason: reason, suggestion: suggestion}
}

const ana = "ana@example.com"

// label63 is the longest label.
var label63 = strings.Repeat("a", 63)

// name returns a domain of n octets that ends in .com and keeps the limit of its labels.
func name(n int) string {
	rest := n - len(".com")
	var labels []string
	for rest > 63 {
		size := min(63, rest-2) // leave room for a dot and a label of one
		labels = append(labels, strings.Repeat("a", size))
		rest -= size + 1
	}
	return strings.Join(append(labels, strings.Repeat("a", rest)), ".") + ".com"
}

var parseCases = []parseCase{
	accepts(1, "ana@example.com", ana),
	accepts(1, "  ana@example.com  ", ana),
	accepts(1, "\tana@example.com\r\n", ana),
	accepts(1, "\n\v\fana@example.com", ana),
	accepts(2, "\u00a0ana@example.com\u00a0", ana),
	accepts(2, "\u3000ana@example.com\u2003", ana),
	accepts(2, "\u2028ana@example.com\u2029\u0085", ana),
	accepts(3, "\u200bana@example.com\u200b", ana),
	accepts(3, "\ufeffana@example.com", ana),
	accepts(3, "ana@example.com\u2060\u200e\u200f", ana),
	accepts(3, "\u202aana@example.com\u202c", ana),
	accepts(3, "\u2068ana@example.com\u2069", ana),
	accepts(3, " \u200b \u00ad\u180e ana@example.com", ana),
	accepts(3, "\ufffc ana@example.com", ana),
	refuses(3, "\u202eana@example.com", verdict.BidiControl),
	accepts(4, "ana @example.com", ana),
	accepts(4, "ana@ example.com", ana),
	accepts(4, "ana   @   example . com", ana),
	accepts(4, "ana . lee@example.com", "ana.lee@example.com"),
	refuses(5, "anna lee@example.com", verdict.WhitespaceInside),
	refuses(5, "ana@exam ple.com", verdict.WhitespaceInside),
	refuses(5, "ana@example.com now", verdict.WhitespaceInside),
	refuses(5, "call ana@example.com", verdict.WhitespaceInside),
	suggests(5, "ana@example com", verdict.WhitespaceInside, ana),
	refuses(5, "ana@mail example com", verdict.WhitespaceInside),
	refuses(5, "ana@exam ple", verdict.WhitespaceInside),
	refuses(6, "anna\u00a0lee@example.com", verdict.WhitespaceInside),
	refuses(6, "anna\u3000lee@example.com", verdict.WhitespaceInside),
	refuses(6, "anna\u2028lee@example.com", verdict.WhitespaceInside),
	refuses(6, "ana@exam\u00a0ple.com", verdict.DomainChar),
	refuses(6, "ana@exam\u2003ple.com", verdict.DomainChar),
	suggests(6, "ana\u00a0@example.com", verdict.WhitespaceInside, ana),
	suggests(6, "ana\u3000.lee@example.com", verdict.WhitespaceInside, "ana.lee@example.com"),
	refuses(6, "ana\u00a0lee\u00a0@example.com", verdict.WhitespaceInside),
	accepts(7, "ana@exam\u200bple.com", ana),
	accepts(7, "ana@exam\u00adple.com", ana),
	accepts(7, "ana@exam\u2060ple.com", ana),
	accepts(7, "ana@exam\ufeffple.com", ana),
	accepts(7, "ana@\u200bexample\u200b.\u200bcom", ana),
	suggests(8, "a\u200bna@example.com", verdict.InvisibleChar, ana),
	suggests(8, "ana\u200d@example.com", verdict.InvisibleChar, ana),
	suggests(8, "a\u200cna@example.com", verdict.InvisibleChar, ana),
	suggests(8, "a\u00adna@example.com", verdict.InvisibleChar, ana),
	suggests(8, "a\ufeffna@example.com", verdict.InvisibleChar, ana),
	suggests(8, "a\u200ena@example.com", verdict.InvisibleChar, ana),
	suggests(8, "a\u3164na@example.com", verdict.InvisibleChar, ana),
	suggests(8, "ana\U000e0041@example.com", verdict.InvisibleChar, ana),
	suggests(8, "ana\ufe0f@example.com", verdict.InvisibleChar, ana),
	refuses(8, "\U0001d15e\ufe0f@example.com", verdict.InvisibleChar), // NFC takes the symbol apart
	refuses(8, "\U000e0041@example.com", verdict.InvisibleChar),
	suggests(8, "a\ufffcna@example.com", verdict.InvisibleChar, ana),
	suggests(8, "ana\u2800@example.com", verdict.InvisibleChar, ana),
	suggests(8, "a\u200bn\u200da@example.com", verdict.InvisibleChar, ana),
	// Persian "mi-khaham" has the non-joiner by its spelling, and Devanagari "ksha" may have a joiner.
	accepts(8, "می\u200cخواهم@example.com", "می\u200cخواهم@example.com"),
	accepts(8, "क\u094d\u200dष@example.com", "क\u094d\u200dष@example.com"),
	suggests(8, "می\u200cخوا\u200bهم@example.com", verdict.InvisibleChar, "می\u200cخواهم@example.com"),
	suggests(8, "خواهم\u200c@example.com", verdict.InvisibleChar, "خواهم@example.com"),
	refuses(9, "ana@exam\u200dple.com", verdict.IDNInvalid),
	refuses(9, "ana@exam\u200cple.com", verdict.IDNInvalid),
	accepts(9, "ana@\u0915\u094d\u200d\u0937.com", "ana@xn--11b2ezcw70k.com"),
	refuses(10, "ana\n@example.com", verdict.ControlChar),
	refuses(10, "ana@example.com\r\nBcc: b@example.com", verdict.ControlChar),
	refuses(10, "a\x00na@example.com", verdict.ControlChar),
	refuses(10, "ana@exam\x00ple.com", verdict.ControlChar),
	refuses(10, "a\tna@example.com", verdict.ControlChar),
	refuses(10, "ana\x7f@example.com", verdict.ControlChar),
	refuses(10, "\x00ana@example.com", verdict.ControlChar),
	refuses(10, "a@example.com\nb@example.com", verdict.ControlChar),
	refuses(11, "a\u0081na@example.com", verdict.LocalChar),
	refuses(11, "a\u0085na@example.com", verdict.LocalChar),
	refuses(11, "a\ue000na@example.com", verdict.LocalChar),
	refuses(11, "a\ufdd0na@example.com", verdict.LocalChar),
	refuses(11, "a\U0001fffena@example.com", verdict.LocalChar),
	refuses(11, "a\U00100000na@example.com", verdict.LocalChar),
	suggests(12, "ana＠example.com", verdict.FullwidthAt, ana),
	suggests(12, "ana﹫example.com", verdict.FullwidthAt, ana),
	suggests(12, " ＡＮＡ＠example.com\u3000", verdict.FullwidthAt, ana),
	refuses(12, "ana＠b@example.com", verdict.FullwidthAt),
	refuses(12, "ana@b＠example.com", verdict.FullwidthAt),
	accepts(13, "ana@example。com", ana),
	accepts(13, "ana@example．com", ana),
	accepts(13, "ana@example｡com", ana),
	accepts(13, "ana@ｅｘａｍｐｌｅ.com", ana),
	suggests(14, "ａｎａ＠ｅｘａｍｐｌｅ．ｃｏｍ", verdict.FullwidthAt, ana),
	suggests(14, "ａｎａ＠ｅｘａｍｐｌｅ。ｃｏｍ", verdict.FullwidthAt, ana),
	suggests(15, "ａｎａ@example.com", verdict.FullwidthLocal, ana),
	suggests(15, "ana．lee@example.com", verdict.FullwidthLocal, "ana.lee@example.com"),
	refuses(15, "ana，lee@example.com", verdict.FullwidthLocal),
	suggests(16, "mailto:ana@example.com", verdict.URIScheme, ana),
	suggests(16, "MailTo:ana@example.com?subject=Hi%20there", verdict.URIScheme, ana),
	suggests(16, "mailto:ana%2Blist%40example.com", verdict.URIScheme, "ana+list@example.com"),
	suggests(16, "mailto:ana+list@example.com", verdict.URIScheme, "ana+list@example.com"),
	accepts(16, "ana%2541@example.com", "ana%2541@example.com"),
	suggests(16, "mailto:ana%2541@example.com", verdict.URIScheme, "ana%41@example.com"),
	refuses(16, "mailto:ana%0a@example.com", verdict.URIScheme),
	refuses(16, "mailto:ana%zz@example.com", verdict.URIScheme),
	refuses(16, "mailto:", verdict.URIScheme),
	suggests(16, "mailto://ana@example.com", verdict.URIScheme, ana),
	suggests(16, "mailto:ana%40example.com", verdict.URIScheme, ana),
	refuses(16, "mailto:ana%2540example.com", verdict.URIScheme), // twice encoded: decoded once, there is no '@'
	refuses(16, "mailto:mailto%3Aana%2540example.com", verdict.URIScheme),
	suggests(16, "mailto:mailto:ana@example.com", verdict.URIScheme, ana),
	suggests(16, "mailto:%22ana%22@example.com", verdict.URIScheme, ana),
	suggests(16, "Email: ana@example.com", verdict.URIScheme, ana),
	suggests(16, "e-mail:ana@example.com", verdict.URIScheme, ana),
	refuses(16, "Mail: ana", verdict.URIScheme),
	refuses(16, "maiden:ana@example.com", verdict.LocalChar),
	refuses(16, "mailto:a@example.com,b@example.com", verdict.URIScheme),
	suggests(17, "Ana <ana@example.com>", verdict.DisplayName, ana),
	suggests(17, `"Lee, Ana" <ana@example.com>`, verdict.DisplayName, ana),
	suggests(17, "Ana Lee<ANA@Example.com>", verdict.DisplayName, ana),
	suggests(17, "Ana (work) <ana@example.com>", verdict.DisplayName, ana),
	suggests(17, `"other@example.org" <ana@example.com>`, verdict.DisplayName, ana),
	suggests(17, "ana@example.com <mailto:ana@example.com>", verdict.DisplayName, ana),
	suggests(17, "Ana <ana@example.com>;", verdict.TrailingPunct, ana),
	refuses(17, "Ana <ana>", verdict.MissingAt),
	refuses(17, "Ana <ana@>", verdict.DisplayName),
	suggests(18, "<ana@example.com>", verdict.Wrapped, ana),
	suggests(18, `"ana@example.com"`, verdict.Wrapped, ana),
	suggests(18, "'ana@example.com'", verdict.Wrapped, ana),
	suggests(18, "(ana@example.com)", verdict.Wrapped, ana),
	suggests(18, "[ana@example.com]", verdict.Wrapped, ana),
	suggests(18, "{ana@example.com}", verdict.Wrapped, ana),
	suggests(18, "`ana@example.com`", verdict.Wrapped, ana),
	suggests(18, "“ana@example.com”", verdict.Wrapped, ana),
	suggests(18, "«ana@example.com»", verdict.Wrapped, ana),
	suggests(18, "<mailto:ana@example.com>", verdict.Wrapped, ana),
	suggests(18, "<ana@example.com", verdict.Wrapped, ana),
	suggests(18, "“ana@example.com", verdict.Wrapped, ana),
	suggests(18, `"ana@example.com`, verdict.Wrapped, ana),
	suggests(18, "„ana@example.com“", verdict.Wrapped, ana),
	suggests(18, "„ana@example.com”", verdict.Wrapped, ana),
	suggests(18, "（ana@example.com）", verdict.Wrapped, ana),
	suggests(18, "• ana@example.com", verdict.Wrapped, ana),
	suggests(18, "•ana@example.com", verdict.Wrapped, ana),
	suggests(18, "- ana@example.com", verdict.Wrapped, ana),
	accepts(18, "-ana@example.com", "-ana@example.com"),
	accepts(18, "{ana}@example.com", "{ana}@example.com"),
	accepts(18, "'ana'@example.com", "'ana'@example.com"),
	accepts(18, "l·l@example.com", "l·l@example.com"), // Catalan
	suggests(18, "<<ana@example.com>>", verdict.Wrapped, ana),
	refuses(18, "<ana@localhost>", verdict.Wrapped),
	suggests(19, "ana@example.com (Ana)", verdict.Comment, ana),
	suggests(19, "(Ana)ana@example.com", verdict.Comment, ana),
	suggests(19, "ana@example.com (Ana (home))", verdict.Comment, ana),
	suggests(19, "ana@example.com(Ana)", verdict.Comment, ana),
	refuses(19, "ana(Ana)@example.com", verdict.Comment),
	refuses(19, "ana@(Ana)example.com", verdict.Comment),
	suggests(20, "ana@example.com.", verdict.DomainDot, ana),
	suggests(20, "ana@example.com。", verdict.DomainDot, ana),
	refuses(20, "ana@com.", verdict.DomainDot),
	suggests(21, "ana@example.com,", verdict.TrailingPunct, ana),
	suggests(21, "ana@example.com;", verdict.TrailingPunct, ana),
	suggests(21, "ana@example.com:", verdict.TrailingPunct, ana),
	suggests(21, "ana@example.com>", verdict.TrailingPunct, ana),
	suggests(21, "ana@example.com)", verdict.TrailingPunct, ana),
	suggests(21, "ana@example.com.,", verdict.TrailingPunct, ana),
	suggests(21, "ana@example.com!", verdict.TrailingPunct, ana),
	suggests(21, "ana@example.com?!", verdict.TrailingPunct, ana),
	suggests(21, "ana@example.com，", verdict.TrailingPunct, ana),
	suggests(21, "ana@example.com/", verdict.TrailingPunct, ana),
	suggests(21, "ana@example.com]", verdict.TrailingPunct, ana),
	suggests(21, `ana@example.com"`, verdict.TrailingPunct, ana),
	suggests(21, "ana@example.com'", verdict.TrailingPunct, ana),
	suggests(21, "ana@example.com”", verdict.TrailingPunct, ana),
	suggests(22, "ana@example,com", verdict.DomainChar, ana),
	suggests(22, "ana@example;com", verdict.DomainChar, ana),
	suggests(22, "ana@example，com", verdict.DomainChar, ana),
	suggests(22, "ana@mail,example.com", verdict.DomainChar, "ana@mail.example.com"),
	refuses(22, "ana@example.com, me", verdict.DomainChar),
	refuses(23, "ana", verdict.MissingAt),
	refuses(23, "ana.example.com", verdict.MissingAt),
	refuses(23, "hello;", verdict.MissingAt),
	suggests(24, "ana@@example.com", verdict.MultipleAt, ana),
	refuses(24, "@@", verdict.MultipleAt),
	refuses(24, "ana@@@example.com", verdict.MultipleAt),
	refuses(25, "ana@lee@example.com", verdict.MultipleAt),
	refuses(25, "ana@example.com@", verdict.MultipleAt),
	suggests(25, "ana@example.com@Example.com", verdict.MultipleAt, ana),
	refuses(25, "ana@example.com@example.org", verdict.MultipleAt),
	refuses(25, "a@b@example.com@example.com", verdict.MultipleAt),
	refuses(26, "a@example.com,b@example.com", verdict.MultipleAddresses),
	refuses(26, "a@example.com b@example.com", verdict.MultipleAddresses),
	refuses(26, "a@example.com; b@example.com;", verdict.MultipleAddresses),
	refuses(26, "a@example.com/b@example.com", verdict.MultipleAddresses),
	refuses(26, "a@example.com，b@example.com", verdict.MultipleAddresses),
	refuses(26, "Ana <a@example.com>, Bob <b@example.com>", verdict.MultipleAddresses),
	refuses(26, "a@example.com, Bob <b@example.com>", verdict.MultipleAddresses),
	refuses(26, "<a@example.com>,<b@example.com>", verdict.MultipleAddresses),
	suggests(26, "ana@example.com Ana@Example.com", verdict.MultipleAddresses, ana),
	suggests(26, "ana@example.com, ana@example.com", verdict.MultipleAddresses, ana),
	refuses(26, "a@example.com a@example.com b@example.com", verdict.MultipleAddresses),
	refuses(27, "@example.com", verdict.LocalEmpty),
	refuses(27, "ana@", verdict.DomainEmpty),
	refuses(27, "@", verdict.LocalEmpty),
	refuses(27, " @ ", verdict.LocalEmpty),
	refuses(28, ".ana@example.com", verdict.LocalDot),
	refuses(28, "ana.@example.com", verdict.LocalDot),
	refuses(28, "ana..lee@example.com", verdict.LocalDot),
	refuses(28, "ana..lé@example.com", verdict.LocalDot),
	refuses(28, ".@example.com", verdict.LocalDot),
	suggests(29, "ana@example..com", verdict.DomainDot, ana),
	suggests(29, "ana@.example.com", verdict.DomainDot, ana),
	refuses(29, "ana@.", verdict.DomainDot),
	suggests(29, "ana@ü。.com", verdict.DomainDot, "ana@xn--tda.com"),
	refuses(29, "ana@ü.\u200b.com", verdict.DomainDot),
	refuses(30, `"ana lee"@example.com`, verdict.QuotedLocal),
	refuses(30, `"a@b"@example.com`, verdict.QuotedLocal),
	refuses(30, `"a\"b"@example.com`, verdict.QuotedLocal),
	refuses(30, `"a\"@b"@example.com`, verdict.QuotedLocal),
	refuses(30, `""@example.com`, verdict.QuotedLocal),
	refuses(30, `ana."lee"@example.com`, verdict.QuotedLocal),
	refuses(30, `"a>@evil.example"@example.com`, verdict.QuotedLocal),
	suggests(31, `"ana"@example.com`, verdict.QuotedLocal, ana),
	suggests(31, `"ana.lee+x"@example.com`, verdict.QuotedLocal, "ana.lee+x@example.com"),
	refuses(31, `"ana."@example.com`, verdict.QuotedLocal),
	refuses(32, `a\b@example.com`, verdict.LocalChar),
	refuses(32, "a,b@example.com", verdict.LocalChar),
	refuses(32, "a:b@example.com", verdict.LocalChar),
	refuses(32, "a[b]@example.com", verdict.LocalChar),
	refuses(32, `a"b@example.com`, verdict.LocalChar),
	refuses(32, "é,b@example.com", verdict.LocalChar),
	accepts(33, "o'brien@example.com", "o'brien@example.com"),
	accepts(33, "!#$%&'*+-/=?^_`{|}~@example.com", "!#$%&'*+-/=?^_`{|}~@example.com"),
	accepts(33, "a/b=c@example.com", "a/b=c@example.com"),
	accepts(33, "prvs=1234=ana@example.com", "prvs=1234=ana@example.com"),
	accepts(33, "/G=Ana/S=Lee/@gw.example.com", "/g=ana/s=lee/@gw.example.com"),
	accepts(33, "__init__@example.com", "__init__@example.com"),
	accepts(33, "bang!path%relay@example.com", "bang!path%relay@example.com"),
	accepts(34, "'or'1'='1'--@example.com", "'or'1'='1'--@example.com"),
	accepts(34, "{{7*7}}@example.com", "{{7*7}}@example.com"),
	refuses(35, "<script>@example.com", verdict.LocalChar),
	refuses(35, "<script>alert(1)</script>@example.com", verdict.LocalChar),
	refuses(35, "a;b@example.com", verdict.LocalChar),
	refuses(35, "a(b@example.com", verdict.LocalChar),
	refuses(35, "ana@<script>.com", verdict.DomainChar),
	refuses(35, "ana@a(b.com", verdict.DomainChar),
	refuses(36, "ana@[127.0.0.1]", verdict.IPLiteral),
	refuses(36, "ana@[IPv6:::1]", verdict.IPLiteral),
	refuses(36, "ana@[IPv6:2001:db8::1]", verdict.IPLiteral),
	refuses(37, "ana@127.0.0.1", verdict.TLDNumeric),
	refuses(37, "ana@example.123", verdict.TLDNumeric),
	accepts(38, "12345@example.com", "12345@example.com"),
	accepts(38, "ana@163.com", "ana@163.com"),
	accepts(38, "ana@1.2.3.com", "ana@1.2.3.com"),
	refuses(39, "ana@localhost", verdict.DomainNoDot),
	refuses(39, "ana@com", verdict.DomainNoDot),
	refuses(39, "ana@例え", verdict.DomainNoDot),
	suggests(40, "ana@gmail", verdict.DomainNoDot, "ana@gmail.com"),
	suggests(40, "ana@GMAILCOM", verdict.DomainNoDot, "ana@gmail.com"),
	suggests(40, "Ana+x@outlook", verdict.DomainNoDot, "ana+x@outlook.com"),
	suggests(40, "jürgen@gmail", verdict.DomainNoDot, "jürgen@gmail.com"),
	refuses(40, "ana@acme", verdict.DomainNoDot),
	refuses(41, "ana@exam_ple.com", verdict.DomainChar),
	refuses(41, "ana@ü_.com", verdict.DomainChar),
	refuses(42, "ana@-example.com", verdict.DomainHyphen),
	refuses(42, "ana@example-.com", verdict.DomainHyphen),
	refuses(42, "ana@example.-com", verdict.DomainHyphen),
	refuses(42, "ana@-ü.com", verdict.DomainHyphen),
	accepts(42, "ana@exam--ple.com", "ana@exam--ple.com"),
	accepts(42, "ana@a--b.com", "ana@a--b.com"),
	refuses(43, "ana@ab--cd.com", verdict.DomainHyphen),
	refuses(43, "ana@ab--ü.com", verdict.DomainHyphen),
	accepts(44, "ANA.Lee@EXAMPLE.Com", "ana.lee@example.com"),
	suggests(45, "\u212aana@example.com", verdict.ConfusableLocal, "kana@example.com"),
	suggests(45, "ana\u1fef@example.com", verdict.ConfusableLocal, "ana`@example.com"),
	refuses(45, "ana\u037eb@example.com", verdict.ConfusableLocal),
	suggests(45, "\ufb01ona@example.com", verdict.ConfusableLocal, "fiona@example.com"), // LATIN SMALL LIGATURE FI
	suggests(45, "\U0001d41a\U0001d427\U0001d41a@example.com", verdict.ConfusableLocal, ana),
	accepts(45, "adm\u0130n@example.com", "admi\u0307n@example.com"),
	accepts(45, "adm\u0131n@example.com", "adm\u0131n@example.com"),
	accepts(46, "ana+news@example.com", "ana+news@example.com"),
	accepts(46, "+x@gmail.com", "+x@gmail.com"),
	accepts(47, strings.Repeat("a", 64)+"@example.com", strings.Repeat("a", 64)+"@example.com"),
	refuses(47, strings.Repeat("a", 65)+"@example.com", verdict.LocalTooLong),
	accepts(47, strings.Repeat("é", 32)+"@example.com", strings.Repeat("é", 32)+"@example.com"),
	refuses(47, strings.Repeat("é", 33)+"@example.com", verdict.LocalTooLong),
	accepts(48, "ana@"+label63+".com", "ana@"+label63+".com"),
	refuses(48, "ana@a"+label63+".com", verdict.LabelTooLong),
	accepts(48, "ana@"+strings.Repeat("ü", 57)+".com", "ana@xn--td"+strings.Repeat("a", 57)+".com"),
	refuses(48, "ana@"+strings.Repeat("ü", 58)+".com", verdict.LabelTooLong),
	refuses(49, "a@"+name(254), verdict.DomainTooLong),
	refuses(50, "a@"+name(253), verdict.AddressTooLong),
	accepts(50, "a@"+name(252), "a@"+name(252)),
	refuses(50, "mailto:a@"+name(253), verdict.URIScheme),
	refuses(50, "ab@"+name(252), verdict.AddressTooLong),
	accepts(50, strings.Repeat(" ", 900)+ana, ana),
	refuses(50, strings.Repeat(" ", 1024)+ana, verdict.AddressTooLong),
	refuses(50, "a@"+strings.Repeat("ａ", 60)+"."+strings.Repeat("ａ", 60)+".com", verdict.AddressTooLong),
	accepts(51, "Ünal@example.com", "ünal@example.com"),
	accepts(51, "用户@example.com", "用户@example.com"),
	accepts(51, "ΟΔΟΣ@example.com", "οδος@example.com"),
	accepts(51, "ana\u06dd@example.com", "ana\u06dd@example.com"), // a format character that is drawn
	accepts(51, "δοκιμή@παράδειγμα.ελ", "δοκιμή@xn--hxajbheg2az3al.xn--qxam"),
	accepts(51, "संपर्क@डाटामेल.भारत", "संपर्क@xn--c2bd4bq1db8d.xn--h2brj9c"),
	accepts(51, "ไทย@ไทย.ไทย", "ไทย@xn--o3cw4h.xn--o3cw4h"),
	accepts(51, "ışık@example.com", "ışık@example.com"),
	accepts(51, "\u02bbana@example.com", "\u02bbana@example.com"), // the Hawaiian letter
	accepts(52, "jose\u0301@example.com", "jos\u00e9@example.com"),
	accepts(52, "JOSE\u0301@example.com", "jos\u00e9@example.com"),
	accepts(52, "ana@bu\u0308cher.com", "ana@xn--bcher-kva.com"),
	accepts(52, "J\u030cana@example.com", "\u01f0ana@example.com"), // composed in lower case only
	accepts(52, "\u212bngstrom@example.com", "\u00e5ngstrom@example.com"),
	refuses(53, "\u0301ana@example.com", verdict.LocalChar),
	refuses(53, "ana@\u0301example.com", verdict.IDNInvalid),
	accepts(54, "ana@BÜCHER.com", "ana@xn--bcher-kva.com"),
	accepts(54, "ana@straße.de", "ana@xn--strae-oqa.de"),
	accepts(54, "ana@faß.de", "ana@xn--fa-hia.de"),
	accepts(54, "ana@βόλος.com", "ana@xn--nxasmm1c.com"),
	accepts(54, "ana@例え.jp", "ana@xn--r8jz45g.jp"),
	accepts(54, "ana@col·legi.cat", "ana@xn--collegi-xma.cat"),
	accepts(55, "ana@xn--bcher-kva.com", "ana@xn--bcher-kva.com"),
	accepts(55, "ana@XN--BCHER-KVA.com", "ana@xn--bcher-kva.com"),
	accepts(55, "ana@example.xn--p1ai", "ana@example.xn--p1ai"),
	accepts(55, "ana@ｘｎ--bcher-kva.com", "ana@xn--bcher-kva.com"),
	refuses(56, "ana@xn--.com", verdict.IDNInvalid),
	refuses(56, "ana@example.com.xn--", verdict.IDNInvalid),
	refuses(56, "ana@xn--abc-.com", verdict.IDNInvalid),
	refuses(56, "ana@xn--example-.com", verdict.IDNInvalid),
	refuses(56, "ana@xn--a.com", verdict.IDNInvalid),
	refuses(56, "ana@xn--99999999.com", verdict.IDNInvalid),
	refuses(56, "ana@xn--ü.com", verdict.IDNInvalid),
	refuses(56, "ana@xn--ü-bga.com", verdict.IDNInvalid), // idna reads it as üé
	refuses(56, "ana@Xn--ü-bga.com", verdict.IDNInvalid),
	refuses(56, "ana@ｘn\u00ad--ü-bga.com", verdict.IDNInvalid),
	refuses(56, "ana@\U0001d417n--ü-bga.com", verdict.IDNInvalid), // MATHEMATICAL BOLD CAPITAL X
	refuses(56, "ana@example。xn--ü-bga｡com", verdict.IDNInvalid),
	accepts(57, "ana@אבג.com", "ana@xn--4dbcd.com"),
	refuses(57, "ana@אa.com", verdict.IDNInvalid),
	refuses(57, "ana@1א.com", verdict.IDNInvalid),
	refuses(58, "a\u202ena@example.com", verdict.BidiControl),
	refuses(58, "ana@exam\u202eple.com", verdict.BidiControl),
	refuses(58, "a\u2066na\u2069@example.com", verdict.BidiControl),
	refuses(58, "ana@ex\u202aam\u202cple.com", verdict.BidiControl),
	accepts(61, "😀@example.com", "😀@example.com"),
	accepts(61, "\u2764\ufe0f@example.com", "\u2764\ufe0f@example.com"),
	accepts(59, "ana@p\u0430ypal.com", "ana@xn--pypal-4ve.com"),
	accepts(60, "ana@gm\u0430il.com", "ana@xn--gmil-63d.com"),
	accepts(61, "ana@☃.com", "ana@xn--n3h.com"),
	suggests(62, "o\u2019brien@example.com", verdict.SmartPunctuation, "o'brien@example.com"),
	suggests(62, "O\u2018Brien@example.com", verdict.SmartPunctuation, "o'brien@example.com"),
	suggests(62, "o\u00b4brien@example.com", verdict.SmartPunctuation, "o'brien@example.com"),
	suggests(62, "ana\u2013lee@example.com", verdict.SmartPunctuation, "ana-lee@example.com"),
	suggests(62, "ana\u2014lee@example.com", verdict.SmartPunctuation, "ana-lee@example.com"),
	suggests(62, "ana\u2011lee@example.com", verdict.SmartPunctuation, "ana-lee@example.com"),
	suggests(62, "\u201cana\u201d@example.com", verdict.SmartPunctuation, ana), // then needlessly quoted
	refuses(62, "ana\u2026lee@example.com", verdict.SmartPunctuation),
	suggests(62, "ana@my\u2013shop.com", verdict.SmartPunctuation, "ana@my-shop.com"),
	suggests(62, "ana@my\u2010shop.com", verdict.SmartPunctuation, "ana@my-shop.com"),
	suggests(62, "ana@my\u2212shop.com", verdict.SmartPunctuation, "ana@my-shop.com"),
	suggests(62, "ana@my\u2013büro.com", verdict.SmartPunctuation, "ana@xn--my-bro-6ya.com"),
	suggests(62, "o\u2019brien@my\u2013shop.com", verdict.SmartPunctuation, "o'brien@my-shop.com"),
	suggests(62, "ana@xn--myshop-xg0c.com", verdict.SmartPunctuation, "ana@my-shop.com"), // U+2013 as an A-label
	refuses(62, "ana@ｘn--myshop-xg0c.com", verdict.SmartPunctuation),
	suggests(62, "ana@bücher.xn--myshop-xg0c.com", verdict.SmartPunctuation, "ana@xn--bcher-kva.my-shop.com"),
	refuses(62, "ana@my\u207bshop.com", verdict.SmartPunctuation), // U+207B is mapped to U+2212
	refuses(62, "ana@o\u2019brien.com", verdict.SmartPunctuation),
	refuses(62, "\u2013@\u2013", verdict.SmartPunctuation),
	accepts(62, "c\u02bchoarvezout@example.com", "c\u02bchoarvezout@example.com"), // a letter in Breton
	accepts(63, "ana%40b@example.com", "ana%40b@example.com"),
	accepts(63, "ana%2Blist@example.com", "ana%2blist@example.com"),
	suggests(63, "ana%40example.com", verdict.PercentEncoded, ana),
	suggests(63, "ana%2Blist%40example.com", verdict.PercentEncoded, "ana+list@example.com"),
	suggests(63, "ana%252Blist%40example.com", verdict.PercentEncoded, "ana%2blist@example.com"), // once, not twice
	refuses(63, "mailto%3Aana%2540example.com%40", verdict.PercentEncoded),
	refuses(63, "ana%40example.com%", verdict.PercentEncoded),
	refuses(63, "ana%40", verdict.PercentEncoded),
	refuses(63, "ana%00%40example.com", verdict.PercentEncoded),
	refuses(63, "ana%ff%40example.com", verdict.PercentEncoded),
	refuses(63, "ana%2540example.com", verdict.MissingAt),
	accepts(64, "ana@example.photography", "ana@example.photography"),
	accepts(64, "ana@example.museum", "ana@example.museum"),
	accepts(64, "ana@example.xn--vermgensberatung-pwb", "ana@example.xn--vermgensberatung-pwb"),
	accepts(64, "ana@example.com.ck", "ana@example.com.ck"),
	accepts(64, "ana@someone.github.io", "ana@someone.github.io"),
	accepts(64, "ana@github.io", "ana@github.io"),
	suggests(65, "ana@example.con", verdict.TLDUnknown, ana),
	suggests(65, "ANA@mail.example.CON", verdict.TLDUnknown, "ana@mail.example.com"),
	suggests(65, "ana@bücher.con", verdict.TLDUnknown, "ana@xn--bcher-kva.com"),
	refuses(65, "ana@printer.lan", verdict.TLDUnknown),
	refuses(65, "ana@host.internal", verdict.TLDUnknown),
	refuses(65, "ana@host.example", verdict.TLDUnknown),
	refuses(66, "ana@example.invalid", verdict.ReservedDomain),
	refuses(66, "ana@host.localhost", verdict.ReservedDomain),
	refuses(66, "ana@printer.local", verdict.ReservedDomain),
	refuses(66, "ana@example.ONION", verdict.ReservedDomain),
	refuses(66, "ana@example.alt", verdict.ReservedDomain),
	refuses(66, "ana@1.in-addr.arpa", verdict.ReservedDomain),
	refuses(66, "ana@home.arpa", verdict.ReservedDomain),
	refuses(67, "ana@example.test", verdict.ReservedDomain),
	accepts(68, "ana@example.net", "ana@example.net"),
	accepts(68, "ana@example.org", "ana@example.org"),
	accepts(71, "ana@gmial.com", "ana@gmial.com"),
	accepts(72, "ana@ymail.com", "ana@ymail.com"),
	accepts(72, "ana@email.com", "ana@email.com"),
	accepts(73, "ana@mailinator.com", "ana@mailinator.com"),
	accepts(74, "x7k2@privaterelay.appleid.com", "x7k2@privaterelay.appleid.com"),
	accepts(74, "ana@duck.com", "ana@duck.com"),
	accepts(75, "postmaster@example.com", "postmaster@example.com"),
	accepts(76, "ana@gmail.com", "ana@gmail.com"),
	refuses(77, "", verdict.Empty),
	refuses(77, " \t\r\n", verdict.Empty),
	refuses(77, "\u00a0\u200b\ufeff", verdict.Empty),
	refuses(78, "https://example.com", verdict.MissingAt),
	refuses(78, "https://example.com/@ana", verdict.LocalChar),
	refuses(78, "https://ana@example.com", verdict.LocalChar),
	refuses(79, "ana\xff@example.com", verdict.Encoding),
	refuses(79, "ana@exam\xc3ple.com", verdict.Encoding),
	refuses(79, "ana\xed\xa0\x80@example.com", verdict.Encoding),
	refuses(79, "ana\ufffd@example.com", verdict.Encoding),
}

// idnCases are UTS 46 at its edges.
var idnCases = []parseCase{
	refuses(0, "ana@a%2eb.com", verdict.DomainChar),
	refuses(0, "ana@\ufffd.com", verdict.Encoding),
	refuses(0, "ana@a\ue000.com", verdict.IDNInvalid),
	refuses(0, "ana@a\u200fb.com", verdict.IDNInvalid),
	refuses(0, "ana@a\u2135b.com", verdict.IDNInvalid), // golang/go#81525
	refuses(0, "ana@a/ü.com", verdict.DomainChar),
	refuses(0, "ana@a\u2100ü.com", verdict.DomainChar), // U+2100 is a/c
	refuses(0, "ana@..com", verdict.DomainDot),
	suggests(0, "ana@example.com..", verdict.DomainDot, ana),
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tc := range slices.Concat(parseCases, idnCases) {
		t.Run(fmt.Sprintf("row %d: %.60q", tc.row, tc.in), func(t *testing.T) {
			t.Parallel()
			got, err := Parse(tc.in)
			if tc.reason == "" {
				if err != nil || got.Text() != tc.want {
					t.Fatalf("Parse(%q) = %q, %v; want %q (%s)", tc.in, got.Text(), err, tc.want, sources[tc.row])
				}
				return
			}
			refusal, ok := errors.AsType[*Refusal](err)
			if !ok {
				t.Fatalf("Parse(%q) = %q, %v; want a *Refusal", tc.in, got.Text(), err)
			}
			if !got.IsZero() {
				t.Errorf("Parse(%q) gives %q beside an error", tc.in, got.Text())
			}
			if refusal.Reason != tc.reason || refusal.Suggestion != tc.suggestion {
				t.Errorf("Parse(%q) refuses by %s, suggests %q; want %s, %q (%s)",
					tc.in, refusal.Reason, refusal.Suggestion, tc.reason, tc.suggestion, sources[tc.row])
			}
		})
	}
}

// TestEveryRow holds that each row has cases, and each case a row with its source.
func TestEveryRow(t *testing.T) {
	t.Parallel()
	cases := map[int]int{}
	all := slices.Concat(parseCases, idnCases)
	for _, tc := range all {
		cases[tc.row]++
		if sources[tc.row] == "" {
			t.Errorf("%q is of row %d, which has no source", tc.in, tc.row)
		}
	}
	for row := range sources {
		if cases[row] == 0 {
			t.Errorf("row %d has no case", row)
		}
	}
	if len(all) < 300 {
		t.Errorf("%d cases, want 300 or more", len(all))
	}
	seen := map[string]bool{}
	for _, tc := range all {
		if seen[tc.in] {
			t.Errorf("%q is there twice", tc.in)
		}
		seen[tc.in] = true
	}
}

func TestEveryReasonOccurs(t *testing.T) {
	t.Parallel()
	seen := map[verdict.Reason]bool{}
	for _, tc := range parseCases {
		seen[tc.reason] = true
	}
	for _, reason := range verdict.SyntaxReasons {
		if !seen[reason] {
			t.Errorf("no case is refused by %s", reason)
		}
	}
}
