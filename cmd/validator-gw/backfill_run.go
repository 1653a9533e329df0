package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"validator-gw/internal/backfill"
	"validator-gw/internal/fallback"
	"validator-gw/internal/gateway"
	"validator-gw/internal/settings"
)

type backfillRunCommand struct {
	worker
	Column     string `help:"CSV column or JSON key that holds the address; email and the like unless given."`
	Format     string `placeholder:"NAME" help:"csv (with a header line), ndjson or lines; the first line tells unless given. Gzip is seen by itself."`
	Flow       string `default:"signup" help:"The flow whose policy decides (${default})."`
	Output     string `short:"o" placeholder:"FILE" help:"Where the results go; NDJSON when it ends in .ndjson or .jsonl, else CSV. Standard output unless given."`
	Rate       string `placeholder:"RATE" help:"Most checks, such as 5/s or 300/m; backfill.share of the upstream's rate unless given."`
	MaxCredits *int64 `placeholder:"N" help:"Stop before the check that would cost more. A later run with a higher bound goes on."`
	DryRun     bool   `help:"Store the list and count what it would cost; ask nobody. A later run without this goes on."`
	File       string `arg:"" help:"The list, or - for standard input."`
}

// Help is shown by --help.
func (backfillRunCommand) Help() string {
	return `Works until every address has its answer: addresses that are fresh in the store cost nothing, one that is listed twice is checked ` +
		`once. Stopped or killed, it goes on where it was when it is run again with the same file and output. Bad lines are ` +
		`reported by their numbers and keep nothing else from being checked. With SQLite a gateway on the same data folder must ` +
		`be stopped, or be given the list with --server.`
}

// list is what the flags ask for.
func (c backfillRunCommand) list() (l backfill.List, err error) {
	l = backfill.List{Client: "cli", Flow: c.Flow, Column: c.Column, MaxCredits: -1, Dry: c.DryRun}
	var faults []error
	if l.Format, err = backfill.ParseFormat(c.Format); err != nil {
		faults = append(faults, fmt.Errorf("--format: %w", err))
	}
	if c.Rate != "" {
		rate, err := settings.ParseRate(c.Rate)
		if err == nil && rate <= 0 {
			err = errors.New("it is not more than 0")
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("--rate: %w", err))
		}
		l.Rate = float64(rate)
	}
	if c.MaxCredits != nil {
		if l.MaxCredits = *c.MaxCredits; l.MaxCredits < 0 {
			faults = append(faults, errors.New("--max-credits: it is less than 0"))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return l, usageError{err}
	}
	return l, nil
}

// Run works a list off.
func (c backfillRunCommand) Run(ctx context.Context, p *program) error {
	l, err := c.list()
	if err != nil {
		return err
	}
	far, err := c.remote(p)
	if err != nil {
		return err
	}
	in, err := openInput(c.File, c.Output, p.stdin)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	l.Source = in.source
	show := newBar(p.stderr)
	if far != nil {
		return p.untilStopped(ctx, nil, func(ctx context.Context) error {
			return c.finish(ctx, p, show, &farList{far, l, c.File, in})
		})
	}
	return c.work(ctx, p, func(ctx context.Context, g *gateway.Gateway) error {
		if !g.HasFlow(c.Flow) {
			return usageError{fmt.Errorf("--flow: the settings have no flow %q", c.Flow)}
		}
		return c.finish(ctx, p, show, &nearList{g.Lists(), l, in})
	})
}

// lists is where a list is worked off: here, or by a gateway elsewhere.
type lists interface {
	load(ctx context.Context, read *atomic.Int64) (progress, error)
	show(ctx context.Context, id string) (progress, error)
	resume(ctx context.Context, id string, maxCredits *int64) (progress, error)
	write(ctx context.Context, p *program, id, path string) error
	size() int64
}

// nearList is a list that is worked off by this process.
type nearList struct {
	engine *backfill.Engine
	list   backfill.List
	in     input
}

func (n *nearList) size() int64 { return n.in.size }

