package world

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"validator-gw/internal/verimail/simulator"
)

// Tokens that are in every address that is asked about; they must turn up nowhere but in requests and answers.
const (
	localToken  = "zebra"
	domainToken = "quagga"
)

// kind is one sort of address: what the simulated upstream says about it is in its name (docs/simulator.md).
type kind struct {
	name   string
	weight float64
}

// kinds leaves out those names that never end (hang, server-error, html and the like): the gateway rightly asks for
// ever, and "every id ends" could not be checked.
var kinds = []kind{
	{"deliverable", 48}, {"hardbounce", 14}, {"catch-all", 6}, {"disposable", 4}, {"inbox-full", 5},
	{"did-you-mean", 1}, {"did-you-mean-local", 1}, {"did-you-mean-deliverable", 1},
	{"delay-600", 1}, {"delay-660", 2}, {"delay-790", 2}, {"delay-1500", 2}, {"delay-5000", 2},
	{"recover-after-1", 2}, {"recover-after-3", 1},
	{"softbounce", 3}, {"undeliverable", 2}, {"unknown", 2}, {"flip-after-1", 1}, {"flip-after-3", 1},
	{"unmapped", 0.15}, {"contradictory", 0.15}, {"status-error", 0.15}, {"bad-request", 0.1},
}

// unusable are the kinds whose answers can never be used: their reviews end dead.
var unusable = []string{"unmapped", "contradictory", "status-error", "bad-request"}

// visit is one person at a form, or a few clicks of one person.
type visit struct {
	n       int
	at      time.Duration // since the beginning
	kind    string        // empty for text that can't be an address
	address string        // normalized
	raw     string        // as typed
	copies  int           // equal requests at once
	mixed   bool          // the copies belong to different flows
	flow    string
	timeout time.Duration // X-Request-Timeout-Ms; 0 sends none
	form    bool
	hangUp  time.Duration // when the caller leaves; 0 stays
	follow  follow
}

// follow is what a caller does with a 202.
type follow int

const (
	leaves follow = iota
	polls
	waits
)

// budget is by when copy i must be answered.
func (v visit) budget(i int) time.Duration {
	b := budgets[v.flowOf(i)]
	if v.timeout > 0 {
		b = min(b, max(v.timeout, 300*time.Millisecond))
	}
	return b
}

// budgets are the defaults of docs/settings.md.
var budgets = map[string]time.Duration{
	"": 800 * time.Millisecond, "signup": 800 * time.Millisecond, "high_risk": 950 * time.Millisecond,
}

func (v visit) flowOf(i int) string {
	if v.mixed && i%2 == 1 {
		return "high_risk"
	}
	return v.flow
}

// plan is everything that is drawn of a world, before it begins.
type plan struct {
	seed   uint64
	day    time.Duration // how long people come
	script simulator.Script
	visits []visit
	stopAt time.Duration // when the gateway is stopped during the day
	down   time.Duration // and for how long
	pauses []time.Duration
}

// drawPlan draws a world. It depends on its arguments alone.
func drawPlan(seed uint64, day time.Duration) plan {
	r := rand.New(rand.NewPCG(seed, 0x776f726c64))
	p := plan{seed: seed, day: day}
	p.script = drawScript(r, day)
	p.visits = drawVisits(r, p.script, day)
	p.stopAt = between(r, day/10, day*9/10)
	p.down = between(r, time.Second, 3*time.Minute)
	for range 40 {
		p.pauses = append(p.pauses, between(r, 6*time.Hour, 24*time.Hour))
	}
	return p
}

func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Float64()*float64(high-low))
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// drawScript draws the upstream's day: trouble and rest in turn, the last twelfth healthy. Latencies stay below the ten
// seconds for which the gateway waits, so that a readable answer is always read; beyond them there is "hang".
func drawScript(r *rand.Rand, day time.Duration) simulator.Script {
	faults := []simulator.Fault{
		simulator.Slow, simulator.Slow, simulator.Hang, simulator.Hang, simulator.Throttle, simulator.Throttle,
		simulator.Error500, simulator.Error503, simulator.Reset, simulator.Garbage, simulator.Drip,
		simulator.Quota, simulator.Auth,
	}
	var s simulator.Script
	scale := min(float64(day)/float64(24*time.Hour), 1) // a short day is as eventful as a long one
	part := func(low, high time.Duration) time.Duration {
		return time.Duration(scale * float64(between(r, low, high)))
	}
	left := day - day/12
	for left > time.Second {
		m := simulator.Mode{Fault: simulator.Healthy}
		d := part(5*time.Minute, 50*time.Minute)
		if len(s)%2 == 1 {
			m = drawMode(r, pick(r, faults...))
			// Most trouble is short; an outage of hours is rare, and is what the gateway is for.
			d = pick(r, max(part(0, 5*time.Minute), 5*time.Second), part(5*time.Minute, 30*time.Minute),
				part(30*time.Minute, 3*time.Hour))
		}
		d = max(min(d, left).Truncate(time.Second), time.Second)
		s = append(s, simulator.Phase{Mode: m, For: d})
		left -= d
	}
	return append(s, simulator.Phase{Mode: simulator.Mode{Fault: simulator.Healthy}})
}

