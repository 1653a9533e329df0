package fallback

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"validator-gw/internal/normalize"
)

// Erase: see [Postgres.Erase]. There is one writer, so nothing comes between.
func (s *SQLite) Erase(ctx context.Context, e Erasure) (_ Erased, err error) {
	defer s.metrics.observe("erase", time.Now(), &err)
	if err := e.check(); err != nil {
		return Erased{}, err
	}
	out, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (Erased, error) {
		var out Erased
		for _, fp := range e.Fingerprints {
			if err := erase(ctx, tx, fp, canonicalID(e.UpTo), &out); err != nil {
				return Erased{}, err
			}
		}
		return out, nil
	})
	if err != nil {
		return Erased{}, fmt.Errorf("erase: %w", err)
	}
	return out, nil
}

func erase(ctx context.Context, tx *tx, fp normalize.Fingerprint, upTo string, out *Erased) error {
	const (
		leave = `
INSERT INTO erasures AS e (fingerprint, up_to, forget_at) VALUES (?, ?, ?)
ON CONFLICT (fingerprint) DO UPDATE SET up_to = max(e.up_to, excluded.up_to), forget_at = excluded.forget_at`
		queue = `
DELETE FROM review_queue WHERE review_id = (SELECT id FROM reviews WHERE fingerprint = ? AND state = 'open')`
		open     = `DELETE FROM reviews WHERE fingerprint = ? AND state = 'open'`
		ended    = `DELETE FROM reviews WHERE fingerprint = ? AND state <> 'open'`
		verdicts = `DELETE FROM verdicts WHERE fingerprint = ?`
		answers  = `DELETE FROM idempotent_answers WHERE fingerprint = ?`
	)
	if _, err := tx.ExecContext(ctx, leave, fp[:], upTo, micros(time.Now().Add(forgetAfter))); err != nil {
		return err
	}
	lines, err := eraseBackfillsOf(ctx, tx, fp)
	if err != nil {
		return err
	}
	out.Backfill += lines
	var outstanding int64
	for _, step := range []struct {
		query string
		count *int64
	}{{queue, &outstanding}, {open, &out.Reviews}, {ended, &out.Reviews}, {verdicts, &out.Verdicts}, {answers, &out.Answers}} {
		n, err := changed(tx.ExecContext(ctx, step.query, fp[:]))
		if err != nil {
			return err
		}
		*step.count += n
	}
	tx.opened -= outstanding
	return nil
}

// erased says whether checks up to id are erased of this fingerprint.
func erased(ctx context.Context, tx *tx, fp normalize.Fingerprint, id string) (bool, error) {
	const erased = `SELECT 1 FROM erasures WHERE fingerprint = ? AND up_to >= ?`
	var one int
	err := tx.QueryRowContext(ctx, erased, fp[:], id).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}
