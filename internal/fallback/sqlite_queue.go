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

// Claim: see [Postgres.Claim].
func (s *SQLite) Claim(ctx context.Context, req ClaimRequest) (_ ClaimResult, err error) {
	defer s.metrics.observe("claim", time.Now(), &err)
	if req, err = req.check(); err != nil {
		return ClaimResult{}, err
	}
	if idle, err := s.idle(ctx, time.Now()); err != nil {
		return ClaimResult{}, fmt.Errorf("claim: %w", err)
	} else if idle > 0 {
		return ClaimResult{Cursor: req.Cursor, Idle: idle}, nil
	}
	res, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (ClaimResult, error) {
		return s.claim(ctx, tx, req, time.Now())
	})
	if err != nil {
		return ClaimResult{}, fmt.Errorf("claim: %w", err)
	}
	readable := res.Claims[:0]
	for _, c := range res.Claims {
		if !c.Address.IsZero() {
			readable = append(readable, c)
			continue
		}
		if killErr := s.Kill(ctx, c, ReasonUnreadable); killErr != nil && !errors.Is(killErr, ErrLeaseLost) {
			err = fmt.Errorf("claim: %w", killErr) // its lease will end, and it will be met again
		}
	}
	res.Claims = readable
	return res, err
}

// idle is the time until something is due; no other process adds to it. It costs a step in an index for each
// priority, where a claim walks through the domains inside a transaction for writing.
func (s *SQLite) idle(ctx context.Context, now time.Time) (time.Duration, error) {
	const nextDue = `SELECT min(due) FROM (
        SELECT min(due_at) AS due FROM review_queue WHERE priority = 0
        UNION ALL SELECT min(due_at) FROM review_queue WHERE priority = 10
        UNION ALL SELECT min(due_at) FROM review_queue WHERE priority = 20)`
	var due sql.NullInt64
	if err := s.reads.QueryRowContext(ctx, nextDue).Scan(&due); err != nil {
		return 0, err
	}
	if !due.Valid {
		return MaxIdle, nil
	}
	return min(max(fromMicros(due).Sub(now), 0), MaxIdle), nil
}

func (s *SQLite) claim(ctx context.Context, tx *tx, req ClaimRequest, now time.Time) (ClaimResult, error) {
	ids, cursor, err := dueFairly(ctx, tx, req, now)
	if err != nil {
		return ClaimResult{}, err
	}
	if ids, err = dueAnywhere(ctx, tx, req, now, ids); err != nil {
		return ClaimResult{}, err
	}
	res := ClaimResult{Cursor: cursor}
	if len(ids) == 0 {
		return res, nil
	}
	// A token for each row; they need not be used up.
	const tokens = `UPDATE review_lease SET last = last + ? RETURNING last`
	var last int64
	if err := tx.QueryRowContext(ctx, tokens, len(ids)).Scan(&last); err != nil {
		return ClaimResult{}, err
	}
	for i, id := range ids {
		c, err := s.lease(ctx, tx, id, last-int64(i), now, req.Lease)
		if err != nil {
			return ClaimResult{}, err
		}
		res.Claims = append(res.Claims, c)
	}
	return res, nil
}

// dueFairly is the first pass: at most PerDomain due rows of each of the next domains after the cursor, around
// the end, each domain once.
func dueFairly(
	ctx context.Context, tx *tx, req ClaimRequest, now time.Time,
) (ids []string, cursor int64, err error) {
	cursor = req.Cursor
	lap := 0
	for range claimWalk {
		domain, found, err := nextDomain(ctx, tx, cursor, &lap, req.Cursor)
		if err != nil || !found {
			return ids, cursor, err
		}
		cursor = domain
		room := min(req.PerDomain, req.Max-len(ids))
		for _, p := range priorities {
			const due = `
SELECT review_id FROM review_queue WHERE domain_key = ? AND priority = ? AND due_at <= ?
ORDER BY due_at, review_id LIMIT ?`
			more, err := column(tx.QueryContext(ctx, due, domain, p, micros(now), room))
			if err != nil {
				return nil, 0, err
			}
			ids = append(ids, more...)
			if room -= len(more); room == 0 {
				break
			}
		}
		if len(ids) >= req.Max {
			break
		}
	}
	return ids, cursor, nil
}

// nextDomain returns the first domain after at that has rows. Past the last it goes on from the first, in lap 1,
// and there ends at the domain it began after.
func nextDomain(ctx context.Context, tx *tx, at int64, lap *int, began int64) (domain int64, found bool, err error) {
	const ahead = `SELECT min(domain_key) FROM review_queue WHERE domain_key > ?`
	const ahead2 = `SELECT min(domain_key) FROM review_queue WHERE domain_key > ? AND domain_key <= ?`
	const behind = `SELECT min(domain_key) FROM review_queue WHERE domain_key <= ?`
	var key sql.NullInt64
	if *lap == 0 {
		if err := tx.QueryRowContext(ctx, ahead, at).Scan(&key); err != nil || key.Valid {
			return key.Int64, key.Valid, err
		}
		*lap = 1
		err = tx.QueryRowContext(ctx, behind, began).Scan(&key)
		return key.Int64, key.Valid, err
	}
	err = tx.QueryRowContext(ctx, ahead2, at, began).Scan(&key)
	return key.Int64, key.Valid, err
}

