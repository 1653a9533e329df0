package soak

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"validator-gw/internal/verimail/simulator"
)

// The promises' numbers. The slacks are for the machine, not for the gateway.
const (
	answerSlack = 20 * time.Millisecond // p99.9 over the budget
	rateSlack   = 50 * time.Millisecond // on the way to the upstream, calls may bunch that much
	maxBilled   = 1.1                   // billed calls an address, over all addresses
)

// promise is one line of the verdict on a run.
type promise struct {
	name string
	// timing says that the check depends on how fast the machine is.
	timing bool
	check  func(*Ledger) []string // what breaks it
}

const codesPromise = "every request is answered, with 200 or 202"

// common are the promises that hold in every profile.
var common = []promise{
	{name: codesPromise, check: checkCodes},
	{name: "every answer in its budget", timing: true, check: checkBudget},
	{name: "every accepted id is found, and ends", check: checkEnds},
	{name: "no verdict that the upstream did not give", check: checkWords},
	{name: "billed calls per address", check: checkBills},
	{name: "never over the upstream's rate, in any window", timing: true, check: checkRate},
	{name: "an orderly stop, and no key and no address in a log", check: checkStop},
}

// Broken is one promise that a run broke.
type Broken struct {
	Promise string
	// Timing says that a busy machine may be the cause.
	Timing bool
	What   []string // at most five, and how many more
}

// Check returns the broken promises.
func (l *Ledger) Check() []Broken {
	var all []Broken
	for _, p := range l.promises() {
		broken := p.check(l)
		if len(broken) == 0 {
			continue
		}
		const shown = 5
		if more := len(broken) - shown; more > 0 {
			broken = append(broken[:shown:shown], fmt.Sprintf("and %d more", more))
		}
		all = append(all, Broken{Promise: p.name, Timing: p.timing, What: broken})
	}
	return all
}

func (l *Ledger) promises() []promise { return slices.Concat(common, l.Profile.promises) }

func (a Answer) String() string {
	return fmt.Sprintf("request at %v", a.At.Round(time.Millisecond))
}

func checkCodes(l *Ledger) (broken []string) {
	for _, a := range l.Answers {
		switch {
		case l.cutOff(a):
		case a.Err != "":
			broken = append(broken, fmt.Sprintf("%v: %s", a, a.Err))
		case a.Code != http.StatusOK && a.Code != http.StatusAccepted:
			broken = append(broken, fmt.Sprintf("%v: HTTP %d", a, a.Code))
		case a.person() && (a.Code == http.StatusAccepted) != (a.Status == "needs_review"):
			broken = append(broken, fmt.Sprintf("%v: HTTP %d with status %q", a, a.Code, a.Status))
		case a.person() && a.ID == "":
			broken = append(broken, fmt.Sprintf("%v: HTTP %d without an id", a, a.Code))
		}
	}
	return broken
}

// checkBudget allows on top of the promise what the control took in the same run: the machine's and this program's part.
func checkBudget(l *Ledger) (broken []string) {
	took, control := latencies(l.people(nil)), l.control()
	if got, want := took.Quantile(0.999), budget+answerSlack+control.Quantile(0.999); got > want {
		broken = append(broken, fmt.Sprintf("p99.9 is %v, promised %v + %v, control %v",
			milli(got), budget, answerSlack, milli(control.Quantile(0.999))))
	}
	if got, want := took.Max(), wireMax+control.Max(); got > want {
		broken = append(broken, fmt.Sprintf("the longest took %v, promised %v, control %v", milli(got), wireMax, milli(control.Max())))
	}
	return broken
}

func checkEnds(l *Ledger) (broken []string) {
	open := 0
	for _, a := range l.accepted() {
		switch e := l.Endings[a.ID]; {
		case e.Code == http.StatusNotFound:
			broken = append(broken, fmt.Sprintf("%s, accepted at %v, is not found", a.ID, a.Got.Round(time.Millisecond)))
		case e.Err != "" || e.Code != http.StatusOK:
			broken = append(broken, fmt.Sprintf("%s: HTTP %d %s", a.ID, e.Code, e.Err))
		case !e.Final():
			open++
		}
	}
	if open > 0 {
		broken = append(broken, fmt.Sprintf("%d of %d are open %v after the load, allowed are %v",
			open, len(l.Endings), (l.Rested-l.Loaded).Round(time.Second), l.Allowed.Round(time.Second)))
	}
	return broken
}

// word is a status and its reason.
type word struct{ status, reason string }

