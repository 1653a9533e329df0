package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"validator-gw/internal/secret"
	"validator-gw/internal/settings"
	"validator-gw/internal/verimail/simulator"
)

type simulateCommand struct {
	Listen string        `default:"127.0.0.1:8090" placeholder:"ADDR" help:"Address (${default}); /control/ asks for no key."`
	Rate   string        `default:"0" placeholder:"RATE" help:"Calls let through, such as 50/s; 0 is no limit."`
	Burst  int           `placeholder:"N" help:"Calls let through at once; the rate rounded up when 0."`
	Script string        `placeholder:"PHASES" help:"What it plays: \"healthy 30s, hang 60s, 429 30s retry-after=5\"."`
	P50    time.Duration `name:"p50" placeholder:"DURATION" help:"Median time of a verdict."`
	P99    time.Duration `name:"p99" placeholder:"DURATION" help:"99th percentile of it."`
	Quota  int64         `placeholder:"N" help:"Billed calls until it answers 403; 0 is no quota."`
	Key    secret.Text   `placeholder:"KEY" help:"The only key accepted; any when empty. Never a real one."`
	Hint   string        `placeholder:"FORM" help:"What its 429 hints: none, seconds, date, epoch, ratelimit-epoch, ratelimit-delta."`
	Mix    string        `placeholder:"MIX" help:"What other addresses get: \"deliverable=90, hardbounce=8, unknown=2\"."`
	Seed   uint64        `default:"1" placeholder:"N" help:"Where every draw comes from (${default})."`
}

// Run serves the simulated upstream until a signal comes.
func (c simulateCommand) Run(ctx context.Context, p *program) error {
	sim, err := c.build()
	if err != nil {
		return usageError{err}
	}
	return p.untilStopped(ctx, nil, func(ctx context.Context) error {
		ln, err := listen(ctx, c.Listen, "--listen", "")
		if err != nil {
			return err
		}
		fmt.Fprintf(p.stdout, "simulated upstream on http://%s, seed %d\n", ln.Addr(), c.Seed)
		if host, _, err := net.SplitHostPort(c.Listen); err == nil && !isLoopback(host) {
			fmt.Fprintln(p.stderr, "validator-gw: other machines can reach this, and its control endpoints ask for no key")
		}
		return sim.Run(ctx, ln)
	})
}

// build reads the flags; the error joins all that is wrong with them.
func (c simulateCommand) build() (*simulator.Simulator, error) {
	var errs []error
	check := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", flag, err))
		}
	}
	rate, err := settings.ParseRate(c.Rate)
	if err != nil {
		check("--rate", fmt.Errorf("%q %w", c.Rate, err))
	}
	script, err := simulator.ParseScript(c.Script)
	check("--script", err)
	hint, err := simulator.ParseHint(c.Hint)
	check("--hint", err)
	mix, err := simulator.ParseMix(c.Mix)
	check("--mix", err)
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		errs = append(errs, fmt.Errorf("--listen: %q is not an address such as 127.0.0.1:8090", c.Listen))
	}
	sim, err := simulator.New(simulator.Config{
		Key: c.Key.Reveal(), Rate: float64(rate), Burst: c.Burst, Hint: hint, Quota: c.Quota, P50: c.P50, P99: c.P99,
		Seed: c.Seed, Mix: mix, Script: script,
	})
	if len(errs) == 0 || err != nil {
		errs = append(errs, err)
	}
	return sim, errors.Join(errs...)
}
