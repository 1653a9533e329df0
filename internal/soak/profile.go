package soak

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"validator-gw/internal/verimail/simulator"
)

// Knobs are what whoever runs a soak may choose. A zero takes the profile's default.
type Knobs struct {
	Profile string
	// Rate is the pace of new addresses a second; where a profile has several, its highest.
	Rate float64
	// Minutes is the length of the load.
	Minutes float64
	// Gateways is the number of processes; more than one share a Redis.
	Gateways int
	// Store is postgres or sqlite; sqlite takes one gateway.
	Store string
	Seed  uint64
}

// Profile is one kind of run.
type Profile struct {
	Name   string
	Knobs  Knobs
	Stages []Stage
	Habits Habits
	// Rate and Burst are the limit that all gateways together keep towards the upstream.
	Rate  float64
	Burst int
	// Upstream is the simulated upstream but for its key, its seed and its bounds.
	Upstream simulator.Config
	// Env are settings that differ from the defaults.
	Env []string
	// Replay, when not 0, is how many requests may be in work at once: they come in the plan's order and no faster than in
	// the plan, but wait for one another when a gateway is slower. For what is counted and not timed. The stages then last
	// as long as they take, and the upstream is well throughout.
	Replay int
	// Redis says that the gateways share one.
	Redis bool
	// Notes are printed at the head of the table.
	Notes []string

	promises []promise
	extra    func(*Ledger, io.Writer) // printed between table and promises
}

// Profiles are the names of all profiles.
var Profiles = []string{"phases", "fleet", "redis-hang", "blip", "slow", "campaign", "day", "day-kill"}

// budget is the time in which the gateway promises an answer (flows.signup.budget), wireMax the most on the wire.
const (
	budget  = 800 * time.Millisecond
	wireMax = time.Second
)

// NewProfile builds the profile of that name.
func NewProfile(k Knobs) (Profile, error) {
	builders := map[string]struct {
		rate, minutes float64
		gateways      int
		build         func(Knobs) Profile
	}{
		"phases":     {200, 3, 1, phases},
		"fleet":      {200, 3, 3, fleet},
		"redis-hang": {200, 1, 2, redisHang},
		"blip":       {20, 2, 1, blip},
		"slow":       {200, 5, 1, slow},
		"campaign":   {200, 3, 1, campaign},
		"day":        {1400, 6, 2, func(k Knobs) Profile { return day(k, InOrder) }},
		"day-kill":   {1400, 6, 2, func(k Knobs) Profile { return day(k, Killed) }},
	}
	b, ok := builders[k.Profile]
	switch {
	case !ok:
		return Profile{}, fmt.Errorf("no profile is called %q: one of %s", k.Profile, strings.Join(Profiles, ", "))
	case k.Rate < 0 || k.Rate > 5000 || math.IsNaN(k.Rate):
		return Profile{}, fmt.Errorf("rate %v: 1 to 5000 a second", k.Rate)
	case k.Minutes < 0 || k.Minutes > 120 || math.IsNaN(k.Minutes):
		return Profile{}, fmt.Errorf("minutes %v: up to 120", k.Minutes)
	case k.Gateways < 0 || k.Gateways > 16:
		return Profile{}, fmt.Errorf("gateways %d: 1 to 16", k.Gateways)
	case !slices.Contains([]string{"", "postgres", "sqlite"}, k.Store):
		return Profile{}, fmt.Errorf("store %q: postgres or sqlite", k.Store)
	}
	if k.Rate == 0 {
		k.Rate = b.rate
	}
	if k.Minutes == 0 {
		k.Minutes = b.minutes
	}
	if k.Gateways == 0 {
		k.Gateways = b.gateways
	}
	if k.Store == "" {
		k.Store = "postgres"
	}
	if k.Store == "sqlite" && k.Gateways > 1 {
		return Profile{}, fmt.Errorf("sqlite is for one process, not %d", k.Gateways)
	}
	p := b.build(k)
	p.Name, p.Knobs = k.Profile, k
	p.Redis = p.Redis || k.Gateways > 1
	return p, nil
}

// part is a share of the run's length.
func (k Knobs) part(share float64) time.Duration {
	return time.Duration(k.Minutes * share * float64(time.Minute)).Round(time.Millisecond)
}

// mix is what the upstream says of the addresses. None of these words leads to a review of days.
var mix = simulator.Mix{{Name: "deliverable", Weight: 80}, {Name: "hardbounce", Weight: 12}, {Name: "catch-all", Weight: 4},
	{Name: "disposable", Weight: 2}, {Name: "inbox-full", Weight: 2}}

