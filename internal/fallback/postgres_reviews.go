package fallback

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// keepTrail bounds a trail to its newest MaxTrail entries; subscripts outside the array are clipped.
const keepTrail = `'$[last - 49 to last]'`

// reviewColumns are what reviewRow scans, from reviews r and review_queue q.
const reviewColumns = `r.id::text, r.fingerprint, r.state, r.reason, r.cause, r.address, r.trail::text, ` +
	`r.verdict::text, r.recorded_at, r.updated_at, r.ended_at, q.due_at, q.attempts, q.unusable`

// reviewRow is a review as its columns hold it. All are pointers, since an outer join may bring none.
type reviewRow struct {
	id, state, reason, cause, trail, verdict *string
	fingerprint, address                     []byte
	recordedAt, updatedAt, endedAt, dueAt    *time.Time
	attempts, unusable                       *int
}

func (row *reviewRow) dest() []any {
	return []any{
		&row.id, &row.fingerprint, &row.state, &row.reason, &row.cause, &row.address, &row.trail,
		&row.verdict, &row.recordedAt, &row.updatedAt, &row.endedAt, &row.dueAt, &row.attempts, &row.unusable,
	}
}

func (s *Postgres) review(row *reviewRow) (Review, error) {
	r := Review{
		ID: *row.id, Fingerprint: normalize.Fingerprint(row.fingerprint), State: State(*row.state),
		Reason: verdict.Reason(*row.reason), Cause: verdict.Cause(*row.cause),
		Address:    unseal(s.sealer, row.address, *row.id),
		RecordedAt: row.recordedAt.UTC(), UpdatedAt: row.updatedAt.UTC(),
	}
	if row.endedAt != nil {
		r.EndedAt = row.endedAt.UTC()
	}
	if row.dueAt != nil {
		r.NextCheckAt, r.Attempts, r.Unusable = row.dueAt.UTC(), *row.attempts, *row.unusable
	}
	var err error
	if r.Trail, err = decodeTrail(*row.trail); err != nil {
		return Review{}, err
	}
	if row.verdict != nil {
		if r.Verdict, err = decodeVerdict(*row.verdict); err != nil {
			return Review{}, err
		}
	}
	return r, nil
}

const lookup = `
SELECT v.body::text, ` + reviewColumns + `
FROM (SELECT $1::bytea AS fingerprint) AS f
LEFT JOIN LATERAL (
    SELECT body FROM verdicts
    WHERE fingerprint = f.fingerprint AND hard_until > now()
    ORDER BY checked_at DESC LIMIT 1
) AS v ON true
LEFT JOIN reviews r ON r.fingerprint = f.fingerprint AND r.state = 'open'
LEFT JOIN review_queue q ON q.review_id = r.id`

// Lookup returns what is known of a fingerprint, in one round trip: the newest verdict within its hard expiry and
// the open review. Knowing nothing is no error.
func (s *Postgres) Lookup(ctx context.Context, fp normalize.Fingerprint) (_ Found, err error) {
	defer s.metrics.observe("lookup", time.Now(), &err)
	var body *string
	var row reviewRow
	if err := s.record.queryRow(ctx, append([]any{&body}, row.dest()...), lookup, fp[:]); err != nil {
		return Found{}, fmt.Errorf("lookup: %w", err)
	}
	var found Found
	if body != nil {
		if found.Verdict, err = decodeVerdict(*body); err != nil {
			return Found{}, fmt.Errorf("lookup: %w", err)
		}
	}
	if row.id != nil {
		r, err := s.review(&row)
		if err != nil {
			return Found{}, fmt.Errorf("lookup: %w", err)
		}
		found.Review = &r
	}
	return found, nil
}

const selectReview = `
SELECT ` + reviewColumns + ` FROM reviews r LEFT JOIN review_queue q ON q.review_id = r.id WHERE r.id = $1`

// Review returns the review with this id, open or ended. ErrUnknownID: there is none (any more).
func (s *Postgres) Review(ctx context.Context, id string) (_ Review, err error) {
	defer s.metrics.observe("review", time.Now(), &err)
	if id = canonicalID(id); id == "" {
		return Review{}, ErrUnknownID
	}
	var row reviewRow
	switch err := s.record.queryRow(ctx, row.dest(), selectReview, id); {
	case errors.Is(err, pgx.ErrNoRows):
		return Review{}, ErrUnknownID
	case err != nil:
		return Review{}, fmt.Errorf("review: %w", err)
	}
	return s.review(&row)
}

