package validate_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/cache"
	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

const person = "deliverable@example.com"

// The life of a verdict in these stories: short, as a bubble's day takes a second.
const (
	soft = time.Hour
	hard = 6 * time.Hour
)

// aged posts an address, and waits until its verdict is past its freshness.
func (s *setup) aged(raw string) validate.Answer {
	s.t.Helper()
	s.tuning.Valid = cache.TTL{Soft: soft, Hard: hard}
	a, _ := s.post(raw)
	if a.Status != verdict.Valid || a.Stale || !a.ExpiresAt.Equal(time.Now().Add(soft)) {
		s.t.Fatalf("the first answer is %s, stale %v; want valid", a.Status, a.Stale)
	}
	time.Sleep(soft)
	return a
}

// wantOld posts and checks that the answer is the verdict of first, past its freshness, at once.
func (s *setup) wantOld(first validate.Answer, raw string) {
	s.t.Helper()
	a, took := s.post(raw)
	if a.ID != first.ID || a.Status != first.Status || !a.Stale || a.Source != verdict.FromCache || took != 0 {
		s.t.Errorf("%s %s from %s, stale %v, after %v; want %s %s from cache, stale, at once", a.ID, a.Status, a.Source, a.Stale, took, first.ID, first.Status)
	}
	if want := time.Since(first.CheckedAt); a.Age != want {
		s.t.Errorf("age %v, want %v", a.Age, want)
	}
	if want := first.ExpiresAt; !a.ExpiresAt.Equal(want) && (want.Before(time.Now()) || !a.ExpiresAt.Equal(time.Now())) {
		s.t.Errorf("expired at %v, want %v, or now before that", a.ExpiresAt, want)
	}
}

func (s *setup) wantNew(first validate.Answer, raw string) {
	s.t.Helper()
	a, took := s.post(raw)
	if a.ID == first.ID || a.Status != verdict.Valid || a.Stale || a.Source != verdict.FromCache || took != 0 {
		s.t.Errorf("%s %s from %s, stale %v, after %v; want another valid verdict from cache, fresh, at once", a.ID, a.Status, a.Source, a.Stale, took)
	}
}

func (s *setup) wantOpen(n int64) {
	s.t.Helper()
	if st, err := s.store.Stats(s.t.Context()); err != nil || st.Open != n {
		s.t.Errorf("Stats = %+v, %v, want %d open", st, err, n)
	}
}

func (s *setup) print(raw string) normalize.Fingerprint {
	s.t.Helper()
	return s.prints.Of(s.parse(raw))
}

func (s *setup) parse(raw string) normalize.Address {
	s.t.Helper()
	addr, err := normalize.Restore(raw)
	if err != nil {
		s.t.Fatal(err)
	}
	return addr
}

// TestFiveHundredOverAnExpiry: each has the old verdict at once, the upstream gets one call, and then the new verdict is at
// every level.
func TestFiveHundredOverAnExpiry(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarted %v", restarted), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *setup) {
				first := s.aged(person)
				if restarted {
					s.restart()
				}
				s.mode(simulator.Mode{P50: 400 * time.Millisecond, P99: 400 * time.Millisecond})
				var wg sync.WaitGroup
				for i := range 500 {
					wg.Go(func() {
						time.Sleep(time.Duration(i/5) * time.Millisecond)
						s.wantOld(first, person)
					})
				}
				wg.Wait()
				time.Sleep(2 * time.Second)
				s.wantBilled(2)
				s.wantNew(first, person)
				found, err := s.store.Lookup(t.Context(), s.print(person))
				if err != nil || found.Verdict == nil || found.Verdict.ID == first.ID || found.Review != nil {
					t.Errorf("the store has %+v, %v; want the new verdict and no review", found, err)
				}
				s.restart()
				s.post(person)
				s.wantBilled(2)
			})
		})
	}
}

// TestOldVerdictServesThroughAnOutage: until its hard end, with one call in 30 s at the most and no row.
func TestOldVerdictServesThroughAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		first := s.aged(person)
		s.mode(simulator.Mode{Fault: simulator.Error500})
		calls := s.sim.Stats().Calls
		for range 90 { // a second apart
			s.wantOld(first, person)
			time.Sleep(time.Second)
		}
		if n := s.sim.Stats().Calls - calls; n != 3 {
			t.Errorf("%d calls in 90 s, want 3", n)
		}
		s.wantOpen(0)
		time.Sleep(4 * time.Hour)
		s.wantOld(first, person)
		synctest.Wait()
		s.mode(simulator.Mode{Fault: simulator.Healthy})
		time.Sleep(time.Minute)
		s.wantOld(first, person)
		time.Sleep(time.Second)
		s.wantNew(first, person)
		s.wantOpen(0)
		time.Sleep(hard)
		s.mode(simulator.Mode{Fault: simulator.Error500})
		if a, _ := s.post(person); a.Status != verdict.NeedsReview {
			t.Errorf("past the hard end: %s, want needs_review", a.Status)
		}
	})
}

