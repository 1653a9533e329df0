package validate_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"validator-gw/internal/admission"
	"validator-gw/internal/cache"
	"validator-gw/internal/fallback"
	"validator-gw/internal/idempotency"
	"validator-gw/internal/normalize"
	"validator-gw/internal/ratelimit"
	"validator-gw/internal/revalidate"
	"validator-gw/internal/secret"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail"
	"validator-gw/internal/verimail/simulator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// setup is a service with real parts in a bubble: SQLite, the client, the simulated upstream. Time is exact.
type setup struct {
	redis   *cache.Redis // nil: none; begin takes it
	t       *testing.T
	sim     *simulator.Simulator
	store   *fallback.SQLite
	records *away // the same, as the service has it
	shelf   *shelf
	cache   *cache.Cache
	client  verifier
	service *validate.Service
	prints  *normalize.Fingerprinter
	due     func(time.Time) // the loop's, once there is one
	address validate.AddressPlan
	limits  ratelimit.Limits
	tuning  cache.Tuning
	profile string
	reg     *prometheus.Registry // of what is in the process now
	stop    []func()
	begin   func() // makes cache and service, on the store that is there
	end     func() // ends them
}

// restart makes everything in the process anew.
func (s *setup) restart() {
	s.end()
	s.begin()
}

type verifier interface {
	Check(ctx context.Context, addr normalize.Address, plan verdict.Plan) verdict.Outcome
}

// putter hands the cache's batches to the store.
type putter struct{ store *fallback.SQLite }

func (p putter) PutVerdicts(ctx context.Context, batch []cache.Stored) error {
	out := make([]fallback.Stored, len(batch))
	for i, s := range batch {
		out[i] = fallback.Stored(s)
	}
	return p.store.PutVerdicts(ctx, out)
}

func half() float64 { return 0.5 }

func newID() string { return uuid.Must(uuid.NewV7()).String() }

// bubble runs story with a fresh setup; wrap may put something in front of the client.
func bubble(t *testing.T, story func(t *testing.T, s *setup), wrap ...func(verifier) verifier) {
	t.Helper()
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := &setup{t: t, prints: normalize.NewFingerprinter([]byte("key of the test")), address: plan(t, normalize.Own{})}
		var err error
		if s.sim, err = simulator.New(simulator.Config{}); err != nil {
			t.Fatal(err)
		}
		sealer, err := secret.NewSealer(make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		s.store, err = fallback.OpenSQLite(t.Context(), fallback.SQLiteConfig{Path: filepath.Join(dir, "test.db"), Sealer: sealer, Rand: half})
		if err != nil {
			t.Fatal(err)
		}
		s.records = &away{SQLite: s.store}
		s.tuning = cache.DefaultTuning()
		s.limits = ratelimit.Limits{Rate: 200, Burst: 200}
		client, err := verimail.New(verimail.Config{Profile: verimail.ProfileVerimailV3, URL: "http://upstream.example.com", Key: "k",
			Transport: s.sim.RoundTripper(), Limiter: ratelimit.NewLocal(func() ratelimit.Limits { return s.limits }),
			Seal: func(text string) []byte { return sealer.Seal(text, "suggestion") }, Rand: half})
		if err != nil {
			t.Fatal(err)
		}
		s.client = client
		for _, w := range wrap {
			s.client = w(s.client)
		}
		flows := map[string]validate.Flow{
			"signup":    {Budget: 800 * time.Millisecond, MaxRetries: 2, Policy: validate.Policy{OnUnverified: validate.AcceptPending}},
			"high_risk": {Budget: 950 * time.Millisecond, MaxRetries: 2, Policy: validate.Policy{OnUnverified: validate.Hold}},
		}
		s.shelf = &shelf{SQLite: s.store}
		keys, err := idempotency.New(s.shelf, idempotency.Config{Key: make([]byte, 32), Rand: half})
		if err != nil {
			t.Fatal(err)
		}
		s.begin = func() {
			s.reg = prometheus.NewRegistry()
			if s.cache, err = cache.New(putter{s.store}, cache.Config{Rand: half, Registerer: s.reg, Tuning: func() cache.Tuning { return s.tuning }}); err != nil {
				t.Fatal(err)
			}
			base, endFlights := context.WithCancel(t.Context())
			s.service, err = validate.New(base, s.prints, s.cache, s.records, s.client,
				admission.NewGate(func() admission.Limits { return admission.Limits{Concurrency: 512} }), validate.Config{
					Flow: func(name string) (validate.Flow, bool) { f, ok := flows[name]; return f, ok },
					Background: func() validate.BackgroundPlan {
						return validate.BackgroundPlan{Budget: 15 * time.Second, MaxRetries: 3}
					},
					Address:     func() validate.AddressPlan { return s.address },
					LateTimeout: func() time.Duration { return 10 * time.Second },
					Open:        func(b []byte) (string, error) { return sealer.Open(b, "suggestion") },
					Seal:        func(text string) []byte { return sealer.Seal(text, "suggestion") },
					Keys:        keys,
					Registerer:  s.reg,
					Profile:     s.profile,
					NewID:       newID,
					Rand:        half,
					Recorded: func(due time.Time) {
						if s.due != nil {
							s.due(due)
						}
					},
				})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ran := make(chan struct{})
			go func() {
				defer close(ran)
				_ = s.cache.Run(ctx)
			}()
			s.end = func() {
				endFlights()
				_ = s.service.Close(t.Context())
				stop()
				<-ran
				s.cache.Close()
			}
		}
		s.begin()
		time.Sleep(time.Minute) // the bucket fills
		story(t, s)
		for _, stop := range s.stop {
			stop()
		}
		s.end()
		keys.Close()
		s.store.Close()
		s.sim.Close()
	})
}

