//go:build !race

// Stories of days and weeks. SQLite in Go is some twenty times slower under the race detector, so "make test" runs these
// in a pass without it.

package revalidate

import (
	"testing"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/verdict"
)

func TestUpstreamsLadderUsesUpNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		id := s.record(1, 30*time.Second, verdict.CauseUpstream)
		s.desk.set(without(verdict.CauseUpstream, verdict.UpstreamError))
		stop := s.start()
		defer stop()
		time.Sleep(24 * time.Hour)
		if r := s.review(id); r.State != fallback.Open {
			t.Errorf("after a day of outage: %s, want open", r.State)
		}
		at := s.desk.times()
		for i, want := range []time.Duration{2 * time.Minute, 10 * time.Minute, 10 * time.Minute} {
			// the first rung was the record's own
			if gap := at[i+2].Sub(at[i+1]); gap < want || gap > want*12/10+3*time.Second {
				t.Errorf("step %d came after %v, want %v to 20 %% more", i+2, gap, want)
			}
		}
		s.desk.set(valid)
		time.Sleep(15 * time.Minute)
		if r := s.review(id); r.State != fallback.Settled || r.Verdict.Status != verdict.Valid {
			t.Errorf("after the outage: %s, want settled", r.State)
		}
	})
}

func TestMailboxsLadderEndsUnresolved(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		id := s.record(1, 10*time.Minute, verdict.CauseMailbox) // itself an answer
		s.desk.set(without(verdict.CauseMailbox, verdict.MailboxTempRejected))
		stop := s.start()
		defer stop()
		time.Sleep(5 * 24 * time.Hour)
		if r := s.review(id); r.State != fallback.Settled || r.Verdict.Status != verdict.Unresolved || r.Verdict.Reason != verdict.MailboxTempRejected {
			t.Errorf("%s %v, want settled as unresolved", r.State, r.Verdict)
		}
		if n := s.desk.calls(); n != 3 {
			t.Errorf("asked %d times, want three", n)
		}
		if s.shelf.len() != 1 {
			t.Error("no marker was left while the row waited")
		}
	})
}

func TestUnusableAnswersEndDead(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		id := s.record(1, 0, verdict.CauseUnusable) // itself an answer
		s.desk.set(without(verdict.CauseUnusable, verdict.Unmapped))
		stop := s.start()
		defer stop()
		time.Sleep(24 * time.Hour)
		if r := s.review(id); r.State != fallback.Dead || r.Reason != verdict.Unmapped || r.Address.IsZero() {
			t.Errorf("%s %s, want dead with its address, for a replay", r.State, r.Reason)
		}
		if n := s.desk.calls(); n != 7 {
			t.Errorf("asked %d times, want seven after the first", n)
		}
	})
}
