package soak

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"validator-gw/internal/verimail/simulator"
)

// Server is a Postgres or a Redis of this run alone, which may be frozen and killed.
type Server interface {
	URL() string
	Pause() error
	Resume() error
	Kill() error
	Start() error
	Close() error // removes it
}

// Bench is what a run stands on.
type Bench struct {
	// Gateway starts one gateway with this environment.
	Gateway func(ctx context.Context, name string, env []string) (Gateway, error)
	// Postgres and Redis start a server; only what the profile needs is called.
	Postgres, Redis func() (Server, error)
	// Folder is for SQLite's files and for logs: what ends in .log there is searched for keys and addresses.
	Folder string
	// Patience is the longest wait for the last review to end.
	Patience time.Duration
	// Progress is told what happens, a line each.
	Progress io.Writer
}

// Bounds of a run.
const (
	maxCalls  = 4_000_000 // of the upstream's log
	chunk     = 300       // ids that are asked for in one round of the wait for the last review
	roundPace = 2 * time.Second
)

// Run plays the profile and returns what was seen. An error means that the run itself could not be made, or that ctx
// ended; whether a promise is broken is for Ledger.Check. Everything that was started is stopped when it returns.
func Run(ctx context.Context, p Profile, bench Bench) (l *Ledger, err error) {
	say := func(format string, args ...any) { fmt.Fprintf(bench.Progress, "soak: "+format+"\n", args...) }
	var stops []func() error // in reverse, whatever happens
	defer func() {
		for i := len(stops) - 1; i >= 0; i-- {
			err = errors.Join(err, stops[i]())
		}
	}()

	upstreamKey, apiKey := "upstream-"+rand.Text(), "client-"+rand.Text()
	sim, address, stop, err := serveUpstream(p, upstreamKey)
	if err != nil {
		return nil, err
	}
	stops = append(stops, stop)

	env := append([]string{
		"VALIDATOR_GW_LISTEN=127.0.0.1:0", "VALIDATOR_GW_METRICS_LISTEN=127.0.0.1:0", "VALIDATOR_GW_LOG_FORMAT=text",
		"VALIDATOR_GW_MIGRATE=true", "VALIDATOR_GW_UPSTREAM_URL=http://" + address, "VALIDATOR_GW_UPSTREAM_KEY=" + upstreamKey,
		"VALIDATOR_GW_API_KEY=" + apiKey, "VALIDATOR_GW_SECRET=" + newSecret(),
		fmt.Sprintf("VALIDATOR_GW_UPSTREAM_RATE=%v/s", p.Rate), fmt.Sprintf("VALIDATOR_GW_UPSTREAM_BURST=%d", p.Burst),
		fmt.Sprintf("VALIDATOR_GW_QUEUE_WORKERS=%d", workers(p.Rate)),
	}, p.Env...)
	var postgres, redis Server
	if p.Knobs.Store == "postgres" {
		if postgres, err = bench.Postgres(); err != nil {
			return nil, err
		}
		stops = append(stops, postgres.Close)
		env = append(env, "DATABASE_URL="+postgres.URL())
	}
	if p.Redis {
		if redis, err = bench.Redis(); err != nil {
			return nil, err
		}
		stops = append(stops, redis.Close)
		env = append(env, "REDIS_URL="+redis.URL())
	}

	all := &fleetOf{bench: bench, env: env, postgres: postgres, redis: redis}
	stops = append(stops, func() error { all.end(); return nil }) // on the good way they were stopped, and judged, before
	if err := all.start(ctx, p.Knobs.Gateways); err != nil {
		return nil, err
	}
	urls, metrics := all.urls()
	if redis != nil {
		stops = append(stops, func() error { _ = redis.Resume(); return nil }) // or the gateways' stop would wait for it
	}

	l = &Ledger{Profile: p}
	asks := drawPlan(p.Knobs.Seed, p.Stages, p.Habits, len(urls))
	c := newClient(apiKey, urls)
	defer c.close()
	say("seed %d: %d requests in %v", p.Knobs.Seed, len(asks), stretch(p.Stages).Round(time.Second))

	began := time.Now().Add(200 * time.Millisecond) // the first requests are not late
	l.Began = began
	background, halt := context.WithCancelCause(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer halt(nil)
	watch := &sampler{http: c.http, urls: metrics, began: began}
	beside.Go(func() { watch.run(background) })
	if p.Replay > 0 {
		err = l.replay(background, asks, c.send, func(how Restart) error { return all.restart(background, how, l) }, say)
	} else {
		beside.Go(func() {
			if err := conduct(background, p.Stages, began, sim, redis, say); err != nil {
				halt(err)
			}
		})
		l.Answers, err = drive(background, asks, began, c.send)
	}
	if err != nil {
		return nil, err
	}
	l.Loaded = time.Since(l.Began)
	if err := l.rest(background, c, bench.Patience, say); err != nil {
		return nil, err
	}
	halt(nil)
	beside.Wait()
	l.Samples = watch.taken()
	l.Calls = sim.Calls()
	l.Lost = sim.Stats().Calls - int64(len(l.Calls))
	all.stop(l)
	l.Leaks, err = leaks(bench.Folder, append(tokens, upstreamKey, apiKey))
	return l, err
}

// newSecret is a secret as VALIDATOR_GW_SECRET wants it: 32 random bytes, base64.
func newSecret() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.StdEncoding.EncodeToString(b[:])
}

