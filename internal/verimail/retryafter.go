package verimail

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Forms in which an upstream says when to come back, as metrics name them.
const (
	hintSeconds = "seconds"
	hintDate    = "http_date"
	hintReset   = "reset"
	hintAbsent  = "absent"
	hintInvalid = "invalid"
)

var hintForms = []string{hintSeconds, hintDate, hintReset, hintAbsent, hintInvalid}

// resetHeaders are read when there is no Retry-After, in this order. Providers use both spellings, and write
// either seconds from now or a Unix time.
var resetHeaders = []string{"RateLimit-Reset", "X-RateLimit-Reset"}

// epochFrom tells a Unix time from a delta: no provider asks for a wait of 30 years.
const epochFrom = 1_000_000_000

// retryAfter reads the wait that a response asks for. Retry-After may be seconds (plain digits, at most ten of
// them) or a date in any of HTTP's three forms (RFC 9110, 5.6.7 and 10.2.3); a date is read against the
// response's own Date, so that the two clocks need not agree. A past date is a wait of 0. What can't be read is
// hintInvalid and no wait. The wait is clamped to limit.
func retryAfter(h http.Header, now time.Time, limit time.Duration) (wait time.Duration, form string) {
	if v := strings.TrimSpace(h.Get("Retry-After")); v != "" {
		if d, ok := digits(v); ok {
			return clamp(d, limit), hintSeconds
		}
		at, err := http.ParseTime(v)
		if err != nil {
			return 0, hintInvalid
		}
		return clampSpan(at.Sub(serverNow(h, now)), limit), hintDate
	}
	for _, name := range resetHeaders {
		v := strings.TrimSpace(h.Get(name))
		if v == "" {
			continue
		}
		n, ok := digits(v)
		if !ok {
			return 0, hintInvalid
		}
		if n >= epochFrom {
			return clampSpan(time.Unix(n, 0).Sub(serverNow(h, now)), limit), hintReset
		}
		return clamp(n, limit), hintReset
	}
	return 0, hintAbsent
}

func serverNow(h http.Header, now time.Time) time.Time {
	if at, err := http.ParseTime(h.Get("Date")); err == nil {
		return at
	}
	return now
}

// digits reads at most ten plain digits: more would be no sane wait, and could overflow.
func digits(s string) (int64, bool) {
	if len(s) == 0 || len(s) > 10 {
		return 0, false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

func clamp(seconds int64, limit time.Duration) time.Duration {
	if seconds > int64(limit/time.Second) {
		return limit
	}
	return time.Duration(seconds) * time.Second
}

func clampSpan(d, limit time.Duration) time.Duration { return min(max(d, 0), limit) }
