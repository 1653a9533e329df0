package fallback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// claim takes leases in one statement.
//
// walk jumps from one domain that has rows to the next, from the cursor on and around the end, each domain once.
// pass1 takes a few due rows of each, pass2 fills what is left from any domain; both take the priorities in turn.
// The passes are materialized, since a planner that runs a limited subquery again would claim more than the
// limit, and have no ORDER BY of their own, which would lock rows that the limit then drops: a nested loop gives
// them in the order of walk and of the priorities, and nothing but fairness hangs on it. The arrays and the
// LIMIT 1 keep later joins to probes by key, and OFFSET 0 keeps a probe from being written out three times.
const claim = `
WITH RECURSIVE walk (domain_key, lap, n) AS (
    SELECT coalesce(s.ahead, s.behind), CASE WHEN s.ahead IS NULL THEN 1 ELSE 0 END, 1
    FROM (SELECT (SELECT min(domain_key) FROM review_queue WHERE domain_key > $1) AS ahead,
                 (SELECT min(domain_key) FROM review_queue WHERE domain_key <= $1) AS behind OFFSET 0) AS s
    WHERE coalesce(s.ahead, s.behind) IS NOT NULL
  UNION ALL
    SELECT coalesce(s.ahead, s.behind), CASE WHEN s.ahead IS NULL THEN 1 ELSE w.lap END, w.n + 1
    FROM walk w CROSS JOIN LATERAL (
        SELECT (SELECT min(domain_key) FROM review_queue
                WHERE domain_key > w.domain_key
                  AND domain_key <= CASE WHEN w.lap = 0 THEN 9223372036854775807 ELSE $1 END) AS ahead,
               (SELECT min(domain_key) FROM review_queue WHERE w.lap = 0 AND domain_key <= $1) AS behind OFFSET 0) AS s
    WHERE w.n < $2 AND coalesce(s.ahead, s.behind) IS NOT NULL
), pass1 AS MATERIALIZED (
    SELECT d.review_id, w.domain_key, w.n
    FROM walk w CROSS JOIN LATERAL (
        SELECT q.review_id
        FROM unnest($3::smallint[]) AS p (priority) CROSS JOIN LATERAL (
            SELECT review_id FROM review_queue
            WHERE domain_key = w.domain_key AND priority = p.priority AND due_at <= now()
            ORDER BY due_at, review_id LIMIT $4 FOR UPDATE SKIP LOCKED) AS q
        LIMIT $4) AS d
    LIMIT $5
), pass2 AS MATERIALIZED (
    SELECT q.review_id
    FROM unnest($3::smallint[]) AS p (priority) CROSS JOIN LATERAL (
        SELECT review_id FROM review_queue
        WHERE priority = p.priority AND due_at <= now() AND review_id <> ALL (ARRAY(SELECT review_id FROM pass1))
        ORDER BY due_at LIMIT $5 FOR UPDATE SKIP LOCKED) AS q
    LIMIT $5 - (SELECT count(*) FROM pass1)
), claimed AS (
    UPDATE review_queue
       SET due_at = now() + $6::interval, lease_token = nextval('review_lease'), claims = claims + 1,
           outage_ms = outage_ms + CASE WHEN cause = 'upstream' AND lease_token = 0
                                        THEN (extract(epoch FROM now() - due_at) * 1000)::bigint ELSE 0 END
     WHERE review_id = ANY (ARRAY(SELECT review_id FROM pass1 UNION ALL SELECT review_id FROM pass2))
    RETURNING review_id, lease_token, domain_key, priority, cause, attempts, snoozes, unusable, claims, outage_ms
)
SELECT CASE WHEN (SELECT count(*) FROM pass1) >= $5 THEN (SELECT domain_key FROM pass1 ORDER BY n DESC LIMIT 1)
            ELSE coalesce((SELECT domain_key FROM walk ORDER BY n DESC LIMIT 1), $1) END,
       now(),
       c.review_id::text, c.lease_token, c.domain_key, c.priority, c.cause, c.attempts, c.snoozes, c.unusable,
       c.claims, c.outage_ms, c.fingerprint, c.address, c.reason, c.recorded_at, c.asked_at
FROM (SELECT) AS one LEFT JOIN (
    SELECT * FROM claimed CROSS JOIN LATERAL (
        SELECT fingerprint, address, reason, recorded_at, asked_at FROM reviews WHERE id = claimed.review_id LIMIT 1) AS r
) AS c ON true
ORDER BY c.priority DESC`

