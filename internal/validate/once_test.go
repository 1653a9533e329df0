package validate_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// shelf is a store of idempotent answers that can be away, and shows what it was given.
type shelf struct {
	*fallback.SQLite
	mu           sync.Mutex
	away, noKeep bool
	kept         [][]byte
}

var errShelf = errors.New("no connection came free in time")

func (s *shelf) set(away, noKeep bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away, s.noKeep = away, noKeep
}

func (s *shelf) ReserveKey(ctx context.Context, r fallback.Reservation) (fallback.Held, error) {
	s.mu.Lock()
	away := s.away
	s.mu.Unlock()
	if away {
		return fallback.Held{}, errShelf
	}
	return s.SQLite.ReserveKey(ctx, r)
}

func (s *shelf) KeepAnswer(ctx context.Context, key fallback.Hash, token int64, answer []byte, keep time.Duration) error {
	s.mu.Lock()
	s.kept = append(s.kept, answer)
	noKeep := s.noKeep
	s.mu.Unlock()
	if noKeep {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.SQLite.KeepAnswer(ctx, key, token, answer, keep)
}

// once posts under a key.
func (s *setup) once(key, raw, flow string) (validate.Answer, time.Duration, error) {
	began := time.Now()
	a, err := s.service.Validate(s.t.Context(), validate.Request{Raw: raw, Flow: flow, Client: "c", Key: key})
	return a, time.Since(began), err
}

// wantReplay holds a second answer to the first.
func (s *setup) wantReplay(first, second validate.Answer, err error) {
	s.t.Helper()
	first.Replayed, first.Backoff = true, 0
	if diff := cmp.Diff(first, second); err != nil || diff != "" {
		s.t.Errorf("the second answer: %v, differs from the first (-first +second):\n%s", err, diff)
	}
}

func TestSameRequestIsReplayed(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.address = plan(t, normalize.Own{})
		s.address.DedupeKey = true
		for _, raw := range []string{
			"Planted@Example.com", "planted@gmial.com", "disposable@example.com", "catchall@example.com", "planted @example.com",
			"planted@gmail,com", "planted@bücher.example", "hardbounce@example.com",
		} {
			first, _, err := s.once("key of "+raw, raw, "")
			if err != nil {
				t.Fatalf("%s: %v", raw, err)
			}
			time.Sleep(time.Hour)
			second, _, err := s.once("key of "+raw, raw, "signup") // the flow that goes without saying
			s.wantReplay(first, second, err)
		}
		billed := s.sim.Stats().Billed
		first, _, _ := s.once("key", "planted@example.com", "")
		for name, r := range map[string]validate.Request{
			"address":  {Raw: "other@example.com", Client: "c", Key: "key"},
			"spelling": {Raw: "Planted@example.com", Client: "c", Key: "key"},
			"flow":     {Raw: "planted@example.com", Flow: "high_risk", Client: "c", Key: "key"},
			"callback": {Raw: "planted@example.com", Callback: "crm", Client: "c", Key: "key"},
		} {
			if _, err := s.service.Validate(t.Context(), r); !errors.Is(err, validate.ErrKeyReused) {
				t.Errorf("another %s: %v, want ErrKeyReused", name, err)
			}
		}
		// Another client's key of the same text is another key.
		if a, err := s.service.Validate(t.Context(), validate.Request{Raw: "other@example.com", Client: "d", Key: "key"}); err != nil || a.Replayed {
			t.Errorf("another client: replayed %t, %v, want an answer of its own", a.Replayed, err)
		}
		// A budget is no part of the request.
		second, err := s.service.Validate(t.Context(), validate.Request{Raw: "planted@example.com", Client: "c", Key: "key", Budget: 500 * time.Millisecond})
		s.wantReplay(first, second, err)
		s.wantBilled(billed + 1) // the other client's
		for _, kept := range s.shelf.kept {
			for _, part := range []string{"lanted", "example", "gmail", "gmial", "cher"} {
				if bytes.Contains(kept, []byte(part)) {
					t.Errorf("a stored answer holds a part of an address: %s", kept)
				}
			}
			if len(kept) > fallback.MaxAnswer/4 {
				t.Errorf("a stored answer has %d bytes", len(kept))
			}
		}
		time.Sleep(24 * time.Hour)
		if third, _, err := s.once("key", "another@example.com", ""); err != nil || third.Replayed {
			t.Errorf("after 24 h: replayed %t, %v, want a free key", third.Replayed, err)
		}
	})
}

// A 202 is replayed as it was, also when the check has ended; the present is at its id.
func TestPendingAnswerIsReplayed(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.mode(simulator.Mode{P50: 2 * time.Second, P99: 2 * time.Second})
		first, took, err := s.once("key", "ana@example.com", "")
		if err != nil || first.Status != verdict.NeedsReview || took > 800*time.Millisecond {
			t.Fatalf("the first: %s, %v after %v, want needs_review within 800 ms", first.Status, err, took)
		}
		time.Sleep(5 * time.Second)
		if st := s.status(first.ID); st.Status != verdict.Valid {
			t.Errorf("status = %s, want the late answer", st.Status)
		}
		second, _, err := s.once("key", "ana@example.com", "")
		s.wantReplay(first, second, err)
		s.wantBilled(1)
	})
}

func TestSecondWaitsForTheFirstsAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.mode(simulator.Mode{P50: 400 * time.Millisecond, P99: 400 * time.Millisecond})
		var wg sync.WaitGroup
		answers := make([]validate.Answer, 5)
		for i := range answers {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 50 * time.Millisecond)
				var err error
				if answers[i], _, err = s.once("key", "ana@example.com", ""); err != nil || answers[i].Status != verdict.Valid {
					t.Errorf("%d: %s, %v, want valid", i, answers[i].Status, err)
				}
			})
		}
		wg.Wait()
		for i := range answers[1:] {
			s.wantReplay(answers[0], answers[i+1], nil)
		}
		s.wantBilled(1)
		if n := len(s.shelf.kept); n != 1 {
			t.Errorf("%d answers were kept, want 1", n)
		}

		// One whose budget is over before the first one's is told so, and one who leaves is let go.
		s.mode(simulator.Mode{Fault: simulator.Hang})
		wg.Go(func() {
			if _, _, err := s.once("slow", "ben@example.com", "high_risk"); err != nil {
				t.Errorf("the first: %v", err)
			}
		})
		time.Sleep(10 * time.Millisecond)
		began := time.Now()
		_, err := s.service.Validate(t.Context(), validate.Request{Raw: "ben@example.com", Flow: "high_risk", Client: "c", Key: "slow", Budget: 500 * time.Millisecond})
		if took := time.Since(began); !errors.Is(err, validate.ErrKeyInFlight) || took > 500*time.Millisecond {
			t.Errorf("beside a slow first: %v after %v, want ErrKeyInFlight within 500 ms", err, took)
		}
		gone, leave := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer leave()
		if _, err := s.service.Validate(gone, validate.Request{Raw: "ben@example.com", Flow: "high_risk", Client: "c", Key: "slow"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one who left: %v, want its context's error", err)
		}
		wg.Wait()
	})
}

// Nothing is answered under a key that can't be kept, and the key is not lost.
func TestKeyWhileTheStoreIsAway(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.shelf.set(true, false)
		for _, raw := range []string{"ana@example.com", "no address"} {
			if _, took, err := s.once("key", raw, ""); !errors.Is(err, validate.ErrNotDurable) || took > 800*time.Millisecond {
				t.Errorf("store away: %v after %v, want ErrNotDurable within 800 ms", err, took)
			}
		}
		s.wantBilled(0)
		if a, _ := s.post("ana@example.com"); a.Status != verdict.Valid {
			t.Errorf("without a key: %s, want valid", a.Status)
		}
		// It goes away in the midst of a request. What was recorded may be found.
		s.shelf.set(false, true)
		s.mode(simulator.Mode{Fault: simulator.Hang})
		_, took, err := s.once("key", "ben@example.com", "high_risk")
		var nd *validate.NotDurable
		if !errors.As(err, &nd) || nd.ID == "" || strings.Contains(err.Error(), "ben") || took > time.Second {
			t.Errorf("answer not kept: %v after %v, want NotDurable with an id within a second", err, took)
		} else if st := s.status(nd.ID); st.Status != verdict.NeedsReview {
			t.Errorf("status of its id = %s, want needs_review", st.Status)
		}
		s.shelf.set(false, false)
		time.Sleep(15 * time.Second) // its lease
		again, _, err := s.once("key", "ben@example.com", "high_risk")
		if err != nil || again.Replayed || again.ID != nd.ID {
			t.Errorf("after the lease: %s replayed %t, %v, want the same check", again.ID, again.Replayed, err)
		}
	})
}

// An error is no answer: it leaves the key free for any request.
func TestErrorFreesTheKey(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.mode(simulator.Mode{Fault: simulator.Hang})
		s.records.set(true)
		if _, _, err := s.once("key", "ana@example.com", ""); !errors.Is(err, validate.ErrNotDurable) {
			t.Fatalf("no row: %v, want ErrNotDurable", err)
		}
		if _, _, err := s.once("key", "ana@example.com", "nope"); !errors.Is(err, validate.ErrUnknownFlow) {
			t.Errorf("unknown flow: %v, want ErrUnknownFlow", err)
		}
		s.records.set(false)
		time.Sleep(time.Millisecond) // it is freed beside the answer
		if a, _, err := s.once("key", "ben@example.com", ""); err != nil || a.Status != verdict.NeedsReview || a.Replayed {
			t.Errorf("another request: %s, %v, want needs_review", a.Status, err)
		}
	})
}