// run runs a part until the story is over.
func (s *setup) run(part func(context.Context) error) {
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = part(ctx)
	}()
	s.stop = append(s.stop, func() { cancel(); <-done })
}

// loop starts the background loop.
func (s *setup) loop() {
	l, err := revalidate.New(s.store, s.service, s.cache, revalidate.Config{
		Upstream: func() revalidate.Upstream {
			client, ok := s.client.(*verimail.Client)
			if !ok { // a stand-in, which takes all that comes
				return revalidate.Upstream{}
			}
			st := client.Standing()
			return revalidate.Upstream{Closed: st.Closed, Until: st.Until, Probing: st.Probing}
		},
		Tuning: func() revalidate.Tuning {
			return revalidate.Tuning{Workers: 8, Batch: 50, Lease: 30 * time.Second, Probes: 3, Rate: 20}
		},
		Rand: half,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.due = l.Due
	s.run(l.Run)
}

func (s *setup) mode(m simulator.Mode) {
	s.t.Helper()
	if err := s.sim.SetMode(m); err != nil {
		s.t.Fatal(err)
	}
}

func (s *setup) post(raw string) (validate.Answer, time.Duration) {
	s.t.Helper()
	began := time.Now()
	a, err := s.service.Validate(s.t.Context(), validate.Request{Raw: raw, Client: "c"})
	if err != nil {
		s.t.Errorf("Validate = %v", err)
	}
	return a, time.Since(began)
}

func (s *setup) status(id string) validate.Answer {
	s.t.Helper()
	a, err := s.service.Status(s.t.Context(), validate.Inquiry{ID: id, Client: "c"})
	if err != nil {
		s.t.Errorf("Status = %v", err)
	}
	return a
}

func (s *setup) wantBilled(n int64) {
	s.t.Helper()
	if got := s.sim.Stats().Billed; got != n {
		s.t.Errorf("billed %d calls, want %d", got, n)
	}
}

func TestHundredAtOnceWhileHanging(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.mode(simulator.Mode{Fault: simulator.Hang})
		var wg sync.WaitGroup
		ids := make([]string, 100)
		for i := range ids {
			wg.Go(func() {
				a, took := s.post(fmt.Sprintf("person%d@example.com", i))
				if a.Status != verdict.NeedsReview || a.Decision != validate.AcceptPending || took > 800*time.Millisecond {
					t.Errorf("%d: %s %s after %v, want needs_review within 800ms", i, a.Status, a.Reason, took)
				}
				ids[i] = a.ID
			})
		}
		wg.Wait()
		for i, id := range ids {
			if a := s.status(id); a.Status != verdict.NeedsReview || a.ID != id {
				t.Errorf("row %d is not found: %s", i, a.Status)
			}
		}
		s.loop()
		time.Sleep(20 * time.Second) // the hanging calls end, the breaker opens
		s.mode(simulator.Mode{Fault: simulator.Healthy})
		time.Sleep(100 * time.Second)
		for i, id := range ids {
			if a := s.status(id); a.Status != verdict.Valid || a.Source != verdict.FromReview {
				t.Errorf("row %d is %s from %s 100 s after the recovery, want valid from review", i, a.Status, a.Source)
			}
		}
	})
}

