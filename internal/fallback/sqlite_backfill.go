package fallback

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Statements in this file and those beside it are Postgres's, row by row: there is one writer, and the lease only keeps two
// goroutines of this process apart, or tells of one that was cancelled.

const sqliteBackfill = `id, client, flow, state, dry, rate, coalesce(max_credits, -1), loaded_line, digest, planned_line, fed_line, fed_all,
       rows_n, unreadable_n, refused_n, distinct_n, asked_n, waiting_n, own_n, valid_n, invalid_n, risky_n, unresolved_n, known_n,
       credits, plan_known, plan_open, plan_ask, bad, created_at, updated_at, loaded_at, began_at, finished_at, keep_until`

// scanSQLiteBackfill reads sqliteBackfill, and before it what more says.
func scanSQLiteBackfill(row interface{ Scan(...any) error }, more ...any) (b Backfill, err error) {
	var created, updated, loaded, began, finished, keep sql.NullInt64
	var bad string
	err = row.Scan(append(more, &b.ID, &b.Client, &b.Flow, &b.State, &b.Dry, &b.Rate, &b.MaxCredits, &b.LoadedLine, &b.Digest, &b.PlannedLine,
		&b.FedLine, &b.FedAll, &b.Rows, &b.Unreadable, &b.Refused, &b.Distinct, &b.Asked, &b.Waiting, &b.Own, &b.Valid, &b.Invalid, &b.Risky,
		&b.Unresolved, &b.Known, &b.Credits, &b.PlanKnown, &b.PlanOpen, &b.PlanAsk, &bad, &created, &updated, &loaded, &began, &finished, &keep)...)
	if err == nil {
		err = json.Unmarshal([]byte(bad), &b.Bad)
	}
	b.CreatedAt, b.UpdatedAt, b.LoadedAt = fromMicros(created), fromMicros(updated), fromMicros(loaded)
	b.BeganAt, b.FinishedAt, b.KeepUntil = fromMicros(began), fromMicros(finished), fromMicros(keep)
	return b, err
}

// nextToken returns a new fencing token.
func nextToken(ctx context.Context, tx *tx) (token int64, err error) {
	err = tx.QueryRowContext(ctx, `UPDATE review_lease SET last = last + 1 RETURNING last`).Scan(&token)
	return token, err
}

// OpenBackfill: see [Postgres.OpenBackfill].
func (s *SQLite) OpenBackfill(ctx context.Context, n NewBackfill) (_ Backfill, _ BackfillLease, err error) {
	const (
		known = `SELECT number, terms, lease_until, ` + sqliteBackfill + ` FROM backfills WHERE source = ?`
		take  = `UPDATE backfills SET lease_token = ?, lease_until = ? WHERE number = ?`
		open  = `
INSERT INTO backfills (id, source, terms, client, flow, state, dry, rate, max_credits, created_at, updated_at, lease_token, lease_until)
VALUES (?1, ?2, ?3, ?4, ?5, 'loading', ?6, ?7, ?8, ?9, ?9, ?10, ?11) RETURNING number, ` + sqliteBackfill
	)
	defer s.metrics.observe("backfill", time.Now(), &err)
	if err := n.check(); err != nil {
		return Backfill{}, BackfillLease{}, err
	}
	type opened struct {
		b Backfill
		l BackfillLease
	}
	out, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (o opened, err error) {
		now := time.Now()
		var source []byte
		if n.Source != (Hash{}) {
			source = n.Source[:]
			var terms string
			var number, until int64
			b, err := scanSQLiteBackfill(tx.QueryRowContext(ctx, known, source), &number, &terms, &until)
			switch {
			case errors.Is(err, sql.ErrNoRows):
			case err != nil:
				return o, err
			case terms != n.Terms:
				return o, ErrBackfillTerms
			case b.State != BackfillLoading:
				return opened{b: b}, nil
			case until > micros(now):
				return o, ErrBackfillBusy
			default:
				token, err := nextToken(ctx, tx)
				if err != nil {
					return o, err
				}
				_, err = tx.ExecContext(ctx, take, token, micros(now.Add(n.Lease)), number)
				return opened{b, BackfillLease{b.ID, number, token}}, err
			}
		}
		token, err := nextToken(ctx, tx)
		if err != nil {
			return o, err
		}
		most := sql.NullInt64{Int64: n.MaxCredits, Valid: n.MaxCredits >= 0}
		var number int64
		b, err := scanSQLiteBackfill(tx.QueryRowContext(ctx, open, canonicalID(n.ID), source, n.Terms, n.Client, n.Flow, n.Dry, n.Rate, most,
			micros(now), token, micros(now.Add(n.Lease))), &number)
		return opened{b, BackfillLease{b.ID, number, token}}, err
	})
	if err != nil && !errors.Is(err, ErrBackfillTerms) && !errors.Is(err, ErrBackfillBusy) {
		err = fmt.Errorf("open backfill: %w", err)
	}
	return out.b, out.l, err
}