// Claim leases due rows: it moves their due time forward by the lease and gives each a new token. In a first pass
// it takes a few rows a domain, going round from the cursor, in a second it fills the batch from any domain; in
// both the higher priority goes first. Claims are counted here, so that a crash counts. Rows whose address can't
// be opened are buried as ReasonUnreadable and left out. Nothing due is no error.
func (s *Postgres) Claim(ctx context.Context, req ClaimRequest) (_ ClaimResult, err error) {
	defer s.metrics.observe("claim", time.Now(), &err)
	if req, err = req.check(); err != nil {
		return ClaimResult{}, err
	}
	res, unreadable, err := s.claim(ctx, req)
	if err != nil {
		return ClaimResult{}, fmt.Errorf("claim: %w", err)
	}
	for _, c := range unreadable {
		if err := s.Kill(ctx, c, ReasonUnreadable); err != nil && !errors.Is(err, ErrLeaseLost) {
			return res, fmt.Errorf("claim: %w", err) // its lease will end, and it will be met again
		}
	}
	return res, nil
}

func (s *Postgres) claim(ctx context.Context, req ClaimRequest) (res ClaimResult, unreadable []Claim, err error) {
	conn, err := s.work.acquire(ctx)
	if err != nil {
		return ClaimResult{}, nil, err
	}
	defer conn.Release()
	rows, err := conn.Query(ctx, claim,
		req.Cursor, claimWalk, priorityColumn, req.PerDomain, req.Max, req.Lease)
	if err != nil {
		return ClaimResult{}, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var now time.Time
		var id, cause, reason *string
		var token, domain, outage *int64
		var priority *int16
		var attempts, snoozes, unusable, claims *int
		var fp, address []byte
		var recorded, asked *time.Time
		err := rows.Scan(&res.Cursor, &now, &id, &token, &domain, &priority, &cause, &attempts, &snoozes, &unusable,
			&claims, &outage, &fp, &address, &reason, &recorded, &asked)
		if err != nil {
			return ClaimResult{}, nil, err
		}
		if id == nil {
			continue // the one row that carries the cursor of an empty claim
		}
		c := Claim{
			ReviewID: *id, Token: *token, Fingerprint: normalize.Fingerprint(fp), DomainKey: *domain,
			Address: unseal(s.sealer, address, *id),
			Reason:  verdict.Reason(*reason), Cause: verdict.Cause(*cause), Priority: Priority(*priority),
			Attempts: *attempts, Snoozes: *snoozes, Unusable: *unusable, Claims: *claims,
			RecordedAt: recorded.UTC(), Outage: time.Duration(*outage) * time.Millisecond, Now: now.UTC(),
		}
		if asked != nil {
			c.AskedAt = asked.UTC()
		}
		if c.Address.IsZero() {
			unreadable = append(unreadable, c)
		} else {
			res.Claims = append(res.Claims, c)
		}
	}
	return res, unreadable, rows.Err()
}

// priorityColumn is priorities as a column's values.
var priorityColumn = []int16{int16(PriorityInteractive), int16(PriorityBackground), int16(PriorityBackfill)}

// Heartbeat moves the end of a lease to a full lease from now. ErrLeaseLost: the token is not the row's own.
func (s *Postgres) Heartbeat(ctx context.Context, id string, token int64, lease time.Duration) (err error) {
	const heartbeat = `
UPDATE review_queue SET due_at = now() + $3::interval WHERE review_id = $1 AND lease_token = $2`
	defer s.metrics.observe("heartbeat", time.Now(), &err)
	if id = canonicalID(id); id == "" || token == 0 {
		return ErrLeaseLost
	}
	n, err := s.work.exec(ctx, heartbeat, id, token, lease)
	return oneRow("heartbeat", n, err)
}

