package fallback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Lock order: the row of backfills, its items, then what every other statement locks in its own order.

const backfillColumns = `id::text, client, flow, state, dry, rate, coalesce(max_credits, -1), loaded_line, digest, planned_line, fed_line, fed_all,
       rows_n, unreadable_n, refused_n, distinct_n, asked_n, waiting_n, own_n, valid_n, invalid_n, risky_n, unresolved_n, known_n,
       credits, plan_known, plan_open, plan_ask, bad::text, created_at, updated_at, loaded_at, began_at, finished_at, keep_until`

// scanBackfill reads backfillColumns, and before them what more says.
func scanBackfill(row pgx.Row, more ...any) (b Backfill, err error) {
	var loaded, began, finished, keep *time.Time
	var bad string
	err = row.Scan(append(more, &b.ID, &b.Client, &b.Flow, &b.State, &b.Dry, &b.Rate, &b.MaxCredits, &b.LoadedLine, &b.Digest, &b.PlannedLine,
		&b.FedLine, &b.FedAll, &b.Rows, &b.Unreadable, &b.Refused, &b.Distinct, &b.Asked, &b.Waiting, &b.Own, &b.Valid, &b.Invalid, &b.Risky,
		&b.Unresolved, &b.Known, &b.Credits, &b.PlanKnown, &b.PlanOpen, &b.PlanAsk, &bad, &b.CreatedAt, &b.UpdatedAt,
		&loaded, &began, &finished, &keep)...)
	if err != nil {
		return Backfill{}, err
	}
	if err := json.Unmarshal([]byte(bad), &b.Bad); err != nil {
		return Backfill{}, err
	}
	b.CreatedAt, b.UpdatedAt = b.CreatedAt.UTC(), b.UpdatedAt.UTC()
	for _, t := range []struct {
		from *time.Time
		to   *time.Time
	}{{loaded, &b.LoadedAt}, {began, &b.BeganAt}, {finished, &b.FinishedAt}, {keep, &b.KeepUntil}} {
		if t.from != nil {
			*t.to = t.from.UTC()
		}
	}
	return b, nil
}

// backfillRow runs a statement that returns backfillColumns; none says what no row means.
func (s *Postgres) backfillRow(ctx context.Context, none error, sql string, args ...any) (Backfill, error) {
	conn, err := s.bulk.acquire(ctx)
	if err != nil {
		return Backfill{}, err
	}
	defer conn.Release()
	b, err := scanBackfill(conn.QueryRow(ctx, sql, args...))
	if errors.Is(err, pgx.ErrNoRows) {
		return Backfill{}, none
	}
	return b, err
}

// OpenBackfill makes a backfill whose input is then stored under the lease, or finds the one of the same source. That comes
// without a lease when its input is stored. ErrBackfillTerms: it has other terms. ErrBackfillBusy: someone is at it now.
func (s *Postgres) OpenBackfill(ctx context.Context, n NewBackfill) (_ Backfill, _ BackfillLease, err error) {
	const open = `
INSERT INTO backfills AS b (id, source, terms, client, flow, state, dry, rate, max_credits, lease_token, lease_until)
VALUES ($1, $2, $3, $4, $5, 'loading', $6, $7, $8, nextval('review_lease'), now() + $9::interval)
ON CONFLICT (source) DO UPDATE
   SET lease_token = excluded.lease_token, lease_until = excluded.lease_until
 WHERE b.state = 'loading' AND b.lease_until <= now() AND b.terms = excluded.terms
RETURNING number, lease_token, ` + backfillColumns
	const known = `SELECT terms, ` + backfillColumns + ` FROM backfills WHERE source = $1`
	defer s.metrics.observe("backfill", time.Now(), &err)
	if err := n.check(); err != nil {
		return Backfill{}, BackfillLease{}, err
	}
	var source []byte
	if n.Source != (Hash{}) {
		source = n.Source[:]
	}
	var most *int64
	if n.MaxCredits >= 0 {
		most = &n.MaxCredits
	}
	conn, err := s.bulk.acquire(ctx)
	if err != nil {
		return Backfill{}, BackfillLease{}, fmt.Errorf("open backfill: %w", err)
	}
	defer conn.Release()
	var l BackfillLease
	b, err := scanBackfill(conn.QueryRow(ctx, open, canonicalID(n.ID), source, n.Terms, n.Client, n.Flow, n.Dry, n.Rate, most, n.Lease),
		&l.number, &l.token)
	if err == nil {
		l.ID = b.ID
		return b, l, nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return Backfill{}, BackfillLease{}, fmt.Errorf("open backfill: %w", err)
	}
	var terms string
	b, err = scanBackfill(conn.QueryRow(ctx, known, source), &terms)
	switch {
	case err != nil:
		return Backfill{}, BackfillLease{}, fmt.Errorf("open backfill: %w", err)
	case terms != n.Terms:
		return Backfill{}, BackfillLease{}, ErrBackfillTerms
	case b.State == BackfillLoading:
		return Backfill{}, BackfillLease{}, ErrBackfillBusy
	}
	return b, BackfillLease{}, nil
}

