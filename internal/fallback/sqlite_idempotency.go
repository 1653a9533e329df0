package fallback

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// ReserveKey: see [Postgres.ReserveKey]. A key that is held or answered is only read.
func (s *SQLite) ReserveKey(ctx context.Context, r Reservation) (_ Held, err error) {
	defer s.metrics.observe("reserve_key", time.Now(), &err)
	if err := r.check(); err != nil {
		return Held{}, err
	}
	h, err := readKey(ctx, s.reads, r.Key)
	if err == nil && h.Free {
		h, err = write(ctx, s.writer, func(ctx context.Context, tx *tx) (Held, error) {
			h, err := readKey(ctx, tx, r.Key)
			if err != nil || !h.Free {
				return h, err
			}
			const reserve = `
INSERT INTO idempotent_answers (key, request, fingerprint, token, until) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (key) DO UPDATE
   SET request = excluded.request, fingerprint = excluded.fingerprint, token = excluded.token, answer = NULL,
       until = excluded.until`
			h = Held{Token: newToken(), Request: r.Request}
			_, err = tx.ExecContext(ctx, reserve, r.Key[:], r.Request[:], r.fingerprint(), h.Token, micros(time.Now().Add(r.Lease)))
			return h, err
		})
	}
	if err != nil {
		return Held{}, fmt.Errorf("reserve key: %w", err)
	}
	return h, nil
}

func readKey(ctx context.Context, q querier, key Hash) (Held, error) {
	const readKey = `SELECT request, answer FROM idempotent_answers WHERE key = ? AND until > ?`
	var request []byte
	var h Held
	switch err := q.QueryRowContext(ctx, readKey, key[:], micros(time.Now())).Scan(&request, &h.Answer); {
	case errors.Is(err, sql.ErrNoRows):
		return Held{Free: true}, nil
	case err != nil:
		return Held{}, err
	}
	h.Request = Hash(request)
	return h, nil
}

// ReadKey: see [Postgres.ReadKey].
func (s *SQLite) ReadKey(ctx context.Context, key Hash) (_ Held, err error) {
	defer s.metrics.observe("read_key", time.Now(), &err)
	h, err := readKey(ctx, s.reads, key)
	if err != nil {
		return Held{}, fmt.Errorf("read key: %w", err)
	}
	return h, nil
}

// KeepAnswer: see [Postgres.KeepAnswer].
func (s *SQLite) KeepAnswer(ctx context.Context, key Hash, token int64, answer []byte, keep time.Duration) (err error) {
	const keepAnswer = `UPDATE idempotent_answers SET answer = ?, until = ? WHERE key = ? AND token = ?`
	defer s.metrics.observe("keep_answer", time.Now(), &err)
	if err := checkAnswer(answer, keep); err != nil {
		return fmt.Errorf("keep answer: %w", err)
	}
	n, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (int64, error) {
		return changed(tx.ExecContext(ctx, keepAnswer, answer, micros(time.Now().Add(keep)), key[:], token))
	})
	return oneRow("keep answer", n, err)
}

// FreeKey: see [Postgres.FreeKey].
func (s *SQLite) FreeKey(ctx context.Context, key Hash, token int64) (err error) {
	const freeKey = `DELETE FROM idempotent_answers WHERE key = ? AND token = ? AND answer IS NULL`
	defer s.metrics.observe("free_key", time.Now(), &err)
	err = s.writer.do(ctx, func(ctx context.Context, tx *tx) error {
		_, err := tx.ExecContext(ctx, freeKey, key[:], token)
		return err
	})
	if err != nil {
		return fmt.Errorf("free key: %w", err)
	}
	return nil
}
