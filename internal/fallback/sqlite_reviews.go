package fallback

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// Statements in this file and in sqlite_queue.go are Postgres's, in small steps: with one process and one writer
// a step costs microseconds, and no one can come between two of them.

// Record: see [Postgres.Record]. ErrUnknownCommit also when ctx ends while the write is under way. There is no
// second try: the one connection that could make it is the one that failed.
func (s *SQLite) Record(ctx context.Context, e Entry) (_ Review, err error) {
	defer s.metrics.observe("record", time.Now(), &err)
	if err := e.check(); err != nil {
		return Review{}, err
	}
	e.ID = canonicalID(e.ID)
	r, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (Review, error) { return s.record(ctx, tx, e) })
	switch {
	case errors.Is(err, errAbandoned), errors.Is(err, errCommit):
		return Review{}, fmt.Errorf("record: %w: %w", ErrUnknownCommit, err)
	case err != nil && !errors.Is(err, ErrQueueFull) && !errors.Is(err, ErrErased):
		return Review{}, fmt.Errorf("record: %w", err)
	}
	return r, err
}

func (s *SQLite) record(ctx context.Context, tx *tx, e Entry) (Review, error) {
	now := time.Now()
	if gone, err := erased(ctx, tx, e.Fingerprint, e.ID); err != nil {
		return Review{}, err
	} else if gone {
		return Review{}, ErrErased
	}
	r, err := s.openReview(ctx, tx, e.Fingerprint)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		if s.writer.open.Load() >= openBound(e.Priority, s.maxOpen.Load()) {
			return Review{}, ErrQueueFull
		}
		r, err = s.insertReview(ctx, tx, e, now)
	case err == nil:
		err = s.updateReview(ctx, tx, e, r, now)
	}
	if err != nil {
		return Review{}, err
	}
	if e.Watcher != (Watcher{}) {
		if err := watch(ctx, tx, r.ID, e.Watcher); err != nil {
			return Review{}, err
		}
	}
	return s.openReview(ctx, tx, e.Fingerprint)
}

func (s *SQLite) insertReview(ctx context.Context, tx *tx, e Entry, now time.Time) (Review, error) {
	trail, err := encodeTrail(e.Trail)
	if err != nil {
		return Review{}, err
	}
	const insertReview = `
INSERT INTO reviews (id, fingerprint, domain_key, address, state, reason, cause, trail, recorded_at, updated_at)
VALUES (?1, ?2, ?3, ?4, 'open', ?5, ?6, ?7, ?8, ?8)`
	if _, err := tx.ExecContext(ctx, insertReview, e.ID, e.Fingerprint[:], e.DomainKey, seal(s.sealer, e.Address, e.ID),
		string(e.Reason), string(e.Cause), trail, micros(now)); err != nil {
		return Review{}, err
	}
	var outage int64
	if e.Cause == verdict.CauseUpstream {
		outage = milliseconds(e.CheckIn)
	}
	const insertQueue = `
INSERT INTO review_queue (review_id, domain_key, due_at, priority, cause, attempts, unusable, outage_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)`
	_, err = tx.ExecContext(ctx, insertQueue, e.ID, e.DomainKey, micros(now.Add(e.CheckIn)), e.Priority,
		string(e.Cause), count(e.Cause == verdict.CauseMailbox), count(e.Cause == verdict.CauseUnusable), outage)
	tx.opened++
	return Review{ID: e.ID}, err
}

func (s *SQLite) updateReview(ctx context.Context, tx *tx, e Entry, r Review, now time.Time) error {
	if e.Counted {
		const raise = `UPDATE review_queue SET priority = max(priority, ?) WHERE review_id = ?`
		_, err := tx.ExecContext(ctx, raise, e.Priority, r.ID)
		return err
	}
	trail, err := encodeTrail(append(r.Trail, e.Trail...))
	if err != nil {
		return err
	}
	const updateReview = `UPDATE reviews SET reason = ?, cause = ?, trail = ?, updated_at = ? WHERE id = ?`
	if _, err := tx.ExecContext(ctx, updateReview, string(e.Reason), string(e.Cause), trail, micros(now), r.ID); err != nil {
		return err
	}
	const updateQueue = `
UPDATE review_queue
   SET due_at = CASE WHEN lease_token <> 0 AND due_at > ?1 THEN CASE WHEN ?3 THEN max(due_at, ?2) ELSE due_at END
                     WHEN ?3 THEN ?2
                     ELSE min(due_at, ?2) END,
       lease_token = CASE WHEN due_at > ?1 THEN lease_token ELSE 0 END,
       priority = max(priority, ?4),
       cause = ?5,
       attempts = attempts + ?6,
       unusable = unusable + ?7,
       snoozes = CASE WHEN ?5 = 'upstream' THEN snoozes ELSE 0 END
 WHERE review_id = ?8`
	_, err = tx.ExecContext(ctx, updateQueue, micros(now), micros(now.Add(e.CheckIn)), e.moves(), e.Priority,
		string(e.Cause), count(e.Cause == verdict.CauseMailbox), count(e.Cause == verdict.CauseUnusable), r.ID)
	return err
}

