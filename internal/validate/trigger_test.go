package validate_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

const ms = time.Millisecond

// Ask fails like Record while the store is away.
func (a *away) Ask(ctx context.Context, e fallback.Event) (fallback.Asked, error) {
	a.mu.Lock()
	down := a.down
	a.mu.Unlock()
	if down {
		return fallback.Asked{}, errors.New("away")
	}
	return a.SQLite.Ask(ctx, e)
}

func (s *setup) trigger(raw string) validate.Scheduled {
	s.t.Helper()
	c, err := s.service.Revalidate(s.t.Context(), validate.Event{Raw: raw, Client: "crm"})
	if err != nil {
		s.t.Errorf("Revalidate = %v", err)
	}
	return c
}

// since returns when each call after the first n arrived at the upstream.
func (s *setup) since(began time.Time, n int) (at []time.Duration) {
	for _, c := range s.sim.Calls()[n:] {
		at = append(at, c.At.Sub(began))
	}
	return at
}

// watching is a setup whose loop runs, and whose bursts are watched.
func watching(t *testing.T, story func(t *testing.T, s *setup)) {
	t.Helper()
	bubble(t, func(t *testing.T, s *setup) {
		s.loop()
		s.run(s.service.Run)
		story(t, s)
	})
}

// A burst for an address whose verdict is fresh is one check, 400 ms after the last event; the answer names it.
func TestBurstOfEventsIsOneCheck(t *testing.T) {
	watching(t, func(t *testing.T, s *setup) {
		before, _ := s.post("ana@example.com")
		s.wantBilled(1)
		began := time.Now()
		first := s.trigger("ana@example.com")
		if first.ID == "" || first.ID == before.ID || first.Merged || first.Local != nil || first.NextCheckAt.Sub(began) != 400*ms || first.PollAfter != 2*time.Second {
			t.Errorf("Revalidate = %+v, want a check of its own in 400ms", first)
		}
		for range 9 {
			time.Sleep(100 * ms)
			if c := s.trigger(" Ana@Example.com "); c.ID != first.ID || !c.Merged || time.Until(c.NextCheckAt) != 400*ms {
				t.Errorf("Revalidate = %+v, want the same check in 400ms", c)
			}
		}
		if a := s.status(first.ID); a.Status != verdict.NeedsReview || a.Reason != verdict.RevalidationRequested || a.NextCheckAt.IsZero() {
			t.Errorf("status %s %s, want needs_review revalidation_requested", a.Status, a.Reason)
		}
		if a, took := s.post("ana@example.com"); a.ID != before.ID || a.Status != verdict.Valid || took != 0 {
			t.Errorf("meanwhile a post got %s %s after %v, want the verdict that is fresh, at once", a.Status, a.ID, took)
		}
		time.Sleep(time.Minute)
		if at := s.since(began, 1); len(at) != 1 || at[0] != 1300*ms {
			t.Errorf("asked at %v, want once, 400 ms after the event at 900 ms", at)
		}
		if a := s.status(first.ID); a.Status != verdict.Valid || a.Source != verdict.FromReview || len(a.Trail) != 1 {
			t.Errorf("status %s from %s with %d calls, want valid from review with one", a.Status, a.Source, len(a.Trail))
		}
		if a, _ := s.post("ana@example.com"); a.ID != first.ID {
			t.Errorf("a post gets check %s, want the new one, %s", a.ID, first.ID)
		}
		if again := s.trigger("ana@example.com"); again.Merged || again.ID == first.ID {
			t.Errorf("Revalidate = %+v, want another check", again)
		}
	})
}

func TestStreamOfEventsIsCheckedEachFiveSeconds(t *testing.T) {
	watching(t, func(t *testing.T, s *setup) {
		began := time.Now()
		for range 120 {
			s.trigger("ana@example.com")
			time.Sleep(100*ms + 7*time.Microsecond)
		}
		last := time.Since(began) - 100*ms - 7*time.Microsecond
		time.Sleep(time.Minute)
		at := s.since(began, 0)
		if len(at) != 3 || at[0] != 5*time.Second || at[1]-at[0] < 4900*ms || at[1]-at[0] > 5100*ms || at[2] != last+400*ms {
			t.Errorf("asked at %v, want after 5 s, some 5 s later, and 400 ms after the last event at %v", at, last)
		}
	})
}