// TestRefreshTakesWhatNobodyElseCouldUse: without a token to spare nothing is sent, then or later.
func TestRefreshTakesWhatNobodyElseCouldUse(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		first := s.aged(person)
		limits := s.limits
		s.limits.Rate = 0
		s.wantOld(first, person)
		synctest.Wait()
		s.limits = limits
		time.Sleep(29 * time.Second) // it would have had 15 s for the check
		s.wantOld(first, person)
		s.wantBilled(1)
		time.Sleep(time.Second)
		s.wantOld(first, person)
		time.Sleep(time.Second)
		s.wantBilled(2)
		s.wantNew(first, person)
	})
}

// told is a client that answers as it is told.
type told struct {
	verifier
	mu      sync.Mutex
	answer  func(ctx context.Context) verdict.Outcome // nil: the client's
	plans   []verdict.Plan
	running int
	most    int
}

func (c *told) set(answer func(ctx context.Context) verdict.Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = answer
}

func (c *told) Check(ctx context.Context, addr normalize.Address, plan verdict.Plan) verdict.Outcome {
	c.mu.Lock()
	answer := c.answer
	c.plans = append(c.plans, plan)
	c.running++
	c.most = max(c.most, c.running)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.running--
		c.mu.Unlock()
	}()
	if answer != nil {
		return answer(ctx)
	}
	return c.verifier.Check(ctx, addr, plan)
}

func (c *told) asked() []verdict.Plan {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plans
}

// TestRefreshCostsNobodyAnything: its plan, and how long an address is left alone after what the mailbox's side said.
func TestRefreshCostsNobodyAnything(t *testing.T) {
	client := &told{}
	bubble(t, func(t *testing.T, s *setup) {
		first := s.aged(person)
		client.set(func(context.Context) verdict.Outcome {
			return verdict.Outcome{Verdict: verdict.Verdict{Status: verdict.NeedsReview, Reason: verdict.MailboxTempRejected}, Cause: verdict.CauseMailbox, Sent: 1}
		})
		began := time.Now()
		for time.Since(began) < 21*time.Minute {
			s.wantOld(first, person)
			time.Sleep(20 * time.Second)
		}
		plans := client.asked()[1:]
		if len(plans) != 3 { // the mailbox is asked again after ten minutes
			t.Errorf("%d refreshes in 21 minutes, want 3", len(plans))
		}
		for _, p := range plans {
			if p.Class != verdict.Background || !p.Once || p.MaxRetries != 0 {
				t.Errorf("plan %+v, want one attempt in the background that waits for nothing", p)
			}
		}
		s.wantOpen(0)
	}, func(v verifier) verifier { client.verifier = v; return client })
}

// TestFewRefreshesAtATime: what is over eight is served and not refreshed; a panic gives its place back.
func TestFewRefreshesAtATime(t *testing.T) {
	client := &told{}
	bubble(t, func(t *testing.T, s *setup) {
		s.tuning.Valid = cache.TTL{Soft: soft, Hard: hard}
		var first [20]validate.Answer
		raw := func(i int) string { return fmt.Sprintf("person%d@example.com", i) }
		for i := range first {
			first[i], _ = s.post(raw(i))
		}
		time.Sleep(soft)
		client.set(func(context.Context) verdict.Outcome {
			time.Sleep(5 * time.Second)
			panic("as a bug would")
		})
		for i := range first {
			s.wantOld(first[i], raw(i))
		}
		time.Sleep(time.Second)
		client.mu.Lock()
		if client.most != 8 {
			t.Errorf("%d refreshes at a time, want 8", client.most)
		}
		client.mu.Unlock()
		time.Sleep(time.Minute)
		client.set(nil)
		for i := range first {
			s.wantOld(first[i], raw(i))
			time.Sleep(time.Second)
			s.wantNew(first[i], raw(i))
		}
	}, func(v verifier) verifier { client.verifier = v; return client })
}

