package fallback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// record is one statement and so one transaction and one round trip, for one entry or for several of different
// fingerprints that are alike in again ($8), Firm ($14) and Counted ($18). Lock order, here and everywhere: the rows of
// reviews, by id, then those of review_queue. New rows come in the order of their fingerprints, so that two batches that
// open the same reviews don't wait for each other in a circle.
//
// A due time that is a lease's end is never brought forward. A lease that ran out is cleared, or a new due time
// would make it look held. It brings no row for an address that was erased since the check began.
const record = `
WITH i AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::bigint[], $4::bytea[], $5::text[], $6::text[], $7::text[],
                         $9::interval[], $10::smallint[], $11::integer[], $12::integer[], $13::bigint[],
                         $15::text[], $16::text[], $17::text[])
         AS i (id, fingerprint, domain_key, address, reason, cause, trail, check_in, priority, attempts, unusable, outage_ms,
               client, flow, callback)
), locked AS MATERIALIZED (
    SELECT id FROM reviews WHERE fingerprint = ANY ($2) AND state = 'open' ORDER BY id FOR UPDATE
), r AS (
    INSERT INTO reviews AS r
           (id, fingerprint, domain_key, address, state, reason, cause, trail, recorded_at, updated_at)
    SELECT id, fingerprint, domain_key, address, 'open', reason, cause, trail::jsonb, now(), now() FROM i
     WHERE (SELECT count(*) FROM locked) >= 0
       AND NOT EXISTS (SELECT FROM erasures e WHERE e.fingerprint = i.fingerprint AND e.up_to >= i.id)
     ORDER BY fingerprint
    ON CONFLICT (fingerprint) WHERE state = 'open' DO UPDATE
       SET reason = CASE WHEN $18 THEN r.reason ELSE excluded.reason END,
           cause = CASE WHEN $18 THEN r.cause ELSE excluded.cause END,
           updated_at = CASE WHEN $18 THEN r.updated_at ELSE now() END,
           trail = CASE WHEN $18 OR $8 AND r.id = excluded.id THEN r.trail
                        ELSE jsonb_path_query_array(r.trail || excluded.trail, ` + keepTrail + `) END
    RETURNING id, fingerprint, reason, cause, trail, recorded_at, updated_at, xmax = 0 AS fresh
), q AS (
    INSERT INTO review_queue AS q
           (review_id, domain_key, due_at, priority, cause, attempts, unusable, outage_ms)
    SELECT r.id, i.domain_key, now() + i.check_in, i.priority, i.cause, i.attempts, i.unusable, i.outage_ms
      FROM r JOIN i ON i.fingerprint = r.fingerprint
    ON CONFLICT (review_id) DO UPDATE
       SET due_at = CASE WHEN $18 THEN q.due_at
                         WHEN q.lease_token <> 0 AND q.due_at > now()
                         THEN CASE WHEN $14 OR excluded.cause <> 'upstream' THEN greatest(q.due_at, excluded.due_at)
                                   ELSE q.due_at END
                         WHEN $14 OR excluded.cause <> 'upstream' THEN excluded.due_at
                         ELSE least(q.due_at, excluded.due_at) END,
           lease_token = CASE WHEN $18 OR q.due_at > now() THEN q.lease_token ELSE 0 END,
           priority = greatest(q.priority, excluded.priority),
           cause = CASE WHEN $18 THEN q.cause ELSE excluded.cause END,
           attempts = q.attempts + CASE WHEN $18 OR $8 AND q.review_id = ANY ($1) THEN 0 ELSE excluded.attempts END,
           unusable = q.unusable + CASE WHEN $18 OR $8 AND q.review_id = ANY ($1) THEN 0 ELSE excluded.unusable END,
           snoozes = CASE WHEN $18 OR excluded.cause = 'upstream' THEN q.snoozes ELSE 0 END
    RETURNING review_id, due_at
), w AS (
    INSERT INTO review_watchers (review_id, client, flow, callback)
    SELECT r.id, i.client, i.flow, i.callback FROM r JOIN i ON i.fingerprint = r.fingerprint
     WHERE (i.client, i.flow, i.callback) <> ('', '', '')
    ON CONFLICT DO NOTHING
)
SELECT r.id::text, r.fingerprint, r.reason, r.cause, r.trail::text, r.recorded_at, r.updated_at, r.fresh, q.due_at
  FROM r JOIN q ON q.review_id = r.id`

// Bounds of the writer of Record.
const (
	// maxRecordings is how many statements may be under way before entries gather: fewer than there are connections, or
	// they would never.
	maxRecordings = 4
	// maxRecordGroup bounds the entries of one statement, and so the wait for it.
	maxRecordGroup = 32
	// maxRecordsWaiting is far more than the gateway has requests in work.
	maxRecordsWaiting = 10_000
)

// recordings are the entries that wait while maxRecordings statements are under way. One that comes alone is written at
// once, by its caller and on its own deadline.
type recordings struct {
	mu      sync.Mutex
	waiting []*recording
	busy    int
}

