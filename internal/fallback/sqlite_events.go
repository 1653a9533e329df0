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

// Ask: see [Postgres.Ask].
func (s *SQLite) Ask(ctx context.Context, e Event) (_ Asked, err error) {
	defer s.metrics.observe("record", time.Now(), &err)
	if err := e.check(); err != nil {
		return Asked{}, err
	}
	e.ID = canonicalID(e.ID)
	a, err := write(ctx, s.writer, func(ctx context.Context, tx *tx) (Asked, error) { return s.ask(ctx, tx, e, time.Now()) })
	switch {
	case errors.Is(err, errAbandoned), errors.Is(err, errCommit):
		return Asked{}, fmt.Errorf("ask: %w: %w", ErrUnknownCommit, err)
	case err != nil && !errors.Is(err, ErrQueueFull) && !errors.Is(err, ErrErased):
		return Asked{}, fmt.Errorf("ask: %w", err)
	}
	return a, err
}

// asking is what an open review has of earlier events, and of its work.
type asking struct {
	id       string
	from, at sql.NullInt64
	due      int64
	lease    bool
	found    bool
	burst    time.Time // when the present burst began
	latest   time.Time // its latest time
}

func (s *SQLite) ask(ctx context.Context, tx *tx, e Event, now time.Time) (Asked, error) {
	was, err := askedBefore(ctx, tx, e, now)
	if err != nil {
		return Asked{}, err
	}
	if was.held(e, now) {
		return Asked{ID: was.id, In: time.UnixMicro(was.due).Sub(now)}, watch(ctx, tx, was.id, e.Watcher)
	}
	if gone, err := erased(ctx, tx, e.Fingerprint, e.ID); err != nil {
		return Asked{}, err
	} else if gone {
		return Asked{}, ErrErased
	}
	due, at := was.latest, was.latest
	if !e.Held {
		at = now
		if soon := now.Add(e.Quiet); soon.Before(due) {
			due = soon
		}
	}
	if !was.found {
		if s.writer.open.Load() >= s.maxOpen.Load() {
			return Asked{}, ErrQueueFull
		}
		if err := s.openAsked(ctx, tx, e, was.burst, at, due, now); err != nil {
			return Asked{}, err
		}
		return Asked{ID: e.ID, In: due.Sub(now), Fresh: true}, watch(ctx, tx, e.ID, e.Watcher)
	}
	if was.due <= micros(now) { // it stays due
		due, at = time.UnixMicro(was.due), now
	}
	const askReview = `UPDATE reviews SET asked_from = ?, asked_at = ? WHERE id = ?`
	if _, err := tx.ExecContext(ctx, askReview, micros(was.burst), micros(at), was.id); err != nil {
		return Asked{}, err
	}
	const askQueue = `
UPDATE review_queue
   SET claims = CASE WHEN lease_token <> 0 AND due_at > ?1 THEN max(claims - 1, 0) ELSE claims END,
       due_at = ?2, lease_token = 0, priority = max(priority, ?3)
 WHERE review_id = ?4`
	if _, err := tx.ExecContext(ctx, askQueue, micros(now), micros(due), PriorityBackground, was.id); err != nil {
		return Asked{}, err
	}
	return Asked{ID: was.id, In: due.Sub(now)}, watch(ctx, tx, was.id, e.Watcher)
}

// askedBefore reads the open review of an event's fingerprint, if there is one, and says when the event's burst began.
func askedBefore(ctx context.Context, tx *tx, e Event, now time.Time) (was asking, err error) {
	const open = `
SELECT r.id, r.asked_from, r.asked_at, q.due_at, q.lease_token <> 0
FROM reviews r JOIN review_queue q ON q.review_id = r.id WHERE r.fingerprint = ? AND r.state = 'open'`
	err = tx.QueryRowContext(ctx, open, e.Fingerprint[:]).Scan(&was.id, &was.from, &was.at, &was.due, &was.lease)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return asking{}, err
	}
	was.found, was.burst = err == nil, now
	if from := fromMicros(was.from); from.After(now.Add(-e.Max)) {
		was.burst = from
	}
	was.latest = was.burst.Add(e.Max)
	return was, nil
}

// held says that the event is covered: the row is held, and whoever claims it will do so later.
func (a asking) held(e Event, now time.Time) bool {
	return e.Held && a.found && fromMicros(a.at).After(now) && a.due > micros(now) && !a.lease
}

func (s *SQLite) openAsked(ctx context.Context, tx *tx, e Event, from, at, due, now time.Time) error {
	const openReview = `
INSERT INTO reviews (id, fingerprint, domain_key, address, state, reason, cause, recorded_at, updated_at, asked_from, asked_at)
VALUES (?1, ?2, ?3, ?4, 'open', ?5, 'upstream', ?6, ?6, ?7, ?8)`
	if _, err := tx.ExecContext(ctx, openReview, e.ID, e.Fingerprint[:], e.DomainKey, seal(s.sealer, e.Address, e.ID),
		string(verdict.RevalidationRequested), micros(now), micros(from), micros(at)); err != nil {
		return err
	}
	const openQueue = `INSERT INTO review_queue (review_id, domain_key, due_at, priority, cause) VALUES (?, ?, ?, ?, 'upstream')`
	_, err := tx.ExecContext(ctx, openQueue, e.ID, e.DomainKey, micros(due), PriorityBackground)
	tx.opened++
	return err
}

func watch(ctx context.Context, tx *tx, id string, w Watcher) error {
	const watch = `INSERT INTO review_watchers (review_id, client, flow, callback) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`
	_, err := tx.ExecContext(ctx, watch, id, w.Client, w.Flow, w.Callback)
	return err
}

// Ripen: see [Postgres.Ripen].
func (s *SQLite) Ripen(ctx context.Context, fps []normalize.Fingerprint) (n int, err error) {
	const (
		ripeDue = `
UPDATE review_queue SET due_at = ?1
 WHERE review_id = (SELECT id FROM reviews WHERE fingerprint = ?2 AND state = 'open' AND asked_at > ?1)
   AND due_at > ?1 AND lease_token = 0`
		ripe = `UPDATE reviews SET asked_at = ?1 WHERE fingerprint = ?2 AND state = 'open' AND asked_at > ?1`
	)
	defer s.metrics.observe("hasten", time.Now(), &err)
	if err := checkRipen(fps); err != nil {
		return 0, err
	}
	n, err = write(ctx, s.writer, func(ctx context.Context, tx *tx) (n int, _ error) {
		now := micros(time.Now())
		for _, fp := range fps {
			more, err := changed(tx.ExecContext(ctx, ripeDue, now, fp[:]))
			if err != nil {
				return 0, err
			}
			if _, err := tx.ExecContext(ctx, ripe, now, fp[:]); err != nil {
				return 0, err
			}
			n += int(more)
		}
		return n, nil
	})
	if err != nil {
		return 0, fmt.Errorf("ripen: %w", err)
	}
	return n, nil
}
