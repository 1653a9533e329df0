package idempotency

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"validator-gw/internal/fallback"
	"validator-gw/internal/fallback/conformance"
	"validator-gw/internal/secret"
	"validator-gw/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var migrated = testenv.PostgresTemplate("idempotency", func(ctx context.Context, url string) error {
	return fallback.MigratePostgres(ctx, secret.Text(url))
})

func keeper(t *testing.T, s store) *Keeper {
	t.Helper()
	k, err := New(s, Config{Key: bytes.Repeat([]byte("k"), 32), Rand: func() float64 { return 0.5 }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// inBubble runs f with a store of a single process, in a bubble. reopen is a restart.
func inBubble(t *testing.T, f func(t *testing.T, s *counting, reopen func() *counting)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gateway.db")
	synctest.Test(t, func(t *testing.T) {
		open := func() *fallback.SQLite {
			s, err := fallback.OpenSQLite(t.Context(), fallback.SQLiteConfig{Path: path, Sealer: conformance.Sealer(0)})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := open()
		t.Cleanup(func() { s.Close() })
		f(t, &counting{store: s}, func() *counting {
			s.Close()
			s = open()
			return &counting{store: s}
		})
	})
}

// counting counts the statements of a store.
type counting struct {
	store
	calls atomic.Int64
}

func (c *counting) ReserveKey(ctx context.Context, r fallback.Reservation) (fallback.Held, error) {
	c.calls.Add(1)
	return c.store.ReserveKey(ctx, r)
}

func (c *counting) ReadKey(ctx context.Context, key fallback.Hash) (fallback.Held, error) {
	c.calls.Add(1)
	return c.store.ReadKey(ctx, key)
}

func (c *counting) KeepAnswer(ctx context.Context, key fallback.Hash, token int64, answer []byte, keep time.Duration) error {
	c.calls.Add(1)
	return c.store.KeepAnswer(ctx, key, token, answer, keep)
}

func request(client, key string, asked ...string) Request {
	return Request{Client: client, Key: key, Asked: append([]string{"POST /validate"}, asked...)}
}

// patience is that of a request with 800 ms in all.
func patience() Patience {
	now := time.Now()
	return Patience{TakeOver: now.Add(500 * time.Millisecond), GiveUp: now.Add(770 * time.Millisecond)}
}

func begin(t *testing.T, k *Keeper, r Request, want State) Begun {
	t.Helper()
	b, err := k.Begin(t.Context(), r, patience())
	if err != nil || b.State != want || (b.Claim != nil) != (want == Mine) || (b.Answer != nil) != (want == Replay) {
		t.Fatalf("Begin(%v) = %+v, %v, want %s", r, b, err, want)
	}
	return b
}

func TestAnswerIsReplayed(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *counting, reopen func() *counting) {
		k := keeper(t, s)
		first := request("forms", "key", "ana@example.com", "signup")
		if err := begin(t, k, first, Mine).Claim.Finish(t.Context(), []byte("answer")); err != nil {
			t.Fatal(err)
		}
		if n := s.calls.Load(); n != 2 {
			t.Errorf("%d statements for a request with a key, want 2", n)
		}
		begin(t, k, request("forms", "key", "ana@example.com", "import"), Conflict)
		// Fields do not run into one another.
		begin(t, k, request("forms", "key", "ana@example.comsignup", ""), Conflict)
		begin(t, k, request("forms", "key", "ana@example.com"), Conflict)
		// Other clients and other keys are on their own.
		begin(t, k, request("crm", "key", "bob@example.com", "signup"), Mine).Claim.Abandon(t.Context())
		begin(t, k, request("formskey", "", "ana@example.com", "signup"), Mine).Claim.Abandon(t.Context())
		begin(t, k, request("forms", "another", "ana@example.com", "signup"), Mine).Claim.Abandon(t.Context())
		k.Close()
		s.calls.Store(0)
		k = keeper(t, reopen()) // a restart
		for _, after := range []time.Duration{0, KeepFor - time.Second} {
			time.Sleep(after)
			if b := begin(t, k, first, Replay); string(b.Answer) != "answer" {
				t.Errorf("Answer = %q, want the stored one", b.Answer)
			}
		}
		time.Sleep(time.Second)
		begin(t, k, first, Mine).Claim.Abandon(t.Context())
		k.Close()
	})
}

func TestSecondWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		ends time.Duration // when the first ends
		how  func(c *Claim) error
		want State
	}{
		{"answered", 600 * time.Millisecond, func(c *Claim) error { return c.Finish(context.Background(), []byte("answer")) }, Replay},
		{"answered too late", 2 * time.Second, func(c *Claim) error { return c.Finish(context.Background(), []byte("answer")) }, InFlight},
		{"abandoned", 300 * time.Millisecond, func(c *Claim) error { c.Abandon(context.Background()); return nil }, Mine},
		{"abandoned with no time left for another", 600 * time.Millisecond,
			func(c *Claim) error { c.Abandon(context.Background()); return nil }, InFlight},
		{"crashed", 0, func(*Claim) error { return nil }, InFlight},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *counting, _ func() *counting) {
				k := keeper(t, s)
				r := request("forms", "key", "ana@example.com")
				claim := begin(t, k, r, Mine).Claim
				ended := make(chan error, 1)
				go func() {
					time.Sleep(c.ends)
					ended <- c.how(claim)
				}()
				start := time.Now()
				b, err := k.Begin(t.Context(), r, patience())
				took := time.Since(start)
				if err != nil || b.State != c.want {
					t.Errorf("Begin beside the first = %s, %v, want %s", b.State, err, c.want)
				}
				if took > 770*time.Millisecond {
					t.Errorf("waited for %v, want 770 ms at most", took)
				}
				if c.want == Replay && took > c.ends+2*pollMost {
					t.Errorf("waited for %v, want the answer soon after %v", took, c.ends)
				}
				if b.Claim != nil {
					b.Claim.Abandon(t.Context())
				}
				begin(t, k, request("forms", "another", "ana@example.com"), Mine).Claim.Abandon(t.Context())
				if err := <-ended; err != nil {
					t.Errorf("the first ended with %v", err)
				}
				k.Close()
			})
		})
	}
}

