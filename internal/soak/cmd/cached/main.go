// Command cached measures what a cached answer costs over HTTP: "make bench-cached", docs/soak.md.
//
// The gateway, as the program that its users run, and a bare net/http handler that reads and writes the same JSON are
// processes of their own. This one loads them in turn, over the same number of kept connections, each of which asks again
// as soon as it is answered. What each asks of the machine beside that is read from its metrics.
//
// Exit codes: 0 measured, 1 the run could not be made, 2 wrong usage.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// The first argument of this program's own children.
const (
	bareChild    = "bare"
	profileChild = "profiled"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	fail := func(err error) int {
		if err != nil {
			fmt.Fprintln(os.Stderr, "cached:", err)
			return 1
		}
		return 0
	}
	if len(args) > 0 && args[0] == bareChild {
		return fail(serveBare(ctx))
	}
	if len(args) > 0 && args[0] == profileChild {
		return fail(serveProfiled(ctx))
	}
	var m measurement
	flags := flag.NewFlagSet("cached", flag.ContinueOnError)
	flags.StringVar(&m.program, "program", "bin/validator-gw", "the gateway")
	flags.IntVar(&m.rounds, "rounds", 6, "how often each of the two is loaded")
	flags.DurationVar(&m.round, "round", 3*time.Second, "length of a round")
	flags.IntVar(&m.connections, "connections", 16, "connections at once")
	flags.IntVar(&m.addresses, "addresses", 1000, "different addresses, all cached before the first round")
	flags.StringVar(&m.profile, "profile", "", "folder for profiles of the gateway, taken in a round after the others; none when empty")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 || m.rounds < 1 || m.round < 100*time.Millisecond || m.connections < 1 || m.addresses < 1 {
		fmt.Fprintln(os.Stderr, "cached: takes flags only; rounds, connections and addresses from 1, a round from 100ms")
		return 2
	}
	return fail(m.run(ctx, os.Stdout))
}