func (n *nearList) load(ctx context.Context, read *atomic.Int64) (progress, error) {
	b, err := n.engine.Load(ctx, counting{n.in, read}, n.list)
	return n.seen(b, err)
}

func (n *nearList) seen(b fallback.Backfill, err error) (progress, error) {
	pr := progressOf(b)
	if pr.Plan != nil {
		pr.Plan.TimeMs = n.engine.TimeNeeded(b).Milliseconds()
	}
	return pr, err
}

func (n *nearList) show(ctx context.Context, id string) (progress, error) {
	return n.seen(n.engine.Backfill(ctx, id))
}

func (n *nearList) resume(ctx context.Context, id string, maxCredits *int64) (progress, error) {
	return n.seen(n.engine.Resume(ctx, id, maxCredits))
}

func (n *nearList) write(ctx context.Context, p *program, id, path string) error {
	return writeResults(ctx, p, n.engine, id, path, false)
}

// counting counts what is read.
type counting struct {
	io.Reader
	n *atomic.Int64
}

// Read implements io.Reader.
func (c counting) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// How often progress is looked at.
const followEvery = 500 * time.Millisecond

// maxLost is how long progress may be out of reach, as while a gateway is restarted, before a run gives up following.
const maxLost = 2 * time.Minute

// finish loads a list, follows it to its end and writes the results.
func (c backfillRunCommand) finish(ctx context.Context, p *program, show *bar, l lists) error {
	b, err := c.load(ctx, show, l)
	if err != nil {
		show.clear()
		return interrupted(ctx, err, "")
	}
	if !c.DryRun && (b.State == statePlanned || b.State == stateStopped) || c.MaxCredits != nil && !b.ended() {
		if b, err = l.resume(ctx, b.ID, c.MaxCredits); err != nil {
			return err
		}
	}
	var lost time.Time // since when progress is out of reach
	for !b.ended() && b.State != stateStopped && (b.State != statePlanned || !c.DryRun) {
		show.progress(b)
		select {
		case <-ctx.Done():
			show.clear()
			return interrupted(ctx, ctx.Err(), b.ID)
		case <-time.After(followEvery):
		}
		next, err := l.show(ctx, b.ID)
		switch {
		case err == nil:
			b, lost = next, time.Time{}
		case ctx.Err() != nil:
		case errors.Is(err, fallback.ErrUnknownID) || !lost.IsZero() && time.Since(lost) > maxLost:
			show.clear()
			return fmt.Errorf("%s: %w", b.ID, err)
		case lost.IsZero():
			lost = time.Now()
		}
	}
	show.progress(b)
	show.end()
	for _, bad := range b.BadLines {
		fmt.Fprintf(p.stderr, "line %d: %s\n", bad.Line, bad.Reason)
	}
	if more := b.Unreadable - int64(len(b.BadLines)); more > 0 {
		fmt.Fprintf(p.stderr, "and %d more lines without an address\n", more)
	}
	switch b.State {
	case statePlanned:
		return b.printPlan(p.stdout)
	case stateDone:
		if err := l.write(ctx, p, b.ID, c.Output); err != nil {
			return err
		}
		fmt.Fprintln(p.stderr, b.summary())
		return nil
	case stateStopped:
		return fmt.Errorf("%s: stopped at its bound of %d credits with %d of %d addresses answered; run it again with a higher --max-credits",
			b.ID, deref(b.MaxCredits), b.Done, b.Distinct)
	}
	return fmt.Errorf("%s: it was cancelled", b.ID)
}

func (c backfillRunCommand) load(ctx context.Context, show *bar, l lists) (progress, error) {
	var read atomic.Int64
	ticks, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ticks.Done():
				return
			case <-time.After(followEvery):
				show.loading(read.Load(), l.size())
			}
		}
	}()
	b, err := l.load(ctx, &read)
	stop()
	<-done
	return b, err
}

// interrupted says how to go on after a stop.
func interrupted(ctx context.Context, err error, id string) error {
	if ctx.Err() == nil {
		return err
	}
	if id != "" {
		id += ": "
	}
	return errors.New(id + "interrupted; the same command goes on from here")
}

func deref(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}
