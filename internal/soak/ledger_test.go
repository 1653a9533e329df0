package soak

import (
	"slices"
	"strings"
	"testing"
	"time"

	"validator-gw/internal/verimail/simulator"
)

// began is when the ledgers of these tests begin.
var began = time.Unix(1_800_000_000, 0)

// kept is a small ledger of a run that kept every promise: a healthy stage, a trouble, a rest; each address asked about
// once a tenth of a second, those in the trouble answered 202 and settled later.
func kept() *Ledger {
	l := &Ledger{
		Profile: Profile{Name: "test", Rate: 20, Burst: 5, Stages: []Stage{
			{Name: "healthy", For: 10 * time.Second}, {Name: "trouble", For: 5 * time.Second, Trouble: true}, {Name: "rest", For: 10 * time.Second},
		}},
		Began: began, Loaded: 25 * time.Second, Rested: 30 * time.Second, Allowed: time.Minute, Endings: map[string]Ending{},
		Samples: []Sample{{At: time.Second, Breakers: []string{"closed"}}, {At: 12 * time.Second, Breakers: []string{"open"}}},
	}
	for i := range 250 {
		at := time.Duration(i) * 100 * time.Millisecond
		a := Answer{Ask: Ask{At: at, Address: "a" + time.Duration(i).String(), Stage: stageAt(l.Profile.Stages, at)}, Sent: at,
			Got: at + 50*time.Millisecond, Code: 200, ID: "id" + time.Duration(i).String(), Status: "valid", Reason: "mailbox_accepted"}
		called := at + 10*time.Millisecond
		if a.Stage == 1 || at == 15*time.Second { // one more in the rest
			a.Code, a.Status, a.Reason, a.Got = 202, "needs_review", "upstream_timeout", at+650*time.Millisecond
			called = 26*time.Second + (at-10*time.Second)/2
			l.Endings[a.ID] = Ending{Code: 200, Status: "valid", Reason: "mailbox_accepted", Checked: began.Add(called), Outcomes: []string{"late", "answered"}}
		}
		l.Answers = append(l.Answers, a)
		l.Calls = append(l.Calls, simulator.Call{At: began.Add(called), Address: a.Address, Status: 200, Result: "deliverable", Billed: true})
	}
	l.Answers = append(l.Answers, Answer{Ask: Ask{At: time.Second}, Sent: time.Second, Got: time.Second + time.Millisecond, Code: 200})
	slices.SortFunc(l.Calls, func(a, b simulator.Call) int { return a.At.Compare(b.At) })
	return l
}

func TestALedgerThatKeepsItsPromises(t *testing.T) {
	t.Parallel()
	l := kept()
	l.Profile.promises = []promise{{name: "recovers", check: checkRecoveries}, {name: "late", check: checkLate}, {name: "closed", check: checkClosed}}
	for _, b := range l.Check() {
		t.Errorf("%s: %v", b.Promise, b.What)
	}
	var page strings.Builder
	l.Print(&page)
	for _, want := range []string{"kept    every request is answered", "accepted ids: 51, ended 51", "addresses: 250"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("%q is not in\n%s", want, page.String())
		}
	}
}