func TestRetryAfterOfAnHour(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.loop()
		s.mode(simulator.Mode{Fault: simulator.Throttle, RetryAfter: time.Hour})
		began := time.Now()
		a, took := s.post("ana@example.com")
		if a.Status != verdict.NeedsReview || a.Reason != verdict.UpstreamThrottled || took > 800*time.Millisecond {
			t.Fatalf("answer %s %s after %v, want needs_review upstream_throttled inside the budget", a.Status, a.Reason, took)
		}
		other, _ := s.post("bob@example.com")
		for _, x := range []validate.Answer{a, other} {
			if d := x.NextCheckAt.Sub(began); d < time.Hour || d > time.Hour+time.Minute || x.Reason != verdict.UpstreamThrottled {
				t.Errorf("%s: next check in %v, want upstream_throttled and an hour and a little", x.Reason, d)
			}
		}
		s.mode(simulator.Mode{Fault: simulator.Healthy}) // it would answer, but it has asked us to wait
		for time.Since(began) < 59*time.Minute {
			s.post("carl@example.com")
			time.Sleep(time.Minute)
		}
		if got := s.sim.Stats().Calls; got != 1 {
			t.Errorf("%d calls within the hour, want the first alone", got)
		}
		time.Sleep(5 * time.Minute)
		for _, id := range []string{a.ID, other.ID} {
			if st := s.status(id); st.Status != verdict.Valid {
				t.Errorf("after the hour: %s %s, want valid", st.Status, st.Reason)
			}
		}
		for _, c := range s.sim.Calls()[1:] {
			if d := c.At.Sub(began); d < time.Hour {
				t.Errorf("a call after %v", d)
			}
		}
	})
}

func TestLateAnswerFillsCacheAndSettlesTheRow(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		a, took := s.post("delay-3000@example.com")
		if a.Status != verdict.NeedsReview || a.Reason != verdict.UpstreamTimeout || took != 650*time.Millisecond {
			t.Fatalf("answer %s %s after %v, want needs_review upstream_timeout after 650ms", a.Status, a.Reason, took)
		}
		time.Sleep(time.Second)
		if again, _ := s.post("delay-3000@example.com"); again.ID != a.ID || again.Status != verdict.NeedsReview {
			t.Errorf("a second post while it is late: %s id %s, want needs_review id %s", again.Status, again.ID, a.ID)
		}
		time.Sleep(1200 * time.Millisecond) // the marker's two seconds in the process are over, the call is not
		if again, took := s.post("delay-3000@example.com"); again.Status != verdict.Valid || again.Source != verdict.FromFlight || took != 150*time.Millisecond {
			t.Errorf("a third: %s from %s after %v, want the late answer, shared, in 150ms", again.Status, again.Source, took)
		}
		if st := s.status(a.ID); st.Status != verdict.Valid || st.Source != verdict.FromReview || !st.Erased || st.Normalized != "" || st.Attempts != 1 || len(st.Trail) != 2 {
			t.Errorf("status %s from %s, erased %v, %d calls, trail %v, want valid from review, erased, one call that was late and then answered",
				st.Status, st.Source, st.Erased, st.Attempts, st.Trail)
		}
		if again, _ := s.post("delay-3000@example.com"); again.ID != a.ID || again.Source != verdict.FromCache {
			t.Errorf("a later post: id %s from %s, want %s from cache", again.ID, again.Source, a.ID)
		}
		s.wantBilled(1)
	})
}

func TestCallerThatHangsUpLeavesARow(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.mode(simulator.Mode{Fault: simulator.Error500})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		a, err := s.service.Validate(ctx, validate.Request{Raw: "ana@example.com", Client: "c"})
		if err != nil || a.ID == "" {
			t.Fatalf("Validate = %v, %v, want a row", a, err)
		}
		if st := s.status(a.ID); st.Status != verdict.NeedsReview {
			t.Errorf("status %s, want needs_review", st.Status)
		}
	})
}

func TestWatchersOfOneFlightAreAllKept(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.mode(simulator.Mode{Fault: simulator.Hang})
		var wg sync.WaitGroup
		ids := make([]string, 6)
		for i := range ids {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond) // the later ones outlast the first one's window
				flow := []string{"signup", "high_risk"}[i%2]
				a, err := s.service.Validate(t.Context(), validate.Request{Raw: "ana@example.com", Client: "c", Flow: flow})
				if err != nil {
					t.Error(err)
				}
				if want := map[string]validate.Decision{"signup": validate.AcceptPending, "high_risk": validate.Hold}[flow]; a.Decision != want {
					t.Errorf("%s: %s, want %s", flow, a.Decision, want)
				}
				ids[i] = a.ID
			})
		}
		wg.Wait()
		for _, id := range ids {
			if id != ids[0] {
				t.Fatalf("ids differ: %v", ids)
			}
		}
		got, err := s.store.Watchers(t.Context(), ids[0])
		if err != nil || len(got) != 2 {
			t.Errorf("watchers %v, %v, want two", got, err)
		}
		s.wantBilled(1)
	})
}

