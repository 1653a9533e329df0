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
	hintBody    = "body"
	hintAbsent  = "absent"
	hintInvalid = "invalid"
)

var hintForms = []string{hintSeconds, hintDate, hintReset, hintBody, hintAbsent, hintInvalid}

// How a profile says that a hint header is written.
const (
	formHTTP    = "http"    // as Retry-After is: seconds, or one of HTTP's dates
	formSeconds = "seconds" // from now
	formEpoch   = "epoch"   // a Unix time in seconds
	formAuto    = "auto"    // seconds from now, or a Unix time: told apart by size
)

// hint is a header that may say when to come back.
type hint struct{ header, form string }

// hints are asked in their order; the first that is there counts.
type hints []hint

// defaultHints are read where a profile names none: providers use both spellings of the second, and write either seconds
// from now or a Unix time.
var defaultHints = hints{{"Retry-After", formHTTP}, {"RateLimit-Reset", formAuto}, {"X-RateLimit-Reset", formAuto}}

// epochFrom tells a Unix time from a delta: no provider asks for a wait of 30 years.
const epochFrom = 1_000_000_000

// read returns the wait that a response asks for. Retry-After may be seconds (plain digits, at most ten of
// them) or a date in any of HTTP's three forms (RFC 9110, 5.6.7 and 10.2.3); a date is read against the
// response's own Date, so that the two clocks need not agree. A past date is a wait of 0. What can't be read is
// hintInvalid and no wait. The wait is clamped to limit.
func (all hints) read(h http.Header, now time.Time, limit time.Duration) (wait time.Duration, form string) {
	for _, hint := range all {
		v := strings.TrimSpace(h.Get(hint.header))
		if v == "" {
			continue
		}
		n, ok := digits(v)
		switch {
		case hint.form == formHTTP && ok:
			return clamp(n, limit), hintSeconds
		case hint.form == formHTTP:
			at, err := http.ParseTime(v)
			if err != nil {
				return 0, hintInvalid
			}
			return clampSpan(at.Sub(serverNow(h, now)), limit), hintDate
		case !ok:
			return 0, hintInvalid
		case hint.form == formEpoch, hint.form == formAuto && n >= epochFrom:
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