// quick is an upstream that is well.
func quick() simulator.Config {
	return simulator.Config{P50: 40 * time.Millisecond, P99: 150 * time.Millisecond, Mix: mix}
}

// room sets the limit with head-room over the load, and the upstream's own limit above it, so that its 429 come in the
// phases that play them only, or when a gateway breaks its word by far.
func (p *Profile) room(k Knobs) {
	p.Rate, p.Burst = 1.3*k.Rate, max(int(k.Rate/4), 20)
	p.Upstream.Rate, p.Upstream.Burst = 1.25*p.Rate, 2*p.Burst
}

// phases plays each kind of trouble for a while, with a rest after each in which the gateway has to recover.
func phases(k Knobs) Profile {
	p := Profile{Upstream: quick(),
		Env: []string{"VALIDATOR_GW_BREAKER_COOLDOWN=15s"},
		Notes: []string{"the breaker's cool-down is at its lower bound, 15s, so that a recovery from each trouble fits into the run; " +
			"all other settings but the upstream's rate and burst and the loop's workers, which fit that rate, are the defaults"}}
	p.room(k)
	const troubled, rest = 8.0 / 180, 16.0 / 180 // a breaker that opened late in a trouble closes before the next
	add := func(name string, share float64, m simulator.Mode, trouble bool) {
		p.Stages = append(p.Stages, Stage{Name: name, For: k.part(share), Mode: m, From: k.Rate, To: k.Rate, Trouble: trouble})
	}
	healthy := simulator.Mode{Fault: simulator.Healthy}
	add("healthy", 8.0/180, healthy, false)
	for _, t := range []struct {
		name string
		mode simulator.Mode
	}{
		{"slow 1.2s", simulator.Mode{Fault: simulator.Slow, P50: 1200 * time.Millisecond, P99: 1800 * time.Millisecond}},
		{"429 hint 3s", simulator.Mode{Fault: simulator.Throttle, RetryAfter: 3 * time.Second}},
		{"429 no hint", simulator.Mode{Fault: simulator.Throttle}},
		{"500", simulator.Mode{Fault: simulator.Error500}},
		{"hang", simulator.Mode{Fault: simulator.Hang}},
		{"reset", simulator.Mode{Fault: simulator.Reset}},
		{"slow drip", simulator.Mode{Fault: simulator.Drip}},
	} {
		add(t.name, troubled, t.mode, true)
		if len(p.Stages) < 14 {
			add("  after it", rest, healthy, false)
		}
	}
	add("healthy again", 20.0/180, healthy, false)
	// One name a row: the rests are rows of their own.
	for i := range p.Stages {
		if p.Stages[i].Name == "  after it" {
			p.Stages[i].Name = "  after " + p.Stages[i-1].Name
		}
	}
	p.promises = []promise{{name: "normal again after each trouble", check: checkRecoveries}}
	return p
}

// The stages of fleet that its promises look at.
const (
	stageOverload = "overload"
	stageFlood    = "flood"
)

// fleet offers several gateways twice what they may send together, takes their Redis away and gives it back, and then
// lets the backlog that this made stand against a moderate load.
func fleet(k Knobs) Profile {
	p := Profile{Redis: true, Upstream: quick(), Rate: k.Rate / 2, Burst: 20}
	p.Upstream.Rate, p.Upstream.Burst = 1.25*p.Rate, 2*p.Burst
	moderate := 0.4 * p.Rate
	p.Stages = []Stage{
		{Name: stageOverload, For: k.part(1.0 / 6), From: k.Rate, To: k.Rate},
		{Name: "redis killed", For: k.part(1.0 / 6), From: k.Rate, To: k.Rate, Act: Kill},
		{Name: "redis back", For: k.part(1.0 / 6), From: k.Rate, To: k.Rate, Act: Start},
		{Name: stageFlood, For: k.part(1.0 / 2), From: moderate, To: moderate},
	}
	p.Notes = []string{fmt.Sprintf("the fleet may send %v/s together, burst %d; it is offered %v/s, in the flood %v/s beside the backlog",
		p.Rate, p.Burst, k.Rate, moderate)}
	p.promises = []promise{{name: "a flood of background work leaves people their share", check: checkAdmission}}
	p.extra = printFleet
	return p
}

// The stages of redis-hang.
const (
	stageBefore = "before"
	stageHung   = "redis hung"
)

