package verimail

import (
	"math"
	"net/http"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBackoffSequence(t *testing.T) {
	t.Parallel()
	class := DefaultTuning().Interactive
	for _, tt := range []struct {
		n         int
		low, high time.Duration
	}{{0, 130 * ms, 190 * ms}, {1, 260 * ms, 320 * ms}, {2, 400 * ms, 460 * ms}, {3, 400 * ms, 460 * ms}, {math.MaxInt, 400 * ms, 460 * ms}} {
		if got := backoff(tt.n, class, func() float64 { return 0 }); got != tt.low {
			t.Errorf("backoff(%d) without jitter = %v, want %v", tt.n, got, tt.low)
		}
		if got := backoff(tt.n, class, func() float64 { return math.Nextafter(1, 0) }); got > tt.high || got < tt.high-time.Microsecond {
			t.Errorf("backoff(%d) with all jitter = %v, want up to %v", tt.n, got, tt.high)
		}
	}
}

func TestBackoffLaws(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(0, math.MaxInt64/2).Draw(t, "d"))
		})
		class := ClassTuning{Base: d.Draw(t, "base"), Max: d.Draw(t, "max"), Jitter: d.Draw(t, "jitter")}
		n := rapid.OneOf(rapid.IntRange(0, 70), rapid.Just(math.MaxInt)).Draw(t, "n")
		rand := rapid.Float64Range(0, math.Nextafter(1, 0)).Draw(t, "rand")
		got := backoff(n, class, func() float64 { return rand })
		if least := min(class.Base, class.Max); got < least || got-class.Max > class.Jitter {
			t.Errorf("backoff(%d, %+v) = %v, want from %v to %v + %v", n, class, got, least, class.Max, class.Jitter)
		}
		bare := backoff(n, ClassTuning{Base: class.Base, Max: class.Max}, func() float64 { return rand })
		if n < math.MaxInt && backoff(n+1, ClassTuning{Base: class.Base, Max: class.Max}, func() float64 { return rand }) < bare {
			t.Errorf("backoff falls after retry %d", n)
		}
	})
}

