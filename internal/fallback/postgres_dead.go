package fallback

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"validator-gw/internal/verdict"
)

// DeadReviews returns dead reviews in the order in which they died, after a page's last, at most limit and MaxDead. It is
// counted as the operation review.
func (s *Postgres) DeadReviews(ctx context.Context, after DeadPage, limit int) (_ []Review, err error) {
	const dead = `
SELECT ` + reviewColumns + ` FROM reviews r LEFT JOIN review_queue q ON q.review_id = r.id
 WHERE r.state = 'dead' AND r.ended_at >= $1 AND (r.ended_at, r.id) > ($1, $2::uuid) ORDER BY r.ended_at, r.id LIMIT $3`
	defer s.metrics.observe("review", time.Now(), &err)
	at, id := after.after()
	conn, err := s.admin.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("dead reviews: %w", err)
	}
	defer conn.Release()
	rows, err := conn.Query(ctx, dead, at, id, min(limit, MaxDead))
	if err != nil {
		return nil, fmt.Errorf("dead reviews: %w", err)
	}
	defer rows.Close()
	var out []Review
	for rows.Next() {
		var row reviewRow
		if err := rows.Scan(row.dest()...); err != nil {
			return nil, fmt.Errorf("dead reviews: %w", err)
		}
		r, err := s.review(&row)
		if err != nil {
			return nil, fmt.Errorf("dead reviews: %w", err)
		}
		out = append(out, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("dead reviews: %w", err)
	}
	return out, nil
}

// replay starts the review's age anew, by way of its outage: one that was dead for a week would else end at once.
const replay = `
WITH r AS (
    UPDATE reviews SET state = 'open', reason = $2, ended_at = NULL, updated_at = now()
     WHERE id = $1 AND state = 'dead'
    RETURNING id, domain_key, cause, recorded_at
), q AS (
    INSERT INTO review_queue (review_id, domain_key, due_at, priority, cause, outage_ms)
    SELECT id, domain_key, now(), $3, cause, greatest((extract(epoch FROM now() - recorded_at) * 1000)::bigint, 0) FROM r
)
SELECT count(*) FROM r`

// Replay makes a dead review open and due again, as if it had just been recorded: no attempts, no claims, no age. Errors
// are ErrUnknownID, ErrNotDead and ErrReplaced. The bound of open reviews does not stop it. It is counted as the operation
// kill.
func (s *Postgres) Replay(ctx context.Context, id string) (err error) {
	defer s.metrics.observe("kill", time.Now(), &err)
	if id = canonicalID(id); id == "" {
		return ErrUnknownID
	}
	var n int64
	err = s.work.queryRow(ctx, []any{&n}, replay, id, string(verdict.RevalidationRequested), int16(PriorityBackground))
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.ConstraintName == "reviews_open_fingerprint" {
		return ErrReplaced
	}
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	s.open.Add(n)
	return s.wasDead(ctx, id, n)
}

// Drop gives a dead review up: its address is erased, its status stays what it was, and it is kept as long as settled ones
// are, from its death. Errors are ErrUnknownID and ErrNotDead. It is counted as the operation kill.
func (s *Postgres) Drop(ctx context.Context, id string) (err error) {
	const drop = `
UPDATE reviews SET state = 'settled', verdict = $2::jsonb, address = NULL WHERE id = $1 AND state = 'dead' AND ended_at = $3`
	defer s.metrics.observe("kill", time.Now(), &err)
	r, err := s.Review(ctx, id)
	if err != nil {
		return err
	}
	if r.State != Dead {
		return ErrNotDead
	}
	body, err := encodeVerdict(dropped(r))
	if err != nil {
		return fmt.Errorf("drop: %w", err)
	}
	n, err := s.work.exec(ctx, drop, r.ID, body, r.EndedAt)
	if err != nil {
		return fmt.Errorf("drop: %w", err)
	}
	return s.wasDead(ctx, r.ID, n)
}

// wasDead says why no row was changed.
func (s *Postgres) wasDead(ctx context.Context, id string, n int64) error {
	if n > 0 {
		return nil
	}
	if _, err := s.Review(ctx, id); err != nil {
		return err
	}
	return ErrNotDead
}
