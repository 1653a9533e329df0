package fallback

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"validator-gw/internal/normalize"
)

// Lock order: the row of erasures, those of backfills, then what every other statement locks in its own order (reviews by id, review_queue;
// verdicts by id). So two that erase one address come one after the other.

// reviewsOf finds open and ended reviews by an index each.
const reviewsOf = `
    SELECT id FROM reviews WHERE fingerprint = ANY ($1::bytea[]) AND state = 'open'
    UNION ALL
    SELECT id FROM reviews WHERE fingerprint = ANY ($1::bytea[]) AND state <> 'open'`

// lockErased waits for whoever is about to end the review, so that the next statement sees what that wrote. It locks the
// ended ones, too, for the sake of the order: a Record that waited for a review which ended meanwhile holds that one still,
// and wants the one that was opened after it.
const lockErased = `SELECT FROM reviews WHERE id = ANY (ARRAY(` + reviewsOf + `)) ORDER BY id FOR UPDATE`

const leaveErasure = `
INSERT INTO erasures AS e (fingerprint, up_to, forget_at)
SELECT fingerprint, $2::uuid, now() + $3::interval FROM unnest($1::bytea[]) AS i (fingerprint) ORDER BY 1
ON CONFLICT (fingerprint) DO UPDATE
   SET up_to = greatest(e.up_to, excluded.up_to), forget_at = excluded.forget_at`

const eraseAddress = `
WITH found AS (` + reviewsOf + `
), locked AS MATERIALIZED (
    SELECT id FROM reviews WHERE id = ANY (ARRAY(SELECT id FROM found)) ORDER BY id FOR UPDATE
), queue AS (
    DELETE FROM review_queue WHERE review_id = ANY (ARRAY(SELECT id FROM locked)) RETURNING 1
), gone AS (
    DELETE FROM reviews WHERE id = ANY (ARRAY(SELECT id FROM locked)) RETURNING 1
), bought AS MATERIALIZED (
    SELECT id FROM verdicts WHERE fingerprint = ANY ($1::bytea[]) ORDER BY id FOR UPDATE
), paid AS (
    DELETE FROM verdicts WHERE id = ANY (ARRAY(SELECT id FROM bought)) RETURNING 1
), answers AS (
    DELETE FROM idempotent_answers WHERE fingerprint = ANY ($1::bytea[]) RETURNING 1
)
SELECT (SELECT count(*) FROM queue), (SELECT count(*) FROM gone), (SELECT count(*) FROM paid), (SELECT count(*) FROM answers)`

// eraseTries bounds the tries of one erasure: each that fails has waited for lock_timeout, or for deadlock_timeout.
const eraseTries = 3

// Erase removes all that is kept of an address in one transaction: its reviews, open and ended, with their watchers and
// their work, its verdicts and the answers under its Idempotency-Keys. A worker that holds the review loses its lease.
// For an hour it remembers the fingerprints, so that checks that began before write nothing any more: Record is
// ErrErased for them, and PutVerdicts passes over them. What another replica was writing in that very moment is removed
// by the next Sweep. Where others' locks stand in the way it tries again, three times in all.
func (s *Postgres) Erase(ctx context.Context, e Erasure) (_ Erased, err error) {
	defer s.metrics.observe("erase", time.Now(), &err)
	if err := e.check(); err != nil {
		return Erased{}, err
	}
	fps := make([][]byte, len(e.Fingerprints))
	for i := range e.Fingerprints {
		fps[i] = e.Fingerprints[i][:]
	}
	conn, err := s.work.acquire(ctx)
	if err != nil {
		return Erased{}, fmt.Errorf("erase: %w", err)
	}
	defer conn.Release()
	var open int64
	var out Erased
	all := func(tx pgx.Tx) (err error) {
		if _, err := tx.Exec(ctx, leaveErasure, fps, e.UpTo, forgetAfter); err != nil {
			return err
		}
		if out.Backfill, err = eraseBackfills(ctx, tx, fps); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, lockErased, fps); err != nil {
			return err
		}
		return tx.QueryRow(ctx, eraseAddress, fps).Scan(&open, &out.Reviews, &out.Verdicts, &out.Answers)
	}
	for try := 1; ; try++ {
		if err = pgx.BeginFunc(ctx, conn, all); try == eraseTries || !steppedBack(err) {
			break
		}
	}
	if err != nil {
		return Erased{}, fmt.Errorf("erase: %w", err)
	}
	s.open.Add(-open)
	return out, nil
}

