package backfill

import (
	"context"
	"errors"
	"slices"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// job is a backfill that this process works on.
type job struct {
	lease   fallback.BackfillLease
	now     fallback.Backfill
	renewed time.Time
	pace    pace // its own rate's
	// fit is how many asks went into the queue together at last, 0 when there was no trouble: it may have less room than a portion.
	fit int64
	// After an error it is left alone until then.
	until   time.Time
	backoff time.Duration
}

// Run works on backfills until ctx ends, gives back what it holds and returns nil.
func (e *Engine) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		e.sleep(ctx, e.Step(ctx))
	}
	for _, j := range e.jobs {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		_ = e.store.ReleaseBackfill(end, j.lease) // it ends by itself, if not
		cancel()
	}
	e.jobs = nil
	e.metrics.active.Set(0)
	return nil
}

func (e *Engine) sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d + time.Duration(0.1*e.cfg.Rand()*float64(d)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-e.wake:
	case <-ctx.Done():
	}
}

// Step takes on one more backfill, if there is one, and looks at each that it has once. It returns how long to wait.
func (e *Engine) Step(ctx context.Context) time.Duration {
	if len(e.jobs) < maxJobs {
		e.claim(ctx)
	}
	e.metrics.active.Set(float64(len(e.jobs)))
	wait := idleEvery
	for _, j := range slices.Clone(e.jobs) {
		if time.Now().Before(j.until) {
			continue
		}
		next, err := e.look(ctx, j)
		switch {
		case err == nil:
			j.backoff, wait = 0, min(wait, next)
		case errors.Is(err, fallback.ErrLeaseLost), errors.Is(err, fallback.ErrUnknownID):
			e.drop(j) // cancelled, or another replica's by now
		case ctx.Err() != nil:
			return 0
		default:
			e.metrics.errors.Inc()
			if j.backoff == 0 {
				e.cfg.Log.ErrorContext(ctx, "backfill can't be worked on now; it is tried again", "id", j.lease.ID, "error", err)
			}
			j.backoff = min(max(2*j.backoff, backoffFirst), backoffMax)
			j.until = time.Now().Add(j.backoff)
		}
	}
	return wait
}

func (e *Engine) claim(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	b, l, ok, err := e.store.ClaimBackfill(call, lease)
	if err != nil && ctx.Err() == nil {
		e.metrics.errors.Inc()
		if !e.blind {
			e.cfg.Log.WarnContext(ctx, "backfills can't be looked for; it is tried again", "error", err)
		}
	}
	e.blind = err != nil
	if ok {
		e.jobs = append(e.jobs, &job{lease: l, now: b, renewed: time.Now()})
	}
}

func (e *Engine) drop(j *job) {
	e.jobs = slices.DeleteFunc(e.jobs, func(other *job) bool { return other == j })
	e.metrics.active.Set(float64(len(e.jobs)))
}

// look brings a backfill a little further, and says when to look again. It ends with fallback.ErrLeaseLost when it is over.
func (e *Engine) look(ctx context.Context, j *job) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch j.now.State {
	case fallback.BackfillMerging:
		return 0, e.keep(j, func() (fallback.Backfill, error) { return e.store.MergeBackfill(ctx, j.lease, lease) })
	case fallback.BackfillPlanning:
		return 0, e.plan(ctx, j)
	case fallback.BackfillRunning:
		return e.run(ctx, j)
	case fallback.BackfillCancelling:
		return e.cancelled(ctx, j)
	}
	return 0, fallback.ErrLeaseLost
}

// keep notes how a backfill stands after a write, which has renewed the lease, too.
func (e *Engine) keep(j *job, write func() (fallback.Backfill, error)) error {
	b, err := write()
	if err == nil {
		j.now, j.renewed = b, time.Now()
	}
	return err
}