func drawMode(r *rand.Rand, f simulator.Fault) simulator.Mode {
	m := simulator.Mode{Fault: f}
	switch f {
	case simulator.Slow:
		m.P50 = pick(r, 500*time.Millisecond, 700*time.Millisecond, time.Second, 3*time.Second, 6*time.Second)
		if m.P50 < 800*time.Millisecond {
			m.P99 = 800 * time.Millisecond
		}
	case simulator.Throttle, simulator.Error503:
		if r.Float64() < 0.6 {
			m.RetryAfter = pick(r, time.Second, 5*time.Second, 30*time.Second, 10*time.Minute, time.Hour)
			m.Hint = pick(r, simulator.Hints[1:]...)
		}
	}
	if f != simulator.Quota && f != simulator.Auth && r.Float64() < 0.4 {
		m.Share = pick(r, 0.1, 0.3, 0.6, 0.9)
	}
	return m
}

// drawVisits draws the people: a steady stream all day, a rush as each phase begins, a few crowds all at once.
func drawVisits(r *rand.Rand, script simulator.Script, day time.Duration) []visit {
	var times []time.Duration
	for at := time.Duration(0); at < day; at += time.Duration(r.ExpFloat64() * float64(time.Minute)) {
		times = append(times, at)
	}
	rush := 25
	if day < 12*time.Hour {
		rush = 8 // as many phases in less time
	}
	begin := time.Duration(0)
	for _, p := range script {
		for range rush {
			times = append(times, begin+between(r, 0, 2*time.Minute))
		}
		begin += p.For
	}
	for range 3 {
		at := between(r, 0, day)
		for range 60 {
			times = append(times, at+between(r, 0, time.Second))
		}
	}
	times = slices.DeleteFunc(times, func(at time.Duration) bool { return at >= day })
	slices.Sort(times)

	var visits []visit
	var known []visit
	for n, at := range times {
		v := visit{copies: 1}
		switch {
		case r.Float64() < 0.02:
			v.raw = pick(r, "no-at-sign."+localToken, "two@@"+domainToken+"1.com", localToken+"@localhost",
				"sp ace@"+domainToken+"1.com", "")
		case len(known) > 0 && r.Float64() < 0.45:
			// Known addresses: mostly those of the last minutes, some of hours ago.
			back := len(known)
			if r.Float64() < 0.7 {
				back = min(back, 20)
			}
			k := known[len(known)-1-r.IntN(back)]
			v.kind, v.address = k.kind, k.address
		default:
			v.kind = drawKind(r)
			domain := pick(r, "gmail.com", "gmail.com", fmt.Sprintf("%s%d.com", domainToken, r.IntN(9)))
			v.address = fmt.Sprintf("%s.%d+%s@%s", v.kind, n, localToken, domain)
			known = append(known, v)
		}
		v.n, v.at = n, at
		if v.kind != "" {
			v.raw = pick(r, v.address, v.address, " "+v.address+" ", strings.ToUpper(v.address[:1])+v.address[1:])
		}
		v.flow = pick(r, "", "", "signup", "high_risk")
		v.form = r.Float64() < 0.3
		v.follow = pick(r, leaves, leaves, polls, polls, polls, waits)
		if r.Float64() < 0.1 {
			v.timeout = pick(r, time.Millisecond, 300*time.Millisecond, 500*time.Millisecond, 949*time.Millisecond,
				time.Hour)
		}
		switch u := r.Float64(); {
		case u < 0.08:
			v.copies = 2 + r.IntN(3)
			v.mixed = r.Float64() < 0.5
		case u < 0.082:
			v.copies = 100
		case u < 0.16 && v.kind != "" && !slices.Contains(unusable, v.kind):
			v.hangUp = between(r, time.Millisecond, 600*time.Millisecond)
		}
		visits = append(visits, v)
	}
	return visits
}

func drawKind(r *rand.Rand) string {
	sum := 0.0
	for _, k := range kinds {
		sum += k.weight
	}
	u := r.Float64() * sum
	for _, k := range kinds {
		if u -= k.weight; u < 0 {
			return k.name
		}
	}
	return kinds[0].name
}