// Remembered is an erasure that other replicas have to learn of.
type Remembered struct {
	Fingerprint normalize.Fingerprint
	UpTo        string // checks up to this id are erased
}

// Bounds of Erasures: the most of one call, and how long an erasure may take to be committed after it got its time.
const (
	maxErasures = 10_000
	commitTime  = 20 * time.Second // over the transaction_timeout of the connections
)

// Erasures returns those that became known after the time that the last call returned; the zero time asks for all that
// are remembered. The same one may come several times.
func (s *Postgres) Erasures(ctx context.Context, since time.Time) (_ []Remembered, next time.Time, err error) {
	const erasures = `
SELECT fingerprint, up_to::text, forget_at FROM erasures WHERE forget_at > $1 ORDER BY forget_at LIMIT $2`
	defer s.metrics.observe("erasures", time.Now(), &err)
	conn, err := s.admin.acquire(ctx)
	if err != nil {
		return nil, since, fmt.Errorf("erasures: %w", err)
	}
	defer conn.Release()
	var out []Remembered
	var fp []byte
	var upTo string
	var at time.Time
	rows, _ := conn.Query(ctx, erasures, since, maxErasures) // its error is in rows
	_, err = pgx.ForEachRow(rows, []any{&fp, &upTo, &at}, func() error {
		out = append(out, Remembered{normalize.Fingerprint(fp), upTo})
		return nil
	})
	switch {
	case err != nil:
		return nil, since, fmt.Errorf("erasures: %w", err)
	case len(out) == 0:
		return nil, since, nil
	case len(out) < maxErasures:
		at = at.Add(-commitTime)
	}
	if at.Before(since) {
		at = since
	}
	return out, at, nil
}

// What a statement that began before an erasure wrote after it. An address that is being erased just now is passed over.
const sweepErasedVerdicts = `
WITH e AS MATERIALIZED (
    SELECT fingerprint, up_to FROM erasures FOR UPDATE SKIP LOCKED
), found AS MATERIALIZED (
    SELECT v.id FROM verdicts v JOIN e ON v.fingerprint = e.fingerprint AND v.id <= e.up_to ORDER BY v.id FOR UPDATE OF v
)
DELETE FROM verdicts WHERE id = ANY (ARRAY(SELECT id FROM found))`

const sweepErasedReviews = `
WITH e AS MATERIALIZED (
    SELECT fingerprint, up_to FROM erasures FOR UPDATE SKIP LOCKED
), found AS (
    SELECT r.id FROM e JOIN reviews r ON r.fingerprint = e.fingerprint AND r.id <= e.up_to AND r.state = 'open'
    UNION ALL
    SELECT r.id FROM e JOIN reviews r ON r.fingerprint = e.fingerprint AND r.id <= e.up_to AND r.state <> 'open'
), locked AS MATERIALIZED (
    SELECT id FROM reviews WHERE id = ANY (ARRAY(SELECT id FROM found)) ORDER BY id FOR UPDATE
), queue AS (
    DELETE FROM review_queue WHERE review_id = ANY (ARRAY(SELECT id FROM locked))
)
DELETE FROM reviews WHERE id = ANY (ARRAY(SELECT id FROM locked))`

const sweepErasures = `
DELETE FROM erasures WHERE fingerprint = ANY (ARRAY(SELECT fingerprint FROM erasures WHERE forget_at <= now() LIMIT $1 FOR UPDATE SKIP LOCKED))`

const sweepAnswers = `
DELETE FROM idempotent_answers WHERE key = ANY (ARRAY(
    SELECT key FROM idempotent_answers WHERE until <= now() ORDER BY until LIMIT $1 FOR UPDATE SKIP LOCKED))`
