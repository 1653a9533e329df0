package api

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"

	"validator-gw/internal/api/openapi"
	"validator-gw/internal/idempotency"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
)

// MaxWait is the longest that GET /status waits for a final answer.
const MaxWait = 30 * time.Second

// waitText is what wait may look like; MaxWait bounds it further.
var waitText = regexp.MustCompile(`^[0-9]{1,5}(\.[0-9]{1,3})?(ms|s)$`)

// malformedKey is the answer to an Idempotency-Key that is none.
var malformedKey = malformedParameter.because("The header Idempotency-Key must be 1 to 255 visible ASCII characters, bare or in quotation marks.")

// keyWhileTyping is the answer to a key for an answer that is not to be kept.
var keyWhileTyping = malformedParameter.because("The header Idempotency-Key can't be sent with typing, which records nothing.")

const malformedID = "That can't be an id: an id is a UUID of 36 characters."

// ValidateAddress answers POST /validate.
func (a *API) ValidateAddress(w http.ResponseWriter, r *http.Request, params openapi.ValidateAddressParams) {
	x := w.(*exchange)
	body, p := a.readValidate(x, r)
	if p != nil {
		a.refuse(x, p)
		return
	}
	req := validate.Request{Raw: *body.email, Client: x.client, RequestID: x.id}
	if body.flow != nil && *body.flow != "" {
		if !a.validator.HasFlow(*body.flow) {
			a.refuse(x, unknownFlow.plain())
			return
		}
		req.Flow = *body.flow
		x.flow = req.Flow
	}
	if body.callback != nil && *body.callback != "" {
		if !a.validator.HasCallback(*body.callback) {
			a.refuse(x, unknownCallback.plain())
			return
		}
		req.Callback = *body.callback
	}
	if body.typing != nil && *body.typing {
		if params.IdempotencyKey != nil {
			a.refuse(x, keyWhileTyping)
			return
		}
		req.Typing, req.SessionID = true, *body.sessionID
	}
	if params.IdempotencyKey != nil {
		key, err := idempotency.ParseKey(*params.IdempotencyKey)
		if err != nil {
			a.refuse(x, malformedKey)
			return
		}
		req.Key = key
	}
	if params.XRequestTimeoutMs != nil {
		req.Budget = clampTimeout(*params.XRequestTimeoutMs)
	}

	answer, err := a.validator.Validate(r.Context(), req)
	if err != nil {
		a.fail(x, r, err)
		return
	}
	if answer.Replayed {
		x.Header()["Idempotency-Replayed"] = []string{"true"}
	}
	status := http.StatusOK
	if answer.Status == verdict.NeedsReview {
		status = http.StatusAccepted
		x.Header().Set("Location", "/status/"+answer.ID)
	}
	a.reply(x, r, status, answer)
}

// clampTimeout turns milliseconds into a budget within the bounds. It compares before it multiplies: any number comes.
func clampTimeout(ms int) time.Duration {
	return time.Duration(min(max(ms, int(validate.MinBudget.Milliseconds())), int(validate.MaxBudget.Milliseconds()))) * time.Millisecond
}

// GetStatus answers GET /status/{id}.
func (a *API) GetStatus(w http.ResponseWriter, r *http.Request, id string, params openapi.GetStatusParams) {
	x := w.(*exchange)
	var wait time.Duration
	if params.Wait != nil {
		d, err := time.ParseDuration(*params.Wait)
		if err != nil || !waitText.MatchString(*params.Wait) || d > MaxWait {
			a.refuse(x, malformedParameter.because("The parameter wait must be like 20s or 1500ms, and 30s at most."))
			return
		}
		wait = d
	}
	flow := ""
	if params.Flow != nil && *params.Flow != "" {
		if !a.validator.HasFlow(*params.Flow) {
			a.refuse(x, unknownFlow.plain())
			return
		}
		flow = *params.Flow
		x.flow = flow
	}
	id = strings.ToLower(id) // RFC 9562 4: case does not matter on input
	if len(id) != 36 || uuid.Validate(id) != nil {
		a.refuse(x, unknownID.because(malformedID))
		return
	}

	answer, err := a.status(r.Context(), validate.Inquiry{ID: id, Flow: flow, Client: x.client}, wait)
	if err != nil {
		a.fail(x, r, err)
		return
	}
	a.reply(x, r, http.StatusOK, answer)
}