// dueAnywhere is the second pass: it fills the batch from any domain, the higher priority first.
func dueAnywhere(ctx context.Context, tx *tx, req ClaimRequest, now time.Time, ids []string) ([]string, error) {
	taken := make(map[string]bool, req.Max)
	for _, id := range ids {
		taken[id] = true
	}
	for _, p := range priorities {
		if len(ids) >= req.Max {
			break
		}
		// At most len(ids) of them are taken already, so Max are enough to fill the batch.
		const due = `SELECT review_id FROM review_queue WHERE priority = ? AND due_at <= ? ORDER BY due_at LIMIT ?`
		more, err := column(tx.QueryContext(ctx, due, p, micros(now), req.Max))
		if err != nil {
			return nil, err
		}
		for _, id := range more {
			if !taken[id] && len(ids) < req.Max {
				ids = append(ids, id)
			}
		}
	}
	return ids, nil
}

// column collects a query's only column.
func column(rows *sql.Rows, err error) (out []string, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

// lease claims one row.
func (s *SQLite) lease(
	ctx context.Context, tx *tx, id string, token int64, now time.Time, lease time.Duration,
) (Claim, error) {
	const claim = `
UPDATE review_queue
   SET due_at = ?2, lease_token = ?3, claims = claims + 1,
       outage_ms = outage_ms + CASE WHEN cause = 'upstream' AND lease_token = 0 THEN (?1 - due_at) / 1000 ELSE 0 END
 WHERE review_id = ?4
RETURNING lease_token, domain_key, priority, cause, attempts, snoozes, unusable, claims, outage_ms`
	const facts = `SELECT fingerprint, address, reason, recorded_at, asked_at FROM reviews WHERE id = ?`
	c := Claim{ReviewID: id, Now: now.UTC()}
	var outage int64
	err := tx.QueryRowContext(ctx, claim, micros(now), micros(now.Add(lease)), token, id).
		Scan(&c.Token, &c.DomainKey, &c.Priority, &c.Cause, &c.Attempts, &c.Snoozes, &c.Unusable, &c.Claims, &outage)
	if err != nil {
		return Claim{}, err
	}
	var fp, address []byte
	var recorded, asked sql.NullInt64
	if err := tx.QueryRowContext(ctx, facts, id).Scan(&fp, &address, &c.Reason, &recorded, &asked); err != nil {
		return Claim{}, err
	}
	c.Fingerprint, c.Address = normalize.Fingerprint(fp), unseal(s.sealer, address, id)
	c.AskedAt = fromMicros(asked)
	c.RecordedAt, c.Outage = fromMicros(recorded), time.Duration(outage)*time.Millisecond
	return c, nil
}

// Heartbeat: see [Postgres.Heartbeat].
func (s *SQLite) Heartbeat(ctx context.Context, id string, token int64, lease time.Duration) (err error) {
	const heartbeat = `UPDATE review_queue SET due_at = ? WHERE review_id = ? AND lease_token = ?`
	defer s.metrics.observe("heartbeat", time.Now(), &err)
	if token == 0 {
		return ErrLeaseLost
	}
	n, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (int64, error) {
		return changed(tx.ExecContext(ctx, heartbeat, micros(time.Now().Add(lease)), canonicalID(id), token))
	})
	return oneRow("heartbeat", n, err)
}

// GiveBack: see [Postgres.GiveBack].
func (s *SQLite) GiveBack(ctx context.Context, claims []Claim) (err error) {
	const giveBack = `
UPDATE review_queue SET due_at = ?, lease_token = 0, claims = max(claims - 1, 0)
WHERE review_id = ? AND lease_token = ? AND lease_token <> 0`
	defer s.metrics.observe("give_back", time.Now(), &err)
	n, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (given int64, err error) {
		now := micros(time.Now())
		for _, c := range claims {
			n, err := changed(tx.ExecContext(ctx, giveBack, now, c.ReviewID, c.Token))
			if err != nil {
				return 0, err
			}
			given += n
		}
		return given, nil
	})
	if err != nil {
		return fmt.Errorf("give back: %w", err)
	}
	if n < int64(len(claims)) {
		return ErrLeaseLost
	}
	return nil
}

