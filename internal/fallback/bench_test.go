package fallback_test

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
	insertReviewsFrom(t, url, 0, rows, domains)
}

// insertReviewsFrom leaves out the first so many.
func insertReviewsFrom(t testing.TB, url string, from, rows, domains int) {
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
		entries[i] = numbered(first+from+i, domains)
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

var waiting = flag.String("waiting", "10000,1000000", "rows that wait in BenchmarkClaimWaiting; ten million take 10 GB and half an hour")

// BenchmarkClaimWaiting claims 50 rows and gives them back, with so many waiting in Postgres; an operation is one claim.
func BenchmarkClaimWaiting(b *testing.B) {
	for text := range strings.SplitSeq(*waiting, ",") {
		b.Run("rows-"+text, func(b *testing.B) {
			rows, err := strconv.Atoi(text)
			if err != nil {
				b.Fatal(err)
			}
			url := migrated.Database(b)
			s := openPostgres(b, url, conformance.Sealer(0))
			for at := 0; at < rows; at += 100_000 {
				insertReviewsFrom(b, url, at, min(rows-at, 100_000), max(rows/50, 1))
			}
			exec(b, url, `VACUUM ANALYZE`)
			conn, err := pgx.Connect(b.Context(), url)
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close(context.WithoutCancel(b.Context()))
			position := func() (bytes int64) {
				if err := conn.QueryRow(b.Context(), `SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn`).Scan(&bytes); err != nil {
					b.Fatal(err)
				}
				return bytes
			}
			var took []time.Duration
			var cursor, wal, claimed int64
			for b.Loop() {
				before, began := position(), time.Now()
				res, err := s.Claim(b.Context(), fallback.ClaimRequest{Max: 50, Lease: time.Hour, Cursor: cursor})
				took = append(took, time.Since(began))
				wal += position() - before
				if err != nil || len(res.Claims) == 0 {
					b.Fatalf("Claim = %d rows, %v", len(res.Claims), err)
				}
				cursor, claimed = res.Cursor, claimed+int64(len(res.Claims))
				if err := s.GiveBack(b.Context(), res.Claims); err != nil {
					b.Fatal(err)
				}
			}
			percentiles(b, "claim", took)
			b.ReportMetric(float64(wal)/float64(claimed), "wal-bytes/row")
		})
	}
}

// BenchmarkFailingDomain works through b.N due rows, of which nine in ten are of one domain whose every check has to be
// repeated, a batch at a time. "shares" is how many rows were claimed until all others were done, as a multiple of those
// others. "alone" is how full the batches were when that domain was all there was.
func BenchmarkFailingDomain(b *testing.B) {
	url := migrated.Database(b)
	s := openPostgres(b, url, conformance.Sealer(0))
	insertReviews(b, url, b.N, 10_000)
	exec(b, url, `UPDATE review_queue SET domain_key = 5000 WHERE domain_key % 10 <> 0`, `VACUUM ANALYZE`)
	others, claimed, until := 0, 0, 0
	batches, full := 0, 0
	var cursor int64
	b.ResetTimer()
	for {
		res, err := s.Claim(b.Context(), fallback.ClaimRequest{Max: 50, Lease: time.Hour, Cursor: cursor})
		if err != nil {
			b.Fatal(err)
		}
		if len(res.Claims) == 0 {
			break
		}
		cursor = res.Cursor
		var good []fallback.Claim
		var bad []fallback.Delay
		for _, c := range res.Claims {
			claimed++
			if c.DomainKey == 5000 {
				bad = append(bad, fallback.Delay{Claim: c, Postponement: fallback.Postponement{CheckIn: time.Hour, Cause: verdict.CauseMailbox}})
				continue
			}
			good = append(good, c)
			others, until = others+1, claimed
		}
		if len(good) == 0 {
			batches, full = batches+1, full+len(bad)
		}
		if err := settleAll(b, s, good, false); err != nil {
			b.Fatal(err)
		}
		if lost, err := s.PostponeBatch(b.Context(), bad); err != nil || len(lost) > 0 {
			b.Fatalf("PostponeBatch = %d lost, %v", len(lost), err)
		}
	}
	if claimed != b.N {
		b.Fatalf("%d rows were claimed, want each of %d once", claimed, b.N)
	}
	b.ReportMetric(float64(until)/float64(max(others, 1)), "shares")
	b.ReportMetric(float64(full)/float64(max(batches, 1)), "alone")
}
