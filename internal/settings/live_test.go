package settings

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// logs collects log lines; safe for concurrent use.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// take returns what was logged since the last call.
func (l *logs) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.b.String()
	l.b.Reset()
	return s
}

// start loads a file and runs a Live on it inside the bubble. Write replaces the file, wait lets two looks pass.
func start(t *testing.T, text string, environ ...string) (l *Live, out *logs, write func(string), wait func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settings.yaml")
	write = func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(text)
	known := []Known{{Env: "VALIDATOR_GW_LISTEN", Path: "listen"}}
	s, err := Load(path, environ, known...)
	if err != nil {
		t.Fatal(err)
	}
	l = NewLive(s, path, environ, known)
	out = &logs{}
	l.Log = slog.New(slog.NewTextHandler(out, nil))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := l.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return l, out, write, func() { time.Sleep(PollInterval + time.Second); synctest.Wait() }
}

func TestLiveFollowsTheFile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, out, write, wait := start(t, "retry: {base: 100ms}\n")
		wait()
		if got := out.take(); got != "" {
			t.Errorf("an unchanged file is logged: %s", got)
		}
		write("retry: {base: 200ms}\nflows: {newsletter: {budget: 500ms}}\n")
		wait()
		if got := l.Current().Retry.Base; got != 200*time.Millisecond {
			t.Errorf("retry.base = %v, want 200ms", got)
		}
		text := out.take()
		for _, want := range []string{
			"setting=retry.base old=100ms new=200ms origin=settings.yaml:1",
			"setting=flows.newsletter.budget old=(none) new=500ms",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in: %s", want, text)
			}
		}
		write("retry: {base: 200ms}\n")
		wait()
		if _, there := l.Current().Flows["newsletter"]; there {
			t.Error("a flow that left the file is still there")
		}
		if text := out.take(); !strings.Contains(text, "setting=flows.newsletter.budget old=500ms new=(none)") {
			t.Errorf("the end of a flow is not logged: %s", text)
		}
		if got, want := l.Stats(), (Stats{Applied: 2}); got != want {
			t.Errorf("Stats = %+v, want %+v", got, want)
		}
	})
}

func TestABadFileChangesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, out, write, wait := start(t, "retry: {base: 100ms}\n")
		before := l.Current()
		write("retry: {base: 50ms, max: fast}\nqueue: {batch: 99}\n")
		wait()
		if l.Current() != before {
			t.Error("a bad file was applied")
		}
		text := out.take()
		if strings.Count(text, "settings refused") != 1 || !strings.Contains(text, "retry.max") ||
			!strings.Contains(text, "queue.batch") {
			t.Errorf("want one line with both faults: %s", text)
		}
		if got, want := l.Stats(), (Stats{Refused: 1, Stale: true}); got != want {
			t.Errorf("Stats = %+v, want %+v", got, want)
		}
		for range 10 {
			wait()
		}
		if text := out.take(); text != "" {
			t.Errorf("the same bad file is logged again: %s", text)
		}
		write("retry: {base: 50ms}\n")
		wait()
		if got := l.Current().Retry.Base; got != 50*time.Millisecond {
			t.Errorf("after the repair retry.base = %v, want 50ms", got)
		}
		if got, want := l.Stats(), (Stats{Applied: 1, Refused: 1}); got != want {
			t.Errorf("Stats = %+v, want %+v", got, want)
		}
	})
}

func TestAFileThatGoesAwayChangesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, out, write, wait := start(t, "retry: {base: 100ms}\n")
		if err := os.Remove(l.path); err != nil {
			t.Fatal(err)
		}
		wait()
		wait()
		if got := l.Current().Retry.Base; got != 100*time.Millisecond {
			t.Errorf("retry.base = %v, want 100ms", got)
		}
		if text := out.take(); strings.Count(text, "settings refused") != 1 {
			t.Errorf("want one line: %s", text)
		}
		write("retry: {base: 100ms}\n")
		wait()
		if got, want := l.Stats(), (Stats{Refused: 1}); got != want {
			t.Errorf("Stats = %+v, want %+v", got, want)
		}
	})
}

