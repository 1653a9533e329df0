package soak

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"validator-gw/internal/verimail/simulator"
)

// Stage is a stretch of a run in which the upstream behaves in one way and people come at one pace. Stages of one name
// are one row of the table.
type Stage struct {
	Name string
	For  time.Duration
	// Mode is what the upstream does from the stage's beginning on.
	Mode simulator.Mode
	// From and To are the pace of new addresses a second, at the stage's beginning and end, linear between them.
	From, To float64
	// Act is done to Redis at the beginning.
	Act Act
	// Restart, in a replay, says how everything is restarted: the gateways, their Redis, which comes back empty, and
	// Postgres. Nobody comes meanwhile.
	Restart Restart
	// Trouble says that the stage's end is a recovery, whose time is measured.
	Trouble bool
}

// Act is what a stage does to the run's Redis.
type Act string

// The acts.
const (
	NoAct  Act = ""
	Kill   Act = "kill"   // SIGKILL
	Start  Act = "start"  // after Kill; it comes back empty
	Pause  Act = "pause"  // SIGSTOP: connections stay, nothing answers
	Resume Act = "resume" // SIGCONT
)

// Restart is how the gateways are stopped before everything is started again.
type Restart string

// The ways to stop. Postgres and Redis are killed in both.
const (
	NoRestart Restart = ""
	InOrder   Restart = "in order" // asked to, once nobody comes any more, as behind a load balancer
	Killed    Restart = "killed"   // SIGKILL, with requests in work
)

// Habits are what people do besides coming once; shares of the new addresses.
type Habits struct {
	// Pool, when not 0, is the number of addresses that there are: each request draws one of them anew, by a Zipf
	// distribution, so that some are asked about all day and most once or never.
	Pool int
	// Double is the share that clicks twice within 300 ms, Again the share that sends the form once more after 5 to 40 s.
	Double, Again float64
}

// Ask is one request, decided before the run begins.
type Ask struct {
	At      time.Duration // since the beginning of the load
	Address string        // empty: a bare GET /livez, the control
	Repeat  bool          // the address was asked before
	Gateway int           // index of the gateway that gets it
	Stage   int           // index of the stage
}

// controlPace is how many control requests a second there are. They run beside the load and measure what the machine
// and this program add to every latency.
const controlPace = 20

// tokens are in every address of a plan, and must be in no log.
var tokens = []string{"zsoak", "example.com", "example.net", "example.org"}

// stretch is the length of all stages.
func stretch(stages []Stage) time.Duration {
	var d time.Duration
	for _, s := range stages {
		d += s.For
	}
	return d
}

// drawPlan draws all requests of a run, in the order of their time. It depends on its arguments alone. New
// addresses come as strangers do, by a Poisson process of the stage's pace, and so do the controls.
func drawPlan(seed uint64, stages []Stage, habits Habits, gateways int) []Ask {
	r := rand.New(rand.NewPCG(seed, 0x736f616b))
	var asks []Ask
	end := stretch(stages)
	add := func(a Ask) {
		if a.At < end {
			a.Gateway = r.IntN(gateways)
			asks = append(asks, a)
		}
	}
	begin := time.Duration(0)
	next := strangers(r, seed)
	if habits.Pool > 0 {
		next = regulars(r, seed, habits.Pool)
	}
	for _, s := range stages {
		for mean := r.ExpFloat64(); ; mean += r.ExpFloat64() {
			at := s.reach(mean)
			if at >= s.For {
				break
			}
			address, repeat := next()
			add(Ask{At: begin + at, Address: address, Repeat: repeat})
			if r.Float64() < habits.Double {
				add(Ask{At: begin + at + between(r, 0, 300*time.Millisecond), Address: address, Repeat: true})
			}
			if r.Float64() < habits.Again {
				add(Ask{At: begin + at + between(r, 5*time.Second, 40*time.Second), Address: address, Repeat: true})
			}
		}
		begin += s.For
	}
	steady := Stage{For: end, From: controlPace, To: controlPace}
	for mean := r.ExpFloat64(); steady.reach(mean) < end; mean += r.ExpFloat64() {
		add(Ask{At: steady.reach(mean)})
	}
	slices.SortStableFunc(asks, func(a, b Ask) int { return cmp.Compare(a.At, b.At) })
	for i := range asks {
		asks[i].Stage = stageAt(stages, asks[i].At)
	}
	return asks
}

// strangers come once each.
func strangers(r *rand.Rand, seed uint64) func() (address string, repeat bool) {
	n := -1
	return func() (string, bool) {
		n++
		return drawAddress(r, seed, n), false
	}
}

// zipfExponent makes the most frequent of 50,000 addresses some 9 % of all requests, and leaves half of the addresses to
// come once, or never, in ten times as many.
const zipfExponent = 1.1

// regulars are some number of addresses, the first the most frequent.
func regulars(r *rand.Rand, seed uint64, number int) func() (address string, repeat bool) {
	pool, came := make([]string, number), make([]bool, number)
	for i := range pool {
		pool[i] = drawAddress(r, seed, i)
	}
	zipf := rand.NewZipf(r, zipfExponent, 1, uint64(number-1))
	return func() (string, bool) {
		n := zipf.Uint64()
		repeat := came[n]
		came[n] = true
		return pool[n], repeat
	}
}

// reach is the time into the stage by which so many people are expected; years when there will never be as many. With
// a pace that is linear the expected number is a parabola, and this solves it, in the form that is safe where the pace
// hardly changes.
func (s Stage) reach(people float64) time.Duration {
	const never = 100 * 365 * 24 * time.Hour
	if s.For <= 0 {
		return never
	}
	bend := (s.To - s.From) / (2 * s.For.Seconds())
	root := s.From*s.From + 4*bend*people
	if root < 0 || s.From+math.Sqrt(root) <= 0 {
		return never
	}
	return time.Duration(min(2*people/(s.From+math.Sqrt(root)), never.Seconds()) * float64(time.Second))
}

func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Float64()*float64(high-low))
}

// drawAddress is the nth address: half of all people are with one provider, the others spread over many. The domains
// are reserved for examples (RFC 2606); the local part is none of the simulator's magic names.
func drawAddress(r *rand.Rand, seed uint64, n int) string {
	domain := "example.com"
	if r.Float64() < 0.5 {
		domain = fmt.Sprintf("mail%d.example.net", r.IntN(200))
	}
	return fmt.Sprintf("zsoak%x.%d@%s", seed&0xffffff, n, domain)
}

// stageAt is the index of the stage at a time; after the last one, the last.
func stageAt(stages []Stage, at time.Duration) int {
	for i, s := range stages {
		if at < s.For {
			return i
		}
		at -= s.For
	}
	return len(stages) - 1
}
