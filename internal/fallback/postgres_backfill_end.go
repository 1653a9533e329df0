package fallback

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// forgotten blanks the rows, after a line and up to another, whose addresses were erased since the backfill began. It must
// come after the row of backfills is held: an erasure holds that, too.
func forgotten(ctx context.Context, tx pgx.Tx, number int64, id string, after, line int64) error {
	const (
		some  = `SELECT EXISTS (SELECT FROM erasures WHERE up_to >= $1::uuid)`
		blank = `
UPDATE backfill_rows r SET input = NULL, fingerprint = NULL, fault = '` + FaultErased + `'
  FROM erasures e
 WHERE r.backfill = $1 AND r.line > $2 AND r.line <= $3 AND e.fingerprint = r.fingerprint AND e.up_to >= $4::uuid`
	)
	var erasures bool
	if err := tx.QueryRow(ctx, some, id).Scan(&erasures); err != nil || !erasures {
		return err
	}
	_, err := tx.Exec(ctx, blank, number, after, line, id)
	return err
}

// EndBackfill ends the work on a backfill for now, or for good, and gives the lease back: done, stopped, cancelled or planned.
// All of it is deleted after keep. ErrBackfillState: a review is open still, or it is not fed to its end and would be done.
func (s *Postgres) EndBackfill(ctx context.Context, l BackfillLease, state BackfillState, keep time.Duration) (_ Backfill, err error) {
	const end = `
UPDATE backfills b
   SET state = $3, updated_at = now(), keep_until = now() + $4::interval, lease_token = 0, lease_until = now(),
       finished_at = CASE WHEN $3 IN ('done', 'cancelled') THEN now() END
 WHERE number = $1 AND lease_token = $2 AND lease_token <> 0 AND (fed_all OR $3 <> 'done')
   AND NOT EXISTS (SELECT FROM backfill_items WHERE backfill = $1 AND state = 1)
   AND NOT EXISTS (SELECT FROM backfill_items WHERE backfill = $1 AND state = 2)
RETURNING ` + backfillColumns
	defer s.metrics.observe("backfill", time.Now(), &err)
	b, err := s.backfillRow(ctx, ErrBackfillState, end, l.number, l.token, string(state), keep)
	if errors.Is(err, ErrBackfillState) {
		const held = `SELECT ` + backfillColumns + ` FROM backfills WHERE number = $1 AND lease_token = $2`
		if _, lost := s.backfillRow(ctx, ErrLeaseLost, held, l.number, l.token); lost != nil {
			err = lost
		}
	}
	return b, wrapped("end backfill", err)
}

// CancelBackfill takes a backfill from whoever works on it, so that its open reviews are withdrawn. ErrUnknownID: there is none.
// ErrBackfillState: it has ended.
func (s *Postgres) CancelBackfill(ctx context.Context, id string) (_ Backfill, err error) {
	const cancel = `
UPDATE backfills SET state = 'cancelling', updated_at = now(), keep_until = NULL, lease_token = 0, lease_until = now()
 WHERE id = $1 AND state NOT IN ('done', 'cancelled', 'cancelling') RETURNING ` + backfillColumns
	defer s.metrics.observe("backfill", time.Now(), &err)
	b, err := s.changeBackfill(ctx, id, cancel)
	return b, wrapped("cancel backfill", err)
}

// ResumeBackfill lets a planned or stopped backfill go on, and gives it another bound of credits unless maxCredits is nil;
// negative is none. ErrUnknownID: there is none. ErrBackfillState: it has ended.
func (s *Postgres) ResumeBackfill(ctx context.Context, id string, maxCredits *int64) (_ Backfill, err error) {
	const resume = `
UPDATE backfills
   SET state = CASE WHEN state IN ('planning', 'planned', 'stopped') THEN 'running' ELSE state END, dry = false,
       max_credits = CASE WHEN $2::bigint IS NULL THEN max_credits WHEN $2 < 0 THEN NULL ELSE $2 END,
       began_at = CASE WHEN state IN ('planning', 'planned') THEN now() ELSE began_at END,
       updated_at = now(), keep_until = NULL
 WHERE id = $1 AND state NOT IN ('done', 'cancelled', 'cancelling') RETURNING ` + backfillColumns
	defer s.metrics.observe("backfill", time.Now(), &err)
	b, err := s.changeBackfill(ctx, id, resume, maxCredits)
	return b, wrapped("resume backfill", err)
}

func (s *Postgres) changeBackfill(ctx context.Context, id, sql string, args ...any) (Backfill, error) {
	if id = canonicalID(id); id == "" {
		return Backfill{}, ErrUnknownID
	}
	b, err := s.backfillRow(ctx, ErrUnknownID, sql, append([]any{id}, args...)...)
	if errors.Is(err, ErrUnknownID) {
		const there = `SELECT ` + backfillColumns + ` FROM backfills WHERE id = $1`
		if b, err = s.backfillRow(ctx, ErrUnknownID, there, id); err == nil {
			err = ErrBackfillState
		}
	}
	return b, err
}

