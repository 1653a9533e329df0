package api

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
)

// Of a flood of routine requests so many lines are written in a second as the settings say, and the rest is told.
func TestFloodOfLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, func(c *Config) { c.RoutineLines = func() int { return 3 } })
		refused := request{body: `{`}
		for range 10 {
			b.do(t, refused)
		}
		b.do(t, request{body: `{"email":"slow@example.com"}`}) // leaves a review
		b.do(t, request{body: `{"email":"nodb@example.com"}`}) // a warning
		b.do(t, request{body: `{"email":"ana@example.com"}`})  // the upstream's answer
		if n := len(b.log.lines(t)); n != 3+3 {
			t.Errorf("%d lines in the first second, want 3 of the flood and 3 of the others", n)
		}
		if n := testutil.ToFloat64(b.api.metrics.unlogged); n != 7 {
			t.Errorf("%v counted as unlogged, want 7", n)
		}
		time.Sleep(time.Second)
		b.do(t, refused)
		b.do(t, refused)
		lines := b.log.lines(t)[6:]
		if len(lines) != 3 || lines[0]["msg"] != "routine requests were not logged" || lines[0]["requests"] != 7. {
			t.Errorf("a second later: %v, want one line that tells of 7, and two requests", lines)
		}
	})
}

func TestRoutine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		level  slog.Level
		answer *validate.Answer
		want   bool
	}{
		{slog.LevelInfo, nil, true},
		{slog.LevelWarn, nil, false},
		{slog.LevelInfo, &validate.Answer{Status: verdict.Valid, Source: verdict.FromCache, Attempts: 1}, true},
		{slog.LevelInfo, &validate.Answer{Status: verdict.Valid, Source: verdict.FromUpstream}, false},
		{slog.LevelInfo, &validate.Answer{Status: verdict.NeedsReview, Source: verdict.FromNone}, false},
	} {
		x := &exchange{answer: c.answer}
		if got := x.routine(c.level); got != c.want {
			t.Errorf("routine(%v, %+v) = %v", c.level, c.answer, got)
		}
	}
}
