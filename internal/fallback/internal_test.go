package fallback

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"validator-gw/internal/secret"
	"validator-gw/internal/verdict"
)

func TestCheckSafe(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fsync, commit, pages string
		names                string // that the error must name; "" for no error
	}{
		{"on", "on", "on", ""},
		{"on", "local", "on", ""}, // durable here, if not on a standby
		{"on", "remote_apply", "on", ""},
		{"off", "on", "on", "fsync is off"},
		{"on", "off", "on", "synchronous_commit is off"},
		{"on", "on", "off", "full_page_writes is off"},
		{"off", "off", "off", "fsync, synchronous_commit, full_page_writes is off"},
	} {
		err := checkSafe(c.fsync, c.commit, c.pages)
		switch {
		case c.names == "" && err != nil:
			t.Errorf("checkSafe(%s, %s, %s) = %v, want none", c.fsync, c.commit, c.pages, err)
		case c.names != "" && (!errors.Is(err, ErrUnsafeServer) || !strings.Contains(err.Error(), c.names)):
			t.Errorf("checkSafe(%s, %s, %s) = %v, want ErrUnsafeServer: %s", c.fsync, c.commit, c.pages, err, c.names)
		}
	}
}

func TestCheckVersion(t *testing.T) {
	t.Parallel()
	for has, wantErr := range map[int64]bool{0: true, 2: true, 3: false, 4: true} {
		if err := checkVersion(has, 3); errors.Is(err, ErrSchema) != wantErr {
			t.Errorf("checkVersion(%d, 3) = %v, want ErrSchema: %t", has, err, wantErr)
		}
	}
}

func TestOutcomeUnknown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{&notSentError{context.DeadlineExceeded}, false},
		{&pgconn.PgError{Code: "23514"}, false}, // check violation
		{&pgconn.PgError{Code: "57014"}, false}, // cancelled by statement_timeout: rolled back
		{&pgconn.PgError{Code: "57P01"}, true},  // shut down
		{&pgconn.PgError{Code: "08006"}, true},  // connection failure
		{&pgconn.PgError{Code: "40003"}, true},  // statement completion unknown
		{context.DeadlineExceeded, true},
		{io.ErrUnexpectedEOF, true},
	} {
		if got := outcomeUnknown(c.err); got != c.want {
			t.Errorf("outcomeUnknown(%v) = %t, want %t", c.err, got, c.want)
		}
	}
}

func TestMetricsAreThereFromTheStart(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	first, err := newMetrics(reg, "postgres")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newMetrics(reg, "sqlite"); err != nil {
		t.Fatalf("second store on the same registry: %v", err)
	}
	const failures, duration = "validator_gw_store_errors_total", "validator_gw_store_operation_duration_seconds"
	for _, name := range []string{failures, duration} {
		n, err := testutil.GatherAndCount(reg, name)
		if err != nil || n != 2*len(operations) {
			t.Errorf("%s has %d series, %v, want %d", name, n, err, 2*len(operations))
		}
	}
	for _, err := range []error{nil, ErrLeaseLost, ErrUnknownID, fmt.Errorf("x: %w", ErrQueueFull)} {
		first.observe("claim", time.Now(), &err)
	}
	if got := testutil.ToFloat64(first.errors["claim"]); got != 0 {
		t.Errorf("errors after answers = %v, want 0", got)
	}
	failed := io.ErrUnexpectedEOF
	first.observe("claim", time.Now(), &failed)
	if got := testutil.ToFloat64(first.errors["claim"]); got != 1 {
		t.Errorf("errors after a failure = %v, want 1", got)
	}
	if _, err := newMetrics(nil, "sqlite"); err != nil {
		t.Errorf("newMetrics without a registry = %v, want none", err)
	}
}

// testWriter is a writer on a file with one table of numbers.
func testWriter(t *testing.T, path string) *writer {
	db, err := openFile(path, "journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE n (n INTEGER PRIMARY KEY)`); err != nil {
		t.Fatal(err)
	}
	w := newWriter(t.Context(), db)
	t.Cleanup(w.close)
	return w
}

