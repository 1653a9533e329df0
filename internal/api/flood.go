package api

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"validator-gw/internal/verdict"
)

// flood keeps the lines of routine requests within a number a second, so that a flood of requests is no flood of lines.
// Each second's first are written, the rest is counted. Safe for concurrent use.
type flood struct {
	mu      sync.Mutex
	second  int64
	written int
	leftOut int
}

// take says whether one more line may be written at now, with limit a second; 0 is no limit. leftOut is how many were not
// in an earlier second, told once.
func (f *flood) take(now time.Time, limit int) (ok bool, leftOut int) {
	second := now.Unix()
	f.mu.Lock()
	defer f.mu.Unlock()
	if second > f.second || second < f.second-1 { // a line may come a little late; a clock that was set back begins anew
		leftOut = f.leftOut
		f.second, f.written, f.leftOut = second, 0, 0
	}
	if limit > 0 && f.written >= limit {
		f.leftOut++
		return false, leftOut
	}
	f.written++
	return true, leftOut
}

// routine says whether nothing is lost with the line of a request: nobody has to act on it, it asked nothing of the upstream, and
// it left no review behind.
func (x *exchange) routine(level slog.Level) bool {
	return level <= slog.LevelInfo && (x.answer == nil || x.answer.Source != verdict.FromUpstream && x.answer.Status != verdict.NeedsReview)
}

// admit says whether the line of a request is written.
func (a *API) admit(ctx context.Context, x *exchange, level slog.Level, now time.Time) bool {
	if !x.routine(level) {
		return true
	}
	ok, leftOut := a.flood.take(now, a.config.RoutineLines())
	if leftOut > 0 {
		a.config.Log.LogAttrs(ctx, slog.LevelInfo, "routine requests were not logged", slog.Int("requests", leftOut))
	}
	if !ok {
		a.metrics.unlogged.Inc()
	}
	return ok
}
