// Package conformance is the one suite that every durable store passes: what package fallback promises, as tests.
// It is imported by tests only.
package conformance

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
	"validator-gw/internal/verdict"
)

// Store is the whole of a durable store. Consumers declare the few methods that they use themselves.
type Store interface {
	Record(ctx context.Context, e fallback.Entry) (fallback.Review, error)
	Lookup(ctx context.Context, fp normalize.Fingerprint) (fallback.Found, error)
	Review(ctx context.Context, id string) (fallback.Review, error)
	Verdict(ctx context.Context, id string) (fallback.Stored, error)
	Watch(ctx context.Context, id string, w fallback.Watcher) error
	Watchers(ctx context.Context, id string) ([]fallback.Watcher, error)
	PutVerdicts(ctx context.Context, batch []fallback.Stored) error

	Claim(ctx context.Context, req fallback.ClaimRequest) (fallback.ClaimResult, error)
	Heartbeat(ctx context.Context, id string, token int64, lease time.Duration) error
	GiveBack(ctx context.Context, claims []fallback.Claim) error
	Settle(ctx context.Context, c fallback.Claim, v verdict.Verdict, trail []verdict.Attempt) error
	SettleBatch(ctx context.Context, batch []fallback.Settlement) (lost []fallback.Claim, err error)
	SettleOpen(ctx context.Context, fp normalize.Fingerprint, v verdict.Verdict, trail []verdict.Attempt) (
		id string, settled bool, err error)
	Postpone(ctx context.Context, c fallback.Claim, p fallback.Postponement) error
	PostponeBatch(ctx context.Context, batch []fallback.Delay) (lost []fallback.Claim, err error)
	Kill(ctx context.Context, c fallback.Claim, reason verdict.Reason) error
	DeadReviews(ctx context.Context, after fallback.DeadPage, limit int) ([]fallback.Review, error)
	Replay(ctx context.Context, id string) error
	Drop(ctx context.Context, id string) error
	Hasten(ctx context.Context, limit int, spread time.Duration) (int, error)

	ReserveKey(ctx context.Context, r fallback.Reservation) (fallback.Held, error)
	ReadKey(ctx context.Context, key fallback.Hash) (fallback.Held, error)
	KeepAnswer(ctx context.Context, key fallback.Hash, token int64, answer []byte, keep time.Duration) error
	FreeKey(ctx context.Context, key fallback.Hash, token int64) error
	Erase(ctx context.Context, e fallback.Erasure) (fallback.Erased, error)
	Ask(ctx context.Context, e fallback.Event) (fallback.Asked, error)
	Ripen(ctx context.Context, fps []normalize.Fingerprint) (int, error)

	ClaimNotices(ctx context.Context, room map[string]int, lease time.Duration) ([]fallback.Notice, error)
	EndNotice(ctx context.Context, n fallback.Notice, delivered bool, why string) error
	DelayNotice(ctx context.Context, n fallback.Notice, in time.Duration, why string) error
	OutboxStats(ctx context.Context) (fallback.OutboxStats, error)

	backfillStore

	Stats(ctx context.Context) (fallback.Stats, error)
	Sweep(ctx context.Context, keep fallback.Retention) (deleted int, err error)
	SetMaxOpen(n int64)
	Ping(ctx context.Context) error
	Close()
}

var (
	_ Store = (*fallback.Postgres)(nil)
	_ Store = (*fallback.SQLite)(nil)
)

// Bed is an empty database with a store on it.
type Bed struct {
	Store
	// Open opens another store on the same database, closed at the end of the test, or the same again under other
	// keys where the database takes one process only.
	Open func(t *testing.T, s *secret.Sealer) Store
	// Advance lets time pass: it sleeps in a bubble or makes every row older.
	Advance func(t *testing.T, d time.Duration)
	// Dump returns every column of every row as text, bytes in hex.
	Dump func(t *testing.T) string
	// Refuse makes every row that is put into the table from now on fail.
	Refuse func(t *testing.T, table string)
	// Slack is how far the store's clock may be from the test's.
	Slack time.Duration
}

// Sealer returns a sealer of the test keys of these numbers, the first of which writes.
func Sealer(seeds ...byte) *secret.Sealer {
	keys := make([][]byte, len(seeds))
	for i, seed := range seeds {
		keys[i] = bytes.Repeat([]byte{'a' + seed}, 32)
	}
	s, err := secret.NewSealer(keys...)
	if err != nil {
		panic(err) // the keys above have 32 bytes
	}
	return s
}

