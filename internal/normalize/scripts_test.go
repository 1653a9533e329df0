package normalize

import (
	"testing"
	"unicode"
)

func TestSingleScript(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		label string
		want  bool
	}{
		{"example", true},
		{"1234-5", true},
		{"bücher", true},
		{"пример", true},
		{"пример-24", true},
		{"παράδειγμα", true},
		{"παρα\u0301δειγμα", true}, // a combining mark is of no script
		{"例え", true},
		{"例えテスト", true},
		{"ラーメン", true}, // U+30FC is of no script
		{"例ㄅ", true},
		{"例한국", true},
		{"한국", true},
		{"ㄅㄆ", true},
		{"ไทย", true},
		{"אבג", true},
		{"ᮃᮒᮥᮒ", true}, // Sundanese, which is none of the usual
		{"☃", true},
		{"", true},
		{"p\u0430ypal", false}, // CYRILLIC SMALL LETTER A
		{"gma\u0456l", false},
		{"\u03bfffice", false}, // GREEK SMALL LETTER OMICRON
		{"αд", false},
		{"例a", false},
		{"a例え", false},
		{"えㄅ", false},
		{"え한", false},
		{"한ㄅ", false},
		{"例え한", false},
		{"例я", false},
		{"я例", false},
		{"ไทa", false},
		{"ᮃא", false},
		{"a\U000e01f0", false}, // not assigned
	} {
		if got := singleScript(tc.label); got != tc.want {
			t.Errorf("singleScript(%+q) = %v, want %v", tc.label, got, tc.want)
		}
	}
}

// TestScriptsDoNotOverlap holds what scriptOf leans on, for all letters: a character is in one script only.
func TestScriptsDoNotOverlap(t *testing.T) {
	t.Parallel()
	for r := rune(0x80); r < 0x2fa20; r++ {
		if !unicode.IsLetter(r) {
			continue
		}
		n := 0
		for _, table := range unicode.Scripts {
			if unicode.Is(table, r) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%U is in %d scripts", r, n)
		}
	}
}