func TestMailboxMarkerCostsNothingUntilTheNextCheck(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		a, _ := s.post("softbounce@example.com")
		next := a.NextCheckAt
		for time.Now().Before(next.Add(-time.Minute)) {
			if b, took := s.post("softbounce@example.com"); b.ID != a.ID || took > 10*time.Millisecond || b.Reason != verdict.MailboxTempRejected {
				t.Fatalf("repeat: id %s %s after %v, want %s at once", b.ID, b.Reason, took, a.ID)
			}
			time.Sleep(37 * time.Second)
		}
		s.wantBilled(1)
	})
}

func TestOurSidesMarkerEndsAndTheNextPostSettles(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.mode(simulator.Mode{Fault: simulator.Error503})
		a, _ := s.post("ana@example.com")
		calls := s.sim.Stats().Calls
		s.mode(simulator.Mode{Fault: simulator.Healthy})
		time.Sleep(20 * time.Second)
		if b, _ := s.post("ana@example.com"); b.ID != a.ID || b.Status != verdict.NeedsReview || s.sim.Stats().Calls != calls {
			t.Errorf("within 30 s: %s id %s, %d more calls, want the same review and none", b.Status, b.ID, s.sim.Stats().Calls-calls)
		}
		time.Sleep(41 * time.Second)
		if b, _ := s.post("ana@example.com"); b.ID != a.ID || b.Status != verdict.Valid || b.Source != verdict.FromUpstream {
			t.Errorf("after a minute: %s from %s id %s, want valid from upstream under the review's id", b.Status, b.Source, b.ID)
		}
		if st := s.status(a.ID); st.Status != verdict.Valid || st.Source != verdict.FromReview {
			t.Errorf("the review: %s from %s, want settled by that post", st.Status, st.Source)
		}
	})
}

func TestStoreAway(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		cached, _ := s.post("deliverable@example.com")
		time.Sleep(time.Second)
		s.store.Close()
		if a, _ := s.post("deliverable@example.com"); a.ID != cached.ID {
			t.Errorf("cached: %s, want the verdict", a.Status)
		}
		if a, _ := s.post("hardbounce@example.com"); a.Status != verdict.Invalid {
			t.Errorf("fresh: %s, want the upstream's word", a.Status)
		}
		fresh, _ := s.post("catch-all@example.com")
		if st := s.status(fresh.ID); st.Status != verdict.Risky {
			t.Errorf("a fresh verdict's id while the store is away: %s, want risky", st.Status)
		}
		_, err := s.service.Validate(t.Context(), validate.Request{Raw: "server-error@example.com"})
		var nd *validate.NotDurable
		if !errors.As(err, &nd) || !errors.Is(err, validate.ErrNotDurable) {
			t.Errorf("what needs a row: %v, want ErrNotDurable", err)
		}
		if _, err := s.service.Status(t.Context(), validate.Inquiry{ID: uuid.NewString()}); !errors.Is(err, validate.ErrUnavailable) {
			t.Errorf("Status of an unknown id = %v, want ErrUnavailable", err)
		}
	})
}

func TestRequestsOwnBudget(t *testing.T) {
	for _, c := range []struct {
		name         string
		budget, want time.Duration
	}{
		{"its own", 400 * time.Millisecond, 250 * time.Millisecond},
		{"too small is raised", time.Millisecond, 150 * time.Millisecond},
		{"never over the flow's", 900 * time.Millisecond, 650 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *setup) {
				s.mode(simulator.Mode{Fault: simulator.Hang})
				began := time.Now()
				if _, err := s.service.Validate(t.Context(), validate.Request{Raw: "ana@example.com", Budget: c.budget}); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != c.want {
					t.Errorf("answered after %v, want %v", took, c.want)
				}
			})
		})
	}
}