func TestCrashHoldsTheKeyForItsLeaseOnly(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *counting, _ func() *counting) {
		k := keeper(t, s)
		r := request("forms", "key", "ana@example.com")
		crashed := begin(t, k, r, Mine).Claim
		// A different request is refused at once, as long as the first may be in work.
		start := time.Now()
		begin(t, k, request("forms", "key", "bob@example.com"), Conflict)
		if took := time.Since(start); took != 0 {
			t.Errorf("a different request waited for %v, want not at all", took)
		}
		time.Sleep(leaseTime - time.Second)
		begin(t, k, r, InFlight)
		time.Sleep(time.Second)
		second := begin(t, k, r, Mine).Claim
		if err := crashed.Finish(t.Context(), []byte("late")); !errors.Is(err, ErrNotKept) || !errors.Is(err, fallback.ErrLeaseLost) {
			t.Errorf("Finish of one whose key was taken over = %v, want ErrNotKept and ErrLeaseLost", err)
		}
		crashed.Abandon(t.Context())
		if err := second.Finish(t.Context(), []byte("answer")); err != nil {
			t.Fatal(err)
		}
		second.Abandon(t.Context()) // as a deferred call does
		k.Close()
		if b := begin(t, k, r, Replay); string(b.Answer) != "answer" {
			t.Errorf("Answer = %q, want the second's", b.Answer)
		}
	})
}