// recording is an entry that waits to be written with others.
type recording struct {
	ctx    context.Context // its caller's, whose end ends this entry's wait and nobody else's
	entry  Entry
	sent   bool // guarded by recordings.mu; from then on only the server knows
	review Review
	err    error
	done   chan struct{}
}

// Record makes sure that a review is open for the entry's fingerprint and that the entry's watcher waits for it,
// and returns that review: its ID is the entry's when it is new and its own when it was open before. Reason,
// cause, trail and priority (the highest stays) are taken over, and answers on the mailbox's side and unusable
// ones are counted; of a Counted entry an open review takes the priority only. Equal calls at the same time make
// one row.
//
// When the commit's outcome is unknown it is tried once more while ctx allows, and is then ErrUnknownCommit: the
// review may be found under the entry's ID. ErrQueueFull: too many are open and this would be another. ErrErased: the
// address was erased after the entry's ID was made, and nothing was written.
//
// While several are under way, those that come share a statement and its commit. A bad entry fails alone, and each caller
// keeps its own deadline.
func (s *Postgres) Record(ctx context.Context, e Entry) (_ Review, err error) {
	defer s.metrics.observe("record", time.Now(), &err)
	if err := e.check(); err != nil {
		return Review{}, err
	}
	e.ID = canonicalID(e.ID)
	if s.full() || s.open.Load() >= openBound(e.Priority, s.maxOpen.Load()) {
		switch found, err := s.Lookup(ctx, e.Fingerprint); {
		case err != nil:
			return Review{}, fmt.Errorf("record: %w", err)
		case found.Review == nil:
			return Review{}, ErrQueueFull
		}
	}
	w := &s.recordings
	w.mu.Lock()
	switch {
	case w.busy < maxRecordings:
		w.busy++
		w.mu.Unlock()
		defer s.nextRecordings()
		return s.recordAlone(ctx, e)
	case len(w.waiting) >= maxRecordsWaiting:
		w.mu.Unlock()
		return Review{}, fmt.Errorf("record: %w", errWriterFull)
	}
	j := &recording{ctx: ctx, entry: e, done: make(chan struct{})}
	w.waiting = append(w.waiting, j)
	w.mu.Unlock()
	select {
	case <-j.done:
		return j.review, j.err
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = slices.DeleteFunc(w.waiting, func(other *recording) bool { return other == j })
	if j.sent {
		select {
		case <-j.done: // it ended in the same moment
			return j.review, j.err
		default:
			return Review{}, fmt.Errorf("record: %w: %w", ErrUnknownCommit, ctx.Err())
		}
	}
	return Review{}, fmt.Errorf("record: %w", &notSentError{ctx.Err()})
}

// nextRecordings hands the place of a statement that has ended to what waits, if something does.
func (s *Postgres) nextRecordings() {
	group := s.recordings.take()
	if group == nil {
		return
	}
	if !s.start(func(context.Context) {
		defer s.nextRecordings()
		s.recordGroup(group)
	}) {
		for _, j := range group {
			j.end(Review{}, fmt.Errorf("record: %w", errWriterClosed))
		}
		s.nextRecordings()
	}
}

// take returns the next entries that can share a statement, in the order in which they came: of different fingerprints,
// and alike in what the statement is told once. Nothing is the end of the place.
func (w *recordings) take() (group []*recording) {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := map[normalize.Fingerprint]bool{}
	var left []*recording
	for _, j := range w.waiting {
		e := j.entry
		if len(group) == maxRecordGroup || taken[e.Fingerprint] ||
			len(group) > 0 && (e.Firm != group[0].entry.Firm || e.Counted != group[0].entry.Counted) {
			left = append(left, j)
			continue
		}
		taken[e.Fingerprint] = true
		group = append(group, j)
	}
	w.waiting = left
	if group == nil {
		w.busy--
	}
	return group
}

// send drops the entries whose callers have left, and marks the others: they are on their way now.
func (w *recordings) send(group []*recording) []*recording {
	w.mu.Lock()
	defer w.mu.Unlock()
	live := group[:0]
	for _, j := range group {
		if j.ctx.Err() == nil {
			j.sent = true
			live = append(live, j)
		}
	}
	return live
}

func (j *recording) end(r Review, err error) {
	j.review, j.err = r, err
	close(j.done)
}

// recordGroup writes the entries in one statement, whose time is the longest of theirs, and tells each its own outcome.
func (s *Postgres) recordGroup(group []*recording) {
	ctx, cancel := longest(group)
	defer cancel()
	conn, err := s.record.acquire(ctx)
	if err != nil {
		for _, j := range group {
			j.end(Review{}, fmt.Errorf("record: %w", err))
		}
		return
	}
	entries, group := []Entry{}, s.recordings.send(group)
	for _, j := range group {
		entries = append(entries, j.entry)
	}
	reviews, err := s.recordOn(ctx, conn, entries, false)
	conn.Release()
	if err != nil {
		// One of them may be to blame, or the connection. Each is tried again by itself, as if it had been alone.
		var all sync.WaitGroup
		for _, j := range group {
			all.Go(func() { j.end(s.recordAgain(j.ctx, j.entry, err, len(group) > 1)) })
		}
		all.Wait()
		return
	}
	for i, j := range group {
		if reviews[i].ID == "" {
			j.end(Review{}, ErrErased)
		} else {
			j.end(reviews[i], nil)
		}
	}
}

// longest returns a context that ends when the last caller's deadline is over.
func longest(group []*recording) (context.Context, context.CancelFunc) {
	ctx := context.WithoutCancel(group[0].ctx)
	var last time.Time
	for _, j := range group {
		deadline, ok := j.ctx.Deadline()
		if !ok {
			return context.WithCancel(ctx)
		}
		if deadline.After(last) {
			last = deadline
		}
	}
	return context.WithDeadline(ctx, last)
}

// recordAlone writes one entry.
func (s *Postgres) recordAlone(ctx context.Context, e Entry) (Review, error) {
	r, err := s.recordOnce(ctx, s.record.acquire, e, false)
	if err == nil || errors.Is(err, ErrErased) {
		return r, err
	}
	return s.recordAgain(ctx, e, err, false)
}

// recordAgain writes an entry once more after err, where that can help: the commit's outcome is unknown, nothing was
// sent, others' locks stood in the way, or others were in the statement (together).
func (s *Postgres) recordAgain(ctx context.Context, e Entry, err error, together bool) (r Review, _ error) {
	unknown := outcomeUnknown(err)
	if ctx.Err() == nil && (unknown || together || steppedBack(err) || pgconn.SafeToRetry(err)) {
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
	conn, err := acquire(ctx)
	if err != nil {
		return Review{}, err
	}
	defer conn.Release()
	reviews, err := s.recordOn(ctx, conn, []Entry{e}, again)
	if err != nil {
		return Review{}, err
	}
	if reviews[0].ID == "" {
		return Review{}, ErrErased
	}
	return reviews[0], nil
}

// statements is a connection, or a transaction on one.
type statements interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// recordOn runs the upsert for entries that can share it; see take. The reviews are in the order of the entries; one
// without an id was not written, since its address was erased.
func (s *Postgres) recordOn(ctx context.Context, conn statements, entries []Entry, again bool) ([]Review, error) {
	n := len(entries)
	if n == 0 {
		return nil, nil
	}
	ids, fps, domains, addresses := make([]string, n), make([][]byte, n), make([]int64, n), make([][]byte, n)
	reasons, causes, trails, times := make([]string, n), make([]string, n), make([]string, n), make([]time.Duration, n)
	ranks, attempts, unusable, outages := make([]int16, n), make([]int, n), make([]int, n), make([]int64, n)
	clients, flows, callbacks := make([]string, n), make([]string, n), make([]string, n)
	at := make(map[normalize.Fingerprint]int, n)
	for i, e := range entries {
		var err error
		if trails[i], err = encodeTrail(e.Trail); err != nil {
			return nil, err
		}
		at[e.Fingerprint] = i
		ids[i], fps[i], domains[i], addresses[i] = e.ID, entries[i].Fingerprint[:], e.DomainKey, seal(s.sealer, e.Address, e.ID)
		reasons[i], causes[i], times[i], ranks[i] = string(e.Reason), string(e.Cause), e.CheckIn, int16(e.Priority)
		attempts[i], unusable[i] = count(e.Cause == verdict.CauseMailbox), count(e.Cause == verdict.CauseUnusable)
		if e.Cause == verdict.CauseUpstream {
			outages[i] = milliseconds(e.CheckIn)
		}
		clients[i], flows[i], callbacks[i] = e.Watcher.Client, e.Watcher.Flow, e.Watcher.Callback
	}
	rows, err := conn.Query(ctx, record, ids, fps, domains, addresses, reasons, causes, trails, again, times, ranks,
		attempts, unusable, outages, entries[0].Firm, clients, flows, callbacks, entries[0].Counted)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out, opened := make([]Review, n), int64(0)
	for rows.Next() {
		r, kept, fp, fresh := Review{State: Open}, "", []byte(nil), false
		if err := rows.Scan(&r.ID, &fp, &r.Reason, &r.Cause, &kept, &r.RecordedAt, &r.UpdatedAt, &fresh, &r.NextCheckAt); err != nil {
			return nil, err
		}
		if r.Trail, err = decodeTrail(kept); err != nil {
			return nil, err
		}
		r.Fingerprint = normalize.Fingerprint(fp)
		i := at[r.Fingerprint]
		r.Address = entries[i].Address
		r.RecordedAt, r.UpdatedAt, r.NextCheckAt = r.RecordedAt.UTC(), r.UpdatedAt.UTC(), r.NextCheckAt.UTC()
		out[i] = r
		opened += int64(count(fresh))
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	s.open.Add(opened)
	return out, nil
}
