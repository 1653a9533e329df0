package settings

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// How the file is watched. Reading it works where notification does not: ConfigMap swaps, network file systems.
const (
	// PollInterval is the time between two looks at the file.
	PollInterval = 2 * time.Second
	// settle is the pause before a changed file is read again: a file that is being written is left for the next
	// look.
	settle = 100 * time.Millisecond
)

// Live holds the current settings. Readers call Current each time they need one and never keep it for longer than
// one piece of work. Safe for concurrent use.
type Live struct {
	// Verify looks at what is outside of the file, such as the files that it names; its error refuses the file. Nil accepts
	// everything. Set it before Run.
	Verify func(*Settings) error
	// Log receives changes, faults and warnings; nil discards them. Set it before Run.
	Log *slog.Logger

	path    string
	environ []string
	known   []Known

	current  atomic.Pointer[Settings]
	applied  atomic.Uint64
	refused  atomic.Uint64
	rejected atomic.Bool

	mu   sync.Mutex        // held while a file is read and applied
	seen [sha256.Size]byte // what was looked at last, good or bad
}

// NewLive returns a holder of s. Path, environ and known are what s was loaded from; with an empty path nothing
// ever changes.
func NewLive(s *Settings, path string, environ []string, known []Known) *Live {
	l := &Live{path: path, environ: slices.Clone(environ), known: known}
	l.current.Store(s)
	return l
}

// Current returns the settings of this moment.
func (l *Live) Current() *Settings { return l.current.Load() }

// Stats counts what became of changed files.
type Stats struct {
	// Applied and Refused count reloads since the start.
	Applied, Refused uint64
	// Stale says that the file as it is now was refused, so the settings are older than it.
	Stale bool
}

// Stats returns the counts so far.
func (l *Live) Stats() Stats {
	return Stats{Applied: l.applied.Load(), Refused: l.refused.Load(), Stale: l.rejected.Load()}
}

// Run looks at the file every PollInterval until ctx ends, and applies what changed. It returns nil.
func (l *Live) Run(ctx context.Context) error {
	if l.path == "" {
		<-ctx.Done()
		return nil
	}
	// The file may have changed since it was loaded: the first look always reads it.
	tick := time.NewTicker(PollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			l.poll(ctx)
		}
	}
}

// poll is one look.
func (l *Live) poll(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	data, err := readFile(l.path)
	if fingerprint(data, err) == l.seen {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(settle):
	}
	again, errAgain := readFile(l.path)
	if fingerprint(again, errAgain) != fingerprint(data, err) {
		return // still being written
	}
	_, _ = l.apply(ctx, data, err) // logged and counted there
}

// Reload reads the file at once, as on SIGHUP. The error joins every fault; the settings are then unchanged.
func (l *Live) Reload(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path == "" {
		l.log().WarnContext(ctx, "settings not reloaded", "why", "no settings file was given")
		return nil
	}
	data, err := readFile(l.path)
	changes, err := l.apply(ctx, data, err)
	if err == nil && changes == 0 {
		l.log().InfoContext(ctx, "settings reloaded, nothing changed")
	}
	return err
}

// fingerprint tells two states of the file apart, an unreadable one included.
func fingerprint(data []byte, err error) [sha256.Size]byte {
	if err != nil {
		return sha256.Sum256([]byte("unreadable: " + err.Error()))
	}
	return sha256.Sum256(append([]byte("file: "), data...))
}

// apply checks what was read and, when it is whole, makes it current. It returns the number of changes. The caller
// holds mu.
func (l *Live) apply(ctx context.Context, data []byte, err error) (int, error) {
	l.seen = fingerprint(data, err)
	var next *Settings
	if err != nil {
		err = fmt.Errorf("settings file: %w", err)
	} else {
		next, err = parse(l.path, data, l.environ, l.known)
	}
	if err == nil && l.Verify != nil {
		err = l.Verify(next)
	}
	if err != nil {
		l.refused.Add(1)
		l.rejected.Store(true)
		l.log().ErrorContext(ctx, "settings refused, the old ones stay", "faults", Faults(err))
		return 0, err
	}

	l.rejected.Store(false)
	cur := l.current.Load()
	changes := diff(cur, next)
	keepFixed(cur, next)
	l.current.Store(next)
	for _, w := range next.Warnings() {
		if !slices.Contains(cur.Warnings(), w) {
			l.log().WarnContext(ctx, "settings warning", "warning", w)
		}
	}
	if len(changes) > 0 {
		l.applied.Add(1)
	}
	for _, c := range changes {
		if c.restart {
			l.log().WarnContext(ctx, "setting needs a restart to change", "setting", c.path, "origin", c.origin)
			continue
		}
		l.log().InfoContext(ctx, "setting changed", "setting", c.path, "old", Brief(c.old), "new", Brief(c.new), "origin", c.origin)
	}
	return len(changes), nil
}

func (l *Live) log() *slog.Logger {
	if l.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l.Log
}

// change is one difference between two sets of settings.
type change struct {
	path, old, new, origin string
	restart                bool
}

// absent stands for a flow's settings before it is there and after it is gone.
const absent = "(none)"

// diff lists what changes from a to b.
func diff(a, b *Settings) []change {
	old := map[string]Row{}
	for _, r := range a.Rows() {
		old[r.Path] = r
	}
	var list []change
	for _, r := range b.Rows() {
		before, ok := old[r.Path]
		delete(old, r.Path)
		if !ok {
			before.Value = absent
		}
		if before.text != r.text || !ok {
			list = append(list, change{r.Path, before.Value, r.Value, r.Origin, !r.Live})
		}
	}
	for _, r := range a.Rows() {
		if _, gone := old[r.Path]; gone {
			list = append(list, change{r.Path, r.Value, absent, r.Origin, false})
		}
	}
	// What the program read at its start: named without values, which this package knows nothing about.
	keys := map[string]string{}
	maps.Copy(keys, a.static)
	maps.Copy(keys, b.static)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		before, was := a.static[key]
		after, is := b.static[key]
		if was != is || before != after {
			list = append(list, change{path: key, origin: "file", restart: true})
		}
	}
	return list
}

// keepFixed carries over what only a restart changes, so that Current tells what is running.
func keepFixed(cur, next *Settings) {
	for _, f := range fieldsOf(next) {
		if f.restart && f.get(cur) != f.get(next) {
			_ = f.set(next, f.get(cur)) // it was legal when cur was made
			next.origins[f.path] = cur.origins[f.path]
		}
	}
	next.static = cur.static
}

// Faults takes an error of Load apart into one line a fault.
func Faults(err error) []string {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error }) // errors.As would look below the words of a wrapping
	if !ok {
		return []string{err.Error()}
	}
	var list []string
	for _, e := range joined.Unwrap() {
		list = append(list, Faults(e)...)
	}
	return list
}