// fenced runs f in a transaction that holds the backfill, if it is in one of the states and l is its lease.
// ErrLeaseLost: it is not.
func (s *Postgres) fenced(ctx context.Context, l BackfillLease, states []string, f func(tx pgx.Tx, b Backfill) error) error {
	const hold = `
SELECT ` + backfillColumns + ` FROM backfills WHERE number = $1 AND lease_token = $2 AND state = ANY ($3) FOR UPDATE`
	if l.token == 0 {
		return ErrLeaseLost
	}
	conn, err := s.bulk.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		b, err := scanBackfill(tx.QueryRow(ctx, hold, l.number, l.token, states))
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrLeaseLost
		}
		if err != nil {
			return err
		}
		return f(tx, b)
	})
}

// wrapped gives an error its operation, but for those that callers ask for.
func wrapped(operation string, err error) error {
	if err == nil || errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrUnknownID) || errors.Is(err, ErrBackfillState) || errors.Is(err, ErrQueueFull) {
		return err
	}
	return fmt.Errorf("%s: %w", operation, err)
}

// LoadBackfill stores a chunk of the input in one transaction, and holds on to the lease. ErrLeaseLost: someone else loads it,
// or it was cancelled.
func (s *Postgres) LoadBackfill(ctx context.Context, l BackfillLease, c BackfillChunk, lease time.Duration) (err error) {
	const loaded = `
UPDATE backfills SET loaded_line = $2, digest = $3, rows_n = rows_n + $4, unreadable_n = unreadable_n + $5, refused_n = refused_n + $6,
       updated_at = now(), lease_until = now() + $7::interval, bad = $8::jsonb
 WHERE number = $1`
	defer s.metrics.observe("backfill_load", time.Now(), &err)
	if err := c.check(); err != nil {
		return err
	}
	unreadable, refused := c.counts()
	err = s.fenced(ctx, l, []string{string(BackfillLoading)}, func(tx pgx.Tx, b Backfill) error {
		if c.Line <= b.LoadedLine || len(c.Rows) > 0 && c.Rows[0].Line <= b.LoadedLine {
			return errors.New("the lines are stored already")
		}
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"backfill_rows"}, []string{"backfill", "line", "fingerprint", "fault", "input"},
			pgx.CopyFromSlice(len(c.Rows), func(i int) ([]any, error) {
				r := c.Rows[i]
				input := sealRow(s.sealer, l.number, r)
				if r.Fault != "" {
					return []any{l.number, r.Line, nil, r.Fault, input}, nil
				}
				return []any{l.number, r.Line, r.Fingerprint[:], nil, input}, nil
			}))
		if err != nil {
			return err
		}
		if err := forgotten(ctx, tx, l.number, b.ID, b.LoadedLine, c.Line); err != nil {
			return err
		}
		bad, err := c.bad(b.Bad)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, loaded, l.number, c.Line, c.Digest, len(c.Rows), unreadable, refused, lease, bad)
		return err
	})
	return wrapped("load backfill", err)
}

// LoadedBackfill ends the loading, and gives the lease back.
func (s *Postgres) LoadedBackfill(ctx context.Context, l BackfillLease) (err error) {
	const loaded = `
UPDATE backfills SET state = 'merging', loaded_at = now(), updated_at = now(), lease_token = 0, lease_until = now()
 WHERE number = $1 AND lease_token = $2 AND state = 'loading'`
	defer s.metrics.observe("backfill_load", time.Now(), &err)
	if l.token == 0 {
		return ErrLeaseLost
	}
	n, err := s.bulk.exec(ctx, loaded, l.number, l.token)
	return oneRow("loaded backfill", n, err)
}

