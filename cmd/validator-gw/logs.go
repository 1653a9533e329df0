package main

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

// How log lines are gathered: a system call for each would be a good part of what a cached answer costs.
const (
	gatherFor = 50 * time.Millisecond
	gatherMax = 32 << 10 // bytes
)

// lines gathers log lines and writes them together, gatherFor after the first at the latest. What a process that is
// killed had gathered is lost; Flush ends an orderly one. Safe for concurrent use.
type lines struct {
	mu    sync.Mutex
	w     io.Writer
	held  []byte
	timer *time.Timer // runs while something is held
}

func newLines(w io.Writer) *lines {
	l := &lines{w: w}
	l.mu.Lock() // it may end before it is there
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(gatherFor, l.Flush)
	return l
}

// Write takes one line. An error of the writer below is dropped, as there is nowhere else to say so.
func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.held)+len(line) > gatherMax {
		l.flush()
	}
	if len(line) > gatherMax {
		return l.w.Write(line)
	}
	if len(l.held) == 0 {
		l.timer.Reset(gatherFor)
	}
	l.held = append(l.held, line...)
	return len(line), nil
}

// Flush writes what is held.
func (l *lines) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
}

func (l *lines) flush() {
	l.timer.Stop()
	if len(l.held) > 0 {
		_, _ = l.w.Write(l.held)
		l.held = l.held[:0]
	}
}

// prompt is a handler that writes warnings and errors, and all before them, at once.
type prompt struct {
	slog.Handler
	lines *lines
}

// Handle writes a record.
func (p prompt) Handle(ctx context.Context, r slog.Record) error {
	err := p.Handler.Handle(ctx, r)
	if r.Level >= slog.LevelWarn {
		p.lines.Flush()
	}
	return err
}

// WithAttrs returns a handler of the same kind.
func (p prompt) WithAttrs(attrs []slog.Attr) slog.Handler {
	return prompt{p.Handler.WithAttrs(attrs), p.lines}
}

// WithGroup returns a handler of the same kind.
func (p prompt) WithGroup(name string) slog.Handler {
	return prompt{p.Handler.WithGroup(name), p.lines}
}