// Verdict returns the verdict with this id while it is within its hard expiry. ErrUnknownID: there is none
// (any more).
func (s *Postgres) Verdict(ctx context.Context, id string) (_ Stored, err error) {
	const selectVerdict = `SELECT fingerprint, body::text FROM verdicts WHERE id = $1 AND hard_until > now()`
	defer s.metrics.observe("verdict", time.Now(), &err)
	if id = canonicalID(id); id == "" {
		return Stored{}, ErrUnknownID
	}
	var fp []byte
	var body string
	switch err := s.record.queryRow(ctx, []any{&fp, &body}, selectVerdict, id); {
	case errors.Is(err, pgx.ErrNoRows):
		return Stored{}, ErrUnknownID
	case err != nil:
		return Stored{}, fmt.Errorf("verdict: %w", err)
	}
	v, err := decodeVerdict(body)
	if err != nil {
		return Stored{}, err
	}
	return Stored{Fingerprint: normalize.Fingerprint(fp), Verdict: *v}, nil
}

// Watch adds one who waits for a review, open or ended; one with a callback that comes to an ended one gets its message at
// once. A watcher that is known, and an id that is none of a review, change nothing.
func (s *Postgres) Watch(ctx context.Context, id string, w Watcher) (err error) {
	// The lock waits for who is about to end the review, so that either that or this writes the message.
	const watch = `
WITH r AS MATERIALIZED (
    SELECT id, state FROM reviews WHERE id = $1 FOR KEY SHARE
), w AS (
    INSERT INTO review_watchers (review_id, client, flow, callback) SELECT id, $2, $3, $4 FROM r ON CONFLICT DO NOTHING
    RETURNING review_id, client, flow, callback
)
INSERT INTO outbox (review_id, callback, event, client, flow)
SELECT w.review_id, w.callback, CASE r.state WHEN 'dead' THEN '` + NoticeDead + `' ELSE '` + NoticeSettled + `' END, w.client, w.flow
  FROM w JOIN r ON r.id = w.review_id
 WHERE r.state <> 'open' AND w.callback <> ''`
	defer s.metrics.observe("watch", time.Now(), &err)
	if id = canonicalID(id); id == "" {
		return nil
	}
	if _, err := s.record.exec(ctx, watch, id, w.Client, w.Flow, w.Callback); err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	return nil
}

// Watchers returns who waits for a review, in no order. An unknown id has none.
func (s *Postgres) Watchers(ctx context.Context, id string) (_ []Watcher, err error) {
	const selectWatchers = `SELECT client, flow, callback FROM review_watchers WHERE review_id = $1`
	defer s.metrics.observe("watchers", time.Now(), &err)
	if id = canonicalID(id); id == "" {
		return nil, nil
	}
	conn, err := s.work.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("watchers: %w", err)
	}
	defer conn.Release()
	rows, err := conn.Query(ctx, selectWatchers, id)
	if err != nil {
		return nil, fmt.Errorf("watchers: %w", err)
	}
	watchers, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Watcher])
	if err != nil {
		return nil, fmt.Errorf("watchers: %w", err)
	}
	return watchers, nil
}

// putVerdicts keeps the newer one when an id is there already.
const putVerdicts = `
INSERT INTO verdicts AS v (id, fingerprint, status, reason, body, checked_at, hard_until)
SELECT id::uuid, fingerprint, status, reason, body::jsonb, checked_at, hard_until
FROM unnest($1::text[], $2::bytea[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[])
     AS i (id, fingerprint, status, reason, body, checked_at, hard_until)
WHERE NOT EXISTS (SELECT FROM erasures e WHERE e.fingerprint = i.fingerprint AND e.up_to >= i.id::uuid)
ON CONFLICT (id) DO UPDATE
   SET fingerprint = excluded.fingerprint, status = excluded.status, reason = excluded.reason,
       body = excluded.body, checked_at = excluded.checked_at, hard_until = excluded.hard_until
 WHERE v.checked_at <= excluded.checked_at`