// Replicas share nothing but the database: of a crowd on two of them one gets the key, and all others its answer.
func TestCrowdOnTwoReplicas(t *testing.T) {
	t.Parallel()
	url := migrated.Database(t)
	const crowd = 24
	var replicas []*Keeper
	for range 2 {
		s, err := fallback.OpenPostgres(t.Context(), fallback.PostgresConfig{
			URL: secret.Text(url), Sealer: conformance.Sealer(0), AcquireTimeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		replicas = append(replicas, keeper(t, s))
	}
	var wg sync.WaitGroup
	var mine atomic.Int64
	for i := range crowd {
		wg.Go(func() {
			later := time.Now().Add(time.Minute) // a busy test machine is no reason to give up
			r := request("forms", "key", "ana@example.com")
			b, err := replicas[i%2].Begin(t.Context(), r, Patience{TakeOver: later, GiveUp: later})
			for errors.Is(err, ErrUnavailable) { // it may take more than reserveTimeout there
				b, err = replicas[i%2].Begin(t.Context(), r, Patience{TakeOver: later, GiveUp: later})
			}
			switch {
			case err != nil:
				t.Errorf("Begin = %v", err)
			case b.State == Mine:
				if n := mine.Add(1); n > 1 {
					t.Errorf("%d hold the key", n)
				}
				if err := b.Claim.Finish(t.Context(), []byte("answer")); err != nil {
					t.Errorf("Finish = %v", err)
				}
			case b.State != Replay || string(b.Answer) != "answer":
				t.Errorf("Begin = %s %q, want the answer of whoever held the key", b.State, b.Answer)
			}
		})
	}
	wg.Wait()
	if n := mine.Load(); n != 1 {
		t.Errorf("%d held the key, want 1", n)
	}
}

// away is a store that fails, or hangs until its caller's time is over.
type away struct {
	held  fallback.Held // what ReserveKey returns while reserve is nil
	err   error
	hangs bool
}

func (a *away) fail(ctx context.Context) error {
	if a.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return a.err
}

func (a *away) ReserveKey(ctx context.Context, r fallback.Reservation) (fallback.Held, error) {
	if a.held.Token != 0 || a.held.Request != (fallback.Hash{}) {
		h := a.held
		h.Request = r.Request
		return h, nil
	}
	return fallback.Held{}, a.fail(ctx)
}

func (a *away) ReadKey(ctx context.Context, _ fallback.Hash) (fallback.Held, error) {
	return fallback.Held{}, a.fail(ctx)
}

func (a *away) KeepAnswer(ctx context.Context, _ fallback.Hash, _ int64, _ []byte, _ time.Duration) error {
	return a.fail(ctx)
}

func (a *away) FreeKey(ctx context.Context, _ fallback.Hash, _ int64) error { return a.fail(ctx) }

func TestStoreAway(t *testing.T) {
	t.Parallel()
	fault := errors.New("fault")
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		with := func(s store) *Keeper {
			k, err := New(s, Config{Key: make([]byte, 32), Rand: func() float64 { return 0 }})
			if err != nil {
				t.Fatal(err)
			}
			return k
		}
		for _, s := range []*away{{err: fault}, {hangs: true}} {
			start := time.Now()
			_, err := with(s).Begin(t.Context(), request("forms", "key", "x"), patience())
			if !errors.Is(err, ErrUnavailable) {
				t.Errorf("Begin = %v, want ErrUnavailable", err)
			}
			if took := time.Since(start); took > reserveTimeout {
				t.Errorf("Begin took %v, want %v at most", took, reserveTimeout)
			}
		}
		// It goes away while the second waits: that the first is in work is known, how it ends is not.
		start := time.Now()
		if _, err := with(&away{held: held(), err: fault}).Begin(t.Context(), request("forms", "key", "x"), patience()); !errors.Is(err, ErrUnavailable) {
			t.Errorf("Begin while waiting = %v, want ErrUnavailable", err)
		}
		b, err := with(&away{held: held(), hangs: true}).Begin(t.Context(), request("forms", "key", "x"), patience())
		if err != nil || b.State != InFlight || time.Since(start) > 800*time.Millisecond {
			t.Errorf("Begin while waiting = %v, %v after %v, want InFlight in its time", b.State, err, time.Since(start))
		}
		// Whoever asked leaves.
		gone, leave := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer leave()
		if _, err := with(&away{held: held(), hangs: true}).Begin(gone, request("forms", "key", "x"), patience()); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrUnavailable) {
			t.Errorf("Begin of one who left = %v, want the context's error", err)
		}

		k, err := New(&away{held: fallback.Held{Token: 1}, hangs: true}, Config{Key: make([]byte, 32), Rand: func() float64 { return 0 }, Registerer: reg})
		if err != nil {
			t.Fatal(err)
		}
		claim := begin(t, k, request("forms", "key", "x"), Mine).Claim
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := claim.Finish(short, []byte("answer")); !errors.Is(err, ErrNotKept) {
			t.Errorf("Finish = %v, want ErrNotKept", err)
		}
		for range 2 * maxFreeing { // no more than maxFreeing at a time, and nobody waits
			begin(t, k, request("forms", "key", "x"), Mine).Claim.Abandon(t.Context())
		}
		start = time.Now()
		k.Close()
		if took := time.Since(start); took > freeTimeout {
			t.Errorf("Close took %v, want %v at most", took, freeTimeout)
		}
		if n := testutil.ToFloat64(k.metrics.begun[Mine]); n != 1+2*maxFreeing {
			t.Errorf("counted %v keys, want %d", n, 1+2*maxFreeing)
		}
		if n := testutil.ToFloat64(k.metrics.notKept); n != 1 {
			t.Errorf("counted %v answers that were not kept, want 1", n)
		}
	})
}

func held() fallback.Held { return fallback.Held{Request: fallback.Hash{1}} }

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Config{
		"short key": {Key: make([]byte, 31), Rand: func() float64 { return 0 }},
		"no Rand":   {Key: make([]byte, 32)},
	} {
		if _, err := New(&away{}, c); err == nil {
			t.Errorf("%s: New gave no error", name)
		}
	}
}