// step is keep for StepBackfill, and counts.
func (e *Engine) step(ctx context.Context, j *job, s fallback.BackfillStep) error {
	s.Lease = lease
	before := j.now.Credits
	err := e.keep(j, func() (fallback.Backfill, error) { return e.store.StepBackfill(ctx, j.lease, s) })
	if err != nil {
		return err
	}
	known := 0
	for _, a := range s.Answers {
		if a.Known {
			known++
		}
	}
	e.metrics.items.WithLabelValues(itemKnown).Add(float64(known))
	e.metrics.items.WithLabelValues(itemAnswered).Add(float64(len(s.Answers) - known))
	e.metrics.items.WithLabelValues(itemAsked).Add(float64(len(s.Asks)))
	e.metrics.credits.Add(float64(max(j.now.Credits-before, 0)))
	return nil
}

// end ends the work on a backfill.
func (e *Engine) end(ctx context.Context, j *job, s fallback.BackfillState) error {
	b, err := e.store.EndBackfill(ctx, j.lease, s, e.cfg.Tuning().Keep)
	if err != nil {
		return err
	}
	e.cfg.Log.InfoContext(ctx, "backfill is not worked on any more", "state", string(s), "id", b.ID, "rows", b.Rows, "distinct", b.Distinct, "done", b.Done(), "credits", b.Credits)
	e.drop(j)
	return nil
}

// plan counts what a portion would cost.
func (e *Engine) plan(ctx context.Context, j *job) error {
	p, err := e.store.BackfillPortion(ctx, j.lease, j.now.PlannedLine, fallback.MaxBackfillPortion)
	if err != nil {
		return err
	}
	c := fallback.BackfillPlan{Line: p.Line, All: p.Rows == 0, Lease: lease}
	for _, i := range p.Items {
		i, err := e.found(ctx, i)
		if err != nil {
			return err
		}
		_, settled := e.answer(j.now.Flow, i.BackfillItem)
		switch {
		case settled:
			c.Known++
		case i.Open:
			c.Open++
		default:
			c.Ask++
		}
	}
	err = e.keep(j, func() (fallback.Backfill, error) { return e.store.PlanBackfill(ctx, j.lease, c) })
	if err == nil && c.All {
		e.drop(j)
	}
	return err
}

// item is an item with the fingerprint under which its review is, or will be.
type item struct {
	fallback.BackfillItem
	row normalize.Fingerprint
}

// found adds what is known of an item under a former key, while a secret is being rotated.
func (e *Engine) found(ctx context.Context, i fallback.BackfillItem) (item, error) {
	out := item{i, i.Fingerprint}
	if i.Known != nil || i.Open || i.Address.IsZero() {
		return out, nil
	}
	for _, former := range e.judge.Former(i.Address) {
		f, err := e.store.Lookup(ctx, former)
		if err != nil {
			return out, err
		}
		if f.Verdict != nil || f.Review != nil {
			out.Known, out.Open, out.row = f.Verdict, f.Review != nil, former
			return out, nil
		}
	}
	return out, nil
}

// answer is the answer to an item that nobody has to be asked about.
func (e *Engine) answer(flow string, i fallback.BackfillItem) (a fallback.BackfillAnswer, ok bool) {
	var known Answer
	switch {
	case i.Address.IsZero():
		known = Answer{Status: verdict.Unresolved, Reason: verdict.AddressUnreadable}
		known.Decision = e.undecided(flow, known.Reason)
	case i.Known != nil && e.judge.Fresh(i.Known):
		known = e.judge.Final(flow, i.Address, *i.Known)
	default:
		if known, ok = e.judge.Denied(flow, i.Address); !ok {
			return a, false
		}
	}
	a = fallback.BackfillAnswer{Fingerprint: i.Fingerprint, Line: i.Line, Known: true}
	a.Status, a.Reason, a.Decision, a.Suggestion = known.Status, known.Reason, known.Decision, known.Suggestion
	return a, true
}

// undecided is what a flow does with an address of which nothing is known.
func (e *Engine) undecided(flow string, why verdict.Reason) string {
	return e.judge.Final(flow, normalize.Address{}, verdict.Verdict{Status: verdict.Unresolved, Reason: why}).Decision
}

