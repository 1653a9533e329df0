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

// keepTrail bounds a trail to its newest MaxTrail entries; subscripts outside the array are clipped.
const keepTrail = `'$[last - 49 to last]'`

// record is one statement and so one transaction and one round trip. Lock order, here and everywhere: the row of
// reviews, then the row of review_queue.
//
// A due time that is a lease's end is never brought forward. A lease that ran out is cleared, or a new due time
// would make it look held. It brings no row when the address was erased since the check began.
const record = `
WITH r AS (
    INSERT INTO reviews AS r
           (id, fingerprint, domain_key, address, state, reason, cause, trail, recorded_at, updated_at)
    SELECT $1::uuid, $2::bytea, $3::bigint, $4::bytea, 'open', $5::text, $6::text, $7::jsonb, now(), now()
     WHERE NOT EXISTS (SELECT FROM erasures WHERE fingerprint = $2 AND up_to >= $1::uuid)
    ON CONFLICT (fingerprint) WHERE state = 'open' DO UPDATE
       SET reason = CASE WHEN $18 THEN r.reason ELSE excluded.reason END,
           cause = CASE WHEN $18 THEN r.cause ELSE excluded.cause END,
           updated_at = CASE WHEN $18 THEN r.updated_at ELSE now() END,
           trail = CASE WHEN $18 OR $8 AND r.id = excluded.id THEN r.trail
                        ELSE jsonb_path_query_array(r.trail || excluded.trail, ` + keepTrail + `) END
    RETURNING id, reason, cause, trail, recorded_at, updated_at, xmax = 0 AS fresh
), q AS (
    INSERT INTO review_queue AS q
           (review_id, domain_key, due_at, priority, cause, attempts, unusable, outage_ms)
    SELECT id, $3, now() + $9::interval, $10, $6, $11::integer, $12::integer, $13::bigint FROM r
    ON CONFLICT (review_id) DO UPDATE
       SET due_at = CASE WHEN $18 THEN q.due_at
                         WHEN q.lease_token <> 0 AND q.due_at > now()
                         THEN CASE WHEN $14 THEN greatest(q.due_at, excluded.due_at) ELSE q.due_at END
                         WHEN $14 THEN excluded.due_at
                         ELSE least(q.due_at, excluded.due_at) END,
           lease_token = CASE WHEN $18 OR q.due_at > now() THEN q.lease_token ELSE 0 END,
           priority = greatest(q.priority, excluded.priority),
           cause = CASE WHEN $18 THEN q.cause ELSE excluded.cause END,
           attempts = q.attempts + CASE WHEN $18 OR $8 AND q.review_id = $1 THEN 0 ELSE excluded.attempts END,
           unusable = q.unusable + CASE WHEN $18 OR $8 AND q.review_id = $1 THEN 0 ELSE excluded.unusable END,
           snoozes = CASE WHEN $18 OR $6 = 'upstream' THEN q.snoozes ELSE 0 END
    RETURNING due_at
), w AS (
    INSERT INTO review_watchers (review_id, client, flow, callback)
    SELECT id, $15, $16, $17 FROM r
    ON CONFLICT DO NOTHING
)
SELECT r.id::text, r.reason, r.cause, r.trail::text, r.recorded_at, r.updated_at, r.fresh, q.due_at FROM r, q`

