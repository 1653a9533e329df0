package api

import (
	"net/http"

	"validator-gw/internal/api/openapi"
)

// RetryReview answers POST /admin/reviews/{id}/retry.
func (a *API) RetryReview(w http.ResponseWriter, r *http.Request, id string, _ openapi.RetryReviewParams) {
	x := w.(*exchange)
	if err := a.validator.Retry(r.Context(), id); err != nil {
		a.fail(x, r, err)
		return
	}
	x.Header().Set("Location", "/status/"+id)
	x.writeJSON(http.StatusAccepted, mediaJSON, openapi.Retried{ID: id})
}