// run takes the answers, asks on as far as rate, window and credits allow, and ends what is through.
func (e *Engine) run(ctx context.Context, j *job) (time.Duration, error) {
	if err := e.harvest(ctx, j); err != nil {
		return 0, err
	}
	if over := j.now.Credits + j.now.Own - j.now.MaxCredits; j.now.MaxCredits >= 0 && over > 0 && j.now.Waiting > 0 {
		err := e.withdraw(ctx, j, fallback.BackfillWithdrawal{Limit: int(min(over, fallback.MaxBackfillPortion))})
		if err != nil {
			return 0, err
		}
	}
	spent, err := e.feed(ctx, j)
	if err != nil {
		return 0, err
	}
	if j.now.Asked == 0 && j.now.Waiting == 0 {
		switch {
		case j.now.FedAll:
			return 0, e.end(ctx, j, fallback.BackfillDone)
		case spent:
			return 0, e.end(ctx, j, fallback.BackfillStopped)
		}
	}
	return lookEvery, e.renew(ctx, j)
}

// renew holds on to the lease, and learns of what an operator changed, when nothing was written for a while.
func (e *Engine) renew(ctx context.Context, j *job) error {
	if time.Since(j.renewed) < renewEvery {
		return nil
	}
	return e.keep(j, func() (fallback.Backfill, error) { return e.store.RenewBackfill(ctx, j.lease, lease) })
}

// harvest takes what became of the items that were asked.
func (e *Engine) harvest(ctx context.Context, j *job) error {
	if j.now.Asked == 0 && j.now.Waiting == 0 {
		return nil
	}
	for range maxLooks {
		news, err := e.store.BackfillNews(ctx, j.lease, fallback.MaxBackfillPortion)
		if err != nil {
			return err
		}
		var s fallback.BackfillStep
		for _, n := range news {
			e.sort(j.now.Flow, n, &s)
		}
		changes := len(s.Answers) + len(s.Stays) + len(s.Again)
		if changes > 0 {
			if err := e.step(ctx, j, s); err != nil {
				return err
			}
		}
		if len(news) < fallback.MaxBackfillPortion || changes == 0 {
			return nil
		}
	}
	return nil
}

// sort puts what became of an item where it belongs in a step, unless nothing did.
func (e *Engine) sort(flow string, n fallback.BackfillNews, s *fallback.BackfillStep) {
	cost := 0
	if n.Own {
		cost = billed(n.Trail)
	}
	switch {
	case n.Gone:
		s.Again = append(s.Again, n)
	case n.State == fallback.Open:
		stay := fallback.BackfillStay{Fingerprint: n.Fingerprint, Billed: cost, Waiting: n.Cause != verdict.CauseUpstream,
			LookIn: max(n.LookIn, time.Second)}
		if stay.Waiting || n.Waited || cost > n.Billed {
			s.Stays = append(s.Stays, stay)
		}
	default:
		v := verdict.Verdict{Status: verdict.Unresolved, Reason: n.Reason} // dead
		if n.Verdict != nil {
			v = *n.Verdict
		}
		a := e.judge.Final(flow, n.Address, v)
		s.Answers = append(s.Answers, fallback.BackfillAnswer{Fingerprint: n.Fingerprint, Line: n.Line, Status: a.Status, Reason: a.Reason,
			Decision: a.Decision, Suggestion: a.Suggestion, Billed: cost})
	}
}

func (e *Engine) withdraw(ctx context.Context, j *job, w fallback.BackfillWithdrawal) error {
	w.Lease, w.Decision = lease, e.undecided(j.now.Flow, verdict.Greylisted)
	return e.keep(j, func() (fallback.Backfill, error) {
		b, _, err := e.store.WithdrawBackfill(ctx, j.lease, w)
		return b, err
	})
}

// window is how many items of a backfill may be open on the upstream's side.
func (e *Engine) window(own float64) int64 {
	rate := paced(e.cfg.Tuning().Rate, own)
	return min(max(int64(rate*WindowTime.Seconds())/int64(max(len(e.jobs), 1)), minWindow), maxWindow)
}

