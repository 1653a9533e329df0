package validate

import (
	"sync"
	"time"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// How long a check that was paid for and brought no verdict answers those who come before its row is written, and how
// many are remembered. It is what other replicas are told, too (flight.Lease.Failed).
const (
	recentLife  = 1500 * time.Millisecond
	recentLimit = 10_000
)

// recent are the checks that failed a moment ago, in this process: the next request for such an address must not ask
// again only because the row of the one before it is on its way to the store. The zero value is ready; safe for
// concurrent use.
type recent struct {
	mu sync.Mutex
	m  map[normalize.Fingerprint]failure
}

type failure struct {
	reason verdict.Reason
	until  time.Time
}

// add remembers a failure. Over the limit it is not remembered, which costs a call at the most.
func (r *recent) add(fp normalize.Fingerprint, reason verdict.Reason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if len(r.m) >= recentLimit {
		for fp, f := range r.m {
			if !now.Before(f.until) {
				delete(r.m, fp)
			}
		}
	}
	if len(r.m) >= recentLimit {
		return
	}
	if r.m == nil {
		r.m = make(map[normalize.Fingerprint]failure)
	}
	r.m[fp] = failure{reason, now.Add(recentLife)}
}

// of returns the reason of a failure that is remembered. Asking does not make it last longer.
func (r *recent) of(fp normalize.Fingerprint) (verdict.Reason, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, ok := r.m[fp]
	if ok && !time.Now().Before(f.until) {
		delete(r.m, fp)
		ok = false
	}
	return f.reason, ok
}
