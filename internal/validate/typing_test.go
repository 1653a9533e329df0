package validate_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

func (s *setup) typed(raw, session string) (validate.Answer, time.Duration, error) {
	began := time.Now()
	a, err := s.service.Validate(s.t.Context(), validate.Request{Raw: raw, Client: "c", Typing: true, SessionID: session})
	return a, time.Since(began), err
}

// empty says that the store has no row.
func (s *setup) empty() {
	s.t.Helper()
	if st, err := s.store.Stats(s.t.Context()); err != nil || st.Open != 0 {
		s.t.Errorf("%d reviews are open, %v; want none", st.Open, err)
	}
}

// Twelve keys, each of them an address that could be asked about: the upstream is asked about the last one.
func TestTwelveKeystrokesAreOneCall(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		const text = "anamarialopez@example.com"
		var keys sync.WaitGroup
		for i := range 12 {
			keys.Go(func() {
				time.Sleep(time.Duration(i) * 150 * ms)
				a, took, err := s.typed(text[11-i:], "s1")
				switch {
				case i < 11 && (!errors.Is(err, validate.ErrSuperseded) || took != 150*ms):
					t.Errorf("key %d: %v after %v, want ErrSuperseded with the next one", i, err, took)
				case i == 11 && (err != nil || a.Status != verdict.Valid || took < 300*ms || took > 800*ms || a.Normalized != text):
					t.Errorf("the last key: %s, %v after %v, want valid after its quiet", a.Status, err, took)
				}
			})
		}
		keys.Wait()
		s.wantBilled(1)
		s.empty()
	})
}

// What costs nothing is answered at once, and takes over from the checks before it.
func TestTypingAnswersAtOnceWhatIsKnown(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.post("ana@example.com")
		before := make(chan error)
		go func() {
			_, _, err := s.typed("an@example.com", "s1")
			before <- err
		}()
		time.Sleep(100 * ms)
		if a, took, err := s.typed("ana@example.com", "s1"); err != nil || a.Status != verdict.Valid || took != 0 {
			t.Errorf("a cached address: %s, %v after %v, want valid at once", a.Status, err, took)
		}
		if err := <-before; !errors.Is(err, validate.ErrSuperseded) {
			t.Errorf("the check before: %v, want ErrSuperseded", err)
		}
		if a, took, err := s.typed("ana@example.", "s1"); err != nil || a.Status != verdict.Invalid || took != 0 {
			t.Errorf("a text that can't be an address: %s, %v after %v, want invalid at once", a.Status, err, took)
		}
		s.wantBilled(1)
	})
}

func TestTypingRecordsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.mode(simulator.Mode{P50: 3 * time.Second})
		_, took, err := s.typed("ana@example.com", "s1")
		if !errors.Is(err, validate.ErrTypingUnanswered) || took != 770*ms {
			t.Errorf("%v after %v, want ErrTypingUnanswered at the end of the budget", err, took)
		}
		time.Sleep(time.Minute)
		s.empty()
		// The late answer was paid for, and is kept.
		if a, took, err := s.typed("ana@example.com", "s1"); err != nil || a.Status != verdict.Valid || took != 0 {
			t.Errorf("%s, %v after %v, want valid at once", a.Status, err, took)
		}
		s.wantBilled(1)

		// A failure is said as soon as it is known; an open review is no answer, and costs nothing.
		s.mode(simulator.Mode{})
		if _, took, err = s.typed("softbounce@example.com", "s1"); !errors.Is(err, validate.ErrTypingUnanswered) || took >= 770*ms {
			t.Errorf("%v after %v, want ErrTypingUnanswered before the end", err, took)
		}
		time.Sleep(time.Minute)
		s.empty()
		s.post("softbounce@example.com")
		billed := s.sim.Stats().Billed
		if _, _, err = s.typed("softbounce@example.com", "s1"); !errors.Is(err, validate.ErrTypingUnanswered) {
			t.Errorf("%v beside an open review, want ErrTypingUnanswered", err)
		}
		s.wantBilled(billed)
	})
}

func TestTypingSessionsAreTheClients(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		var all sync.WaitGroup
		for _, r := range []validate.Request{
			{Raw: "ana@example.com", Client: "c", SessionID: "s1"}, {Raw: "bob@example.com", Client: "c", SessionID: "s2"},
			{Raw: "carl@example.com", Client: "d", SessionID: "s1"}, {Raw: "dora@example.com", Client: "", SessionID: "cs1"},
		} {
			r.Typing = true
			all.Go(func() {
				if _, err := s.service.Validate(t.Context(), r); err != nil {
					t.Errorf("client %s, session %s: %v, want no error", r.Client, r.SessionID, err)
				}
			})
		}
		all.Wait()
		s.wantBilled(4)
	})
}

// A browser drops the request of the key before: nobody is asked about it.
func TestTypistWhoHangsUp(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
		defer cancel()
		_, err := s.service.Validate(ctx, validate.Request{Raw: "ana@example.com", Client: "c", Typing: true, SessionID: "s1"})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Validate = %v, want the end of its caller", err)
		}
		time.Sleep(time.Minute)
		s.wantBilled(0)
	})
}

// The quiet is a part of the budget, however short that is.
func TestTypingInsideAShortBudget(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.mode(simulator.Mode{P50: 20 * ms})
		began := time.Now()
		a, err := s.service.Validate(t.Context(), validate.Request{Raw: "ana@example.com", Client: "c", Typing: true, SessionID: "s1", Budget: validate.MinBudget})
		if took := time.Since(began); err != nil || a.Status != verdict.Valid || took >= validate.MinBudget {
			t.Errorf("%s, %v after %v, want valid within 300ms", a.Status, err, took)
		}
	})
}
