package verimail

import (
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
	reasons   []verdict.Reason // all, reason first; nil where there is just that one
	cause     verdict.Cause
	flags     verdict.Flags
	suggested verdict.Suggestion
	// retry: asking again within the same request may help.
	retry bool
	// health is what the breaker is told: nil, errNeutral or errFailure.
	health error
	// wait is what the upstream asked us all to wait; 0 when it did not.
	wait time.Duration
	hint string // one of hintForms; empty when not throttled and not a 503
	// recheck is what it asked us to wait with this address alone; it moves no gate.
	recheck  time.Duration
	http     int
	upstream string // its request id
	said     string // its own words for the result, as far as they can be shown
	score    *int   // its confidence, 0–100
	at       time.Time
	took     time.Duration
	// pending is the call itself, when this is the time-out of a call that is not waited for yet.
	pending *call
}

func (r *reply) trail() verdict.Attempt {
	return verdict.Attempt{At: r.at, Outcome: r.outcome, HTTPStatus: r.http, LatencyMS: r.took.Milliseconds(),
		UpstreamRequestID: r.upstream, ProviderResult: r.said, ProviderScore: r.score}
}

// all are the reasons of a verdict, the first one first.
func (r *reply) all() []verdict.Reason {
	if len(r.reasons) > 0 {
		return r.reasons
	}
	return []verdict.Reason{r.reason}
}

// is takes over what is done about a class.
func (r *reply) is(c class) {
	do := actions[c]
	r.outcome, r.status, r.reason, r.cause, r.health, r.retry = do.outcome, do.status, do.reason, do.cause, do.health, do.retry
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
		r.is(classRefused)
		return r
	}
	res, err := c.http.Do(req)
	if err != nil {
		r.broken(ctx)
		return r
	}
	defer res.Body.Close()
	r.http = res.StatusCode
	r.upstream = c.profile.ownID(requestID(res.Header, c.profile.idHeaders...), addr)
	if res.StatusCode < 200 {
		// A switch of protocols nobody asked for. Its body is the bare connection, which no deadline ends.
		c.take(&r, res.Header, c.profile.decode(res.StatusCode, nil), addr)
		return r
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	if err != nil && success(res.StatusCode) {
		// The status line alone is no answer. Not asked again: it was read and billed.
		r.broken(ctx)
		r.retry = false
		return r
	}
	if err != nil || len(body) > maxBody {
		body = nil
	}
	c.take(&r, res.Header, c.profile.decode(res.StatusCode, body), addr)
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

// take makes a reply of what a response says.
func (c *Client) take(r *reply, h http.Header, a answer, addr normalize.Address) {
	r.is(a.class)
	r.reason, r.reasons = a.reason, a.reasons
	r.said, r.score = c.profile.quote(a.result, addr), a.score
	if r.upstream == "" {
		r.upstream = c.profile.ownID(a.id, addr)
	}
	now, limit := time.Now(), c.tuning().RetryAfterMax
	if a.class == classThrottled || r.http == http.StatusTooManyRequests || r.http == http.StatusServiceUnavailable {
		r.wait, r.hint = c.profile.hints.read(h, now, limit)
	}
	switch a.class {
	case classVerdict, classLegalStop:
		r.status, r.flags = a.status, a.flags
		r.suggested = c.suggestion(addr, a.suggestion)
	case classInProgress:
		r.retry = c.profile.freePending
		r.recheck = a.waitOf(now, limit)
	case classThrottled:
		if d := a.waitOf(now, limit); d > 0 && r.hint == hintAbsent {
			r.wait, r.hint = d, hintBody
		}
	case classTransient:
		r.recheck = a.waitOf(now, limit)
	}
	c.answers.count(a.class)
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

// requestIDHeaders are where providers put theirs, when their profile does not say.
var requestIDHeaders = []string{"X-Request-Id", "Request-Id", "X-Amzn-Requestid", "Cf-Ray"}

// safeID keeps anything that could be an address, or a line of a log, out of ours.
var safeID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// requestID is the upstream's name for a call: first of these headers, else of the usual ones.
func requestID(h http.Header, first ...string) string {
	for _, names := range [][]string{first, requestIDHeaders} {
		for _, name := range names {
			if v := h.Get(name); safeID.MatchString(v) {
				return v
			}
		}
	}
	return ""
}

// safeWord is a provider's word that can be shown.
var safeWord = regexp.MustCompile(`^[A-Za-z0-9 _.-]{1,64}$`)

// quote joins the provider's own words as far as they are safe: plain and short, and, unless the profile knows them, without
// a part of the address or the key in them.
func (p *provider) quote(said []string, addr normalize.Address) string {
	var safe []string
	for _, w := range said {
		if safeWord.MatchString(w) && (p.known[strings.ToLower(w)] || !p.reveals(w, addr, 3)) {
			safe = append(safe, w)
		}
	}
	return strings.Join(safe, "/")
}

// ownID is the upstream's name for a call, unless it is made of the address or the key. An id is long and random, so a short
// local part in it is chance.
func (p *provider) ownID(id string, addr normalize.Address) string {
	if !safeID.MatchString(id) || p.reveals(id, addr, 6) {
		return ""
	}
	return id
}

// reveals says that a text has the key, the domain or the local part in it, the last if it is as long as least or is the
// whole text: a letter or two are in every word.
func (p *provider) reveals(text string, addr normalize.Address, least int) bool {
	text = strings.ToLower(text)
	local, key := strings.ToLower(addr.Local()), strings.ToLower(p.key.Reveal())
	return text == local || len(local) >= least && strings.Contains(text, local) || strings.Contains(text, addr.Domain()) ||
		len(key) >= least && strings.Contains(text, key)
}

// answerMetrics counts what became of the bodies: a provider that says something new is seen at once, and what it said is in
// the trail of the check.
type answerMetrics struct{ readings map[class]prometheus.Counter }

func newAnswerMetrics(reg prometheus.Registerer, provider string) answerMetrics {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "validator_gw", Name: "provider_readings_total",
		Help: "Answers of the provider that were read as a verdict, or why they could not be."}, []string{"provider", "reading"})
	m := answerMetrics{readings: map[class]prometheus.Counter{}}
	for _, c := range []class{classVerdict, classTransient, classLegalStop, classUnmapped, classContradictory, classSoftError, classBadBody} {
		m.readings[c] = vec.WithLabelValues(provider, string(c))
	}
	if reg != nil {
		reg.MustRegister(vec)
	}
	return m
}

func (m answerMetrics) count(c class) {
	if counter := m.readings[c]; counter != nil {
		counter.Inc()
	}
}