// querier is a pool or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

const sqliteReview = `
SELECT r.id, r.fingerprint, r.state, r.reason, r.cause, r.address, r.trail, r.verdict,
       r.recorded_at, r.updated_at, r.ended_at, q.due_at, coalesce(q.attempts, 0), coalesce(q.unusable, 0)
FROM reviews r LEFT JOIN review_queue q ON q.review_id = r.id `

// openReview returns the open review of a fingerprint, or sql.ErrNoRows.
func (s *SQLite) openReview(ctx context.Context, q querier, fp normalize.Fingerprint) (Review, error) {
	return s.scanReview(q.QueryRowContext(ctx, sqliteReview+`WHERE r.fingerprint = ? AND r.state = 'open'`, fp[:]))
}

func (s *SQLite) scanReview(row *sql.Row) (Review, error) {
	var r Review
	var fp, address []byte
	var trail string
	var body sql.NullString
	var recorded, updated, ended, due sql.NullInt64
	err := row.Scan(&r.ID, &fp, &r.State, &r.Reason, &r.Cause, &address, &trail, &body, &recorded, &updated, &ended, &due,
		&r.Attempts, &r.Unusable)
	if err != nil {
		return Review{}, err
	}
	r.Fingerprint, r.Address = normalize.Fingerprint(fp), unseal(s.sealer, address, r.ID)
	r.RecordedAt, r.UpdatedAt = fromMicros(recorded), fromMicros(updated)
	r.EndedAt, r.NextCheckAt = fromMicros(ended), fromMicros(due)
	if r.Trail, err = decodeTrail(trail); err != nil {
		return Review{}, err
	}
	if body.Valid {
		if r.Verdict, err = decodeVerdict(body.String); err != nil {
			return Review{}, err
		}
	}
	return r, nil
}

// Lookup: see [Postgres.Lookup].
func (s *SQLite) Lookup(ctx context.Context, fp normalize.Fingerprint) (_ Found, err error) {
	const newestVerdict = `
SELECT body FROM verdicts WHERE fingerprint = ? AND hard_until > ? ORDER BY checked_at DESC LIMIT 1`
	defer s.metrics.observe("lookup", time.Now(), &err)
	var found Found
	var body string
	switch err := s.reads.QueryRowContext(ctx, newestVerdict, fp[:], micros(time.Now())).Scan(&body); {
	case err == nil:
		if found.Verdict, err = decodeVerdict(body); err != nil {
			return Found{}, fmt.Errorf("lookup: %w", err)
		}
	case !errors.Is(err, sql.ErrNoRows):
		return Found{}, fmt.Errorf("lookup: %w", err)
	}
	switch r, err := s.openReview(ctx, s.reads, fp); {
	case err == nil:
		found.Review = &r
	case !errors.Is(err, sql.ErrNoRows):
		return Found{}, fmt.Errorf("lookup: %w", err)
	}
	return found, nil
}

// Review: see [Postgres.Review].
func (s *SQLite) Review(ctx context.Context, id string) (_ Review, err error) {
	defer s.metrics.observe("review", time.Now(), &err)
	r, err := s.scanReview(s.reads.QueryRowContext(ctx, sqliteReview+`WHERE r.id = ?`, canonicalID(id)))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Review{}, ErrUnknownID
	case err != nil:
		return Review{}, fmt.Errorf("review: %w", err)
	}
	return r, nil
}