var readAt = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	const date = "Mon, 30 Nov 2026 12:00:00 GMT"
	tests := []struct {
		name   string
		header []string
		wait   time.Duration
		form   string
	}{
		{"none", nil, 0, hintAbsent},
		{"empty", []string{"Retry-After", "  "}, 0, hintAbsent},
		{"seconds", []string{"Retry-After", "120"}, 2 * time.Minute, hintSeconds},
		{"padded", []string{"Retry-After", " 5 "}, 5 * time.Second, hintSeconds},
		{"leading zeros", []string{"Retry-After", "0000000005"}, 5 * time.Second, hintSeconds},
		{"nought", []string{"Retry-After", "0"}, 0, hintSeconds},
		{"an hour", []string{"Retry-After", "3600"}, time.Hour, hintSeconds},
		{"over the limit", []string{"Retry-After", "3601"}, time.Hour, hintSeconds},
		{"ten digits", []string{"Retry-After", "9999999999"}, time.Hour, hintSeconds},
		{"eleven digits", []string{"Retry-After", "99999999999"}, 0, hintInvalid},
		{"times 1e9 overflows", []string{"Retry-After", "9223372037"}, time.Hour, hintSeconds},
		{"negative", []string{"Retry-After", "-5"}, 0, hintInvalid},
		{"signed", []string{"Retry-After", "+5"}, 0, hintInvalid},
		{"fraction", []string{"Retry-After", "1.5"}, 0, hintInvalid},
		{"hex", []string{"Retry-After", "0x10"}, 0, hintInvalid},
		{"other digits", []string{"Retry-After", "٣٠"}, 0, hintInvalid},
		{"words", []string{"Retry-After", "soon"}, 0, hintInvalid},
		{"IMF date", []string{"Retry-After", "Mon, 30 Nov 2026 12:00:30 GMT"}, 30 * time.Second, hintDate},
		{"RFC 850 date", []string{"Retry-After", "Monday, 30-Nov-26 12:00:30 GMT"}, 30 * time.Second, hintDate},
		{"asctime date", []string{"Retry-After", "Mon Nov 30 12:00:30 2026"}, 30 * time.Second, hintDate},
		{"past date", []string{"Retry-After", "Mon, 30 Nov 2026 11:59:59 GMT"}, 0, hintDate},
		{"far date", []string{"Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT"}, time.Hour, hintDate},
		{"ancient date", []string{"Retry-After", "Mon, 01 Jan 0001 00:00:00 GMT"}, 0, hintDate},
		// The server's clock is an hour behind: 30 s by its own Date are 30 s.
		{"server's clock", []string{"Retry-After", "Mon, 30 Nov 2026 11:00:30 GMT", "Date", "Mon, 30 Nov 2026 11:00:00 GMT"}, 30 * time.Second, hintDate},
		{"unreadable Date", []string{"Retry-After", "Mon, 30 Nov 2026 12:00:30 GMT", "Date", "today"}, 30 * time.Second, hintDate},
		{"RateLimit-Reset", []string{"RateLimit-Reset", "30"}, 30 * time.Second, hintReset},
		{"X-RateLimit-Reset", []string{"X-RateLimit-Reset", "30"}, 30 * time.Second, hintReset},
		{"epoch", []string{"X-RateLimit-Reset", strconv.FormatInt(readAt.Unix()+30, 10)}, 30 * time.Second, hintReset},
		{"epoch and Date", []string{"X-RateLimit-Reset", strconv.FormatInt(readAt.Unix()+30, 10), "Date", date}, 30 * time.Second, hintReset},
		{"past epoch", []string{"X-RateLimit-Reset", "1000000000"}, 0, hintReset},
		{"largest delta", []string{"X-RateLimit-Reset", "999999999"}, time.Hour, hintReset},
		{"largest epoch", []string{"X-RateLimit-Reset", "9999999999"}, time.Hour, hintReset},
		{"milliseconds", []string{"X-RateLimit-Reset", strconv.FormatInt(readAt.UnixMilli(), 10)}, 0, hintInvalid},
		{"Retry-After first", []string{"X-RateLimit-Reset", "50", "Retry-After", "5"}, 5 * time.Second, hintSeconds},
	}
	for _, tt := range tests {
		h := http.Header{}
		for i := 0; i < len(tt.header); i += 2 {
			h.Set(tt.header[i], tt.header[i+1])
		}
		if wait, form := retryAfter(h, readAt, time.Hour); wait != tt.wait || form != tt.form {
			t.Errorf("%s: %v, %s; want %v, %s", tt.name, wait, form, tt.wait, tt.form)
		}
	}
}

// Whatever the headers say, the wait is between nothing and the limit, and the form is a known one.
func TestRetryAfterLaws(t *testing.T) {
	t.Parallel()
	known := make(map[string]bool)
	for _, f := range hintForms {
		known[f] = true
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(
			rapid.String(), rapid.StringMatching(`[0-9+-]{0,25}`), rapid.StringMatching(`-?[0-9]{1,20}(\.[0-9]{0,3})?`),
			rapid.Custom(func(t *rapid.T) string {
				return time.Unix(rapid.Int64Range(-62135596800, 253402300799).Draw(t, "unix"), 0).UTC().Format(http.TimeFormat)
			}),
			rapid.Just(""))
		h := http.Header{}
		for _, name := range []string{"Retry-After", "RateLimit-Reset", "X-RateLimit-Reset", "Date"} {
			if v := text.Draw(t, name); v != "" {
				h.Set(name, v)
			}
		}
		limit := time.Duration(rapid.Int64Range(int64(time.Second), int64(24*time.Hour)).Draw(t, "limit"))
		wait, form := retryAfter(h, readAt, limit)
		if wait < 0 || wait > limit || !known[form] {
			t.Errorf("retryAfter(%q, limit %v) = %v, %q", h, limit, wait, form)
		}
		if (form == hintAbsent || form == hintInvalid) && wait != 0 {
			t.Errorf("retryAfter(%q) = %v without a hint", h, wait)
		}
	})
}
