package api

import (
	"errors"
	"net/http"

	"validator-gw/internal/api/openapi"
	"validator-gw/internal/validate"
)

// EraseAddress answers DELETE /addresses.
func (a *API) EraseAddress(w http.ResponseWriter, r *http.Request, _ openapi.EraseAddressParams) {
	x := w.(*exchange)
	if mediaType(r.Header) != mediaJSON {
		x.Header().Set("Accept", mediaJSON)
		a.refuse(x, unsupportedMedia.because("Send application/json, in UTF-8 and not compressed."))
		return
	}
	body, p := a.readBody(x, r)
	var email *string
	if p == nil {
		p = decodeJSON(body, fields{{name: "email", text: &email}})
	}
	switch {
	case p != nil:
		a.refuse(x, p)
		return
	case email == nil:
		a.refuse(x, missingEmail.because("The field email is required."))
		return
	}
	gone, err := a.validator.Erase(r.Context(), *email)
	switch {
	case errors.Is(err, validate.ErrNoAddress):
		a.refuse(x, malformedBody.because("The field email can't be an address, so nothing is kept of it."))
		return
	case err != nil:
		a.fail(x, r, err)
		return
	}
	x.writeJSON(http.StatusOK, mediaJSON, openapi.Erased{
		Reviews: gone.Reviews, Verdicts: gone.Verdicts, IdempotentAnswers: gone.Answers, BackfillRows: gone.BackfillRows,
	})
}
