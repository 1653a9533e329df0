package fallback

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"validator-gw/internal/normalize"
)

// EndBackfill: see [Postgres.EndBackfill].
func (s *SQLite) EndBackfill(ctx context.Context, l BackfillLease, state BackfillState, keep time.Duration) (_ Backfill, err error) {
	const (
		left = `SELECT EXISTS (SELECT 1 FROM backfill_items WHERE backfill = ?1 AND state = 1)
       OR EXISTS (SELECT 1 FROM backfill_items WHERE backfill = ?1 AND state = 2)`
		end = `
UPDATE backfills SET state = ?2, updated_at = ?3, keep_until = ?4, lease_token = 0, lease_until = ?3,
       finished_at = CASE WHEN ?2 IN ('done', 'cancelled') THEN ?3 END
 WHERE number = ?1`
	)
	defer s.metrics.observe("backfill", time.Now(), &err)
	held := []BackfillState{BackfillMerging, BackfillPlanning, BackfillPlanned, BackfillRunning, BackfillStopped, BackfillCancelling}
	b, err := fencedWrite(ctx, s, l, held, func(ctx context.Context, tx *tx, b Backfill, now time.Time) (none Backfill, _ error) {
		var some bool
		if err := tx.QueryRowContext(ctx, left, l.number).Scan(&some); err != nil {
			return none, err
		}
		if some || state == BackfillDone && !b.FedAll {
			return none, ErrBackfillState
		}
		if _, err := tx.ExecContext(ctx, end, l.number, string(state), micros(now), micros(now.Add(keep))); err != nil {
			return none, err
		}
		return reread(ctx, tx, l.number)
	})
	return b, wrapped("end backfill", err)
}

// CancelBackfill: see [Postgres.CancelBackfill].
func (s *SQLite) CancelBackfill(ctx context.Context, id string) (_ Backfill, err error) {
	const cancel = `
UPDATE backfills SET state = 'cancelling', updated_at = ?1, keep_until = NULL, lease_token = 0, lease_until = ?1
 WHERE id = ?2 AND state NOT IN ('done', 'cancelled', 'cancelling')`
	defer s.metrics.observe("backfill", time.Now(), &err)
	b, err := s.changeBackfill(ctx, id, cancel)
	return b, wrapped("cancel backfill", err)
}

// ResumeBackfill: see [Postgres.ResumeBackfill].
func (s *SQLite) ResumeBackfill(ctx context.Context, id string, maxCredits *int64) (_ Backfill, err error) {
	const resume = `
UPDATE backfills
   SET began_at = CASE WHEN state IN ('planning', 'planned') THEN ?1 ELSE began_at END,
       state = CASE WHEN state IN ('planning', 'planned', 'stopped') THEN 'running' ELSE state END, dry = 0,
       max_credits = CASE WHEN ?3 IS NULL THEN max_credits WHEN ?3 < 0 THEN NULL ELSE ?3 END,
       updated_at = ?1, keep_until = NULL
 WHERE id = ?2 AND state NOT IN ('done', 'cancelled', 'cancelling')`
	defer s.metrics.observe("backfill", time.Now(), &err)
	b, err := s.changeBackfill(ctx, id, resume, maxCredits)
	return b, wrapped("resume backfill", err)
}

// changeBackfill runs a statement that takes the time and the id, and then more.
func (s *SQLite) changeBackfill(ctx context.Context, id, query string, args ...any) (Backfill, error) {
	const there = `SELECT ` + sqliteBackfill + ` FROM backfills WHERE id = ?`
	return write(ctx, s.writer, func(ctx context.Context, tx *tx) (none Backfill, _ error) {
		n, err := changed(tx.ExecContext(ctx, query, append([]any{micros(time.Now()), canonicalID(id)}, args...)...))
		if err != nil {
			return none, err
		}
		b, err := scanSQLiteBackfill(tx.QueryRowContext(ctx, there, canonicalID(id)))
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return none, ErrUnknownID
		case err == nil && n == 0:
			return none, ErrBackfillState
		}
		return b, err
	})
}

