package api

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"validator-gw/internal/api/openapi"
	"validator-gw/internal/validate"
)

// kind is a kind of error as clients see it: the code is stable, the type is made from it, the title is the same for
// each occurrence. Its detail is used where an occurrence has nothing better to say.
type kind struct {
	status int
	code   string
	title  string
	detail string
}

// The kinds of error that this version gives. openapi.yaml lists all that a client should know.
var (
	malformedBody = &kind{400, "malformed_body", "The body can't be read",
		"The body must be one JSON object."}
	missingEmail = &kind{400, "missing_email", "There is no email field",
		"The field email is required. It may be empty; then the answer is invalid."}
	malformedParameter = &kind{400, "malformed_parameter", "A parameter can't be read",
		"A header or query parameter can't be read."}
	unauthorized = &kind{401, "unauthorized", "The key is missing or unknown",
		"Send Authorization: Bearer KEY."}
	notFound = &kind{404, "not_found", "There is no such path",
		"There is nothing at this path. See /openapi.yaml."}
	unknownID = &kind{404, "unknown_id", "The id is unknown",
		"No check has this id, or it is no longer kept."}
	methodNotAllowed = &kind{405, "method_not_allowed", "The path does not have this method",
		"The header Allow lists the methods of this path."}
	idempotencyInFlight = &kind{409, "idempotency_in_flight", "The same request is being answered",
		"A request with this Idempotency-Key is being answered elsewhere."}
	superseded = &kind{409, "superseded", "A newer check took over",
		"A newer check of this typing session took over."}
	addressErased = &kind{409, "address_erased", "The address is erased",
		"Give the address instead of the id."}
	backfillUnfinished = &kind{409, "backfill_unfinished", "The backfill is not done",
		"The results are there once the backfill is done."}
	backfillEnded = &kind{409, "backfill_ended", "The backfill has ended",
		"It is done or cancelled."}
	reviewNotDead = &kind{409, "review_not_dead", "The review is not dead",
		"It is being worked on, or it has its answer: see /status/{id}."}
	reviewReplaced = &kind{409, "review_replaced", "Another review of the address is open",
		"The address is being checked under another id."}
	bodyTooLarge = &kind{413, "body_too_large", "The body is too large",
		"The body is over the limit."}
	unsupportedMedia = &kind{415, "unsupported_media_type", "The format of the body is not supported",
		"Send application/json or application/x-www-form-urlencoded, in UTF-8 and not compressed."}
	unknownFlow = &kind{422, "unknown_flow", "The flow is unknown",
		"No flow has the name that the request gives."}
	unknownCallback = &kind{422, "unknown_callback", "The callback is unknown",
		"No callback has the name that the request gives."}
	idempotencyKeyReused = &kind{422, "idempotency_key_reused", "The idempotency key was used for another request",
		"Use a new Idempotency-Key for a new request."}
	internalFault = &kind{500, "internal", "The gateway has a fault",
		"The log of the gateway has the correlation_id."}
	notImplemented = &kind{501, "not_implemented", "This version does not do that",
		"This version does not answer this path yet."}
	saturated = &kind{503, "saturated", "The gateway is full",
		"Nothing was accepted. Try again."}
	notDurable = &kind{503, "not_durable", "Nothing durable could be written",
		"Nothing was accepted. Try again."}
	typingUnanswered = &kind{503, "typing_unanswered", "There was no answer in time",
		"Nothing was recorded. Try again."}
	storeUnavailable = &kind{503, "store_unavailable", "The store can't be reached",
		"The store can't be reached now. Try again."}
)

// kinds lists every kind above.
var kinds = []*kind{
	malformedBody, missingEmail, malformedParameter, unauthorized, notFound, unknownID, methodNotAllowed, idempotencyInFlight,
	superseded, addressErased, backfillUnfinished, backfillEnded, reviewNotDead, reviewReplaced, typingUnanswered,
	bodyTooLarge, unsupportedMedia, unknownFlow, unknownCallback, idempotencyKeyReused, internalFault, notImplemented, saturated, notDurable, storeUnavailable,
}

