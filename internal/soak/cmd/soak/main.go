// Command soak runs the gateway under load and faults and checks its promises: "make soak", docs/soak.md.
//
// Exit codes: 0 every promise is kept, 1 one is broken or the run could not be made, 2 wrong usage.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"validator-gw/internal/soak"
	"validator-gw/internal/testenv"
)

func main() {
	testenv.KeepIfAsked() // this program is also the keeper of its servers
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	os.Exit(run(signals, os.Args[1:]))
}

func run(signals <-chan os.Signal, args []string) int {
	var k soak.Knobs
	var program, folder string
	var patience time.Duration
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.StringVar(&k.Profile, "profile", "phases", "one of "+strings.Join(soak.Profiles, ", "))
	flags.Float64Var(&k.Rate, "rate", 0, "new addresses a second, at most; 0 takes the profile's")
	flags.Float64Var(&k.Minutes, "minutes", 0, "length of the load; 0 takes the profile's")
	flags.IntVar(&k.Gateways, "gateways", 0, "processes; 0 takes the profile's number")
	flags.StringVar(&k.Store, "store", "postgres", "postgres or sqlite")
	flags.Uint64Var(&k.Seed, "seed", 0, "of all draws; 0 draws one")
	flags.StringVar(&program, "program", "bin/validator-gw", "the gateway")
	flags.StringVar(&folder, "folder", "", "for logs, kept afterwards; a temporary one when empty, kept when a promise is broken")
	flags.DurationVar(&patience, "patience", 10*time.Minute, "longest wait for the last review to end")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		if err == nil {
			fmt.Fprintln(os.Stderr, "soak: takes flags only")
		}
		return 2
	}
	if k.Seed == 0 {
		k.Seed = rand.Uint64N(1_000_000) + 1
	}
	p, err := soak.NewProfile(k)
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		return 2
	}
	keep := folder != ""
	if keep {
		err = os.MkdirAll(folder, 0o700)
	} else {
		folder, err = os.MkdirTemp("", "validator-gw-soak-")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		return 1
	}

	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		select {
		case s := <-signals:
			cancel(fmt.Errorf("stopped by %v", s))
		case <-ctx.Done():
		}
	}()
	l, err := soak.Run(ctx, p, soak.Bench{
		Gateway: func(ctx context.Context, name string, env []string) (soak.Gateway, error) {
			return soak.StartProcess(ctx, program, folder, name, env)
		},
		Postgres: func() (soak.Server, error) { return testenv.StartPostgres() },
		Redis:    func() (soak.Server, error) { return testenv.StartRedis() },
		Folder:   folder,
		Patience: patience,
		Progress: os.Stderr,
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "soak: %v\nsoak: seed %d; logs are in %s\n", err, k.Seed, folder)
		return 1
	}
	l.Print(os.Stdout)
	if len(l.Check()) > 0 {
		fmt.Fprintln(os.Stderr, "soak: logs are in", folder)
		return 1
	}
	if !keep {
		_ = os.RemoveAll(folder) // nothing in it is needed any more
	}
	return 0
}