// oneRow turns "no row had this token" into ErrLeaseLost.
func oneRow(operation string, n int64, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", operation, err)
	}
	if n == 0 {
		return ErrLeaseLost
	}
	return nil
}

// GiveBack ends leases without any result: the rows are due at once and the claims are not counted. ErrLeaseLost:
// at least one was lost; the others were given back all the same.
func (s *Postgres) GiveBack(ctx context.Context, claims []Claim) (err error) {
	const giveBack = `
UPDATE review_queue q SET due_at = now(), lease_token = 0, claims = greatest(q.claims - 1, 0)
FROM unnest($1::text[], $2::bigint[]) AS i (id, token)
WHERE q.review_id = i.id::uuid AND q.lease_token = i.token AND i.token <> 0`
	defer s.metrics.observe("give_back", time.Now(), &err)
	if len(claims) == 0 {
		return nil
	}
	ids, tokens := make([]string, len(claims)), make([]int64, len(claims))
	for i, c := range claims {
		ids[i], tokens[i] = c.ReviewID, c.Token
	}
	n, err := s.work.exec(ctx, giveBack, ids, tokens)
	if err != nil {
		return fmt.Errorf("give back: %w", err)
	}
	if n < int64(len(claims)) {
		return ErrLeaseLost
	}
	return nil
}

// settle ends reviews in one statement. It locks the rows of reviews first, in the order of their ids, as every
// other statement does: so none waits for another in a circle. Counting them makes that step come first; a join with it
// would compare each with each, and find nothing out: a row of the queue exists only while its review is open.
const settle = `
WITH input AS MATERIALIZED (
    SELECT id::uuid AS id, token, body::jsonb AS body, trail::jsonb AS trail, verdict_id::uuid AS verdict_id,
           status, reason, checked_at, hard_until
    FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                $8::timestamptz[], $9::timestamptz[])
         AS i (id, token, body, trail, verdict_id, status, reason, checked_at, hard_until)
), locked AS MATERIALIZED (
    SELECT id FROM reviews WHERE id = ANY ($1::text[]::uuid[]) AND state = 'open' ORDER BY id FOR UPDATE
), held AS (
    DELETE FROM review_queue q USING input i
     WHERE q.review_id = i.id AND q.lease_token = i.token AND i.token <> 0 AND (SELECT count(*) FROM locked) >= 0
    RETURNING i.*
), settled AS (
    UPDATE reviews r
       SET state = 'settled', verdict = h.body, address = NULL, ended_at = now(),
           trail = jsonb_path_query_array(r.trail || h.trail, ` + keepTrail + `)
      FROM held h
     WHERE r.id = h.id
    RETURNING r.fingerprint, h.verdict_id, h.status, h.reason, h.body, h.checked_at, h.hard_until
), kept AS (
    INSERT INTO verdicts AS v (id, fingerprint, status, reason, body, checked_at, hard_until)
    SELECT DISTINCT ON (verdict_id) verdict_id, fingerprint, status, reason, body, checked_at, hard_until
    FROM settled
    WHERE hard_until IS NOT NULL
    ORDER BY verdict_id, checked_at DESC
    ON CONFLICT (id) DO UPDATE
       SET fingerprint = excluded.fingerprint, status = excluded.status, reason = excluded.reason,
           body = excluded.body, checked_at = excluded.checked_at, hard_until = excluded.hard_until
     WHERE v.checked_at <= excluded.checked_at
)
SELECT id::text FROM held`

// Settle ends a claimed review with a final verdict, in one transaction: the review is settled and its address
// erased, the row of the queue is gone, the verdict is stored under its id (the review's when it has none) if it has a
// hard expiry, and the outbox has a message for each watcher with a callback. ErrLeaseLost: the token is not the row's own, and nothing was written.
func (s *Postgres) Settle(ctx context.Context, c Claim, v verdict.Verdict, trail []verdict.Attempt) error {
	lost, err := s.SettleBatch(ctx, []Settlement{{Claim: c, Verdict: v, Trail: trail}})
	return onlyRow(lost, err)
}

