package validate

import (
	"context"
	"errors"
	"slices"
	"time"

	"validator-gw/internal/flight"
	"validator-gw/internal/verdict"
)

// How often a check looks for what another replica learns: closely at first, since most answers come within a few hundred
// milliseconds, eight times while its first caller waits, and then at leisure until its own end.
var looks = [...]time.Duration{20 * time.Millisecond, 30 * time.Millisecond, 45 * time.Millisecond, 70 * time.Millisecond, 100 * time.Millisecond}

const (
	closeLooks = 8
	farLook    = 500 * time.Millisecond
	lookJitter = 0.3 // of each, earlier or later, so that many do not come at once
	// lastLook is how long before the end of the window the last close look is: as long as Redis may take to answer.
	lastLook = 40 * time.Millisecond
	// leastAsk is the least time in which it makes sense to take over from a replica that is gone.
	leastAsk = 100 * time.Millisecond
)

// What came of the question whether another replica asks, as metrics name it.
const (
	leaseMine    = "mine"
	leaseJoined  = "joined"
	leaseFailed  = "failed"
	leaseTimeout = "timeout"
	leaseAway    = "away"
)

var leaseOutcomes = []string{leaseMine, leaseJoined, leaseFailed, leaseTimeout, leaseAway}

// askOnce is ask, unless another replica asks: then it waits for what that one learns. When Redis does not say it asks.
func (s *Service) askOnce(ctx context.Context, c *check, plan verdict.Plan, markers bool) error {
	key := c.fp.String()
	lease, seen, err := s.cfg.Leases.Take(ctx, key)
	for n := 0; ; n++ {
		switch {
		case s.heard(ctx, c, plan, seen, markers && lease != nil),
			n > 0 && (err != nil || lease != nil || n == closeLooks) && s.kept(ctx, c, plan):
			lease.Release()
			s.metrics.leased(leaseJoined)
			return nil
		case err != nil && n > 0 && time.Until(plan.Until) < leastAsk:
			lease.Release()
			s.lost(c, verdict.UpstreamTimeout)
			return nil
		case err != nil:
			s.metrics.leased(leaseAway)
			return s.lead(ctx, c, plan, lease)
		case lease != nil:
			s.metrics.leased(leaseMine)
			return s.lead(ctx, c, plan, lease)
		case seen.Failed != "":
			reason := verdict.Reason(seen.Failed)
			if !slices.Contains(verdict.ReviewReasons, reason) { // a later version's word
				reason = verdict.UpstreamError
			}
			c.follow(reason)
			s.metrics.leased(leaseFailed)
			return nil
		case !seen.Held && time.Until(plan.Until) < leastAsk:
			s.lost(c, verdict.BudgetExhausted)
			return nil
		case !seen.Held: // it is gone, and left nothing
			lease, seen, err = s.cfg.Leases.Take(ctx, key)
			continue
		}
		c.follow("")
		if !pause(ctx, nextLook(n, time.Until(plan.Until), s.cfg.Rand)) {
			s.lost(c, verdict.UpstreamTimeout)
			return nil
		}
		seen, err = s.cfg.Leases.Look(ctx, key)
	}
}

// lead asks, and tells those who wait at other replicas.
func (s *Service) lead(ctx context.Context, c *check, plan verdict.Plan, lease *flight.Lease) error {
	defer lease.Release() // for when nothing else was said
	c.mu.Lock()
	c.elsewhere = false
	c.mu.Unlock()
	err := s.ask(ctx, c, plan)
	c.mu.Lock()
	known, out := c.known.Verdict != nil, c.outcome
	c.mu.Unlock()
	switch {
	case known:
		lease.Landed(s.cache.Written())
	case out.Sent > 0 && !errors.Is(ctx.Err(), context.Canceled):
		lease.Failed(string(out.Verdict.Reason))
	default:
		// Nothing was asked, by a limit of this replica's own, or it stops: another may try.
	}
	return err
}