// ClaimBackfill leases the backfill that was left alone for the longest, of those with something to do; ok says whether there
// is one.
func (s *Postgres) ClaimBackfill(ctx context.Context, lease time.Duration) (b Backfill, l BackfillLease, ok bool, err error) {
	const claim = `
UPDATE backfills SET lease_token = nextval('review_lease'), lease_until = now() + $1::interval
 WHERE number = ANY (ARRAY(SELECT number FROM backfills
     WHERE state IN ('merging', 'planning', 'running', 'cancelling') AND lease_until <= now()
     ORDER BY lease_until LIMIT 1 FOR UPDATE SKIP LOCKED))
RETURNING number, lease_token, ` + backfillColumns
	defer s.metrics.observe("backfill", time.Now(), &err)
	conn, err := s.bulk.acquire(ctx)
	if err != nil {
		return b, l, false, fmt.Errorf("claim backfill: %w", err)
	}
	defer conn.Release()
	b, err = scanBackfill(conn.QueryRow(ctx, claim, lease), &l.number, &l.token)
	if errors.Is(err, pgx.ErrNoRows) {
		return b, BackfillLease{}, false, nil
	}
	if err != nil {
		return b, BackfillLease{}, false, fmt.Errorf("claim backfill: %w", err)
	}
	l.ID = b.ID
	return b, l, true, nil
}

// RenewBackfill holds on to a lease, and tells how the backfill stands. ErrLeaseLost: it is not ours any more.
func (s *Postgres) RenewBackfill(ctx context.Context, l BackfillLease, lease time.Duration) (_ Backfill, err error) {
	const renew = `
UPDATE backfills SET lease_until = now() + $3::interval WHERE number = $1 AND lease_token = $2 AND lease_token <> 0 RETURNING ` + backfillColumns
	defer s.metrics.observe("backfill", time.Now(), &err)
	b, err := s.backfillRow(ctx, ErrLeaseLost, renew, l.number, l.token, lease)
	return b, wrapped("renew backfill", err)
}

// ReleaseBackfill gives a lease back, so that another replica may go on at once. A lost lease is no error.
func (s *Postgres) ReleaseBackfill(ctx context.Context, l BackfillLease) (err error) {
	const release = `UPDATE backfills SET lease_token = 0, lease_until = now() WHERE number = $1 AND lease_token = $2 AND lease_token <> 0`
	defer s.metrics.observe("backfill", time.Now(), &err)
	_, err = s.bulk.exec(ctx, release, l.number, l.token)
	return wrapped("release backfill", err)
}

// MergeBackfill finds the distinct addresses among the next MaxBackfillMerge rows. After the last it is planning or running.
func (s *Postgres) MergeBackfill(ctx context.Context, l BackfillLease, lease time.Duration) (out Backfill, err error) {
	const (
		stretch = `
SELECT coalesce(max(line), 0), count(fingerprint), count(*) FROM (
    SELECT line, fingerprint FROM backfill_rows
     WHERE backfill = $1 AND line > (SELECT merged_line FROM backfills WHERE number = $1) ORDER BY line LIMIT $2) AS r`
		items = `
INSERT INTO backfill_items (fingerprint, backfill, first_line)
SELECT fingerprint, $1, min(line) FROM backfill_rows
 WHERE backfill = $1 AND line > (SELECT merged_line FROM backfills WHERE number = $1) AND line <= $2 AND fingerprint IS NOT NULL
 GROUP BY fingerprint ORDER BY fingerprint
ON CONFLICT DO NOTHING`
		repeats = `
INSERT INTO backfill_repeats (fingerprint, backfill, line)
SELECT r.fingerprint, $1, r.line
  FROM backfill_rows r JOIN backfill_items i ON i.fingerprint = r.fingerprint AND i.backfill = $1
 WHERE r.backfill = $1 AND r.line > (SELECT merged_line FROM backfills WHERE number = $1) AND r.line <= $2 AND i.first_line <> r.line`
		merged = `
UPDATE backfills SET merged_line = greatest(merged_line, $2), distinct_n = distinct_n + $3, updated_at = now(), lease_until = now() + $4::interval
 WHERE number = $1 RETURNING ` + backfillColumns
		through = `
UPDATE backfills SET state = CASE WHEN dry THEN 'planning' ELSE 'running' END, began_at = now(), updated_at = now(),
       lease_until = now() + $2::interval
 WHERE number = $1 RETURNING ` + backfillColumns
		mergedLine = `SELECT merged_line FROM backfills WHERE number = $1`
	)
	defer s.metrics.observe("backfill_step", time.Now(), &err)
	err = s.fenced(ctx, l, []string{string(BackfillMerging)}, func(tx pgx.Tx, b Backfill) error {
		var line, after int64
		var addresses, rows int64
		if err := tx.QueryRow(ctx, stretch, l.number, MaxBackfillMerge).Scan(&line, &addresses, &rows); err != nil {
			return err
		}
		if rows == 0 {
			out, err = scanBackfill(tx.QueryRow(ctx, through, l.number, lease))
			return err
		}
		if err := tx.QueryRow(ctx, mergedLine, l.number).Scan(&after); err != nil {
			return err
		}
		if err := forgotten(ctx, tx, l.number, b.ID, after, line); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, items, l.number, line)
		if err != nil {
			return err
		}
		if tag.RowsAffected() < addresses {
			if _, err := tx.Exec(ctx, repeats, l.number, line); err != nil {
				return err
			}
		}
		out, err = scanBackfill(tx.QueryRow(ctx, merged, l.number, line, tag.RowsAffected(), lease))
		return err
	})
	return out, wrapped("merge backfill", err)
}

