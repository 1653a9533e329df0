package flight_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// history is what happened to one key in a fleet of three processes. All times are of one monotonic clock, from the history's
// begin. A work's interval is taken inside of it, a call's outside: what the rules find out of order was out of order.
//
// The object is small: in each process a register that is written once, and in the fleet one that is written once while
// Redis is well. So no search for an order of the operations is needed, as a checker of any object would make: the rules
// are laws on intervals, and name what broke.
type history struct {
	works []work
	calls []call
	// died is when a process was ended, as by SIGKILL; zero: it was not.
	died [replicas]time.Duration
	// well says that Redis answered everyone in time, that nothing was forgotten, and that no process stood still.
	well bool
}

const replicas = 3

// work is one question to the upstream.
type work struct {
	name    string // what its verdict carries, if it brought one
	process int
	from    time.Duration
	to      time.Duration // zero: it never ended
	end     end
}

// end is how a work ended.
type end string

const (
	succeeded end = "verdict"
	failed    end = "failure" // asked, and no verdict
	refused   end = "refused" // by a limit of the process's own: nothing was asked
	panicked  end = "panic"
	hung      end = "hung" // until its own deadline, or a stop
	died      end = "died" // with its process
)

// call is one who asked.
type call struct {
	process  int
	from     time.Duration
	to       time.Duration // zero: it never returned
	patience time.Duration
	verdict  bool
	of       string // the name of the work whose verdict it got
	err      bool   // neither a verdict nor a row, and it was told so
	gone     bool   // its process died under it
}

// rule is one promise.
type rule string

const (
	oneInProcess  rule = "a process has one work of a key in the air at most"
	oneInFleet    rule = "while Redis is well the fleet has one work of a key in the air at most"
	paidOnce      rule = "while Redis is well nobody asks after an answer"
	notInvented   rule = "a verdict is that of a work of this key, which had ended"
	noFailure     rule = "a failure is no verdict"
	oncePerLife   rule = "after a caller got a verdict its process asks no more"
	notForgotten  rule = "who comes after a verdict in a process gets it, unless the machine leaves no time"
	everyReturn   rule = "everyone gets an answer"
	bounded       rule = "a caller is worth two works at most, and a process one success"
	afterTheDeath rule = "the dead do nothing"
)

// broken is a rule and how it was broken.
type broken struct {
	rule rule
	how  string
}

func (b broken) String() string { return fmt.Sprintf("%s: %s", b.rule, b.how) }

// check returns what the history breaks.
func (h history) check() (found []broken) {
	report := func(r rule, format string, args ...any) {
		found = append(found, broken{r, fmt.Sprintf(format, args...)})
	}
	h.checkOverlaps(report)
	h.checkAnswers(report)
	h.checkOrder(report)
	successes := [replicas]int{}
	for _, w := range h.works {
		if w.end == succeeded {
			successes[w.process]++
		}
		if at := h.died[w.process]; at > 0 && (w.from > at || w.to > at) {
			report(afterTheDeath, "%v of a process that died at %v", w, at)
		}
	}
	if slices.Max(successes[:]) > 1 || len(h.works) > 2*len(h.calls) {
		report(bounded, "%d works for %d callers, successes by process %v", len(h.works), len(h.calls), successes)
	}
	return found
}

func (h history) checkOverlaps(report func(rule, string, ...any)) {
	for i, a := range h.works {
		for _, b := range h.works[i+1:] {
			switch {
			case !a.overlaps(b):
			case a.process == b.process:
				report(oneInProcess, "%v and %v", a, b)
			case h.well:
				report(oneInFleet, "%v and %v", a, b)
			}
		}
	}
}

func (h history) checkAnswers(report func(rule, string, ...any)) {
	byName := map[string]work{}
	for _, w := range h.works {
		byName[w.name] = w
	}
	for _, c := range h.calls {
		switch w, ok := byName[c.of]; {
		case c.gone:
		case c.to == 0:
			report(everyReturn, "%v", c)
		case !c.verdict:
		case ok && w.end != succeeded:
			report(noFailure, "%v, of %v", c, w)
		case !ok, w.to == 0, w.to > c.to:
			report(notInvented, "%v, of %v", c, w)
		}
	}
}