// sweepBackfills: see [Postgres.sweepBackfills].
func (s *SQLite) sweepBackfills(ctx context.Context) (deleted int64, err error) {
	const (
		over = `
SELECT number FROM backfills
 WHERE keep_until <= ?1 AND state NOT IN ('merging', 'planning', 'running', 'cancelling')
    OR state = 'loading' AND lease_until <= ?1 AND updated_at <= ?2
 ORDER BY number LIMIT 1`
		part  = `SELECT coalesce(max(line), 0) FROM (SELECT line FROM backfill_rows WHERE backfill = ? ORDER BY line LIMIT ?)`
		items = `
DELETE FROM backfill_items WHERE backfill = ?1 AND fingerprint IN (SELECT fingerprint FROM backfill_rows WHERE backfill = ?1 AND line <= ?2)`
		repeats = `
DELETE FROM backfill_repeats WHERE backfill = ?1 AND fingerprint IN (SELECT fingerprint FROM backfill_rows WHERE backfill = ?1 AND line <= ?2)`
		rows  = `DELETE FROM backfill_rows WHERE backfill = ?1 AND line <= ?2`
		empty = `DELETE FROM backfills WHERE number = ?`
	)
	for more := true; more; {
		n, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (n int64, _ error) {
			now := time.Now()
			var number, line int64
			switch err := tx.QueryRowContext(ctx, over, micros(now), micros(now.Add(-backfillAbandoned))).Scan(&number); {
			case errors.Is(err, sql.ErrNoRows):
				return 0, nil
			case err != nil:
				return 0, err
			}
			if err := tx.QueryRowContext(ctx, part, number, maxSweepBatch).Scan(&line); err != nil {
				return 0, err
			}
			if line == 0 {
				return changed(tx.ExecContext(ctx, empty, number))
			}
			for _, query := range []string{items, repeats} {
				if _, err := tx.ExecContext(ctx, query, number, line); err != nil {
					return 0, err
				}
			}
			return changed(tx.ExecContext(ctx, rows, number, line))
		})
		if deleted += n; err != nil {
			return deleted, err
		}
		more = n > 0
	}
	return deleted, nil
}

// eraseBackfillsOf: see [eraseBackfills].
func eraseBackfillsOf(ctx context.Context, tx *tx, fp normalize.Fingerprint) (blanked int64, err error) {
	const (
		unmerged = `
UPDATE backfill_rows SET input = NULL, fingerprint = NULL, fault = '` + FaultErased + `'
 WHERE fingerprint = ?1 AND backfill IN (SELECT number FROM backfills WHERE merged_line < loaded_line)
   AND line > (SELECT merged_line FROM backfills WHERE number = backfill_rows.backfill)`
		merged = `
UPDATE backfill_rows SET input = NULL, fingerprint = NULL, fault = '` + FaultErased + `'
 WHERE (backfill, line) IN (SELECT backfill, first_line FROM backfill_items WHERE fingerprint = ?1
                            UNION SELECT backfill, line FROM backfill_repeats WHERE fingerprint = ?1)`
		repeats = `DELETE FROM backfill_repeats WHERE fingerprint = ?1`
		counted = `
UPDATE backfills AS b
   SET distinct_n = distinct_n - 1, asked_n = asked_n - (i.state = 1), waiting_n = waiting_n - (i.state = 2),
       own_n = own_n - (i.own AND i.state IN (1, 2)), valid_n = valid_n - (coalesce(i.status, '') = 'valid'),
       invalid_n = invalid_n - (coalesce(i.status, '') = 'invalid'), risky_n = risky_n - (coalesce(i.status, '') = 'risky'),
       unresolved_n = unresolved_n - (coalesce(i.status, '') = 'unresolved')
  FROM backfill_items i WHERE i.fingerprint = ?1 AND i.backfill = b.number`
		items = `DELETE FROM backfill_items WHERE fingerprint = ?1`
	)
	for _, query := range []string{unmerged, merged} {
		n, err := changed(tx.ExecContext(ctx, query, fp[:]))
		if err != nil {
			return 0, err
		}
		blanked += n
	}
	for _, query := range []string{repeats, counted, items} {
		if _, err := tx.ExecContext(ctx, query, fp[:]); err != nil {
			return 0, err
		}
	}
	return blanked, nil
}
