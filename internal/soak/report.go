package soak

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"validator-gw/internal/verimail/simulator"
)

// quiet is what the control's p99 stays below on a machine that has nothing else to do. One row's write has 120 ms, and a
// gateway that does not get the processor for as long as that can't keep what it promises.
const quiet = 50 * time.Millisecond

// Print writes the table of the run and its verdict.
func (l *Ledger) Print(w io.Writer) {
	p := l.Profile
	fmt.Fprintf(w, "soak %s, seed %d: %v/s of new addresses at most, for %v, %d gateway(s) on %s%s\n", p.Name, p.Knobs.Seed, p.Knobs.Rate,
		stretch(p.Stages).Round(time.Second), p.Knobs.Gateways, p.Knobs.Store, map[bool]string{true: " and Redis"}[p.Redis])
	fmt.Fprintf(w, "  to the upstream %v/s, burst %d\n", p.Rate, p.Burst)
	for _, n := range p.Notes {
		fmt.Fprintf(w, "  %s\n", n)
	}
	l.printAnswers(w)
	l.printUpstream(w)
	l.printTotals(w)
	if p.extra != nil {
		p.extra(l, w)
	}
	if p99 := l.control().Quantile(0.99); p99 > quiet {
		fmt.Fprintf(w, "\nTHE MACHINE WAS BUSY: a bare GET /livez took %s ms at p99. Its times mean little, and 503 and calls that bunch may be its doing.\n",
			ms(p99))
	}
	fmt.Fprintln(w)
	broken := l.Check()
	for _, pr := range l.promises() {
		i := slices.IndexFunc(broken, func(b Broken) bool { return b.Promise == pr.name })
		if i < 0 {
			fmt.Fprintf(w, "kept    %s\n", pr.name)
			continue
		}
		fmt.Fprintf(w, "BROKEN  %s\n", pr.name)
		for _, what := range broken[i].What {
			fmt.Fprintf(w, "          %s\n", what)
		}
	}
}

// rows are the stages of each name, in the order in which the names first come.
func (l *Ledger) rows() (names []string, stages map[string][]int) {
	stages = make(map[string][]int)
	for i, s := range l.Profile.Stages {
		if stages[s.Name] == nil {
			names = append(names, s.Name)
		}
		stages[s.Name] = append(stages[s.Name], i)
	}
	return names, stages
}

// table begins a table; its last row is written by Flush.
func table(w io.Writer, columns ...string) *tabwriter.Writer {
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(columns, "\t"))
	return t
}

// ms writes a duration in whole milliseconds, or tenths below ten.
func ms(d time.Duration) string {
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%.1f", d.Seconds()*1000)
	}
	return fmt.Sprintf("%.0f", d.Seconds()*1000)
}

func (l *Ledger) printAnswers(w io.Writer) {
	names, stages := l.rows()
	t := table(w, "what people got", "requests", "200", "202", "other", "p50 ms", "p99", "p99.9", "max", "normal again after", "why 202")
	for _, name := range append(names, "") {
		some := l.people(func(a Answer) bool { return name == "" || l.named(a.Stage, name) })
		d := latencies(some)
		codes := map[int]int{}
		reasons := map[string]int{}
		for _, a := range some {
			if a.Err != "" {
				a.Code = 0
			}
			codes[a.Code]++
			if a.Code == http.StatusAccepted {
				reasons[a.Reason]++
			}
		}
		row, again := name, ""
		switch name {
		case "":
			row = "all"
		default:
			again = l.recoveries(stages[name])
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", row, len(some), codes[200], codes[202],
			len(some)-codes[200]-codes[202], ms(d.Quantile(0.5)), ms(d.Quantile(0.99)), ms(d.Quantile(0.999)), ms(d.Max()), again, most(reasons))
	}
	_ = t.Flush() // as with all printing here, whoever closed the output does not want it
}

// recoveries is the longest recovery after some stages; empty when there was no trouble in them.
func (l *Ledger) recoveries(stages []int) string {
	longest, never := time.Duration(-1), 0
	for _, i := range stages {
		if !l.Profile.Stages[i].Trouble {
			continue
		}
		if d, ok := l.recoveryOf(i); ok {
			longest = max(longest, d)
		} else {
			never++
		}
	}
	switch {
	case never > 0:
		return fmt.Sprintf("%d× not before the next", never)
	case longest >= 0:
		return longest.String()
	default:
		return ""
	}
}

