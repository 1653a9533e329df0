//go:build !race

// Stories of days and weeks. SQLite in Go is some twenty times slower under the race detector, so "make test" runs these
// in a pass without it.

package validate_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// TestMailboxLadder: a mailbox that can't say is asked at once, after 10 min, 6 h and 3 d, and then given up.
func TestMailboxLadder(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.loop()
		a, _ := s.post("softbounce@example.com")
		began := time.Now()
		st := s.status(a.ID)
		for st.Status == verdict.NeedsReview && time.Since(began) < 6*24*time.Hour {
			time.Sleep(time.Hour)
			st = s.status(a.ID)
		}
		if st.Status != verdict.Unresolved || st.Decision != validate.AcceptPending || st.Reason != verdict.MailboxTempRejected {
			t.Errorf("in the end: %s %s %s, want unresolved, accept_pending", st.Status, st.Decision, st.Reason)
		}
		s.wantBilled(4)
		var at []time.Duration
		for _, c := range s.sim.Calls() {
			at = append(at, c.At.Sub(began))
		}
		steps := []time.Duration{10 * time.Minute, 6 * time.Hour, 72 * time.Hour}
		for i, step := range steps {
			if gap := at[i+1] - at[i]; gap < step || gap > step*12/10+5*time.Second {
				t.Errorf("step %d came %v after the one before, want %v to 20 %% more", i+1, gap, step)
			}
		}
		if b, _ := s.post("softbounce@example.com"); b.Status != verdict.Unresolved {
			t.Errorf("a post after that: %s, want the unresolved verdict from the cache", b.Status)
		}
		s.wantBilled(4)
	})
}

func TestUnusableAnswersEndDead(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.loop()
		a, _ := s.post("contradictory@example.com")
		time.Sleep(24 * time.Hour)
		if st := s.status(a.ID); st.Status != verdict.Unresolved || st.Reason != verdict.Contradictory {
			t.Errorf("after a day: %s %s, want unresolved contradictory", st.Status, st.Reason)
		}
		s.wantBilled(8)
		stats, err := s.store.Stats(t.Context())
		if err != nil || stats.Dead != 1 || stats.Open != 0 {
			t.Errorf("stats %+v, %v, want one dead and none open", stats, err)
		}
	})
}

// TestOutageDoesNotUseUpAttempts: six hours of a dead upstream, then every row ends with the upstream's word.
func TestOutageDoesNotUseUpAttempts(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.loop()
		s.mode(simulator.Mode{Fault: simulator.Reset})
		ids := make([]string, 50)
		for i := range ids {
			a, _ := s.post(fmt.Sprintf("person%d@example.com", i))
			ids[i] = a.ID
			time.Sleep(7 * time.Minute)
		}
		s.mode(simulator.Mode{Fault: simulator.Healthy})
		time.Sleep(100 * time.Second)
		for i, id := range ids {
			if st := s.status(id); st.Status != verdict.Valid {
				t.Errorf("row %d: %s %s, want valid 100 s after the recovery", i, st.Status, st.Reason)
			}
		}
	})
}

func TestUnknownFlowAndID(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		if _, err := s.service.Validate(t.Context(), validate.Request{Raw: "a@example.com", Flow: "nope"}); !errors.Is(err, validate.ErrUnknownFlow) {
			t.Errorf("Validate = %v, want ErrUnknownFlow", err)
		}
		if _, err := s.service.Status(t.Context(), validate.Inquiry{ID: uuid.NewString(), Flow: "nope"}); !errors.Is(err, validate.ErrUnknownFlow) {
			t.Errorf("Status = %v, want ErrUnknownFlow", err)
		}
		if _, err := s.service.Status(t.Context(), validate.Inquiry{ID: uuid.NewString()}); !errors.Is(err, validate.ErrUnknownID) {
			t.Errorf("Status = %v, want ErrUnknownID", err)
		}
		a, _ := s.post("deliverable@example.com")
		time.Sleep(34 * 24 * time.Hour) // past 30 d and its jitter
		if _, err := s.service.Status(t.Context(), validate.Inquiry{ID: a.ID}); !errors.Is(err, validate.ErrUnknownID) {
			t.Errorf("Status of an expired id = %v, want ErrUnknownID", err)
		}
	})
}
