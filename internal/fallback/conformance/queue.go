package conformance

import (
	"slices"
	"strings"
	"testing"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/verdict"
)

// queueStories are about rows that are written together.
var queueStories = []story{
	{"postpone in batches", postponeBatch},
}

func postponeBatch(t *testing.T, b Bed) {
	for i := range 5 {
		record(t, b, entry(i, i))
	}
	claims := claim(t, b, 5)
	must(t, "GiveBack", b.GiveBack(t.Context(), claims[4:]))
	delays := []fallback.Delay{
		{Claim: claims[0], Postponement: fallback.Postponement{CheckIn: time.Hour, Reason: verdict.MailboxTempRejected, Cause: verdict.CauseMailbox}},
		{Claim: claims[1], Postponement: fallback.Postponement{CheckIn: 2 * time.Hour, Reason: verdict.UpstreamTimeout, Cause: verdict.CauseUpstream,
			Trail: []verdict.Attempt{{Outcome: "one"}, {Outcome: "two"}}}},
		{Claim: claims[2], Postponement: fallback.Postponement{CheckIn: 3 * time.Hour, Reason: verdict.Unmapped, Cause: verdict.CauseUnusable}},
		{Claim: claims[4], Postponement: fallback.Postponement{CheckIn: 4 * time.Hour, Reason: verdict.Unmapped, Cause: verdict.CauseUnusable}},
	}
	began := time.Now()
	lost, err := b.PostponeBatch(t.Context(), delays)
	must(t, "PostponeBatch", err)
	if !slices.Equal(ids(lost), []string{claims[4].ReviewID}) {
		t.Errorf("PostponeBatch lost %v, want the one that was given back", ids(lost))
	}
	for i, d := range delays[:3] {
		r := review(t, b, d.Claim.ReviewID)
		if r.State != fallback.Open || r.Reason != d.Reason || r.Cause != d.Cause || len(r.Trail) != 1+len(d.Trail) {
			t.Errorf("row %d is %s, %s, %s with %d in its trail, want open, %s, %s, %d",
				i, r.State, r.Reason, r.Cause, len(r.Trail), d.Reason, d.Cause, 1+len(d.Trail))
		}
		b.near(t, "next check", r.NextCheckAt, began.Add(d.CheckIn))
	}
	// The one that was not in the batch is leased as before, the lost one is due as it was given back.
	if r := review(t, b, claims[3].ReviewID); len(r.Trail) != 1 || r.Reason != verdict.UpstreamTimeout {
		t.Errorf("a row outside of the batch is %s with %d in its trail, want it untouched", r.Reason, len(r.Trail))
	}
	if c := claimOne(t, b); c.ReviewID != claims[4].ReviewID || c.Unusable != 0 {
		t.Errorf("due is %s with %d unusable answers, want the lost one with none", c.ReviewID, c.Unusable)
	}
	b.Advance(t, 2*time.Hour+time.Minute)
	counts := map[string]fallback.Claim{}
	for _, c := range claim(t, b, 10) {
		counts[c.ReviewID] = c
	}
	if c := counts[claims[0].ReviewID]; c.Attempts != 1 || c.Snoozes != 0 || c.Claims != 1 {
		t.Errorf("after a mailbox's answer: %+v, want one attempt and one claim", c)
	}
	if c := counts[claims[1].ReviewID]; c.Snoozes != 1 || c.Attempts != 0 || c.Outage < 2*time.Hour {
		t.Errorf("after an outage: %+v, want one snooze and two hours of outage", c)
	}

	if _, err := b.PostponeBatch(t.Context(), make([]fallback.Delay, fallback.MaxBatch+1)); err == nil {
		t.Error("PostponeBatch over its bound gave no error")
	}
	if lost, err := b.PostponeBatch(t.Context(), nil); len(lost) != 0 || err != nil {
		t.Errorf("PostponeBatch of nothing = %v, %v, want nothing", lost, err)
	}
	bad := delays[:2:2]
	bad[1].Cause = "weather"
	before := b.Dump(t)
	if _, err := b.PostponeBatch(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "cause") {
		t.Errorf("PostponeBatch with an unknown cause = %v, want an error about it", err)
	}
	if b.Dump(t) != before {
		t.Error("a batch that was refused changed rows")
	}
}
