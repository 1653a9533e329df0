package validate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/verdict"
)

// statusTimeout bounds the reads of one status.
const statusTimeout = 500 * time.Millisecond

// waitPoll is how often a Wait looks at the store: another replica may settle the review without telling us.
const waitPoll = time.Second

// Status returns the present answer of a check by its id, with its trail. Errors are ErrUnknownFlow, ErrUnknownID
// and ErrUnavailable.
func (s *Service) Status(ctx context.Context, q Inquiry) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	if q.Flow == "" {
		q.Flow = s.flowOf(ctx, q)
	}
	flow, ok := s.cfg.Flow(q.Flow)
	if !ok {
		return Answer{}, ErrUnknownFlow
	}
	a, err := s.status(ctx, q.ID, flow.Policy)
	a.Flow = q.Flow
	return a, err
}

// flowOf is the flow with which the client asked. Only reviews remember who asked; with several it is the first by
// name, so that the answer is the same each time.
func (s *Service) flowOf(ctx context.Context, q Inquiry) string {
	watchers, err := s.store.Watchers(ctx, q.ID)
	if err != nil {
		return DefaultFlow // the status itself will say that the store is away, or be known without it
	}
	own := ""
	for _, w := range watchers {
		if _, ok := s.cfg.Flow(w.Flow); ok && w.Client == q.Client && (own == "" || w.Flow < own) {
			own = w.Flow
		}
	}
	return cmp.Or(own, DefaultFlow)
}