// Settle: see [Postgres.Settle].
func (s *SQLite) Settle(ctx context.Context, c Claim, v verdict.Verdict, trail []verdict.Attempt) error {
	lost, err := s.SettleBatch(ctx, []Settlement{{Claim: c, Verdict: v, Trail: trail}})
	return onlyRow(lost, err)
}

// SettleBatch: see [Postgres.SettleBatch].
func (s *SQLite) SettleBatch(ctx context.Context, batch []Settlement) (lost []Claim, err error) {
	defer s.metrics.observe("settle", time.Now(), &err)
	if len(batch) > MaxBatch {
		return nil, fmt.Errorf("settle: %d claims, at most %d", len(batch), MaxBatch)
	}
	for _, b := range batch {
		if err := checkFinal(withID(b.Verdict, b.Claim.ReviewID)); err != nil {
			return nil, fmt.Errorf("settle: %w", err)
		}
	}
	lost, err = write(ctx, s.writer, func(ctx context.Context, tx *tx) (lost []Claim, err error) {
		for _, b := range batch {
			held, err := release(ctx, tx, b.Claim)
			if err != nil {
				return nil, err
			}
			if !held {
				lost = append(lost, b.Claim)
				continue
			}
			v := withID(b.Verdict, b.Claim.ReviewID)
			if err := settleReview(ctx, tx, b.Claim.ReviewID, b.Claim.Fingerprint, v, b.Trail); err != nil {
				return nil, err
			}
		}
		return lost, nil
	})
	if err != nil {
		return nil, fmt.Errorf("settle: %w", err)
	}
	return lost, nil
}

// release deletes a claim's row from the queue, if the claim holds it.
func release(ctx context.Context, tx *tx, c Claim) (held bool, err error) {
	const release = `DELETE FROM review_queue WHERE review_id = ? AND lease_token = ? AND lease_token <> 0`
	n, err := changed(tx.ExecContext(ctx, release, c.ReviewID, c.Token))
	tx.opened -= n
	return n > 0, err
}

// settleReview writes the end of a review whose row has left the queue.
func settleReview(
	ctx context.Context, tx *tx, id string, fp normalize.Fingerprint, v verdict.Verdict, more []verdict.Attempt,
) error {
	const settle = `
UPDATE reviews SET state = 'settled', verdict = ?, address = NULL, ended_at = ?, trail = ? WHERE id = ?`
	body, err := encodeVerdict(v)
	if err != nil {
		return err
	}
	trail, err := longerTrail(ctx, tx, id, more)
	if err != nil {
		return err
	}
	now := time.Now()
	if _, err := tx.ExecContext(ctx, settle, body, micros(now), trail, id); err != nil {
		return err
	}
	if err := tell(ctx, tx, id, NoticeSettled, now); err != nil {
		return err
	}
	if v.HardUntil.IsZero() {
		return nil
	}
	return putVerdict(ctx, tx, fp, v)
}

// longerTrail is a review's trail with more appended, as its column.
func longerTrail(ctx context.Context, tx *tx, id string, more []verdict.Attempt) (string, error) {
	var text string
	if err := tx.QueryRowContext(ctx, `SELECT trail FROM reviews WHERE id = ?`, id).Scan(&text); err != nil {
		return "", err
	}
	if len(more) == 0 {
		return text, nil
	}
	trail, err := decodeTrail(text)
	if err != nil {
		return "", err
	}
	return encodeTrail(append(trail, more...))
}