// Record makes sure that a review is open for the entry's fingerprint and that the entry's watcher waits for it,
// and returns that review: its ID is the entry's when it is new and its own when it was open before. Reason,
// cause, trail and priority (the highest stays) are taken over, and answers on the mailbox's side and unusable
// ones are counted; of a Counted entry an open review takes the priority only. Equal calls at the same time make
// one row.
//
// When the commit's outcome is unknown it is tried once more while ctx allows, and is then ErrUnknownCommit: the
// review may be found under the entry's ID. ErrQueueFull: too many are open and this would be another. ErrErased: the
// address was erased after the entry's ID was made, and nothing was written.
func (s *Postgres) Record(ctx context.Context, e Entry) (_ Review, err error) {
	defer s.metrics.observe("record", time.Now(), &err)
	if err := e.check(); err != nil {
		return Review{}, err
	}
	e.ID = canonicalID(e.ID)
	if s.full() {
		switch found, err := s.Lookup(ctx, e.Fingerprint); {
		case err != nil:
			return Review{}, fmt.Errorf("record: %w", err)
		case found.Review == nil:
			return Review{}, ErrQueueFull
		}
	}
	r, err := s.recordOnce(ctx, s.record.acquire, e, false)
	if err == nil {
		return r, nil
	}
	if errors.Is(err, ErrErased) {
		return Review{}, err
	}
	unknown := outcomeUnknown(err)
	if ctx.Err() == nil && (unknown || pgconn.SafeToRetry(err)) {
		r, err = s.recordOnce(ctx, s.record.acquireLive, e, unknown)
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok && unknown && refused.Code == "23505" {
			return s.Review(ctx, e.ID) // it was written the first time, and has ended since
		}
		if errors.Is(err, ErrErased) {
			return Review{}, err
		}
		unknown = err != nil && (unknown || outcomeUnknown(err))
	}
	if unknown {
		return Review{}, fmt.Errorf("record: %w: %w", ErrUnknownCommit, err)
	}
	if err != nil {
		return Review{}, fmt.Errorf("record: %w", err)
	}
	return r, nil
}

// recordOnce runs the upsert. again says that it may have been committed before: then nothing is counted or
// appended twice.
func (s *Postgres) recordOnce(
	ctx context.Context, acquire func(context.Context) (*pgxpool.Conn, error), e Entry, again bool,
) (Review, error) {
	trail, err := encodeTrail(e.Trail)
	if err != nil {
		return Review{}, err
	}
	var outage int64
	if e.Cause == verdict.CauseUpstream {
		outage = milliseconds(e.CheckIn)
	}
	r := Review{Fingerprint: e.Fingerprint, State: Open, Address: e.Address}
	var kept string
	var fresh bool
	conn, err := acquire(ctx)
	if err != nil {
		return Review{}, err
	}
	defer conn.Release()
	err = conn.QueryRow(ctx, record,
		e.ID, e.Fingerprint[:], e.DomainKey, seal(s.sealer, e.Address, e.ID), string(e.Reason), string(e.Cause), trail,
		again, e.CheckIn, int16(e.Priority), count(e.Cause == verdict.CauseMailbox),
		count(e.Cause == verdict.CauseUnusable), outage, e.moves(),
		e.Watcher.Client, e.Watcher.Flow, e.Watcher.Callback, e.Counted).
		Scan(&r.ID, &r.Reason, &r.Cause, &kept, &r.RecordedAt, &r.UpdatedAt, &fresh, &r.NextCheckAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return Review{}, ErrErased
	}
	if err != nil {
		return Review{}, err
	}
	if fresh {
		s.open.Add(1)
	}
	r.RecordedAt, r.UpdatedAt, r.NextCheckAt = r.RecordedAt.UTC(), r.UpdatedAt.UTC(), r.NextCheckAt.UTC()
	r.Trail, err = decodeTrail(kept)
	return r, err
}

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

// Watch adds one who waits for a review, open or ended. A watcher that is known, and an id that is none of a review,
// change nothing.
func (s *Postgres) Watch(ctx context.Context, id string, w Watcher) (err error) {
	const watch = `INSERT INTO review_watchers (review_id, client, flow, callback)
SELECT id, $2, $3, $4 FROM reviews WHERE id = $1 ON CONFLICT DO NOTHING`
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
// under an Idempotency-Key past their time and erasures that need not be remembered, in batches of 500, until none is
// left or ctx ends; and what came back of an erased address. It returns how many rows went, also beside an error.
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
	return deleted, nil
}