// said is what each of the provider's words means (verimail.io, docs/results), as far as the mix has them.
var said = map[string]word{
	"deliverable": {"valid", "mailbox_accepted"},
	"hardbounce":  {"invalid", "mailbox_not_found"},
	"inbox_full":  {"risky", "mailbox_full"},
	"catch_all":   {"risky", "catch_all"},
	"disposable":  {"risky", "disposable"},
}

func checkWords(l *Ledger) (broken []string) {
	calls := make(map[string][]simulator.Call)
	for _, c := range l.Calls {
		calls[c.Address] = append(calls[c.Address], c)
	}
	founded := func(address string, w word, got time.Duration) bool {
		return slices.ContainsFunc(calls[address], func(c simulator.Call) bool {
			return said[c.Result] == w && c.At.Sub(l.Began) <= got
		})
	}
	for _, a := range l.people(Answer.verdict) {
		if w := (word{a.Status, a.Reason}); !founded(a.Address, w, a.Got) {
			broken = append(broken, fmt.Sprintf("%v: %v was not the upstream's word", a, w))
		}
	}
	for _, a := range l.accepted() {
		e := l.Endings[a.ID]
		if w := (word{e.Status, e.Reason}); e.Final() && !founded(a.Address, w, l.Rested) {
			broken = append(broken, fmt.Sprintf("%s ended %v, which was not the upstream's word", a.ID, w))
		}
	}
	return broken
}

func checkBills(l *Ledger) (broken []string) {
	if l.Lost > 0 {
		return []string{fmt.Sprintf("the upstream's log lacks %d calls", l.Lost)}
	}
	if got := l.billedShare(); got > maxBilled {
		broken = append(broken, fmt.Sprintf("%.3f billed calls an address, promised %v", got, maxBilled))
	}
	asked := l.addresses()
	for _, address := range slices.Sorted(maps.Keys(l.billed())) {
		if _, ok := asked[address]; !ok {
			broken = append(broken, "an address was billed that nobody asked about")
		}
	}
	return broken
}

// billedShare is the billed calls for each address that was asked about.
func (l *Ledger) billedShare() float64 {
	total := 0
	for _, n := range l.billed() {
		total += n
	}
	return float64(total) / float64(max(len(l.addresses()), 1))
}

func checkRate(l *Ledger) []string {
	w := WorstWindow(arrivals(l.Calls), l.Profile.Rate, l.Profile.Burst, rateSlack)
	if w.Over() <= 1e-6 {
		return nil
	}
	return []string{fmt.Sprintf("%d calls in %v from %v on, %.1f allowed", w.Calls, w.To.Sub(w.From).Round(time.Millisecond),
		w.From.Sub(l.Began).Round(time.Millisecond), w.Bound)}
}

func checkStop(l *Ledger) []string { return slices.Concat(l.Stops, l.Leaks) }

// checkRecoveries: before the next trouble begins, where the rest is long enough for the breaker to find out.
func checkRecoveries(l *Ledger) (broken []string) {
	for i, s := range l.Profile.Stages {
		if !s.Trouble {
			continue
		}
		if _, ok := l.recoveryOf(i); !ok {
			broken = append(broken, fmt.Sprintf("after %s no second has 95 %% final answers before the next trouble", s.Name))
		}
	}
	return broken
}

// admission is the share of the people in the flood who were not turned away for want of a token, and how many calls a
// second the background made beside them.
func (l *Ledger) admission() (share, background float64, people int) {
	asked := l.addresses()
	refused := 0
	for _, a := range l.people(func(a Answer) bool { return l.named(a.Stage, stageFlood) }) {
		people++
		if a.Reason == "limiter_saturated" {
			refused++
		}
	}
	for i := range l.Profile.Stages {
		if !l.named(i, stageFlood) {
			continue
		}
		from, to := l.span(i)
		for _, c := range l.callsIn(from, to) {
			if stage, ok := asked[c.Address]; ok && stage != i {
				background++
			}
		}
		background /= (to - from).Seconds()
	}
	return 1 - float64(refused)/float64(max(people, 1)), background, people
}

func checkAdmission(l *Ledger) (broken []string) {
	const least = 0.99
	share, background, people := l.admission()
	if share < least {
		broken = append(broken, fmt.Sprintf("%.2f %% of %d people got a token at once, promised %v %%", 100*share, people, 100*least))
	}
	if background < 1 {
		broken = append(broken, fmt.Sprintf("the background made %.1f calls a second: that was no flood", background))
	}
	return broken
}