func (s *Service) status(ctx context.Context, id string, p Policy) (Answer, error) {
	who := asker{policy: p}
	r, err := s.store.Review(ctx, id)
	switch {
	case err == nil:
		return s.reviewed(r, who), nil
	case !errors.Is(err, fallback.ErrUnknownID):
		// The store is away; what was not written behind yet is known all the same.
		if v, ok := s.cache.Pending(id); ok {
			return s.unrecorded(who, v), nil
		}
		return Answer{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if v, ok := s.cache.Pending(id); ok {
		return s.unrecorded(who, v), nil
	}
	v, err := s.store.Verdict(ctx, id)
	switch {
	case errors.Is(err, fallback.ErrUnknownID):
		return Answer{}, ErrUnknownID
	case err != nil:
		return Answer{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	who.fp = v.Fingerprint
	return s.unrecorded(who, v.Verdict), nil
}

// unrecorded answers with a verdict that never was a review: its address is not kept.
func (s *Service) unrecorded(who asker, v verdict.Verdict) Answer {
	a := s.known(who, verdict.Cached{Verdict: &v}, verdict.FromCache)
	a.Trail, a.Erased = v.Trail, true
	return a
}

func (s *Service) reviewed(r fallback.Review, who asker) Answer {
	who.fp = r.Fingerprint
	if !r.Address.IsZero() {
		who = s.asking(r.Address, r.Fingerprint, who.policy, s.cfg.Address())
	}
	var a Answer
	switch {
	case r.State == fallback.Open:
		a = s.pending(who, verdict.Marker{ID: r.ID, Reason: r.Reason, NextCheckAt: r.NextCheckAt})
		a.Attempts = sent(r.Trail)
		if r.Reason == verdict.UpstreamTimeout && time.Since(r.UpdatedAt) < s.cfg.LateTimeout() {
			a.PollAfter = latePoll
		}
	case r.Verdict != nil:
		a = s.known(who, verdict.Cached{Verdict: r.Verdict}, verdict.FromReview)
		a.Attempts = sent(r.Trail)
	default: // dead: nobody works on it any more
		a = s.known(who, verdict.Cached{Verdict: &verdict.Verdict{Status: verdict.Unresolved, Reason: r.Reason,
			Reasons: []verdict.Reason{r.Reason}, CheckedAt: r.EndedAt, SoftUntil: r.EndedAt.AddDate(100, 0, 0)}}, verdict.FromReview)
		a.Attempts, a.ExpiresAt = sent(r.Trail), time.Time{}
	}
	a.ID, a.Trail, a.Erased = r.ID, r.Trail, r.Address.IsZero()
	return a
}

// sent counts the calls of a trail that reached the wire. A late call is in it twice once it has ended: as late, and
// with what it brought, which then began before the wait for it was over.
func sent(trail []verdict.Attempt) int {
	n := 0
	for i, a := range trail {
		switch a.Outcome {
		case verdict.AttemptNotSent:
			continue
		case verdict.AttemptLate:
			left := a.At.Add(time.Duration(a.LatencyMS) * time.Millisecond)
			if slices.ContainsFunc(trail[i+1:], func(b verdict.Attempt) bool { return b.At.Before(left) }) {
				continue
			}
		}
		n++
	}
	return n
}

// Wait is Status that waits up to d for the check to end. It returns the pending answer when d passes or ctx ends.
func (s *Service) Wait(ctx context.Context, q Inquiry, d time.Duration) (Answer, error) {
	end := time.NewTimer(d)
	defer end.Stop()
	settled, done := s.waits.on(q.ID)
	defer done()
	for {
		a, err := s.Status(ctx, q)
		if err != nil || a.Status != verdict.NeedsReview {
			return a, err
		}
		poll := time.NewTimer(waitPoll + time.Duration(s.cfg.Rand()*float64(waitPoll)/4))
		select {
		case <-settled:
			settled = nil // told once; should the store lag, the poll goes on
		case <-poll.C:
		case <-end.C:
			poll.Stop()
			return a, nil
		case <-ctx.Done():
			poll.Stop()
			return a, nil
		}
		poll.Stop()
	}
}

// waits are the ids that someone in this process waits for.
type waits struct {
	mu sync.Mutex
	m  map[string]*wait
	// watched are the watchers that the store is known to have; it is emptied when it is full, which costs a write each.
	watched map[watch]struct{}
}

// watch is one who waits for one review.
type watch struct {
	id string
	w  fallback.Watcher
}

// maxWatched bounds what is remembered of watchers.
const maxWatched = 10_000

// watch remembers a watcher that is in the store, and says whether it was known.
func (w *waits) watch(id string, by fallback.Watcher) (known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := watch{id, by}
	if _, known = w.watched[key]; known {
		return true
	}
	if w.watched == nil || len(w.watched) >= maxWatched {
		w.watched = make(map[watch]struct{})
	}
	w.watched[key] = struct{}{}
	return false
}

func (w *waits) unwatch(id string, by fallback.Watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.watched, watch{id, by})
}

// watched makes sure that the store knows who got an answer on which flows may decide differently: a pending one, or an
// unresolved one. If it can't, the answer stands, and a later status is decided by the default flow. But who is to be called
// back is told "pending" only once that is durable; a final answer is not told again.
func (s *Service) watched(ctx context.Context, a Answer, w fallback.Watcher) (Answer, error) {
	if w == (fallback.Watcher{}) || a.Status != verdict.NeedsReview && a.Status != verdict.Unresolved {
		return a, nil
	}
	if a.Status != verdict.NeedsReview {
		w.Callback = ""
	}
	if s.waits.watch(a.ID, w) {
		return a, nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := s.store.Watch(ctx, a.ID, w); err != nil {
		s.waits.unwatch(a.ID, w)
		if w.Callback != "" {
			return Answer{}, &NotDurable{Err: err}
		}
		s.cfg.Log.WarnContext(ctx, "watcher was not written", "id", a.ID, "error", err)
	}
	return a, nil
}

type wait struct {
	settled chan struct{}
	told    bool
	who     int
}

// on registers interest in id; call done when it ends.
func (w *waits) on(id string) (settled <-chan struct{}, done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x, ok := w.m[id]
	if !ok {
		x = &wait{settled: make(chan struct{})}
		w.m[id] = x
	}
	x.who++
	return x.settled, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if x.who--; x.who == 0 && w.m[id] == x {
			delete(w.m, id)
		}
	}
}

func (w *waits) wake(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x, ok := w.m[id]; ok && !x.told {
		x.told = true
		close(x.settled)
		delete(w.m, id) // who comes later reads the store first and finds it settled
	}
}
