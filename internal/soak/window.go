package soak

import "time"

// Window is a stretch of a log of calls that begins and ends with a call, both counted.
type Window struct {
	From, To time.Time
	Calls    int
	// Bound is the number of calls that were allowed in it.
	Bound float64
}

// Over is by how many calls the bound was exceeded; 0 or less when it was kept.
func (w Window) Over() float64 { return float64(w.Calls) - w.Bound }

// WorstWindow returns, of all windows of any length t, the one in which the calls exceeded rate·(t + slack) + burst by
// most or, when none did, came nearest to it. The times are in order, rate is in calls a second. It takes linear time:
// the excess of the worst window that ends with a call is the level of a bucket that each call fills by one and that
// leaks at the rate, and the window began where the bucket was last empty. Without calls it returns a window without
// calls.
func WorstWindow(at []time.Time, rate float64, burst int, slack time.Duration) Window {
	if len(at) == 0 {
		return Window{}
	}
	var first, worstFirst, worstLast int
	level, worst := 0.0, -1.0
	for i, t := range at {
		if i > 0 {
			level -= rate * t.Sub(at[i-1]).Seconds()
		}
		if level <= 0 {
			level, first = 0, i
		}
		level++
		if level > worst {
			worst, worstFirst, worstLast = level, first, i
		}
	}
	w := Window{From: at[worstFirst], To: at[worstLast], Calls: worstLast - worstFirst + 1}
	w.Bound = rate*(w.To.Sub(w.From)+slack).Seconds() + float64(burst)
	return w
}