// SettleOpen: see [Postgres.SettleOpen].
func (s *SQLite) SettleOpen(
	ctx context.Context, fp normalize.Fingerprint, v verdict.Verdict, trail []verdict.Attempt,
) (id string, settled bool, err error) {
	defer s.metrics.observe("settle_open", time.Now(), &err)
	if err := checkFinal(v); err != nil {
		return "", false, fmt.Errorf("settle open: %w", err)
	}
	id, err = write(ctx, s.writer, func(ctx context.Context, tx *tx) (id string, err error) {
		const open = `SELECT id FROM reviews WHERE fingerprint = ? AND state = 'open' AND (asked_at IS NULL OR asked_at <= ?)`
		err = tx.QueryRowContext(ctx, open, fp[:], micros(v.Began())).Scan(&id)
		if errors.Is(err, sql.ErrNoRows) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM review_queue WHERE review_id = ?`, id); err != nil {
			return "", err
		}
		tx.opened--
		return id, settleReview(ctx, tx, id, fp, v, trail)
	})
	if err != nil {
		return "", false, fmt.Errorf("settle open: %w", err)
	}
	return id, id != "", nil
}

// Postpone: see [Postgres.Postpone].
func (s *SQLite) Postpone(ctx context.Context, c Claim, p Postponement) error {
	lost, err := s.PostponeBatch(ctx, []Delay{{Claim: c, Postponement: p}})
	return onlyRow(lost, err)
}

// PostponeBatch: see [Postgres.PostponeBatch].
func (s *SQLite) PostponeBatch(ctx context.Context, batch []Delay) (lost []Claim, err error) {
	defer s.metrics.observe("postpone", time.Now(), &err)
	if err := checkDelays(batch); err != nil {
		return nil, fmt.Errorf("postpone: %w", err)
	}
	lost, err = write(ctx, s.writer, func(ctx context.Context, tx *tx) (lost []Claim, err error) {
		for _, d := range batch {
			n, err := postponeOne(ctx, tx, d, time.Now())
			if err != nil {
				return nil, err
			}
			if n == 0 {
				lost = append(lost, d.Claim)
			}
		}
		return lost, nil
	})
	if err != nil {
		return nil, fmt.Errorf("postpone: %w", err)
	}
	return lost, nil
}

func postponeOne(ctx context.Context, tx *tx, d Delay, now time.Time) (int64, error) {
	const postponeQueue = `
UPDATE review_queue
   SET due_at = ?1, lease_token = 0, claims = 0, cause = ?2, attempts = attempts + ?3, unusable = unusable + ?4,
       snoozes = CASE WHEN ?2 = 'upstream' THEN snoozes + 1 ELSE 0 END, outage_ms = outage_ms + ?5
 WHERE review_id = ?6 AND lease_token = ?7 AND lease_token <> 0`
	const postponeReview = `UPDATE reviews SET reason = ?, cause = ?, updated_at = ?, trail = ? WHERE id = ?`
	var outage int64
	if d.Cause == verdict.CauseUpstream {
		outage = milliseconds(d.CheckIn)
	}
	n, err := changed(tx.ExecContext(ctx, postponeQueue, micros(now.Add(d.CheckIn)), string(d.Cause),
		count(d.Cause == verdict.CauseMailbox), count(d.Cause == verdict.CauseUnusable), outage, d.Claim.ReviewID, d.Claim.Token))
	if err != nil || n == 0 {
		return 0, err
	}
	trail, err := longerTrail(ctx, tx, d.Claim.ReviewID, d.Trail)
	if err != nil {
		return 0, err
	}
	return changed(tx.ExecContext(ctx, postponeReview, string(d.Reason), string(d.Cause), micros(now), trail, d.Claim.ReviewID))
}

// Kill: see [Postgres.Kill].
func (s *SQLite) Kill(ctx context.Context, c Claim, reason verdict.Reason) (err error) {
	const kill = `UPDATE reviews SET state = 'dead', reason = ?, ended_at = ? WHERE id = ?`
	defer s.metrics.observe("kill", time.Now(), &err)
	n, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (int64, error) {
		if held, err := release(ctx, tx, c); err != nil || !held {
			return 0, err
		}
		now := time.Now()
		n, err := changed(tx.ExecContext(ctx, kill, string(reason), micros(now), c.ReviewID))
		if err != nil {
			return 0, err
		}
		return n, tell(ctx, tx, c.ReviewID, NoticeDead, now)
	})
	return oneRow("kill", n, err)
}

// Hasten: see [Postgres.Hasten].
func (s *SQLite) Hasten(ctx context.Context, limit int, spread time.Duration) (hastened int, err error) {
	defer s.metrics.observe("hasten", time.Now(), &err)
	if spread < 0 || limit < 0 {
		return 0, errors.New("hasten: limit or spread is negative")
	}
	for limit == 0 || hastened < limit {
		batch := maxHastenBatch
		if limit > 0 {
			batch = min(batch, limit-hastened)
		}
		n, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (int, error) {
			return s.hasten(ctx, tx, batch, spread)
		})
		hastened += n
		if err != nil {
			return hastened, fmt.Errorf("hasten: %w", err)
		}
		if n < batch {
			break
		}
	}
	return hastened, nil
}

func (s *SQLite) hasten(ctx context.Context, tx *tx, limit int, spread time.Duration) (int, error) {
	const later = `
SELECT review_id FROM review_queue
WHERE priority = ? AND due_at > ? AND lease_token = 0 AND cause = 'upstream' ORDER BY due_at LIMIT ?`
	const hasten = `
UPDATE review_queue SET due_at = ?1, outage_ms = max(outage_ms - (due_at - ?1) / 1000, 0) WHERE review_id = ?2`
	now := time.Now()
	n := 0
	for _, p := range priorities {
		if n >= limit {
			break
		}
		ids, err := column(tx.QueryContext(ctx, later, p, micros(now.Add(spread)), limit-n))
		if err != nil {
			return 0, err
		}
		for _, id := range ids {
			due := now.Add(time.Duration(s.random() * float64(spread)))
			if _, err := tx.ExecContext(ctx, hasten, micros(due), id); err != nil {
				return 0, err
			}
		}
		n += len(ids)
	}
	return n, nil
}
