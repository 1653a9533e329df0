package backfill

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"slices"

	"validator-gw/internal/fallback"
	"validator-gw/internal/verdict"
)

// ErrUnfinished: the results are not complete yet.
var ErrUnfinished = errors.New("backfill is not done")

// Columns are the columns of the results.
var Columns = []string{"input", "normalized", "status", "decision", "reason", "suggestion"}

// result is one line of the results.
type result struct {
	Input      string  `json:"input"`
	Normalized *string `json:"normalized"`
	Status     *string `json:"status"`
	Decision   *string `json:"decision"`
	Reason     string  `json:"reason"`
	Suggestion *string `json:"suggestion"`
}

// Results are the results of one backfill, to be written once.
type Results struct {
	e *Engine
	b fallback.Backfill
}

// Results returns the results of a backfill. fallback.ErrUnknownID. ErrUnfinished: not all are there, and partial was not asked for.
func (e *Engine) Results(ctx context.Context, id string, partial bool) (*Results, error) {
	b, err := e.store.Backfill(ctx, id)
	if err != nil {
		return nil, err
	}
	if b.State != fallback.BackfillDone && (!partial || b.LoadedAt.IsZero()) {
		return nil, ErrUnfinished
	}
	return &Results{e, b}, nil
}

// Backfill is how it stood when they were asked for.
func (r *Results) Backfill() fallback.Backfill { return r.b }

// Write writes them in the order of the input: CSV with a header line, or with asJSON one object a line. What has no answer yet
// is needs_review, or has no status when it was not asked. A row without an address has a reason and no status.
func (r *Results) Write(ctx context.Context, w io.Writer, asJSON bool) error {
	out := bufio.NewWriterSize(w, 64<<10)
	table, lines := csv.NewWriter(out), json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	write := func(l result) error {
		return table.Write([]string{l.Input, text(l.Normalized), text(l.Status), text(l.Decision), l.Reason, text(l.Suggestion)})
	}
	if asJSON {
		write = func(l result) error { return lines.Encode(l) }
	} else if err := table.Write(Columns); err != nil {
		return err
	}
	for after := int64(0); ; {
		var page []fallback.BackfillResult
		err := r.e.call(ctx, func(ctx context.Context) (err error) {
			page, err = r.e.store.BackfillResults(ctx, r.b.ID, after, fallback.MaxBackfillResults)
			return err
		})
		if err != nil {
			return err
		}
		for _, one := range page {
			if err := write(r.e.result(r.b.Flow, one)); err != nil {
				return err
			}
			after = one.Line
		}
		table.Flush()
		if err := errors.Join(table.Error(), out.Flush()); err != nil || len(page) == 0 {
			return err
		}
	}
}

// Reasons of rows without a status, beside the Faults and fallback.FaultErased.
const reasonNotAsked = "not_asked"

// result is what a row is told.
func (e *Engine) result(flow string, r fallback.BackfillResult) result {
	l := result{Input: r.Input, Normalized: optional(r.Normalized), Reason: string(r.Reason)}
	a := Answer{Status: r.Status, Decision: r.Decision, Suggestion: r.Suggestion}
	switch {
	case r.Fault == fallback.FaultErased, slices.Contains(Faults, r.Fault):
		l.Reason = r.Fault
	case r.Fault != "":
		a = e.judge.Refused(flow, r.Input)
		a.Status, l.Reason = verdict.Invalid, r.Fault // what was found then
	case r.Asked:
		a.Status, l.Reason = verdict.NeedsReview, string(verdict.RevalidationRequested)
		a.Decision = e.undecided(flow, verdict.RevalidationRequested)
	case r.Status == "":
		l.Reason = reasonNotAsked
	}
	l.Status, l.Decision, l.Suggestion = optional(string(a.Status)), optional(a.Decision), optional(a.Suggestion)
	return l
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