// SettleBatch is Settle for several claims, at most MaxBatch, in one transaction. It returns the claims whose
// lease was lost; the others are settled. A verdict that is not final is an error, before anything is written.
func (s *Postgres) SettleBatch(ctx context.Context, batch []Settlement) (lost []Claim, err error) {
	defer s.metrics.observe("settle", time.Now(), &err)
	n := len(batch)
	switch {
	case n == 0:
		return nil, nil
	case n > MaxBatch:
		return nil, fmt.Errorf("settle: %d claims, at most %d", n, MaxBatch)
	}
	ids, tokens := make([]string, n), make([]int64, n)
	bodies, trails := make([]string, n), make([]string, n)
	verdictIDs, statuses, reasons := make([]string, n), make([]string, n), make([]string, n)
	checked, hard := make([]time.Time, n), make([]*time.Time, n)
	for i, b := range batch {
		v := withID(b.Verdict, b.Claim.ReviewID)
		if err := checkFinal(v); err != nil {
			return nil, fmt.Errorf("settle: %w", err)
		}
		if bodies[i], err = encodeVerdict(v); err != nil {
			return nil, fmt.Errorf("settle: %w", err)
		}
		if trails[i], err = encodeTrail(b.Trail); err != nil {
			return nil, fmt.Errorf("settle: %w", err)
		}
		ids[i], tokens[i], verdictIDs[i] = b.Claim.ReviewID, b.Claim.Token, v.ID
		statuses[i], reasons[i], checked[i] = string(v.Status), string(v.Reason), v.CheckedAt
		if !v.HardUntil.IsZero() {
			hard[i] = &v.HardUntil
		}
	}
	done, err := s.work.endAndTell(ctx, ids, settle, ids, tokens, bodies, trails, verdictIDs, statuses, reasons, checked, hard)
	if err != nil {
		return nil, fmt.Errorf("settle: %w", err)
	}
	s.open.Add(-int64(len(done)))
	for _, b := range batch {
		if !slices.Contains(done, b.Claim.ReviewID) {
			lost = append(lost, b.Claim)
		}
	}
	return lost, nil
}

const settleOpen = `
WITH locked AS MATERIALIZED (
    SELECT id FROM reviews WHERE fingerprint = $1 AND state = 'open' AND (asked_at IS NULL OR asked_at <= $9) FOR UPDATE
), gone AS (
    DELETE FROM review_queue WHERE review_id = ANY (ARRAY(SELECT id FROM locked))
), settled AS (
    UPDATE reviews r
       SET state = 'settled', verdict = $2::jsonb, address = NULL, ended_at = now(),
           trail = jsonb_path_query_array(r.trail || $3::jsonb, ` + keepTrail + `)
     WHERE r.id = ANY (ARRAY(SELECT id FROM locked))
    RETURNING r.id
), kept AS (
    INSERT INTO verdicts AS v (id, fingerprint, status, reason, body, checked_at, hard_until)
    SELECT $4::uuid, $1, $5, $6, $2::jsonb, $7::timestamptz, $8::timestamptz FROM settled WHERE $8 IS NOT NULL
    ON CONFLICT (id) DO UPDATE
       SET fingerprint = excluded.fingerprint, status = excluded.status, reason = excluded.reason,
           body = excluded.body, checked_at = excluded.checked_at, hard_until = excluded.hard_until
     WHERE v.checked_at <= excluded.checked_at
)
SELECT id::text FROM settled`

