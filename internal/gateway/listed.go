package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"validator-gw/internal/api"
	"validator-gw/internal/api/openapi"
	"validator-gw/internal/backfill"
	"validator-gw/internal/fallback"
	"validator-gw/internal/settings"
	"validator-gw/internal/validate"
)

// lateLists are the lists of an edge that serves from the first moment on.
type lateLists struct{ late *late }

// LoadList implements what package api asks for, as do the others.
func (l lateLists) LoadList(ctx context.Context, body io.Reader, a api.List) (openapi.Backfill, error) {
	g, err := l.gateway()
	if err != nil {
		return openapi.Backfill{}, err
	}
	list := backfill.List{Client: a.Client, Flow: a.Flow, Column: a.Column, Format: backfill.Format(a.Format), MaxCredits: -1, Dry: a.Dry}
	if a.Key != "" {
		list.Source = "key " + a.Key
	}
	if a.MaxCredits != nil {
		list.MaxCredits = *a.MaxCredits
	}
	if a.Rate != "" {
		rate, err := settings.ParseRate(a.Rate)
		if err != nil || rate <= 0 {
			return openapi.Backfill{}, api.ErrListRate
		}
		list.Rate = float64(rate)
	}
	b, err := g.lists.Load(ctx, body, list)
	return g.listView(b), listError(err)
}

// Backfill tells how one stands.
func (l lateLists) Backfill(ctx context.Context, id string) (openapi.Backfill, error) {
	return l.one(func(g *Gateway) (fallback.Backfill, error) { return g.lists.Backfill(ctx, id) })
}

// Backfills lists a client's.
func (l lateLists) Backfills(ctx context.Context, client, before string) (page []openapi.Backfill, next string, err error) {
	g, err := l.gateway()
	if err != nil {
		return nil, "", err
	}
	list, err := g.lists.Backfills(ctx, client, before, fallback.MaxBackfills)
	for _, b := range list {
		page = append(page, g.listView(b))
	}
	if len(list) == fallback.MaxBackfills {
		next = list[len(list)-1].ID
	}
	return page, next, listError(err)
}

// CancelBackfill ends one.
func (l lateLists) CancelBackfill(ctx context.Context, id string) (openapi.Backfill, error) {
	return l.one(func(g *Gateway) (fallback.Backfill, error) { return g.lists.Cancel(ctx, id) })
}

// ResumeBackfill lets one go on.
func (l lateLists) ResumeBackfill(ctx context.Context, id string, maxCredits *int64) (openapi.Backfill, error) {
	return l.one(func(g *Gateway) (fallback.Backfill, error) { return g.lists.Resume(ctx, id, maxCredits) })
}

// Results returns what writes the results of one.
func (l lateLists) Results(ctx context.Context, id string, partial bool) (func(context.Context, io.Writer, bool) error, error) {
	g, err := l.gateway()
	if err != nil {
		return nil, err
	}
	r, err := g.lists.Results(ctx, id, partial)
	if err != nil {
		return nil, listError(err)
	}
	return r.Write, nil
}

func (l lateLists) gateway() (*Gateway, error) {
	if g := l.late.gateway.Load(); g != nil {
		return g, nil
	}
	return nil, validate.ErrUnavailable
}

func (l lateLists) one(do func(*Gateway) (fallback.Backfill, error)) (openapi.Backfill, error) {
	g, err := l.gateway()
	if err != nil {
		return openapi.Backfill{}, err
	}
	b, err := do(g)
	return g.listView(b), listError(err)
}

// listError says in the edge's words what went wrong. What it does not know is the store that can't be reached, but for the
// body's own troubles and the caller's leaving.
func listError(err error) error {
	for _, known := range []struct{ is, told error }{
		{backfill.ErrChanged, validate.ErrKeyReused},
		{backfill.ErrTooLong, api.ErrListTooLong},
		{backfill.ErrInput, api.ErrListInput},
		{backfill.ErrUnfinished, api.ErrListUnfinished},
		{fallback.ErrBackfillBusy, validate.ErrKeyInFlight},
		{fallback.ErrBackfillTerms, validate.ErrKeyReused},
		{fallback.ErrBackfillState, api.ErrListEnded},
		{fallback.ErrUnknownID, validate.ErrUnknownID},
	} {
		if errors.Is(err, known.is) {
			return known.told
		}
	}
	var read *backfill.ReadError
	if err == nil || errors.As(err, &read) || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: %w", validate.ErrUnavailable, err)
}

// listView is a backfill as the wire has it, with what this process knows of the pace.
func (g *Gateway) listView(b fallback.Backfill) openapi.Backfill {
	v := BackfillView(b)
	if v.Plan != nil {
		v.Plan.TimeMs = g.lists.TimeNeeded(b).Milliseconds()
	}
	if b.State == fallback.BackfillRunning && g.client.Standing().Closed {
		v.State = openapi.BackfillStateWaiting
	}
	return v
}

// BackfillView is a backfill as the wire has it.
func BackfillView(b fallback.Backfill) openapi.Backfill {
	v := openapi.Backfill{ID: b.ID, State: openapi.BackfillState(b.State), Rows: b.Rows, Distinct: b.Distinct, Unreadable: b.Unreadable,
		BadLines: make([]openapi.BadLine, 0, len(b.Bad)), Refused: b.Refused, Done: b.Done(), Known: b.Known, Waiting: b.Waiting, Credits: b.Credits,
		CreatedAt: b.CreatedAt, FinishedAt: optionalTime(b.FinishedAt), ResultsUntil: optionalTime(b.KeepUntil)}
	v.ByStatus.Valid, v.ByStatus.Invalid, v.ByStatus.Risky, v.ByStatus.Unresolved = b.Valid, b.Invalid, b.Risky, b.Unresolved
	for _, bad := range b.Bad {
		v.BadLines = append(v.BadLines, openapi.BadLine{Line: bad.Line, Reason: bad.Fault})
	}
	switch b.State {
	case fallback.BackfillMerging, fallback.BackfillPlanning:
		v.State = openapi.BackfillStateRunning
	case fallback.BackfillCancelling:
		v.State = openapi.BackfillStateCancelled
	case fallback.BackfillRunning:
		if b.FedAll && b.Asked == 0 && b.Waiting > 0 {
			v.State = openapi.BackfillStateWaiting
		}
	}
	if b.MaxCredits >= 0 {
		v.MaxCredits = &b.MaxCredits
	}
	if b.State == fallback.BackfillPlanned {
		v.Plan = &openapi.BackfillPlan{Known: b.PlanKnown, Open: b.PlanOpen, Credits: b.PlanAsk}
	}
	if left, ok := backfill.Left(b); ok {
		ms := left.Milliseconds()
		v.EstimateMs = &ms
	}
	return v
}

func optionalTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
