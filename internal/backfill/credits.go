package backfill

import (
	"slices"
	"time"

	"validator-gw/internal/verdict"
)

// unbilled are the status codes of answers that cost nothing, beside 5xx.
var unbilled = []int{400, 401, 402, 403, 429}

// billed counts the calls of a trail that the upstream may have billed: all that may have reached it, but those that it
// answered with a refusal or a fault. A call that was entered as late and again with its answer is one.
func billed(trail []verdict.Attempt) (n int) {
	var counted []time.Time
	for _, a := range trail {
		switch a.Outcome {
		case verdict.AttemptNotSent, verdict.AttemptThrottled, verdict.AttemptQuota, verdict.AttemptAuth, verdict.AttemptFault:
			continue
		case verdict.AttemptRefused:
			if slices.Contains(unbilled, a.HTTPStatus) {
				continue
			}
		}
		if !slices.ContainsFunc(counted, a.At.Equal) {
			counted = append(counted, a.At)
		}
	}
	return len(counted)
}
