package idempotency

import (
	"errors"
	"strings"
	"testing"
)

func TestParseKey(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("k", MaxKey)
	for header, want := range map[string]string{
		// The draft's own example (section 2.1), and the same bare.
		`"8e03978e-40d5-43dd-bc93-6894a57f9324"`: "8e03978e-40d5-43dd-bc93-6894a57f9324",
		`8e03978e-40d5-43dd-bc93-6894a57f9324`:   "8e03978e-40d5-43dd-bc93-6894a57f9324",
		// RFC 9651 3.3.3: \" and \\ are the only escapes.
		`"a\"b\\c"`: `a"b\c`,
		`a"b\c`:     `a"b\c`,
		`!`:         `!`, `~`: `~`,
		longest:             longest,
		`"` + longest + `"`: longest,
	} {
		if got, err := ParseKey(header); got != want || err != nil {
			t.Errorf("ParseKey(%q) = %q, %v, want %q", header, got, err, want)
		}
	}
	for _, header := range []string{
		"", `""`, `"`, `"abc`, `"abc\`, `"abc\"`, `"a\bc"`, `"abc";p=1`, `"abc" `, `"abc""`, "a b", `"a b"`, "a\tb", "a\x7fb", "ä", `"ä"`,
		longest + "k", `"` + longest + `k"`, `"` + strings.Repeat(`\\`, MaxKey+1) + `"`, strings.Repeat("k", 1<<16),
	} {
		if got, err := ParseKey(header); !errors.Is(err, ErrMalformedKey) {
			t.Errorf("ParseKey(%.40q) = %.40q, %v, want ErrMalformedKey", header, got, err)
		}
	}
}