func TestWaitEndsWhenTheRowIsSettled(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		a, _ := s.post("delay-5000@example.com")
		began := time.Now()
		got, err := s.service.Wait(t.Context(), validate.Inquiry{ID: a.ID, Client: "c"}, 20*time.Second)
		if took := time.Since(began); err != nil || got.Status != verdict.Valid || took != 4350*time.Millisecond {
			t.Errorf("Wait = %s, %v after %v, want valid at the moment of the answer, after 4.35s", got.Status, err, took)
		}
		b, _ := s.post("hang@example.com")
		began = time.Now()
		got, err = s.service.Wait(t.Context(), validate.Inquiry{ID: b.ID, Client: "c"}, 3*time.Second)
		if took := time.Since(began); err != nil || got.Status != verdict.NeedsReview || took != 3*time.Second {
			t.Errorf("Wait = %s, %v after %v, want needs_review after 3s", got.Status, err, took)
		}
	})
}

func TestStatusIsDecidedByTheCallersOwnFlow(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.mode(simulator.Mode{Fault: simulator.Error500})
		a, err := s.service.Validate(t.Context(), validate.Request{Raw: "ana@example.com", Client: "bank", Flow: "high_risk"})
		if err != nil {
			t.Fatal(err)
		}
		// A second client gets the review's marker, and is one who waits all the same.
		if b, err := s.service.Validate(t.Context(), validate.Request{Raw: "ana@example.com", Client: "clinic", Flow: "high_risk"}); err != nil || b.ID != a.ID {
			t.Fatalf("the second: %s, %v, want the same review", b.ID, err)
		}
		for _, c := range []struct {
			q    validate.Inquiry
			want validate.Decision
		}{
			{validate.Inquiry{ID: a.ID, Client: "clinic"}, validate.Hold},
			{validate.Inquiry{ID: a.ID, Client: "bank"}, validate.Hold},
			{validate.Inquiry{ID: a.ID, Client: "shop"}, validate.AcceptPending},
			{validate.Inquiry{ID: a.ID, Client: "bank", Flow: "signup"}, validate.AcceptPending},
		} {
			if got, err := s.service.Status(t.Context(), c.q); err != nil || got.Decision != c.want {
				t.Errorf("%+v: %s, %v, want %s", c.q, got.Decision, err, c.want)
			}
		}
	})
}

// faulty panics for one address.
type faulty struct{ verifier }

func (f faulty) Check(ctx context.Context, addr normalize.Address, plan verdict.Plan) verdict.Outcome {
	if addr.Local() == "boom" {
		panic("a bug")
	}
	return f.verifier.Check(ctx, addr, plan)
}

func TestPanicInACheckLeavesARow(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		a, _ := s.post("boom@example.com")
		if a.Status != verdict.NeedsReview || a.ID == "" {
			t.Errorf("answer %s, want needs_review", a.Status)
		}
		if b, _ := s.post("deliverable@example.com"); b.Status != verdict.Valid {
			t.Errorf("the next answer: %s, want valid", b.Status)
		}
	}, func(v verifier) verifier { return faulty{v} })
}

// away is a store whose writes fail for a while.
type away struct {
	*fallback.SQLite
	mu   sync.Mutex
	down bool
	slow time.Duration // what a look-up takes
	late time.Duration // what a row takes
}

func (a *away) slowly(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.slow = d
}

func (a *away) Lookup(ctx context.Context, fp normalize.Fingerprint) (fallback.Found, error) {
	a.mu.Lock()
	slow := a.slow
	a.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-ctx.Done():
		return fallback.Found{}, ctx.Err()
	}
	return a.SQLite.Lookup(ctx, fp)
}

func (a *away) set(down bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = down
}

func (a *away) Record(ctx context.Context, e fallback.Entry) (fallback.Review, error) {
	a.mu.Lock()
	down, late := a.down, a.late
	a.mu.Unlock()
	if down {
		return fallback.Review{}, errors.New("no connection came free in time")
	}
	if late > 0 {
		time.Sleep(late)
	}
	return a.SQLite.Record(ctx, e)
}

// TestFailedRowIsTriedAgainByTheNextPost: a flight lasts ten seconds, a fault of the store need not.
func TestFailedRowIsTriedAgainByTheNextPost(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.mode(simulator.Mode{Fault: simulator.Hang})
		s.records.set(true)
		if _, err := s.service.Validate(t.Context(), validate.Request{Raw: "ana@example.com"}); !errors.Is(err, validate.ErrNotDurable) {
			t.Errorf("while the store is away: %v, want ErrNotDurable", err)
		}
		s.records.set(false)
		a, err := s.service.Validate(t.Context(), validate.Request{Raw: "ana@example.com"})
		if err != nil || a.Status != verdict.NeedsReview {
			t.Errorf("once it is back: %s, %v, want needs_review", a.Status, err)
		}
		s.wantBilled(1)
	})
}
