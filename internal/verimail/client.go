// Package verimail asks the paid upstream about one address and is calm under every kind of trouble. Check
// hides attempts, backoff, jitter, the retry budget, the gates, the rate limit and the breaker behind one
// deadline, and always comes back with an Outcome: a verdict, or why there is none.
//
// A call whose request was written is billed, so a call that is late is waited for and not asked again; what
// is asked again inside the deadline are connect and TLS failures, resets, 5xx, and a 429 whose hint fits.
// The package keeps nothing, records nothing and knows no cache; it never logs an address or a key.
package verimail

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sony/gobreaker/v2"

	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
	"validator-gw/internal/verdict"
)

// minAttempt is the least time in which an attempt makes sense.
const minAttempt = 100 * time.Millisecond

// maxBooking is how far ahead an interactive call books its slot of the rate.
const maxBooking = 50 * time.Millisecond

// limiter is the upstream's rate, shared with the other replicas where there are any, and with it the moment before
// which none of them calls. A refusal with a notBefore means that this moment lies ahead.
type limiter interface {
	TakeInteractive(ctx context.Context, maxWait time.Duration) (wait time.Duration, notBefore time.Time, ok bool)
	TakeBackground(ctx context.Context) (notBefore time.Time, ok bool)
	// Hold tells the other replicas that nobody calls for d from now. It returns within a bounded time; a failure is
	// counted by the limiter and of no consequence here, where the gate of this process is closed already.
	Hold(ctx context.Context, d time.Duration)
}

// Config is what New needs. Profile or Contract, URL, Limiter and Seal are required.
type Config struct {
	// Profile is one of Profiles; not looked at when Contract is set.
	Profile string
	// Contract is a profile that LoadProfile returned.
	Contract *Profile
	// URL is the provider's base URL.
	URL string
	// Key is the credential. It goes where the profile says and nowhere else.
	Key secret.Text
	// Transport carries the calls; nil takes NewTransport for as many connections as Tuning allows calls in flight now.
	Transport http.RoundTripper
	// Limiter is asked before each call, retries and probes included.
	Limiter limiter
	// ReviewsDue says that background work waits to be checked; nil is never. While it does, a half-open breaker is for
	// background calls alone: a probe that fails costs a review nothing, and a person her answer.
	ReviewsDue func() bool
	// Seal encrypts a suggestion that changes the local part.
	Seal func(text string) []byte
	// Tuning is read at each use; nil takes DefaultTuning.
	Tuning func() Tuning
	// Rand returns numbers in [0, 1) and must be safe for concurrent use.
	Rand func() float64
	// Log gets one line for each attempt, and warnings about gates and the breaker; nil discards.
	Log *slog.Logger
	// Registerer gets the metrics; nil keeps them unseen.
	Registerer prometheus.Registerer
}

// Client asks one upstream. Safe for concurrent use.
type Client struct {
	profile  *provider
	name     string
	http     *http.Client
	limiter  limiter
	seal     func(string) []byte
	tuning   func() Tuning
	due      func() bool
	rand     func() float64
	log      *slog.Logger
	metrics  *metrics
	answers  answerMetrics
	breaker  *breaker
	account  accountGate
	gate     notBeforeGate
	fleet    herald
	budgets  [2]*retryBudget // by verdict.Class
	inFlight atomic.Int64
	clamped  atomic.Bool // the latest hint was over the limit
}