// pace holds tokens of a rate; the zero value has none.
type pace struct {
	tokens float64
	at     time.Time
}

// room is how many a rate allows now: not more than those of a second gather.
func (p *pace) room(rate float64, now time.Time) int64 {
	if !p.at.IsZero() {
		p.tokens = min(p.tokens+now.Sub(p.at).Seconds()*rate, max(rate, 1))
	}
	p.at = now
	return int64(p.tokens)
}

// feed asks on. Spent says that it stopped at an item for which there is no credit left.
func (e *Engine) feed(ctx context.Context, j *job) (spent bool, err error) {
	if j.now.FedAll || e.cfg.Closed() {
		return false, nil
	}
	fed := false
	defer func() {
		if fed {
			e.cfg.Fed()
		}
	}()
	for range maxLooks {
		now := time.Now()
		room := min(e.window(j.now.Rate)-j.now.Asked, e.pace.room(e.cfg.Tuning().Rate, now))
		if j.now.Rate > 0 {
			room = min(room, j.pace.room(j.now.Rate, now))
		}
		if room <= 0 {
			return false, nil
		}
		credits := int64(maxWindow)
		if j.now.MaxCredits >= 0 {
			credits = max(j.now.MaxCredits-j.now.Credits-j.now.Own, 0)
		}
		if j.fit > 0 {
			room = min(room, j.fit)
		}
		p, err := e.store.BackfillPortion(ctx, j.lease, j.now.FedLine, int(min(2*room, fallback.MaxBackfillPortion)))
		if err != nil {
			return false, err
		}
		s, full, err := e.portion(ctx, j, p, room, credits)
		if err != nil {
			return false, err
		}
		spent = full && credits == 0 && len(s.Asks) == 0
		if len(s.Answers)+len(s.Asks) > 0 || s.Fed > j.now.FedLine || s.All {
			err := e.step(ctx, j, s)
			if errors.Is(err, fallback.ErrQueueFull) {
				j.fit = max(int64(len(s.Asks))/2, 1)
				return false, nil // there is room when others have ended
			}
			if err != nil {
				return false, err
			}
			if j.fit *= 2; j.fit > fallback.MaxBackfillPortion {
				j.fit = 0
			}
		}
		j.pace.tokens -= float64(len(s.Asks))
		e.pace.tokens -= float64(len(s.Asks))
		fed = fed || len(s.Asks) > 0
		if full || s.All {
			return spent, nil
		}
	}
	return false, nil
}

// portion decides what becomes of the items of a portion, in their order, until room or credits end.
func (e *Engine) portion(
	ctx context.Context, j *job, p fallback.BackfillPortion, room, credits int64,
) (s fallback.BackfillStep, full bool, err error) {
	s.Fed, s.All = p.Line, p.Rows == 0
	for _, one := range p.Items {
		i, err := e.found(ctx, one)
		if err != nil {
			return s, false, err
		}
		if a, ok := e.answer(j.now.Flow, i.BackfillItem); ok {
			s.Answers = append(s.Answers, a)
			continue
		}
		if room == 0 || credits == 0 && !i.Open {
			s.Fed = i.Line - 1
			return s, true, nil
		}
		room--
		if !i.Open {
			credits--
		}
		s.Asks = append(s.Asks, fallback.BackfillAsk{ID: e.cfg.NewID(), Fingerprint: i.Fingerprint, Row: i.row,
			DomainKey: e.judge.DomainKey(i.Address), Address: i.Address})
	}
	return s, false, nil
}

// cancelled withdraws what is open, and waits for what is being asked.
func (e *Engine) cancelled(ctx context.Context, j *job) (time.Duration, error) {
	if err := e.harvest(ctx, j); err != nil {
		return 0, err
	}
	if err := e.withdraw(ctx, j, fallback.BackfillWithdrawal{Limit: fallback.MaxBackfillPortion, All: true}); err != nil {
		return 0, err
	}
	if j.now.Asked == 0 && j.now.Waiting == 0 {
		return 0, e.end(ctx, j, fallback.BackfillCancelled)
	}
	return lookEvery, nil
}