// Verdict: see [Postgres.Verdict].
func (s *SQLite) Verdict(ctx context.Context, id string) (_ Stored, err error) {
	const selectVerdict = `SELECT fingerprint, body FROM verdicts WHERE id = ? AND hard_until > ?`
	defer s.metrics.observe("verdict", time.Now(), &err)
	var fp []byte
	var body string
	switch err := s.reads.QueryRowContext(ctx, selectVerdict, canonicalID(id), micros(time.Now())).Scan(&fp, &body); {
	case errors.Is(err, sql.ErrNoRows):
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

// Watch: see [Postgres.Watch].
func (s *SQLite) Watch(ctx context.Context, id string, w Watcher) (err error) {
	const watch = `INSERT INTO review_watchers (review_id, client, flow, callback)
SELECT id, ?, ?, ? FROM reviews WHERE id = ? ON CONFLICT DO NOTHING`
	const ended = `SELECT state FROM reviews WHERE id = ? AND state <> 'open'`
	defer s.metrics.observe("watch", time.Now(), &err)
	if id = canonicalID(id); id == "" {
		return nil
	}
	err = s.writer.do(ctx, func(ctx context.Context, tx *tx) error {
		n, err := changed(tx.ExecContext(ctx, watch, w.Client, w.Flow, w.Callback, id))
		if err != nil || n == 0 || w.Callback == "" {
			return err
		}
		states, err := column(tx.QueryContext(ctx, ended, id))
		if err != nil || len(states) == 0 {
			return err
		}
		event := NoticeSettled
		if State(states[0]) == Dead {
			event = NoticeDead
		}
		return post(ctx, tx, id, w, event, time.Now())
	})
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	return nil
}

// Watchers: see [Postgres.Watchers].
func (s *SQLite) Watchers(ctx context.Context, id string) (_ []Watcher, err error) {
	const selectWatchers = `SELECT client, flow, callback FROM review_watchers WHERE review_id = ?`
	defer s.metrics.observe("watchers", time.Now(), &err)
	rows, err := s.reads.QueryContext(ctx, selectWatchers, canonicalID(id))
	if err != nil {
		return nil, fmt.Errorf("watchers: %w", err)
	}
	watchers, err := scanWatchers(rows)
	if err != nil {
		return nil, fmt.Errorf("watchers: %w", err)
	}
	return watchers, nil
}

// PutVerdicts: see [Postgres.PutVerdicts].
func (s *SQLite) PutVerdicts(ctx context.Context, batch []Stored) (err error) {
	defer s.metrics.observe("put_verdicts", time.Now(), &err)
	all, err := newestByID(batch)
	if err != nil {
		return err
	}
	for len(all) > 0 {
		part := all[:min(len(all), maxVerdictBatch)]
		all = all[len(part):]
		err := s.writer.do(ctx, func(ctx context.Context, tx *tx) error {
			for _, p := range part {
				gone, err := erased(ctx, tx, p.Fingerprint, canonicalID(p.Verdict.ID))
				if err != nil {
					return err
				}
				if gone {
					continue
				}
				if err := putVerdict(ctx, tx, p.Fingerprint, p.Verdict); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("put verdicts: %w", err)
		}
	}
	return nil
}

// putVerdict stores one verdict unless a newer one has its id.
func putVerdict(ctx context.Context, tx *tx, fp normalize.Fingerprint, v verdict.Verdict) error {
	const putVerdict = `
INSERT INTO verdicts AS v (id, fingerprint, status, reason, body, checked_at, hard_until) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE
   SET fingerprint = excluded.fingerprint, status = excluded.status, reason = excluded.reason,
       body = excluded.body, checked_at = excluded.checked_at, hard_until = excluded.hard_until
 WHERE v.checked_at <= excluded.checked_at`
	body, err := encodeVerdict(v)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, putVerdict, canonicalID(v.ID), fp[:], string(v.Status), string(v.Reason), body,
		micros(v.CheckedAt), micros(v.HardUntil))
	return err
}

// Stats: see [Postgres.Stats].
func (s *SQLite) Stats(ctx context.Context) (_ Stats, err error) {
	const selectStats = `
SELECT count(*),
       count(*) FILTER (WHERE lease_token <> 0 AND due_at > ?1),
       count(*) FILTER (WHERE due_at <= ?1),
       count(*) FILTER (WHERE lease_token = 0 AND due_at > ?1),
       (SELECT count(*) FROM reviews WHERE state = 'dead'),
       max(?1 - coalesce(min(due_at), ?1), 0)
FROM review_queue`
	defer s.metrics.observe("stats", time.Now(), &err)
	var st Stats
	var oldest int64
	err = s.reads.QueryRowContext(ctx, selectStats, micros(time.Now())).
		Scan(&st.Open, &st.Leased, &st.Overdue, &st.Scheduled, &st.Dead, &oldest)
	if err != nil {
		return Stats{}, fmt.Errorf("stats: %w", err)
	}
	st.OldestOverdue = time.Duration(oldest) * time.Microsecond
	return st, nil
}

// Sweep: see [Postgres.Sweep].
func (s *SQLite) Sweep(ctx context.Context, keep Retention) (deleted int, err error) {
	const sweepReviews = `
DELETE FROM reviews WHERE id IN (
    SELECT id FROM reviews WHERE state = 'settled' AND ended_at < ? ORDER BY ended_at LIMIT ?)`
	const sweepVerdicts = `
DELETE FROM verdicts WHERE id IN (SELECT id FROM verdicts WHERE hard_until <= ? ORDER BY hard_until LIMIT ?)`
	const sweepAnswers = `
DELETE FROM idempotent_answers WHERE key IN (SELECT key FROM idempotent_answers WHERE until <= ? ORDER BY until LIMIT ?)`
	const sweepErasures = `
DELETE FROM erasures WHERE fingerprint IN (SELECT fingerprint FROM erasures WHERE forget_at <= ? LIMIT ?)`
	const sweepNotices = `
DELETE FROM outbox WHERE id IN (
    SELECT id FROM outbox WHERE coalesce(given_up_at, recorded_at) < ? ORDER BY coalesce(given_up_at, recorded_at) LIMIT ?)`
	defer s.metrics.observe("sweep", time.Now(), &err)
	if keep.Ended <= 0 {
		keep = DefaultRetention
	}
	now := time.Now()
	for _, sweep := range []struct {
		query string
		until time.Time
	}{{sweepReviews, now.Add(-keep.Ended)}, {sweepVerdicts, now}, {sweepAnswers, now}, {sweepErasures, now},
		{sweepNotices, now.Add(-keepNotices)}} {
		for {
			n, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (int64, error) {
				return changed(tx.ExecContext(ctx, sweep.query, micros(sweep.until), maxSweepBatch))
			})
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

// changed returns how many rows a statement changed.
func changed(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}