// fencedWrite runs f in a transaction if the backfill is in one of the states and l is its lease. ErrLeaseLost: it is not.
func fencedWrite[T any](
	ctx context.Context, s *SQLite, l BackfillLease, states []BackfillState, f func(ctx context.Context, tx *tx, b Backfill, now time.Time) (T, error),
) (T, error) {
	const held = `SELECT ` + sqliteBackfill + ` FROM backfills WHERE number = ? AND lease_token = ? AND lease_token <> 0`
	return write(ctx, s.writer, func(ctx context.Context, tx *tx) (none T, _ error) {
		b, err := scanSQLiteBackfill(tx.QueryRowContext(ctx, held, l.number, l.token))
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return none, ErrLeaseLost
		case err != nil:
			return none, err
		case !slices.Contains(states, b.State):
			return none, ErrLeaseLost
		}
		return f(ctx, tx, b, time.Now())
	})
}

// reread returns a backfill as the transaction left it.
func reread(ctx context.Context, tx *tx, number int64) (Backfill, error) {
	const one = `SELECT ` + sqliteBackfill + ` FROM backfills WHERE number = ?`
	return scanSQLiteBackfill(tx.QueryRowContext(ctx, one, number))
}

// LoadBackfill: see [Postgres.LoadBackfill].
func (s *SQLite) LoadBackfill(ctx context.Context, l BackfillLease, c BackfillChunk, lease time.Duration) (err error) {
	const (
		row    = `INSERT INTO backfill_rows (backfill, line, fingerprint, fault, input) VALUES (?, ?, ?, ?, ?)`
		loaded = `
UPDATE backfills SET loaded_line = ?, digest = ?, rows_n = rows_n + ?, unreadable_n = unreadable_n + ?, refused_n = refused_n + ?,
       updated_at = ?, lease_until = ?, bad = ?
 WHERE number = ?`
	)
	defer s.metrics.observe("backfill_load", time.Now(), &err)
	if err := c.check(); err != nil {
		return err
	}
	unreadable, refused := c.counts()
	sealed := make([][]byte, len(c.Rows)) // not while the writer waits
	for i, r := range c.Rows {
		sealed[i] = sealRow(s.sealer, l.number, r)
	}
	_, err = fencedWrite(ctx, s, l, []BackfillState{BackfillLoading}, func(ctx context.Context, tx *tx, b Backfill, now time.Time) (none struct{}, _ error) {
		if c.Line <= b.LoadedLine || len(c.Rows) > 0 && c.Rows[0].Line <= b.LoadedLine {
			return none, errors.New("the lines are stored already")
		}
		insert, err := tx.PrepareContext(ctx, row)
		if err != nil {
			return none, err
		}
		defer func() { _ = insert.Close() }()
		for i, r := range c.Rows {
			fp, fault := r.Fingerprint[:], sql.NullString{String: r.Fault, Valid: r.Fault != ""}
			if fault.Valid {
				fp = nil
			} else if gone, err := erased(ctx, tx, r.Fingerprint, b.ID); err != nil {
				return none, err
			} else if gone {
				fp, sealed[i], fault = nil, nil, sql.NullString{String: FaultErased, Valid: true}
			}
			if _, err := insert.ExecContext(ctx, l.number, r.Line, fp, fault, sealed[i]); err != nil {
				return none, err
			}
		}
		bad, err := c.bad(b.Bad)
		if err != nil {
			return none, err
		}
		_, err = tx.ExecContext(ctx, loaded, c.Line, c.Digest, len(c.Rows), unreadable, refused, micros(now), micros(now.Add(lease)), bad, l.number)
		return none, err
	})
	return wrapped("load backfill", err)
}

// LoadedBackfill: see [Postgres.LoadedBackfill].
func (s *SQLite) LoadedBackfill(ctx context.Context, l BackfillLease) (err error) {
	const loaded = `UPDATE backfills SET state = 'merging', loaded_at = ?1, updated_at = ?1, lease_token = 0, lease_until = ?1 WHERE number = ?2`
	defer s.metrics.observe("backfill_load", time.Now(), &err)
	_, err = fencedWrite(ctx, s, l, []BackfillState{BackfillLoading}, func(ctx context.Context, tx *tx, _ Backfill, now time.Time) (none struct{}, _ error) {
		_, err := tx.ExecContext(ctx, loaded, micros(now), l.number)
		return none, err
	})
	return wrapped("loaded backfill", err)
}

