package fallback

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"validator-gw/internal/verdict"
)

// DeadReviews: see [Postgres.DeadReviews].
func (s *SQLite) DeadReviews(ctx context.Context, after DeadPage, limit int) (_ []Review, err error) {
	const dead = `
SELECT id FROM reviews WHERE state = 'dead' AND ended_at >= ?1 AND (ended_at, id) > (?1, ?2) ORDER BY ended_at, id LIMIT ?3`
	defer s.metrics.observe("review", time.Now(), &err)
	at, id := after.after()
	ids, err := column(s.reads.QueryContext(ctx, dead, micros(at), id, min(limit, MaxDead)))
	if err != nil {
		return nil, fmt.Errorf("dead reviews: %w", err)
	}
	var out []Review
	for _, id := range ids {
		switch r, err := s.scanReview(s.reads.QueryRowContext(ctx, sqliteReview+`WHERE r.id = ? AND r.state = 'dead'`, id)); {
		case err == nil:
			out = append(out, r)
		case !errors.Is(err, sql.ErrNoRows): // replayed or dropped in this moment
			return nil, fmt.Errorf("dead reviews: %w", err)
		}
	}
	return out, nil
}

// deadReview returns a dead review.
func (s *SQLite) deadReview(ctx context.Context, tx *tx, id string) (Review, error) {
	r, err := s.scanReview(tx.QueryRowContext(ctx, sqliteReview+`WHERE r.id = ?`, canonicalID(id)))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Review{}, ErrUnknownID
	case err == nil && r.State != Dead:
		return Review{}, ErrNotDead
	}
	return r, err
}

// Replay: see [Postgres.Replay].
func (s *SQLite) Replay(ctx context.Context, id string) (err error) {
	const open = `UPDATE reviews SET state = 'open', reason = ?, ended_at = NULL, updated_at = ? WHERE id = ?`
	const enqueue = `
INSERT INTO review_queue (review_id, domain_key, due_at, priority, cause, outage_ms)
SELECT id, domain_key, ?1, ?2, cause, max((?1 - recorded_at) / 1000, 0) FROM reviews WHERE id = ?3`
	defer s.metrics.observe("kill", time.Now(), &err)
	err = s.writer.do(ctx, func(ctx context.Context, tx *tx) error {
		r, err := s.deadReview(ctx, tx, id)
		if err != nil {
			return err
		}
		switch _, err := s.openReview(ctx, tx, r.Fingerprint); {
		case err == nil:
			return ErrReplaced
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		now := micros(time.Now())
		if _, err := tx.ExecContext(ctx, open, string(verdict.RevalidationRequested), now, r.ID); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, enqueue, now, PriorityBackground, r.ID)
		tx.opened++
		return err
	})
	return deadEnd("replay", err)
}

// Drop: see [Postgres.Drop].
func (s *SQLite) Drop(ctx context.Context, id string) (err error) {
	const drop = `UPDATE reviews SET state = 'settled', verdict = ?, address = NULL WHERE id = ?`
	defer s.metrics.observe("kill", time.Now(), &err)
	err = s.writer.do(ctx, func(ctx context.Context, tx *tx) error {
		r, err := s.deadReview(ctx, tx, id)
		if err != nil {
			return err
		}
		body, err := encodeVerdict(dropped(r))
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, drop, body, r.ID)
		return err
	})
	return deadEnd("drop", err)
}

// deadEnd leaves answers as they are and says of everything else where it came from.
func deadEnd(operation string, err error) error {
	for _, answer := range []error{ErrUnknownID, ErrNotDead, ErrReplaced} {
		if errors.Is(err, answer) {
			return answer
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", operation, err)
	}
	return nil
}
