package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"validator-gw/internal/api/openapi"
	"validator-gw/internal/fallback"
	"validator-gw/internal/gateway"
)

// progress is how a backfill stands, as the API tells it.
type progress openapi.Backfill

// States, as the API calls them.
const (
	stateDone      = "done"
	stateStopped   = "stopped"
	statePlanned   = "planned"
	stateCancelled = "cancelled"
)

func progressOf(b fallback.Backfill) progress { return progress(gateway.BackfillView(b)) }

// ended says that nothing will become of it any more.
func (b progress) ended() bool { return b.State == stateDone || b.State == stateCancelled }

func (b progress) summary() string {
	return fmt.Sprintf("%d rows, %d addresses: %d valid, %d invalid, %d risky, %d unresolved; %d rows refused, %d unreadable; %d credits",
		b.Rows, b.Distinct, b.ByStatus.Valid, b.ByStatus.Invalid, b.ByStatus.Risky, b.ByStatus.Unresolved, b.Refused, b.Unreadable, b.Credits)
}

// printPlan writes what a dry run counted.
func (b progress) printPlan(w io.Writer) error {
	_, err := fmt.Fprintf(w, `rows             %d
unreadable       %d
invalid locally  %d
distinct         %d
known already    %d
under review     %d
credits needed   %d
time needed      %s
`, b.Rows, b.Unreadable, b.Refused, b.Distinct, b.Plan.Known, b.Plan.Open, b.Plan.Credits, (time.Duration(b.Plan.TimeMs) * time.Millisecond).Round(time.Second))
	return err
}

// plainEvery is how often a line is written where nobody watches a bar.
const plainEvery = 10 * time.Second

// bar shows progress: one line that changes on a terminal, a line now and then elsewhere. Safe for concurrent use.
type bar struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	written  int // columns of the line that stands
	last     time.Time
	// The pace of the last while.
	at   time.Time
	done int64
	pace float64
}

func newBar(w io.Writer) *bar {
	b := &bar{w: w}
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		b.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return b
}

func (b *bar) line(text string) {
	if !b.terminal {
		if now := time.Now(); b.last.IsZero() || now.Sub(b.last) >= plainEvery {
			b.last = now
			fmt.Fprintln(b.w, text)
		}
		return
	}
	pad := max(b.written-len(text), 0)
	fmt.Fprint(b.w, "\r"+text+strings.Repeat(" ", pad))
	b.written = len(text)
}

// loading shows how much of the input is read; size 0 is not known.
func (b *bar) loading(read, size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	const mega = 1 << 20
	if size > 0 {
		b.line(fmt.Sprintf("loading: %d %% of %.1f MiB", read*100/size, float64(size)/mega))
		return
	}
	b.line(fmt.Sprintf("loading: %.1f MiB", float64(read)/mega))
}

// barWidth is that of the bar itself, in columns.
const barWidth = 24

// progress shows how far a backfill is.
func (b *bar) progress(p progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.measure(p.Done)
	share := 0.0
	if p.Distinct > 0 {
		share = float64(p.Done) / float64(p.Distinct)
	}
	text := fmt.Sprintf("%s: %d of %d addresses (%.1f %%), %d credits", p.State, p.Done, p.Distinct, 100*share, p.Credits)
	if p.Waiting > 0 {
		text += fmt.Sprintf(", %d wait for their mailbox", p.Waiting)
	}
	if left := p.Distinct - p.Done - p.Waiting; b.pace > 0 && left > 0 {
		text += fmt.Sprintf(", %.0f/s, %s left", b.pace, time.Duration(float64(left)/b.pace*float64(time.Second)).Round(time.Second))
	}
	if b.terminal {
		full := min(int(share*barWidth), barWidth)
		text = "[" + strings.Repeat("#", full) + strings.Repeat(".", barWidth-full) + "] " + text
	}
	b.line(text)
}

// measure keeps the pace of the last half minute or so.
func (b *bar) measure(done int64) {
	now := time.Now()
	if b.at.IsZero() {
		b.at, b.done = now, done
		return
	}
	span := now.Sub(b.at).Seconds()
	if span < 1 {
		return
	}
	rate := float64(done-b.done) / span
	if b.pace == 0 {
		b.pace = rate
	}
	weight := min(span/30, 1)
	b.pace += weight * (rate - b.pace)
	b.at, b.done = now, done
}

// clear takes away a line that stands.
func (b *bar) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.terminal && b.written > 0 {
		fmt.Fprint(b.w, "\r"+strings.Repeat(" ", b.written)+"\r")
		b.written = 0
	}
}

// end leaves the line where it is.
func (b *bar) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.terminal && b.written > 0 {
		fmt.Fprintln(b.w)
		b.written = 0
	}
}
