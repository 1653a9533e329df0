package validate

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"time"

	"validator-gw/internal/debounce"
	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// ErrAddressErased: the check is known and its address is not any more.
var ErrAddressErased = errors.New("address of the check is erased")

// triggerWindow says when a burst of events for one address is over.
var triggerWindow = debounce.Window{Quiet: 400 * time.Millisecond, Max: 5 * time.Second}

// WindowOr returns w, or what says when a burst of events for one address is over where w is zero.
func WindowOr(w debounce.Window) debounce.Window { return cmp.Or(w, triggerWindow) }

const (
	// triggerTimeout bounds the write of an event. Nobody sits at a form for it.
	triggerTimeout = time.Second
	// maxBursts bounds the bursts for which this process watches the clock by itself. The loop's own polls find what is over
	// that, a second later.
	maxBursts = 100_000
	// maxAsks bounds how often one claim asks, when it meets checks that began before the event each time.
	maxAsks = 3
)

// What became of an event, as metrics name it.
const (
	eventOpened = "opened" // a check of its own
	eventMerged = "merged" // joined one that was asked for
	eventLocal  = "local"  // answered without the upstream
	eventFailed = "failed"
)

var eventOutcomes = []string{eventOpened, eventMerged, eventLocal, eventFailed}

// Event asks for a new check of an address, however fresh its verdict is.
type Event struct {
	// Raw is the address as typed, ID that of an earlier check: exactly one of them is set.
	Raw, ID string
	// Flow, Client and Callback are those of a Request.
	Flow, Client, Callback string
}

// Scheduled is the check that an event asked for.
type Scheduled struct {
	ID          string
	NextCheckAt time.Time
	PollAfter   time.Duration
	// Merged says that the check was asked for before.
	Merged bool
	// Local is the answer when there is nothing to ask anyone: the address can't be one, or its domain is on the operator's
	// list. The rest is not set then.
	Local *Answer
}

// turn is what equal events have in common: their write may stand for one another.
type turn struct {
	fp normalize.Fingerprint
	w  fallback.Watcher
}

// Revalidate makes durable that an address is to be checked again. A burst of events, on whichever replicas they land, is one
// check: 400 ms after the last of them, 5 s after the first at the latest, as the loop's tokens allow. It begins after
// each of them. The end of ctx does not end it. Errors are ErrUnknownFlow, ErrUnknownID, ErrAddressErased, ErrSaturated,
// ErrUnavailable and *NotDurable.
func (s *Service) Revalidate(ctx context.Context, e Event) (Scheduled, error) {
	ctx = context.WithoutCancel(ctx)
	if e.Flow == "" {
		e.Flow = DefaultFlow
	}
	flow, ok := s.cfg.Flow(e.Flow)
	if !ok {
		return Scheduled{}, ErrUnknownFlow
	}
	plan := s.cfg.Address()
	addr, err := s.meant(ctx, e, plan)
	if r := (*normalize.Refusal)(nil); errors.As(err, &r) {
		return s.local(refused(err, flow.Policy, plan), e.Flow), nil
	}
	if err != nil {
		return Scheduled{}, err
	}
	fp := s.prints.Of(addr)
	if who := s.asking(addr, fp, flow.Policy, plan); who.hints.Denied {
		return s.local(denied(who), e.Flow), nil
	}
	leave, err := s.admit.Enter(ctx)
	if err != nil {
		return Scheduled{}, ErrSaturated
	}
	defer leave()
	w := fallback.Watcher{Client: e.Client, Flow: e.Flow, Callback: e.Callback}
	c, shared, err := s.turns.Do(turn{fp, w}, func() (Scheduled, error) { return s.schedule(ctx, addr, fp, w) })
	if err != nil {
		s.metrics.events.WithLabelValues(eventFailed).Inc()
		return Scheduled{}, err
	}
	if c.Merged = c.Merged || shared; c.Merged {
		s.metrics.events.WithLabelValues(eventMerged).Inc()
	} else {
		s.metrics.events.WithLabelValues(eventOpened).Inc()
		s.metrics.arrived(verdict.RevalidationRequested)
	}
	c.PollAfter = min(max(time.Until(c.NextCheckAt), minPoll), maxPoll)
	return c, nil
}

func (s *Service) local(a Answer, flow string) Scheduled {
	a.Flow = flow
	s.metrics.events.WithLabelValues(eventLocal).Inc()
	return Scheduled{Local: &a}
}

