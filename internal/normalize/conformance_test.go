package normalize

import (
	"bufio"
	"compress/gzip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"golang.org/x/net/idna"
	"golang.org/x/text/unicode/norm"

	"validator-gw/internal/verdict"
)

// conformanceFile is IdnaTestV2.txt of Unicode 13.0.0; NOTICE has where it is from and its terms.
const conformanceFile = "testdata/IdnaTestV2-13.0.0.txt.gz"

type conformanceRow struct {
	line   int
	source string
	ascii  string // toASCII, non-transitional
	status string // of that; empty if it is right
}

var escape = regexp.MustCompile(`\\u([0-9A-F]{4})|\\x\{([0-9A-F]+)\}`)

func conformanceRows(t testing.TB) (rows []conformanceRow) {
	t.Helper()
	f, err := os.Open(conformanceFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(unzip)
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		columns := strings.Split(line, ";")
		if len(columns) < 7 {
			continue
		}
		for i, column := range columns {
			columns[i] = escape.ReplaceAllStringFunc(strings.TrimSpace(column), func(s string) string {
				r, err := strconv.ParseUint(strings.Trim(s, `\ux{}`), 16, 32)
				if err != nil {
					t.Fatalf("line %d: %v", n, err)
				}
				return string(rune(r))
			})
		}
		orElse := func(column, otherwise string) string {
			if column == "" {
				return otherwise
			}
			return column
		}
		row := conformanceRow{line: n, source: columns[0]}
		row.ascii = orElse(columns[3], orElse(columns[1], row.source))
		row.status = strings.Trim(orElse(columns[4], columns[2]), "[]")
		rows = append(rows, row)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}

// changed are the characters that UTS 46 treats otherwise since Unicode 16 than in the file: refused there, and
// now valid (the three signs), mapped to their small letter, ignored, or assigned.
var changed = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x04c0, 0x04c0, 1}, // CYRILLIC LETTER PALOCHKA
		{0x10a0, 0x10c5, 1}, // GEORGIAN CAPITAL LETTERS
		{0x115f, 0x1160, 1}, // HANGUL FILLERS
		{0x2260, 0x2260, 1}, // NOT EQUAL TO
		{0x226e, 0x226f, 1}, // NOT LESS-THAN, NOT GREATER-THAN
	},
	R32: []unicode.Range32{
		{0x323b0, 0x33479, 1}, // CJK UNIFIED IDEOGRAPHS EXTENSION J
	},
}

// explain returns why our answer for a row is not that of the file, or nothing.
func explain(row conformanceRow, reason verdict.Reason) string {
	if bare, ok := strings.CutSuffix(row.ascii, "."); ok && reason == verdict.DomainDot {
		// The root's dot is none that an address has (RFC 5321 4.1.2). All before it must be as the file has it.
		source := strings.TrimRightFunc(row.source, isDot)
		if name, reason := wireName(source); (reason == "") == (row.status == "") && (reason != "" || name == bare) {
			return "trailing dot"
		}
	}
	shown, _ := idna.Punycode.ToUnicode(row.source)
	shown += norm.NFKC.String(shown)
	if row.status != "" && strings.ContainsFunc(shown, func(r rune) bool { return unicode.Is(changed, r) }) && idna.UnicodeVersion >= "16" {
		return "changed in Unicode 16 or 17"
	}
	return ""
}

// TestConformance holds what becomes of a domain against the conformance file of UTS 46: for every row, that it
// has a form in A-labels of legal lengths or has none, by toASCII non-transitional with all checks (STD3,
// hyphens, joiners, Bidi, lengths), and that the form is the file's. Compared is all that is done to a domain
// up to our own rules: at least one dot, no number at the end, a top-level domain that is known.
func TestConformance(t *testing.T) {
	t.Parallel()
	rows := conformanceRows(t)
	// 6,225 rows by the number of lines in the file that are no comment and not empty.
	if len(rows) != 6225 {
		t.Fatalf("%d rows, want 6225", len(rows))
	}
	agree, right, explained := 0, 0, map[string]int{}
	for _, row := range rows {
		name, reason := wireName(row.source)
		if reason == "" && (hasLongLabel(name) || len(name) > maxDomain) {
			reason = verdict.DomainTooLong
		}
		if (reason == "") == (row.status == "") && (reason != "" || name == row.ascii) {
			agree++
			if reason == "" {
				right++
			}
			continue
		}
		if why := explain(row, reason); why != "" {
			explained[why]++
			continue
		}
		t.Errorf("line %d: %+q becomes %+q (%s), want %+q [%s]", row.line, row.source, name, reason, row.ascii, row.status)
	}
	t.Logf("file of Unicode 13.0.0, tables of %s: %d rows, %d agree (%d of them with a form); else %v",
		idna.UnicodeVersion, len(rows), agree, right, explained)
	if agree < 6000 || right < 300 {
		t.Errorf("only %d rows agree, %d of them with a form", agree, right)
	}
}
