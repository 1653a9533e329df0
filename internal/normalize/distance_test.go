package normalize

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// plainDistance is optimal string alignment as it is defined, by recursion.
func plainDistance(a, b string) int {
	switch {
	case a == "":
		return len(b)
	case b == "":
		return len(a)
	}
	n := plainDistance(a[1:], b[1:])
	if a[0] != b[0] {
		n = 1 + min(n, plainDistance(a[1:], b), plainDistance(a, b[1:]))
		if len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0] {
			n = min(n, 1+plainDistance(a[2:], b[2:]))
		}
	}
	return n
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b  string
		limit int
		want  int
	}{
		{"", "", 2, 0}, {"a", "", 2, 1}, {"", "ab", 2, 2}, {"abc", "", 2, 3},
		{"gmial.com", "gmail.com", 2, 1},
		{"gmai.com", "gmail.com", 2, 1}, {"gmaill.com", "gmail.com", 2, 1}, {"gnail.com", "gmail.com", 2, 1},
		{"htomial.com", "hotmail.com", 2, 2},
		{"ca", "abc", 3, 3}, // 2 if an edited character could be edited again
		{"yopmail.com", "hotmail.com", 2, 2}, {"yopmail.com", "hotmail.com", 1, 2},
		{"abcdef", "ghijkl", 2, 3}, {"abcdef", "ghijkl", 9, 6},
		{strings.Repeat("a", 48), strings.Repeat("a", 47), 1, 1},
		{strings.Repeat("a", 49), strings.Repeat("a", 49), 1, 2}, // too long to compare
		{strings.Repeat("a", 1<<20), "a", 1, 2},
	} {
		if got := distance(tc.a, tc.b, tc.limit); got != tc.want {
			t.Errorf("distance(%.20q, %.20q, %d) = %d, want %d", tc.a, tc.b, tc.limit, got, tc.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[abc]{0,7}`)
		a, b, limit := word.Draw(t, "a"), word.Draw(t, "b"), rapid.IntRange(0, 8).Draw(t, "limit")
		want := min(plainDistance(a, b), limit+1)
		if got := distance(a, b, limit); got != want {
			t.Errorf("distance(%q, %q, %d) = %d, want %d", a, b, limit, got, want)
		}
		if got := distance(b, a, limit); got != want {
			t.Errorf("distance(%q, %q, %d) = %d, want %d", b, a, limit, got, want)
		}
	})
}
