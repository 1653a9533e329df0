package fallback_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"validator-gw/internal/fallback"
	"validator-gw/internal/fallback/conformance"
	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// Statements that began before an erasure and ended after it saw nothing of it. What they wrote goes with the next sweep,
// and nothing else does.
func TestPostgresSweepsWhatCameBack(t *testing.T) {
	t.Parallel()
	url := migrated.Database(t)
	s := openPostgres(t, url, conformance.Sealer(0))
	prints := normalize.NewFingerprinter([]byte("key"))
	newID := func() string { return uuid.Must(uuid.NewV7()).String() }
	now := time.Now()
	entry := func(name string) fallback.Entry {
		a, err := normalize.Restore(name + "@domain.example")
		if err != nil {
			t.Fatal(err)
		}
		return fallback.Entry{ID: newID(), Address: a, Fingerprint: prints.Of(a), Reason: verdict.UpstreamTimeout, Cause: verdict.CauseUpstream}
	}
	write := func(e fallback.Entry) {
		if _, err := s.Record(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		err := s.PutVerdicts(t.Context(), []fallback.Stored{{Fingerprint: e.Fingerprint, Verdict: verdict.Verdict{
			ID: newID(), Status: verdict.Valid, Reason: verdict.MailboxAccepted, CheckedAt: now, HardUntil: now.Add(time.Hour)}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	back, after, other := entry("back"), entry("after"), entry("other")
	for _, e := range []fallback.Entry{back, other} {
		write(e)
	}
	upTo := newID()
	after.ID = newID()
	write(after)
	// An erasure that was committed in the moment when the others were written.
	for _, e := range []fallback.Entry{back, after} {
		exec(t, url, fmt.Sprintf(`INSERT INTO erasures (fingerprint, up_to, forget_at) VALUES ('\x%x', '%s', now() + interval '1 hour')`,
			e.Fingerprint[:], upTo))
	}
	if n, err := s.Sweep(t.Context(), fallback.Retention{}); n != 2 || err != nil {
		t.Errorf("Sweep = %d, %v, want a review and a verdict", n, err)
	}
	for _, c := range []struct {
		what string
		e    fallback.Entry
		want bool
	}{{"of before the erasure", back, false}, {"of after it", after, true}, {"of another address", other, true}} {
		found, err := s.Lookup(t.Context(), c.e.Fingerprint)
		if err != nil || (found.Review != nil) != c.want || (found.Verdict != nil) != c.want {
			t.Errorf("Lookup %s = %+v, %v, want both: %t", c.what, found, err, c.want)
		}
	}
	if st, err := s.Stats(t.Context()); err != nil || st.Open != 2 {
		t.Errorf("Stats = %+v, %v, want 2 open", st, err)
	}
}

func TestPostgresTellsOfErasures(t *testing.T) {
	t.Parallel()
	url := migrated.Database(t)
	s := openPostgres(t, url, conformance.Sealer(0))
	erase := func(n byte, upTo string) fallback.Remembered {
		fp := normalize.Fingerprint{n}
		if _, err := s.Erase(t.Context(), fallback.Erasure{Fingerprints: []normalize.Fingerprint{fp}, UpTo: upTo}); err != nil {
			t.Fatal(err)
		}
		return fallback.Remembered{Fingerprint: fp, UpTo: upTo}
	}
	var since time.Time
	told := func(want ...fallback.Remembered) {
		t.Helper()
		got, next, err := s.Erasures(t.Context(), since)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("Erasures = %v, %v, want %v", got, err, want)
		}
		if next.Before(since) {
			t.Errorf("the next call asks from %v, before %v", next, since)
		}
		since = next
	}
	told()
	first := erase(1, "01989f6e-0000-7000-8000-000000000001")
	told(first)
	exec(t, url, `UPDATE erasures SET forget_at = forget_at - interval '1 minute'`)
	since = since.Add(-time.Minute)
	second := erase(2, "01989f6e-0000-7000-8000-000000000002")
	told(first, second)
	told(second) // the first is long known
	told(second) // who was committed late must not be passed over
}

// A review that is being settled when the erasure comes leaves nothing either: its verdict is written under the lock that
// the erasure waits for.
func TestPostgresErasesWhatIsBeingSettled(t *testing.T) {
	t.Parallel()
	url := migrated.Database(t)
	s := openPostgres(t, url, conformance.Sealer(0))
	a, err := normalize.Restore("ana@domain.example")
	if err != nil {
		t.Fatal(err)
	}
	fp := normalize.NewFingerprinter([]byte("key")).Of(a)
	const id, upTo = "01989f6e-0000-7000-8000-000000000001", "01989f6e-0000-7000-8000-000000000002"
	_, err = s.Record(t.Context(), fallback.Entry{ID: id, Address: a, Fingerprint: fp, Reason: verdict.UpstreamTimeout, Cause: verdict.CauseUpstream})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	step := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	step(`BEGIN`)
	step(`SELECT FROM reviews WHERE id = $1 FOR UPDATE`, id)

	erased := make(chan error, 1)
	go func() {
		got, err := s.Erase(context.WithoutCancel(t.Context()), fallback.Erasure{Fingerprints: []normalize.Fingerprint{fp}, UpTo: upTo})
		if want := (fallback.Erased{Reviews: 1, Verdicts: 1}); err == nil && got != want {
			err = fmt.Errorf("erased %+v, want %+v", got, want)
		}
		erased <- err
	}()
	for waits := false; !waits; {
		const waiting = `
SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database()))`
		if err := conn.QueryRow(t.Context(), waiting).Scan(&waits); err != nil {
			t.Fatal(err)
		}
	}
	step(`DELETE FROM review_queue WHERE review_id = $1`, id)
	step(`UPDATE reviews SET state = 'settled', verdict = '{}', address = NULL, ended_at = now() WHERE id = $1`, id)
	step(`INSERT INTO verdicts (id, fingerprint, status, reason, body, checked_at, hard_until)
VALUES ($1, $2, 'valid', 'mailbox_accepted', '{}', now(), now() + interval '1 hour')`, id, fp[:])
	step(`COMMIT`)
	if err := <-erased; err != nil {
		t.Error(err)
	}
	if found, err := s.Lookup(t.Context(), fp); err != nil || found != (fallback.Found{}) {
		t.Errorf("Lookup = %+v, %v, want nothing", found, err)
	}
}

// Who waits for another's lock until lock_timeout tries again: an erasure is not refused, and no entry is lost, for that.
func TestPostgresTriesAgainAfterALock(t *testing.T) {
	t.Parallel()
	a, err := normalize.Restore("ana@domain.example")
	if err != nil {
		t.Fatal(err)
	}
	fp := normalize.NewFingerprinter([]byte("key")).Of(a)
	const id, later = "01989f6e-0000-7000-8000-000000000001", "01989f6e-0000-7000-8000-000000000002"
	entry := fallback.Entry{ID: id, Address: a, Fingerprint: fp, Reason: verdict.UpstreamTimeout, Cause: verdict.CauseUpstream}
	for name, call := range map[string]func(context.Context, *fallback.Postgres) error{
		"Erase": func(ctx context.Context, s *fallback.Postgres) error {
			got, err := s.Erase(ctx, fallback.Erasure{Fingerprints: []normalize.Fingerprint{fp}, UpTo: later})
			if err == nil && got.Reviews != 1 {
				err = fmt.Errorf("erased %+v, want a review", got)
			}
			return err
		},
		"Record": func(ctx context.Context, s *fallback.Postgres) error {
			e := entry
			e.ID = later
			r, err := s.Record(ctx, e)
			if err == nil && r.ID != id {
				err = fmt.Errorf("recorded %s, want the open %s", r.ID, id)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := migrated.Database(t)
			s := openPostgres(t, url, conformance.Sealer(0))
			if _, err := s.Record(t.Context(), entry); err != nil {
				t.Fatal(err)
			}
			connect := func() *pgx.Conn {
				conn, err := pgx.Connect(t.Context(), url)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close(context.Background()) })
				return conn
			}
			watch := connect() // in a transaction the server would show the same activity again and again
			tx, err := connect().Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), `SELECT FROM reviews WHERE id = $1 FOR UPDATE`, id); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- call(context.WithoutCancel(t.Context()), s) }()
			// Two statements that waited are the first try and the second.
			for waited := map[time.Time]bool{}; len(waited) < 2; {
				var began []time.Time
				const waiting = `
SELECT coalesce(array_agg(query_start), '{}') FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
				if err := watch.QueryRow(t.Context(), waiting).Scan(&began); err != nil {
					t.Fatal(err)
				}
				for _, at := range began {
					waited[at] = true
				}
				select {
				case err := <-ended:
					t.Fatalf("ended behind a lock: %v", err)
				default:
				}
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}
