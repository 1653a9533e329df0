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

// BackfillPortion: see [Postgres.BackfillPortion].
func (s *SQLite) BackfillPortion(ctx context.Context, l BackfillLease, after int64, limit int) (p BackfillPortion, err error) {
	const portion = `
SELECT r.line, i.fingerprint, CASE WHEN i.fingerprint IS NOT NULL THEN r.input END,
       (SELECT body FROM verdicts WHERE fingerprint = i.fingerprint AND hard_until > ?4 ORDER BY checked_at DESC LIMIT 1),
       EXISTS (SELECT 1 FROM reviews WHERE fingerprint = i.fingerprint AND state = 'open')
FROM (SELECT line, fingerprint, input FROM backfill_rows WHERE backfill = ?1 AND line > ?2 ORDER BY line LIMIT ?3) AS r
LEFT JOIN backfill_items i ON i.fingerprint = r.fingerprint AND i.backfill = ?1 AND i.first_line = r.line AND i.state = 0
ORDER BY r.line`
	defer s.metrics.observe("backfill_step", time.Now(), &err)
	rows, err := s.reads.QueryContext(ctx, portion, l.number, after, min(limit, MaxBackfillPortion), micros(time.Now()))
	if err != nil {
		return p, fmt.Errorf("backfill portion: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var line int64
		var fp, input []byte
		var body sql.NullString
		var open bool
		if err := rows.Scan(&line, &fp, &input, &body, &open); err != nil {
			return p, fmt.Errorf("backfill portion: %w", err)
		}
		p.Line, p.Rows = line, p.Rows+1
		if fp == nil {
			continue
		}
		item := BackfillItem{Line: line, Fingerprint: normalize.Fingerprint(fp), Address: unsealItem(s.sealer, input, l.number, line), Open: open}
		if body.Valid {
			if item.Known, err = decodeVerdict(body.String); err != nil {
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

// PlanBackfill: see [Postgres.PlanBackfill].
func (s *SQLite) PlanBackfill(ctx context.Context, l BackfillLease, p BackfillPlan) (_ Backfill, err error) {
	const plan = `
UPDATE backfills
   SET plan_known = plan_known + ?2, plan_open = plan_open + ?3, plan_ask = plan_ask + ?4, planned_line = max(planned_line, ?5),
       state = CASE WHEN ?6 THEN 'planned' ELSE state END, updated_at = ?7,
       lease_token = CASE WHEN ?6 THEN 0 ELSE lease_token END, lease_until = CASE WHEN ?6 THEN ?7 ELSE ?8 END
 WHERE number = ?1`
	defer s.metrics.observe("backfill_step", time.Now(), &err)
	b, err := fencedWrite(ctx, s, l, []BackfillState{BackfillPlanning}, func(ctx context.Context, tx *tx, _ Backfill, now time.Time) (Backfill, error) {
		if _, err := tx.ExecContext(ctx, plan, l.number, p.Known, p.Open, p.Ask, p.Line, p.All, micros(now), micros(now.Add(p.Lease))); err != nil {
			return Backfill{}, err
		}
		return reread(ctx, tx, l.number)
	})
	return b, wrapped("plan backfill", err)
}

// BackfillNews: see [Postgres.BackfillNews].
func (s *SQLite) BackfillNews(ctx context.Context, l BackfillLease, limit int) (news []BackfillNews, err error) {
	const look = `
SELECT i.first_line, i.fingerprint, i.own, i.billed, i.state = 2, r.id IS NULL, coalesce(r.state, ''), r.verdict, coalesce(r.reason, ''),
       coalesce(q.cause, ''), coalesce(max(q.due_at - ?3, 0), 0), coalesce(r.trail, '[]'), w.input
FROM (SELECT first_line, fingerprint, own, billed, state, review_id FROM backfill_items WHERE backfill = ?1 AND state = 1
      UNION ALL
      SELECT * FROM (SELECT first_line, fingerprint, own, billed, state, review_id FROM backfill_items
        WHERE backfill = ?1 AND state = 2 AND look_at <= ?3 ORDER BY look_at LIMIT ?2)) AS i
LEFT JOIN reviews r ON r.id = i.review_id
LEFT JOIN review_queue q ON q.review_id = i.review_id
LEFT JOIN backfill_rows w ON w.backfill = ?1 AND w.line = i.first_line
WHERE r.id IS NULL OR r.state <> 'open' OR i.state = 2 OR q.cause <> 'upstream' OR json_array_length(r.trail) <> i.billed
ORDER BY coalesce(r.state, '') = 'open' LIMIT ?2`
	defer s.metrics.observe("backfill_step", time.Now(), &err)
	rows, err := s.reads.QueryContext(ctx, look, l.number, min(limit, MaxBackfillPortion), micros(time.Now()))
	if err != nil {
		return nil, fmt.Errorf("backfill news: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var n BackfillNews
		var fp, input []byte
		var body sql.NullString
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
		if body.Valid {
			if n.Verdict, err = decodeVerdict(body.String); err != nil {
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

// itemBefore is what a step has to know of an item before it changes it.
type itemBefore struct {
	state, billed int
	own           bool
	line          int64
}

func readItem(ctx context.Context, tx *tx, number int64, fp normalize.Fingerprint) (i itemBefore, ok bool, err error) {
	const one = `SELECT state, billed, own, first_line FROM backfill_items WHERE fingerprint = ? AND backfill = ?`
	err = tx.QueryRowContext(ctx, one, fp[:], number).Scan(&i.state, &i.billed, &i.own, &i.line)
	if errors.Is(err, sql.ErrNoRows) {
		return i, false, nil
	}
	return i, err == nil, err
}

// StepBackfill: see [Postgres.StepBackfill].
func (s *SQLite) StepBackfill(ctx context.Context, l BackfillLease, step BackfillStep) (_ Backfill, err error) {
	defer s.metrics.observe("backfill_step", time.Now(), &err)
	if err := step.check(); err != nil {
		return Backfill{}, err
	}
	states := []BackfillState{BackfillRunning, BackfillCancelling}
	b, err := fencedWrite(ctx, s, l, states, func(ctx context.Context, tx *tx, b Backfill, now time.Time) (none Backfill, _ error) {
		if len(step.Asks) > 0 && s.writer.open.Load()+int64(len(step.Asks)) > openBound(PriorityBackfill, s.maxOpen.Load()) {
			return none, ErrQueueFull
		}
		var d backfillDelta
		if err := s.answerItems(ctx, tx, l.number, step.Answers, &d); err != nil {
			return none, err
		}
		if err := stayItems(ctx, tx, l.number, step.Stays, &d, now); err != nil {
			return none, err
		}
		back, err := againItems(ctx, tx, l.number, step.Again, &d)
		if err != nil {
			return none, err
		}
		if b.State == BackfillRunning {
			if err := s.askItems(ctx, tx, l.number, step.Asks, &d); err != nil {
				return none, err
			}
		}
		return countItems(ctx, tx, l.number, step, d, back, now)
	})
	return b, wrapped("step backfill", err)
}

func countItems(ctx context.Context, tx *tx, number int64, step BackfillStep, d backfillDelta, back int64, now time.Time) (Backfill, error) {
	const counted = `
UPDATE backfills
   SET asked_n = asked_n + ?2, waiting_n = waiting_n + ?3, own_n = own_n + ?4, credits = credits + ?5, known_n = known_n + ?6,
       valid_n = valid_n + ?7, invalid_n = invalid_n + ?8, risky_n = risky_n + ?9, unresolved_n = unresolved_n + ?10,
       fed_line = min(max(fed_line, ?11), CASE WHEN ?13 > 0 THEN ?13 - 1 ELSE 9223372036854775807 END),
       fed_all = (fed_all OR ?12) AND ?13 = 0, updated_at = ?14, lease_until = ?15
 WHERE number = ?1`
	if _, err := tx.ExecContext(ctx, counted, number, d.asked, d.waiting, d.own, d.credits, d.known, d.valid, d.invalid, d.risky, d.unresolved,
		step.Fed, step.All, back, micros(now), micros(now.Add(step.Lease))); err != nil {
		return Backfill{}, err
	}
	return reread(ctx, tx, number)
}

func (s *SQLite) answerItems(ctx context.Context, tx *tx, number int64, answers []BackfillAnswer, d *backfillDelta) error {
	const done = `
UPDATE backfill_items SET state = 3, status = ?, reason = ?, decision = ?, suggestion = ?, billed = ?, review_id = NULL, look_at = NULL
 WHERE fingerprint = ? AND backfill = ?`
	for _, a := range answers {
		was, ok, err := readItem(ctx, tx, number, a.Fingerprint)
		if err != nil {
			return err
		}
		if !ok || was.state == itemDone {
			continue
		}
		billed := max(a.Billed, was.billed)
		if _, err := tx.ExecContext(ctx, done, string(a.Status), string(a.Reason), a.Decision, sealSuggestion(s.sealer, number, a), billed,
			a.Fingerprint[:], number); err != nil {
			return err
		}
		d.left(was.state, was.own)
		d.answered(a.Status, 1)
		d.credits += int64(billed - was.billed)
		d.known += int64(count(a.Known))
	}
	return nil
}

func stayItems(ctx context.Context, tx *tx, number int64, stays []BackfillStay, d *backfillDelta, now time.Time) error {
	const stay = `UPDATE backfill_items SET state = ?, billed = ?, look_at = ? WHERE fingerprint = ? AND backfill = ?`
	for _, a := range stays {
		was, ok, err := readItem(ctx, tx, number, a.Fingerprint)
		if err != nil {
			return err
		}
		if !ok || !openItem(was.state) {
			continue
		}
		is, look, billed := itemAsked, sql.NullInt64{}, max(a.Billed, was.billed)
		if a.Waiting {
			is, look = itemWaiting, sql.NullInt64{Int64: micros(now.Add(a.LookIn)), Valid: true}
		}
		if _, err := tx.ExecContext(ctx, stay, is, billed, look, a.Fingerprint[:], number); err != nil {
			return err
		}
		d.moved(was.state, is)
		d.credits += int64(billed - was.billed)
	}
	return nil
}

// letGo makes an item new again.
const letGo = `
UPDATE backfill_items SET state = 0, own = 0, billed = 0, review_id = NULL, look_at = NULL WHERE fingerprint = ? AND backfill = ?`

func againItems(ctx context.Context, tx *tx, number int64, again []BackfillNews, d *backfillDelta) (back int64, _ error) {
	for _, a := range again {
		was, ok, err := readItem(ctx, tx, number, a.Fingerprint)
		if err != nil {
			return 0, err
		}
		if !ok || !openItem(was.state) {
			continue
		}
		if _, err := tx.ExecContext(ctx, letGo, a.Fingerprint[:], number); err != nil {
			return 0, err
		}
		d.left(was.state, was.own)
		if back == 0 || was.line < back {
			back = was.line
		}
	}
	return back, nil
}

func (s *SQLite) askItems(ctx context.Context, tx *tx, number int64, asks []BackfillAsk, d *backfillDelta) error {
	const asked = `UPDATE backfill_items SET state = 1, own = ?, billed = 0, review_id = ? WHERE fingerprint = ? AND backfill = ?`
	for _, a := range asks {
		was, ok, err := readItem(ctx, tx, number, a.Fingerprint)
		if err != nil {
			return err
		}
		if !ok || was.state != itemNew {
			continue
		}
		e := a.entry()
		r, err := s.record(ctx, tx, e)
		if errors.Is(err, ErrErased) {
			continue
		}
		if err != nil {
			return err
		}
		own := r.ID == e.ID
		if _, err := tx.ExecContext(ctx, asked, own, r.ID, a.Fingerprint[:], number); err != nil {
			return err
		}
		d.asked++
		d.own += int64(count(own))
	}
	return nil
}

// openBackfillItem is an item as a withdrawal finds it.
type openBackfillItem struct {
	fp            normalize.Fingerprint
	state         int
	own           bool
	id            string
	reason, cause string
	shared, held  bool
}

// WithdrawBackfill: see [Postgres.WithdrawBackfill].
func (s *SQLite) WithdrawBackfill(ctx context.Context, l BackfillLease, w BackfillWithdrawal) (_ Backfill, _ int, err error) {
	defer s.metrics.observe("backfill_step", time.Now(), &err)
	type result struct {
		b Backfill
		n int
	}
	states := []BackfillState{BackfillRunning, BackfillCancelling}
	out, err := fencedWrite(ctx, s, l, states, func(ctx context.Context, tx *tx, _ Backfill, now time.Time) (out result, err error) {
		items, err := openItems(ctx, tx, l.number, w, now)
		if err != nil {
			return out, err
		}
		var d backfillDelta
		for _, i := range items {
			let, err := withdraw(ctx, tx, l.number, i, w, &d, now)
			if err != nil {
				return out, err
			}
			out.n += count(let)
		}
		out.b, err = countItems(ctx, tx, l.number, BackfillStep{Lease: w.Lease}, d, 0, now)
		return out, err
	})
	return out.b, out.n, wrapped("withdraw backfill", err)
}

func openItems(ctx context.Context, tx *tx, number int64, w BackfillWithdrawal, now time.Time) (items []openBackfillItem, err error) {
	const chosen = `
SELECT i.fingerprint, i.state, i.own, r.id, r.reason, q.cause,
       r.asked_at IS NOT NULL OR EXISTS (SELECT 1 FROM review_watchers WHERE review_id = r.id)
       OR EXISTS (SELECT 1 FROM backfill_items o WHERE o.review_id = r.id AND o.state IN (1, 2) AND o.backfill <> ?1),
       q.lease_token <> 0 AND q.due_at > ?3
  FROM (SELECT * FROM backfill_items WHERE backfill = ?1 AND state = 2 AND (?4 OR own AND look_at > ?3 + 5000000)
        UNION ALL SELECT * FROM backfill_items WHERE backfill = ?1 AND state = 1 AND ?4) AS i
  JOIN reviews r ON r.id = i.review_id AND r.state = 'open' JOIN review_queue q ON q.review_id = r.id
 ORDER BY i.look_at DESC NULLS FIRST LIMIT ?2`
	rows, err := tx.QueryContext(ctx, chosen, number, min(w.Limit, MaxBackfillPortion), micros(now), w.All)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var i openBackfillItem
		var fp []byte
		if err := rows.Scan(&fp, &i.state, &i.own, &i.id, &i.reason, &i.cause, &i.shared, &i.held); err != nil {
			return nil, err
		}
		i.fp = normalize.Fingerprint(fp)
		items = append(items, i)
	}
	return items, rows.Err()
}

// withdraw lets go of one open item, and of its review if nobody else waits for that.
func withdraw(ctx context.Context, tx *tx, number int64, i openBackfillItem, w BackfillWithdrawal, d *backfillDelta, now time.Time) (bool, error) {
	const (
		leave  = `DELETE FROM review_queue WHERE review_id = ?`
		remove = `DELETE FROM reviews WHERE id = ?`
		giveUp = `UPDATE reviews SET state = 'settled', verdict = ?, address = NULL, ended_at = ? WHERE id = ?`
		end    = `
UPDATE backfill_items SET state = 3, status = 'unresolved', reason = ?, decision = ?, review_id = NULL, look_at = NULL
 WHERE fingerprint = ? AND backfill = ?`
	)
	mailbox := verdict.Cause(i.cause) != verdict.CauseUpstream
	switch {
	case !i.own || i.shared:
		if !w.All {
			return false, nil
		}
		d.left(i.state, i.own)
		_, err := tx.ExecContext(ctx, letGo, i.fp[:], number)
		return true, err
	case i.held, !mailbox && !w.All:
		return false, nil
	}
	if _, err := tx.ExecContext(ctx, leave, i.id); err != nil {
		return false, err
	}
	tx.opened--
	d.left(i.state, true)
	if !mailbox {
		if _, err := tx.ExecContext(ctx, remove, i.id); err != nil {
			return false, err
		}
		_, err := tx.ExecContext(ctx, letGo, i.fp[:], number)
		return true, err
	}
	body, err := encodeVerdict(withdrawn(i.id, verdict.Reason(i.reason), now))
	if err != nil {
		return false, err
	}
	if _, err := tx.ExecContext(ctx, giveUp, body, micros(now), i.id); err != nil {
		return false, err
	}
	d.unresolved++
	_, err = tx.ExecContext(ctx, end, i.reason, w.Decision, i.fp[:], number)
	return true, err
}
