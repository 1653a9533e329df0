package soak

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// A day's plan draws from its pool, marks who came before, and leaves everybody at home while everything is restarted.
func TestPlanOfADay(t *testing.T) {
	t.Parallel()
	p, err := NewProfile(Knobs{Profile: "day-kill", Rate: 500, Minutes: 1})
	if err != nil {
		t.Fatal(err)
	}
	const pool = 1000
	p.Habits.Pool = pool
	asks := drawPlan(3, p.Stages, p.Habits, 2)
	times := map[string]int{}
	people := 0
	for _, a := range asks {
		if p.Stages[a.Stage].Restart != NoRestart {
			t.Fatalf("%+v while everything is restarted", a)
		}
		if a.Address == "" {
			continue
		}
		people++
		if a.Repeat != (times[a.Address] > 0) {
			t.Fatalf("%+v: asked %d times before", a, times[a.Address])
		}
		times[a.Address]++
	}
	if want := 500 * 60; people < want*95/100 || people > want*105/100 {
		t.Errorf("%d requests, want about %d", people, want)
	}
	counts := make([]int, 0, len(times))
	for _, n := range times {
		counts = append(counts, n)
	}
	slices.Sort(counts)
	// By the distribution the first of 1,000 has 1 / sum(k^-1.1), some 18 %, of all requests, and the last but a few.
	if len(times) > pool || len(times) < pool/2 || counts[len(counts)-1] < people/10 || counts[0] > 20 {
		t.Errorf("%d addresses, from %d to %d times", len(times), counts[0], counts[len(counts)-1])
	}
}

func TestLevelsCountAcrossARestart(t *testing.T) {
	t.Parallel()
	sample := func(at time.Duration, hits ...float64) Sample {
		s := Sample{At: at}
		for _, h := range hits {
			if h < 0 {
				s.Levels = append(s.Levels, nil) // it did not answer
				continue
			}
			s.Levels = append(s.Levels, map[string]float64{"memory hit": h})
		}
		return s
	}
	l := &Ledger{Samples: []Sample{sample(0, 5, 0), sample(10, 50, 10), sample(20, -1, -1), sample(30, 7, 40), sample(40, 8, 41)}}
	for _, c := range []struct {
		from, to time.Duration
		want     float64
	}{
		{0, 20, 60},           // 50 and 10, those before the first sample included
		{20, 50, 8 + 31},      // the first gateway began anew, the second did not
		{0, 50, 50 + 8 + 41},  // all that was ever counted
		{35, 50, 1 + 1},       //
		{100, time.Minute, 0}, // nobody looked
	} {
		if got := l.levels(c.from, c.to)["memory hit"]; got != c.want {
			t.Errorf("levels(%v, %v) = %v, want %v", c.from, c.to, got, c.want)
		}
	}
}

// Only what was in work at the kill is excused.
func TestCutOffIsExcused(t *testing.T) {
	t.Parallel()
	l := &Ledger{Cut: 10 * time.Second}
	failed := func(sent, got time.Duration) Answer {
		return Answer{Ask: Ask{At: sent, Address: "zsoak@example.com"}, Sent: sent, Got: got, Err: "EOF"}
	}
	l.Answers = []Answer{failed(9*time.Second, 11*time.Second)}
	if broken := checkCodes(l); len(broken) > 0 {
		t.Errorf("what was in work: %v", broken)
	}
	l.Answers = []Answer{failed(8*time.Second, 9*time.Second), failed(11*time.Second, 12*time.Second)}
	if broken := checkCodes(l); len(broken) != 2 {
		t.Errorf("before and after: %v, want two", broken)
	}
	l.Cut = 0
	l.Answers = []Answer{failed(0, time.Second)}
	if broken := checkCodes(l); len(broken) != 1 {
		t.Errorf("without a kill: %v, want one", broken)
	}
}

// recorder notes what is done to gateways and servers.
type recorder struct {
	Server
	name string
	did  *[]string
}

func (r recorder) URL() string        { return "http://127.0.0.1:1/" }
func (r recorder) MetricsURL() string { return "http://127.0.0.1:2/metrics" }
func (r recorder) Stop() error        { *r.did = append(*r.did, r.name+" stops"); return errors.New("late") }
func (r recorder) Kill() error        { *r.did = append(*r.did, r.name+" is killed"); return nil }
func (r recorder) Start() error       { *r.did = append(*r.did, r.name+" starts"); return nil }

// gatewayRecorder is a recorder as a Gateway.
type gatewayRecorder struct{ recorder }

func (r gatewayRecorder) Kill() { _ = r.recorder.Kill() }

// Redis and Postgres go down after the gateways, and come back before them, at the addresses at which they were.
func TestRestartInItsOrder(t *testing.T) {
	t.Parallel()
	for how, word := range map[Restart]string{InOrder: "stops", Killed: "is killed"} {
		var did []string
		var last []string
		bench := Bench{Folder: "folder", Gateway: func(_ context.Context, name string, env []string) (Gateway, error) {
			did = append(did, name+" starts")
			last = env
			return gatewayRecorder{recorder{name: name, did: &did}}, nil
		}}
		all := &fleetOf{bench: bench, postgres: recorder{name: "postgres", did: &did}, redis: recorder{name: "redis", did: &did}}
		if err := all.start(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		l := &Ledger{Began: time.Now().Add(-time.Second)}
		if err := all.restart(t.Context(), how, l); err != nil {
			t.Fatal(err)
		}
		want := []string{"gateway-0 starts", "gateway-0 " + word, "postgres is killed", "postgres starts", "redis is killed", "redis starts",
			"gateway-0-life-2 starts"}
		if !reflect.DeepEqual(did, want) {
			t.Errorf("%s: %v, want %v", how, did, want)
		}
		if text := strings.Join(last, " "); !strings.Contains(text, "_LISTEN=127.0.0.1:1 ") || !strings.HasSuffix(text, "_METRICS_LISTEN=127.0.0.1:2") ||
			!strings.Contains(text, "DATA=folder/gateway-0 ") {
			t.Errorf("%s: started again with %s", how, text)
		}
		if (l.Cut > 0) != (how == Killed) || (len(l.Stops) == 1) != (how == InOrder) {
			t.Errorf("%s: cut at %v, stops %v", how, l.Cut, l.Stops)
		}
	}
}
