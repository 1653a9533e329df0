package verimail

import (
	"math"
	"math/big"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"validator-gw/internal/verimail/simulator"
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

// Whatever the tuning and however many the retries, the pause is the formula's, and never below nothing or past the end
// of a Duration. The formula is computed beside it with numbers that have no end.
func TestBackoffLaws(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.OneOf(rapid.Int64(), rapid.Int64Range(-10, 10), rapid.Int64Range(int64(ms), int64(time.Minute)),
				rapid.Just(int64(math.MaxInt64)), rapid.Just(int64(math.MinInt64))).Draw(t, "d"))
		})
		class := ClassTuning{Base: d.Draw(t, "base"), Max: d.Draw(t, "max"), Jitter: d.Draw(t, "jitter")}
		n := rapid.OneOf(rapid.IntRange(0, 70), rapid.Int(), rapid.Just(math.MaxInt)).Draw(t, "n")
		rand := rapid.OneOf(rapid.Float64Range(0, math.Nextafter(1, 0)), rapid.Just(0.0), rapid.Just(math.Nextafter(1, 0))).Draw(t, "rand")

		nought := func(d time.Duration) *big.Int { return big.NewInt(int64(max(d, 0))) }
		bare := new(big.Int).Lsh(nought(class.Base), uint(min(max(n, 0), 64))) // 2^64 times anything is over every limit
		if limit := nought(class.Max); bare.Cmp(limit) > 0 {
			bare = limit
		}
		// Without jitter, or with a draw of nothing, it is exactly that.
		for _, got := range []time.Duration{
			backoff(n, ClassTuning{Base: class.Base, Max: class.Max}, func() float64 { return rand }),
			backoff(n, class, func() float64 { return 0 }),
		} {
			if !bare.IsInt64() || int64(got) != bare.Int64() {
				t.Fatalf("backoff(%d, %+v) without jitter = %v, want %v ns", n, class, got, bare)
			}
		}
		got := backoff(n, class, func() float64 { return rand })
		most := new(big.Int).Add(bare, nought(class.Jitter))
		if int64(got) < bare.Int64() || big.NewInt(int64(got)).Cmp(most) > 0 {
			t.Errorf("backoff(%d, %+v) = %v, want from %v to %v ns", n, class, got, bare, most)
		}
	})
}

// However long the wait that is asked for and however the tuning, a check comes back inside its time, with no more calls
// than it may make, and it sleeps for nothing that does not lead to a call.
func TestPauseLaws(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		wait := rapid.OneOf(rapid.StringMatching(`[0-9]{1,11}`), rapid.SampledFrom([]string{"0", "1", "2", "-1", "soon", "9999999999"}),
			rapid.SampledFrom([]string{"Mon, 30 Nov 2026 12:00:00 GMT", "Monday, 30-Nov-99 12:00:00 GMT", "Mon Nov 30 12:00:00 1970"})).Draw(rt, "retry after")
		d := rapid.OneOf(rapid.Int64Range(0, int64(2*time.Second)), rapid.SampledFrom([]int64{0, math.MaxInt64, math.MinInt64}))
		class := ClassTuning{Base: time.Duration(d.Draw(rt, "base")), Max: time.Duration(d.Draw(rt, "max")),
			Jitter: time.Duration(d.Draw(rt, "jitter")), AttemptTimeout: 600 * ms}
		limit := time.Duration(rapid.SampledFrom([]int64{0, int64(time.Second), int64(time.Hour), math.MaxInt64}).Draw(rt, "limit"))
		budget := time.Duration(rapid.Int64Range(0, int64(5*time.Second)).Draw(rt, "budget"))
		retries := rapid.SampledFrom([]int{0, 1, 5, math.MaxInt}).Draw(rt, "retries")
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{}, answering(http.StatusServiceUnavailable, "", "Retry-After", wait))
			r.retune(func(t *Tuning) { t.Interactive, t.RetryAfterMax = class, limit })
			began := time.Now()
			out := r.askWithin("ana", budget, retries)
			took := time.Since(began)
			if took > max(budget-minAttempt, 0) || took != out.Backoff || out.Sent-1 > retries || out.Final() {
				rt.Errorf("took %v of %v, slept %v, sent %d with %d retries", took, budget, out.Backoff, out.Sent, retries)
			}
			if (out.Sent > 0) != (budget >= minAttempt) {
				rt.Errorf("sent %d within %v", out.Sent, budget)
			}
			if !out.NotBefore.IsZero() && out.NotBefore.Before(began) {
				rt.Errorf("not before %v", out.NotBefore)
			}
			synctest.Wait()
		})
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
				at := time.Unix(rapid.Int64Range(-62135596800, 253402300799).Draw(t, "unix"), 0).UTC()
				return at.Format(rapid.SampledFrom(dateForms).Draw(t, "form"))
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

// dateForms are HTTP's three (RFC 9110, 5.6.7); the second has a year of two digits.
var dateForms = []string{http.TimeFormat, "Monday, 02-Jan-06 15:04:05 GMT", time.ANSIC}

// A date in any form is a wait from the response's own Date, in any form, whatever our clock says.
func TestRetryAfterDates(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		form, ours := rapid.SampledFrom(dateForms), rapid.Int64Range(0, 4e9)
		theirs := time.Unix(rapid.Int64Range(978307200, 2902000000).Draw(t, "their clock"), 0).UTC() // 2001 to 2061
		wait := time.Duration(rapid.Int64Range(-7200, 7200).Draw(t, "wait")) * time.Second
		h := http.Header{"Retry-After": {theirs.Add(wait).Format(form.Draw(t, "form"))}, "Date": {theirs.Format(form.Draw(t, "form of Date"))}}
		want := min(max(wait, 0), time.Hour)
		if got, f := retryAfter(h, time.Unix(ours.Draw(t, "our clock"), 0), time.Hour); got != want || f != hintDate {
			t.Errorf("retryAfter(%q) = %v, %s; want %v, %s", h, got, f, want, hintDate)
		}
	})
}