// heard takes what another replica has left in Redis, and says whether that is the answer. A marker may be one only when
// nobody asks any more: that a review is open does not say that the verdict will not come in time.
func (s *Service) heard(ctx context.Context, c *check, plan verdict.Plan, seen flight.Seen, markers bool) bool {
	if len(seen.Value) == 0 {
		return false
	}
	k, ok := s.cache.Adopt(c.fp, seen.Value)
	if !ok || !s.fresh(k, time.Now()) || k.Verdict == nil && !markers || c.predates(k.Verdict) {
		return false
	}
	s.learn(ctx, c, plan, k)
	return true
}

// kept takes what another replica has left in the store, which does not need Redis: a verdict that could not be written
// there, or that Redis forgot, is not paid for again.
func (s *Service) kept(ctx context.Context, c *check, plan verdict.Plan) bool {
	look, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, row, err := s.stored(look, c.fp, c.addr)
	if err != nil {
		s.metrics.lookupErrors.Inc()
		return false
	}
	v := found.Verdict
	if v == nil || row != c.fp || !s.fresh(verdict.Cached{Verdict: v}, time.Now()) || c.predates(v) {
		return false
	}
	s.cache.Fill(c.fp, *v)
	s.learn(ctx, c, plan, verdict.Cached{Verdict: v})
	return true
}

// learn ends a check with what another replica found out.
func (s *Service) learn(ctx context.Context, c *check, plan verdict.Plan, k verdict.Cached) {
	c.mu.Lock()
	c.known, c.source, c.ended = k, verdict.FromFlight, true
	open, row := c.open, c.row
	c.mu.Unlock()
	if open && k.Verdict != nil && plan.Class == verdict.Interactive {
		s.settle(ctx, row, *k.Verdict, nil) // the other need not know of the review
	}
}

// lost ends a check that waited for another replica in vain.
func (s *Service) lost(c *check, reason verdict.Reason) {
	c.follow(reason)
	s.metrics.leased(leaseTimeout)
}

// follow says that another replica asks; with a reason, that the check has ended for it.
func (c *check) follow(reason verdict.Reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.elsewhere = true
	if reason != "" {
		c.ended = true
		c.outcome = verdict.Outcome{Verdict: verdict.Verdict{Status: verdict.NeedsReview, Reason: reason, Reasons: []verdict.Reason{reason}},
			Cause: verdict.CauseUpstream} // the ladder is chosen by who asked
	}
}

// learnt says that the outcome is another replica's.
func (c *check) learnt() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.elsewhere && c.ended
}

// causeOf tells the side from a reason alone.
func causeOf(r verdict.Reason) verdict.Cause {
	switch {
	case slices.Contains(verdict.MailboxReasons, r):
		return verdict.CauseMailbox
	case r == verdict.Unmapped, r == verdict.Contradictory:
		return verdict.CauseUnusable
	}
	return verdict.CauseUpstream
}

// nextLook is the wait before the look that follows n others; left is what is left of the window. The last three of the
// close looks share out the rest of the window.
func nextLook(n int, left time.Duration, rand func() float64) time.Duration {
	d := farLook
	switch {
	case n >= closeLooks || left <= lastLook:
	case n < len(looks):
		d = looks[n]
	default:
		rest := left - lastLook
		if n == closeLooks-1 && rest < farLook {
			return rest // at its end, and not after it
		}
		d = min(max(rest/time.Duration(closeLooks-n), looks[len(looks)-1]), farLook)
	}
	return time.Duration(float64(d) * (1 - lookJitter + 2*lookJitter*rand()))
}

// pause returns false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// leased counts how a question for a lease ended.
func (m *metrics) leased(outcome string) {
	m.leases.WithLabelValues(outcome).Inc()
	if outcome == leaseJoined || outcome == leaseFailed {
		m.saved.WithLabelValues(savedReplica).Inc()
	}
}
