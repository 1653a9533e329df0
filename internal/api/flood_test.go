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

// A clock that is set back silences nobody until it has caught up. A line of the second before is no new second.
func TestFloodAndTheClock(t *testing.T) {
	t.Parallel()
	var f flood
	now := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		name string
		at   time.Duration
		want bool
		left int
	}{
		{"first", 0, true, 0},
		{"over the limit", 0, false, 0},
		{"late, of the second before", -time.Millisecond, false, 0},
		{"clock set back", -time.Hour, true, 2},
		{"over the limit there", -time.Hour, false, 0},
		{"clock set right", 0, true, 1},
	} {
		if ok, left := f.take(now.Add(c.at), 1); ok != c.want || left != c.left {
			t.Errorf("%s: take = %v, %d, want %v, %d", c.name, ok, left, c.want, c.left)
		}
	}
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
