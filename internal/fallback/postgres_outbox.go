package fallback

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Messages are written by a statement of its own, in the transaction that ended their reviews: a watcher may have been
// committed while that waited for the row, and a statement sees only what was there when it began. Which reviews this
// transaction ended is told by their rows' version. The look at each is kept apart (OFFSET 0) and names no state: with old
// statistics a planner takes an index of the ended ones for the shortest way, and reads all of it.
const tellEnds = `
WITH w AS MATERIALIZED (
    SELECT review_id, client, flow, callback FROM review_watchers WHERE callback <> '' AND review_id = ANY ($1::text[]::uuid[])
)
INSERT INTO outbox (review_id, callback, event, client, flow)
SELECT w.review_id, w.callback, CASE r.state WHEN 'dead' THEN '` + NoticeDead + `' ELSE '` + NoticeSettled + `' END, w.client, w.flow
  FROM w CROSS JOIN LATERAL (
      SELECT state FROM reviews WHERE id = w.review_id AND xmin = pg_current_xact_id()::xid OFFSET 0) AS r`

// endAndTell runs a statement that ends some of these reviews, and then tellEnds, in one transaction and round trip. It returns
// the ids that end returned.
func (b bulkhead) endAndTell(ctx context.Context, reviews []string, end string, args ...any) ([]string, error) {
	conn, err := b.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	var both pgx.Batch
	both.Queue(end, args...)
	both.Queue(tellEnds, reviews)
	results := conn.SendBatch(ctx, &both)
	rows, _ := results.Query() // its error is in rows
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil {
		_, err = results.Exec()
	}
	if closed := results.Close(); err == nil { // it is committed by then, or not at all
		err = closed
	}
	return ids, err
}

// ClaimNotices leases due messages of these callbacks, of each as many as its number says, the longest due first. It is
// counted as the operation claim.
func (s *Postgres) ClaimNotices(ctx context.Context, room map[string]int, lease time.Duration) (_ []Notice, err error) {
	const claim = `
WITH due AS MATERIALIZED (
    SELECT o.id
      FROM unnest($1::text[], $2::integer[]) AS c (callback, room) CROSS JOIN LATERAL (
          SELECT id FROM outbox
           WHERE callback = c.callback AND given_up_at IS NULL AND due_at <= now()
           ORDER BY due_at LIMIT c.room FOR UPDATE SKIP LOCKED) AS o
)
UPDATE outbox o SET due_at = now() + $3::interval, lease_token = nextval('review_lease'), attempts = o.attempts + 1
  FROM due WHERE o.id = due.id
RETURNING o.id::text, o.review_id::text, o.client, o.flow, o.callback, o.event, o.recorded_at, o.attempts, o.lease_token, now()`
	defer s.metrics.observe("claim", time.Now(), &err)
	names, most := rooms(room)
	if len(names) == 0 {
		return nil, nil
	}
	conn, err := s.work.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("claim notices: %w", err)
	}
	defer conn.Release()
	rows, _ := conn.Query(ctx, claim, names, most, lease) // its error is in rows
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (n Notice, err error) {
		err = row.Scan(&n.ID, &n.ReviewID, &n.Watcher.Client, &n.Watcher.Flow, &n.Watcher.Callback, &n.Event, &n.RecordedAt, &n.Attempts, &n.Token, &n.Now)
		n.RecordedAt, n.Now = n.RecordedAt.UTC(), n.Now.UTC()
		return n, err
	})
	if err != nil {
		return nil, fmt.Errorf("claim notices: %w", err)
	}
	slices.SortFunc(out, func(a, b Notice) int { return a.RecordedAt.Compare(b.RecordedAt) })
	return out, nil
}

// EndNotice ends a claimed message: it is deleted when it was delivered, and else kept for a week with why. ErrLeaseLost:
// the token is not the message's own, or it is gone with its review, and nothing was written. It is counted as the
// operation settle.
func (s *Postgres) EndNotice(ctx context.Context, n Notice, delivered bool, why string) (err error) {
	const (
		drop   = `DELETE FROM outbox WHERE id = $1 AND lease_token = $2 AND lease_token <> 0`
		giveUp = `UPDATE outbox SET given_up_at = now(), lease_token = 0, why = $3 WHERE id = $1 AND lease_token = $2 AND lease_token <> 0`
	)
	defer s.metrics.observe("settle", time.Now(), &err)
	var done int64
	if delivered {
		done, err = s.work.exec(ctx, drop, n.ID, n.Token)
	} else {
		done, err = s.work.exec(ctx, giveUp, n.ID, n.Token, why)
	}
	return oneRow("end notice", done, err)
}

// DelayNotice gives a claimed message back, due again after in; why says what stood in the way. ErrLeaseLost: as in
// EndNotice. It is counted as the operation postpone.
func (s *Postgres) DelayNotice(ctx context.Context, n Notice, in time.Duration, why string) (err error) {
	const delay = `UPDATE outbox SET due_at = now() + $3::interval, lease_token = 0, why = $4 WHERE id = $1 AND lease_token = $2 AND lease_token <> 0`
	defer s.metrics.observe("postpone", time.Now(), &err)
	done, err := s.work.exec(ctx, delay, n.ID, n.Token, max(in, 0), why)
	return oneRow("delay notice", done, err)
}

// OutboxStats reads the facts of the outbox. It reads the whole of it: ask every few seconds at most. It is counted as the
// operation stats.
func (s *Postgres) OutboxStats(ctx context.Context) (o OutboxStats, err error) {
	const stats = `
SELECT count(*) FILTER (WHERE given_up_at IS NULL), count(*) FILTER (WHERE given_up_at IS NOT NULL),
       greatest(coalesce((extract(epoch FROM now() - min(recorded_at) FILTER (WHERE given_up_at IS NULL)) * 1000000)::bigint, 0), 0)
  FROM outbox`
	defer s.metrics.observe("stats", time.Now(), &err)
	var oldest int64
	if err = s.admin.queryRow(ctx, []any{&o.Waiting, &o.GivenUp, &oldest}, stats); err != nil {
		return OutboxStats{}, fmt.Errorf("outbox stats: %w", err)
	}
	o.Oldest = time.Duration(oldest) * time.Microsecond
	return o, nil
}

const sweepNotices = `
DELETE FROM outbox WHERE id = ANY (ARRAY(
    SELECT id FROM outbox WHERE coalesce(given_up_at, recorded_at) < now() - $1::interval
    ORDER BY coalesce(given_up_at, recorded_at) LIMIT $2 FOR UPDATE SKIP LOCKED))`
