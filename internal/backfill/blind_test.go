package backfill

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"validator-gw/internal/fallback"
)

// away is a store that can't be asked for backfills for so many times.
type away struct {
	store
	times int
}

func (a *away) ClaimBackfill(context.Context, time.Duration) (fallback.Backfill, fallback.BackfillLease, bool, error) {
	if a.times--; a.times >= 0 {
		return fallback.Backfill{}, fallback.BackfillLease{}, false, errors.New("connection refused")
	}
	return fallback.Backfill{}, fallback.BackfillLease{}, false, nil
}

// A store that is away is a line once, and not one with each look.
func TestStoreAwayIsLoggedOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	a := &away{}
	e, err := New(a, lists{}, Config{Tuning: func() Tuning { return Tuning{} }, Closed: func() bool { return false }, Fed: func() {},
		NewID: func() string { return "" }, Rand: func() float64 { return 0 }, DigestKey: []byte("key"), Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for outage := range 2 {
		a.times = 5
		for range 6 {
			e.Step(t.Context())
		}
		if n := strings.Count(log.String(), "can't be looked for"); n != outage+1 {
			t.Errorf("%d lines after %d outages", n, outage+1)
		}
	}
}