// PutVerdicts stores final verdicts by id, 500 a statement; of two with one id the newer by CheckedAt stays. A
// verdict that is not final or has no hard expiry is an error, before anything is written; after any other error
// some statements may have been committed, and calling again does no harm. Verdicts of an address that was erased since
// their ids were made are passed over.
func (s *Postgres) PutVerdicts(ctx context.Context, batch []Stored) (err error) {
	defer s.metrics.observe("put_verdicts", time.Now(), &err)
	all, err := newestByID(batch)
	if err != nil {
		return err
	}
	for len(all) > 0 {
		part := all[:min(len(all), maxVerdictBatch)]
		all = all[len(part):]
		n := len(part)
		ids, statuses, reasons, bodies := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		fps, checked, hard := make([][]byte, n), make([]time.Time, n), make([]time.Time, n)
		for i, p := range part {
			v := p.Verdict
			if bodies[i], err = encodeVerdict(v); err != nil {
				return err
			}
			ids[i], statuses[i], reasons[i] = v.ID, string(v.Status), string(v.Reason)
			fps[i], checked[i], hard[i] = p.Fingerprint[:], v.CheckedAt, v.HardUntil
		}
		if _, err := s.work.exec(ctx, putVerdicts, ids, fps, statuses, reasons, bodies, checked, hard); err != nil {
			return fmt.Errorf("put verdicts: %w", err)
		}
	}
	return nil
}

const selectStats = `
SELECT count(*),
       count(*) FILTER (WHERE lease_token <> 0 AND due_at > now()),
       count(*) FILTER (WHERE due_at <= now()),
       count(*) FILTER (WHERE lease_token = 0 AND due_at > now()),
       (SELECT count(*) FROM reviews WHERE state = 'dead'),
       greatest(coalesce((extract(epoch FROM now() - min(due_at)) * 1000000)::bigint, 0), 0)
FROM review_queue`

// Stats counts the queue. It reads the whole of it: ask every few seconds at most.
func (s *Postgres) Stats(ctx context.Context) (_ Stats, err error) {
	defer s.metrics.observe("stats", time.Now(), &err)
	var st Stats
	var oldest int64
	err = s.admin.queryRow(ctx,
		[]any{&st.Open, &st.Leased, &st.Overdue, &st.Scheduled, &st.Dead, &oldest}, selectStats)
	if err != nil {
		return Stats{}, fmt.Errorf("stats: %w", err)
	}
	st.OldestOverdue = time.Duration(oldest) * time.Microsecond
	s.open.Store(st.Open)
	return st, nil
}

const sweepReviews = `
DELETE FROM reviews WHERE id = ANY (ARRAY(
    SELECT id FROM reviews WHERE state = 'settled' AND ended_at < now() - $1::interval
    ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED))`

const sweepVerdicts = `
DELETE FROM verdicts WHERE id = ANY (ARRAY(
    SELECT id FROM verdicts WHERE hard_until <= now()
    ORDER BY hard_until LIMIT $1 FOR UPDATE SKIP LOCKED))`

// Sweep deletes settled reviews past their retention, with their watchers, verdicts past their hard expiry, answers
// under an Idempotency-Key past their time, erasures that need not be remembered and messages that were given up a week
// ago, in batches of 500, until none is left or ctx ends; and what came back of an erased address. It returns how many rows went, also beside an error.
// Replicas may sweep at the same time. Dead reviews stay.
func (s *Postgres) Sweep(ctx context.Context, keep Retention) (deleted int, err error) {
	defer s.metrics.observe("sweep", time.Now(), &err)
	if keep.Ended <= 0 {
		keep = DefaultRetention
	}
	for _, again := range []string{sweepErasedReviews, sweepErasedVerdicts} {
		n, err := s.admin.exec(ctx, again)
		deleted += int(n)
		if err != nil {
			return deleted, fmt.Errorf("sweep: %w", err)
		}
	}
	for _, batch := range []func() (int64, error){
		func() (int64, error) { return s.admin.exec(ctx, sweepReviews, keep.Ended, maxSweepBatch) },
		func() (int64, error) { return s.admin.exec(ctx, sweepVerdicts, maxSweepBatch) },
		func() (int64, error) { return s.admin.exec(ctx, sweepAnswers, maxSweepBatch) },
		func() (int64, error) { return s.admin.exec(ctx, sweepErasures, maxSweepBatch) },
		func() (int64, error) { return s.admin.exec(ctx, sweepNotices, keepNotices, maxSweepBatch) },
	} {
		for {
			n, err := batch()
			deleted += int(n)
			if err != nil {
				return deleted, fmt.Errorf("sweep: %w", err)
			}
			if n < maxSweepBatch {
				break
			}
		}
	}
	n, err := s.sweepBackfills(ctx)
	if deleted += int(n); err != nil {
		return deleted, fmt.Errorf("sweep: %w", err)
	}
	return deleted, nil
}