func insert(n int) func(ctx context.Context, tx *tx) error {
	return func(ctx context.Context, tx *tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO n VALUES (?)`, n)
		return err
	}
}

func numbers(t *testing.T, db *sql.DB) (out []int) {
	rows, err := db.QueryContext(t.Context(), `SELECT n FROM n ORDER BY n`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

func TestWriterKeepsOneJobsErrorToItself(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "w.db")
	synctest.Test(t, func(t *testing.T) {
		w := testWriter(t, path)
		fault := errors.New("fault")
		// While the first is held, the others gather into one batch.
		hold, held := make(chan struct{}), make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = w.do(t.Context(), func(ctx context.Context, tx *tx) error { close(held); <-hold; return nil })
		})
		<-held
		errs := make([]error, 5)
		for i := range errs {
			wg.Go(func() {
				errs[i] = w.do(t.Context(), func(ctx context.Context, tx *tx) error {
					if err := insert(i)(ctx, tx); err != nil {
						return err
					}
					tx.opened++
					if i == 2 {
						return fault
					}
					return nil
				})
			})
		}
		synctest.Wait()
		close(hold)
		wg.Wait()
		for i, err := range errs {
			if want := i == 2; errors.Is(err, fault) != want {
				t.Errorf("job %d: %v, want its fault: %t", i, err, want)
			}
		}
		if got, want := numbers(t, w.db), []int{0, 1, 3, 4}; !slices.Equal(got, want) {
			t.Errorf("rows = %v, want %v", got, want)
		}
		if got := w.open.Load(); got != 4 {
			t.Errorf("open = %d, want 4: what was undone does not count", got)
		}
	})
}

func TestWriterLetsCallersGo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "w.db")
	synctest.Test(t, func(t *testing.T) {
		w := testWriter(t, path)
		hold, held := make(chan struct{}), make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), 120*time.Millisecond)
		defer cancel()
		results := make(chan error, 2)
		go func() {
			results <- w.do(ctx, func(ctx context.Context, tx *tx) error { close(held); <-hold; return insert(1)(ctx, tx) })
		}()
		<-held
		start := time.Now()
		waiting := w.do(ctx, insert(2))
		if took := time.Since(start); took != 120*time.Millisecond {
			t.Errorf("a waiting job's caller was held for %v, want 120ms", took)
		}
		if !errors.Is(waiting, context.DeadlineExceeded) || errors.Is(waiting, errAbandoned) {
			t.Errorf("a job that was never started = %v, want the deadline and no doubt", waiting)
		}
		if err := <-results; !errors.Is(err, errAbandoned) {
			t.Errorf("a job under way = %v, want errAbandoned", err)
		}
		close(hold)
		if err := w.do(t.Context(), insert(3)); err != nil {
			t.Errorf("the next job = %v, want none", err)
		}
		if got, want := numbers(t, w.db), []int{1, 3}; !slices.Equal(got, want) {
			t.Errorf("rows = %v, want %v: the one under way was committed, the one that waited was not run", got, want)
		}
	})
}

func TestWriterEnds(t *testing.T) {
	t.Parallel()
	w := testWriter(t, filepath.Join(t.TempDir(), "w.db"))
	w.close()
	if err := w.do(t.Context(), insert(1)); !errors.Is(err, errWriterClosed) {
		t.Errorf("do after close = %v, want errWriterClosed", err)
	}
}

func TestRecordUnderWayWhenItsTimeEnds(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "w.db")
	synctest.Test(t, func(t *testing.T) {
		sealer, err := secret.NewSealer(make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		s, err := OpenSQLite(t.Context(), SQLiteConfig{Path: path, Sealer: sealer})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		// Holds the writer until release is called.
		occupy := func() (release func()) {
			hold := make(chan struct{})
			go func() {
				_ = s.writer.do(t.Context(), func(context.Context, *tx) error { <-hold; return nil })
			}()
			synctest.Wait()
			return func() { close(hold) }
		}
		budget := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 120*time.Millisecond)
			t.Cleanup(cancel)
			return ctx
		}
		release := occupy()
		e := plainEntry(t)
		if _, err := s.Record(budget(), e); err == nil || errors.Is(err, ErrUnknownCommit) {
			t.Errorf("Record that was never started = %v, want an error that leaves no doubt", err)
		}
		release()
		if _, err := s.Review(t.Context(), e.ID); !errors.Is(err, ErrUnknownID) {
			t.Errorf("Review = %v, want ErrUnknownID", err)
		}

		// The next record is in one batch with a job that holds it up.
		release = occupy()
		release2 := occupy() // waits, and will go first in the batch
		result := make(chan error, 1)
		ctx := budget()
		go func() {
			_, err := s.Record(ctx, e)
			result <- err
		}()
		synctest.Wait()
		release()
		if err := <-result; !errors.Is(err, ErrUnknownCommit) {
			t.Errorf("Record under way when its time ended = %v, want ErrUnknownCommit", err)
		}
		release2()
		if err := s.Postpone(t.Context(), Claim{}, Postponement{Cause: verdict.CauseUpstream}); !errors.Is(err, ErrLeaseLost) {
			t.Fatal(err) // only to wait for the batch before
		}
		if r, err := s.Review(t.Context(), e.ID); err != nil || r.State != Open {
			t.Errorf("Review = %s, %v, want the review that was written after all", r.State, err)
		}
	})
}
