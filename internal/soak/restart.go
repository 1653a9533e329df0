package soak

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// fleetOf is the gateways of a run, and what they stand on. One goroutine at a time.
type fleetOf struct {
	bench           Bench
	env             []string
	postgres, redis Server // or nil

	gateways []Gateway
	lives    int // how often they were started
}

// start starts so many gateways, one by one: the first brings the schema up. Those that are started again are where they
// were before.
func (f *fleetOf) start(ctx context.Context, number int) error {
	before := f.gateways
	f.gateways = nil
	for i := range number {
		name := fmt.Sprintf("gateway-%d", i)
		env := append(f.env[:len(f.env):len(f.env)], "VALIDATOR_GW_DATA="+filepath.Join(f.bench.Folder, name))
		if f.lives > 0 { // the last of a name counts
			env = append(env, "VALIDATOR_GW_LISTEN="+hostOf(before[i].URL()), "VALIDATOR_GW_METRICS_LISTEN="+hostOf(before[i].MetricsURL()))
			name = fmt.Sprintf("%s-life-%d", name, f.lives+1)
		}
		g, err := f.bench.Gateway(ctx, name, env)
		if err != nil {
			return err
		}
		f.gateways = append(f.gateways, g)
	}
	f.lives++
	return nil
}

// hostOf is host and port of an address.
func hostOf(address string) string {
	_, rest, _ := strings.Cut(address, "://")
	host, _, _ := strings.Cut(rest, "/")
	return host
}

func (f *fleetOf) urls() (urls, metrics []string) {
	for _, g := range f.gateways {
		urls, metrics = append(urls, g.URL()), append(metrics, g.MetricsURL())
	}
	return urls, metrics
}

// stop stops all in order, at the same time, and notes what was wrong with that.
func (f *fleetOf) stop(l *Ledger) {
	faults := make([]error, len(f.gateways))
	var stopping sync.WaitGroup
	for i, g := range f.gateways {
		stopping.Go(func() { faults[i] = g.Stop() })
	}
	stopping.Wait()
	for i, err := range faults {
		if err != nil {
			l.Stops = append(l.Stops, fmt.Sprintf("gateway %d: %v", i, err))
		}
	}
}

// end stops whatever runs.
func (f *fleetOf) end() {
	for _, g := range f.gateways {
		_ = g.Stop() // judged before
	}
}

// restart stops everything and starts it again. Redis comes back empty, Postgres with all that was committed.
func (f *fleetOf) restart(ctx context.Context, how Restart, l *Ledger) error {
	if how == Killed {
		l.Cut = time.Since(l.Began)
		var killing sync.WaitGroup
		for _, g := range f.gateways {
			killing.Go(g.Kill)
		}
		killing.Wait()
	} else {
		f.stop(l)
	}
	began := time.Now()
	for _, s := range []Server{f.postgres, f.redis} {
		if s == nil {
			continue
		}
		if err := errors.Join(s.Kill(), s.Start()); err != nil {
			return err
		}
	}
	err := f.start(ctx, len(f.gateways))
	l.Down = time.Since(began)
	return err
}