// SettleOpen ends whatever review is open for the fingerprint, whoever holds its lease: a late or a fresh answer
// is as good as the loop's. It stores v as Settle does, but only when there was a review to settle; it returns
// that review's id. No open review is no error, nor is one for which a new check was asked after v began: it goes on.
func (s *Postgres) SettleOpen(
	ctx context.Context, fp normalize.Fingerprint, v verdict.Verdict, trail []verdict.Attempt,
) (id string, settled bool, err error) {
	defer s.metrics.observe("settle_open", time.Now(), &err)
	if err := checkFinal(v); err != nil {
		return "", false, fmt.Errorf("settle open: %w", err)
	}
	body, err := encodeVerdict(v)
	if err != nil {
		return "", false, fmt.Errorf("settle open: %w", err)
	}
	more, err := encodeTrail(trail)
	if err != nil {
		return "", false, fmt.Errorf("settle open: %w", err)
	}
	var hard *time.Time
	if !v.HardUntil.IsZero() {
		hard = &v.HardUntil
	}
	conn, err := s.work.acquire(ctx)
	if err != nil {
		return "", false, fmt.Errorf("settle open: %w", err)
	}
	defer conn.Release()
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, settleOpen, fp[:], body, more, v.ID, string(v.Status), string(v.Reason), v.CheckedAt, hard, v.Began()).Scan(&id)
		if err == nil {
			_, err = tx.Exec(ctx, tellEnds, []string{id})
		}
		return err
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", false, nil
	case err != nil:
		return "", false, fmt.Errorf("settle open: %w", err)
	}
	s.open.Add(-1)
	return id, true, nil
}

const postpone = `
WITH input AS MATERIALIZED (
    SELECT id::uuid AS id, token, check_in, reason, cause, trail::jsonb AS trail
    FROM unnest($1::text[], $2::bigint[], $3::interval[], $4::text[], $5::text[], $6::text[])
         AS i (id, token, check_in, reason, cause, trail)
), locked AS MATERIALIZED (
    SELECT id FROM reviews WHERE id = ANY ($1::text[]::uuid[]) AND state = 'open' ORDER BY id FOR UPDATE
), held AS (
    UPDATE review_queue q
       SET due_at = now() + i.check_in, lease_token = 0, claims = 0, cause = i.cause,
           attempts = q.attempts + (i.cause = 'mailbox')::integer, unusable = q.unusable + (i.cause = 'unusable')::integer,
           snoozes = CASE WHEN i.cause = 'upstream' THEN q.snoozes + 1 ELSE 0 END,
           outage_ms = q.outage_ms + CASE WHEN i.cause = 'upstream' THEN (extract(epoch FROM i.check_in) * 1000)::bigint ELSE 0 END
      FROM input i
     WHERE q.review_id = i.id AND q.lease_token = i.token AND i.token <> 0 AND (SELECT count(*) FROM locked) >= 0
    RETURNING i.*
)
UPDATE reviews r
   SET reason = h.reason, cause = h.cause, updated_at = now(),
       trail = jsonb_path_query_array(r.trail || h.trail, ` + keepTrail + `)
  FROM held h
 WHERE r.id = h.id
RETURNING r.id::text`

// Postpone ends a lease with no final answer: the review is due again after CheckIn. CauseMailbox counts an
// attempt and CauseUnusable an unusable answer; CauseUpstream counts a snooze and adds CheckIn to the outage.
// ErrLeaseLost: the token is not the row's own, and nothing was written.
func (s *Postgres) Postpone(ctx context.Context, c Claim, p Postponement) error {
	lost, err := s.PostponeBatch(ctx, []Delay{{Claim: c, Postponement: p}})
	return onlyRow(lost, err)
}

// PostponeBatch is Postpone for several claims, at most MaxBatch, in one transaction. It returns the claims whose lease
// was lost; the others are postponed. A postponement that no row can hold is an error, before anything is written.
func (s *Postgres) PostponeBatch(ctx context.Context, batch []Delay) (lost []Claim, err error) {
	defer s.metrics.observe("postpone", time.Now(), &err)
	n := len(batch)
	if n == 0 {
		return nil, nil
	}
	if err := checkDelays(batch); err != nil {
		return nil, fmt.Errorf("postpone: %w", err)
	}
	ids, tokens, times := make([]string, n), make([]int64, n), make([]time.Duration, n)
	reasons, causes, trails := make([]string, n), make([]string, n), make([]string, n)
	for i, d := range batch {
		if trails[i], err = encodeTrail(d.Trail); err != nil {
			return nil, fmt.Errorf("postpone: %w", err)
		}
		ids[i], tokens[i], times[i] = d.Claim.ReviewID, d.Claim.Token, d.CheckIn
		reasons[i], causes[i] = string(d.Reason), string(d.Cause)
	}
	done, err := s.ended(ctx, postpone, ids, tokens, times, reasons, causes, trails)
	if err != nil {
		return nil, fmt.Errorf("postpone: %w", err)
	}
	for _, d := range batch {
		if !done[d.Claim.ReviewID] {
			lost = append(lost, d.Claim)
		}
	}
	return lost, nil
}

