package soak

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"validator-gw/internal/verimail/simulator"
)

// Ledger is everything that one run saw. All durations count from the beginning of the load.
type Ledger struct {
	Profile Profile
	Began   time.Time
	// Answers are in the order of the plan, the control requests among them.
	Answers []Answer
	// Loaded is when the last answer had come, Rested when the last review had ended, or the wait for that was given up.
	Loaded, Rested time.Duration
	// Allowed is how long after Loaded the reviews were given.
	Allowed time.Duration
	// Endings are by the id of each 202.
	Endings map[string]Ending
	// Calls are the upstream's log in the order of arrival, Lost how many calls it does not hold.
	Calls []simulator.Call
	Lost  int64
	// Samples are looks at the metrics, in the order of their time.
	Samples []Sample
	// Cut is when the gateways were killed; 0 when they were not.
	Cut time.Duration
	// Down is how long everything took to be there again after a restart.
	Down time.Duration
	// Stops are what was wrong with stopping the gateways, Leaks where a key or an address was logged.
	Stops, Leaks []string
}

// cutOff says that the request was in work when the gateways were killed, and got no answer.
func (l *Ledger) cutOff(a Answer) bool {
	return l.Cut > 0 && a.Err != "" && a.Sent <= l.Cut && a.Got >= l.Cut
}

// person says that the answer is of a person's request and not of the control.
func (a Answer) person() bool { return a.Address != "" }

// verdict says that the answer is final.
func (a Answer) verdict() bool { return a.Code == http.StatusOK && a.Err == "" }

// people are the answers that a selection keeps, without the control.
func (l *Ledger) people(keep func(Answer) bool) []Answer {
	var some []Answer
	for _, a := range l.Answers {
		if a.person() && (keep == nil || keep(a)) {
			some = append(some, a)
		}
	}
	return some
}

// control is how long the control requests took.
func (l *Ledger) control() Latencies {
	var all []time.Duration
	for _, a := range l.Answers {
		if !a.person() {
			all = append(all, a.Took())
		}
	}
	return NewLatencies(all)
}

func latencies(answers []Answer) Latencies {
	all := make([]time.Duration, len(answers))
	for i, a := range answers {
		all[i] = a.Took()
	}
	return NewLatencies(all)
}

// named says whether a stage is of that name.
func (l *Ledger) named(stage int, name string) bool { return l.Profile.Stages[stage].Name == name }

// span is the time from a stage's beginning to its end.
func (l *Ledger) span(stage int) (from, to time.Duration) {
	for _, s := range l.Profile.Stages[:stage] {
		from += s.For
	}
	return from, from + l.Profile.Stages[stage].For
}

// callsIn are the calls from one time up to but without another.
func (l *Ledger) callsIn(from, to time.Duration) []simulator.Call {
	return slices.Collect(func(yield func(simulator.Call) bool) {
		for _, c := range l.Calls {
			if at := c.At.Sub(l.Began); at >= from && at < to && !yield(c) {
				return
			}
		}
	})
}

// arrivals are the times of the calls.
func arrivals(calls []simulator.Call) []time.Time {
	at := make([]time.Time, len(calls))
	for i, c := range calls {
		at[i] = c.At
	}
	return at
}

// addresses are the addresses that were asked for, with the stage of each one's first request.
func (l *Ledger) addresses() map[string]int {
	first := make(map[string]int)
	for _, a := range l.Answers { // in the order of their time
		if _, known := first[a.Address]; a.person() && !known {
			first[a.Address] = a.Stage
		}
	}
	return first
}

// billed counts the billed calls of each address.
func (l *Ledger) billed() map[string]int {
	n := make(map[string]int)
	for _, c := range l.Calls {
		if c.Billed {
			n[c.Address]++
		}
	}
	return n
}

// accepted are the ids of all 202, each with its first answer, in the order of the plan.
func (l *Ledger) accepted() []Answer {
	seen := make(map[string]bool)
	return l.people(func(a Answer) bool {
		if a.Code != http.StatusAccepted || seen[a.ID] {
			return false
		}
		seen[a.ID] = true
		return true
	})
}

// open is the number of accepted reviews that were not ended at each of some times, which are in order.
func (l *Ledger) open(at []time.Duration) []int {
	var begun, ended []time.Duration
	for _, a := range l.accepted() {
		begun = append(begun, a.Got)
		if e := l.Endings[a.ID]; e.Final() {
			// An answer may be known before the person whose request was accepted has read so.
			ended = append(ended, max(e.Checked.Sub(l.Began), a.Got))
		}
	}
	slices.Sort(begun)
	slices.Sort(ended)
	counts := make([]int, len(at))
	for i, t := range at {
		before := func(times []time.Duration) int {
			n, _ := slices.BinarySearch(times, t+1)
			return n
		}
		counts[i] = before(begun) - before(ended)
	}
	return counts
}

// recovery is the time from a trouble's end to the first second in which at least 95 % of the answers are final. Seconds
// count from that end; one in which nobody came does not count. It looks until limit, and says whether there was one.
func (l *Ledger) recovery(end, limit time.Duration) (time.Duration, bool) {
	const share = 0.95
	var all, final []int
	for _, a := range l.people(func(a Answer) bool { return a.At >= end && a.At < limit }) {
		second := int((a.At - end) / time.Second)
		for len(all) <= second {
			all, final = append(all, 0), append(final, 0)
		}
		all[second]++
		if a.verdict() {
			final[second]++
		}
	}
	for i := range all {
		if all[i] > 0 && float64(final[i]) >= share*float64(all[i]) {
			return time.Duration(i) * time.Second, true
		}
	}
	return 0, false
}

// recoveryOf is the recovery after a stage, looked for until the next trouble begins.
func (l *Ledger) recoveryOf(stage int) (time.Duration, bool) {
	_, end := l.span(stage)
	limit := stretch(l.Profile.Stages)
	for i := stage + 1; i < len(l.Profile.Stages); i++ {
		if l.Profile.Stages[i].Trouble {
			limit, _ = l.span(i)
			break
		}
	}
	return l.recovery(end, limit)
}

// breakers are the states of any breaker that were seen in a time, joined.
func (l *Ledger) breakers(from, to time.Duration) string {
	var seen []string
	for _, state := range []string{"closed", "half_open", "open"} {
		if slices.ContainsFunc(l.Samples, func(s Sample) bool {
			return s.At >= from && s.At < to && slices.Contains(s.Breakers, state)
		}) {
			seen = append(seen, state)
		}
	}
	return strings.Join(seen, " ")
}
