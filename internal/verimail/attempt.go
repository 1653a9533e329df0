package verimail

import (
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"time"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

var errUnsendable = errors.New("request could not be built")

// maxBody bounds what is read of an answer; the real ones have some hundred bytes.
const maxBody = 64 << 10

// reply is one attempt, classified: everything that the retry loop, the gates, the breaker, the trail and the
// metrics want to know of it. It holds no address.
type reply struct {
	outcome   string // of verdict.AttemptOutcomes
	status    verdict.Status
	reason    verdict.Reason
	cause     verdict.Cause
	flags     verdict.Flags
	suggested verdict.Suggestion
	// retry: asking again within the same request may help.
	retry bool
	// health is what the breaker is told: nil, errNeutral or errFailure.
	health error
	// wait is what the upstream asked us to wait; 0 when it did not.
	wait     time.Duration
	hint     string // one of hintForms; empty when not a 429 or 503
	http     int
	upstream string // its request id
	at       time.Time
	took     time.Duration
	// pending is the call itself, when this is the time-out of a call that is not waited for yet.
	pending *call
}

func (r *reply) trail() verdict.Attempt {
	return verdict.Attempt{At: r.at, Outcome: r.outcome, HTTPStatus: r.http, LatencyMS: r.took.Milliseconds(),
		UpstreamRequestID: r.upstream}
}

// exchange sends one question and classifies what comes. It ends with ctx at the latest.
func (c *Client) exchange(ctx context.Context, addr normalize.Address) (r reply) {
	r.at = time.Now()
	defer func() {
		r.took = time.Since(r.at)
		if r.outcome == verdict.AttemptTimeout && r.took < minAttempt {
			r.health = errNeutral // it had no fair chance: too little of the context was left
		}
	}()
	req, err := c.profile.request(ctx, addr)
	if err != nil {
		r.outcome, r.reason, r.cause, r.health = verdict.AttemptRefused, verdict.UpstreamRefused, verdict.CauseUnusable, errNeutral
		return r
	}
	res, err := c.http.Do(req)
	if err != nil {
		r.broken(ctx)
		return r
	}
	defer res.Body.Close()
	r.http = res.StatusCode
	r.upstream = requestID(res.Header)
	if res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable {
		r.wait, r.hint = retryAfter(res.Header, time.Now(), c.tuning().RetryAfterMax)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	switch {
	case err != nil && success(res.StatusCode):
		// The status line alone is no answer. Not asked again: it was read and billed.
		r.broken(ctx)
		r.retry = false
	case success(res.StatusCode):
		c.readAnswer(&r, addr, body)
	default:
		r.classify()
	}
	return r
}

func success(code int) bool { return code >= 200 && code < 300 }

// broken is an exchange without a whole response. The error itself is dropped: *url.Error prints the URL, and
// what is left says little more than that the network failed.
func (r *reply) broken(ctx context.Context) {
	r.cause = verdict.CauseUpstream
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		r.outcome, r.reason, r.health = verdict.AttemptCancelled, verdict.UpstreamTimeout, errNeutral
	case ctx.Err() != nil:
		r.outcome, r.reason, r.health = verdict.AttemptTimeout, verdict.UpstreamTimeout, errFailure
	default:
		r.outcome, r.reason, r.health, r.retry = verdict.AttemptNetwork, verdict.UpstreamError, errFailure, true
	}
}

// classify sorts a response that is no success, by its status.
func (r *reply) classify() {
	r.cause = verdict.CauseUpstream
	switch code := r.http; {
	case code == http.StatusUnauthorized:
		r.outcome, r.reason, r.health = verdict.AttemptAuth, verdict.UpstreamAuth, errNeutral
	case code == http.StatusPaymentRequired, code == http.StatusForbidden:
		r.outcome, r.reason, r.health = verdict.AttemptQuota, verdict.UpstreamQuota, errNeutral
	case code == http.StatusTooManyRequests:
		r.outcome, r.reason, r.health, r.retry = verdict.AttemptThrottled, verdict.UpstreamThrottled, errNeutral, true
	case code >= 500, code == http.StatusRequestTimeout:
		r.outcome, r.reason, r.health, r.retry = verdict.AttemptFault, verdict.UpstreamError, errFailure, true
	default:
		// 3xx (redirects are not followed) and the other 4xx: our fault, or this address's. Eight of them end
		// as a dead review that someone looks at, instead of being asked for ever.
		r.outcome, r.reason, r.health = verdict.AttemptRefused, verdict.UpstreamRefused, errNeutral
		r.cause = verdict.CauseUnusable
	}
}

// readAnswer sorts a success by its body.
func (c *Client) readAnswer(r *reply, addr normalize.Address, body []byte) {
	if r.http == http.StatusAccepted {
		r.outcome, r.reason, r.cause, r.health = verdict.AttemptPending, verdict.UpstreamPending, verdict.CauseUpstream, errNeutral
		return
	}
	d := decoded{reason: verdict.UpstreamBadResponse, garbage: true}
	if len(body) <= maxBody {
		d = decode(body)
	}
	r.reason = d.reason
	switch {
	case d.garbage:
		// A page of a proxy, half a body, nothing: the upstream is not well. Billed, so not asked again at once.
		r.outcome, r.cause, r.health = verdict.AttemptBadBody, verdict.CauseUpstream, errFailure
	case d.unusable:
		r.outcome, r.cause, r.health = verdict.AttemptUnusable, verdict.CauseUnusable, errNeutral
	case d.status == verdict.NeedsReview:
		r.outcome, r.cause = verdict.AttemptTransient, verdict.CauseMailbox
	default:
		r.outcome, r.status, r.flags = verdict.AttemptAnswered, d.status, d.flags
		r.suggested = c.suggestion(addr, d.suggestion)
	}
}

// suggestion keeps what the provider suggests without an address in plain: see verdict.Suggestion. What does
// not parse as an address is no suggestion.
func (c *Client) suggestion(addr normalize.Address, text string) verdict.Suggestion {
	if text == "" {
		return verdict.Suggestion{}
	}
	s, err := normalize.Parse(text)
	if err != nil || s == addr {
		return verdict.Suggestion{}
	}
	if s.Local() == addr.Local() {
		return verdict.Suggestion{Domain: s.Domain()}
	}
	return verdict.Suggestion{Sealed: c.seal(s.Text())}
}

// requestIDHeaders are where providers put theirs.
var requestIDHeaders = []string{"X-Request-Id", "Request-Id", "X-Amzn-Requestid", "Cf-Ray"}

// safeID keeps anything that could be an address, or a line of a log, out of ours.
var safeID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

func requestID(h http.Header) string {
	for _, name := range requestIDHeaders {
		if v := h.Get(name); safeID.MatchString(v) {
			return v
		}
	}
	return ""
}
