// Package debounce makes one action of a burst of events. A burst of one key ends when no event came for a quiet time,
// and in any case a longest time after its first event, so that a stream of events does not put the action off for ever.
//
// Local does so in one process and Fleet among all that share a Redis. Neither is durable: what must not be lost is
// written elsewhere before an event is armed, with the time at which it is acted on should nobody say earlier that the burst
// is over. Turns spares such writes: those who want the same thing written at the same time share one. Latest is for
// requests that wait: of a session's only the newest goes on.
package debounce

import "time"

// Window says when a burst is over: Quiet after its last event, and Max after its first at the latest. Both are positive.
type Window struct {
	Quiet, Max time.Duration
}

// Due is when a burst that began at first ends, if its last event is now.
func (w Window) Due(first, now time.Time) time.Time {
	due, latest := now.Add(w.Quiet), first.Add(w.Max)
	if latest.Before(due) {
		return latest
	}
	return due
}
