package revalidate

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
	"validator-gw/internal/verdict"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// desk is a checker that answers as told, after a while.
type desk struct {
	mu      sync.Mutex
	takes   time.Duration
	answer  func(c fallback.Claim) verdict.Outcome
	asked   []fallback.Claim
	at      []time.Time
	most    int // at a time
	now     int
	settled []string
}

func (d *desk) Recheck(ctx context.Context, c fallback.Claim) verdict.Outcome {
	d.mu.Lock()
	d.asked, d.at = append(d.asked, c), append(d.at, time.Now())
	d.now++
	d.most = max(d.most, d.now)
	takes, answer := d.takes, d.answer
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.now--
		d.mu.Unlock()
	}()
	select {
	case <-time.After(takes):
		return answer(c)
	case <-ctx.Done():
		return verdict.Outcome{Verdict: verdict.Verdict{Status: verdict.NeedsReview}, Cause: verdict.CauseUpstream}
	}
}

func (d *desk) Settled(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settled = append(d.settled, id)
}

func (d *desk) set(answer func(c fallback.Claim) verdict.Outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = answer
}

// times returns when it was asked.
func (d *desk) times() []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.at)
}

func (d *desk) calls() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.asked)
}

// shelf is a cache that stamps expiries and keeps markers.
type shelf struct {
	mu    sync.Mutex
	marks map[normalize.Fingerprint]verdict.Marker
}

func (s *shelf) Put(_ normalize.Fingerprint, v verdict.Verdict) verdict.Verdict {
	v.SoftUntil, v.HardUntil = time.Now().Add(24*time.Hour), time.Now().Add(24*time.Hour)
	return v
}

func (s *shelf) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.marks)
}

func (s *shelf) Mark(fp normalize.Fingerprint, m verdict.Marker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks[fp] = m
}

func valid(c fallback.Claim) verdict.Outcome {
	now := time.Now()
	return verdict.Outcome{Verdict: verdict.Verdict{ID: c.ReviewID, Status: verdict.Valid, Reason: verdict.MailboxAccepted, CheckedAt: now,
		SoftUntil: now.Add(time.Hour), HardUntil: now.Add(2 * time.Hour)}, Trail: []verdict.Attempt{{At: now, Outcome: verdict.AttemptAnswered}}, Sent: 1}
}

func without(cause verdict.Cause, reason verdict.Reason) func(fallback.Claim) verdict.Outcome {
	return func(fallback.Claim) verdict.Outcome {
		return verdict.Outcome{Verdict: verdict.Verdict{Status: verdict.NeedsReview, Reason: reason}, Cause: cause, Sent: 1,
			Trail: []verdict.Attempt{{At: time.Now(), Outcome: verdict.AttemptTransient}}}
	}
}

// setup is a loop over a real SQLite in a bubble.
type setup struct {
	t      *testing.T
	store  *fallback.SQLite
	desk   *desk
	shelf  *shelf
	up     Upstream
	mu     sync.Mutex
	tuning Tuning
	spare  func(context.Context) int
}

func (s *setup) upstream() Upstream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up
}

func (s *setup) set(u Upstream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up = u
}

func bubble(t *testing.T, story func(t *testing.T, s *setup)) {
	t.Helper()
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.db")
	synctest.Test(t, func(t *testing.T) {
		sealer, err := secret.NewSealer(make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		store, err := fallback.OpenSQLite(t.Context(), fallback.SQLiteConfig{Path: path, Sealer: sealer, Rand: func() float64 { return 0.5 }})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		story(t, &setup{t: t, store: store, desk: &desk{takes: 100 * time.Millisecond, answer: valid},
			shelf:  &shelf{marks: map[normalize.Fingerprint]verdict.Marker{}},
			tuning: Tuning{Workers: 4, Batch: 50, Lease: 30 * time.Second, Probes: 2, Rate: 10}})
	})
}

// start runs the loop; stop ends it and waits.
func (s *setup) start() (stop func()) {
	l, err := New(s.store, s.desk, s.shelf, Config{Upstream: s.upstream, Spare: s.spare, Tuning: func() Tuning { return s.tuning },
		Rand: func() float64 { return 0.5 }})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := l.Run(ctx); err != nil {
			s.t.Errorf("Run = %v, want nil", err)
		}
	}()
	return func() { cancel(); <-done }
}

var prints = normalize.NewFingerprinter([]byte("key of the test"))

func (s *setup) record(n int, in time.Duration, cause verdict.Cause) string {
	s.t.Helper()
	addr, err := normalize.Parse(fmt.Sprintf("person%d@example.com", n))
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := s.store.Record(s.t.Context(), fallback.Entry{ID: uuid.Must(uuid.NewV7()).String(), Fingerprint: prints.Of(addr),
		DomainKey: prints.DomainKey(addr), Address: addr, Reason: verdict.UpstreamTimeout, Cause: cause, CheckIn: in,
		Watcher: fallback.Watcher{Client: "c", Flow: "signup"}})
	if err != nil {
		s.t.Fatal(err)
	}
	return r.ID
}