// checkHang compares the time in which Redis hung with the time before, whose p99.9 over its median is the machine's part.
func checkHang(l *Ledger) (broken []string) {
	const (
		most  = 50 * time.Millisecond
		few   = 2 * time.Second // from the beginning of the hang
		later = 10 * time.Millisecond
	)
	in := func(name string) func(Answer) bool { return func(a Answer) bool { return l.named(a.Stage, name) } }
	before := latencies(l.people(in(stageBefore)))
	var hung time.Duration
	for i := range l.Profile.Stages {
		if l.named(i, stageHung) {
			hung, _ = l.span(i)
		}
	}
	first := latencies(l.people(func(a Answer) bool { return in(stageHung)(a) && a.At < hung+few }))
	rest := latencies(l.people(func(a Answer) bool { return in(stageHung)(a) && a.At >= hung+few }))
	base := l.people(in(stageBefore))
	good := 0
	for _, b := range base {
		if b.verdict() {
			good++
		}
	}
	if float64(good) < 0.95*float64(len(base)) {
		broken = append(broken, fmt.Sprintf("nothing to compare with: before, %d of %d got a verdict", good, len(base)))
	}
	if got, was := first.Quantile(0.99), before.Quantile(0.99); got > was+most {
		broken = append(broken, fmt.Sprintf("p99 of the first %v is %v, before it was %v", few, milli(got), milli(was)))
	}
	if got, was := rest.Quantile(0.99), before.Quantile(0.99); got > was+later {
		broken = append(broken, fmt.Sprintf("p99 after the first %v is %v, before it was %v", few, milli(got), milli(was)))
	}
	if got, was := rest.Quantile(0.5), before.Quantile(0.5); got > was+later {
		broken = append(broken, fmt.Sprintf("the median after the first %v is %v, before it was %v", few, milli(got), milli(was)))
	}
	return broken
}

// blips counts, for each kind of outage, the people who came in it and those of them who got a verdict.
func (l *Ledger) blips() map[string][2]int {
	kinds := make(map[string][2]int)
	for _, a := range l.people(func(a Answer) bool { return l.Profile.Stages[a.Stage].Trouble }) {
		name := l.Profile.Stages[a.Stage].Name
		n := kinds[name]
		n[0]++
		if a.verdict() {
			n[1]++
		}
		kinds[name] = n
	}
	return kinds
}

func checkBlips(l *Ledger) []string {
	const least = 0.9
	people, verdicts := 0, 0
	for _, n := range l.blips() {
		people, verdicts = people+n[0], verdicts+n[1]
	}
	if share := float64(verdicts) / float64(max(people, 1)); share < least {
		return []string{fmt.Sprintf("%d of %d (%.1f %%), promised %v %%", verdicts, people, 100*share, 100*least)}
	}
	return nil
}

func checkClosed(l *Ledger) (broken []string) {
	for _, s := range l.Samples {
		if s.Opened > 0 {
			return []string{fmt.Sprintf("it opened, first seen at %v", s.At.Round(time.Second))}
		}
	}
	if len(l.Samples) == 0 {
		broken = append(broken, "its state was never seen")
	}
	return broken
}

// checkLate: one call an address, and for each review a trail of one call, which was late and answered.
func checkLate(l *Ledger) (broken []string) {
	calls := make(map[string]int)
	for _, c := range l.Calls {
		calls[c.Address]++
	}
	again := 0
	for _, n := range calls {
		if n > 1 {
			again++
		}
	}
	if again > 0 {
		broken = append(broken, fmt.Sprintf("%d of %d addresses were asked about more than once", again, len(calls)))
	}
	other := make(map[string]int)
	for _, a := range l.accepted() {
		if e := l.Endings[a.ID]; e.Final() && !settledLate(e.Outcomes) {
			other[fmt.Sprintf("trail %v after a 202 for %s", e.Outcomes, a.Reason)]++
		}
	}
	for _, trail := range slices.SortedFunc(maps.Keys(other), func(a, b string) int { return cmp.Compare(other[b], other[a]) }) {
		broken = append(broken, fmt.Sprintf("%d reviews ended by another way: %s", other[trail], trail))
	}
	return broken
}

// settledLate says that a trail is that of one call which was late and then answered.
func settledLate(outcomes []string) bool { return slices.Equal(outcomes, []string{"late", "answered"}) }

// milli rounds for people.
func milli(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