// A check that began before an event does not answer it; one that began after does, whoever made it.
func TestEventBesideAPersonsCheck(t *testing.T) {
	watching(t, func(t *testing.T, s *setup) {
		s.mode(simulator.Mode{P50: 600 * ms})
		posted := make(chan validate.Answer)
		go func() {
			a, _ := s.post("ana@example.com")
			posted <- a
		}()
		time.Sleep(100 * ms)
		began := time.Now()
		c := s.trigger("ana@example.com") // while the call is on the wire
		if a := <-posted; a.Status != verdict.Valid {
			t.Errorf("the person got %s", a.Status)
		}
		time.Sleep(time.Minute)
		if got := len(s.since(began, 1)); got != 1 {
			t.Errorf("asked %d times after the event, want once", got)
		}
		if a := s.status(c.ID); a.Status != verdict.Valid || a.CheckedAt.Before(began.Add(400*ms)) {
			t.Errorf("status %s of %v, want valid of a check from after the event", a.Status, a.CheckedAt)
		}

		// Another address: the person comes second.
		s.mode(simulator.Mode{P50: 50 * ms})
		calls := len(s.sim.Calls())
		c = s.trigger("bob@example.com")
		time.Sleep(100 * ms)
		if a, _ := s.post("bob@example.com"); a.Status != verdict.Valid || a.ID != c.ID {
			t.Errorf("the person got %s %s, want valid under the event's id %s", a.Status, a.ID, c.ID)
		}
		time.Sleep(time.Minute)
		if got := len(s.sim.Calls()) - calls; got != 1 {
			t.Errorf("asked %d times, want once: the person's check is newer than the event", got)
		}
		if a := s.status(c.ID); a.Status != verdict.Valid {
			t.Errorf("status %s, want valid", a.Status)
		}
	})
}

// While the upstream is away the event waits like any review, and what is known is served.
func TestEventInAnOutage(t *testing.T) {
	watching(t, func(t *testing.T, s *setup) {
		before, _ := s.post("ana@example.com")
		s.mode(simulator.Mode{Fault: simulator.Error500})
		time.Sleep(ms) // a verdict of the same instant would do
		c := s.trigger("ana@example.com")
		time.Sleep(time.Minute)
		if a := s.status(c.ID); a.Status != verdict.NeedsReview || a.Reason == verdict.RevalidationRequested || len(a.Trail) == 0 {
			t.Errorf("status %s %s, want needs_review for what came of the check", a.Status, a.Reason)
		}
		if a, _ := s.post("ana@example.com"); a.ID != before.ID || a.Status != verdict.Valid {
			t.Errorf("a post gets %s, want the verdict that is fresh", a.Status)
		}
		if again := s.trigger("ana@example.com"); again.ID != c.ID || !again.Merged {
			t.Errorf("Revalidate = %+v, want the open check", again)
		}
		s.mode(simulator.Mode{})
		time.Sleep(15 * time.Minute)
		if a := s.status(c.ID); a.Status != verdict.Valid || a.CheckedAt.Before(before.CheckedAt.Add(time.Minute)) {
			t.Errorf("status %s of %v, want valid and new", a.Status, a.CheckedAt)
		}
	})
}

// Accepted is accepted: nobody watches, the process ends, and the next one makes the check.
func TestEventOutlivesItsProcess(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		c := s.trigger("ana@example.com") // neither Run nor the loop is there
		time.Sleep(time.Hour)
		s.wantBilled(0)
		s.loop()
		time.Sleep(time.Minute)
		s.wantBilled(1)
		if a := s.status(c.ID); a.Status != verdict.Valid {
			t.Errorf("status %s, want valid", a.Status)
		}
	})
}

func TestEventsThatNeedNoCheck(t *testing.T) {
	watching(t, func(t *testing.T, s *setup) {
		s.address = plan(t, normalize.Own{Deny: []string{"unwanted.example.org"}})
		for raw, want := range map[string]verdict.Reason{"no address": verdict.MissingAt, "": verdict.Empty, "a@unwanted.example.org": verdict.LocalDenylist} {
			c := s.trigger(raw)
			if c.Local == nil || c.Local.Reason != want || c.Local.ID != "" || c.ID != "" {
				t.Errorf("Revalidate(%q) = %+v, want the answer %s", raw, c, want)
			}
		}
		time.Sleep(time.Minute)
		s.wantBilled(0)
	})
}

