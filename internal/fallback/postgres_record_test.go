package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/fallback/conformance"
	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

func TestRecordGroupTellsEachItsOwnOutcome(t *testing.T) {
	t.Parallel()
	s := openPostgres(t, migrated.Database(t), conformance.Sealer(0))
	const good, bad, open, erased, left, last = 0, 1, 2, 3, 4, 5
	entries := make([]fallback.Entry, 6)
	callers := make([]context.Context, len(entries))
	for i := range entries {
		entries[i], callers[i] = numbered(i, 2), t.Context()
	}
	entries[bad].Reason = "no text\x00" // a byte that Postgres refuses
	before := numbered(open, 2)
	if _, err := s.Record(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	later := numbered(erased, 2).ID
	if _, err := s.Erase(t.Context(), fallback.Erasure{Fingerprints: []normalize.Fingerprint{entries[erased].Fingerprint}, UpTo: later}); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	callers[left] = gone

	reviews, errs := s.RecordTogether(callers, entries)
	for i, id := range map[int]string{good: entries[good].ID, open: before.ID, last: entries[last].ID} {
		if errs[i] != nil || reviews[i].ID != id || reviews[i].Fingerprint != entries[i].Fingerprint || reviews[i].Address != entries[i].Address {
			t.Errorf("entry %d = %+v, %v, want review %s", i, reviews[i], errs[i], id)
		}
	}
	if errs[bad] == nil || errors.Is(errs[bad], fallback.ErrUnknownCommit) {
		t.Errorf("the bad entry = %v, want an error that leaves no doubt", errs[bad])
	}
	if !errors.Is(errs[erased], fallback.ErrErased) {
		t.Errorf("the erased entry = %v, want ErrErased", errs[erased])
	}
	if found, err := s.Lookup(t.Context(), entries[left].Fingerprint); err != nil || found.Review != nil {
		t.Errorf("Lookup of the entry whose caller had left = %+v, %v, want nothing: it was not sent", found.Review, err)
	}
	if st, err := s.Stats(t.Context()); err != nil || st.Open != 3 {
		t.Errorf("Stats = %d open, %v, want 3", st.Open, err)
	}
}

func TestRecordGroupWithALostReply(t *testing.T) {
	t.Parallel()
	const mark = "cut-here"
	for _, c := range []struct {
		name   string
		faults []fault
		want   error
	}{
		{"once", []fault{loseReply}, nil},
		{"and of each again", []fault{loseReply, loseReply, loseReply, loseReply}, fallback.ErrUnknownCommit},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			database := migrated.Database(t)
			w := &wire{mark: []byte(mark)}
			s := openPostgres(t, w.through(t, database), conformance.Sealer(0))
			var entries []fallback.Entry
			for i := range 3 {
				e := numbered(i, 3)
				e.Watcher.Client, e.Cause = mark, verdict.CauseMailbox
				entries = append(entries, e)
			}
			w.plan(c.faults...)
			ctx := t.Context()
			_, errs := s.RecordTogether([]context.Context{ctx, ctx, ctx}, entries)
			w.plan()
			for i, err := range errs {
				if !errors.Is(err, c.want) {
					t.Errorf("entry %d = %v, want %v", i, err, c.want)
				}
			}
			res, err := s.Claim(t.Context(), fallback.ClaimRequest{Max: 5, Lease: time.Minute})
			if err != nil || len(res.Claims) != 3 {
				t.Fatalf("Claim = %d rows, %v, want the 3: the first statement was committed", len(res.Claims), err)
			}
			for _, got := range res.Claims {
				if r, err := s.Review(t.Context(), got.ReviewID); err != nil || got.Attempts != 1 || len(r.Trail) != 1 {
					t.Errorf("a row with %d attempts and %d in its trail, %v, want its answer counted once", got.Attempts, len(r.Trail), err)
				}
			}
		})
	}
}

// Whoever waits behind statements that hang keeps its own time, and knows that nothing was sent.
func TestRecordBehindHungStatementsKeepsItsTime(t *testing.T) {
	t.Parallel()
	const mark = "cut-here"
	w := &wire{mark: []byte(mark), met: make(chan fault, 4)}
	s := openPostgres(t, w.through(t, migrated.Database(t)), conformance.Sealer(0))
	w.plan(slices.Repeat([]fault{hang}, 4)...)
	hung, free := context.WithCancel(t.Context())
	defer free()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			e := numbered(i, 4)
			e.Watcher.Client = mark
			if _, err := s.Record(hung, e); !errors.Is(err, fallback.ErrUnknownCommit) {
				t.Errorf("Record that hangs = %v, want ErrUnknownCommit", err)
			}
		})
	}
	for range 4 { // until all are under way
		<-w.met
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := s.Record(ctx, numbered(5, 4))
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, fallback.ErrUnknownCommit) {
		t.Errorf("Record behind them = %v, want its deadline, and no doubt", err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := s.Record(t.Context(), numbered(6, 4))
		waiting <- err
	}()
	free()
	all.Wait()
	if err := <-waiting; err != nil {
		t.Errorf("Record after they were given up = %v, want no error", err)
	}
}

func TestRecordsAtOnceGetTheirOwnReviews(t *testing.T) {
	t.Parallel()
	s := openPostgres(t, migrated.Database(t), conformance.Sealer(0))
	const callers, addresses = 300, 40
	var all sync.WaitGroup
	var mu sync.Mutex
	ids := map[normalize.Fingerprint]string{}
	for i := range callers {
		all.Go(func() {
			e := numbered(i%addresses, 7)
			e.Firm, e.Counted = i%3 == 0, i%5 == 0
			e.Watcher.Client = fmt.Sprint(i)
			r, err := s.Record(t.Context(), e)
			mu.Lock()
			defer mu.Unlock()
			if id, ok := ids[e.Fingerprint]; err != nil || r.Fingerprint != e.Fingerprint || ok && id != r.ID {
				t.Errorf("Record = %s, %v, want the one review of its address, %s", r.ID, err, id)
			}
			ids[e.Fingerprint] = r.ID
		})
	}
	all.Wait()
	watchers := 0
	for _, id := range ids {
		ws, err := s.Watchers(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		watchers += len(ws)
	}
	if st, err := s.Stats(t.Context()); err != nil || st.Open != addresses || watchers != callers {
		t.Errorf("%d open and %d who wait, %v, want %d and %d", st.Open, watchers, err, addresses, callers)
	}
}

func TestWhichRecordsShareAStatement(t *testing.T) {
	t.Parallel()
	many := func(n int, change func(i int, e *fallback.Entry)) (out []fallback.Entry) {
		for i := range n {
			e := numbered(i, 3)
			change(i, &e)
			out = append(out, e)
		}
		return out
	}
	same := func(int, *fallback.Entry) {}
	for _, c := range []struct {
		name    string
		entries []fallback.Entry
		want    []int
	}{
		{"none", nil, nil},
		{"all", many(5, same), []int{5}},
		{"up to the bound", many(70, same), []int{32, 32, 6}},
		{"one of each address", append(many(3, same), many(4, same)...), []int{4, 3}},
		{"not with those that move the time", many(6, func(i int, e *fallback.Entry) { e.Firm = i%2 == 0 }), []int{3, 3}},
		{"not with those that are counted", many(6, func(i int, e *fallback.Entry) { e.Counted = i%3 == 0 }), []int{2, 4}},
	} {
		if got := fallback.TakeRecordings(c.entries); !slices.Equal(got, c.want) {
			t.Errorf("%s: statements of %v entries, want %v", c.name, got, c.want)
		}
	}
}