// TestEachPromiseCanBreak: each doctored ledger breaks the promise that it is about.
func TestEachPromiseCanBreak(t *testing.T) {
	t.Parallel()
	accepted := func(l *Ledger) string { return l.accepted()[3].ID }
	for _, tt := range []struct {
		name, want string
		check      func(*Ledger) []string
		doctor     func(*Ledger)
	}{
		{"a 503", "HTTP 503", checkCodes, func(l *Ledger) { l.Answers[5].Code = 503 }},
		{"no answer", "EOF", checkCodes, func(l *Ledger) { l.Answers[5].Err = "EOF" }},
		{"a 200 that knows nothing", "needs_review", checkCodes, func(l *Ledger) { l.Answers[5].Status = "needs_review" }},
		{"a 202 without an id", "without an id", checkCodes, func(l *Ledger) { l.Answers[120].ID = "" }},
		{"a slow answer", "longest", checkBudget, func(l *Ledger) { l.Answers[5].Got = l.Answers[5].At + 1100*time.Millisecond }},
		{"slow answers", "p99.9", checkBudget, func(l *Ledger) { l.Answers[5].Got = l.Answers[5].At + 900*time.Millisecond }},
		{"a lost id", "not found", checkEnds, func(l *Ledger) { l.Endings[accepted(l)] = Ending{Code: 404} }},
		{"an id that was never looked for", "HTTP 0", checkEnds, func(l *Ledger) { delete(l.Endings, accepted(l)) }},
		{"an id that stays open", "1 of 51 are open", checkEnds, func(l *Ledger) { l.Endings[accepted(l)] = Ending{Code: 200, Status: "needs_review"} }},
		{"an invented verdict", "not the upstream's word", checkWords, func(l *Ledger) { l.Answers[5].Status, l.Answers[5].Reason = "invalid", "mailbox_not_found" }},
		{"a verdict before the call", "not the upstream's word", checkWords, func(l *Ledger) { l.Answers[5].Got = l.Answers[5].At }},
		{"an invented ending", "not the upstream's word", checkWords, func(l *Ledger) {
			l.Endings[accepted(l)] = Ending{Code: 200, Status: "unresolved", Reason: "review_expired"}
		}},
		{"calls billed twice", "billed calls an address", checkBills, func(l *Ledger) { l.Calls = append(l.Calls, l.Calls[:26]...) }},
		{"a log with a hole", "lacks 1 calls", checkBills, func(l *Ledger) { l.Lost = 1 }},
		{"a bill for nobody", "nobody asked", checkBills, func(l *Ledger) { l.Calls[5].Address = "other" }},
		{"a burst", "allowed", checkRate, func(l *Ledger) {
			for i := range 15 {
				l.Calls[50+i].At = l.Calls[50].At
			}
		}},
		{"a bad stop", "exit 1", checkStop, func(l *Ledger) { l.Stops = []string{"exit 1"} }},
		{"a leak", "line 3", checkStop, func(l *Ledger) { l.Leaks = []string{"line 3"} }},
		{"no recovery", "after trouble", checkRecoveries, func(l *Ledger) {
			for i := 150; i < 250; i++ {
				l.Answers[i].Code = 202
			}
		}},
		{"a second call", "1 of 249 addresses", checkLate, func(l *Ledger) { l.Calls[5].Address = l.Calls[6].Address; l.Calls = append(l.Calls, l.Calls[5]) }},
		{"settled by the loop", "another way", checkLate, func(l *Ledger) {
			e := l.Endings[accepted(l)]
			e.Outcomes = []string{"not_sent", "answered"}
			l.Endings[accepted(l)] = e
		}},
		{"an open breaker", "opened", checkClosed, func(l *Ledger) { l.Samples[1].Opened = 1 }},
		{"a breaker that nobody saw", "never seen", checkClosed, func(l *Ledger) { l.Samples = nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := kept()
			if broken := tt.check(l); len(broken) > 0 && tt.name != "no recovery" {
				t.Fatalf("broken before: %v", broken)
			}
			tt.doctor(l)
			if broken := tt.check(l); !strings.Contains(strings.Join(broken, "\n"), tt.want) {
				t.Errorf("found %q, want it to say %q", broken, tt.want)
			}
		})
	}
}

func TestRecovery(t *testing.T) {
	t.Parallel()
	l := kept()
	// The first second of the rest has one 202 in ten: 90 %.
	if d, ok := l.recoveryOf(1); !ok || d != time.Second {
		t.Errorf("recovered after %v, %v; want 1s", d, ok)
	}
	l.Profile.Stages = slices.Insert(l.Profile.Stages, 2, Stage{Name: "gap", For: time.Second}, Stage{Name: "again", For: time.Second, Trouble: true})
	if d, ok := l.recoveryOf(1); ok {
		t.Errorf("recovered after %v, in the second before the next trouble 90 %% were final", d)
	}
}