func TestEventsByID(t *testing.T) {
	watching(t, func(t *testing.T, s *setup) {
		by := func(id string) (validate.Scheduled, error) {
			return s.service.Revalidate(t.Context(), validate.Event{ID: id, Client: "crm"})
		}
		settled, _ := s.post("ana@example.com")
		for range 2 { // not written behind yet, and in the store
			if _, err := by(settled.ID); !errors.Is(err, validate.ErrAddressErased) {
				t.Errorf("Revalidate of a verdict = %v, want ErrAddressErased", err)
			}
			time.Sleep(time.Minute)
		}
		if _, err := by("01989f6e-7d3a-7c1e-9a44-0f3b8f6f2cff"); !errors.Is(err, validate.ErrUnknownID) {
			t.Errorf("Revalidate of an unknown id = %v, want ErrUnknownID", err)
		}
		if _, err := s.service.Revalidate(t.Context(), validate.Event{Raw: "a@example.com", Flow: "nope"}); !errors.Is(err, validate.ErrUnknownFlow) {
			t.Errorf("Revalidate in an unknown flow = %v, want ErrUnknownFlow", err)
		}
		open, _ := s.post("softbounce@example.com")
		began := time.Now()
		c, err := by(open.ID)
		if err != nil || c.ID != open.ID || !c.Merged || c.NextCheckAt.Sub(began) != 400*ms {
			t.Errorf("Revalidate of an open review = %+v, %v, want it in 400ms", c, err)
		}
		time.Sleep(time.Second)
		if a := s.status(open.ID); len(a.Trail) != 2 {
			t.Errorf("%d calls for the open review, want two", len(a.Trail))
		}
		ended := s.trigger("bob@example.com")
		time.Sleep(time.Minute)
		if _, err := by(ended.ID); !errors.Is(err, validate.ErrAddressErased) {
			t.Errorf("Revalidate of an ended review = %v, want ErrAddressErased", err)
		}
	})
}

// What can't be written is not accepted, and costs nothing.
func TestEventWithoutAStore(t *testing.T) {
	watching(t, func(t *testing.T, s *setup) {
		s.records.set(true)
		_, err := s.service.Revalidate(t.Context(), validate.Event{Raw: "ana@example.com"})
		if !errors.Is(err, validate.ErrNotDurable) {
			t.Errorf("Revalidate = %v, want ErrNotDurable", err)
		}
		time.Sleep(time.Minute)
		s.wantBilled(0)
	})
}

func TestEventOfAnErasedAddress(t *testing.T) {
	watching(t, func(t *testing.T, s *setup) {
		c := s.trigger("ana@example.com")
		if got, err := s.service.Erase(t.Context(), "ana@example.com"); err != nil || got.Reviews != 1 {
			t.Errorf("Erase = %+v, %v, want the event's review", got, err)
		}
		time.Sleep(time.Minute)
		s.wantBilled(0)
		if _, err := s.service.Status(t.Context(), validate.Inquiry{ID: c.ID}); !errors.Is(err, validate.ErrUnknownID) {
			t.Errorf("Status = %v, want ErrUnknownID", err)
		}
		if again := s.trigger("ana@example.com"); again.ID == c.ID || again.Merged {
			t.Errorf("Revalidate after the erasure = %+v, want a check of its own", again)
		}
	})
}

// An early claim of a row for which events are expected gives it back: its turn comes by itself.
func TestClaimAheadOfItsEvents(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		now := time.Now()
		addr, err := normalize.Restore("ana@example.com")
		if err != nil {
			t.Fatal(err)
		}
		claim := fallback.Claim{ReviewID: "01989f6e-7d3a-7c1e-9a44-0f3b8f6f2c11", Fingerprint: s.prints.Of(addr), Address: addr, Now: now, AskedAt: now.Add(time.Second)}
		if out := s.service.Recheck(t.Context(), claim); out.Final() || len(out.Trail) != 0 {
			t.Errorf("Recheck = %+v, want nothing", out)
		}
		s.wantBilled(0)
		claim.AskedAt = now
		if out := s.service.Recheck(t.Context(), claim); !out.Final() {
			t.Errorf("Recheck = %+v, want a verdict", out)
		}
		// The store's clock is an hour behind: what began since the claim counts all the same.
		claim.Now, claim.AskedAt = now.Add(-time.Hour), now.Add(-time.Hour-time.Second)
		time.Sleep(time.Minute)
		if out := s.service.Recheck(t.Context(), claim); !out.Final() {
			t.Errorf("Recheck = %+v, want a verdict", out)
		}
		s.wantBilled(2)
	})
}