// meant is the address of an event. *normalize.Refusal: it can't be one.
func (s *Service) meant(ctx context.Context, e Event, plan AddressPlan) (normalize.Address, error) {
	if e.ID == "" {
		return plan.Rules.Parse(e.Raw)
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	r, err := s.store.Review(ctx, e.ID)
	switch {
	case err == nil && !r.Address.IsZero():
		return r.Address, nil
	case err == nil:
		return normalize.Address{}, ErrAddressErased
	case errors.Is(err, fallback.ErrUnknownID):
		_, err = s.store.Verdict(ctx, e.ID)
	}
	if _, pending := s.cache.Pending(e.ID); err == nil || pending { // no verdict is kept with its address
		return normalize.Address{}, ErrAddressErased
	}
	if errors.Is(err, fallback.ErrUnknownID) {
		return normalize.Address{}, ErrUnknownID
	}
	return normalize.Address{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// schedule writes one event. With Redis the row is held until the burst is over there, and the row's own time is the
// latest; without it each event writes the row's time anew.
func (s *Service) schedule(ctx context.Context, addr normalize.Address, fp normalize.Fingerprint, w fallback.Watcher) (Scheduled, error) {
	ctx, cancel := context.WithTimeout(ctx, triggerTimeout)
	defer cancel()
	row, began := fp, time.Now()
	if s.prints.Previous(addr) != nil { // an open review from before a rotation goes on under its own fingerprint
		if found, r, err := s.stored(ctx, fp, addr); err == nil && found.Review != nil {
			row = r
		}
	}
	quiet, held := s.arm(ctx, row)
	a, err := s.write(ctx, fallback.Event{Fingerprint: row, DomainKey: s.prints.DomainKey(addr), Address: addr, Watcher: w,
		Quiet: s.cfg.Window.Quiet, Max: s.cfg.Window.Max, Held: held})
	if err != nil {
		return Scheduled{}, err
	}
	now := time.Now()
	due := now.Add(a.In)
	switch {
	case held:
		if now.Sub(began) > s.cfg.Window.Quiet/2 { // a slow write: its quiet may be over before it could be found
			quiet, _ = s.arm(ctx, row)
		}
		s.cfg.Recorded(due)
		if soon := now.Add(quiet); soon.Before(due) {
			due = soon
		}
	default:
		if _, ok := s.bursts.Arm(row, struct{}{}); !ok {
			s.cfg.Recorded(due)
		}
	}
	return Scheduled{ID: a.ID, NextCheckAt: due, Merged: !a.Fresh}, nil
}

// arm notes an event in Redis, and says how long its burst will last and whether Redis took it.
func (s *Service) arm(ctx context.Context, row normalize.Fingerprint) (quiet time.Duration, ok bool) {
	if s.cfg.Bursts == nil {
		return 0, false
	}
	quiet, err := s.cfg.Bursts.Arm(ctx, row.String())
	return quiet, err == nil
}

func (s *Service) write(ctx context.Context, e fallback.Event) (fallback.Asked, error) {
	e.ID = s.cfg.NewID()
	a, err := s.store.Ask(ctx, e)
	if errors.Is(err, fallback.ErrErased) { // meanwhile: the event counts as having come after
		e.ID = s.cfg.NewID()
		a, err = s.store.Ask(ctx, e)
	}
	if err != nil {
		s.metrics.recordErrors.Inc()
		s.cfg.Log.ErrorContext(ctx, "event was not recorded", "fingerprint", e.Fingerprint, "error", err)
		return fallback.Asked{}, &NotDurable{Err: err}
	}
	return a, nil
}

// Ripe acts on bursts that are over in Redis: the reviews of these fingerprints, as text, are due.
func (s *Service) Ripe(ctx context.Context, keys []string) error {
	fps := make([]normalize.Fingerprint, 0, len(keys))
	for _, key := range keys {
		b, err := base64.RawURLEncoding.DecodeString(key)
		if err != nil || len(b) != len(normalize.Fingerprint{}) {
			continue // nobody here wrote that
		}
		fps = append(fps, normalize.Fingerprint(b))
	}
	ctx, cancel := context.WithTimeout(ctx, triggerTimeout)
	defer cancel()
	n, err := s.store.Ripen(ctx, fps)
	if n > 0 {
		s.cfg.Recorded(time.Now())
	}
	return err
}

// Run watches for bursts of events that are over until ctx ends, and returns nil. Without it their checks are made when the
// loop finds them.
func (s *Service) Run(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { _ = s.bursts.Run(ctx) })
	if s.cfg.Bursts != nil {
		running.Go(func() { _ = s.cfg.Bursts.Run(ctx) })
	}
	running.Wait()
	return nil
}

// askedSince is from when on, by this process's clock, a verdict must have begun to end a claim; zero when any will do.
// Ahead says that events are still expected: the row was claimed too early, and its turn comes by itself.
func askedSince(c fallback.Claim) (since time.Time, ahead bool) {
	if c.AskedAt.IsZero() {
		return time.Time{}, false
	}
	return time.Now().Add(-c.Now.Sub(c.AskedAt)), c.AskedAt.After(c.Now)
}

// predates says that the check must not be answered by v: something was to be looked at that happened since v began.
func (c *check) predates(v *verdict.Verdict) bool { return v != nil && v.Began().Before(c.since) }