// ClaimBackfill: see [Postgres.ClaimBackfill].
func (s *SQLite) ClaimBackfill(ctx context.Context, lease time.Duration) (b Backfill, l BackfillLease, ok bool, err error) {
	const (
		next = `
SELECT number FROM backfills WHERE state IN ('merging', 'planning', 'running', 'cancelling') AND lease_until <= ? ORDER BY lease_until, number LIMIT 1`
		take = `UPDATE backfills SET lease_token = ?, lease_until = ? WHERE number = ?`
	)
	defer s.metrics.observe("backfill", time.Now(), &err)
	// A look without a transaction for writing: most of the time there is nothing.
	var number int64
	switch err := s.reads.QueryRowContext(ctx, next, micros(time.Now())).Scan(&number); {
	case errors.Is(err, sql.ErrNoRows):
		return b, l, false, nil
	case err != nil:
		return b, l, false, fmt.Errorf("claim backfill: %w", err)
	}
	type claimed struct {
		b Backfill
		l BackfillLease
	}
	c, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (c claimed, err error) {
		now := time.Now()
		if err := tx.QueryRowContext(ctx, next, micros(now)).Scan(&c.l.number); err != nil {
			if errors.Is(err, sql.ErrNoRows) {
				err = nil
			}
			return claimed{}, err
		}
		if c.l.token, err = nextToken(ctx, tx); err != nil {
			return c, err
		}
		if _, err := tx.ExecContext(ctx, take, c.l.token, micros(now.Add(lease)), c.l.number); err != nil {
			return c, err
		}
		c.b, err = reread(ctx, tx, c.l.number)
		c.l.ID = c.b.ID
		return c, err
	})
	if err != nil {
		return b, l, false, fmt.Errorf("claim backfill: %w", err)
	}
	return c.b, c.l, c.l.token != 0, nil
}

// RenewBackfill: see [Postgres.RenewBackfill].
func (s *SQLite) RenewBackfill(ctx context.Context, l BackfillLease, lease time.Duration) (_ Backfill, err error) {
	const renew = `
UPDATE backfills SET lease_until = ? WHERE number = ? AND lease_token = ? AND lease_token <> 0 RETURNING ` + sqliteBackfill
	defer s.metrics.observe("backfill", time.Now(), &err)
	b, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (Backfill, error) {
		return scanSQLiteBackfill(tx.QueryRowContext(ctx, renew, micros(time.Now().Add(lease)), l.number, l.token))
	})
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrLeaseLost
	}
	return b, wrapped("renew backfill", err)
}

// ReleaseBackfill: see [Postgres.ReleaseBackfill].
func (s *SQLite) ReleaseBackfill(ctx context.Context, l BackfillLease) (err error) {
	const release = `UPDATE backfills SET lease_token = 0, lease_until = ? WHERE number = ? AND lease_token = ? AND lease_token <> 0`
	defer s.metrics.observe("backfill", time.Now(), &err)
	err = s.writer.do(ctx, func(ctx context.Context, tx *tx) error {
		_, err := tx.ExecContext(ctx, release, micros(time.Now()), l.number, l.token)
		return err
	})
	return wrapped("release backfill", err)
}

// sqliteMerge is the most rows of one MergeBackfill: others wait for the writer meanwhile.
const sqliteMerge = 2000

// MergeBackfill: see [Postgres.MergeBackfill]. It takes fewer rows a call.
func (s *SQLite) MergeBackfill(ctx context.Context, l BackfillLease, lease time.Duration) (_ Backfill, err error) {
	const (
		stretch = `
SELECT coalesce(max(line), 0), count(*) FROM (
    SELECT line FROM backfill_rows WHERE backfill = ?1 AND line > (SELECT merged_line FROM backfills WHERE number = ?1) ORDER BY line LIMIT ?2)`
		items = `
INSERT INTO backfill_items (fingerprint, backfill, first_line)
SELECT fingerprint, ?1, min(line) FROM backfill_rows
 WHERE backfill = ?1 AND line > (SELECT merged_line FROM backfills WHERE number = ?1) AND line <= ?2 AND fingerprint IS NOT NULL
 GROUP BY fingerprint ORDER BY fingerprint
ON CONFLICT DO NOTHING`
		repeats = `
INSERT INTO backfill_repeats (fingerprint, backfill, line)
SELECT r.fingerprint, ?1, r.line
  FROM backfill_rows r JOIN backfill_items i ON i.fingerprint = r.fingerprint AND i.backfill = ?1
 WHERE r.backfill = ?1 AND r.line > (SELECT merged_line FROM backfills WHERE number = ?1) AND r.line <= ?2 AND i.first_line <> r.line`
		merged = `
UPDATE backfills SET merged_line = max(merged_line, ?2), distinct_n = distinct_n + ?3, updated_at = ?4, lease_until = ?5 WHERE number = ?1`
		through = `
UPDATE backfills SET state = CASE WHEN dry THEN 'planning' ELSE 'running' END, began_at = ?2, updated_at = ?2, lease_until = ?3 WHERE number = ?1`
	)
	defer s.metrics.observe("backfill_step", time.Now(), &err)
	b, err := fencedWrite(ctx, s, l, []BackfillState{BackfillMerging}, func(ctx context.Context, tx *tx, _ Backfill, now time.Time) (none Backfill, _ error) {
		var line, rows int64
		if err := tx.QueryRowContext(ctx, stretch, l.number, sqliteMerge).Scan(&line, &rows); err != nil {
			return none, err
		}
		if rows == 0 {
			if _, err := tx.ExecContext(ctx, through, l.number, micros(now), micros(now.Add(lease))); err != nil {
				return none, err
			}
			return reread(ctx, tx, l.number)
		}
		n, err := changed(tx.ExecContext(ctx, items, l.number, line))
		if err != nil {
			return none, err
		}
		if _, err := tx.ExecContext(ctx, repeats, l.number, line); err != nil {
			return none, err
		}
		if _, err := tx.ExecContext(ctx, merged, l.number, line, n, micros(now), micros(now.Add(lease))); err != nil {
			return none, err
		}
		return reread(ctx, tx, l.number)
	})
	return b, wrapped("merge backfill", err)
}