// What the environment sets the file cannot change, and a setting that is fixed at the start stays as it runs.
func TestWhatTheFileCannotChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, out, write, wait := start(t, "listen: a:1\n", "VALIDATOR_GW_RETRY_BASE=300ms")
		write("listen: b:2\nretry: {base: 100ms}\ncache: {memory: 5MiB}\nqueue: {workers: 3}\n")
		wait()
		s := l.Current()
		if s.Retry.Base != 300*time.Millisecond || s.Cache.Memory != 32<<20 || s.Queue.Workers != 3 {
			t.Errorf("retry.base %v, cache.memory %v, queue.workers %d, want 300ms, 32MiB, 3",
				s.Retry.Base, s.Cache.Memory, s.Queue.Workers)
		}
		if text, _ := s.Static("listen"); text != "a:1" {
			t.Errorf("Static(listen) = %q, want what is running", text)
		}
		text := out.take()
		for _, want := range []string{
			"VALIDATOR_GW_RETRY_BASE sets it",
			`msg="setting needs a restart to change" setting=cache.memory`,
			`msg="setting needs a restart to change" setting=listen`,
			"setting=queue.workers old=8 new=3",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in: %s", want, text)
			}
		}
		if r := row(t, s, "cache.memory"); r.Origin != "default" {
			t.Errorf("cache.memory is said to come from %s", r.Origin)
		}
	})
}

func TestReload(t *testing.T) {
	t.Parallel()
	path := write(t, "retry: {base: 100ms}\n")
	s, err := Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := NewLive(s, path, nil, nil)
	out := &logs{}
	l.Log = slog.New(slog.NewTextHandler(out, nil))
	if err := l.Reload(t.Context()); err != nil || !strings.Contains(out.take(), "nothing changed") {
		t.Errorf("Reload of the same file: %v", err)
	}
	if err := os.WriteFile(path, []byte("retry: {base: 200ms}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Reload(t.Context()); err != nil || l.Current().Retry.Base != 200*time.Millisecond {
		t.Errorf("Reload: %v, retry.base %v, want 200ms", err, l.Current().Retry.Base)
	}
	if err := os.WriteFile(path, []byte("retry: {base: 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Reload(t.Context()); err == nil || l.Current().Retry.Base != 200*time.Millisecond {
		t.Errorf("Reload of a bad file: %v, retry.base %v, want a fault and 200ms", err, l.Current().Retry.Base)
	}
}

func TestNoFileNothingToReload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLive(Default(), "", nil, nil)
		if err := l.Reload(t.Context()); err != nil {
			t.Errorf("Reload: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := l.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// Readers and reloads at the same time; the race detector looks on, and a reader never sees half a change.
func TestConcurrentReaders(t *testing.T) {
	t.Parallel()
	texts := []string{"retry: {base: 100ms, max: 1s}\n", "retry: {base: 2s, max: 5s}\n"}
	path := write(t, texts[0])
	s, err := Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := NewLive(s, path, nil, nil)
	var readers sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if s := l.Current(); s.Retry.Base > s.Retry.Max {
					t.Errorf("half a change: base %v, max %v", s.Retry.Base, s.Retry.Max)
					return
				}
				_ = l.Stats()
			}
		})
	}
	for i := range 50 {
		if err := os.WriteFile(path, []byte(texts[i%2]), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.Reload(t.Context()); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	readers.Wait()
}

func TestLiveCallbacks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const one = "callbacks: {crm: {url: 'https://crm.example.com/%s', secret_file: %s}}\n"
		l, out, write, wait := start(t, "retry: {base: 100ms}\n")
		l.Verify = func(s *Settings) error {
			if s.Callbacks["crm"].SecretFile == "missing" {
				return errors.New("callbacks.crm.secret_file: there is none")
			}
			return nil
		}
		write(fmt.Sprintf(one, "T0KEN", "a"))
		wait()
		if text := out.take(); l.Current().Callbacks["crm"].SecretFile != "a" || !strings.Contains(text, "setting=callbacks.crm.url old=(none) new=https://crm.example.com/…") {
			t.Errorf("a new callback is not applied, or not logged: %s", text)
		} else if strings.Contains(text, "T0KEN") {
			t.Errorf("the log shows what may be a secret: %s", text)
		}
		write(fmt.Sprintf(one, "T0KEN-2", "a")) // the part that is not shown
		wait()
		if text := out.take(); l.Current().Callbacks["crm"].URL != "https://crm.example.com/T0KEN-2" || !strings.Contains(text, "setting changed") || strings.Contains(text, "T0KEN") {
			t.Errorf("another path is not applied, or not logged as it should be: %s", text)
		}
		write(fmt.Sprintf(one, "T0KEN-3", "missing"))
		wait()
		if text := out.take(); l.Current().Callbacks["crm"].SecretFile != "a" || !strings.Contains(text, "there is none") || !strings.Contains(text, "settings refused") {
			t.Errorf("what Verify refuses is applied, or not logged: %s", text)
		}
		write("retry: {base: 100ms}\n")
		wait()
		if len(l.Current().Callbacks) != 0 {
			t.Error("a callback that left the file is still there")
		}
	})
}
