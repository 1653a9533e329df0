package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// writes notes each write.
type writes struct {
	mu  sync.Mutex
	all []string
}

func (w *writes) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, string(p))
	return len(p), nil
}

func (w *writes) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.all = nil }()
	return w.all
}

func TestLinesAreGathered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &writes{}
		l := newLines(w)
		defer l.Flush()
		log := slog.New(prompt{slog.NewTextHandler(l, nil), l}).With("a", 1).WithGroup("g")
		log.Info("one")
		time.Sleep(gatherFor - time.Millisecond)
		log.Info("two")
		if got := w.take(); got != nil {
			t.Errorf("written %q before its time", got)
		}
		time.Sleep(2 * time.Millisecond)
		if got := w.take(); len(got) != 1 || strings.Count(got[0], "\n") != 2 || !strings.Contains(got[0], "msg=two a=1") {
			t.Errorf("written %q, want both lines at once", got)
		}
		log.Info("three")
		log.Warn("four")
		if got := w.take(); len(got) != 1 || strings.Count(got[0], "\n") != 2 {
			t.Errorf("written %q, want a warning and what was before it at once", got)
		}
		log.Info("five")
		l.Flush()
		if got := w.take(); len(got) != 1 || !strings.Contains(got[0], "five") {
			t.Errorf("written %q, want the last line", got)
		}
		time.Sleep(time.Second)
		if got := w.take(); got != nil {
			t.Errorf("written %q for nothing", got)
		}
		long := bytes.Repeat([]byte{'x'}, gatherMax+1)
		_, _ = l.Write([]byte("short\n"))
		_, _ = l.Write(long)
		if got := w.take(); len(got) != 2 || got[0] != "short\n" || len(got[1]) != len(long) {
			t.Errorf("a long line: %d writes", len(got))
		}
		for range 3 {
			_, _ = l.Write(bytes.Repeat([]byte{'y'}, gatherMax/2))
		}
		if got := w.take(); len(got) != 1 || len(got[0]) != gatherMax {
			t.Errorf("full: %d writes", len(got))
		}
	})
}

// TestLinesStayWhole: lines of several goroutines are neither lost nor mixed.
func TestLinesStayWhole(t *testing.T) {
	t.Parallel()
	w := &writes{}
	l := newLines(w)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 2000 {
				_, _ = l.Write(fmt.Appendf(nil, "line %d-%d end\n", i, j))
			}
		})
	}
	wg.Wait()
	l.Flush()
	seen := map[string]bool{}
	for line := range strings.Lines(strings.Join(w.take(), "")) {
		seen[line] = strings.HasPrefix(line, "line ") && strings.HasSuffix(line, " end\n")
	}
	for line, whole := range seen {
		if !whole {
			t.Errorf("broken line %q", line)
		}
	}
	if len(seen) != 16000 {
		t.Errorf("%d lines, want 16000", len(seen))
	}
}
