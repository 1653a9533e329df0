package verdict

import "time"

// Marker says that an address is recorded for review: repeats get the same answer and cost nothing until it
// ends. It is never a verdict.
type Marker struct {
	ID          string    `json:"id"`
	Reason      Reason    `json:"reason"`
	NextCheckAt time.Time `json:"next_check_at"`
	// Until is when a request may ask the upstream again.
	Until time.Time `json:"until"`
}

// Cached is what a cache knows of an address: exactly one of the two is set.
type Cached struct {
	Verdict *Verdict `json:"v,omitempty"`
	Marker  *Marker  `json:"m,omitempty"`
}

// Fresh says that a verdict needs no new check, or that a marker still holds.
func (k Cached) Fresh(now time.Time) bool {
	switch {
	case k.Verdict != nil:
		return now.Before(k.Verdict.SoftUntil)
	case k.Marker != nil:
		return now.Before(k.Marker.Until)
	}
	return false
}

// Life is how long it may still be kept; not positive when it is over.
func (k Cached) Life(now time.Time) time.Duration {
	switch {
	case k.Verdict != nil:
		return k.Verdict.HardUntil.Sub(now)
	case k.Marker != nil:
		return k.Marker.Until.Sub(now)
	}
	return 0
}
