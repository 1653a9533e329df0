package fallback_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"validator-gw/internal/fallback"
	"validator-gw/internal/fallback/conformance"
	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
	"validator-gw/internal/verdict"
)

func secretText(url string) secret.Text { return secret.Text(url) }

// numbered makes the n-th entry, one of so many domains.
func numbered(n, domains int) fallback.Entry {
	a, err := normalize.Restore(fmt.Sprintf("user%d@domain%d.example", n, n%domains))
	if err != nil {
		panic(err)
	}
	var fp normalize.Fingerprint
	binary.BigEndian.PutUint64(fp[:], uint64(n)*0x9e3779b97f4a7c15)
	binary.BigEndian.PutUint64(fp[8:], uint64(n))
	return fallback.Entry{
		ID: uuid.Must(uuid.NewV7()).String(), Fingerprint: fp, DomainKey: int64(n % domains), Address: a,
		Reason: verdict.UpstreamTimeout, Cause: verdict.CauseUpstream, Priority: fallback.PriorityInteractive,
		Watcher: fallback.Watcher{Client: "forms", Flow: "signup"},
		Trail:   []verdict.Attempt{{At: time.Now(), Outcome: "timeout", LatencyMS: 600}},
	}
}

// insertReviews fills Postgres with rows that are due, much faster than Record.
func insertReviews(t testing.TB, url string, rows, domains int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	sealer := conformance.Sealer(0)
	now := time.Now().Add(-time.Second)
	const first = 1_000_000 // apart from the numbers of others
	entries := make([]fallback.Entry, rows)
	for i := range entries {
		entries[i] = numbered(first+i, domains)
	}
	_, err = conn.CopyFrom(t.Context(), pgx.Identifier{"reviews"}, []string{"id", "fingerprint", "domain_key", "address",
		"state", "reason", "cause", "trail", "recorded_at", "updated_at"}, pgx.CopyFromSlice(rows, func(i int) ([]any, error) {
		e := entries[i]
		id := uuid.MustParse(e.ID)
		return []any{[16]byte(id), e.Fingerprint[:], e.DomainKey, sealer.Seal(e.Address.Text(), e.ID), "open",
			string(e.Reason), string(e.Cause), "[]", now, now}, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.CopyFrom(t.Context(), pgx.Identifier{"review_queue"}, []string{"review_id", "domain_key", "due_at",
		"priority", "cause"}, pgx.CopyFromSlice(rows, func(i int) ([]any, error) {
		e := entries[i]
		return []any{[16]byte(uuid.MustParse(e.ID)), e.DomainKey, now, int16(e.Priority), string(e.Cause)}, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
}

// benchStores runs f on both stores. fill brings due rows.
func benchStores(b *testing.B, f func(b *testing.B, s conformance.Store, fill func(rows, domains int))) {
	b.Run("postgres", func(b *testing.B) {
		url := migrated.Database(b)
		f(b, openPostgres(b, url, conformance.Sealer(0)), func(rows, domains int) {
			insertReviews(b, url, rows, domains)
			exec(b, url, `ANALYZE`)
		})
	})
	b.Run("sqlite", func(b *testing.B) {
		s := openSQLite(b, filepath.Join(b.TempDir(), "gateway.db"), conformance.Sealer(0))
		b.Cleanup(s.Close)
		f(b, s, func(rows, domains int) {
			spread(b, 50, rows, func(i int) error { return recordNumbered(b, s, i, domains) })
		})
	})
}

func recordNumbered(b *testing.B, s conformance.Store, n, domains int) error {
	_, err := s.Record(b.Context(), numbered(n, domains))
	return err
}

// spread calls f with 0 to n-1 from so many goroutines.
func spread(b *testing.B, workers, n int, f func(i int) error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkRecord records new addresses from so many callers at a time; an operation is one of them.
func BenchmarkRecord(b *testing.B) {
	for _, writers := range []int{1, 8, 32, 128} {
		b.Run(fmt.Sprintf("writers-%d", writers), func(b *testing.B) {
			benchStores(b, func(b *testing.B, s conformance.Store, _ func(rows, domains int)) {
				took := make([]time.Duration, b.N)
				b.ReportAllocs()
				b.ResetTimer()
				spread(b, writers, b.N, func(i int) error {
					began := time.Now()
					err := recordNumbered(b, s, i, 2000)
					took[i] = time.Since(began)
					return err
				})
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
				percentiles(b, "record", took)
			})
		})
	}
}

// percentiles reports the median and the 99th percentile.
func percentiles(b *testing.B, what string, took []time.Duration) {
	slices.Sort(took)
	for _, p := range []int{50, 99} {
		b.ReportMetric(float64(took[len(took)*p/100].Microseconds())/1000, fmt.Sprintf("%s-p%d-ms", what, p))
	}
}

// BenchmarkClaimSettle claims batches of 50 and settles each batch in one transaction, by 4 workers, over 2,000
// domains; an operation is one row. "apart" settles row by row from 8 goroutines, as the loop does.
func BenchmarkClaimSettle(b *testing.B) {
	for _, apart := range []bool{false, true} {
		b.Run(fmt.Sprintf("apart-%t", apart), func(b *testing.B) {
			benchStores(b, func(b *testing.B, s conformance.Store, fill func(rows, domains int)) {
				fill(b.N, 2000)
				b.ReportAllocs()
				b.ResetTimer()
				const workers = 4
				var wg sync.WaitGroup
				took := make([][]time.Duration, workers)
				for w := range workers {
					wg.Go(func() {
						cursor := int64(w * 500)
						for {
							start := time.Now()
							res, err := s.Claim(b.Context(), fallback.ClaimRequest{Max: 50, Lease: time.Hour, Cursor: cursor})
							if err != nil {
								b.Error(err)
								return
							}
							if len(res.Claims) == 0 {
								return
							}
							took[w] = append(took[w], time.Since(start))
							cursor = res.Cursor
							if err := settleAll(b, s, res.Claims, apart); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
				percentiles(b, "claim", slices.Concat(took...))
			})
		})
	}
}

func settleAll(b *testing.B, s conformance.Store, claims []fallback.Claim, apart bool) error {
	now := time.Now()
	batch := make([]fallback.Settlement, len(claims))
	for i, c := range claims {
		batch[i] = fallback.Settlement{Claim: c, Verdict: verdict.Verdict{ID: c.ReviewID, Status: verdict.Valid,
			Reason: verdict.MailboxAccepted, CheckedAt: now, HardUntil: now.Add(time.Hour)}}
	}
	if !apart {
		_, err := s.SettleBatch(b.Context(), batch)
		return err
	}
	spread(b, 2, len(batch), func(i int) error {
		return s.Settle(b.Context(), batch[i].Claim, batch[i].Verdict, nil)
	})
	return nil
}