func TestOpenReviews(t *testing.T) {
	t.Parallel()
	l := kept()
	at := []time.Duration{0, 12 * time.Second, 25 * time.Second, 27*time.Second + 300*time.Millisecond, time.Hour}
	// The one asked for at 10 s is accepted at 10.65 s, one more each 0.1 s; it is settled at 26 s, one more each 0.05 s.
	if got, want := l.open(at), []int{0, 14, 51, 24, 0}; !slices.Equal(got, want) {
		t.Errorf("open %v, want %v", got, want)
	}
}

func TestAdmission(t *testing.T) {
	t.Parallel()
	l := kept()
	l.Profile.Stages[2].Name = stageFlood
	l.Answers[200].Reason = "limiter_saturated"
	for i := range 30 { // the loop asks for what people left before
		l.Calls = append(l.Calls, simulator.Call{At: began.Add(20 * time.Second), Address: l.Answers[100+i].Address})
	}
	share, background, people := l.admission()
	if people != 100 || share != 0.99 || background != 3 {
		t.Errorf("%v of %d admitted, %v background calls a second; want 0.99 of 100, 3", share, people, background)
	}
	l.Answers[201].Reason = "limiter_saturated"
	if broken := checkAdmission(l); len(broken) != 1 || !strings.Contains(broken[0], "98.00 %") {
		t.Errorf("broken %q", broken)
	}
	l.Calls = nil
	if broken := checkAdmission(l); len(broken) != 2 || !strings.Contains(broken[1], "no flood") {
		t.Errorf("broken %q", broken)
	}
}

func TestBlips(t *testing.T) {
	t.Parallel()
	l := kept()
	if broken := checkBlips(l); len(broken) != 1 || !strings.Contains(broken[0], "0 of 50") {
		t.Errorf("broken %q: nobody in the trouble got a verdict", broken)
	}
	for i := 100; i < 145; i++ {
		l.Answers[i].Code = 200
	}
	if broken := checkBlips(l); len(broken) != 0 {
		t.Errorf("broken %q by 45 verdicts of 50", broken)
	}
}

func TestHang(t *testing.T) {
	t.Parallel()
	hang := func(first, rest time.Duration) []string {
		l := kept()
		l.Profile.Stages[0].Name, l.Profile.Stages[2].Name = stageBefore, stageHung
		for i := 150; i < 250; i++ {
			took := rest
			if i < 170 {
				took = first
			}
			l.Answers[i].Got = l.Answers[i].At + took
		}
		return checkHang(l)
	}
	l := kept()
	l.Profile.Stages[1].Name, l.Profile.Stages[2].Name = stageBefore, stageHung // before it, everyone got 202
	if broken := checkHang(l); len(broken) == 0 || !strings.Contains(broken[0], "nothing to compare with") {
		t.Errorf("broken %q", broken)
	}
	const was = 50 * time.Millisecond
	if broken := hang(was+50*time.Millisecond, was); len(broken) != 0 {
		t.Errorf("broken %q", broken)
	}
	if broken := hang(was+51*time.Millisecond, was); len(broken) != 1 || !strings.Contains(broken[0], "first 2s") {
		t.Errorf("broken %q by the first few", broken)
	}
	if broken := hang(was, was+11*time.Millisecond); len(broken) != 2 || !strings.Contains(broken[0], "after the first") {
		t.Errorf("broken %q by all others", broken)
	}
}

func TestMetricsAreRead(t *testing.T) {
	t.Parallel()
	page := "# HELP x y\n" +
		"validator_gw_breaker_state{provider=\"verimail_v3\",state=\"half_open\"} 1\n" +
		"validator_gw_review_jobs{state=\"overdue\"} 1.2e+03\n\nnonsense\n"
	v, err := parseMetrics(strings.NewReader(page))
	if err != nil || len(v) != 2 || v[`validator_gw_review_jobs{state="overdue"}`] != 1200 {
		t.Errorf("read %v, %v", v, err)
	}
	for series := range v {
		if strings.Contains(series, "breaker") && (labelOf(series, "state") != "half_open" || labelOf(series, "rovider") != "") {
			t.Errorf("labels of %s", series)
		}
	}
}
