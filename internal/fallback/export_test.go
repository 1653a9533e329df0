package fallback

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// Timeouts returns the limits of a connection of each pool, by the pool and the name of the limit.
func (s *Postgres) Timeouts(t *testing.T) map[string]string {
	out := map[string]string{}
	for name, b := range map[string]bulkhead{"record": s.record, "work": s.work, "admin": s.admin, "bulk": s.bulk} {
		for _, limit := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
			var v string
			if err := b.queryRow(t.Context(), []any{&v}, `SHOW `+limit); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			out[name+" "+limit] = v
		}
	}
	return out
}

// plainEntry is an entry that a store takes.
func plainEntry(t *testing.T) Entry {
	a, err := normalize.Restore("planted@domain.example")
	if err != nil {
		t.Fatal(err)
	}
	return Entry{ID: uuid.Must(uuid.NewV7()).String(), Address: a, Cause: verdict.CauseUpstream}
}

// RecordTogether records the entries in one group, each with the context of its caller.
func (s *Postgres) RecordTogether(callers []context.Context, entries []Entry) ([]Review, []error) {
	var group []*recording
	for i, e := range entries {
		group = append(group, &recording{ctx: callers[i], entry: e, done: make(chan struct{})})
	}
	s.recordGroup(group)
	reviews, errs := make([]Review, len(group)), make([]error, len(group))
	for i, j := range group {
		if callers[i].Err() == nil {
			<-j.done
		}
		reviews[i], errs[i] = j.review, j.err
	}
	return reviews, errs
}

// TakeRecordings returns the sizes of the statements that entries waiting in this order would share.
func TakeRecordings(entries []Entry) (sizes []int) {
	w := &recordings{busy: 1}
	for _, e := range entries {
		w.waiting = append(w.waiting, &recording{entry: e})
	}
	for group := w.take(); group != nil; group = w.take() {
		sizes = append(sizes, len(group))
	}
	if w.busy != 0 {
		panic("a place was lost")
	}
	return sizes
}
