package fallback

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// writer commits the writes of many callers together. A write to the disk is what a commit costs, so while one
// batch is being committed the next gathers, and a lone caller waits for nothing.
type writer struct {
	db   *sql.DB
	base context.Context // never ends: a caller's context ends its waiting, not the work of others beside it
	open atomic.Int64    // open reviews as of the last commit

	mu      sync.Mutex
	waiting []*job
	running bool // a goroutine works on waiting, until it is empty
	closed  bool
	tasks   sync.WaitGroup
}

const (
	// maxGroup bounds the jobs of one commit.
	maxGroup = 50
	// maxWaiting bounds the jobs that wait; it is far more than the gateway has requests in work.
	maxWaiting = 10_000
)

var (
	errWriterFull   = errors.New("too many writes are waiting")
	errWriterClosed = errors.New("store is closed")
	// errAbandoned: the caller's context ended while its write was under way.
	errAbandoned = errors.New("write was under way when its time ended")
	// errCommit: the commit itself ended in an error.
	errCommit = errors.New("commit")
)

// tx is one job's view of the transaction.
type tx struct {
	*sql.Tx
	opened int64 // how many more reviews are open once this is committed; may be negative
}

// job is one caller's part of a transaction.
type job struct {
	run     func(ctx context.Context, tx *tx) error
	opened  int64
	err     error
	done    chan struct{}
	started bool // guarded by writer.mu
	dropped bool // guarded by writer.mu
}

func newWriter(ctx context.Context, db *sql.DB) *writer {
	return &writer{db: db, base: context.WithoutCancel(ctx)}
}

// do runs f in a transaction, perhaps with others', and returns once it is committed or undone. An error of f
// undoes what f did and nothing else. When ctx ends before f was started, f is never run; when it ends later, do
// returns at once with errAbandoned and f's results must not be read.
func (w *writer) do(ctx context.Context, f func(ctx context.Context, tx *tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	j := &job{run: f, done: make(chan struct{})}
	if err := w.enter(j); err != nil {
		return err
	}
	select {
	case <-j.done:
		return j.err
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !j.started {
		j.dropped = true
		return ctx.Err()
	}
	select {
	case <-j.done: // it ended in the same moment
		return j.err
	default:
		return fmt.Errorf("%w: %w", errAbandoned, ctx.Err())
	}
}

// write is do for a function with a result, which is only read when it is complete.
func write[T any](ctx context.Context, w *writer, f func(ctx context.Context, tx *tx) (T, error)) (T, error) {
	out := new(T)
	err := w.do(ctx, func(ctx context.Context, tx *tx) (err error) {
		*out, err = f(ctx, tx)
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return *out, nil
}

func (w *writer) enter(j *job) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return errWriterClosed
	case len(w.waiting) >= maxWaiting:
		return errWriterFull
	}
	w.waiting = append(w.waiting, j)
	if !w.running {
		w.running = true
		w.tasks.Go(w.drain)
	}
	return nil
}

// drain commits batches until nothing waits.
func (w *writer) drain() {
	for {
		batch := w.take()
		if batch == nil {
			return
		}
		w.commit(batch)
	}
}

// take returns the next batch, or nil and the end of draining.
func (w *writer) take() []*job {
	w.mu.Lock()
	defer w.mu.Unlock()
	var batch []*job
	for len(w.waiting) > 0 && len(batch) < maxGroup {
		j := w.waiting[0]
		w.waiting[0] = nil
		w.waiting = w.waiting[1:]
		if !j.dropped {
			j.started = true
			batch = append(batch, j)
		}
	}
	if batch == nil {
		w.waiting = nil // let go of the array
		w.running = false
	}
	return batch
}

// commit runs a batch in one transaction and tells each job its own outcome.
func (w *writer) commit(batch []*job) {
	err := w.transact(w.base, batch)
	for _, j := range batch {
		switch {
		case j.err != nil: // its own
		case err != nil:
			j.err = err
		default:
			w.open.Add(j.opened)
		}
		close(j.done)
	}
}

// transact runs each job in a savepoint of its own; one that is alone needs none.
func (w *writer) transact(ctx context.Context, batch []*job) error {
	t, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer t.Rollback()
	for _, j := range batch {
		if len(batch) == 1 {
			if j.call(ctx, t); j.err != nil {
				return nil // and is rolled back
			}
			break
		}
		if _, err := t.ExecContext(ctx, `SAVEPOINT job`); err != nil {
			return err
		}
		if j.call(ctx, t); j.err != nil {
			if _, err := t.ExecContext(ctx, `ROLLBACK TO job`); err != nil {
				return err
			}
		}
		if _, err := t.ExecContext(ctx, `RELEASE job`); err != nil {
			return err
		}
	}
	if err := t.Commit(); err != nil {
		return fmt.Errorf("%w: %w", errCommit, err)
	}
	return nil
}

func (j *job) call(ctx context.Context, t *sql.Tx) {
	view := &tx{Tx: t}
	j.err = j.run(ctx, view)
	j.opened = view.opened
}

// close finishes what waits, then closes the connection.
func (w *writer) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.tasks.Wait()
	w.db.Close()
}