// Backfill: see [Postgres.Backfill].
func (s *SQLite) Backfill(ctx context.Context, id string) (_ Backfill, err error) {
	const one = `SELECT ` + sqliteBackfill + ` FROM backfills WHERE id = ?`
	defer s.metrics.observe("backfill", time.Now(), &err)
	b, err := scanSQLiteBackfill(s.reads.QueryRowContext(ctx, one, canonicalID(id)))
	if errors.Is(err, sql.ErrNoRows) {
		return Backfill{}, ErrUnknownID
	}
	return b, wrapped("backfill", err)
}

// Backfills: see [Postgres.Backfills].
func (s *SQLite) Backfills(ctx context.Context, client, before string, limit int) (list []Backfill, err error) {
	const all = `
SELECT ` + sqliteBackfill + ` FROM backfills WHERE (?1 = '' OR client = ?1) AND (?2 = '' OR id < ?2) ORDER BY id DESC LIMIT ?3`
	defer s.metrics.observe("backfill", time.Now(), &err)
	rows, err := s.reads.QueryContext(ctx, all, client, canonicalID(before), min(limit, MaxBackfills))
	if err != nil {
		return nil, fmt.Errorf("backfills: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		b, err := scanSQLiteBackfill(rows)
		if err != nil {
			return nil, fmt.Errorf("backfills: %w", err)
		}
		list = append(list, b)
	}
	return list, rows.Err()
}

// BackfillResults: see [Postgres.BackfillResults].
func (s *SQLite) BackfillResults(ctx context.Context, id string, after int64, limit int) (results []BackfillResult, err error) {
	const (
		number = `SELECT number FROM backfills WHERE id = ?`
		page   = `
SELECT r.line, r.input, coalesce(r.fault, ''), coalesce(i.state, 0), coalesce(i.status, ''), coalesce(i.reason, ''), coalesce(i.decision, ''),
       i.suggestion, coalesce(i.first_line, 0)
FROM (SELECT line, fingerprint, fault, input FROM backfill_rows WHERE backfill = ?1 AND line > ?2 ORDER BY line LIMIT ?3) AS r
LEFT JOIN backfill_items i ON i.fingerprint = r.fingerprint AND i.backfill = ?1
ORDER BY r.line`
	)
	defer s.metrics.observe("backfill", time.Now(), &err)
	var n int64
	switch err := s.reads.QueryRowContext(ctx, number, canonicalID(id)).Scan(&n); {
	case errors.Is(err, sql.ErrNoRows):
		return nil, ErrUnknownID
	case err != nil:
		return nil, fmt.Errorf("backfill results: %w", err)
	}
	rows, err := s.reads.QueryContext(ctx, page, n, after, min(limit, MaxBackfillResults))
	if err != nil {
		return nil, fmt.Errorf("backfill results: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var r BackfillResult
		var input, suggestion []byte
		var state int
		var first int64
		if err := rows.Scan(&r.Line, &input, &r.Fault, &state, &r.Status, &r.Reason, &r.Decision, &suggestion, &first); err != nil {
			return nil, fmt.Errorf("backfill results: %w", err)
		}
		r.Normalized, r.Input = unsealRow(s.sealer, input, n, r.Line)
		r.Suggestion, r.Asked = unsealSuggestion(s.sealer, suggestion, n, first), openItem(state)
		results = append(results, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("backfill results: %w", err)
	}
	return results, nil
}
