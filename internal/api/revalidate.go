package api

import (
	"net/http"
	"strings"

	"github.com/google/uuid"

	"validator-gw/internal/api/openapi"
	"validator-gw/internal/validate"
)

// oneOfTwo is the answer to an event that names no address, or two.
var oneOfTwo = malformedBody.because("Exactly one of the fields email and id is required.")

// Revalidate answers POST /revalidate.
func (a *API) Revalidate(w http.ResponseWriter, r *http.Request, _ openapi.RevalidateParams) {
	x := w.(*exchange)
	e, p := a.readEvent(x, r)
	if p != nil {
		a.refuse(x, p)
		return
	}
	x.flow = e.Flow
	c, err := a.validator.Revalidate(r.Context(), e)
	switch {
	case err != nil:
		a.fail(x, r, err)
		return
	case c.Local != nil: // nobody has to be asked: that is the answer
		a.reply(x, r, http.StatusOK, *c.Local)
		return
	}
	x.Header().Set("Location", "/status/"+c.ID)
	x.Header().Set("Retry-After", wholeSeconds(c.PollAfter))
	x.writeJSON(http.StatusAccepted, mediaJSON, openapi.Revalidation{ID: c.ID, NextCheckAt: *wireTime(c.NextCheckAt), Merged: c.Merged})
}

// readEvent reads the body of POST /revalidate.
func (a *API) readEvent(x *exchange, r *http.Request) (e validate.Event, p *problem) {
	if mediaType(r.Header) != mediaJSON {
		x.Header().Set("Accept", mediaJSON)
		return e, unsupportedMedia.because("Send application/json, in UTF-8 and not compressed.")
	}
	body, p := a.readBody(x, r)
	if p != nil {
		return e, p
	}
	var email, id, flow, callback *string
	if p = decodeJSON(body, fields{{name: "email", text: &email}, {name: "id", text: &id}, {name: "flow", text: &flow}, {name: "callback", text: &callback}}); p != nil {
		return e, p
	}
	e.Client = x.client
	switch {
	case (email == nil) == (id == nil):
		return e, oneOfTwo
	case flow != nil && *flow != "" && !a.validator.HasFlow(*flow):
		return e, unknownFlow.plain()
	case callback != nil && *callback != "" && !a.validator.HasCallback(*callback):
		return e, unknownCallback.plain()
	case email != nil:
		e.Raw = *email
	default:
		if e.ID = strings.ToLower(*id); len(e.ID) != 36 || uuid.Validate(e.ID) != nil {
			return e, unknownID.because(malformedID)
		}
	}
	if flow != nil {
		e.Flow = *flow
	}
	if callback != nil {
		e.Callback = *callback
	}
	return e, nil
}