// sweepBackfills deletes, in small steps, what is past its time: the rows with what hangs on them, then the backfill.
func (s *Postgres) sweepBackfills(ctx context.Context) (deleted int64, err error) {
	const (
		over = `
SELECT number FROM backfills
 WHERE keep_until <= now() AND state NOT IN ('merging', 'planning', 'running', 'cancelling')
    OR state = 'loading' AND lease_until <= now() AND updated_at <= now() - $1::interval
 ORDER BY number LIMIT 1`
		rows = `
WITH part AS MATERIALIZED (
    SELECT line, fingerprint FROM backfill_rows WHERE backfill = $1 ORDER BY line LIMIT $2
), items AS (
    DELETE FROM backfill_items WHERE backfill = $1 AND fingerprint = ANY (ARRAY(SELECT fingerprint FROM part))
), repeats AS (
    DELETE FROM backfill_repeats WHERE backfill = $1 AND fingerprint = ANY (ARRAY(SELECT fingerprint FROM part))
)
DELETE FROM backfill_rows WHERE backfill = $1 AND line <= (SELECT max(line) FROM part)`
		empty = `DELETE FROM backfills WHERE number = $1 AND NOT EXISTS (SELECT FROM backfill_rows WHERE backfill = $1)`
	)
	for ctx.Err() == nil {
		var number int64
		switch err := s.bulk.queryRow(ctx, []any{&number}, over, backfillAbandoned); {
		case errors.Is(err, pgx.ErrNoRows):
			return deleted, nil
		case err != nil:
			return deleted, err
		}
		for {
			n, err := s.bulk.exec(ctx, rows, number, MaxBackfillPortion)
			if deleted += n; err != nil {
				return deleted, err
			}
			if n == 0 {
				break
			}
		}
		n, err := s.bulk.exec(ctx, empty, number)
		if deleted += n; err != nil {
			return deleted, err
		}
	}
	return deleted, ctx.Err()
}

// eraseBackfills blanks the rows of the addresses, and removes their items, in the transaction of an erasure. Whoever loads or
// merges waits for it, or is waited for: so it sees every row there is, and they see the erasure.
func eraseBackfills(ctx context.Context, tx pgx.Tx, fps [][]byte) (blanked int64, err error) {
	const (
		hold = `
SELECT FROM backfills WHERE number = ANY (ARRAY(
    SELECT number FROM backfills WHERE state IN ('loading', 'merging') OR merged_line < loaded_line
    UNION SELECT backfill FROM backfill_items WHERE fingerprint = ANY ($1::bytea[]))) ORDER BY number FOR UPDATE`
		unmerged = `
UPDATE backfill_rows r SET input = NULL, fingerprint = NULL, fault = '` + FaultErased + `'
  FROM backfills b
 WHERE b.merged_line < b.loaded_line AND r.backfill = b.number AND r.line > b.merged_line AND r.fingerprint = ANY ($1::bytea[])`
		merged = `
UPDATE backfill_rows r SET input = NULL, fingerprint = NULL, fault = '` + FaultErased + `'
  FROM (SELECT backfill, first_line AS line FROM backfill_items WHERE fingerprint = ANY ($1::bytea[])
        UNION SELECT backfill, line FROM backfill_repeats WHERE fingerprint = ANY ($1::bytea[])) AS i
 WHERE r.backfill = i.backfill AND r.line = i.line`
		repeats = `DELETE FROM backfill_repeats WHERE fingerprint = ANY ($1::bytea[])`
		items   = `
WITH gone AS (
    DELETE FROM backfill_items WHERE fingerprint = ANY ($1::bytea[]) RETURNING backfill, state, own, status
), sums AS (
    SELECT backfill, count(*) AS n, count(*) FILTER (WHERE state = 1) AS asked, count(*) FILTER (WHERE state = 2) AS waiting,
           count(*) FILTER (WHERE own AND state IN (1, 2)) AS own, count(*) FILTER (WHERE status = 'valid') AS valid,
           count(*) FILTER (WHERE status = 'invalid') AS invalid, count(*) FILTER (WHERE status = 'risky') AS risky,
           count(*) FILTER (WHERE status = 'unresolved') AS unresolved
      FROM gone GROUP BY backfill
)
UPDATE backfills b
   SET distinct_n = distinct_n - s.n, asked_n = asked_n - s.asked, waiting_n = waiting_n - s.waiting, own_n = own_n - s.own,
       valid_n = valid_n - s.valid, invalid_n = invalid_n - s.invalid, risky_n = risky_n - s.risky, unresolved_n = unresolved_n - s.unresolved
  FROM sums s WHERE b.number = s.backfill`
	)
	if _, err := tx.Exec(ctx, hold, fps); err != nil {
		return 0, err
	}
	for _, sql := range []string{unmerged, merged} {
		tag, err := tx.Exec(ctx, sql, fps)
		if err != nil {
			return 0, err
		}
		blanked += tag.RowsAffected()
	}
	for _, sql := range []string{repeats, items} {
		if _, err := tx.Exec(ctx, sql, fps); err != nil {
			return 0, err
		}
	}
	return blanked, nil
}
