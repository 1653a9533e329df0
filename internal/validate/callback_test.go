package validate_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// Watch fails while the store is down.
func (a *away) Watch(ctx context.Context, id string, w fallback.Watcher) error {
	a.mu.Lock()
	down := a.down
	a.mu.Unlock()
	if down {
		return errors.New("no connection came free in time")
	}
	return a.SQLite.Watch(ctx, id, w)
}

// called posts with a callback.
func (s *setup) called(raw string) (validate.Answer, error) {
	return s.service.Validate(s.t.Context(), validate.Request{Raw: raw, Client: "forms", Callback: "crm"})
}

func (s *setup) waiting() int64 {
	s.t.Helper()
	st, err := s.store.OutboxStats(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return st.Waiting
}

// Who is to be called back is told "pending" only once that is durable.
func TestCallbackIsDurableBeforeItIsPromised(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		first, _ := s.post("softbounce@example.com") // its marker answers from now on
		s.records.set(true)
		if a, err := s.called("softbounce@example.com"); !errors.Is(err, validate.ErrNotDurable) || strings.Contains(err.Error(), "softbounce") {
			t.Errorf("store away: %s, %v, want ErrNotDurable", a.Status, err)
		}
		if a, err := s.service.Validate(t.Context(), validate.Request{Raw: "softbounce@example.com", Client: "forms", Flow: "high_risk"}); err != nil || a.ID != first.ID {
			t.Errorf("without a callback: %s, %v, want the marker's answer", a.ID, err)
		}
		s.records.set(false)
		for range 2 {
			if a, err := s.called("softbounce@example.com"); err != nil || a.ID != first.ID || a.Status != verdict.NeedsReview {
				t.Errorf("store back: %s %s, %v, want needs_review", a.ID, a.Status, err)
			}
		}
		watchers, err := s.store.Watchers(t.Context(), first.ID)
		n := 0
		for _, w := range watchers {
			if w.Callback == "crm" {
				n++
			}
		}
		if err != nil || n != 1 {
			t.Errorf("watchers are %v, %v, want one with the callback", watchers, err)
		}
	})
}

func TestOneMessageForAPendingAnswerAndNoneForAFinalOne(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		if a, err := s.called("deliverable@example.com"); err != nil || a.Status != verdict.Valid || s.waiting() != 0 {
			t.Errorf("a final answer: %s, %v, and %d messages, want none", a.Status, err, s.waiting())
		}
		s.mode(simulator.Mode{Fault: simulator.Slow, P50: 2 * time.Second})
		a, err := s.called("ana@example.com")
		if err != nil || a.Status != verdict.NeedsReview || s.waiting() != 0 {
			t.Errorf("a slow upstream: %s, %v, and %d messages, want needs_review and none yet", a.Status, err, s.waiting())
		}
		time.Sleep(3 * time.Second) // its late answer settles the review
		if st := s.status(a.ID); st.Status != verdict.Valid || s.waiting() != 1 {
			t.Errorf("status %s and %d messages, want valid and one", st.Status, s.waiting())
		}
		if a, err := s.called("ana@example.com"); err != nil || a.Status != verdict.Valid || s.waiting() != 1 {
			t.Errorf("again: %s, %v, and %d messages, want no more", a.Status, err, s.waiting())
		}
	})
}
