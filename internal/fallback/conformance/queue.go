package conformance

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/verdict"
)

// queueStories are about rows that are written together, and about those that are dead.
var queueStories = []story{
	{"postpone in batches", postponeBatch},
	{"backfills stop before the bound", backfillBound},
	{"dead reviews by page", deadPages},
	{"replay", replay},
	{"drop", drop},
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

func backfillBound(t *testing.T, b Bed) {
	b.SetMaxOpen(10)
	for i := range 8 {
		record(t, b, entry(i, i))
	}
	bulk := entry(20, 20)
	bulk.Priority = fallback.PriorityBackfill
	if _, err := b.Record(t.Context(), bulk); !errors.Is(err, fallback.ErrQueueFull) {
		t.Errorf("Record of a backfill at 80 %% = %v, want ErrQueueFull", err)
	}
	joined := entry(0, 0)
	joined.Priority = fallback.PriorityBackfill
	record(t, b, joined) // it opens nothing
	record(t, b, entry(8, 8))
	record(t, b, entry(9, 9))
	if _, err := b.Record(t.Context(), entry(10, 10)); !errors.Is(err, fallback.ErrQueueFull) {
		t.Errorf("Record at the bound = %v, want ErrQueueFull", err)
	}
	b.SetMaxOpen(20)
	record(t, b, bulk)
}

// bury records and kills a review, and returns it.
func bury(t *testing.T, b Bed, e fallback.Entry) fallback.Review {
	t.Helper()
	record(t, b, e)
	must(t, "Kill", b.Kill(t.Context(), claimOne(t, b), verdict.ReviewPoisoned))
	return review(t, b, e.ID)
}

func deadPages(t *testing.T, b Bed) {
	var want []string
	for i := range 5 {
		want = append(want, bury(t, b, entry(i, i)).ID)
		b.Advance(t, time.Second)
	}
	record(t, b, entry(6, 6))
	var got []string
	var page fallback.DeadPage
	for {
		list, err := b.DeadReviews(t.Context(), page, 2)
		must(t, "DeadReviews", err)
		if len(list) == 0 {
			break
		}
		for _, r := range list {
			if r.State != fallback.Dead || r.Reason != verdict.ReviewPoisoned || r.Address.IsZero() {
				t.Errorf("listed is a review that is %s, %s, with an address: %t, want dead, poisoned, with one", r.State, r.Reason, !r.Address.IsZero())
			}
			got, page = append(got, r.ID), fallback.DeadPage{EndedAt: r.EndedAt, ID: r.ID}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("pages list %v, want %v, in the order of their deaths", got, want)
	}
}

func replay(t *testing.T, b Bed) {
	ctx := t.Context()
	e := entry(1, 1)
	e.Cause = verdict.CauseUnusable
	dead := bury(t, b, e)
	b.Advance(t, 10*24*time.Hour)
	must(t, "Replay", b.Replay(ctx, dead.ID))
	r := review(t, b, dead.ID)
	if r.State != fallback.Open || r.Reason != verdict.RevalidationRequested || !r.EndedAt.IsZero() || r.Attempts != 0 || r.Unusable != 0 {
		t.Errorf("replayed is %s, %s, ended %v, %d and %d counted, want open, asked for, not ended, nothing counted",
			r.State, r.Reason, r.EndedAt, r.Attempts, r.Unusable)
	}
	if st := stats(t, b); st.Open != 1 || st.Overdue != 1 || st.Dead != 0 {
		t.Errorf("Stats = %+v, want one open and overdue, none dead", st)
	}
	c := claimOne(t, b)
	if c.ReviewID != dead.ID || c.Claims != 1 || c.Unusable != 0 || c.Address != e.Address {
		t.Errorf("Claim = %+v, want the review with its address, claimed for the first time", c)
	}
	if age := c.Now.Sub(c.RecordedAt) - c.Outage; age > time.Minute {
		t.Errorf("a replayed review is %v old, want its age begun anew", age)
	}
	if err := b.Replay(ctx, dead.ID); !errors.Is(err, fallback.ErrNotDead) {
		t.Errorf("Replay of an open review = %v, want ErrNotDead", err)
	}
	must(t, "Kill", b.Kill(ctx, c, verdict.ReviewPoisoned))
	for _, id := range []string{newID(), "x"} {
		if err := b.Replay(ctx, id); !errors.Is(err, fallback.ErrUnknownID) {
			t.Errorf("Replay of %q = %v, want ErrUnknownID", id, err)
		}
	}
	next := entry(1, 1)
	record(t, b, next)
	if err := b.Replay(ctx, dead.ID); !errors.Is(err, fallback.ErrReplaced) {
		t.Errorf("Replay beside an open review = %v, want ErrReplaced", err)
	}
	must(t, "Settle", b.Settle(ctx, claimOne(t, b), valid(), nil))
	must(t, "Replay once that has ended", b.Replay(ctx, dead.ID))
}

func drop(t *testing.T, b Bed) {
	ctx := t.Context()
	dead := bury(t, b, entry(1, 1))
	must(t, "Drop", b.Drop(ctx, dead.ID))
	r := review(t, b, dead.ID)
	if r.State != fallback.Settled || !r.Address.IsZero() || r.Verdict == nil || !r.EndedAt.Equal(dead.EndedAt) {
		t.Fatalf("dropped is %+v, want it settled, without its address, ended when it died", r)
	}
	if v := r.Verdict; v.Status != verdict.Unresolved || v.Reason != verdict.ReviewPoisoned || v.ID != dead.ID {
		t.Errorf("dropped has %+v, want unresolved for the reason of its death", v)
	}
	if st := stats(t, b); st.Dead != 0 || st.Open != 0 {
		t.Errorf("Stats = %+v, want nothing dead or open", st)
	}
	for what, err := range map[string]error{"Drop": b.Drop(ctx, dead.ID), "Replay": b.Replay(ctx, dead.ID)} {
		if !errors.Is(err, fallback.ErrNotDead) {
			t.Errorf("%s of what was dropped = %v, want ErrNotDead", what, err)
		}
	}
	if err := b.Drop(ctx, newID()); !errors.Is(err, fallback.ErrUnknownID) {
		t.Errorf("Drop of an unknown id = %v, want ErrUnknownID", err)
	}
	b.Advance(t, fallback.DefaultRetention.Ended+time.Hour)
	if n, err := b.Sweep(ctx, fallback.Retention{}); n != 1 || err != nil {
		t.Errorf("Sweep = %d, %v, want the dropped one past its retention", n, err)
	}
}
