package fallback

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// tell writes the messages of a review that ended.
func tell(ctx context.Context, tx *tx, id, event string, now time.Time) error {
	const waiting = `SELECT client, flow, callback FROM review_watchers WHERE review_id = ? AND callback <> ''`
	rows, err := tx.QueryContext(ctx, waiting, id)
	if err != nil {
		return err
	}
	watchers, err := scanWatchers(rows)
	if err != nil {
		return err
	}
	for _, w := range watchers {
		if err := post(ctx, tx, id, w, event, now); err != nil {
			return err
		}
	}
	return nil
}

// post writes one message.
func post(ctx context.Context, tx *tx, id string, w Watcher, event string, now time.Time) error {
	const post = `
INSERT INTO outbox (id, review_id, callback, event, client, flow, recorded_at, due_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`
	_, err := tx.ExecContext(ctx, post, uuid.NewString(), id, w.Callback, event, w.Client, w.Flow, micros(now), micros(now))
	return err
}

func scanWatchers(rows *sql.Rows) (watchers []Watcher, _ error) {
	defer rows.Close()
	for rows.Next() {
		var w Watcher
		if err := rows.Scan(&w.Client, &w.Flow, &w.Callback); err != nil {
			return nil, err
		}
		watchers = append(watchers, w)
	}
	return watchers, rows.Err()
}

// ClaimNotices: see [Postgres.ClaimNotices].
func (s *SQLite) ClaimNotices(ctx context.Context, room map[string]int, lease time.Duration) (_ []Notice, err error) {
	const due = `SELECT 1 FROM outbox WHERE callback = ? AND given_up_at IS NULL AND due_at <= ? LIMIT 1`
	defer s.metrics.observe("claim", time.Now(), &err)
	names, most := rooms(room)
	some := false
	for i := 0; i < len(names) && !some; i++ { // a look costs no transaction
		one, err := column(s.reads.QueryContext(ctx, due, names[i], micros(time.Now())))
		if err != nil {
			return nil, fmt.Errorf("claim notices: %w", err)
		}
		some = len(one) > 0
	}
	if !some {
		return nil, nil
	}
	out, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (out []Notice, err error) {
		now := time.Now()
		for i, name := range names {
			more, err := claimNotices(ctx, tx, name, most[i], now, lease)
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		}
		return out, nil
	})
	if err != nil {
		return nil, fmt.Errorf("claim notices: %w", err)
	}
	slices.SortStableFunc(out, func(a, b Notice) int { return a.RecordedAt.Compare(b.RecordedAt) })
	return out, nil
}

func claimNotices(ctx context.Context, tx *tx, callback string, most int, now time.Time, lease time.Duration) (out []Notice, err error) {
	const (
		due = `SELECT id FROM outbox WHERE callback = ? AND given_up_at IS NULL AND due_at <= ? ORDER BY due_at LIMIT ?`
		// A token for each row; they need not be used up.
		tokens = `UPDATE review_lease SET last = last + ? RETURNING last`
		claim  = `
UPDATE outbox SET due_at = ?, lease_token = ?, attempts = attempts + 1 WHERE id = ?
RETURNING review_id, client, flow, event, recorded_at, attempts`
	)
	ids, err := column(tx.QueryContext(ctx, due, callback, micros(now), most))
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	var last int64
	if err := tx.QueryRowContext(ctx, tokens, len(ids)).Scan(&last); err != nil {
		return nil, err
	}
	for i, id := range ids {
		n := Notice{ID: id, Watcher: Watcher{Callback: callback}, Token: last - int64(i), Now: now.UTC()}
		var recorded sql.NullInt64
		if err := tx.QueryRowContext(ctx, claim, micros(now.Add(lease)), n.Token, id).
			Scan(&n.ReviewID, &n.Watcher.Client, &n.Watcher.Flow, &n.Event, &recorded, &n.Attempts); err != nil {
			return nil, err
		}
		n.RecordedAt = fromMicros(recorded)
		out = append(out, n)
	}
	return out, nil
}

// EndNotice: see [Postgres.EndNotice].
func (s *SQLite) EndNotice(ctx context.Context, n Notice, delivered bool, why string) (err error) {
	const (
		drop   = `DELETE FROM outbox WHERE id = ? AND lease_token = ? AND lease_token <> 0`
		giveUp = `UPDATE outbox SET given_up_at = ?3, lease_token = 0, why = ?4 WHERE id = ?1 AND lease_token = ?2 AND lease_token <> 0`
	)
	defer s.metrics.observe("settle", time.Now(), &err)
	done, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (int64, error) {
		if delivered {
			return changed(tx.ExecContext(ctx, drop, n.ID, n.Token))
		}
		return changed(tx.ExecContext(ctx, giveUp, n.ID, n.Token, micros(time.Now()), why))
	})
	return oneRow("end notice", done, err)
}

// DelayNotice: see [Postgres.DelayNotice].
func (s *SQLite) DelayNotice(ctx context.Context, n Notice, in time.Duration, why string) (err error) {
	const delay = `UPDATE outbox SET due_at = ?, lease_token = 0, why = ? WHERE id = ? AND lease_token = ? AND lease_token <> 0`
	defer s.metrics.observe("postpone", time.Now(), &err)
	done, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (int64, error) {
		return changed(tx.ExecContext(ctx, delay, micros(time.Now().Add(max(in, 0))), why, n.ID, n.Token))
	})
	return oneRow("delay notice", done, err)
}

// OutboxStats: see [Postgres.OutboxStats].
func (s *SQLite) OutboxStats(ctx context.Context) (o OutboxStats, err error) {
	const stats = `
SELECT count(*) FILTER (WHERE given_up_at IS NULL), count(*) FILTER (WHERE given_up_at IS NOT NULL),
       min(recorded_at) FILTER (WHERE given_up_at IS NULL) FROM outbox`
	defer s.metrics.observe("stats", time.Now(), &err)
	var oldest sql.NullInt64
	if err := s.reads.QueryRowContext(ctx, stats).Scan(&o.Waiting, &o.GivenUp, &oldest); err != nil {
		return OutboxStats{}, fmt.Errorf("outbox stats: %w", err)
	}
	if now := time.Now(); oldest.Valid {
		o.Oldest = max(now.Sub(fromMicros(oldest)), 0)
	}
	return o, nil
}
