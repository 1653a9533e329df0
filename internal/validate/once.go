package validate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"validator-gw/internal/idempotency"
	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// Shares of the budget of a request with an Idempotency-Key (docs/decisions/0009-idempotency-key.md).
const (
	// keepReserve is kept back from the check, for the answer to be kept in.
	keepReserve = 50 * time.Millisecond
	// keepTimeout is what the keeping of an answer has at least.
	keepTimeout = 100 * time.Millisecond
)

// keeper is package idempotency's.
type keeper interface {
	Begin(ctx context.Context, r idempotency.Request, p idempotency.Patience) (idempotency.Begun, error)
}

// once answers a request with an Idempotency-Key: with what the same one was answered, or as any other, and then keeps
// that. asking ends when the caller leaves, ctx does not. What can't be kept is not sent.
func (s *Service) once(asking, ctx context.Context, start time.Time, req Request, flow Flow) (Answer, error) {
	if s.cfg.Keys == nil {
		return Answer{}, &NotDurable{Err: idempotency.ErrUnavailable}
	}
	plan := s.cfg.Address()
	addr, refusal := plan.Rules.Parse(req.Raw)
	r := idempotency.Request{Client: req.Client, Key: req.Key, Asked: []string{"POST /validate", req.Raw, req.Flow, req.Callback}}
	if refusal == nil {
		r.Fingerprint = s.prints.Of(addr)
	}
	budget := flow.of(req)
	begun, err := s.cfg.Keys.Begin(asking, r, idempotency.Patience{TakeOver: start.Add(budget - MinBudget), GiveUp: start.Add(budget - slack)})
	switch {
	case errors.Is(err, idempotency.ErrUnavailable):
		return Answer{}, &NotDurable{Err: err}
	case err != nil:
		return Answer{}, err
	}
	switch begun.State {
	case idempotency.Conflict:
		return Answer{}, ErrKeyReused
	case idempotency.InFlight:
		return Answer{}, ErrKeyInFlight
	case idempotency.Replay:
		return s.replayed(begun.Answer, addr, refusal, plan)
	}
	defer begun.Claim.Abandon(ctx) // unless it is finished
	flow.Budget, req.Budget = budget-keepReserve, 0
	a, err := s.answer(ctx, start, req, flow, nil)
	if err != nil {
		return Answer{}, err
	}
	keep, cancel := context.WithTimeout(ctx, max(keepTimeout, time.Until(start.Add(budget))))
	defer cancel()
	if err := begun.Claim.Finish(keep, s.keepable(a, refusal == nil)); err != nil {
		nd := &NotDurable{Err: err}
		if a.Status == verdict.NeedsReview {
			nd.ID = a.ID
		}
		return Answer{}, nd
	}
	return a, nil
}

// kept is an answer as it is stored: without the address, which comes from the request again.
type kept struct {
	Version int `json:"version"`

	ID             string           `json:"id,omitempty"`
	Status         verdict.Status   `json:"status"`
	Decision       Decision         `json:"decision"`
	Reason         verdict.Reason   `json:"reason"`
	Reasons        []verdict.Reason `json:"reasons,omitempty"`
	Flags          verdict.Flags    `json:"flags"`
	DisposableList verdict.List     `json:"disposable_list,omitzero"`
	// Suggestion is sealed. That for a text that can't be an address is made anew: nobody could find it to erase it.
	Suggestion       []byte         `json:"suggestion,omitempty"`
	SuggestionReason verdict.Reason `json:"suggestion_reason,omitempty"`
	Attempts         int            `json:"attempts"`
	Source           verdict.Source `json:"source"`
	Provider         string         `json:"provider,omitempty"`
	CheckedAt        time.Time      `json:"checked_at,omitzero"`
	Age              time.Duration  `json:"age,omitempty"`
	Stale            bool           `json:"stale,omitempty"`
	ExpiresAt        time.Time      `json:"expires_at,omitzero"`
	NextCheckAt      time.Time      `json:"next_check_at,omitzero"`
	PollAfter        time.Duration  `json:"poll_after,omitempty"`
}

// keptVersion is that of kept. An answer of another version is not understood.
const keptVersion = 1

func (s *Service) keepable(a Answer, address bool) []byte {
	k := kept{
		Version: keptVersion, ID: a.ID, Status: a.Status, Decision: a.Decision, Reason: a.Reason, Reasons: a.Reasons, Flags: a.Flags,
		DisposableList: a.DisposableList, SuggestionReason: a.SuggestionReason, Attempts: a.Attempts, Source: a.Source, Provider: a.Provider,
		CheckedAt: a.CheckedAt, Age: a.Age, Stale: a.Stale, ExpiresAt: a.ExpiresAt, NextCheckAt: a.NextCheckAt, PollAfter: a.PollAfter,
	}
	if address && a.Suggestion != "" {
		k.Suggestion = s.cfg.Seal(a.Suggestion)
	}
	b, err := json.Marshal(k)
	if err != nil {
		panic(err) // our own types always marshal
	}
	return b
}

// replayed is a stored answer as it was.
func (s *Service) replayed(stored []byte, addr normalize.Address, refusal error, plan AddressPlan) (Answer, error) {
	var k kept
	if err := json.Unmarshal(stored, &k); err != nil || k.Version != keptVersion {
		// Of a newer program, or damaged. Another answer would not be the one that was promised.
		return Answer{}, fmt.Errorf("stored answer of version %d can't be read: %w", k.Version, cmp.Or(err, errors.ErrUnsupported))
	}
	a := Answer{
		ID: k.ID, Status: k.Status, Decision: k.Decision, Reason: k.Reason, Reasons: k.Reasons, Flags: k.Flags, DisposableList: k.DisposableList,
		SuggestionReason: k.SuggestionReason, Attempts: k.Attempts, Source: k.Source, Provider: k.Provider, CheckedAt: k.CheckedAt, Age: k.Age,
		Stale: k.Stale, ExpiresAt: k.ExpiresAt, NextCheckAt: k.NextCheckAt, PollAfter: k.PollAfter, Replayed: true,
	}
	if r, ok := errors.AsType[*normalize.Refusal](refusal); ok {
		a.Suggestion = r.Suggestion
		return a, nil
	}
	a.Normalized, a.Unicode, a.Fingerprint = addr.Text(), addr.Unicode(), s.prints.Of(addr).Prefix()
	if plan.DedupeKey {
		a.DedupeKey = s.prints.DedupeKey(addr)
	}
	a.Suggestion = s.spelled(addr, verdict.Suggestion{Sealed: k.Suggestion})
	return a, nil
}
