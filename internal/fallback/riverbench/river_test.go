package riverbench

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"validator-gw/internal/fallback"
	"validator-gw/internal/fallback/conformance"
	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
	"validator-gw/internal/testenv"
	"validator-gw/internal/verdict"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const (
	domains = 2000
	// workers of ours claim and settle 50 at a time.
	workers = 4
)

// River's client takes as many jobs as it has workers free. It is measured with as many rows in hand as ours, and with ten
// times as many, which suits it better: it takes and completes in batches of hundreds then.
var riverWorkers = []int{workers * fallback.MaxBatch, 10 * workers * fallback.MaxBatch}

// BenchmarkQueue works through b.N due rows with nothing to do between taking and ending one. Both write the end of each
// row durably; ours ends the review and keeps its verdict, too, where River marks the job.
//
// "held" is the time from taking a row to its end being committed. On a busy machine compare the servers' CPU time:
// SERVER_CPU names the file in which the server's control group counts it in nanoseconds (cpuacct.usage), if there is one.
func BenchmarkQueue(b *testing.B) {
	b.Run("fallback", benchFallback)
	for _, n := range riverWorkers {
		b.Run(fmt.Sprintf("river-workers-%d", n), func(b *testing.B) { benchRiver(b, n) })
	}
}

func benchFallback(b *testing.B) {
	url := testenv.Postgres(b)
	if err := fallback.MigratePostgres(b.Context(), secret.Text(url)); err != nil {
		b.Fatal(err)
	}
	s, err := fallback.OpenPostgres(b.Context(), fallback.PostgresConfig{URL: secret.Text(url), Sealer: conformance.Sealer(0)})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	fill(b, url, b.N)
	held := make([][]time.Duration, workers)
	spent := serverCPU(b)
	b.ResetTimer()
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			cursor := int64(w * domains / workers)
			for {
				began := time.Now()
				res, err := s.Claim(b.Context(), fallback.ClaimRequest{Max: fallback.MaxBatch, Lease: time.Hour, Cursor: cursor})
				if err != nil {
					b.Error(err)
					return
				}
				if len(res.Claims) == 0 {
					return
				}
				cursor = res.Cursor
				lost, err := s.SettleBatch(b.Context(), settlements(res.Claims))
				if err != nil || len(lost) > 0 {
					b.Errorf("SettleBatch = %d lost, %v", len(lost), err)
					return
				}
				took := time.Since(began)
				for range res.Claims {
					held[w] = append(held[w], took)
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
	report(b, slices.Concat(held...), spent)
}

func settlements(claims []fallback.Claim) []fallback.Settlement {
	now := time.Now()
	out := make([]fallback.Settlement, len(claims))
	for i, c := range claims {
		out[i] = fallback.Settlement{Claim: c, Verdict: verdict.Verdict{ID: c.ReviewID, Status: verdict.Valid,
			Reason: verdict.MailboxAccepted, CheckedAt: now, HardUntil: now.Add(time.Hour)}}
	}
	return out
}

// fill brings reviews that are due.
func fill(b *testing.B, url string, rows int) {
	conn, err := pgx.Connect(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(b.Context()))
	sealer, now := conformance.Sealer(0), time.Now().Add(-time.Second)
	ids := make([]uuid.UUID, rows)
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
	}
	copyRows := func(table string, columns []string, row func(i int) ([]any, error)) {
		if _, err := conn.CopyFrom(b.Context(), pgx.Identifier{table}, columns, pgx.CopyFromSlice(rows, row)); err != nil {
			b.Fatal(err)
		}
	}
	copyRows("reviews", []string{"id", "fingerprint", "domain_key", "address", "state", "reason", "cause", "recorded_at", "updated_at"},
		func(i int) ([]any, error) {
			a, err := normalize.Restore(address(i))
			var fp normalize.Fingerprint
			binary.BigEndian.PutUint64(fp[:], uint64(i)*0x9e3779b97f4a7c15)
			binary.BigEndian.PutUint64(fp[8:], uint64(i))
			return []any{[16]byte(ids[i]), fp[:], int64(i % domains), sealer.Seal(a.Text(), ids[i].String()), "open",
				string(verdict.UpstreamTimeout), string(verdict.CauseUpstream), now, now}, err
		})
	copyRows("review_queue", []string{"review_id", "domain_key", "due_at", "priority", "cause"}, func(i int) ([]any, error) {
		return []any{[16]byte(ids[i]), int64(i % domains), now, int16(fallback.PriorityInteractive), string(verdict.CauseUpstream)}, nil
	})
	if _, err := conn.Exec(b.Context(), `VACUUM ANALYZE`); err != nil {
		b.Fatal(err)
	}
}

func address(i int) string { return fmt.Sprintf("user%d@domain%d.example", i, i%domains) }

// check is River's job: what a review holds.
type check struct {
	Address string `json:"address"`
}

// Kind implements river.JobArgs.
func (check) Kind() string { return "check" }

type nothing struct{ river.WorkerDefaults[check] }

// Work does nothing.
func (nothing) Work(context.Context, *river.Job[check]) error { return nil }

func benchRiver(b *testing.B, most int) {
	ctx := b.Context()
	pool, err := pgxpool.New(ctx, testenv.Postgres(b)+"&pool_max_conns=10")
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		b.Fatal(err)
	}
	kinds := river.NewWorkers()
	river.AddWorker(kinds, nothing{})
	client, err := river.NewClient(driver, &river.Config{
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Workers: kinds,
		FetchCooldown: time.Millisecond, FetchPollInterval: 50 * time.Millisecond,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: most}},
	})
	if err != nil {
		b.Fatal(err)
	}
	for at := 0; at < b.N; at += 10_000 {
		jobs := make([]river.InsertManyParams, 0, 10_000)
		for i := at; i < min(at+10_000, b.N); i++ {
			jobs = append(jobs, river.InsertManyParams{Args: check{Address: address(i)}})
		}
		if _, err := client.InsertManyFast(ctx, jobs); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := pool.Exec(ctx, `VACUUM ANALYZE`); err != nil {
		b.Fatal(err)
	}
	done, end := client.SubscribeConfig(&river.SubscribeConfig{ChanSize: b.N + 1, Kinds: []river.EventKind{river.EventKindJobCompleted}})
	defer end()
	held := make([]time.Duration, 0, b.N)
	spent := serverCPU(b)
	b.ResetTimer()
	if err := client.Start(ctx); err != nil {
		b.Fatal(err)
	}
	for range b.N {
		e := <-done
		held = append(held, e.JobStats.RunDuration+e.JobStats.CompleteDuration)
	}
	b.StopTimer()
	report(b, held, spent)
	if err := client.Stop(context.WithoutCancel(ctx)); err != nil {
		b.Error(err)
	}
}

// serverCPU returns what will say how much CPU time the server has spent since.
func serverCPU(b *testing.B) func() time.Duration {
	file := os.Getenv("SERVER_CPU")
	read := func() time.Duration {
		text, err := os.ReadFile(file)
		if err != nil {
			return 0
		}
		ns, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			b.Errorf("%s: %v", file, err)
		}
		return time.Duration(ns)
	}
	before := read()
	return func() time.Duration { return read() - before }
}

func report(b *testing.B, held []time.Duration, spent func() time.Duration) {
	if cpu := spent(); cpu > 0 {
		b.ReportMetric(float64(cpu.Nanoseconds())/1000/float64(b.N), "server-cpu-us/row")
	}
	if len(held) != b.N {
		b.Fatalf("%d rows were worked on, want %d", len(held), b.N)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	slices.Sort(held)
	b.ReportMetric(float64(held[len(held)/2].Microseconds())/1000, "held-p50-ms")
	b.ReportMetric(float64(held[len(held)*99/100].Microseconds())/1000, "held-p99-ms")
}