// Run runs the suite. setup makes a Bed, opened under Sealer(0), and calls story with it, in a bubble if the store
// can live in one.
func Run(t *testing.T, setup func(t *testing.T, story func(t *testing.T, b Bed))) {
	for _, c := range slices.Concat(stories, queueStories, eventStories, keyStories, erasureStories, outboxStories, backfillStories) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			setup(t, c.story)
		})
	}
}

var fingerprinter = normalize.NewFingerprinter([]byte("a key of the conformance suite"))

// address makes an address out of two numbers.
func address(user, domain int) normalize.Address {
	a, err := normalize.Restore(fmt.Sprintf("planted.%d@domain-%d.example", user, domain))
	if err != nil {
		panic(err) // the text above is one
	}
	return a
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

// entry is a recorded time-out of the user's address at the domain, due at once.
func entry(user, domain int) fallback.Entry {
	a := address(user, domain)
	return fallback.Entry{
		ID: newID(), Fingerprint: fingerprinter.Of(a), DomainKey: int64(domain), Address: a,
		Reason: verdict.UpstreamTimeout, Cause: verdict.CauseUpstream, Priority: fallback.PriorityInteractive,
		Watcher: fallback.Watcher{Client: "forms", Flow: "signup"},
		Trail:   []verdict.Attempt{{At: time.Unix(1_700_000_000, 0).UTC(), Outcome: "timeout", LatencyMS: 600}},
	}
}

// valid is a final verdict, checked now and kept for 30 days.
func valid() verdict.Verdict {
	now := time.Now().UTC().Truncate(time.Microsecond)
	return verdict.Verdict{
		ID: newID(), Status: verdict.Valid, Reason: verdict.MailboxAccepted,
		Reasons: []verdict.Reason{verdict.MailboxAccepted}, Flags: verdict.Flags{Free: verdict.True, Role: verdict.False},
		Suggestion: verdict.Suggestion{Domain: "example.org"}, Attempts: 2, Provider: "verimail_v3",
		CheckedAt: now, SoftUntil: now.Add(7 * 24 * time.Hour), HardUntil: now.Add(30 * 24 * time.Hour),
	}
}

func record(t *testing.T, s Store, e fallback.Entry) fallback.Review {
	t.Helper()
	r, err := s.Record(t.Context(), e)
	if err != nil {
		t.Fatalf("Record = %v, want no error", err)
	}
	return r
}

// claim takes all that is due, up to most.
func claim(t *testing.T, s Store, most int) []fallback.Claim {
	t.Helper()
	res, err := s.Claim(t.Context(), fallback.ClaimRequest{Max: most, Lease: lease})
	if err != nil {
		t.Fatalf("Claim = %v, want no error", err)
	}
	return res.Claims
}

const lease = 30 * time.Second

// claimOne takes the only row that is due.
func claimOne(t *testing.T, s Store) fallback.Claim {
	t.Helper()
	got := claim(t, s, fallback.MaxBatch)
	if len(got) != 1 {
		t.Fatalf("Claim gave %d rows, want 1", len(got))
	}
	return got[0]
}

func review(t *testing.T, s Store, id string) fallback.Review {
	t.Helper()
	r, err := s.Review(t.Context(), id)
	if err != nil {
		t.Fatalf("Review = %v, want no error", err)
	}
	return r
}

func stats(t *testing.T, s Store) fallback.Stats {
	t.Helper()
	st, err := s.Stats(t.Context())
	if err != nil {
		t.Fatalf("Stats = %v, want no error", err)
	}
	return st
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s = %v, want no error", what, err)
	}
}

// near checks a time of the store.
func (b Bed) near(t *testing.T, what string, got, want time.Time) {
	t.Helper()
	// A microsecond is what columns round to.
	if d := got.Sub(want).Abs(); d > b.Slack+time.Microsecond {
		t.Errorf("%s is %v from what it should be, want at most %v", what, d, b.Slack)
	}
}

func ids(claims []fallback.Claim) []string {
	var out []string
	for _, c := range claims {
		out = append(out, c.ReviewID)
	}
	slices.Sort(out)
	return out
}