// redisHang freezes Redis for a third of the run. The upstream takes the same time for every answer, so that what
// differs is the gateway's.
func redisHang(k Knobs) Profile {
	p := Profile{Redis: true, Habits: Habits{Again: 0.2}, Upstream: simulator.Config{P50: 30 * time.Millisecond, Mix: mix},
		Rate: 4 * k.Rate, Burst: max(int(k.Rate), 20), Notes: []string{
			"the upstream takes four times the load: without Redis each gateway keeps to a part of its share, and what is measured here is time"}}
	p.Upstream.Rate, p.Upstream.Burst = 1.25*p.Rate, 2*p.Burst
	p.Stages = []Stage{
		{Name: stageBefore, For: k.part(1.0 / 3), From: k.Rate, To: k.Rate},
		{Name: stageHung, For: k.part(1.0 / 3), From: k.Rate, To: k.Rate, Act: Pause},
		{Name: "redis answers again", For: k.part(1.0 / 3), From: k.Rate, To: k.Rate, Act: Resume},
	}
	p.promises = []promise{{name: "a hung Redis is felt by the first few only, and by no more than 50ms", timing: true, check: checkHang}}
	p.extra = printSeconds
	return p
}

// The length of an outage in blip, and of the time from one to the next.
const (
	blipFor   = 400 * time.Millisecond
	blipEvery = 6 * time.Second
)

// blip plays outages that are shorter than the budget.
func blip(k Knobs) Profile {
	p := Profile{Upstream: quick(), Rate: 3 * k.Rate, Burst: max(int(k.Rate), 20)} // retries take tokens, too
	p.Upstream.Rate, p.Upstream.Burst = 1.25*p.Rate, 2*p.Burst
	rest := Stage{Name: "rest", For: blipEvery - blipFor, From: k.Rate, To: k.Rate}
	outages := []simulator.Fault{simulator.Reset, simulator.Error500, simulator.Error503}
	p.Stages = append(p.Stages, rest)
	for i := 0; stretch(p.Stages) < k.part(1); i++ {
		f := outages[i%len(outages)]
		p.Stages = append(p.Stages,
			Stage{Name: "outage " + string(f), For: blipFor, Mode: simulator.Mode{Fault: f}, From: k.Rate, To: k.Rate, Trouble: true}, rest)
	}
	p.Notes = []string{fmt.Sprintf("an outage of %v each %v, in turn of resets, 500 and 503", blipFor, blipEvery)}
	p.promises = []promise{{name: "nine of ten in a short outage still get a verdict", check: checkBlips}}
	p.extra = printBlips
	return p
}

// slow is an upstream that is well and takes 832 ms in the mean: log-normal with a median of 800 ms and a standard
// deviation of the logarithm of 0.28, for which 0.28² / 2 is the logarithm of 832/800.
func slow(k Knobs) Profile {
	p := Profile{Upstream: simulator.Config{P50: 800 * time.Millisecond, P99: 1535 * time.Millisecond, Mix: mix}}
	p.room(k)
	p.Stages = []Stage{{Name: "832ms mean", For: k.part(1), From: k.Rate, To: k.Rate}}
	p.promises = []promise{
		{name: "the breaker stays closed", check: checkClosed},
		{name: "each call is billed once, and each review settled by its own late answer", check: checkLate},
	}
	return p
}

// campaign is a wave of sign-ups: tenfold within ten minutes, played faster, against a limit that stays.
func campaign(k Knobs) Profile {
	p := Profile{Upstream: quick(), Habits: Habits{Double: 0.1, Again: 0.1}, Rate: 0.3 * k.Rate, Burst: max(int(0.15*k.Rate), 10)}
	p.Upstream.Rate, p.Upstream.Burst = 1.25*p.Rate, 2*p.Burst
	p.Stages = []Stage{
		{Name: "rise", For: k.part(1), From: k.Rate / 10, To: k.Rate},
		{Name: "after", For: k.part(1.0 / 3), From: k.Rate / 10, To: k.Rate / 10},
	}
	p.Notes = []string{
		fmt.Sprintf("ten minutes are played in %v, %.1f times as fast; what the gateway waits for is not sped up", k.part(1), 10/k.Minutes),
		fmt.Sprintf("sign-ups rise from %v/s to %v/s, the upstream takes %v/s throughout; of all people 10 %% click twice, 10 %% come again",
			k.Rate/10, k.Rate, p.Rate),
	}
	p.extra = printSeries
	return p
}
