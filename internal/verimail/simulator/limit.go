package simulator

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// limiter is a GCRA: it lets through rate calls a second, and burst at once after a rest. The zero value has no limit.
type limiter struct {
	interval  time.Duration // between two calls at the sustained rate
	tolerance time.Duration // how far ahead of that pace a burst may run
	tat       time.Time     // theoretical arrival time of the next call
}

func newLimiter(rate float64, burst int) limiter {
	if rate == 0 {
		return limiter{}
	}
	interval := time.Duration(float64(time.Second) / rate)
	return limiter{interval: interval, tolerance: time.Duration(burst-1) * interval}
}

// allow takes a token; without one it says how long until there is one.
func (l *limiter) allow(now time.Time) (bool, time.Duration) {
	if l.interval == 0 {
		return true, 0
	}
	tat := l.tat
	if tat.Before(now) {
		tat = now
	}
	if wait := tat.Sub(now) - l.tolerance; wait > 0 {
		return false, wait
	}
	l.tat = tat.Add(l.interval)
	return true, 0
}

// Hint is the form in which a 429 or 503 says when to come back. The vendor documents none; these are the forms
// that other providers use.
type Hint string

// The forms of a hint. Times are rounded up to whole seconds, so that who obeys is never early.
const (
	HintNone           Hint = "none"
	HintSeconds        Hint = "seconds"         // Retry-After: 5
	HintDate           Hint = "date"            // Retry-After: Mon, 30 Nov 2026 12:00:05 GMT
	HintEpoch          Hint = "epoch"           // X-RateLimit-Reset: 1796040005
	HintRateLimitEpoch Hint = "ratelimit-epoch" // RateLimit-Reset: 1796040005
	HintRateLimitDelta Hint = "ratelimit-delta" // RateLimit-Reset: 5
)

// Hints lists every form.
var Hints = []Hint{HintNone, HintSeconds, HintDate, HintEpoch, HintRateLimitEpoch, HintRateLimitDelta}

// ParseHint reads the name of a form. Empty text is HintNone.
func ParseHint(text string) (Hint, error) {
	if text == "" {
		return HintNone, nil
	}
	names := make([]string, len(Hints))
	for i, h := range Hints {
		if text == string(h) {
			return h, nil
		}
		names[i] = string(h)
	}
	return HintNone, fmt.Errorf("unknown hint %q: one of %s", text, strings.Join(names, ", "))
}

func (h Hint) set(header http.Header, now time.Time, wait time.Duration) {
	at := now.Add(wait)
	if whole := at.Truncate(time.Second); whole.Before(at) {
		at = whole.Add(time.Second)
	}
	delta := strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10)
	epoch := strconv.FormatInt(at.Unix(), 10)
	switch h {
	case HintSeconds:
		header.Set("Retry-After", delta)
	case HintDate:
		header.Set("Retry-After", at.UTC().Format(http.TimeFormat))
	case HintEpoch:
		header.Set("X-RateLimit-Reset", epoch)
	case HintRateLimitEpoch:
		header.Set("RateLimit-Reset", epoch)
	case HintRateLimitDelta:
		header.Set("RateLimit-Reset", delta)
	}
}