// most writes counts, the largest first.
func most(counts map[string]int) string {
	var parts []string
	for _, k := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	}) {
		parts = append(parts, fmt.Sprintf("%s %d", cmp.Or(k, "(none)"), counts[k]))
	}
	return strings.Join(parts, ", ")
}

func (l *Ledger) printUpstream(w io.Writer) {
	names, stages := l.rows()
	asked, billed := l.addresses(), l.billed()
	t := table(w, "what the upstream saw", "calls", "a second", "billed", "billed per address of this row", "worst second", "allowed", "breaker seen")
	allowed := l.Profile.Rate*(time.Second+rateSlack).Seconds() + float64(l.Profile.Burst)
	row := func(name string, calls []simulator.Call, length time.Duration, worst int, share float64, breakers string) {
		n := 0
		for _, c := range calls {
			if c.Billed {
				n++
			}
		}
		per := "–"
		if !math.IsNaN(share) {
			per = fmt.Sprintf("%.3f", share)
		}
		fmt.Fprintf(t, "%s\t%d\t%.1f\t%d\t%s\t%d\t%.0f\t%s\n", name, len(calls), float64(len(calls))/length.Seconds(), n, per, worst, allowed, breakers)
	}
	for _, name := range names {
		var calls []simulator.Call
		var length time.Duration
		worst := 0
		seen := map[string]bool{}
		for _, i := range stages[name] {
			from, to := l.span(i)
			here := l.callsIn(from, to)
			calls, length = append(calls, here...), length+to-from
			worst = max(worst, simulator.MaxInWindow(here, time.Second))
			for _, state := range strings.Fields(l.breakers(from, to)) {
				seen[state] = true
			}
		}
		people, bills := 0, 0
		for address, stage := range asked {
			if l.named(stage, name) {
				people++
				bills += billed[address]
			}
		}
		row(name, calls, length, worst, float64(bills)/float64(people), strings.Join(slices.Sorted(maps.Keys(seen)), " "))
	}
	end := stretch(l.Profile.Stages)
	if after := l.callsIn(end, math.MaxInt64); len(after) > 0 {
		row("(after the load)", after, max(l.Rested-end, time.Second), simulator.MaxInWindow(after, time.Second), math.NaN(),
			l.breakers(end, math.MaxInt64))
	}
	row("all", l.Calls, max(l.Rested, end), simulator.MaxInWindow(l.Calls, time.Second), l.billedShare(), "")
	_ = t.Flush()
}

func (l *Ledger) printTotals(w io.Writer) {
	accepted := l.accepted()
	ended := 0
	statuses := map[string]int{}
	for _, a := range accepted {
		if e := l.Endings[a.ID]; e.Final() {
			ended++
			statuses[e.Status]++
		}
	}
	var late []time.Duration
	for _, a := range l.Answers {
		late = append(late, a.Sent-a.At)
	}
	sent, control := NewLatencies(late), l.control()
	worst := WorstWindow(arrivals(l.Calls), l.Profile.Rate, l.Profile.Burst, rateSlack)
	mostBilled := 0
	for _, n := range l.billed() {
		mostBilled = max(mostBilled, n)
	}
	fmt.Fprintf(w, "\naccepted ids: %d, ended %d (%s), the last %v after the load of at most %v\n", len(accepted), ended, most(statuses),
		(l.Rested - l.Loaded).Round(100*time.Millisecond), l.Allowed.Round(time.Second))
	l.printBacklog(w)
	if n := len(l.Samples); n > 0 {
		fmt.Fprintf(w, "checks that ended without a verdict, by why no further attempt was made: %s; the breaker opened %d times\n",
			cmp.Or(most(l.Samples[n-1].GaveUp), "none"), l.Samples[n-1].Opened)
	}
	fmt.Fprintf(w, "addresses: %d, most billed calls for one: %d\n", len(l.addresses()), mostBilled)
	fmt.Fprintf(w, "worst window: %d calls within %v, allowed %.1f (rate × (t + %v) + burst), the nearest of all windows\n", worst.Calls,
		worst.To.Sub(worst.From).Round(time.Millisecond), worst.Bound, rateSlack)
	fmt.Fprintf(w, "control, %d × GET /livez in the same run: p50 %s ms, p99 %s, p99.9 %s, max %s; requests left late by p99 %s ms, max %s\n",
		control.Count(), ms(control.Quantile(0.5)), ms(control.Quantile(0.99)), ms(control.Quantile(0.999)), ms(control.Max()),
		ms(sent.Quantile(0.99)), ms(sent.Max()))
}

