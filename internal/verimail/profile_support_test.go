package verimail

import (
	"net/http"
	"time"
)

// retryAfter reads the hints of a profile that names none.
func retryAfter(h http.Header, now time.Time, limit time.Duration) (time.Duration, string) {
	return defaultHints.read(h, now, limit)
}
