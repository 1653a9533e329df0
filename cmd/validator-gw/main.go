// Command validator-gw is the gateway between sign-up forms and a paid email validator. This package reads the command
// line and the configuration, takes the signals and the listeners, and runs what it built; it decides nothing else.
//
// Exit codes: 0 done, 1 something in the work failed, 2 wrong usage or settings.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"validator-gw/internal/settings"
)

// The exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	// net/http writes there what it finds on a connection after an answer, and an upstream's answers hold addresses.
	log.SetOutput(io.Discard)
	floorHeap(os.Environ())
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr, notified()))
}

// notified returns the signals that come to the process. The runtime drops one that its channel has no room for, so those
// that ask for the end have a channel of their own, which no number of SIGHUPs fills.
func notified() <-chan os.Signal {
	// Two: a second one must be seen while the first is being acted on.
	stops, hangups := make(chan os.Signal, 2), make(chan os.Signal, 1)
	signal.Notify(stops, os.Interrupt, syscall.SIGTERM)
	signal.Notify(hangups, syscall.SIGHUP)
	all := make(chan os.Signal)
	go func() {
		for {
			select {
			case s := <-stops:
				all <- s
			case s := <-hangups:
				all <- s
			}
		}
	}()
	return all
}

// run is the whole program but for what belongs to the process: its arguments, environment, streams and signals come
// as parameters, and it returns the exit code. Output is written from several goroutines.
func run(ctx context.Context, args, environ []string, stdin io.Reader, stdout, stderr io.Writer,
	signals <-chan os.Signal) int {
	p := &program{environ: environ, stdin: stdin, stdout: stdout, stderr: stderr, signals: signals}
	command, code, err := parse(args, stdout, stderr)
	if command == nil {
		if err != nil {
			fmt.Fprintf(stderr, "validator-gw: %v\nRun \"validator-gw --help\" for what there is.\n", err)
		}
		return code
	}
	return p.report(command.Run(ctx, p))
}

// program is what the commands need of the process.
type program struct {
	environ        []string
	stdin          io.Reader
	stdout, stderr io.Writer
	signals        <-chan os.Signal
	log            *slog.Logger // nil until a command has one; people read stderr then
}

// usageError is an error in what the operator wrote: arguments, environment, settings file.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// report prints an error, one line a fault, and returns its exit code.
func (p *program) report(err error) int {
	if err == nil {
		return exitDone
	}
	code, headline := exitFailed, ""
	if u, ok := errors.AsType[usageError](err); ok {
		code = exitUsage
		if faults := settings.Faults(u.err); len(faults) > 1 {
			headline = fmt.Sprintf("%d errors in flags, environment or settings file:", len(faults))
		}
		err = u.err
	}
	faults := settings.Faults(err)
	if len(faults) == 1 {
		fmt.Fprintf(p.stderr, "validator-gw: %s\n", faults[0])
		return code
	}
	if headline == "" {
		headline = fmt.Sprintf("%d errors:", len(faults))
	}
	var text strings.Builder
	text.WriteString("validator-gw: " + headline + "\n")
	for _, f := range faults {
		text.WriteString("  - " + f + "\n")
	}
	fmt.Fprint(p.stderr, text.String())
	return code
}

// stopTimeout bounds an orderly stop: the gateway drains within 15 s, the rest is for what surrounds it.
const stopTimeout = 18 * time.Second

// untilStopped runs work until it ends by itself or a signal asks for its end: SIGINT and SIGTERM cancel its context,
// a second one does not wait any longer. SIGHUP calls onHangup, or stops too when that is nil. It is not waited for, so that
// a settings file that can't be read to its end, as on a lost network disk, does not stand in the way of a stop.
func (p *program) untilStopped(ctx context.Context, onHangup func(context.Context),
	work func(context.Context) error) error {
	workCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- work(workCtx) }()
	hangups := make(chan struct{}, 1)
	go func() {
		for {
			select {
			case <-workCtx.Done():
				return
			case <-hangups:
				onHangup(workCtx)
			}
		}
	}()

	var deadline <-chan time.Time
	stopping := false
	stop := func() {
		stopping = true
		cancel()
		deadline = time.After(stopTimeout)
	}
	outer := ctx.Done()
	for {
		select {
		case err := <-done:
			if stopping && errors.Is(err, context.Canceled) {
				return nil // asked to stop while it was still starting
			}
			return err
		case <-deadline:
			return fmt.Errorf("not stopped within %s", settings.FormatDuration(stopTimeout))
		case <-outer:
			outer = nil
			stop()
		case s := <-p.signals:
			switch {
			case s == syscall.SIGHUP && onHangup != nil:
				select {
				case hangups <- struct{}{}:
				default: // one is to come, and reads what this one would
				}
			case !stopping:
				const text = "signal received, stopping; a second one stops at once"
				if p.log != nil {
					p.log.InfoContext(ctx, text)
				} else {
					fmt.Fprintln(p.stderr, "validator-gw: "+text)
				}
				stop()
			default:
				return errors.New("stopped at once, without finishing what was under way")
			}
		}
	}
}

// exited carries an exit code out of the parser, which believes that it ends the process.
type exited int

// parse reads the command line. Without a command it says how to exit: help and version are done by then.
func parse(args []string, stdout, stderr io.Writer) (c command, code int, err error) {
	var cli commandLine
	parser, err := kong.New(&cli,
		kong.Name("validator-gw"),
		kong.Description("A gateway between sign-up forms and a paid email validator. Every address gets a useful answer "+
			"inside its time budget: from cache, from the upstream, or as a durable review that the gateway settles later."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(exited(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.Vars{"version": versionText()},
	)
	if err != nil {
		return nil, exitFailed, err
	}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case exited:
			c, code, err = nil, int(r), nil
		default:
			panic(r)
		}
	}()
	parsed, err := parser.Parse(args)
	if err != nil {
		return nil, exitUsage, err
	}
	chosen, ok := parsed.Selected().Target.Addr().Interface().(command)
	if !ok {
		return nil, exitUsage, errors.New("no command given")
	}
	return chosen, exitDone, nil
}