// TestNobodyWaitsForARefresh: who comes while one is in the air, and finds nothing in the process, neither; nor who joins
// the loop's check.
func TestNobodyWaitsForARefresh(t *testing.T) {
	client := &told{}
	bubble(t, func(t *testing.T, s *setup) {
		first := s.aged(person)
		s.restart()
		client.set(func(ctx context.Context) verdict.Outcome {
			<-ctx.Done()
			return verdict.Outcome{Verdict: verdict.Verdict{Status: verdict.NeedsReview, Reason: verdict.UpstreamTimeout}, Cause: verdict.CauseUpstream, Sent: 1}
		})
		s.wantOld(first, person) // from the store
		time.Sleep(time.Second)
		s.cache.Mark(s.print(person), verdict.Marker{ID: first.ID, Until: time.Now().Add(time.Nanosecond)})
		time.Sleep(time.Millisecond)
		s.wantOld(first, person) // from the flight
		if n := len(client.asked()); n != 2 {
			t.Errorf("asked %d times, want 2", n)
		}
		time.Sleep(time.Minute)
		s.open(person, verdict.CauseUpstream, 0)
		client.set(func(ctx context.Context) verdict.Outcome {
			<-ctx.Done()
			return verdict.Outcome{Verdict: verdict.Verdict{Status: verdict.NeedsReview, Reason: verdict.UpstreamTimeout}, Cause: verdict.CauseUpstream, Sent: 1}
		})
		s.loop()
		time.Sleep(2 * time.Second)
		if n := len(client.asked()); n != 3 {
			t.Errorf("asked %d times, want 3: the loop's check", n)
		}
		s.cache.Mark(s.print(person), verdict.Marker{ID: first.ID, Until: time.Now().Add(time.Nanosecond)})
		time.Sleep(time.Millisecond)
		s.wantOld(first, person)
	}, func(v verifier) verifier { client.verifier = v; return client })
}

// open records a review beside whatever is known, due after in.
func (s *setup) open(raw string, cause verdict.Cause, in time.Duration) string {
	s.t.Helper()
	reason := verdict.UpstreamTimeout
	if cause == verdict.CauseMailbox {
		reason = verdict.MailboxTempRejected
	}
	addr := s.parse(raw)
	r, err := s.store.Record(s.t.Context(), fallback.Entry{ID: newID(), Fingerprint: s.prints.Of(addr), DomainKey: s.prints.DomainKey(addr), Address: addr,
		Reason: reason, Cause: cause, CheckIn: in, Priority: fallback.PriorityInteractive, Watcher: fallback.Watcher{Client: "c", Flow: "signup"}})
	if err != nil {
		s.t.Fatal(err)
	}
	return r.ID
}

// TestAReviewBesideAnOldVerdict: while its marker holds it is the answer, and nothing is asked. After that the old verdict
// is, and what the refresh brings settles the review. The loop is content with a fresh verdict only.
func TestAReviewBesideAnOldVerdict(t *testing.T) {
	t.Run("on the mailbox's side", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *setup) {
			first := s.aged(person)
			id := s.open(person, verdict.CauseMailbox, 10*time.Minute)
			s.restart()
			if a, _ := s.post(person); a.ID != id || a.Status != verdict.NeedsReview || a.Reason != verdict.MailboxTempRejected {
				t.Errorf("%s %s, want the review %s", a.ID, a.Status, id)
			}
			s.wantBilled(1)
			time.Sleep(11 * time.Minute)
			s.wantOld(first, person)
			time.Sleep(time.Second)
			s.wantBilled(2)
			if st := s.status(id); st.Status != verdict.Valid || st.Source != verdict.FromReview || st.Stale {
				t.Errorf("the review is %s from %s, stale %v; want valid, settled", st.Status, st.Source, st.Stale)
			}
			s.wantOpen(0)
		})
	})
	t.Run("in the loop", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *setup) {
			s.aged(person)
			id := s.open(person, verdict.CauseUpstream, time.Minute)
			s.loop()
			time.Sleep(2 * time.Minute)
			s.wantBilled(2)
			if st := s.status(id); st.Status != verdict.Valid || st.Source != verdict.FromReview || time.Since(st.CheckedAt) > 2*time.Minute {
				t.Errorf("the review is %s from %s, checked %v ago; want what the loop asked for", st.Status, st.Source, time.Since(st.CheckedAt))
			}
		})
	})
}

// TestEraseWhileARefreshIsInTheAir: it brings nothing back, and nobody is given the verdict that was erased.
func TestEraseWhileARefreshIsInTheAir(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		first := s.aged(person)
		s.mode(simulator.Mode{P50: 3 * time.Second, P99: 3 * time.Second})
		s.wantOld(first, person)
		time.Sleep(time.Second)
		s.erase(person, validate.Removed{Verdicts: 1})
		if a, _ := s.post(person); a.ID == first.ID || a.Status != verdict.NeedsReview {
			t.Errorf("after the erasure: %s %s, want a new check", a.ID, a.Status)
		}
		s.erase(person, validate.Removed{Reviews: 1})
		time.Sleep(10 * time.Second)
		s.wantNothing(person)
	})
}

