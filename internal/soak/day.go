package soak

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"
)

// The stages of a day.
const (
	stageMorning   = "morning"
	stageAfternoon = "afternoon"
)

// dayAtOnce is how many requests of a day are in work at once, at most.
const dayAtOnce = 12

// dayPool is how many addresses there are; the profile's pace and length make ten times as many requests.
const dayPool = 50_000

// maxDayBilled is the promise of a day: billed calls for each address that was asked about.
const maxDayBilled = 1.02

// day replays a day of requests for known addresses, faster, with a restart of everything in the middle.
func day(k Knobs, how Restart) Profile {
	p := Profile{Redis: true, Replay: dayAtOnce, Habits: Habits{Pool: dayPool}, Upstream: quick(), Rate: 4 * k.Rate, Burst: max(int(k.Rate), 20)}
	p.Upstream.Rate, p.Upstream.Burst = 1.25*p.Rate, 2*p.Burst
	low, high := 0.6*k.Rate, 1.4*k.Rate
	p.Stages = []Stage{
		{Name: stageMorning, For: k.part(1.0 / 2), From: low, To: high},
		{Name: "restart, " + string(how), Restart: how},
		{Name: stageAfternoon, For: k.part(1.0 / 2), From: high, To: low},
	}
	p.Notes = []string{
		fmt.Sprintf("requests, not new addresses: %.0f/s to %.0f/s and back, drawn from %d addresses (Zipf, %v)", low, high, dayPool, zipfExponent),
		fmt.Sprintf("no more than %d are in work at once: times count from when a request is sent, and it takes as long as it takes", dayAtOnce),
		fmt.Sprintf("in the middle the gateways are stopped (%s), Redis is emptied, Postgres killed, and all are started again", how),
		"the upstream takes four times the requests: what is measured here is what is asked twice, not want of tokens",
		"a day is played in minutes and the cache's times are not sped up, so no verdict has to be refreshed",
	}
	p.promises = []promise{{name: fmt.Sprintf("billed calls per address of a day, at most %v", maxDayBilled), check: checkDay}}
	p.extra = printDay
	return p
}

func checkDay(l *Ledger) []string {
	if got := l.billedShare(); got > maxDayBilled {
		return []string{fmt.Sprintf("%.4f", got)}
	}
	return nil
}

// levels adds up the look-ups of all gateways between two times. A counter that fell began anew with its gateway.
func (l *Ledger) levels(from, to time.Duration) map[string]float64 {
	total := make(map[string]float64)
	last := make(map[int]map[string]float64)
	for _, s := range l.Samples {
		for i, now := range s.Levels {
			if now == nil {
				continue
			}
			for name, v := range now {
				before := last[i][name]
				if v < before {
					before = 0
				}
				if s.At >= from && s.At < to {
					total[name] += v - before
				}
			}
			last[i] = now
		}
	}
	return total
}

// printDay shows where answers came from, before and after the restart, and what it cost.
func printDay(l *Ledger, w io.Writer) {
	asked, billed := l.addresses(), l.billed()
	t := table(w, "where answers came from", "requests", "new addresses", "cache", "of it process", "Redis", "store, or with another's look-up", "another's check",
		"upstream", "other", "resident MiB at most")
	for _, name := range []string{stageMorning, stageAfternoon} {
		i := slices.IndexFunc(l.Profile.Stages, func(s Stage) bool { return s.Name == name })
		from, to := l.span(i)
		some := l.people(func(a Answer) bool { return l.named(a.Stage, name) })
		sources := map[string]int{}
		for _, a := range some {
			sources[a.Source]++
		}
		fresh := 0
		for _, stage := range asked {
			if l.named(stage, name) {
				fresh++
			}
		}
		resident := 0.0
		for _, s := range l.Samples {
			if s.At >= from && s.At < to {
				resident = max(resident, slices.Max(s.Resident))
			}
		}
		levels := l.levels(from, to+time.Second) // the last requests are seen in the next sample
		share := func(n float64) string { return fmt.Sprintf("%.2f %%", 100*n/float64(max(len(some), 1))) }
		cached, memory, redis := float64(sources["cache"]), levels["memory hit"], levels["redis hit"]
		upstream, flight := float64(sources["upstream"]), float64(sources["flight"])
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.0f\n", name, len(some), fresh, share(cached), share(memory), share(redis),
			share(max(cached-memory-redis, 0)), share(flight), share(upstream), share(float64(len(some))-cached-flight-upstream), resident/(1<<20))
	}
	_ = t.Flush()
	total, again, cut := 0, 0, 0
	for _, address := range slices.Sorted(maps.Keys(billed)) {
		total += billed[address]
		if billed[address] > 1 {
			again++
		}
	}
	for _, a := range l.Answers {
		if l.cutOff(a) {
			cut++
		}
	}
	fmt.Fprintf(w, "billed calls %d for %d addresses that were asked about: %.4f for each; %d were billed more than once\n", total, len(asked),
		l.billedShare(), again)
	levels := l.levels(0, math.MaxInt64)
	fmt.Fprintf(w, "look-ups in the store that failed, after which the upstream is asked: %.0f; in Redis: %.0f\n", levels["store error"], levels["redis error"])
	fmt.Fprintf(w, "everything was there again %v after the gateways had stopped; %d requests were cut off\n", l.Down.Round(10*time.Millisecond), cut)
}