// ended runs a statement that returns the ids of the rows that it changed.
func (s *Postgres) ended(ctx context.Context, sql string, args ...any) (map[string]bool, error) {
	conn, err := s.work.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	done := make(map[string]bool, len(ids))
	for _, id := range ids {
		done[id] = true
	}
	return done, nil
}

// onlyRow is the outcome of a batch of one.
func onlyRow(lost []Claim, err error) error {
	if err == nil && len(lost) > 0 {
		return ErrLeaseLost
	}
	return err
}

const kill = `
WITH locked AS MATERIALIZED (
    SELECT id FROM reviews WHERE id = $1 AND state = 'open' FOR UPDATE
), held AS (
    DELETE FROM review_queue WHERE review_id = ANY (ARRAY(SELECT id FROM locked)) AND lease_token = $2
    RETURNING review_id
)
UPDATE reviews SET state = 'dead', reason = $3, ended_at = now()
 WHERE id = ANY (ARRAY(SELECT review_id FROM held))
RETURNING id::text`

// Kill buries a claimed review: it is dead with this reason, keeps its address, and is not claimed again. The outbox has a
// message for each watcher with a callback.
// ErrLeaseLost: the token is not the row's own, and nothing was written.
func (s *Postgres) Kill(ctx context.Context, c Claim, reason verdict.Reason) (err error) {
	defer s.metrics.observe("kill", time.Now(), &err)
	if c.Token == 0 {
		return ErrLeaseLost
	}
	done, err := s.work.endAndTell(ctx, []string{c.ReviewID}, kill, c.ReviewID, c.Token, string(reason))
	if err == nil {
		s.open.Add(-int64(len(done)))
	}
	return oneRow("kill", int64(len(done)), err)
}

// hasten draws each row's new time once, in a materialized step, since both columns need it.
const hasten = `
WITH chosen AS MATERIALIZED (
    SELECT review_id, now() + random() * $1::interval AS due_at
    FROM (SELECT q.review_id
          FROM unnest($2::smallint[]) AS p (priority) CROSS JOIN LATERAL (
              SELECT review_id FROM review_queue
              WHERE priority = p.priority AND due_at > now() + $1::interval
                AND lease_token = 0 AND cause = 'upstream'
              ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED) AS q
          LIMIT $3) AS bounded
)
UPDATE review_queue q
   SET due_at = c.due_at,
       outage_ms = greatest(q.outage_ms - (extract(epoch FROM q.due_at - c.due_at) * 1000)::bigint, 0)
  FROM chosen c WHERE q.review_id = c.review_id`

// Hasten makes rows that wait on the upstream's side due within spread from now, each at a random moment, so that
// a recovery is used and no storm follows. It takes rows that are not leased and due later than that, at most
// limit (0: all), 1,000 a statement, the higher priority and the earlier due first. It returns how many, also
// beside an error.
func (s *Postgres) Hasten(ctx context.Context, limit int, spread time.Duration) (hastened int, err error) {
	defer s.metrics.observe("hasten", time.Now(), &err)
	if spread < 0 || limit < 0 {
		return 0, errors.New("hasten: limit or spread is negative")
	}
	for limit == 0 || hastened < limit {
		batch := maxHastenBatch
		if limit > 0 {
			batch = min(batch, limit-hastened)
		}
		n, err := s.admin.exec(ctx, hasten, spread, priorityColumn, batch)
		hastened += int(n)
		if err != nil {
			return hastened, fmt.Errorf("hasten: %w", err)
		}
		if n < int64(batch) {
			break
		}
	}
	return hastened, nil
}