func (s *setup) review(id string) fallback.Review {
	s.t.Helper()
	r, err := s.store.Review(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func TestSettlesWhatIsDueWithBoundedWorkers(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		ids := make([]string, 40)
		for i := range ids {
			ids[i] = s.record(i, 10*time.Second, verdict.CauseMailbox)
		}
		stop := s.start()
		time.Sleep(9 * time.Second)
		if n := s.desk.calls(); n != 0 {
			t.Errorf("%d checks before anything was due, want none", n)
		}
		time.Sleep(20 * time.Second)
		stop()
		for i, id := range ids {
			if r := s.review(id); r.State != fallback.Settled || r.Verdict.Status != verdict.Valid || !r.Address.IsZero() {
				t.Errorf("row %d is %s, want settled, valid, and its address erased", i, r.State)
			}
		}
		if s.desk.most != 4 || s.desk.calls() != 40 || len(s.desk.settled) != 40 {
			t.Errorf("%d at a time, %d checks, %d told, want 4, 40, 40", s.desk.most, s.desk.calls(), len(s.desk.settled))
		}
	})
}

// Workers that come free take what is waiting, and not only when the loop looks again by itself.
func TestFreeWorkersAreUsed(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.desk.takes = 40 * time.Millisecond
		for i := range 200 {
			s.record(i, 0, verdict.CauseMailbox)
		}
		began := time.Now()
		stop := s.start()
		defer stop()
		for s.desk.calls() < 200 && time.Since(began) < time.Minute {
			time.Sleep(10 * time.Millisecond)
		}
		// Four at a time, 40 ms each: two seconds, and as much again for what is claimed late. At a poll of 250 ms it would
		// be twelve.
		if took := time.Since(began); took > 4*time.Second || s.desk.most > 4 {
			t.Errorf("200 checks of 40 ms took %v, %d at a time; want 4 s at most, and 4", took, s.desk.most)
		}
	})
}

// A check that ends at once, since nothing may be sent, is no reason to burn through the queue.
func TestNoProgressNoHurry(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.desk.takes = time.Millisecond
		s.desk.answer = func(fallback.Claim) verdict.Outcome {
			return verdict.Outcome{Verdict: verdict.Verdict{Status: verdict.NeedsReview, Reason: verdict.LimiterSaturated}, Cause: verdict.CauseUpstream,
				Trail: []verdict.Attempt{{At: time.Now(), Outcome: verdict.AttemptNotSent}}}
		}
		for i := range 400 {
			s.record(i, 0, verdict.CauseMailbox)
		}
		stop := s.start()
		defer stop()
		time.Sleep(5 * time.Second)
		// Four each 200 to 300 ms.
		if n := s.desk.calls(); n < 40 || n > 120 {
			t.Errorf("%d checks in 5 s, want those of some 20 polls, four each", n)
		}
	})
}

func TestClaimsNothingWhileTheUpstreamIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		id := s.record(1, 0, verdict.CauseMailbox)
		s.set(Upstream{Closed: true})
		stop := s.start()
		defer stop()
		time.Sleep(10 * time.Minute)
		if n := s.desk.calls(); n != 0 {
			t.Errorf("%d checks while closed, want none", n)
		}
		s.set(Upstream{})
		time.Sleep(3 * time.Second)
		if r := s.review(id); r.State != fallback.Settled {
			t.Errorf("after opening: %s, want settled", r.State)
		}
	})
}

// A gate that is opened before its time, as by a shorter retry_after.max, takes along the rows that were put off until then. One that
// opens when it said it would does not touch what waits for something else.
func TestGateThatOpensEarly(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		stop := s.start()
		defer stop()
		time.Sleep(5 * time.Second)
		id := s.record(1, time.Hour, verdict.CauseUpstream)
		s.set(Upstream{Closed: true, Until: time.Now().Add(10 * time.Second)})
		time.Sleep(10 * time.Second)
		s.set(Upstream{})
		time.Sleep(time.Minute)
		if n := s.desk.calls(); n != 0 {
			t.Errorf("%d checks after a gate opened in its time, want none before the row is due", n)
		}
		s.set(Upstream{Closed: true, Until: time.Now().Add(time.Hour)})
		time.Sleep(time.Minute)
		s.set(Upstream{})
		time.Sleep(time.Minute)
		if r := s.review(id); r.State != fallback.Settled {
			t.Errorf("a minute after the gate was opened early: %s, want settled", r.State)
		}
	})
}

