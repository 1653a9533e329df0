package revalidate

import (
	"context"
	"slices"
	"sync"
	"time"

	"validator-gw/internal/fallback"
)

// maxWriters bounds the statements of ends under way: one would leave a worker that comes a moment late waiting for two
// commits, more would take the connections that claims and heartbeats need.
const maxWriters = 2

// ends writes what the workers found out, many rows a statement: a commit costs about as much for fifty as for one.
// While statements are under way the next rows gather, and a worker that comes alone waits for nobody.
type ends struct {
	queue queue

	mu      sync.Mutex
	waiting []*ending
	writers int
}

// ending is one row's end, or its next due time: one of settle and delay is set.
type ending struct {
	settle *fallback.Settlement
	delay  *fallback.Delay
	until  time.Time // it is not tried after that
	err    error     // fallback.ErrLeaseLost: not this worker's any more
	done   chan struct{}
}

// write returns once e is written or can't be, within writeTimeout or little more. A statement needs a goroutine, which
// run starts. The end of ctx ends nothing: what was found out is worth writing down also while stopping.
func (w *ends) write(ctx context.Context, e *ending, run func(func())) error {
	e.until, e.done = time.Now().Add(writeTimeout), make(chan struct{})
	w.mu.Lock()
	w.waiting = append(w.waiting, e)
	if w.writers < maxWriters {
		w.writers++
		run(func() { w.drain(context.WithoutCancel(ctx)) })
	}
	w.mu.Unlock()
	<-e.done
	return e.err
}

func (w *ends) drain(ctx context.Context) {
	for batch := w.take(); len(batch) > 0; batch = w.take() {
		w.flush(ctx, batch)
	}
}

// take returns what goes into the next statement; nothing is the end of the writer.
func (w *ends) take() []*ending {
	w.mu.Lock()
	defer w.mu.Unlock()
	batch := slices.Clone(w.waiting[:min(len(w.waiting), fallback.MaxBatch)])
	w.waiting = slices.Delete(w.waiting, 0, len(batch))
	if len(batch) == 0 {
		w.writers--
	}
	return batch
}

func (w *ends) flush(ctx context.Context, batch []*ending) {
	ctx, cancel := context.WithDeadline(ctx, batch[len(batch)-1].until)
	defer cancel()
	var settled, delayed []*ending
	for _, e := range batch {
		switch {
		case !time.Now().Before(e.until):
			e.err = context.DeadlineExceeded
		case e.settle != nil:
			settled = append(settled, e)
		default:
			delayed = append(delayed, e)
		}
	}
	together(settled, func(part []*ending) ([]fallback.Claim, error) {
		rows := make([]fallback.Settlement, len(part))
		for i, e := range part {
			rows[i] = *e.settle
		}
		return w.queue.SettleBatch(ctx, rows)
	})
	together(delayed, func(part []*ending) ([]fallback.Claim, error) {
		rows := make([]fallback.Delay, len(part))
		for i, e := range part {
			rows[i] = *e.delay
		}
		return w.queue.PostponeBatch(ctx, rows)
	})
	for _, e := range batch {
		close(e.done)
	}
}

// together writes all at once and tells each its own outcome. When that fails each is tried alone: a row that can't be
// written must not take the others with it. One whose commit was lost on the way then reads as a lost lease.
func together(all []*ending, write func([]*ending) ([]fallback.Claim, error)) {
	if len(all) == 0 {
		return
	}
	lost, err := write(all)
	if err != nil && len(all) > 1 {
		for i := range all {
			together(all[i:i+1], write)
		}
		return
	}
	for _, e := range all {
		switch {
		case err != nil:
			e.err = err
		case slices.ContainsFunc(lost, func(c fallback.Claim) bool { return c.ReviewID == e.id() }):
			e.err = fallback.ErrLeaseLost
		}
	}
}

func (e *ending) id() string {
	if e.settle != nil {
		return e.settle.Claim.ReviewID
	}
	return e.delay.Claim.ReviewID
}