// New returns a client. It does no I/O.
func New(cfg Config) (*Client, error) {
	contract := cfg.Contract
	if contract == nil {
		var err error
		if contract, err = namedProfile(cfg.Profile); err != nil {
			return nil, err
		}
	}
	if cfg.Limiter == nil || cfg.Seal == nil || cfg.Rand == nil {
		return nil, errors.New("verimail: Limiter, Seal and Rand are required")
	}
	profile, err := newProvider(contract, cfg.URL, cfg.Key)
	if err != nil {
		return nil, err
	}
	if cfg.Tuning == nil {
		cfg.Tuning = DefaultTuning
	}
	if cfg.Transport == nil {
		cfg.Transport = NewTransport(cfg.Tuning().MaxInFlight)
	}
	if cfg.ReviewsDue == nil {
		cfg.ReviewsDue = func() bool { return false }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Client{
		profile: profile, name: contract.name, limiter: cfg.Limiter, seal: cfg.Seal, tuning: cfg.Tuning, due: cfg.ReviewsDue,
		rand: cfg.Rand, log: cfg.Log,
	}
	c.http = &http.Client{
		Transport: sendOnce{cfg.Transport},
		// A redirect would carry address and key to a place that nobody configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	c.metrics = newMetrics(cfg.Registerer, contract.name)
	c.answers = newAnswerMetrics(cfg.Registerer, contract.name)
	c.budgets = [2]*retryBudget{newRetryBudget(), newRetryBudget()}
	c.breaker = newBreaker(c.tuning, cfg.Rand, c.breakerChanged, c.breakerStuck)
	return c, nil
}

// Host names the upstream for people: scheme and host, without user, path or query.
func (c *Client) Host() string { return c.profile.host }

// ProfileVersion names the profile and its mapping, such as verimail_v3@1: verdicts made under another one may mean
// something else.
func (c *Client) ProfileVersion() string { return c.profile.Version() }

// breakerChanged runs under the breaker's lock: it sets metrics and logs, and calls nothing of the breaker.
func (c *Client) breakerChanged(from, to gobreaker.State) {
	c.metrics.breakerMoved(to)
	c.log.Warn("breaker changed", "from", from.String(), "to", to.String())
}

// breakerStuck tells of a breaker that had to be made anew: a bug, since every probe has an end.
func (c *Client) breakerStuck() {
	c.metrics.breakerRebuilt.WithLabelValues(c.name).Inc()
	c.log.Error("breaker was stuck half-open with no probe on its way; it begins a cool-down anew")
}

// Standing is how the upstream stands for someone who wants to call it.
type Standing struct {
	// Closed says that nothing must be sent before Until; why is in Reason.
	Closed bool
	Reason verdict.Reason
	Until  time.Time // zero while the breaker is open: ask again
	// Probing says that the breaker is half-open: a few calls decide.
	Probing bool
	// Breaker is closed, half-open or open.
	Breaker string
}

// Standing reports the gates and the breaker.
func (c *Client) Standing() Standing {
	state := c.breaker.state()
	s := Standing{Breaker: state.String(), Probing: state == gobreaker.StateHalfOpen}
	if reason, until, closed := c.blocked(time.Now(), state); closed {
		s.Closed, s.Reason, s.Until = true, reason, until
	}
	return s
}

func (c *Client) blocked(now time.Time, state gobreaker.State) (verdict.Reason, time.Time, bool) {
	if reason, until, closed := c.account.blocked(now); closed {
		return reason, until, true
	}
	t := c.tuning()
	c.gate.shorten(now, t.LongestWait())
	if until, closed := c.gate.blocked(now); closed {
		return verdict.UpstreamThrottled, until, true
	}
	if state == gobreaker.StateOpen {
		return verdict.CircuitOpen, time.Time{}, true
	}
	return "", time.Time{}, false
}

// question is what one attempt asks, and the place of the attempt in its check.
type question struct {
	addr    normalize.Address
	plan    verdict.Plan
	attempt int           // from 1
	backoff time.Duration // slept since the attempt before
}

// Check asks the upstream about addr. Until plan.Until it tries, waits and tries again as far as that fits; a call
// that is on the wire by then is waited for until ctx ends or the late time-out. It returns the last real trouble
// and not the deadline that ended the trying.
func (c *Client) Check(ctx context.Context, addr normalize.Address, plan verdict.Plan) verdict.Outcome {
	ctx = c.profile.begin(ctx)
	var out verdict.Outcome
	var last *reply // the latest attempt
	q := question{addr: addr, plan: plan}
	for {
		q.attempt++
		r, end := c.attempt(ctx, q)
		if end == nil {
			out.Sent++
			out.Trail = append(out.Trail, r.trail())
			last = r
			if r.status.Final() {
				c.conclude(&out, r)
				break
			}
			q.backoff, end = c.pause(ctx, r, q)
			out.Backoff += q.backoff
		} else {
			c.notSent(ctx, q, end)
		}
		if end != nil {
			c.end(ctx, &out, last, end)
			break
		}
	}
	out.Verdict.Attempts = out.Sent
	c.metrics.checked(out)
	return out
}

// conclude ends a check with a verdict.
func (c *Client) conclude(out *verdict.Outcome, r *reply) {
	out.Verdict = verdict.Verdict{Status: r.status, Reason: r.reason, Reasons: r.all(), Flags: r.flags,
		Suggestion: r.suggested, Provider: c.name, Profile: c.ProfileVersion(), CheckedAt: r.at.Add(r.took)}
}

// end ends the trying. What a check was last told is its reason; only one that was told nothing gives ours.
func (c *Client) end(ctx context.Context, out *verdict.Outcome, last *reply, why *refusal) {
	if last == nil {
		if !errors.Is(ctx.Err(), context.Canceled) { // a stop leaves no trail: it says nothing about the address
			out.Trail = append(out.Trail, verdict.Attempt{At: time.Now(), Outcome: verdict.AttemptNotSent})
		}
		c.giveUp(out, why.reason, verdict.CauseUpstream, why.until, why.giveup)
		return
	}
	if last.pending != nil {
		// Nothing is asked again, so the call that is still on the wire is all there is to hope for.
		<-last.pending.done // bounded by the call's own context
		last = &last.pending.reply
		out.Trail[len(out.Trail)-1] = last.trail()
		if last.status.Final() {
			c.conclude(out, last)
			return
		}
	}
	c.giveUp(out, last.reason, last.cause, later(c.notBefore(last), why.until), why.giveup)
}

// giveUp sets the outcome of a check without a verdict.
func (c *Client) giveUp(out *verdict.Outcome, reason verdict.Reason, cause verdict.Cause, notBefore time.Time, giveup string) {
	out.Verdict = verdict.Verdict{Status: verdict.NeedsReview, Reason: reason, Reasons: []verdict.Reason{reason}, Provider: c.name}
	out.Cause = cause
	out.NotBefore = notBefore
	c.metrics.giveups.WithLabelValues(c.name, giveup).Inc()
}

// notBefore is the earliest next try after r, as far as the upstream or a gate said.
func (c *Client) notBefore(r *reply) time.Time {
	var t time.Time
	if wait := max(r.wait, r.recheck); wait > 0 {
		t = r.at.Add(r.took).Add(wait)
	}
	if _, until, closed := c.blocked(time.Now(), gobreaker.StateClosed); closed {
		t = later(t, until)
	}
	return t
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// pause waits before the next attempt and returns for how long, or says why there is none.
func (c *Client) pause(ctx context.Context, r *reply, q question) (time.Duration, *refusal) {
	t := c.tuning()
	retry := r.retry || (r.outcome == verdict.AttemptTimeout && t.RetryOnTimeout)
	switch {
	case !retry:
		return 0, &refusal{giveup: giveupNotRetryable}
	case q.attempt > q.plan.MaxRetries:
		return 0, &refusal{giveup: giveupMaxAttempts}
	}
	class := t.class(q.plan.Class)
	d := backoff(q.attempt-1, class, c.rand)
	if r.wait > d {
		// The hint is a minimum: jitter goes on top, or all who were told the same come back together.
		d = plus(r.wait, jitter(class.Jitter, c.rand))
	}
	if time.Until(q.plan.Until) < plus(d, minAttempt) {
		return 0, &refusal{giveup: giveupDeadline}
	}
	if !c.budgets[q.plan.Class].take() {
		return 0, &refusal{giveup: giveupRetryBudget}
	}
	if !sleep(ctx, d) {
		return d, &refusal{giveup: giveupDeadline}
	}
	return d, nil
}

// refusal is why an attempt was not sent. The reason counts only when it would have been the first.
type refusal struct {
	reason verdict.Reason
	until  time.Time
	giveup string
}

// attempt passes the gates, pays for a token, and makes one call.
func (c *Client) attempt(ctx context.Context, q question) (*reply, *refusal) {
	plan := q.plan
	state, full := c.breaker.standing()
	if reason, until, closed := c.blocked(time.Now(), state); closed {
		if reason == verdict.CircuitOpen {
			c.metrics.breakerRejected.WithLabelValues(c.name).Inc()
		}
		return nil, &refusal{reason, until, giveupBlocked}
	}
	// Asked before the token is paid, or a flood of callers leaves none for the next probes.
	if full || state == gobreaker.StateHalfOpen && plan.Class == verdict.Interactive && c.due() {
		return nil, c.rejected()
	}
	if ctx.Err() != nil || time.Until(plan.Until) < minAttempt {
		return nil, &refusal{verdict.BudgetExhausted, time.Time{}, giveupDeadline}
	}
	t := c.tuning()
	if c.inFlight.Load() >= int64(t.MaxInFlight) {
		return nil, &refusal{verdict.LimiterSaturated, time.Time{}, giveupLimiter} // before a token is paid
	}
	if notBefore, ok := c.token(ctx, plan); !ok {
		if !notBefore.IsZero() {
			return nil, &refusal{verdict.UpstreamThrottled, notBefore, giveupBlocked}
		}
		return nil, &refusal{verdict.LimiterSaturated, time.Time{}, giveupLimiter}
	}
	// The wait for the token may have changed the world, and the account gate lets just one through.
	now := time.Now()
	if until, closed := c.gate.blocked(now); closed {
		return nil, &refusal{verdict.UpstreamThrottled, until, giveupBlocked}
	}
	if c.inFlight.Add(1) > int64(t.MaxInFlight) {
		c.inFlight.Add(-1)
		return nil, &refusal{verdict.LimiterSaturated, time.Time{}, giveupLimiter}
	}
	if reason, until, closed := c.account.enter(now, t.LateTimeout); closed {
		c.inFlight.Add(-1)
		return nil, &refusal{reason, until, giveupBlocked}
	}
	call, sent := c.send(ctx, q)
	if !sent {
		c.inFlight.Add(-1)
		return nil, c.rejected()
	}
	wait := t.class(plan.Class).AttemptTimeout
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-call.done:
	case <-timer.C:
		c.metrics.late.WithLabelValues(c.name).Inc()
		if t.RetryOnTimeout {
			// Not billed, says the setting: the call goes on by itself, and its answer matters only when no
			// other call is made.
			return &reply{outcome: verdict.AttemptTimeout, reason: verdict.UpstreamTimeout, cause: verdict.CauseUpstream,
				at: call.at, took: time.Since(call.at), pending: call}, nil
		}
		<-call.done // bounded by the call's own context
	}
	return &call.reply, nil
}

// rejected is the refusal of an attempt that the breaker did not let through.
func (c *Client) rejected() *refusal {
	c.metrics.breakerRejected.WithLabelValues(c.name).Inc()
	return &refusal{verdict.CircuitOpen, time.Time{}, giveupBlocked}
}

// tokenPoll is how often background work asks again for a token. It books nothing ahead, so that it never
// stands in front of a person.
const tokenPoll = 100 * time.Millisecond

// token takes one grant of the rate. Interactive work sleeps for a booked one; background work waits for one
// that is to spare, as long as its budget lasts, or not at all if it is to be asked once. When another replica was told to wait, so does this one: its gate
// closes, too, and notBefore says until when.
func (c *Client) token(ctx context.Context, plan verdict.Plan) (notBefore time.Time, ok bool) {
	if plan.Class == verdict.Interactive {
		wait, notBefore, ok := c.limiter.TakeInteractive(ctx, min(maxBooking, time.Until(plan.Until)-minAttempt))
		c.gate.hint(time.Now(), time.Until(notBefore))
		return notBefore, ok && sleep(ctx, wait)
	}
	for {
		notBefore, ok := c.limiter.TakeBackground(ctx)
		c.gate.hint(time.Now(), time.Until(notBefore))
		if ok || !notBefore.IsZero() {
			return notBefore, ok
		}
		if plan.Once || time.Until(plan.Until) < minAttempt+2*tokenPoll || !sleep(ctx, tokenPoll+jitter(tokenPoll, c.rand)) {
			return time.Time{}, false
		}
	}
}

// call is one exchange in the air; reply may be read once done is closed.
type call struct {
	at    time.Time
	done  chan struct{}
	reply reply
}

// send begins one exchange under the breaker. It returns at once, and says whether the breaker let the call
// through. The breaker's verdict is given when the call ends or when it has been silent for the grace time,
// whichever is first, while the call itself goes on.
func (c *Client) send(ctx context.Context, q question) (*call, bool) {
	t := c.tuning()
	call := &call{at: time.Now(), done: make(chan struct{})}
	admitted := make(chan bool, 1)
	go func() {
		err := c.breaker.guard(func() error {
			admitted <- true
			go c.carry(ctx, call, q, t.LateTimeout)
			grace := time.NewTimer(max(t.Breaker.SlowGrace, t.Interactive.AttemptTimeout))
			defer grace.Stop()
			select {
			case <-call.done:
				return call.reply.health
			case <-grace.C:
				return errFailure
			}
		})
		if refused(err) {
			admitted <- false
		}
	}()
	return call, <-admitted
}

// errLate is the cause of a call's end after the late time-out.
var errLate = errors.New("late time-out")

// carry makes the exchange, tells the gates what it means, and gives back the place that the caller took in flight.
func (c *Client) carry(ctx context.Context, call *call, q question, limit time.Duration) {
	defer close(call.done)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errLate)
	defer cancel()
	c.metrics.inFlight.WithLabelValues(c.name).Inc()
	defer func() {
		c.inFlight.Add(-1)
		c.metrics.inFlight.WithLabelValues(c.name).Dec()
	}()
	// A bug in reading an answer must not end the process; the call then reads as a bad body.
	defer func() {
		if p := recover(); p != nil {
			c.log.ErrorContext(ctx, "attempt panicked", "type", fmt.Sprintf("%T", p))
			call.reply = reply{outcome: verdict.AttemptBadBody, reason: verdict.UpstreamBadResponse, cause: verdict.CauseUnusable,
				health: errNeutral, at: call.at, took: time.Since(call.at)}
		}
	}()
	call.reply = c.exchange(ctx, q.addr)
	r := &call.reply
	if r.outcome == verdict.AttemptTimeout && !errors.Is(context.Cause(ctx), errLate) {
		// It ended with the time of whoever asked, and before it was judged: it may have been about to answer.
		r.health = errNeutral
	}
	c.learn(ctx, r, q.plan.Class)
	c.metrics.attempted(r)
	c.attempted(ctx, q, r)
}

// learn moves the gates by what one reply says.
func (c *Client) learn(ctx context.Context, r *reply, class verdict.Class) {
	now := time.Now()
	t := c.tuning()
	switch r.outcome {
	case verdict.AttemptAuth, verdict.AttemptQuota:
		if until, changed := c.account.close(r.reason, r.at, now); changed {
			c.log.ErrorContext(ctx, "upstream refuses our account: nothing is sent until the time given",
				"reason", string(r.reason), "http_status", r.http, "until", until)
		}
		return
	case verdict.AttemptAnswered, verdict.AttemptTransient:
		c.account.open(r.at)
		c.gate.answered()
		c.budgets[class].success(t.RetryBudgetRatio)
	case verdict.AttemptThrottled:
		if r.wait <= 0 { // "come back at once" is no hint either, and must not lift the pause
			if until, paused := c.gate.throttled(now); paused {
				c.log.WarnContext(ctx, "upstream throttles us and does not say for how long; we pause", "until", until)
				c.fleet.hold(ctx, c.limiter, until, t.LongestWait())
			}
		}
	}
	if r.wait <= 0 {
		return
	}
	if over := r.wait >= t.RetryAfterMax; c.clamped.Swap(over) != over && over {
		c.log.WarnContext(ctx, "upstream asks for a wait of retry_after.max or more; that much is kept to", "wait", r.wait)
	}
	moved, news := c.gate.hint(now, r.wait)
	if news {
		c.log.WarnContext(ctx, "upstream asked us to wait", "http_status", r.http, "wait", r.wait, "form", r.hint)
	}
	if moved {
		c.fleet.hold(ctx, c.limiter, now.Add(r.wait), t.LongestWait())
	}
}

// Close ends connections that are kept for the next call. Calls on the wire end with their contexts.
func (c *Client) Close() { c.http.CloseIdleConnections() }
