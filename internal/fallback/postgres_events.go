package fallback

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// ask is one statement. A held row that nobody has claimed is found by reading: whoever claims it does so after that, and
// asks the upstream after the event. One with a callback is not content with reading: its watcher must be there when the
// review ends, so it holds the row. Else the review is opened or joined. A lease is taken away, since its check may have
// begun before the event; what it learns is cached, and its claim is not counted. What is due already stays so, or a
// stream of events would put it off for ever.
const ask = `
WITH held AS MATERIALIZED (
    SELECT r.id, q.due_at FROM reviews r JOIN review_queue q ON q.review_id = r.id
     WHERE $8::boolean AND $12::text = '' AND r.fingerprint = $2::bytea AND r.state = 'open' AND r.asked_at > now()
       AND q.due_at > now() AND q.lease_token = 0
), r AS (
    INSERT INTO reviews AS r
           (id, fingerprint, domain_key, address, state, reason, cause, recorded_at, updated_at, asked_from, asked_at)
    SELECT $1::uuid, $2, $3::bigint, $4::bytea, 'open', $5::text, 'upstream', now(), now(), now(),
           CASE WHEN $8 THEN now() + $7::interval ELSE now() END
     WHERE NOT EXISTS (SELECT FROM held)
       AND NOT EXISTS (SELECT FROM erasures WHERE fingerprint = $2 AND up_to >= $1::uuid)
    ON CONFLICT (fingerprint) WHERE state = 'open' DO UPDATE
       SET asked_from = CASE WHEN r.asked_from > now() - $7 THEN r.asked_from ELSE now() END,
           asked_at = CASE WHEN NOT $8 OR EXISTS (SELECT FROM review_queue WHERE review_id = r.id AND due_at <= now()) THEN now()
                           WHEN r.asked_from > now() - $7 THEN r.asked_from + $7
                           ELSE now() + $7 END
    RETURNING id, asked_from, xmax = 0 AS fresh
), q AS (
    INSERT INTO review_queue AS q (review_id, domain_key, due_at, priority, cause)
    SELECT id, $3, CASE WHEN $8 THEN asked_from + $7 ELSE least(now() + $6::interval, asked_from + $7) END, $9::smallint, 'upstream'
      FROM r
    ON CONFLICT (review_id) DO UPDATE
       SET due_at = CASE WHEN q.due_at <= now() THEN q.due_at ELSE excluded.due_at END,
           claims = CASE WHEN q.lease_token <> 0 AND q.due_at > now() THEN greatest(q.claims - 1, 0) ELSE q.claims END,
           lease_token = 0,
           priority = greatest(q.priority, excluded.priority)
    RETURNING due_at
), w AS (
    INSERT INTO review_watchers (review_id, client, flow, callback)
    SELECT id, $10, $11, $12 FROM (SELECT id FROM held UNION ALL SELECT id FROM r) AS one
    ON CONFLICT DO NOTHING
)
SELECT id::text, due_at, now(), false FROM held
UNION ALL
SELECT r.id::text, q.due_at, now(), r.fresh FROM r, q`

// Ask makes sure that a review is open for the event's fingerprint, that its next check begins after the event, and that
// the watcher waits for it, and says which review that is. It is durable when Ask returns. An open review keeps its id,
// its history and its ladders; its priority is at least PriorityBackground. A worker that holds it loses its lease.
//
// When the commit's outcome is unknown it is tried once more while ctx allows, and is then ErrUnknownCommit; asking again
// does no harm. ErrQueueFull: too many reviews are open and this would be another. ErrErased: the address was erased after
// the event's ID was made, and nothing was written. It is counted as the operation record.
func (s *Postgres) Ask(ctx context.Context, e Event) (_ Asked, err error) {
	defer s.metrics.observe("record", time.Now(), &err)
	if err := e.check(); err != nil {
		return Asked{}, err
	}
	if s.full() {
		switch found, err := s.Lookup(ctx, e.Fingerprint); {
		case err != nil:
			return Asked{}, fmt.Errorf("ask: %w", err)
		case found.Review == nil:
			return Asked{}, ErrQueueFull
		}
	}
	a, err := s.askOnce(ctx, s.record.acquire, e)
	unknown := err != nil && outcomeUnknown(err)
	if err != nil && !errors.Is(err, ErrErased) && ctx.Err() == nil && (unknown || pgconn.SafeToRetry(err)) {
		a, err = s.askOnce(ctx, s.record.acquireLive, e)
		unknown = err != nil && (unknown || outcomeUnknown(err))
	}
	switch {
	case err == nil:
		if a.Fresh {
			s.open.Add(1)
		}
		return a, nil
	case errors.Is(err, ErrErased):
		return Asked{}, err
	case unknown:
		return Asked{}, fmt.Errorf("ask: %w: %w", ErrUnknownCommit, err)
	}
	return Asked{}, fmt.Errorf("ask: %w", err)
}

func (s *Postgres) askOnce(ctx context.Context, acquire func(context.Context) (*pgxpool.Conn, error), e Event) (Asked, error) {
	conn, err := acquire(ctx)
	if err != nil {
		return Asked{}, err
	}
	defer conn.Release()
	id := canonicalID(e.ID)
	var a Asked
	var due, now time.Time
	err = conn.QueryRow(ctx, ask,
		id, e.Fingerprint[:], e.DomainKey, seal(s.sealer, e.Address, id), string(verdict.RevalidationRequested),
		e.Quiet, e.Max, e.Held, int16(PriorityBackground), e.Watcher.Client, e.Watcher.Flow, e.Watcher.Callback).
		Scan(&a.ID, &due, &now, &a.Fresh)
	if errors.Is(err, pgx.ErrNoRows) {
		return Asked{}, ErrErased
	}
	a.In = due.Sub(now)
	return a, err
}

const ripen = `
WITH locked AS MATERIALIZED (
    SELECT id FROM reviews WHERE fingerprint = ANY ($1::bytea[]) AND state = 'open' AND asked_at > now() ORDER BY id FOR UPDATE
), due AS (
    UPDATE review_queue SET due_at = now()
     WHERE review_id = ANY (ARRAY(SELECT id FROM locked)) AND due_at > now() AND lease_token = 0
    RETURNING 1
), ripe AS (
    UPDATE reviews SET asked_at = now() WHERE id = ANY (ARRAY(SELECT id FROM locked))
)
SELECT count(*) FROM due`

// Ripen makes the reviews due for which held events came, of these fingerprints, at most MaxRipen: the burst is over. It
// returns how many; those that are ended, claimed or not held are passed over. It is counted as the operation hasten.
func (s *Postgres) Ripen(ctx context.Context, fps []normalize.Fingerprint) (n int, err error) {
	defer s.metrics.observe("hasten", time.Now(), &err)
	if err := checkRipen(fps); err != nil || len(fps) == 0 {
		return 0, err
	}
	all := make([][]byte, len(fps))
	for i := range fps {
		all[i] = fps[i][:]
	}
	if err := s.work.queryRow(ctx, []any{&n}, ripen, all); err != nil {
		return 0, fmt.Errorf("ripen: %w", err)
	}
	return n, nil
}
