package debounce

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/redisconn"
	"validator-gw/internal/secret"
	"validator-gw/internal/testenv"
)

const quiet = 300 * ms

// Of twelve strokes only the last is the newest after its quiet; the others know as soon as the next one comes.
func TestTwelveStrokes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLatest(nil, "", 10)
		began := time.Now()
		var last atomic.Int64
		var all sync.WaitGroup
		for i := range 12 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 120 * ms)
				s := l.Begin(t.Context(), "session")
				defer s.End()
				newest := s.Quiet(t.Context(), quiet)
				at := time.Since(began)
				switch {
				case newest:
					last.Add(1)
					if i != 11 || at != 11*120*ms+quiet {
						t.Errorf("stroke %d is the newest at %v, want the last one's alone, after its quiet", i, at)
					}
				case at != time.Duration(i+1)*120*ms:
					t.Errorf("stroke %d knows at %v, want when the next one comes", i, at)
				}
			})
		}
		all.Wait()
		if last.Load() != 1 || len(l.now) != 0 {
			t.Errorf("%d were the newest, %d sessions are left; want 1 and none", last.Load(), len(l.now))
		}
	})
}

func TestSessionsAreApartAndBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLatest(nil, "", 2)
		var strokes []*Stroke
		for i := range 3 {
			strokes = append(strokes, l.Begin(t.Context(), fmt.Sprint(i)))
		}
		if len(l.now) != 2 {
			t.Errorf("%d sessions are kept, want 2", len(l.now))
		}
		for i, s := range strokes {
			if !s.Quiet(t.Context(), quiet) {
				t.Errorf("session %d was superseded by another", i)
			}
			s.End()
		}
		ctx, cancel := context.WithTimeout(t.Context(), quiet/2)
		defer cancel()
		if l.Begin(t.Context(), "left").Quiet(ctx, quiet) {
			t.Error("a caller that left is the newest")
		}
	})
}

func latests(t *testing.T, url, prefix string) (a, b *Latest) {
	open := func() *Latest {
		conn, err := redisconn.Open(redisconn.Config{URL: secret.Text(url), LookUp: 5 * time.Second}) // the machine may be busy
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return NewLatest(conn, prefix, 10)
	}
	return open(), open()
}

func TestStrokesOfTwoProcesses(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	a, b := latests(t, url, prefix)
	var strokes []*Stroke
	for i := range 12 {
		strokes = append(strokes, []*Latest{a, b}[i%2].Begin(t.Context(), "session"))
	}
	other := a.Begin(t.Context(), "another")
	for i, s := range strokes {
		if got := s.Quiet(t.Context(), 0); got != (i == 11) {
			t.Errorf("stroke %d is the newest: %t", i, got)
		}
		s.End()
	}
	if !other.Quiet(t.Context(), 0) {
		t.Error("another session's stroke was superseded")
	}
}

// Strokes at the same time, in whatever order they come: exactly one of them is the newest.
func TestStrokesAtOnce(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	a, b := latests(t, url, prefix)
	for round := range 20 {
		var newest atomic.Int64
		var begun, all sync.WaitGroup
		begun.Add(16)
		for i := range 16 {
			all.Go(func() {
				s := []*Latest{a, b}[i%2].Begin(t.Context(), fmt.Sprint(round))
				defer s.End()
				begun.Done()
				begun.Wait()
				if s.Quiet(t.Context(), 0) {
					newest.Add(1)
				}
			})
		}
		all.Wait()
		if newest.Load() != 1 {
			t.Fatalf("round %d: %d were the newest, want 1", round, newest.Load())
		}
	}
}

// Without Redis each process knows its own; what Redis forgot supersedes nobody.
func TestStrokesWithoutRedis(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	a, b := latests(t, server.URL(), "")
	before := a.Begin(t.Context(), "s")
	server.Kill()
	first, second, elsewhere := a.Begin(t.Context(), "s"), a.Begin(t.Context(), "s"), b.Begin(t.Context(), "s")
	if before.Quiet(t.Context(), ms) || first.Quiet(t.Context(), ms) {
		t.Error("an earlier stroke is the newest")
	}
	if !second.Quiet(t.Context(), ms) || !elsewhere.Quiet(t.Context(), ms) {
		t.Error("the newest of each process was superseded")
	}
	server.Start()
	if !second.Quiet(t.Context(), ms) {
		t.Error("superseded by what Redis forgot")
	}
}