func TestProbesWithWhatWaitsAndThenRecovers(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		ids := make([]string, 30)
		for i := range ids {
			ids[i] = s.record(i, 10*time.Minute, verdict.CauseUpstream)
		}
		s.set(Upstream{Closed: true})
		s.desk.takes = 3 * time.Second
		stop := s.start()
		defer stop()
		time.Sleep(10 * time.Second)
		s.set(Upstream{Probing: true})
		time.Sleep(2500 * time.Millisecond)
		if n := s.desk.calls(); n != 2 {
			t.Errorf("%d checks while half-open, want the 2 probes", n)
		}
		s.desk.mu.Lock()
		s.desk.takes = 100 * time.Millisecond
		s.desk.mu.Unlock()
		s.set(Upstream{})
		time.Sleep(20 * time.Second)
		for i, id := range ids {
			if r := s.review(id); r.State != fallback.Settled {
				t.Errorf("row %d is %s 20 s after the recovery, want settled", i, r.State)
			}
		}
	})
}

func TestGivesBackAtAStop(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		id := s.record(1, 0, verdict.CauseMailbox)
		s.desk.takes = time.Hour
		stop := s.start()
		time.Sleep(5 * time.Second)
		if s.desk.calls() != 1 {
			t.Fatal("the row was not claimed")
		}
		stop()
		res, err := s.store.Claim(t.Context(), fallback.ClaimRequest{Max: 1, Lease: time.Minute})
		if err != nil || len(res.Claims) != 1 || res.Claims[0].ReviewID != id || res.Claims[0].Claims != 1 {
			t.Errorf("Claim after a stop = %+v, %v, want the row at once, and no claim counted against it", res, err)
		}
	})
}

func TestHeartbeatKeepsALongCheck(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		id := s.record(1, 0, verdict.CauseMailbox)
		s.desk.takes = 2 * time.Minute // four leases
		stop := s.start()
		defer stop()
		time.Sleep(3 * time.Minute)
		if n := s.desk.calls(); n != 1 {
			t.Errorf("checked %d times, want once: the lease was not renewed", n)
		}
		if r := s.review(id); r.State != fallback.Settled {
			t.Errorf("%s, want settled", r.State)
		}
	})
}

func TestLostLeaseWritesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		id := s.record(1, 0, verdict.CauseMailbox)
		s.desk.set(func(c fallback.Claim) verdict.Outcome {
			// Meanwhile a late answer settles the row.
			v := valid(c).Verdict
			v.Status, v.Reason = verdict.Risky, verdict.CatchAll
			if _, ok, err := s.store.SettleOpen(context.Background(), c.Fingerprint, v, nil); err != nil || !ok {
				t.Errorf("SettleOpen = %v, %v", ok, err)
			}
			return valid(c)
		})
		stop := s.start()
		time.Sleep(5 * time.Second)
		stop()
		if r := s.review(id); r.State != fallback.Settled || r.Verdict.Status != verdict.Risky {
			t.Errorf("%s with %v, want the first word to stand", r.State, r.Verdict)
		}
	})
}

// TestCrashLoopIsPoison: a row whose claims end workers is dead after five, and blocks nothing.
func TestCrashLoopIsPoison(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		id := s.record(1, 0, verdict.CauseMailbox)
		for range fallback.MaxClaims {
			if r, err := s.store.Claim(t.Context(), fallback.ClaimRequest{Max: 1, Lease: time.Second}); err != nil || len(r.Claims) != 1 {
				t.Fatalf("Claim = %+v, %v", r, err)
			}
			time.Sleep(2 * time.Second) // the worker died with it
		}
		stop := s.start()
		time.Sleep(5 * time.Second)
		stop()
		if r := s.review(id); r.State != fallback.Dead || r.Reason != verdict.ReviewPoisoned {
			t.Errorf("%s %s, want dead, review_poisoned", r.State, r.Reason)
		}
		if n := s.desk.calls(); n != 0 {
			t.Errorf("asked %d times, want never again", n)
		}
	})
}

// faulty is a queue whose claims fail for a while.
type faulty struct {
	*fallback.SQLite
	mu   sync.Mutex
	down bool
}

func (f *faulty) Claim(ctx context.Context, r fallback.ClaimRequest) (fallback.ClaimResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return fallback.ClaimResult{}, errors.New("connection refused")
	}
	return f.SQLite.Claim(ctx, r)
}

func TestGoesOnWhenTheStoreIsBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		id := s.record(1, 0, verdict.CauseMailbox)
		f := &faulty{SQLite: s.store, down: true}
		l, err := New(f, s.desk, s.shelf, Config{Upstream: s.upstream, Tuning: func() Tuning { return s.tuning }, Rand: func() float64 { return 0.5 }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		time.Sleep(time.Minute)
		f.mu.Lock()
		f.down = false
		f.mu.Unlock()
		time.Sleep(5 * time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		if r := s.review(id); r.State != fallback.Settled {
			t.Errorf("%s, want settled", r.State)
		}
	})
}