// status asks for a check, and waits for it to be final until wait is over or Drain is called.
func (a *API) status(ctx context.Context, q validate.Inquiry, wait time.Duration) (validate.Answer, error) {
	select {
	case <-a.draining:
		wait = 0
	default:
	}
	if wait <= 0 {
		return a.validator.Status(ctx, q)
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-a.draining:
			cancel()
		case <-waiting.Done():
		}
	}()
	answer, err := a.validator.Wait(waiting, q, wait)
	if err != nil && waiting.Err() != nil && ctx.Err() == nil { // Drain: the caller is still there
		return a.validator.Status(ctx, q)
	}
	return answer, err
}

// reply writes an answer.
func (a *API) reply(x *exchange, r *http.Request, status int, answer validate.Answer) {
	x.answer = &answer
	if answer.Flow != "" {
		x.flow = answer.Flow
	}
	lang := preferred(r.Header.Get("Accept-Language"))
	x.Header()["Content-Language"] = contentLanguage[lang]
	if answer.Status == verdict.NeedsReview {
		x.Header().Set("Retry-After", wholeSeconds(answer.PollAfter))
	}
	if answer.Trail != nil {
		x.writeJSON(status, mediaJSON, toWire(answer, lang))
		return
	}
	b := append(appendAnswer(x.scratch(), &answer, lang), '\n')
	x.writeBytes(status, onlyJSON, b)
	x.keep(b)
}

// StatusJSON is the body of GET /status/{id} for this answer, in English.
func StatusJSON(answer validate.Answer) ([]byte, error) { return json.Marshal(toWire(answer, english)) }

// toWire turns an answer into the document's form.
func toWire(n validate.Answer, lang lang) openapi.Answer {
	body := openapi.Answer{
		ID:       orNull(n.ID),
		Status:   openapi.Status(n.Status),
		Decision: openapi.Decision(n.Decision),
		Reason:   string(n.Reason),
		Reasons:  []string{string(n.Reason)},
		Email: openapi.Email{
			Normalized:       orNull(n.Normalized),
			Suggestion:       orNull(n.Suggestion),
			SuggestionReason: orNull(string(n.SuggestionReason)),
			Unicode:          orNull(n.Unicode),
			DedupeKey:        orNull(n.DedupeKey),
		},
		Flags: openapi.Flags{
			Disposable:   n.Flags.Disposable.Ptr(),
			Role:         n.Flags.Role.Ptr(),
			Free:         n.Flags.Free.Ptr(),
			CatchAll:     n.Flags.CatchAll.Ptr(),
			MailboxFull:  n.Flags.MailboxFull.Ptr(),
			Smtputf8:     n.Flags.SMTPUTF8.Ptr(),
			Subaddressed: n.Flags.Subaddressed.Ptr(),
			MixedScript:  n.Flags.MixedScript.Ptr(),
		},
		Attempts: n.Attempts,
		Source: openapi.Source{
			Kind:     openapi.SourceKind(n.Source),
			Provider: orNull(n.Provider),
			Stale:    n.Stale,
		},
		Message: message(lang, n),
	}
	for _, reason := range n.Reasons {
		if reason != n.Reason {
			body.Reasons = append(body.Reasons, string(reason))
		}
	}
	if !n.CheckedAt.IsZero() {
		body.Source.CheckedAt = wireTime(n.CheckedAt)
		ms := age(&n)
		body.Source.AgeMs = &ms
	}
	if !n.ExpiresAt.IsZero() {
		body.Source.ExpiresAt = wireTime(n.ExpiresAt)
	}
	if n.Status == verdict.NeedsReview {
		if !n.NextCheckAt.IsZero() {
			body.NextCheckAt = wireTime(n.NextCheckAt)
		}
		ms := poll(&n)
		body.PollAfterMs = &ms
	}
	if n.DisposableList != (verdict.List{}) {
		body.DisposableList = &openapi.List{Name: n.DisposableList.Name, Version: orNull(n.DisposableList.Version),
			Entries: n.DisposableList.Entries}
	}
	if n.Trail != nil {
		trail := make([]openapi.Attempt, 0, len(n.Trail))
		for _, t := range n.Trail {
			attempt := openapi.Attempt{
				At:                *wireTime(t.At),
				Outcome:           t.Outcome,
				LatencyMs:         max(t.LatencyMS, 0),
				UpstreamRequestID: orNull(t.UpstreamRequestID),
				ProviderResult:    orNull(t.ProviderResult),
				ProviderScore:     t.ProviderScore,
			}
			if t.HTTPStatus != 0 {
				attempt.HTTPStatus = &t.HTTPStatus
			}
			trail = append(trail, attempt)
		}
		body.Trail = &trail
	}
	return body
}

// orNull returns nil for the empty string, as the document wants it.
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func wireTime(t time.Time) *time.Time {
	t = milliseconds(t)
	return &t
}
