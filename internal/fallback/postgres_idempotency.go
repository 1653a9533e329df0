package fallback

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// reserveKey takes a key that is free, or whose lease or answer is past its time, and else reads what stands under it.
// It brings no row when what stands under it was written after this statement began: the next one sees it.
const reserveKey = `
WITH mine AS (
    INSERT INTO idempotent_answers AS a (key, request, fingerprint, token, until)
    VALUES ($1, $2, $3, $4, now() + $5::interval)
    ON CONFLICT (key) DO UPDATE
       SET request = excluded.request, fingerprint = excluded.fingerprint, token = excluded.token, answer = NULL,
           until = excluded.until
     WHERE a.until <= now() OR a.token = excluded.token
    RETURNING token, request, answer
)
SELECT token, request, answer FROM mine
UNION ALL
SELECT token, request, answer FROM idempotent_answers WHERE key = $1 AND until > now() AND NOT EXISTS (SELECT FROM mine)`

// reserveTries bounds how often a reservation meets a row that was written, or removed, in that very moment.
const reserveTries = 4

// ReserveKey holds a key for the caller if nobody does, in one statement: then Token is set. Else it returns the
// request that holds it, with its answer once there is one. A lease that ran out and an answer past its time are
// nothing. Of any number of callers at the same time exactly one gets the key.
//
// When the outcome is unknown it is tried once more while ctx allows. After an error the key may be held until the
// lease ends.
func (s *Postgres) ReserveKey(ctx context.Context, r Reservation) (_ Held, err error) {
	defer s.metrics.observe("reserve_key", time.Now(), &err)
	if err := r.check(); err != nil {
		return Held{}, err
	}
	token := newToken()
	var h Held
	var by int64
	var request []byte
	for range reserveTries {
		err = s.again(ctx, func(conn *pgxpool.Conn) error {
			return conn.QueryRow(ctx, reserveKey, r.Key[:], r.Request[:], r.fingerprint(), token, r.Lease).
				Scan(&by, &request, &h.Answer)
		})
		if !errors.Is(err, pgx.ErrNoRows) {
			break
		}
	}
	if err != nil {
		return Held{}, fmt.Errorf("reserve key: %w", err)
	}
	h.Request = Hash(request)
	if by == token {
		h.Token = token
	}
	return h, nil
}

// again runs do on a connection for requests, and a second time on one that is known to live when the first may have
// failed with its connection. do must be such that twice is once.
func (s *Postgres) again(ctx context.Context, do func(conn *pgxpool.Conn) error) error {
	once := func(acquire func(context.Context) (*pgxpool.Conn, error)) error {
		conn, err := acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		return do(conn)
	}
	err := once(s.record.acquire)
	if err == nil || errors.Is(err, pgx.ErrNoRows) || ctx.Err() != nil || !outcomeUnknown(err) && !pgconn.SafeToRetry(err) {
		return err
	}
	return once(s.record.acquireLive)
}

// ReadKey returns what stands under a key, and never a token.
func (s *Postgres) ReadKey(ctx context.Context, key Hash) (_ Held, err error) {
	const readKey = `SELECT request, answer FROM idempotent_answers WHERE key = $1 AND until > now()`
	defer s.metrics.observe("read_key", time.Now(), &err)
	var request []byte
	var h Held
	switch err := s.record.queryRow(ctx, []any{&request, &h.Answer}, readKey, key[:]); {
	case errors.Is(err, pgx.ErrNoRows):
		return Held{Free: true}, nil
	case err != nil:
		return Held{}, fmt.Errorf("read key: %w", err)
	}
	h.Request = Hash(request)
	return h, nil
}

// KeepAnswer ends a hold on a key: the answer, 1 to MaxAnswer bytes, stands under it for keep from now. ErrLeaseLost:
// another request took the key over, or the address was erased; nothing was written.
func (s *Postgres) KeepAnswer(ctx context.Context, key Hash, token int64, answer []byte, keep time.Duration) (err error) {
	const keepAnswer = `
UPDATE idempotent_answers SET answer = $3, until = now() + $4::interval WHERE key = $1 AND token = $2`
	defer s.metrics.observe("keep_answer", time.Now(), &err)
	if err := checkAnswer(answer, keep); err != nil {
		return fmt.Errorf("keep answer: %w", err)
	}
	var n int64
	err = s.again(ctx, func(conn *pgxpool.Conn) error {
		tag, err := conn.Exec(ctx, keepAnswer, key[:], token, answer, keep)
		n = tag.RowsAffected()
		return err
	})
	return oneRow("keep answer", n, err)
}

// FreeKey ends a hold on a key with no answer: the next request gets it. It is no error when the hold was lost.
func (s *Postgres) FreeKey(ctx context.Context, key Hash, token int64) (err error) {
	const freeKey = `DELETE FROM idempotent_answers WHERE key = $1 AND token = $2 AND answer IS NULL`
	defer s.metrics.observe("free_key", time.Now(), &err)
	if _, err := s.record.exec(ctx, freeKey, key[:], token); err != nil {
		return fmt.Errorf("free key: %w", err)
	}
	return nil
}