// printBacklog shows how the reviews drained that were open when the load ended.
func (l *Ledger) printBacklog(w io.Writer) {
	end := stretch(l.Profile.Stages)
	if l.Rested < end+time.Second {
		return
	}
	const steps = 12
	step := max((l.Rested-end)/steps, time.Second)
	var parts []string
	for at := end; at < l.Rested+step; at += step {
		parts = append(parts, fmt.Sprintf("%.0fs %d", (at-end).Seconds(), l.open([]time.Duration{at})[0]))
	}
	fmt.Fprintf(w, "reviews open after the load: %s\n", strings.Join(parts, ", "))
}

func printFleet(l *Ledger, w io.Writer) {
	share, background, people := l.admission()
	fmt.Fprintf(w, "in the flood: %.2f %% of %d people got a token at once, beside %.1f background calls a second\n", 100*share, people, background)
	for i, s := range l.Profile.Stages {
		from, to := l.span(i)
		open := l.open([]time.Duration{from, to})
		fmt.Fprintf(w, "  reviews open over %q: %d → %d\n", s.Name, open[0], open[1])
	}
}

func printBlips(l *Ledger, w io.Writer) {
	kinds := l.blips()
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		n := kinds[name]
		fmt.Fprintf(w, "%s: %d of %d people in it got a verdict (%.1f %%)\n", name, n[1], n[0], 100*float64(n[1])/float64(max(n[0], 1)))
	}
}

// printSeconds shows each second around the changes of Redis.
func printSeconds(l *Ledger, w io.Writer) {
	const around = 6 * time.Second
	t := table(w, "second", "requests", "202", "p50 ms", "p90", "p99", "max", "")
	for i, s := range l.Profile.Stages {
		from, _ := l.span(i)
		if s.Act == NoAct {
			continue
		}
		for at := from - around/2; at < from+around; at += time.Second {
			some := l.people(func(a Answer) bool { return a.At >= at && a.At < at+time.Second })
			d := latencies(some)
			accepted := 0
			for _, a := range some {
				if a.Code == http.StatusAccepted {
					accepted++
				}
			}
			mark := ""
			if at == from {
				mark = "← " + s.Name
			}
			fmt.Fprintf(t, "%+.0f\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", at.Seconds(), len(some), accepted, ms(d.Quantile(0.5)), ms(d.Quantile(0.9)),
				ms(d.Quantile(0.99)), ms(d.Max()), mark)
		}
	}
	_ = t.Flush()
}

// printSeries shows a run over its time, until everything has ended.
func printSeries(l *Ledger, w io.Writer) {
	end := stretch(l.Profile.Stages)
	step := max((end / 24).Round(time.Second), time.Second)
	var times []time.Duration
	for at := time.Duration(0); at < max(l.Rested, end); at += step {
		times = append(times, at)
	}
	ends := make([]time.Duration, len(times))
	for i, at := range times {
		ends[i] = at + step
	}
	open := l.open(ends)
	top := max(slices.Max(open), 1)
	t := table(w, "from", "asked a second", "200", "202", "other", "p50 ms", "p99", "calls a second", "reviews open", "")
	for i, at := range times {
		some := l.people(func(a Answer) bool { return a.At >= at && a.At < at+step })
		d := latencies(some)
		verdicts, accepted := 0, 0
		for _, a := range some {
			switch {
			case a.verdict():
				verdicts++
			case a.Code == http.StatusAccepted:
				accepted++
			}
		}
		fmt.Fprintf(t, "%v\t%.1f\t%d\t%d\t%d\t%s\t%s\t%.1f\t%d\t%s\n", at, float64(len(some))/step.Seconds(), verdicts, accepted,
			len(some)-verdicts-accepted, ms(d.Quantile(0.5)), ms(d.Quantile(0.99)), float64(len(l.callsIn(at, at+step)))/step.Seconds(), open[i],
			strings.Repeat("█", int(math.Ceil(30*float64(open[i])/float64(top)))))
	}
	_ = t.Flush()
}
