package soak

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPlanIsDrawnFromItsSeed(t *testing.T) {
	t.Parallel()
	p, err := NewProfile(Knobs{Profile: "campaign", Rate: 50, Minutes: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	draw := func(seed uint64) []Ask { return drawPlan(seed, p.Stages, p.Habits, 3) }
	if !reflect.DeepEqual(draw(7), draw(7)) {
		t.Error("two draws of one seed differ")
	}
	if reflect.DeepEqual(draw(7), draw(8)) {
		t.Error("two seeds draw the same")
	}
}

// TestPlanHoldsWhatItsProfileSays: pace, order, stages, repeats.
func TestPlanHoldsWhatItsProfileSays(t *testing.T) {
	t.Parallel()
	stages := []Stage{{Name: "a", For: 100 * time.Second, From: 100, To: 100}, {Name: "b", For: 100 * time.Second, From: 0, To: 200},
		{Name: "c", For: 10 * time.Second}}
	asks := drawPlan(3, stages, Habits{Double: 0.2, Again: 0.1}, 2)
	if !slices.IsSortedFunc(asks, func(a, b Ask) int { return int(a.At - b.At) }) {
		t.Error("not in the order of time")
	}
	first := map[string]time.Duration{}
	fresh := map[string]int{}
	doubles, returns, control := 0, 0, 0
	for _, a := range asks {
		if s := stages[a.Stage]; a.Address != "" && !a.Repeat {
			fresh[s.Name]++
		}
		at, known := first[a.Address]
		switch {
		case a.At >= stretch(stages) || a.Gateway < 0 || a.Gateway > 1:
			t.Fatalf("%+v is not in the plan's bounds", a)
		case a.Address == "":
			control++
		case a.Repeat != known:
			t.Fatalf("%+v: asked before: %v", a, known)
		case !known:
			first[a.Address] = a.At
			if !slices.ContainsFunc(tokens, func(s string) bool { return strings.Contains(a.Address, s) }) {
				t.Fatalf("%s has no token that logs are searched for", a.Address)
			}
		case a.At-at < 300*time.Millisecond:
			doubles++
		case a.At-at >= 5*time.Second && a.At-at < 40*time.Second:
			returns++
		default:
			t.Fatalf("a repeat after %v", a.At-at)
		}
	}
	near := func(what string, got, want float64) { // five standard deviations of a Poisson count
		if math.Abs(got-want) > 5*math.Sqrt(want) {
			t.Errorf("%s: %v, want about %v", what, got, want)
		}
	}
	near("new in a", float64(fresh["a"]), 10_000)
	near("new in b", float64(fresh["b"]), 10_000)
	near("doubles", float64(doubles), 4000)
	near("control", float64(control), 210*controlPace)
	if fresh["c"] != 0 || returns == 0 {
		t.Errorf("%d new where nobody comes, %d came again", fresh["c"], returns)
	}
}

func TestEveryProfileCanBeBuilt(t *testing.T) {
	t.Parallel()
	for _, name := range Profiles {
		p, err := NewProfile(Knobs{Profile: name})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]time.Duration{"phases": 3 * time.Minute, "fleet": 3 * time.Minute, "redis-hang": time.Minute,
			"blip": 2 * time.Minute, "slow": 5 * time.Minute, "campaign": 4 * time.Minute, "day": 6 * time.Minute, "day-kill": 6 * time.Minute}[name]
		if got := stretch(p.Stages); got < want-100*time.Millisecond || got > want+blipEvery {
			t.Errorf("%s takes %v, want %v", name, got, want)
		}
		if _, _, stop, err := serveUpstream(p, "key"); err != nil {
			t.Errorf("%s: its upstream: %v", name, err)
		} else if err := stop(); err != nil {
			t.Errorf("%s: its upstream's end: %v", name, err)
		}
		for _, s := range p.Stages {
			if s.Act != NoAct && !p.Redis {
				t.Errorf("%s does %s to a Redis that it has not", name, s.Act)
			}
		}
	}
	for _, bad := range []Knobs{{Profile: "none"}, {Profile: "phases", Rate: -1}, {Profile: "phases", Store: "files"},
		{Profile: "fleet", Store: "sqlite"}, {Profile: "phases", Minutes: 1e9}} {
		if _, err := NewProfile(bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}