// TestSleepsUntilSomethingIsDue: with a store of its own the loop asks it a few times an hour, and is on time all the same.
func TestSleepsUntilSomethingIsDue(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		counted := &counter{SQLite: s.store}
		l, err := New(counted, s.desk, s.shelf, Config{Upstream: s.upstream, Tuning: func() Tuning { return s.tuning }, Rand: func() float64 { return 0.5 }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		time.Sleep(time.Hour)
		if n := counted.claims.Load(); n > 70 {
			t.Errorf("asked %d times in an idle hour, want about once a minute", n)
		}
		time.Sleep(10 * time.Second) // somewhere inside a sleep
		s.record(1, 5*time.Second, verdict.CauseMailbox)
		due := time.Now().Add(5 * time.Second)
		l.Due(due)
		time.Sleep(7 * time.Second)
		cancel()
		<-done
		if at := s.desk.times(); len(at) != 1 || at[0].Sub(due) > time.Second {
			t.Errorf("checked at %v, want within a second of %v", at, due)
		}
	})
}

type counter struct {
	*fallback.SQLite
	claims atomic.Int64
}

func (c *counter) Claim(ctx context.Context, r fallback.ClaimRequest) (fallback.ClaimResult, error) {
	c.claims.Add(1)
	return c.SQLite.Claim(ctx, r)
}

// Whether there are reviews for the probes is known without a question to the store, and a loop that can't look says no.
func TestHasDue(t *testing.T) {
	step := func(t *testing.T, l *Loop) {
		l.Step(t.Context())
		l.work.Wait()
	}
	loop := func(t *testing.T, s *setup, q queue) *Loop {
		l, err := New(q, s.desk, s.shelf, Config{Upstream: s.upstream, Tuning: func() Tuning { return s.tuning }, Rand: func() float64 { return 0.5 }})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	is := func(t *testing.T, l *Loop, want bool, when string) {
		t.Helper()
		if l.HasDue() != want {
			t.Errorf("HasDue() = %v %s, want %v", !want, when, want)
		}
	}
	t.Run("from look to look", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *setup) {
			l := loop(t, s, s.store)
			is(t, l, false, "at the start")
			s.set(Upstream{Probing: true})
			step(t, l)
			is(t, l, false, "with an empty store")
			s.record(1, time.Hour, verdict.CauseUpstream)
			l.Due(time.Now().Add(time.Hour))
			is(t, l, true, "once one is recorded that waits for the upstream")
			step(t, l) // takes it ahead of its time, and settles it
			is(t, l, true, "after a look that found one")
			step(t, l)
			is(t, l, false, "after a look that found none")
			s.record(2, 0, verdict.CauseUpstream) // by another replica
			s.desk.set(without(verdict.CauseUpstream, verdict.UpstreamTimeout))
			step(t, l)
			is(t, l, true, "once one was put off")
			step(t, l)
			is(t, l, true, "after a look that took it again")
			s.desk.set(valid)
			step(t, l)
			step(t, l)
			is(t, l, false, "once it is settled")
			s.record(3, time.Hour, verdict.CauseMailbox)
			step(t, l)
			is(t, l, false, "with one that waits for its mailbox")
		})
	})
	t.Run("store away", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *setup) {
			q := &faulty{SQLite: s.store, down: true}
			l := loop(t, s, q)
			s.set(Upstream{Probing: true})
			s.record(1, 0, verdict.CauseUpstream)
			l.Due(time.Now())
			step(t, l)
			is(t, l, false, "while it can't look")
			q.down = false
			step(t, l)
			is(t, l, true, "when it can again")
		})
	})
	t.Run("stopped", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *setup) {
			l := loop(t, s, s.store)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			l.Due(time.Now())
			if err := l.Run(ctx); err != nil {
				t.Error(err)
			}
			is(t, l, false, "once it has ended")
		})
	})
}

// No more rows are claimed than there are calls to spare, and none while there are none.
func TestTokensBeforeClaims(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		var left atomic.Int64
		s.spare = func(context.Context) int { return int(left.Load()) }
		s.desk.set(func(c fallback.Claim) verdict.Outcome { left.Add(-1); return valid(c) })
		for n := range 9 {
			s.record(n, 0, verdict.CauseUpstream)
		}
		defer s.start()()
		for _, calls := range []int{0, 3, 0, 1} {
			before := s.desk.calls()
			left.Store(int64(calls))
			time.Sleep(time.Minute)
			if n := s.desk.calls() - before; n != calls {
				t.Errorf("%d rows were claimed in a minute with %d calls to spare", n, calls)
			}
		}
	})
}
