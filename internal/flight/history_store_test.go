package flight_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"validator-gw/internal/cache"
	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// rows is a durable store of one key: what the conformance suite asks of one, as far as a check needs it.
type rows struct {
	mu      sync.Mutex
	verdict *verdict.Verdict
	review  *fallback.Review // open
}

// door is how one process reaches the rows: it may be away, or hang until the caller gives up. What a check does not do is
// the embedded store's, which is nil.
type door struct {
	*fallback.SQLite
	*rows
	state func() (away, hangs bool)
}

var errAway = errors.New("store is away")

func (d door) enter(ctx context.Context) error {
	away, hangs := d.state()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if away {
		return errAway
	}
	return nil
}

func (d door) Lookup(ctx context.Context, _ normalize.Fingerprint) (found fallback.Found, err error) {
	if err := d.enter(ctx); err != nil {
		return found, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.verdict != nil {
		v := *d.verdict
		found.Verdict = &v
	}
	if d.review != nil {
		r := *d.review
		found.Review = &r
	}
	return found, nil
}

func (d door) Record(ctx context.Context, e fallback.Entry) (fallback.Review, error) {
	if err := d.enter(ctx); err != nil {
		return fallback.Review{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	switch {
	case d.review == nil:
		d.review = &fallback.Review{ID: e.ID, Fingerprint: e.Fingerprint, State: fallback.Open, Reason: e.Reason, Cause: e.Cause,
			Address: e.Address, RecordedAt: now, UpdatedAt: now, NextCheckAt: now.Add(e.CheckIn)}
	case !e.Counted:
		d.review.UpdatedAt = now
		if e.Firm || e.Cause != verdict.CauseUpstream {
			d.review.Reason, d.review.Cause, d.review.NextCheckAt = e.Reason, e.Cause, now.Add(e.CheckIn)
		}
	}
	return *d.review, nil
}

func (d door) SettleOpen(ctx context.Context, _ normalize.Fingerprint, v verdict.Verdict, _ []verdict.Attempt) (string, bool, error) {
	if err := d.enter(ctx); err != nil {
		return "", false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.review == nil {
		return "", false, nil
	}
	v.ID = d.review.ID
	d.verdict, d.review = &v, nil
	return v.ID, true, nil
}

func (d door) PutVerdicts(ctx context.Context, batch []cache.Stored) error {
	if err := d.enter(ctx); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range batch {
		if v := s.Verdict; d.verdict == nil || v.CheckedAt.After(d.verdict.CheckedAt) {
			d.verdict = &v
		}
	}
	return nil
}

// Watch keeps nothing: nobody here asks who waits.
func (d door) Watch(ctx context.Context, _ string, _ fallback.Watcher) error { return d.enter(ctx) }

var errUnused = errors.New("a check does not do this")
