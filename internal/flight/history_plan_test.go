package flight_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// trouble is what a history is up against.
type trouble string

const (
	none    trouble = "none"
	slow    trouble = "slow"    // up to 60 ms each way
	lost    trouble = "lost"    // commands that never come to Redis
	unheard trouble = "unheard" // commands that were done, and their replies lost
	held    trouble = "held"    // commands and replies that come when nobody waits for them any more
	torn    trouble = "torn"    // connections that break
	forgets trouble = "forgets" // Redis forgets the key, as after a flush
	death   trouble = "death"   // a process ends as by SIGKILL
	shelf   trouble = "store"   // the durable store is away, or hangs
	storm   trouble = "storm"   // all of the above
)

var troubles = []trouble{none, slow, lost, unheard, held, torn, forgets, death, shelf, storm}

// plan is one history before it is played: all of it follows from the seed, but for who is first when two are at once.
type plan struct {
	trouble trouble
	lookUp  time.Duration
	calls   []visit
	works   []script // in the order in which they begin
	from    time.Duration
	to      time.Duration // of the trouble
	hit     [replicas]bool
	odds    float64 // of a piece of traffic to be hit
	dies    int     // a process, or -1
	diesAt  time.Duration
	forgets []time.Duration
	drain   bool // at the end, flights have their time
}

// visit is one who asks.
type visit struct {
	at       time.Duration
	process  int
	patience time.Duration
	loop     bool // the background loop, not a person
}

// script is what one work does.
type script struct {
	takes time.Duration
	end   end
	side  bool // a failure is on the mailbox's side
}

// patient is the look-up limit where all is well, also on a busy machine.
const patient = 5 * time.Second

func (p plan) has(t trouble) bool { return p.trouble == t || p.trouble == storm }

// spell says that the trouble is on.
func (p plan) spell(at time.Duration) bool { return at >= p.from && at < p.to }

func drawPlan(r *rand.Rand) plan {
	between := func(a, b time.Duration) time.Duration { return a + time.Duration(r.Float64()*float64(b-a)) }
	const ms = time.Millisecond
	p := plan{trouble: none, dies: -1, lookUp: patient, drain: r.IntN(2) == 0}
	if r.IntN(4) > 0 {
		p.trouble = troubles[1+r.IntN(len(troubles)-1)]
	}
	if !slices.Contains([]trouble{none, forgets, death, shelf}, p.trouble) {
		p.lookUp = []time.Duration{30 * ms, 30 * ms, 60 * ms, 150 * ms}[r.IntN(4)]
	}
	p.from = between(0, 400*ms)
	if r.IntN(2) == 0 {
		p.from = 0
	}
	p.to = p.from + between(50*ms, 2500*ms)
	p.odds = []float64{0.05, 0.2, 0.5, 1}[r.IntN(4)]
	for i := range p.hit {
		p.hit[i] = r.IntN(2) == 0
	}
	p.hit[r.IntN(replicas)] = true
	if p.has(death) && r.IntN(3) > 0 {
		p.dies, p.diesAt = r.IntN(replicas), between(20*ms, 900*ms)
	}
	if p.has(forgets) {
		for range 1 + r.IntN(5) {
			p.forgets = append(p.forgets, between(10*ms, 1500*ms))
		}
		slices.Sort(p.forgets)
	}
	crowd := between(0, 300*ms)
	for range 3 + r.IntN(12) {
		v := visit{process: r.IntN(replicas), patience: between(300*ms, 950*ms), loop: r.IntN(12) == 0}
		switch n := r.IntN(20); {
		case n < 10:
			v.at = crowd + between(0, 60*ms)
		case n < 18:
			v.at = between(0, 2200*ms)
		default:
			v.at = between(2200*ms, 4000*ms)
		}
		p.calls = append(p.calls, v)
	}
	slices.SortFunc(p.calls, func(a, b visit) int { return int(a.at - b.at) })
	for range 2 * len(p.calls) {
		s := script{takes: between(5*ms, 250*ms), end: succeeded, side: r.IntN(2) == 0}
		if r.IntN(4) == 0 {
			s.takes = between(250*ms, 2500*ms)
		}
		switch n := r.IntN(20); {
		case n < 4:
			s.end = failed
		case n < 5:
			s.end = panicked
		case n < 6:
			s.end, s.takes = refused, between(0, 5*ms)
		case n < 7:
			s.end, s.takes = hung, time.Hour
		}
		p.works = append(p.works, s)
	}
	return p
}

// fates returns what becomes of the traffic of one process.
func (p plan) fates(process int) func(r *rand.Rand, at time.Duration, back bool) fate {
	return func(r *rand.Rand, at time.Duration, back bool) (f fate) {
		if !p.hit[process] || !p.spell(at) || r.Float64() >= p.odds {
			return fate{}
		}
		kind := p.trouble
		if kind == storm {
			kind = []trouble{slow, lost, unheard, held, torn}[r.IntN(5)]
		}
		switch kind {
		case slow:
			f.after = time.Duration(r.Int64N(int64(60 * time.Millisecond)))
		case held:
			f.after = time.Duration(r.Int64N(int64(2 * time.Second)))
		case lost:
			f.lost = !back
		case unheard:
			f.lost = back
		case torn:
			f.cut = true
		}
		return f
	}
}

func (p plan) String() string {
	s := fmt.Sprintf("%s from %v to %v in %v, odds %v, look-up %v", p.trouble, p.from.Round(time.Millisecond), p.to.Round(time.Millisecond), p.hit, p.odds, p.lookUp)
	if len(p.forgets) > 0 {
		s += fmt.Sprintf(", forgets at %v", p.forgets)
	}
	return s
}
