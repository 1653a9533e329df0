package verimail

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"validator-gw/internal/verdict"
)

// place is where a value stands in a JSON body: paths that are tried in turn, each a list of keys. A key that is a number
// is also an index into a list.
type place [][]string

// in returns the first value there that is neither absent nor null; nil when there is none.
func (p place) in(body any) any {
	for _, path := range p {
		if v := walk(body, path); v != nil {
			return v
		}
	}
	return nil
}

func walk(v any, path []string) any {
	for _, key := range path {
		switch t := v.(type) {
		case map[string]any:
			v = t[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(t) {
				return nil
			}
			v = t[i]
		default:
			return nil // a text where an object was expected is nothing
		}
	}
	return v
}

// noWord stands for a value that is there and is no word: an object, a list, a boolean. No rule can ask for it.
const noWord = "\x00"

// word is the text of a value as rules compare it: lower case, trimmed. Absent and null read as the empty text.
func word(v any) string {
	switch t := v.(type) {
	case nil:
		return ""
	case string:
		return strings.ToLower(strings.TrimSpace(t))
	case float64:
		return strconv.FormatFloat(t, 'f', -1, 64)
	}
	return noWord
}

// words are the words of a list, or the one of any other value.
func words(v any) []string {
	list, ok := v.([]any)
	if !ok {
		return []string{word(v)}
	}
	if len(list) == 0 {
		return []string{""}
	}
	all := make([]string, len(list))
	for i, e := range list {
		all[i] = word(e)
	}
	return all
}

// truth reads the spellings of a boolean that are seen in the wild. What is absent, null, "unknown" or anything else is
// unknown, never false.
func truth(v any) verdict.Tri {
	switch t := v.(type) {
	case bool:
		return verdict.Known(t)
	case float64:
		if t == 0 || t == 1 {
			return verdict.Known(t == 1)
		}
	case string:
		switch word(t) {
		case "true", "yes", "1":
			return verdict.True
		case "false", "no", "0":
			return verdict.False
		}
	case map[string]any:
		if inner := t["value"]; inner != nil {
			if _, nested := inner.(map[string]any); !nested {
				return truth(inner)
			}
		}
	}
	return verdict.Unknown
}

// number reads a number, also one that is written as a text.
func number(v any) (float64, bool) {
	switch t := v.(type) {
	case float64:
		return t, true
	case string:
		n, err := strconv.ParseFloat(strings.TrimSpace(t), 64)
		return n, err == nil && n == n // no NaN
	}
	return 0, false
}

// moment reads a wait in a body: seconds from now, a Unix time (told apart by size, as in headers) or an RFC 3339 date.
func moment(v any, now time.Time, limit time.Duration) time.Duration {
	if text, ok := v.(string); ok {
		if at, err := time.Parse(time.RFC3339, strings.TrimSpace(text)); err == nil {
			return clampSpan(at.Sub(now), limit)
		}
	}
	n, ok := number(v)
	switch {
	case !ok || n <= 0 || n >= 1e10:
		return 0
	case n >= epochFrom:
		return clampSpan(time.Unix(int64(n), 0).Sub(now), limit)
	}
	return clampSpan(time.Duration(n*float64(time.Second)), limit)
}

// condition is one demand on a body. Exactly one of words, tri and op is set.
type condition struct {
	field string // its name in the profile
	place place
	words []string    // any of them; "" is absent or empty, a * at an end stands for any text
	tri   verdict.Tri // this, and not unknown
	op    string      // >=, >, <=, < against limit
	limit float64
}

func (c *condition) holds(body any) bool {
	v := c.place.in(body)
	switch {
	case c.tri != verdict.Unknown:
		return truth(v) == c.tri
	case c.op != "":
		n, ok := number(v)
		return ok && compare(n, c.op, c.limit)
	}
	for _, have := range words(v) {
		if slices.ContainsFunc(c.words, func(want string) bool { return alike(have, want) }) {
			return true
		}
	}
	return false
}

func compare(n float64, op string, limit float64) bool {
	switch op {
	case ">=":
		return n >= limit
	case ">":
		return n > limit
	case "<=":
		return n <= limit
	}
	return n < limit
}

// alike compares a word of a body with one of a profile. A pattern never matches what is absent or no word.
func alike(have, want string) bool {
	if !strings.Contains(want, "*") {
		return have == want
	}
	if have == "" || have == noWord {
		return false
	}
	inner := strings.Trim(want, "*")
	switch before, after := strings.HasPrefix(want, "*"), strings.HasSuffix(want, "*"); {
	case before && after:
		return strings.Contains(have, inner)
	case before:
		return strings.HasSuffix(have, inner)
	default:
		return strings.HasPrefix(have, inner)
	}
}

// conditions hold when every one of them does; so no conditions always hold.
type conditions []condition

func (c conditions) hold(body any) bool {
	for i := range c {
		if !c[i].holds(body) {
			return false
		}
	}
	return true
}
