package validate

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"time"

	"validator-gw/internal/debounce"
	"validator-gw/internal/verdict"
)

// Errors of checks while a person types (docs/decisions/0014-debounce.md).
var (
	// ErrSuperseded: a newer check of the same typing session took over, and nothing was asked.
	ErrSuperseded = errors.New("newer check of the session took over")
	// ErrTypingUnanswered: there was no answer in the budget. Nothing was recorded.
	ErrTypingUnanswered = errors.New("typing check had no answer in its budget")
)

// typingQuiet is how long nothing must be typed before the upstream is asked: about what passes between two keys of most
// people. It is at most typingShare of the budget.
const (
	typingQuiet = 300 * time.Millisecond
	typingShare = 3.0 / 8
)

// MaxSessions bounds the typing sessions that a process keeps apart.
const MaxSessions = 10_000

// What came of a typing check, as metrics name it.
const (
	typingAnswered   = "answered"
	typingSuperseded = "superseded"
	typingUnanswered = "unanswered"
)

var typingOutcomes = []string{typingAnswered, typingSuperseded, typingUnanswered}

// typist is one check of a typing session; nil for every other request.
type typist struct {
	stroke *debounce.Stroke
	asking context.Context //nolint:containedctx // its caller's, which ends the wait and nothing else
}

// pause waits until nothing was typed for a while, and says why the check should not go on.
func (t *typist) pause(budget time.Duration) error {
	if t == nil || t.stroke.Quiet(t.asking, min(typingQuiet, time.Duration(typingShare*float64(budget)))) {
		return nil
	}
	if err := t.asking.Err(); err != nil {
		return err
	}
	return ErrSuperseded
}

// typed answers a check while a person types: at once from what is known, and else, once the typing pauses, as any other
// request; but it records nothing. A caller that left while it waited is not asked for.
func (s *Service) typed(asking, ctx context.Context, start time.Time, req Request, flow Flow) (Answer, error) {
	t := &typist{stroke: s.cfg.Sessions.Begin(ctx, s.session(req.Client, req.SessionID)), asking: asking}
	defer t.stroke.End()
	a, err := s.answer(ctx, start, req, flow, t)
	if err == nil && a.Status == verdict.NeedsReview { // an open review is no answer either
		err = ErrTypingUnanswered
	}
	switch {
	case errors.Is(err, ErrSuperseded):
		s.metrics.typing.WithLabelValues(typingSuperseded).Inc()
	case errors.Is(err, ErrTypingUnanswered):
		s.metrics.typing.WithLabelValues(typingUnanswered).Inc()
	case err == nil:
		s.metrics.typing.WithLabelValues(typingAnswered).Inc()
	}
	return a, err
}

// session is a keyed hash of the client and its session's name, which may be anything: it is kept nowhere as it is.
func (s *Service) session(client, id string) string {
	mac := hmac.New(sha256.New, s.cfg.SessionKey)
	mac.Write([]byte(client))
	mac.Write([]byte{0}) // no client's name holds one
	mac.Write([]byte(id))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}