// Backfill tells how one stands. ErrUnknownID: there is none (any more).
func (s *Postgres) Backfill(ctx context.Context, id string) (_ Backfill, err error) {
	const one = `SELECT ` + backfillColumns + ` FROM backfills WHERE id = $1`
	defer s.metrics.observe("backfill", time.Now(), &err)
	if id = canonicalID(id); id == "" {
		return Backfill{}, ErrUnknownID
	}
	b, err := s.backfillRow(ctx, ErrUnknownID, one, id)
	return b, wrapped("backfill", err)
}

// Backfills lists them, the newest first, at most MaxBackfills: those of a client, or of all when it is empty, and before an id,
// or from the newest on.
func (s *Postgres) Backfills(ctx context.Context, client, before string, limit int) (list []Backfill, err error) {
	const all = `
SELECT ` + backfillColumns + ` FROM backfills
 WHERE ($1 = '' OR client = $1) AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3`
	defer s.metrics.observe("backfill", time.Now(), &err)
	var from *string
	if id := canonicalID(before); id != "" {
		from = &id
	}
	conn, err := s.bulk.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("backfills: %w", err)
	}
	defer conn.Release()
	rows, err := conn.Query(ctx, all, client, from, min(limit, MaxBackfills))
	if err != nil {
		return nil, fmt.Errorf("backfills: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		b, err := scanBackfill(rows)
		if err != nil {
			return nil, fmt.Errorf("backfills: %w", err)
		}
		list = append(list, b)
	}
	return list, rows.Err()
}

// BackfillResults returns the results of the rows after a line, in the order of the input, at most MaxBackfillResults. Rows that
// are not merged yet have none. ErrUnknownID: there is no such backfill (any more).
func (s *Postgres) BackfillResults(ctx context.Context, id string, after int64, limit int) (results []BackfillResult, err error) {
	const (
		number = `SELECT number FROM backfills WHERE id = $1`
		page   = `
SELECT r.line, r.input, coalesce(r.fault, ''), coalesce(i.state, 0), coalesce(i.status, ''), coalesce(i.reason, ''), coalesce(i.decision, ''),
       i.suggestion, coalesce(i.first_line, 0)
FROM (SELECT line, fingerprint, fault, input FROM backfill_rows WHERE backfill = $1 AND line > $2 ORDER BY line LIMIT $3) AS r
LEFT JOIN LATERAL (
    SELECT state, status, reason, decision, suggestion, first_line FROM backfill_items
     WHERE fingerprint = r.fingerprint AND backfill = $1) AS i ON true
ORDER BY r.line`
	)
	defer s.metrics.observe("backfill", time.Now(), &err)
	if id = canonicalID(id); id == "" {
		return nil, ErrUnknownID
	}
	conn, err := s.bulk.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("backfill results: %w", err)
	}
	defer conn.Release()
	var n int64
	switch err := conn.QueryRow(ctx, number, id).Scan(&n); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, ErrUnknownID
	case err != nil:
		return nil, fmt.Errorf("backfill results: %w", err)
	}
	rows, err := conn.Query(ctx, page, n, after, min(limit, MaxBackfillResults))
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