// checkOrder looks at what comes after a verdict.
func (h history) checkOrder(report func(rule, string, ...any)) {
	for _, c := range h.calls {
		if !c.verdict || c.gone || c.to == 0 {
			continue
		}
		for _, w := range h.works {
			if w.process == c.process && w.from > c.to {
				report(oncePerLife, "%v, then %v", c, w)
			}
		}
		for _, later := range h.calls {
			inTime := later.to > 0 && later.to-later.from < later.patience
			if later.process == c.process && later.from > c.to && inTime && !later.gone && !later.verdict {
				report(notForgotten, "%v, then %v", c, later)
			}
		}
	}
	if !h.well {
		return
	}
	for _, a := range h.works {
		if a.end != succeeded || h.died[a.process] > 0 { // who dies may take the answer along
			continue
		}
		for _, b := range h.works {
			if b.from > a.to {
				report(paidOnce, "%v, then %v", a, b)
			}
		}
	}
}

func (a work) overlaps(b work) bool {
	return (b.to == 0 || a.from < b.to) && (a.to == 0 || b.from < a.to)
}

func (a work) String() string {
	return fmt.Sprintf("work %s in %d from %v to %v: %s", a.name, a.process, a.from.Round(time.Microsecond), a.to.Round(time.Microsecond), a.end)
}

func (c call) String() string {
	got := "no verdict"
	switch {
	case c.gone:
		got = "died"
	case c.err:
		got = "an error"
	case c.verdict:
		got = "verdict of " + c.of
	}
	return fmt.Sprintf("call in %d from %v to %v (%v): %s", c.process, c.from.Round(time.Microsecond), c.to.Round(time.Microsecond), c.patience, got)
}

// String lists the history by time, for whoever has to understand one.
func (h history) String() string {
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	for _, w := range h.works {
		lines = append(lines, line{w.from, w.String()})
	}
	for _, c := range h.calls {
		lines = append(lines, line{c.from, c.String()})
	}
	for i, at := range h.died {
		if at > 0 {
			lines = append(lines, line{at, fmt.Sprintf("%d dies at %v", i, at)})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return int(a.at - b.at) })
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "\n\t%s", l.text)
	}
	return b.String()
}

