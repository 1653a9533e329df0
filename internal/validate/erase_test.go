package validate_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

func (s *setup) erase(raw string, want validate.Removed) {
	s.t.Helper()
	if got, err := s.service.Erase(s.t.Context(), raw); err != nil || got != want {
		s.t.Errorf("Erase = %+v, %v, want %+v", got, err, want)
	}
}

// wantNothing checks that nothing is kept of an address anywhere.
func (s *setup) wantNothing(raw string) {
	s.t.Helper()
	addr, err := normalize.Restore(raw)
	if err != nil {
		s.t.Fatal(err)
	}
	fp := s.prints.Of(addr)
	if found, err := s.store.Lookup(s.t.Context(), fp); err != nil || found != (fallback.Found{}) {
		s.t.Errorf("the store has %+v of it, %v", found, err)
	}
	if k, ok := s.cache.Local(fp); ok {
		s.t.Errorf("the process has %+v of it", k)
	}
	if st, err := s.store.Stats(s.t.Context()); err != nil || st.Open != 0 {
		s.t.Errorf("Stats = %+v, %v, want no work", st, err)
	}
}

func (s *setup) wantUnknown(id string) {
	s.t.Helper()
	if a, err := s.service.Status(s.t.Context(), validate.Inquiry{ID: id, Client: "c"}); !errors.Is(err, validate.ErrUnknownID) {
		s.t.Errorf("Status = %s, %v, want ErrUnknownID", a.Status, err)
	}
}

func TestEraseWhatIsKnown(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		first, _, err := s.once("key", "Ana@Example.com", "")
		if err != nil {
			t.Fatal(err)
		}
		other, _ := s.post("ben@example.com")
		s.erase("ana@example.com", validate.Removed{Verdicts: 1, Answers: 1}) // the verdict is on its way to the store
		time.Sleep(2 * time.Second)
		s.wantNothing("ana@example.com")
		s.wantUnknown(first.ID)
		s.erase("ana@example.com", validate.Removed{})
		if st := s.status(other.ID); st.Status != verdict.Valid {
			t.Errorf("another address: %s, want valid", st.Status)
		}
		again, _, err := s.once("key", "Ana@Example.com", "")
		if err != nil || again.Replayed || again.ID == first.ID || again.Source != verdict.FromUpstream {
			t.Errorf("a new post: %s from %s, replayed %t, %v, want a new check", again.ID, again.Source, again.Replayed, err)
		}
		s.wantBilled(3)
		time.Sleep(2 * time.Second)
		if st := s.status(again.ID); st.Status != verdict.Valid {
			t.Errorf("the new check: %s, want valid", st.Status)
		}
		s.erase("ana@example.com", validate.Removed{Verdicts: 1, Answers: 1})
		if _, err := s.service.Erase(t.Context(), "no address"); !errors.Is(err, validate.ErrNoAddress) {
			t.Errorf("Erase of what is no address = %v, want ErrNoAddress", err)
		}
	})
}

// A call that outlived its callers brings an answer after the erasure: a verdict, and what would change the review.
func TestLateAnswerDoesNotBringTheAddressBack(t *testing.T) {
	for _, raw := range []string{"ana@example.com", "softbounce@example.com"} {
		t.Run(raw, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *setup) {
				s.mode(simulator.Mode{P50: 3 * time.Second, P99: 3 * time.Second})
				a, _ := s.post(raw)
				if a.Status != verdict.NeedsReview {
					t.Fatalf("answer %s, want needs_review", a.Status)
				}
				s.erase(raw, validate.Removed{Reviews: 1})
				s.wantUnknown(a.ID)
				time.Sleep(10 * time.Second)
				s.wantBilled(1)
				s.wantNothing(raw)
				s.wantUnknown(a.ID)
			})
		})
	}
}

// Whoever waits when the erasure comes counts as having come after it: nothing that was accepted is lost.
func TestWaitingCallersComeAfterTheErasure(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.mode(simulator.Mode{P50: 3 * time.Second, P99: 3 * time.Second})
		var wg sync.WaitGroup
		answers := make([]validate.Answer, 4)
		for i := range answers {
			wg.Go(func() {
				a, err := s.service.Validate(t.Context(), validate.Request{Raw: "ana@example.com", Client: []string{"c", "d"}[i%2]})
				if err != nil || a.Status != verdict.NeedsReview {
					t.Errorf("%d: %s, %v, want needs_review", i, a.Status, err)
				}
				answers[i] = a
			})
		}
		time.Sleep(300 * time.Millisecond)
		s.erase("ana@example.com", validate.Removed{})
		wg.Wait()
		for _, a := range answers {
			if a.ID != answers[0].ID {
				t.Errorf("ids %s and %s, want one check", a.ID, answers[0].ID)
			}
		}
		if st := s.status(answers[0].ID); st.Status != verdict.NeedsReview {
			t.Errorf("status = %s, want needs_review", st.Status)
		}
		time.Sleep(5 * time.Second) // the late answer, which a caller of after the erasure waits for
		if st := s.status(answers[0].ID); st.Status != verdict.Valid {
			t.Errorf("status = %s, want the late answer", st.Status)
		}
		s.wantBilled(1)
		s.erase("ana@example.com", validate.Removed{Reviews: 1, Verdicts: 1})
		time.Sleep(2 * time.Second)
		s.wantNothing("ana@example.com")
	})
}

// The loop holds the row and asks while the address is erased: it writes nothing.
func TestEraseWhileTheLoopAsks(t *testing.T) {
	for _, raw := range []string{"ana@example.com", "softbounce@example.com"} {
		t.Run(raw, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *setup) {
				s.mode(simulator.Mode{Fault: simulator.Error503})
				a, _ := s.post(raw)
				s.mode(simulator.Mode{P50: 3 * time.Second, P99: 3 * time.Second})
				s.loop()
				for range 200 {
					if st, err := s.store.Stats(t.Context()); err != nil || st.Leased == 1 {
						break
					}
					time.Sleep(time.Second)
				}
				time.Sleep(time.Second)
				if st, _ := s.store.Stats(t.Context()); st.Leased != 1 {
					t.Fatalf("Stats = %+v, want the row in work", st)
				}
				calls := s.sim.Stats().Calls
				s.erase(raw, validate.Removed{Reviews: 1})
				time.Sleep(10 * time.Minute)
				s.wantNothing(raw)
				s.wantUnknown(a.ID)
				if got := s.sim.Stats().Calls; got != calls {
					t.Errorf("%d calls after the erasure, want none", got-calls)
				}
			})
		})
	}
}
