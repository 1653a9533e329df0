package validate

import (
	"context"
	"sync"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// Bounds of the refreshing of verdicts that are past their freshness. What would be over is just not refreshed: the
// verdict is served all the same, and whoever asks next may have more luck.
const (
	maxRefreshes = 8      // at a time in this process
	maxRests     = 10_000 // addresses that are left alone for a while after a refresh that brought nothing
)

// What came of a refresh, as metrics name it.
const (
	refreshRenewed = "renewed" // the upstream gave a verdict
	refreshFound   = "found"   // another replica had one, or a review is open
	refreshFailed  = "failed"  // the upstream gave none
	refreshRefused = "refused" // nothing was asked: no token to spare, a gate, the breaker
	refreshSkipped = "skipped" // too many at a time
)

var refreshOutcomes = []string{refreshRenewed, refreshFound, refreshFailed, refreshRefused, refreshSkipped}

// seeker is for whom a check looks at what is known.
type seeker uint8

const (
	// person: a marker is an answer, and so is a verdict past its freshness.
	person seeker = iota
	// insister: a person for whom a check was made in vain. A marker is no answer.
	insister
	// refresher: a marker says that the address is taken care of; a verdict must be fresh.
	refresher
	// worker: the loop, which looks for the verdict behind the marker. It must be fresh.
	worker
)

func (b seeker) marks() bool { return b == person || b == refresher }
func (b seeker) stale() bool { return b == person || b == insister }

// settles says that whoever checks by this plan writes its verdict into an open review; the loop does so under its lease.
func settles(p verdict.Plan) bool { return p.Class == verdict.Interactive || p.Once }

// refreshes are the addresses that are being asked about again, and those that are left alone for a while. The zero value
// is ready; safe for concurrent use.
type refreshes struct {
	mu    sync.Mutex
	now   map[normalize.Fingerprint]struct{}
	rests map[normalize.Fingerprint]time.Time
	sweep time.Time // when it makes sense to look for rests that are over
}

// begin says whether the address may be asked about now; end must follow then. Crowded says that there is no room.
func (r *refreshes) begin(fp normalize.Fingerprint, now time.Time) (ok, crowded bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.now[fp]; ok {
		return false, false
	}
	if until, ok := r.rests[fp]; ok {
		if now.Before(until) {
			return false, false
		}
		delete(r.rests, fp)
	}
	if len(r.rests) >= maxRests && !now.Before(r.sweep) {
		r.sweep = now.Add(time.Hour)
		for fp, until := range r.rests {
			switch {
			case !now.Before(until):
				delete(r.rests, fp)
			case until.Before(r.sweep):
				r.sweep = until
			}
		}
	}
	if len(r.now) >= maxRefreshes || len(r.rests)+len(r.now) > maxRests { // each may end with a rest
		return false, true
	}
	if r.now == nil {
		r.now, r.rests = make(map[normalize.Fingerprint]struct{}), make(map[normalize.Fingerprint]time.Time)
	}
	r.now[fp] = struct{}{}
	return true, false
}

// end ends a refresh. The address is left alone until then; zero: it is not.
func (r *refreshes) end(fp normalize.Fingerprint, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.now, fp)
	if !until.IsZero() {
		r.rests[fp] = until
	}
}

// profileRest is the least age of a verdict that is refreshed only because it is another profile's. While replicas with two
// profiles share a Redis and a store, each finds the other's verdicts, and they would pay in turns.
const profileRest = time.Hour

// fresh says that a verdict needs no new check, or that a marker holds. A verdict of another profile may mean something
// else, and counts as past its freshness; but for one on an address whose owner forbade asking.
func (s *Service) fresh(k verdict.Cached, now time.Time) bool {
	return k.Fresh(now) && (k.Verdict == nil || !s.superseded(k.Verdict))
}

func (s *Service) superseded(v *verdict.Verdict) bool {
	return s.cfg.Profile != "" && v.Profile != "" && v.Profile != s.cfg.Profile && v.Reason != verdict.ClaimedByPerson
}

// mayRefresh says whether to ask about a verdict that is not fresh; refresh must follow then.
func (s *Service) mayRefresh(fp normalize.Fingerprint, v *verdict.Verdict) bool {
	now := time.Now()
	if v != nil && (verdict.Cached{Verdict: v}).Fresh(now) && now.Sub(v.CheckedAt) < profileRest {
		return false
	}
	ok, crowded := s.refreshes.begin(fp, now)
	if crowded {
		s.metrics.refreshes.WithLabelValues(refreshSkipped).Inc()
	}
	return ok
}

// renew begins a refresh of a verdict that was found in the process, and waits for nothing.
func (s *Service) renew(who asker, v *verdict.Verdict) {
	if !s.mayRefresh(who.fp, v) {
		return
	}
	_, joined, err := s.flights.Start(who.fp, s.cfg.Background().Budget+s.cfg.LateTimeout(),
		func() *check {
			c := s.newCheck(who.fp, who.addr, s.cfg.NewID(), localOf(who.hints))
			c.offer(v)
			return c
		}, s.refresh)
	if joined || err != nil { // somebody asks already, or we are stopping
		s.refreshes.end(who.fp, time.Time{})
	}
}

// refresh asks about an address whose callers have been served a verdict past its freshness, if the rate has a token that
// nobody else could use. What comes of it is nobody's answer: a failure leaves no row and changes nothing that is kept.
// mayRefresh has to come before.
func (s *Service) refresh(ctx context.Context, c *check) (err error) {
	outcome, rest := refreshFailed, s.cache.MarkerMin() // should it panic
	defer func() {
		until := time.Time{}
		if rest > 0 {
			until = time.Now().Add(rest)
		}
		s.refreshes.end(c.fp, until)
		s.metrics.refreshes.WithLabelValues(outcome).Inc()
	}()
	c.mu.Lock()
	c.refreshing = true
	c.mu.Unlock()
	if !s.look(ctx, c, refresher) {
		plan := verdict.Plan{Class: verdict.Background, Until: time.Now().Add(s.cfg.Background().Budget), Once: true, Fingerprint: c.fp.Prefix()}
		err = s.inquire(ctx, c, plan, refresher)
	}
	k, source, out := c.result()
	if c.learnt() {
		out.Cause = causeOf(out.Verdict.Reason)
	}
	switch {
	case k.Marker != nil:
		outcome = refreshFound
	case k.Verdict != nil && source == verdict.FromUpstream:
		outcome, rest = refreshRenewed, 0
	case k.Verdict != nil:
		outcome, rest = refreshFound, 0
	case out.Sent == 0 && !c.learnt():
		outcome = refreshRefused
	case out.Cause != verdict.CauseUpstream:
		// Paid for, and the mailbox's side needs its time, as on the ladder of a review.
		rest = max(rest, fallback.CheckIn(out.Cause, 0))
	}
	return err
}