// TestVerdictOfAnotherProfile: it is served as one past its freshness, and asked about again once it is an hour old.
func TestVerdictOfAnotherProfile(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.tuning.Valid = cache.TTL{Soft: 3 * time.Hour, Hard: hard}
		first, _ := s.post(person)
		other, _ := s.post("other@example.com")
		forbidden := s.cache.Put(s.print("third@example.com"), verdict.Verdict{ID: newID(), Status: verdict.Unresolved, Reason: verdict.ClaimedByPerson,
			Profile: "verimail_v3@0", CheckedAt: time.Now()})
		s.profile = "verimail_v3@1"
		s.restart()
		if a, _ := s.post("other@example.com"); a.Stale || a.ID != other.ID {
			t.Errorf("the same profile: %s, stale %v; want %s, fresh", a.ID, a.Stale, other.ID)
		}
		s.profile = "verimail_v3@2"
		s.restart()
		s.wantOld(first, person) // from the store
		s.wantOld(first, person) // from the process
		time.Sleep(59 * time.Minute)
		s.wantOld(first, person)
		s.wantBilled(2)
		time.Sleep(time.Minute)
		s.wantOld(first, person)
		time.Sleep(time.Second)
		s.wantBilled(3)
		found, err := s.store.Lookup(t.Context(), s.print(person))
		if err != nil || found.Verdict == nil || found.Verdict.ID == first.ID || found.Verdict.Profile != "verimail_v3@1" {
			t.Errorf("the store has %+v, %v; want a new verdict with what the client is", found.Verdict, err)
		}
		time.Sleep(time.Hour)
		if a, _ := s.post("third@example.com"); a.Stale || a.ID != forbidden.ID {
			t.Errorf("an address that is not to be asked about: %s, stale %v; want %s, fresh", a.ID, a.Stale, forbidden.ID)
		}
		s.erase(person, validate.Removed{Verdicts: 2})
		time.Sleep(2 * time.Second)
		s.wantNothing(person)
	})
}

// counts reads a counter by the values of its one label.
func (s *setup) counts(name string) map[string]float64 {
	s.t.Helper()
	families, err := s.reg.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	counts := make(map[string]float64)
	for _, f := range families {
		if f.GetName() != "validator_gw_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			label := ""
			for _, l := range m.GetLabel() {
				label = strings.TrimPrefix(label+" "+l.GetValue(), " ")
			}
			if n := m.GetCounter().GetValue(); n != 0 {
				counts[label] = n
			}
		}
	}
	return counts
}

func (s *setup) wantCounts(name string, want map[string]float64) {
	s.t.Helper()
	if got := s.counts(name); !maps.Equal(got, want) {
		s.t.Errorf("%s = %v, want %v", name, got, want)
	}
}

// TestWhatIsSavedIsCounted: by the cache, by a flight, by a local refusal; and what came of old verdicts and refreshes.
func TestWhatIsSavedIsCounted(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.tuning.Valid = cache.TTL{Soft: soft, Hard: hard}
		s.mode(simulator.Mode{P50: 100 * time.Millisecond})
		s.post("no address")
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { s.post(person) })
		}
		wg.Wait()
		for range 5 {
			s.post(person)
		}
		s.wantCounts("credits_saved_total", map[string]float64{"local": 1, "flight": 9, "cache": 5})
		s.wantCounts("cache_stale_answers_total", map[string]float64{})
		time.Sleep(soft)
		s.restart()
		s.post(person)
		time.Sleep(time.Second)
		s.post(person)
		s.wantCounts("cache_refreshes_total", map[string]float64{"renewed": 1})
		s.wantCounts("cache_stale_answers_total", map[string]float64{"": 1})
		s.wantCounts("credits_saved_total", map[string]float64{"cache": 2})
		// Two posts looked in the process, the flight's and the refresh's looks there are not counted; both looked in the store.
		s.wantCounts("cache_requests_total", map[string]float64{"miss memory": 1, "hit memory": 1, "hit store": 2})
		time.Sleep(soft)
		limits := s.limits
		s.limits.Rate = 0
		s.post(person)
		synctest.Wait()
		s.limits = limits
		time.Sleep(time.Minute)
		s.mode(simulator.Mode{Fault: simulator.Error500})
		s.post(person)
		time.Sleep(time.Minute)
		s.wantCounts("cache_refreshes_total", map[string]float64{"renewed": 1, "refused": 1, "failed": 1})
	})
}