// serveUpstream serves the simulated upstream on a free port.
func serveUpstream(p Profile, key string) (sim *simulator.Simulator, address string, stop func() error, err error) {
	cfg := p.Upstream
	cfg.Key, cfg.Seed, cfg.MaxCalls, cfg.MaxAddresses = key, p.Knobs.Seed, maxCalls, maxCalls
	if sim, err = simulator.New(cfg); err != nil {
		return nil, "", nil, err
	}
	ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", nil, fmt.Errorf("upstream: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background()) // stop ends it, after the gateways
	ended := make(chan error, 1)
	go func() { ended <- sim.Run(ctx, ln) }()
	return sim, ln.Addr().String(), func() error {
		cancel()
		sim.Close()
		return <-ended
	}, nil
}

// conduct makes each stage begin at its time, and ends with the last stage: the upstream is healthy then.
func conduct(ctx context.Context, stages []Stage, began time.Time, sim *simulator.Simulator, redis Server,
	say func(string, ...any)) error {
	at := began
	said := map[string]bool{}
	for _, s := range stages {
		if !until(ctx, at) {
			return nil
		}
		if err := sim.SetMode(s.Mode); err != nil {
			return err
		}
		if !said[s.Name] {
			said[s.Name] = true
			say("%v: %s", at.Sub(began).Round(time.Second), s.Name)
		}
		if s.Act != NoAct {
			do := map[Act]func() error{Kill: redis.Kill, Start: redis.Start, Pause: redis.Pause, Resume: redis.Resume}[s.Act]
			if err := do(); err != nil {
				return fmt.Errorf("stage %s: %w", s.Name, err)
			}
		}
		at = at.Add(s.For)
	}
	if !until(ctx, at) {
		return nil
	}
	return sim.SetMode(simulator.Mode{Fault: simulator.Healthy})
}

// until waits for a time, and says whether it came.
func until(ctx context.Context, at time.Time) bool {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// allowed is how long the reviews may take that are open when the load ends. The ladder's second rung may hold a row
// back for two minutes, the loop takes one to get to its full pace, and then makes at least 0.4 of what upstream and
// its workers (8 a process, docs/settings.md) would allow.
func (p Profile) allowed(open, gateways int) time.Duration {
	const workers = 8
	pace := p.Rate
	if p.Upstream.P50 > 0 {
		pace = min(pace, float64(gateways*workers)/p.Upstream.P50.Seconds())
	}
	return 3*time.Minute + time.Duration(float64(open)/(0.4*pace)*float64(time.Second))
}

// rest waits until every accepted id has ended, or has had its time, and notes how each ended. It asks for some ids at a
// time, in turn, so that the question costs little.
func (l *Ledger) rest(ctx context.Context, c *client, patience time.Duration, say func(string, ...any)) error {
	l.Endings = make(map[string]Ending)
	var left []string
	for _, a := range l.accepted() {
		left = append(left, a.ID)
	}
	l.Allowed = min(l.Profile.allowed(len(left), l.Profile.Knobs.Gateways), patience)
	deadline := l.Began.Add(l.Loaded + l.Allowed)
	say("the load is over; %d ids were accepted, and have %v to end", len(left), l.Allowed.Round(time.Second))
	told := time.Now()
	last := l.Loaded // when the latest review was seen ended, or had ended by its own word
	for len(left) > 0 {
		n := min(chunk, len(left))
		some := left[:n]
		asked := c.statuses(ctx, some)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var again []string
		for _, id := range some {
			e := asked[id]
			l.Endings[id] = e
			if !e.Final() {
				again = append(again, id)
				continue
			}
			last = max(last, e.Checked.Sub(l.Began))
		}
		left = append(left[n:], again...)
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			// One last look at each, so that what is said of them is true.
			final := c.statuses(ctx, left)
			for id, e := range final {
				l.Endings[id] = e
			}
			last = time.Since(l.Began)
			break
		}
		if time.Since(told) > 20*time.Second {
			say("%v after the load: %d ids not seen ended", time.Since(l.Began.Add(l.Loaded)).Round(time.Second), len(left))
			told = time.Now()
		}
		if len(again) > n/2 && !until(ctx, time.Now().Add(roundPace)) {
			return context.Cause(ctx)
		}
	}
	l.Rested = last
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// leaks searches the logs in a folder for what must not be there. It names the log and the line, not the text.
func leaks(folder string, secrets []string) (found []string, err error) {
	logs, err := filepath.Glob(filepath.Join(folder, "*.log"))
	if err != nil {
		return nil, fmt.Errorf("logs: %w", err)
	}
	for _, name := range logs {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("logs: %w", err)
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for n := 1; lines.Scan(); n++ {
			for _, s := range secrets {
				if bytes.Contains(lines.Bytes(), []byte(s)) {
					found = append(found, fmt.Sprintf("%s, line %d holds a key or a part of an address", filepath.Base(name), n))
					break
				}
			}
		}
		err = errors.Join(lines.Err(), f.Close())
		if err != nil {
			return nil, fmt.Errorf("logs: %w", err)
		}
	}
	return found, nil
}

// workers is how many checks of the loop use a rate, at some 300 ms each, as the settings advise; no fewer than the
// default, no more than is legal.
func workers(rate float64) int { return min(max(8, int(math.Ceil(rate*0.3))), 256) }
