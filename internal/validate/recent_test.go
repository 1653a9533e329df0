package validate_test

import (
	"testing"
	"time"

	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// TestNobodyAsksWhileTheRowIsWritten: a check that brought no verdict has landed, and its row is on its way to the store.
// Who comes in between joins that row, and does not pay for the same answer again; a little later one may.
func TestNobodyAsksWhileTheRowIsWritten(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		const email = "softbounce@example.com"
		s.mode(simulator.Mode{P50: 50 * time.Millisecond})
		s.records.mu.Lock()
		s.records.late = 100 * time.Millisecond
		s.records.mu.Unlock()
		answers := make(chan validate.Answer, 2)
		ask := func() {
			a, err := s.service.Validate(t.Context(), validate.Request{Raw: email, Client: "c"})
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}
		go ask()
		time.Sleep(80 * time.Millisecond) // it has landed after 50
		go ask()
		first, second := <-answers, <-answers
		if first.Status != verdict.NeedsReview || second.Status != verdict.NeedsReview || first.ID != second.ID || second.Reason != first.Reason {
			t.Errorf("%s %s %s and %s %s %s, want one review", first.Status, first.Reason, first.ID, second.Status, second.Reason, second.ID)
		}
		s.wantBilled(1)
		r, err := s.store.Review(t.Context(), first.ID)
		if err != nil || len(r.Trail) != 1 || r.Attempts != 1 {
			t.Errorf("review has %d calls and %d attempts, %v; want 1 and 1", len(r.Trail), r.Attempts, err)
		}
	})
}
