package idempotency

import "errors"

// MaxKey bounds a key, in characters.
const MaxKey = 255

// ErrMalformedKey: the header is not 1 to MaxKey visible ASCII characters, bare or as a quoted string.
var ErrMalformedKey = errors.New("malformed idempotency key")

// ParseKey reads the value of an Idempotency-Key header. The draft (draft-ietf-httpapi-idempotency-key-header-07, section
// 2.1) makes it a string of RFC 9651 (section 3.3.3): quoted, with \" and \\ as its only escapes. Many clients send it
// bare, so that is read, too, and means the same: "abc" and abc are one key. Blanks are not part of a key, and neither are
// the parameters that a structured field may have.
func ParseKey(header string) (string, error) {
	key := header
	if header != "" && header[0] == '"' {
		var ok bool
		if key, ok = unquote(header); !ok {
			return "", ErrMalformedKey
		}
	}
	if key == "" || len(key) > MaxKey {
		return "", ErrMalformedKey
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return "", ErrMalformedKey
		}
	}
	return key, nil
}

// unquote reads a quoted string that begins with its quotation mark.
func unquote(s string) (string, bool) {
	if len(s) > 2*MaxKey+2 {
		return "", false
	}
	out := make([]byte, 0, len(s))
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return string(out), i == len(s)-1
		case '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", false
			}
		}
		out = append(out, s[i])
	}
	return "", false
}
