package fallback

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// BackfillPortion returns the addresses of the next rows that are not fed yet, with what is known of them. It changes nothing
// and needs no lease; what it returns may be old when it is acted on.
func (s *Postgres) BackfillPortion(ctx context.Context, l BackfillLease, after int64, limit int) (p BackfillPortion, err error) {
	const portion = `
SELECT r.line, i.fingerprint, CASE WHEN i.fingerprint IS NOT NULL THEN r.input END, v.body::text, o.id IS NOT NULL
FROM (SELECT line, fingerprint, input FROM backfill_rows WHERE backfill = $1 AND line > $2 ORDER BY line LIMIT $3) AS r
LEFT JOIN LATERAL (
    SELECT fingerprint FROM backfill_items
     WHERE fingerprint = r.fingerprint AND backfill = $1 AND first_line = r.line AND state = 0) AS i ON true
LEFT JOIN LATERAL (
    SELECT body FROM verdicts WHERE fingerprint = i.fingerprint AND hard_until > now() ORDER BY checked_at DESC LIMIT 1) AS v ON true
LEFT JOIN LATERAL (
    SELECT id FROM reviews WHERE fingerprint = i.fingerprint AND state = 'open' LIMIT 1) AS o ON true
ORDER BY r.line`
	defer s.metrics.observe("backfill_step", time.Now(), &err)
	conn, err := s.bulk.acquire(ctx)
	if err != nil {
		return p, fmt.Errorf("backfill portion: %w", err)
	}
	defer conn.Release()
	rows, err := conn.Query(ctx, portion, l.number, after, min(limit, MaxBackfillPortion))
	if err != nil {
		return p, fmt.Errorf("backfill portion: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var line int64
		var fp, input []byte
		var body *string
		var open bool
		if err := rows.Scan(&line, &fp, &input, &body, &open); err != nil {
			return p, fmt.Errorf("backfill portion: %w", err)
		}
		p.Line, p.Rows = line, p.Rows+1
		if fp == nil {
			continue
		}
		item := BackfillItem{Line: line, Fingerprint: normalize.Fingerprint(fp), Address: unsealItem(s.sealer, input, l.number, line), Open: open}
		if body != nil {
			if item.Known, err = decodeVerdict(*body); err != nil {
				return p, err
			}
		}
		p.Items = append(p.Items, item)
	}
	if err := rows.Err(); err != nil {
		return p, fmt.Errorf("backfill portion: %w", err)
	}
	return p, nil
}

// PlanBackfill adds to what a dry run counted; after All it is planned, and the lease is given back.
func (s *Postgres) PlanBackfill(ctx context.Context, l BackfillLease, p BackfillPlan) (_ Backfill, err error) {
	const plan = `
UPDATE backfills
   SET plan_known = plan_known + $3, plan_open = plan_open + $4, plan_ask = plan_ask + $5, planned_line = greatest(planned_line, $6),
       state = CASE WHEN $7 THEN 'planned' ELSE state END, updated_at = now(),
       lease_token = CASE WHEN $7 THEN 0 ELSE lease_token END, lease_until = CASE WHEN $7 THEN now() ELSE now() + $8::interval END
 WHERE number = $1 AND lease_token = $2 AND lease_token <> 0 AND state = 'planning'
RETURNING ` + backfillColumns
	defer s.metrics.observe("backfill_step", time.Now(), &err)
	b, err := s.backfillRow(ctx, ErrLeaseLost, plan, l.number, l.token, p.Known, p.Open, p.Ask, p.Line, p.All, p.Lease)
	return b, wrapped("plan backfill", err)
}

// BackfillNews returns what became of the addresses whose reviews were open: those that have ended first, at most
// MaxBackfillPortion of them. One of which nothing is new may be among them.
func (s *Postgres) BackfillNews(ctx context.Context, l BackfillLease, limit int) (news []BackfillNews, err error) {
	const look = `
SELECT i.first_line, i.fingerprint, i.own, i.billed, i.state = 2, r.id IS NULL, coalesce(r.state, ''), r.verdict::text, coalesce(r.reason, ''),
       coalesce(q.cause, ''), coalesce(greatest((extract(epoch FROM q.due_at - now()) * 1000000)::bigint, 0), 0), coalesce(r.trail::text, '[]'), w.input
FROM (SELECT first_line, fingerprint, own, billed, state, review_id FROM backfill_items WHERE backfill = $1 AND state = 1
      UNION ALL
      (SELECT first_line, fingerprint, own, billed, state, review_id FROM backfill_items
        WHERE backfill = $1 AND state = 2 AND look_at <= now() ORDER BY look_at LIMIT $2)) AS i
LEFT JOIN LATERAL (SELECT id, state, verdict, reason, trail FROM reviews WHERE id = i.review_id) AS r ON true
LEFT JOIN LATERAL (SELECT cause, due_at FROM review_queue WHERE review_id = i.review_id) AS q ON true
LEFT JOIN LATERAL (SELECT input FROM backfill_rows WHERE backfill = $1 AND line = i.first_line) AS w ON true
WHERE r.id IS NULL OR r.state <> 'open' OR i.state = 2 OR q.cause <> 'upstream' OR jsonb_array_length(r.trail) <> i.billed
ORDER BY coalesce(r.state, '') = 'open' LIMIT $2`
	defer s.metrics.observe("backfill_step", time.Now(), &err)
	conn, err := s.bulk.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("backfill news: %w", err)
	}
	defer conn.Release()
	rows, err := conn.Query(ctx, look, l.number, min(limit, MaxBackfillPortion))
	if err != nil {
		return nil, fmt.Errorf("backfill news: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var n BackfillNews
		var fp, input []byte
		var body *string
		var due int64
		var trail string
		if err := rows.Scan(&n.Line, &fp, &n.Own, &n.Billed, &n.Waited, &n.Gone, &n.State, &body, &n.Reason, &n.Cause, &due, &trail, &input); err != nil {
			return nil, fmt.Errorf("backfill news: %w", err)
		}
		n.Fingerprint, n.Address = normalize.Fingerprint(fp), unsealItem(s.sealer, input, l.number, n.Line)
		n.LookIn = time.Duration(due) * time.Microsecond
		if n.Trail, err = decodeTrail(trail); err != nil {
			return nil, err
		}
		if body != nil {
			if n.Verdict, err = decodeVerdict(*body); err != nil {
				return nil, err
			}
		}
		news = append(news, n)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("backfill news: %w", err)
	}
	return news, nil
}

// StepBackfill writes what one look at a running backfill found out and decided. Items that are not there any more, or have
// their answer, are passed over. ErrQueueFull: so many reviews are open that no backfill may open more; nothing was written.
func (s *Postgres) StepBackfill(ctx context.Context, l BackfillLease, step BackfillStep) (out Backfill, err error) {
	defer s.metrics.observe("backfill_step", time.Now(), &err)
	if err := step.check(); err != nil {
		return Backfill{}, err
	}
	_ = s.full() // counts anew when it is time
	if len(step.Asks) > 0 && s.open.Load()+int64(len(step.Asks)) > openBound(PriorityBackfill, s.maxOpen.Load()) {
		return Backfill{}, ErrQueueFull
	}
	opened := int64(0)
	err = s.fenced(ctx, l, []string{string(BackfillRunning), string(BackfillCancelling)}, func(tx pgx.Tx, b Backfill) error {
		var d backfillDelta
		back, err := stepItems(ctx, tx, l.number, step, &d, s)
		if err != nil {
			return err
		}
		if len(step.Asks) > 0 && b.State == BackfillRunning {
			n, err := s.askItems(ctx, tx, l.number, step.Asks, &d)
			if opened = n; err != nil {
				return err
			}
		}
		out, err = countBackfill(ctx, tx, l.number, step, d, back)
		return err
	})
	if err != nil {
		s.open.Add(-opened)
		return Backfill{}, wrapped("step backfill", err)
	}
	return out, nil
}

// countBackfill adds to the counters, and moves the cursor: forward to where the step says, or back before a line (0: none).
func countBackfill(ctx context.Context, tx pgx.Tx, number int64, step BackfillStep, d backfillDelta, back int64) (Backfill, error) {
	const counted = `
UPDATE backfills
   SET asked_n = asked_n + $2, waiting_n = waiting_n + $3, own_n = own_n + $4, credits = credits + $5, known_n = known_n + $6,
       valid_n = valid_n + $7, invalid_n = invalid_n + $8, risky_n = risky_n + $9, unresolved_n = unresolved_n + $10,
       fed_line = least(greatest(fed_line, $11::bigint), CASE WHEN $13::bigint > 0 THEN $13 - 1 ELSE 9223372036854775807 END),
       fed_all = (fed_all OR $12) AND $13 = 0, updated_at = now(), lease_until = now() + $14::interval
 WHERE number = $1 RETURNING ` + backfillColumns
	return scanBackfill(tx.QueryRow(ctx, counted, number, d.asked, d.waiting, d.own, d.credits, d.known, d.valid, d.invalid, d.risky,
		d.unresolved, step.Fed, step.All, back, step.Lease))
}

// stepItems writes answers, stays and what is to be fed again, of which it returns the first line.
func stepItems(ctx context.Context, tx pgx.Tx, number int64, step BackfillStep, d *backfillDelta, s *Postgres) (back int64, err error) {
	const (
		answer = `
WITH old AS MATERIALIZED (
    SELECT i.*, t.state AS was, t.own AS owned, t.billed AS had
      FROM unnest($2::bytea[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::integer[], $8::boolean[])
           AS i (fingerprint, status, reason, decision, suggestion, billed, known)
      JOIN backfill_items t ON t.fingerprint = i.fingerprint AND t.backfill = $1 AND t.state <> 3
), done AS (
    UPDATE backfill_items t
       SET state = 3, status = o.status, reason = o.reason, decision = o.decision, suggestion = o.suggestion,
           billed = greatest(o.billed, o.had), review_id = NULL, look_at = NULL
      FROM old o WHERE t.fingerprint = o.fingerprint AND t.backfill = $1
)
SELECT was, owned, status, known, count(*), sum(greatest(billed - had, 0)) FROM old GROUP BY 1, 2, 3, 4`
		stay = `
WITH old AS MATERIALIZED (
    SELECT i.*, t.state AS was, t.own AS owned, t.billed AS had
      FROM unnest($2::bytea[], $3::integer[], $4::boolean[], $5::interval[]) AS i (fingerprint, billed, waiting, look_in)
      JOIN backfill_items t ON t.fingerprint = i.fingerprint AND t.backfill = $1 AND t.state IN (1, 2)
), stays AS (
    UPDATE backfill_items t
       SET state = CASE WHEN o.waiting THEN 2 ELSE 1 END, billed = greatest(o.billed, o.had),
           look_at = CASE WHEN o.waiting THEN now() + o.look_in END
      FROM old o WHERE t.fingerprint = o.fingerprint AND t.backfill = $1
)
SELECT was, owned, CASE WHEN waiting THEN 2 ELSE 1 END, count(*), sum(greatest(billed - had, 0)) FROM old GROUP BY 1, 2, 3`
		again = `
WITH old AS MATERIALIZED (
    SELECT t.fingerprint, t.state AS was, t.own AS owned, t.first_line
      FROM unnest($2::bytea[]) AS i (fingerprint)
      JOIN backfill_items t ON t.fingerprint = i.fingerprint AND t.backfill = $1 AND t.state IN (1, 2)
), fresh AS (
    UPDATE backfill_items t SET state = 0, own = false, billed = 0, review_id = NULL, look_at = NULL
      FROM old o WHERE t.fingerprint = o.fingerprint AND t.backfill = $1
)
SELECT was, owned, count(*), min(first_line) FROM old GROUP BY 1, 2`
	)
	if n := len(step.Answers); n > 0 {
		fps, suggestions, billed, known := make([][]byte, n), make([][]byte, n), make([]int, n), make([]bool, n)
		statuses, reasons, decisions := make([]string, n), make([]string, n), make([]string, n)
		for i, a := range step.Answers {
			fps[i], statuses[i], reasons[i], decisions[i] = step.Answers[i].Fingerprint[:], string(a.Status), string(a.Reason), a.Decision
			suggestions[i], billed[i], known[i] = sealSuggestion(s.sealer, number, a), a.Billed, a.Known
		}
		var was int
		var own, free bool
		var status string
		var count, cost int64
		rows, _ := tx.Query(ctx, answer, number, fps, statuses, reasons, decisions, suggestions, billed, known) // its error is in rows
		_, err = pgx.ForEachRow(rows, []any{&was, &own, &status, &free, &count, &cost}, func() error {
			for range count {
				d.left(was, own)
			}
			d.answered(verdict.Status(status), count)
			d.credits += cost
			if free {
				d.known += count
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	if n := len(step.Stays); n > 0 {
		fps, billed, waiting, in := make([][]byte, n), make([]int, n), make([]bool, n), make([]time.Duration, n)
		for i, a := range step.Stays {
			fps[i], billed[i], waiting[i], in[i] = step.Stays[i].Fingerprint[:], a.Billed, a.Waiting, a.LookIn
		}
		var was, is int
		var own bool
		var count, cost int64
		rows, _ := tx.Query(ctx, stay, number, fps, billed, waiting, in)
		_, err = pgx.ForEachRow(rows, []any{&was, &own, &is, &count, &cost}, func() error {
			for range count {
				d.moved(was, is)
			}
			d.credits += cost
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	if n := len(step.Again); n > 0 {
		fps := make([][]byte, n)
		for i := range step.Again {
			fps[i] = step.Again[i].Fingerprint[:]
		}
		var was int
		var own bool
		var count, first int64
		rows, _ := tx.Query(ctx, again, number, fps)
		_, err = pgx.ForEachRow(rows, []any{&was, &own, &count, &first}, func() error {
			for range count {
				d.left(was, own)
			}
			if back == 0 || first < back {
				back = first
			}
			return nil
		})
	}
	return back, err
}

// askItems opens or joins reviews for items that are new still, and returns how many it opened.
func (s *Postgres) askItems(ctx context.Context, tx pgx.Tx, number int64, asks []BackfillAsk, d *backfillDelta) (opened int64, err error) {
	const (
		still = `
SELECT t.fingerprint FROM unnest($2::bytea[]) AS i (fingerprint)
  JOIN backfill_items t ON t.fingerprint = i.fingerprint AND t.backfill = $1 AND t.state = 0`
		asked = `
UPDATE backfill_items t SET state = 1, own = i.own, billed = 0, review_id = i.review_id
  FROM unnest($2::bytea[], $3::uuid[], $4::boolean[]) AS i (fingerprint, review_id, own)
 WHERE t.fingerprint = i.fingerprint AND t.backfill = $1`
	)
	all := make([][]byte, len(asks))
	for i := range asks {
		all[i] = asks[i].Fingerprint[:]
	}
	rows, _ := tx.Query(ctx, still, number, all) // its error is in rows
	left, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil || len(left) == 0 {
		return 0, err
	}
	fresh := make(map[normalize.Fingerprint]bool, len(left))
	for _, fp := range left {
		fresh[normalize.Fingerprint(fp)] = true
	}
	var entries []Entry
	var fps [][]byte
	for i, a := range asks {
		if fresh[a.Fingerprint] {
			entries, fps = append(entries, a.entry()), append(fps, asks[i].Fingerprint[:])
		}
	}
	reviews, err := s.recordOn(ctx, tx, entries, false)
	if err != nil {
		return 0, err
	}
	var kept [][]byte
	var ids []string
	var own []bool
	for i, r := range reviews {
		if r.ID == "" {
			continue // erased since, and so is the item
		}
		mine := r.ID == entries[i].ID
		kept, ids, own = append(kept, fps[i]), append(ids, r.ID), append(own, mine)
		d.asked++
		if mine {
			d.own++
			opened++
		}
	}
	_, err = tx.Exec(ctx, asked, number, kept, ids, own)
	return opened, err
}

// WithdrawBackfill gives up what is not asked yet, as w says, and returns how many items it let go of.
func (s *Postgres) WithdrawBackfill(ctx context.Context, l BackfillLease, w BackfillWithdrawal) (out Backfill, n int, err error) {
	const (
		let = `
WITH old AS MATERIALIZED (SELECT fingerprint, state AS was FROM backfill_items WHERE backfill = $1 AND state IN (1, 2) AND NOT own), freed AS (
    UPDATE backfill_items t SET state = 0, billed = 0, review_id = NULL, look_at = NULL FROM old o WHERE t.fingerprint = o.fingerprint AND t.backfill = $1
)
SELECT was, count(*) FROM old GROUP BY 1`
		chosen = `
SELECT review_id::text FROM backfill_items WHERE backfill = $1 AND own AND (state = 2 AND ($3 OR look_at > now() + interval '5 seconds') OR state = 1 AND $3)
 ORDER BY look_at DESC NULLS FIRST LIMIT $2`
		lock = `SELECT FROM reviews WHERE id = ANY ($1::text[]::uuid[]) ORDER BY id FOR UPDATE`
		// A statement of its own: it must see who came while the one before waited.
		sort = `
SELECT r.id::text, r.reason, q.cause,
       r.asked_at IS NOT NULL OR EXISTS (SELECT FROM review_watchers WHERE review_id = r.id)
       OR EXISTS (SELECT FROM backfill_items o WHERE o.review_id = r.id AND o.state IN (1, 2) AND o.backfill <> $2),
       q.lease_token <> 0 AND q.due_at > now()
  FROM unnest($1::text[]::uuid[]) AS i (id) JOIN reviews r ON r.id = i.id AND r.state = 'open' JOIN review_queue q ON q.review_id = r.id`
		leave  = `DELETE FROM review_queue WHERE review_id = ANY ($1::text[]::uuid[])`
		remove = `DELETE FROM reviews WHERE id = ANY ($1::text[]::uuid[])`
		giveUp = `
UPDATE reviews r SET state = 'settled', verdict = i.body::jsonb, address = NULL, ended_at = now()
  FROM unnest($1::text[]::uuid[], $2::text[]) AS i (id, body) WHERE r.id = i.id`
		free = `
WITH old AS MATERIALIZED (
    SELECT fingerprint, state AS was FROM backfill_items WHERE backfill = $1 AND review_id = ANY ($2::text[]::uuid[]) AND state IN (1, 2)
), freed AS (
    UPDATE backfill_items t SET state = 0, own = false, billed = 0, review_id = NULL, look_at = NULL
      FROM old o WHERE t.fingerprint = o.fingerprint AND t.backfill = $1
)
SELECT was, count(*) FROM old GROUP BY 1`
		unresolved = `
WITH old AS MATERIALIZED (
    SELECT t.fingerprint, t.state AS was, i.reason FROM unnest($2::text[]::uuid[], $3::text[]) AS i (id, reason)
      JOIN backfill_items t ON t.review_id = i.id AND t.backfill = $1 AND t.state IN (1, 2)
), done AS (
    UPDATE backfill_items t SET state = 3, status = 'unresolved', reason = o.reason, decision = $4, review_id = NULL, look_at = NULL
      FROM old o WHERE t.fingerprint = o.fingerprint AND t.backfill = $1
)
SELECT was, count(*) FROM old GROUP BY 1`
	)
	defer s.metrics.observe("backfill_step", time.Now(), &err)
	left := int64(0)
	err = s.fenced(ctx, l, []string{string(BackfillRunning), string(BackfillCancelling)}, func(tx pgx.Tx, _ Backfill) error {
		var d backfillDelta
		each := func(own bool, then func(int64), sql string, args ...any) error {
			var was int
			var count int64
			rows, _ := tx.Query(ctx, sql, args...) // its error is in rows
			_, err := pgx.ForEachRow(rows, []any{&was, &count}, func() error {
				for range count {
					d.left(was, own)
				}
				n += int(count)
				then(count)
				return nil
			})
			return err
		}
		nothing := func(int64) {}
		if w.All {
			if err := each(false, nothing, let, l.number); err != nil {
				return err
			}
		}
		rows, _ := tx.Query(ctx, chosen, l.number, min(w.Limit, MaxBackfillPortion), w.All)
		ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, lock, ids); err != nil {
			return err
		}
		var shared, unasked, given, reasons, bodies []string
		var id, reason, cause string
		var others, held bool
		rows, _ = tx.Query(ctx, sort, ids, l.number)
		_, err = pgx.ForEachRow(rows, []any{&id, &reason, &cause, &others, &held}, func() error {
			switch {
			case others:
				shared = append(shared, id)
			case held:
			case verdict.Cause(cause) == verdict.CauseUpstream:
				unasked = append(unasked, id)
			default:
				body, err := encodeVerdict(withdrawn(id, verdict.Reason(reason), time.Now()))
				if err != nil {
					return err
				}
				given, reasons, bodies = append(given, id), append(reasons, reason), append(bodies, body)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if !w.All {
			shared, unasked = nil, nil
		}
		for _, step := range []struct {
			sql  string
			args []any
		}{{leave, []any{unasked}}, {leave, []any{given}}, {remove, []any{unasked}}, {giveUp, []any{given, bodies}}} {
			if _, err := tx.Exec(ctx, step.sql, step.args...); err != nil {
				return err
			}
		}
		left = int64(len(unasked) + len(given))
		if err := each(true, nothing, free, l.number, append(shared, unasked...)); err != nil {
			return err
		}
		err = each(true, func(count int64) { d.unresolved += count }, unresolved, l.number, given, reasons, w.Decision)
		if err != nil {
			return err
		}
		out, err = countBackfill(ctx, tx, l.number, BackfillStep{Lease: w.Lease}, d, 0)
		return err
	})
	if err != nil {
		return Backfill{}, 0, wrapped("withdraw backfill", err)
	}
	s.open.Add(-left)
	return out, n, nil
}