// TestHistoryCheckBites: each rule finds the history that breaks it, and no other finds anything there.
func TestHistoryCheckBites(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	did := func(name string, process int, from, to time.Duration, e end) work {
		return work{name: name, process: process, from: from * ms, to: to * ms, end: e}
	}
	got := func(process int, from, to time.Duration, of string) call {
		return call{process: process, from: from * ms, to: to * ms, patience: 800 * ms, verdict: of != "", of: of}
	}
	for name, c := range map[string]struct {
		history history
		want    []rule
	}{
		"nothing": {history{well: true}, nil},
		"one work, three processes": {history{well: true,
			works: []work{did("a", 0, 10, 50, succeeded)},
			calls: []call{got(0, 1, 52, "a"), got(1, 2, 70, "a"), got(2, 3, 71, "a"), got(1, 90, 91, "a")}}, nil},
		"failures one after another": {history{well: true,
			works: []work{did("a", 0, 10, 50, failed), did("b", 1, 60, 70, refused), did("c", 1, 80, 90, panicked), did("d", 2, 95, 99, succeeded)},
			calls: []call{got(0, 1, 52, ""), got(1, 2, 92, ""), got(2, 3, 101, "d"), got(0, 100, 110, "d")}}, nil},
		"Redis away: each process once": {history{
			works: []work{did("a", 0, 10, 50, succeeded), did("b", 1, 10, 60, succeeded), did("c", 2, 90, 99, succeeded)},
			calls: []call{got(0, 1, 52, "a"), got(1, 2, 92, "b"), got(2, 3, 101, "c"), got(2, 110, 120, "a")}}, nil},
		"a death and a take-over": {history{well: true, died: [replicas]time.Duration{0: 30 * ms},
			works: []work{did("a", 0, 10, 30, died), did("b", 1, 1200, 1250, succeeded)},
			calls: []call{{process: 0, from: ms, gone: true}, got(1, 2, 800, ""), got(2, 1201, 1300, "b")}}, nil},
		"the answer died with its finder": {history{well: true, died: [replicas]time.Duration{0: 30 * ms},
			works: []work{did("a", 0, 10, 29, succeeded), did("b", 1, 1200, 1250, succeeded)},
			calls: []call{{process: 0, from: ms, gone: true}, got(1, 1100, 1300, "b")}}, nil},
		"no time to hear it": {history{well: true,
			works: []work{did("a", 0, 10, 50, succeeded)},
			calls: []call{got(1, 1, 70, "a"), got(1, 71, 871, "")}}, nil},

		"two in one process": {history{
			works: []work{did("a", 0, 10, 50, succeeded), did("b", 0, 49, 60, failed)},
			calls: []call{got(0, 1, 70, "a")}}, []rule{oneInProcess}},
		"two in one process, one without an end": {history{
			works: []work{did("a", 0, 10, 0, hung), did("b", 0, 49, 60, failed)},
			calls: []call{got(0, 1, 70, "")}}, []rule{oneInProcess}},
		"two in the fleet": {history{well: true,
			works: []work{did("a", 0, 10, 50, failed), did("b", 1, 20, 60, succeeded)},
			calls: []call{got(0, 1, 52, ""), got(1, 2, 61, "b")}}, []rule{oneInFleet}},
		"two in the fleet beside a death": {history{well: true, died: [replicas]time.Duration{0: 30 * ms},
			works: []work{did("a", 0, 10, 30, died), did("b", 1, 29, 60, succeeded)},
			calls: []call{{process: 0, from: ms, gone: true}, got(1, 2, 61, "b")}}, []rule{oneInFleet}},
		"paid twice": {history{well: true,
			works: []work{did("a", 0, 10, 50, succeeded), did("b", 1, 51, 60, succeeded)},
			calls: []call{got(0, 1, 52, "a"), got(1, 2, 61, "b")}}, []rule{paidOnce}},
		"asked again, if in vain": {history{well: true,
			works: []work{did("a", 0, 10, 50, succeeded), did("b", 1, 51, 60, failed)},
			calls: []call{got(0, 1, 52, "a"), got(1, 2, 61, "")}}, []rule{paidOnce}},
		"another key's verdict": {history{
			works: []work{did("a", 0, 10, 50, succeeded)}, calls: []call{got(0, 1, 52, "z")}}, []rule{notInvented}},
		"a verdict of nobody": {history{
			works: []work{did("a", 0, 10, 50, succeeded)}, calls: []call{{from: 1, to: 52 * ms, verdict: true}}}, []rule{notInvented}},
		"a verdict before its work ended": {history{
			works: []work{did("a", 0, 10, 50, succeeded)}, calls: []call{got(1, 1, 49, "a")}}, []rule{notInvented}},
		"a failure as a verdict": {history{
			works: []work{did("a", 0, 10, 50, failed)}, calls: []call{got(0, 1, 52, "a")}}, []rule{noFailure}},
		"asked again by who knows": {history{
			works: []work{did("a", 0, 10, 50, succeeded), did("b", 1, 71, 80, failed)},
			calls: []call{got(1, 1, 70, "a"), got(2, 1, 70, "a")}}, []rule{oncePerLife}},
		"a verdict forgotten": {history{well: true,
			works: []work{did("a", 0, 10, 50, succeeded)},
			calls: []call{got(1, 1, 70, "a"), got(1, 71, 75, ""), got(2, 71, 75, "")}}, []rule{notForgotten}},
		"an error after a verdict": {history{
			works: []work{did("a", 0, 10, 50, succeeded)},
			calls: []call{got(1, 1, 70, "a"), {process: 1, from: 71 * ms, to: 75 * ms, patience: 800 * ms, err: true}}}, []rule{notForgotten}},
		"nobody answers": {history{well: true,
			works: []work{did("a", 0, 10, 50, succeeded)}, calls: []call{got(1, 1, 0, "")}}, []rule{everyReturn}},
		"many works for one caller": {history{
			works: []work{did("a", 0, 10, 20, failed), did("b", 0, 21, 30, failed), did("c", 0, 31, 40, failed)},
			calls: []call{got(0, 1, 52, "")}}, []rule{bounded}},
		"two successes in a process": {history{
			works: []work{did("a", 0, 10, 20, succeeded), did("b", 0, 21, 30, succeeded)},
			calls: []call{got(0, 1, 52, "b")}}, []rule{bounded}},
		"the dead ask": {history{died: [replicas]time.Duration{2: 30 * ms},
			works: []work{did("a", 2, 31, 40, failed)}, calls: []call{{process: 2, from: ms, gone: true}}}, []rule{afterTheDeath}},
	} {
		var rules []rule
		for _, b := range c.history.check() {
			rules = append(rules, b.rule)
		}
		if slices.Sort(rules); !slices.Equal(slices.Compact(rules), c.want) {
			t.Errorf("%s: found %q, want %q; the history:%v", name, rules, c.want, c.history)
		}
	}
}