// errorKinds maps the errors of the validator to kinds. What is not in it is internalFault.
var errorKinds = []struct {
	err  error
	kind *kind
}{
	{validate.ErrUnknownFlow, unknownFlow},
	{validate.ErrKeyReused, idempotencyKeyReused},
	{validate.ErrKeyInFlight, idempotencyInFlight},
	{validate.ErrSuperseded, superseded},
	{validate.ErrTypingUnanswered, typingUnanswered},
	{validate.ErrAddressErased, addressErased},
	{validate.ErrUnknownID, unknownID},
	{validate.ErrNotDead, reviewNotDead},
	{validate.ErrReplaced, reviewReplaced},
	{ErrListUnfinished, backfillUnfinished},
	{ErrListEnded, backfillEnded},
	{ErrListRate, malformedParameter},
	{validate.ErrSaturated, saturated},
	{validate.ErrNotDurable, notDurable},
	{validate.ErrUnavailable, storeUnavailable},
}

// problem is one occurrence of a kind. Its texts are ours: none may repeat what was sent.
type problem struct {
	kind   *kind
	detail string // empty: the kind's own
	id     string // only with notDurable
}

// because returns an occurrence of k with a detail of its own.
func (k *kind) because(detail string) *problem { return &problem{kind: k, detail: detail} }

// plain returns an occurrence of k with the kind's detail.
func (k *kind) plain() *problem { return &problem{kind: k} }

func (k *kind) uri() string { return "/problems/" + strings.ReplaceAll(k.code, "_", "-") }

// statusClientGone is logged and counted when the caller left before the answer; it never reaches a wire. The number is
// the one that nginx made customary.
const statusClientGone = 499

// fail answers a request that the validator gave an error for.
func (a *API) fail(x *exchange, r *http.Request, err error) {
	if r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		x.gone()
		return
	}
	p := internalFault.plain()
	for _, e := range errorKinds {
		if errors.Is(err, e.err) {
			p = e.kind.plain()
			break
		}
	}
	if p.kind.status >= 500 {
		x.err = err
	}
	var lost *validate.NotDurable
	if p.kind == notDurable && errors.As(err, &lost) && lost.ID != "" {
		p.id = lost.ID
		p.detail = "Whether the check was recorded is not known. Try again; it may be found under its id."
	}
	a.refuse(x, p)
}

// refuse writes p as application/problem+json.
func (a *API) refuse(x *exchange, p *problem) {
	x.code = p.kind.code
	body := openapi.Problem{
		Type:          p.kind.uri(),
		Title:         p.kind.title,
		Status:        p.kind.status,
		Code:          p.kind.code,
		CorrelationID: x.id,
	}
	detail := p.detail
	if detail == "" {
		detail = p.kind.detail
	}
	body.Detail = &detail
	if p.id != "" {
		body.ID = &p.id
	}
	if after := a.retryAfter(p.kind); after > 0 {
		ms := after.Milliseconds()
		body.RetryAfterMs = &ms
		x.Header().Set("Retry-After", wholeSeconds(after))
	}
	x.writeJSON(p.kind.status, "application/problem+json", body)
}

// retryAfter returns when to try again after an error of kind k, 0 when that does not help. The time is spread over
// the base and as much again, so that those who were refused together don't return together.
func (a *API) retryAfter(k *kind) time.Duration {
	var base time.Duration
	switch k {
	case saturated, idempotencyInFlight, typingUnanswered:
		base = a.config.RetryAfterSaturated
	case notDurable, storeUnavailable:
		base = a.config.RetryAfterStore
	case backfillUnfinished:
		base = unfinishedRetry
	}
	return base + time.Duration(a.config.Rand()*float64(base))
}

// unfinishedRetry is the least time after which to ask again for the results of a backfill.
const unfinishedRetry = 20 * time.Second

// wholeSeconds writes d for Retry-After: rounded up, at least 1.
func wholeSeconds(d time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(d.Seconds()))))
}
