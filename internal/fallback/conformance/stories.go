package conformance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// story is one promise, told on an empty store.
type story struct {
	name  string
	story func(t *testing.T, b Bed)
}

var stories = []story{
	{"record opens a review", recordOpens},
	{"record joins the open review", recordJoins},
	{"record moves the due time by its cause", recordMoves},
	{"record leaves a lease alone", recordLeased},
	{"record counts answers", recordCounts},
	{"record of what is counted already", recordCounted},
	{"a hundred records are one review", recordCrowd},
	{"record refuses what no row can hold", recordRefuses},
	{"record stops at the bound", queueFull},
	{"trail keeps the newest", trailBounded},
	{"strange words of the upstream are kept harmless", strangeWords},
	{"claim and settle", claimSettle},
	{"claim hands over all facts", claimFacts},
	{"a lease excludes", leaseExcludes},
	{"a lost lease writes nothing", leaseLost},
	{"a heartbeat keeps a lease", heartbeat},
	{"concurrent claims share nothing", claimsDisjoint},
	{"crash loop is counted", crashLoop},
	{"give back", giveBack},
	{"postpone by cause", postpone},
	{"kill", kill},
	{"settle open", settleOpen},
	{"settle in batches", settleBatch},
	{"settle wants a final verdict", settleFinal},
	{"claim keeps its limit", claimLimit},
	{"claim goes round the domains", claimWraps},
	{"claim is fair", claimFair},
	{"claim passes over what is not due", claimNotDue},
	{"claim takes the higher priority first", claimPriority},
	{"claim refuses nonsense", claimRefuses},
	{"an unreadable address blocks nothing", unreadable},
	{"hasten spreads", hasten},
	{"hasten keeps its limit", hastenLimit},
	{"verdicts by id and fingerprint", verdicts},
	{"verdicts of one batch", verdictBatch},
	{"lookup knows nothing", lookupNothing},
	{"unknown ids", unknownIDs},
	{"sweep", sweep},
	{"stats", counts},
	{"no address in plain", noPlainAddress},
	{"reopen", reopen},
	{"everything at once", everything},
}

func recordOpens(t *testing.T, b Bed) {
	e := entry(1, 1)
	e.CheckIn = time.Minute
	now := time.Now()
	got := record(t, b, e)
	if got.ID != e.ID || got.State != fallback.Open || got.Fingerprint != e.Fingerprint || got.Address != e.Address ||
		got.Reason != e.Reason || got.Cause != e.Cause || got.Verdict != nil || !got.EndedAt.IsZero() {
		t.Errorf("Record = %+v, want an open review of the entry", got)
	}
	if diff := cmp.Diff(e.Trail, got.Trail); diff != "" {
		t.Errorf("Record's trail differs (-want +got):\n%s", diff)
	}
	b.near(t, "RecordedAt", got.RecordedAt, now)
	b.near(t, "UpdatedAt", got.UpdatedAt, now)
	b.near(t, "NextCheckAt", got.NextCheckAt, now.Add(time.Minute))

	if diff := cmp.Diff(got, review(t, b, e.ID), cmp.AllowUnexported(normalize.Address{})); diff != "" {
		t.Errorf("Review differs from what Record returned (-record +review):\n%s", diff)
	}
	found, err := b.Lookup(t.Context(), e.Fingerprint)
	must(t, "Lookup", err)
	if found.Verdict != nil || found.Review == nil || found.Review.ID != e.ID {
		t.Errorf("Lookup = %+v, want the open review and no verdict", found)
	}
	if got := claim(t, b, 10); len(got) != 0 {
		t.Errorf("Claim before the due time gave %d rows, want 0", len(got))
	}
	b.Advance(t, time.Minute)
	if c := claimOne(t, b); c.ReviewID != e.ID {
		t.Errorf("Claim gave %s, want %s", c.ReviewID, e.ID)
	}
}

func recordJoins(t *testing.T, b Bed) {
	first := entry(1, 1)
	first.Priority = fallback.PriorityBackfill
	first.Watcher = fallback.Watcher{Client: "crm", Flow: "import", Callback: "crm"}
	record(t, b, first)
	second := entry(1, 1)
	second.Reason = verdict.CircuitOpen
	second.Trail[0].Outcome = "circuit_open"
	got := record(t, b, second)
	if got.ID != first.ID {
		t.Errorf("Record gave id %s, want that of the open review, %s", got.ID, first.ID)
	}
	if got.Reason != second.Reason {
		t.Errorf("Record's reason = %s, want the newer, %s", got.Reason, second.Reason)
	}
	if want := append(slices.Clone(first.Trail), second.Trail...); !cmp.Equal(got.Trail, want) {
		t.Errorf("Record's trail = %v, want both entries' %v", got.Trail, want)
	}
	record(t, b, second) // the same watcher again
	third := entry(1, 1)
	third.Priority = fallback.PriorityBackground
	third.Watcher.Callback = "forms"
	record(t, b, third)

	fourth := fallback.Watcher{Client: "web", Flow: "high_risk"}
	for range 2 {
		must(t, "Watch", b.Watch(t.Context(), first.ID, fourth))
	}
	must(t, "Watch of no review", b.Watch(t.Context(), "01989f6e-0000-7000-8000-000000000001", fourth))

	watchers, err := b.Watchers(t.Context(), first.ID)
	must(t, "Watchers", err)
	slices.SortFunc(watchers, func(a, b fallback.Watcher) int { return strings.Compare(a.Client+a.Callback, b.Client+b.Callback) })
	if want := []fallback.Watcher{first.Watcher, second.Watcher, third.Watcher, fourth}; !cmp.Equal(watchers, want) {
		t.Errorf("Watchers = %v, want each once: %v", watchers, want)
	}
	if c := claimOne(t, b); c.Priority != fallback.PriorityInteractive {
		t.Errorf("claimed priority = %d, want the highest of the watchers'", c.Priority)
	}
}

func recordMoves(t *testing.T, b Bed) {
	for i, c := range []struct {
		name      string
		was       time.Duration
		cause     verdict.Cause
		firm      bool
		in        time.Duration
		wantDueIn time.Duration
	}{
		{"upstream never puts off", time.Minute, verdict.CauseUpstream, false, time.Hour, time.Minute},
		{"upstream brings forward", time.Hour, verdict.CauseUpstream, false, time.Minute, time.Minute},
		{"upstream that names the time puts off", time.Minute, verdict.CauseUpstream, true, time.Hour, time.Hour},
		{"upstream that names the time brings forward", time.Hour, verdict.CauseUpstream, true, time.Minute, time.Minute},
		{"mailbox puts off", time.Minute, verdict.CauseMailbox, false, time.Hour, time.Hour},
		{"mailbox brings forward", time.Hour, verdict.CauseMailbox, false, time.Minute, time.Minute},
		{"unusable puts off", time.Minute, verdict.CauseUnusable, false, time.Hour, time.Hour},
	} {
		e := entry(i, i)
		e.CheckIn = c.was
		record(t, b, e)
		e.Cause, e.Firm, e.CheckIn = c.cause, c.firm, c.in
		now := time.Now()
		b.near(t, c.name+": NextCheckAt", record(t, b, e).NextCheckAt, now.Add(c.wantDueIn))
	}
}

func recordLeased(t *testing.T, b Bed) {
	e := entry(1, 1)
	record(t, b, e)
	c := claimOne(t, b)
	leased := review(t, b, e.ID).NextCheckAt

	again := entry(1, 1)
	if got := record(t, b, again).NextCheckAt; !got.Equal(leased) {
		t.Errorf("a record due at once moved the lease's end by %v", got.Sub(leased))
	}
	again.Cause, again.CheckIn = verdict.CauseMailbox, time.Second
	if got := record(t, b, again).NextCheckAt; !got.Equal(leased) {
		t.Errorf("a record due before the lease's end moved it by %v", got.Sub(leased))
	}
	if got := claim(t, b, 10); len(got) != 0 {
		t.Fatalf("Claim gave %d rows while the lease holds, want 0", len(got))
	}
	must(t, "Heartbeat after records", b.Heartbeat(t.Context(), c.ReviewID, c.Token, lease))

	// Once the lease ran out, a new due time must not look like one.
	b.Advance(t, lease)
	again.CheckIn = time.Hour
	record(t, b, again)
	if st := stats(t, b); st.Leased != 0 || st.Scheduled != 1 {
		t.Errorf("Stats = %+v, want the row scheduled and not leased", st)
	}
	if err := b.Settle(t.Context(), c, valid(), nil); !errors.Is(err, fallback.ErrLeaseLost) {
		t.Errorf("Settle under the lease that ran out = %v, want ErrLeaseLost", err)
	}
}

func recordCounts(t *testing.T, b Bed) {
	e := entry(1, 1)
	e.Cause = verdict.CauseMailbox
	record(t, b, e)
	e.Cause = verdict.CauseUnusable
	record(t, b, e)
	e.Cause = verdict.CauseUpstream
	record(t, b, e)
	c := claimOne(t, b)
	if c.Attempts != 1 || c.Unusable != 1 || c.Snoozes != 0 {
		t.Errorf("claim counts %d attempts, %d unusable, %d snoozes, want 1, 1, 0", c.Attempts, c.Unusable, c.Snoozes)
	}
}

func recordCounted(t *testing.T, b Bed) {
	again := func() fallback.Entry {
		e := entry(1, 1)
		e.Counted, e.Firm, e.CheckIn = true, true, time.Hour
		e.Reason, e.Cause = verdict.MailboxTempRejected, verdict.CauseMailbox
		e.Watcher.Client = "another"
		return e
	}
	first := entry(1, 1)
	first.Priority, first.CheckIn = fallback.PriorityBackfill, time.Minute
	was := record(t, b, first)
	b.Advance(t, time.Second)
	was = review(t, b, was.ID)
	if diff := cmp.Diff(was, record(t, b, again()), cmp.AllowUnexported(normalize.Address{})); diff != "" {
		t.Errorf("Record of what is counted changed the open review (-before +after):\n%s", diff)
	}
	watchers, err := b.Watchers(t.Context(), first.ID)
	must(t, "Watchers", err)
	if len(watchers) != 2 {
		t.Errorf("%d watchers, want both", len(watchers))
	}
	b.Advance(t, time.Minute)
	c := claimOne(t, b)
	if c.Priority != fallback.PriorityInteractive || c.Attempts != 0 || c.Cause != verdict.CauseUpstream {
		t.Errorf("claim = %+v, want the higher priority and nothing counted", c)
	}
	// The worker that holds the row goes on.
	record(t, b, again())
	must(t, "Settle", b.Settle(t.Context(), c, valid(), nil))
	// With nothing open it is a review like any other.
	if e := again(); record(t, b, e).ID != e.ID || claimAttempts(t, b, time.Hour) != 1 {
		t.Error("a new review of a counted entry is not the entry's own, with its answer counted")
	}
}

// claimAttempts lets time pass and returns the attempts of the only due row.
func claimAttempts(t *testing.T, b Bed, d time.Duration) int {
	b.Advance(t, d)
	return claimOne(t, b).Attempts
}

func recordCrowd(t *testing.T, b Bed) {
	const crowd = 100
	var wg sync.WaitGroup
	got := make([]string, crowd)
	errs := make([]error, crowd)
	for i := range crowd {
		wg.Go(func() {
			r, err := b.Record(t.Context(), entry(1, 1))
			got[i], errs[i] = r.ID, err
		})
	}
	wg.Wait()
	for i := range crowd {
		if errs[i] != nil {
			t.Fatalf("Record = %v, want no error", errs[i])
		}
		if got[i] != got[0] {
			t.Fatalf("two ids for one fingerprint: %s and %s", got[i], got[0])
		}
	}
	if st := stats(t, b); st.Open != 1 {
		t.Errorf("Stats.Open = %d, want 1", st.Open)
	}
	watchers, err := b.Watchers(t.Context(), got[0])
	must(t, "Watchers", err)
	if len(watchers) != 1 {
		t.Errorf("%d watchers, want 1", len(watchers))
	}
}

func recordRefuses(t *testing.T, b Bed) {
	for name, spoil := range map[string]func(e *fallback.Entry){
		"no id":            func(e *fallback.Entry) { e.ID = "" },
		"malformed id":     func(e *fallback.Entry) { e.ID = "0197-no-uuid" },
		"no address":       func(e *fallback.Entry) { e.Address = normalize.Address{} },
		"unknown cause":    func(e *fallback.Entry) { e.Cause = "weather" },
		"unknown priority": func(e *fallback.Entry) { e.Priority = 7 },
		"negative time":    func(e *fallback.Entry) { e.CheckIn = -1 },
		"negative domain":  func(e *fallback.Entry) { e.DomainKey = -1 },
	} {
		e := entry(1, 1)
		spoil(&e)
		if _, err := b.Record(t.Context(), e); err == nil {
			t.Errorf("%s: Record gave no error", name)
		}
	}
	if st := stats(t, b); st.Open != 0 {
		t.Errorf("Stats.Open = %d, want 0", st.Open)
	}
}

func queueFull(t *testing.T, b Bed) {
	b.SetMaxOpen(3)
	first := record(t, b, entry(0, 0))
	record(t, b, entry(1, 1))
	record(t, b, entry(2, 2))
	if _, err := b.Record(t.Context(), entry(3, 3)); !errors.Is(err, fallback.ErrQueueFull) {
		t.Fatalf("Record beyond the bound = %v, want ErrQueueFull", err)
	}
	if got := record(t, b, entry(0, 0)).ID; got != first.ID {
		t.Errorf("Record of an open review at the bound gave %s, want %s", got, first.ID)
	}
	if _, settled, err := b.SettleOpen(t.Context(), first.Fingerprint, valid(), nil); err != nil || !settled {
		t.Fatalf("SettleOpen = %t, %v, want true, no error", settled, err)
	}
	record(t, b, entry(3, 3))
	b.SetMaxOpen(4)
	record(t, b, entry(4, 4))
}

func trailBounded(t *testing.T, b Bed) {
	attempt := func(i int) verdict.Attempt {
		return verdict.Attempt{At: time.Unix(int64(i), 0).UTC(), Outcome: "timeout", LatencyMS: int64(i)}
	}
	n := 0
	more := func(k int) (trail []verdict.Attempt) {
		for range k {
			trail = append(trail, attempt(n))
			n++
		}
		return trail
	}
	check := func(when string, got []verdict.Attempt) {
		t.Helper()
		if len(got) != fallback.MaxTrail || got[0] != attempt(n-fallback.MaxTrail) || got[len(got)-1] != attempt(n-1) {
			t.Errorf("%s: trail has %d entries from %v, want the newest %d", when, len(got), got[0].LatencyMS, fallback.MaxTrail)
		}
	}
	e := entry(1, 1)
	e.Trail = more(fallback.MaxTrail + 5)
	check("first record", record(t, b, e).Trail)
	e.Trail = more(3)
	check("second record", record(t, b, e).Trail)
	must(t, "Postpone", b.Postpone(t.Context(), claimOne(t, b), fallback.Postponement{
		Reason: verdict.UpstreamError, Cause: verdict.CauseUpstream, Trail: more(2)}))
	check("postpone", review(t, b, e.ID).Trail)
	must(t, "Settle", b.Settle(t.Context(), claimOne(t, b), valid(), more(4)))
	check("settle", review(t, b, e.ID).Trail)
}

func strangeWords(t *testing.T, b Bed) {
	e := entry(1, 1)
	e.Trail[0].UpstreamRequestID = "a\x00b\xff\nc\u2028" + string(make([]byte, 500)) + "\\u0000"
	if got, want := record(t, b, e).Trail[0].UpstreamRequestID, "abc\u2028\\u0000"; got != want {
		t.Errorf("request id = %q, want %q", got, want)
	}
	v := valid()
	v.Provider, v.Suggestion.Domain = "p\x00", "d\x00.example"
	must(t, "Settle", b.Settle(t.Context(), claimOne(t, b), v, nil))
}

func claimSettle(t *testing.T, b Bed) {
	e := entry(1, 1)
	record(t, b, e)
	c := claimOne(t, b)
	v := valid()
	last := []verdict.Attempt{{At: time.Unix(1_700_000_100, 0).UTC(), Outcome: "ok", HTTPStatus: 200, LatencyMS: 80, UpstreamRequestID: "r1"}}
	now := time.Now()
	must(t, "Settle", b.Settle(t.Context(), c, v, last))

	r := review(t, b, e.ID)
	if r.State != fallback.Settled || !r.Address.IsZero() || !r.NextCheckAt.IsZero() {
		t.Errorf("after Settle: state %s, address kept %t, next check %v; want settled, false, zero",
			r.State, !r.Address.IsZero(), r.NextCheckAt)
	}
	if r.Verdict == nil || !cmp.Equal(*r.Verdict, v) {
		t.Errorf("after Settle: verdict differs: %s", cmp.Diff(&v, r.Verdict))
	}
	if want := append(slices.Clone(e.Trail), last...); !cmp.Equal(r.Trail, want) {
		t.Errorf("after Settle: trail = %v, want %v", r.Trail, want)
	}
	b.near(t, "EndedAt", r.EndedAt, now)

	found, err := b.Lookup(t.Context(), e.Fingerprint)
	must(t, "Lookup", err)
	if found.Review != nil || found.Verdict == nil || !cmp.Equal(*found.Verdict, v) {
		t.Errorf("Lookup after Settle = %+v, want the verdict and no open review", found)
	}
	stored, err := b.Verdict(t.Context(), v.ID)
	must(t, "Verdict", err)
	if want := (fallback.Stored{Fingerprint: e.Fingerprint, Verdict: v}); !cmp.Equal(stored, want) {
		t.Errorf("Verdict = %+v, want %+v", stored, want)
	}
	if st := stats(t, b); st.Open != 0 {
		t.Errorf("Stats.Open = %d, want 0", st.Open)
	}
	if err := b.Settle(t.Context(), c, v, nil); !errors.Is(err, fallback.ErrLeaseLost) {
		t.Errorf("second Settle = %v, want ErrLeaseLost", err)
	}

	// The address can be reviewed anew.
	e2 := entry(1, 1)
	if got := record(t, b, e2).ID; got != e2.ID {
		t.Errorf("Record after Settle gave %s, want a new review %s", got, e2.ID)
	}
	// A verdict without an id and without a hard expiry: an unresolved review, say.
	end := verdict.Verdict{Status: verdict.Unresolved, Reason: verdict.ReviewExpired, CheckedAt: v.CheckedAt}
	must(t, "Settle", b.Settle(t.Context(), claimOne(t, b), end, nil))
	if got := review(t, b, e2.ID).Verdict; got == nil || got.ID != e2.ID || got.Status != verdict.Unresolved {
		t.Errorf("verdict of the second review = %+v, want unresolved with the review's id", got)
	}
	if _, err := b.Verdict(t.Context(), e2.ID); !errors.Is(err, fallback.ErrUnknownID) {
		t.Errorf("Verdict without hard expiry = %v, want ErrUnknownID", err)
	}
}

func claimFacts(t *testing.T, b Bed) {
	e := entry(7, 42)
	e.CheckIn = time.Minute
	e.Priority = fallback.PriorityBackground
	record(t, b, e)
	b.Advance(t, 90*time.Second)
	c := claimOne(t, b)
	if c.ReviewID != e.ID || c.Fingerprint != e.Fingerprint || c.DomainKey != 42 || c.Address != e.Address ||
		c.Reason != e.Reason || c.Cause != e.Cause || c.Priority != e.Priority || c.Claims != 1 || c.Token == 0 {
		t.Errorf("Claim = %+v, want the entry's facts, a token and one claim", c)
	}
	if age := c.Now.Sub(c.RecordedAt); age < 90*time.Second || age > 90*time.Second+b.Slack {
		t.Errorf("Now - RecordedAt = %v, want 90s", age)
	}
	// A minute until it was due and half a minute overdue, all on the upstream's side.
	if c.Outage < 90*time.Second || c.Outage > 90*time.Second+b.Slack {
		t.Errorf("Outage = %v, want 90s", c.Outage)
	}
	b.near(t, "lease's end", review(t, b, e.ID).NextCheckAt, time.Now().Add(lease))
}

func leaseExcludes(t *testing.T, b Bed) {
	e := entry(1, 1)
	record(t, b, e)
	first := claimOne(t, b)
	b.Advance(t, lease-10*time.Second)
	if got := claim(t, b, 10); len(got) != 0 {
		t.Fatalf("Claim before the lease ended gave %d rows, want 0", len(got))
	}
	b.Advance(t, 10*time.Second)
	second := claimOne(t, b)
	if second.ReviewID != e.ID || second.Token == first.Token {
		t.Errorf("second claim = %s, token %d, want the same row under another token than %d",
			second.ReviewID, second.Token, first.Token)
	}
	if second.Claims != 2 {
		t.Errorf("Claims = %d, want 2", second.Claims)
	}
	if err := b.Settle(t.Context(), first, valid(), nil); !errors.Is(err, fallback.ErrLeaseLost) {
		t.Errorf("Settle by the first = %v, want ErrLeaseLost", err)
	}
	must(t, "Settle by the second", b.Settle(t.Context(), second, valid(), nil))
}

func leaseLost(t *testing.T, b Bed) {
	e := entry(1, 1)
	record(t, b, e)
	stale := claimOne(t, b)
	b.Advance(t, lease)
	holder := claimOne(t, b)
	before := b.Dump(t)
	for _, wrong := range []fallback.Claim{
		stale, // taken over
		{ReviewID: e.ID, Fingerprint: e.Fingerprint}, // no lease at all
		{ReviewID: newID(), Token: holder.Token},     // another row
		{ReviewID: e.ID, Token: holder.Token + 1000}, // a token never given
	} {
		ctx := t.Context()
		_, lostErr := b.SettleBatch(ctx, []fallback.Settlement{{Claim: wrong, Verdict: valid()}})
		must(t, "SettleBatch", lostErr)
		for name, err := range map[string]error{
			"Settle":    b.Settle(ctx, wrong, valid(), []verdict.Attempt{{Outcome: "ok"}}),
			"Postpone":  b.Postpone(ctx, wrong, fallback.Postponement{CheckIn: time.Hour, Cause: verdict.CauseMailbox}),
			"Heartbeat": b.Heartbeat(ctx, wrong.ReviewID, wrong.Token, time.Hour),
			"Kill":      b.Kill(ctx, wrong, verdict.Unmapped),
			"GiveBack":  b.GiveBack(ctx, []fallback.Claim{wrong}),
		} {
			if !errors.Is(err, fallback.ErrLeaseLost) {
				t.Errorf("%s without the lease = %v, want ErrLeaseLost", name, err)
			}
		}
	}
	if after := b.Dump(t); after != before {
		t.Errorf("writes without the lease changed rows:\nbefore %s\nafter  %s", before, after)
	}
	must(t, "Settle by the holder", b.Settle(t.Context(), holder, valid(), nil))
}

func heartbeat(t *testing.T, b Bed) {
	record(t, b, entry(1, 1))
	c := claimOne(t, b)
	for range 3 {
		b.Advance(t, 20*time.Second)
		must(t, "Heartbeat", b.Heartbeat(t.Context(), c.ReviewID, c.Token, lease))
	}
	b.Advance(t, 20*time.Second)
	if got := claim(t, b, 10); len(got) != 0 {
		t.Fatalf("Claim gave %d rows although the lease was kept, want 0", len(got))
	}
	must(t, "Settle", b.Settle(t.Context(), c, valid(), nil))
}

func claimsDisjoint(t *testing.T, b Bed) {
	const rows, workers = 120, 6
	for i := range rows {
		record(t, b, entry(i, i%7))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]int{}
	for range workers {
		wg.Go(func() {
			var cursor int64
			for {
				res, err := b.Claim(t.Context(), fallback.ClaimRequest{Max: 9, Lease: time.Hour, Cursor: cursor})
				if err != nil {
					t.Errorf("Claim = %v, want no error", err)
					return
				}
				if len(res.Claims) == 0 {
					return
				}
				cursor = res.Cursor
				mu.Lock()
				for _, c := range res.Claims {
					seen[c.ReviewID]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s was claimed %d times within its lease, want once", id, n)
		}
	}
	// A row that another was just looking at is skipped and met again.
	if rest := claim(t, b, fallback.MaxBatch); len(seen)+len(rest) != rows {
		t.Errorf("%d rows were claimed, %d left over, want %d in all", len(seen), len(rest), rows)
	}
}

func crashLoop(t *testing.T, b Bed) {
	record(t, b, entry(1, 1))
	for want := 1; want <= 5; want++ {
		if c := claimOne(t, b); c.Claims != want {
			t.Fatalf("Claims = %d, want %d", c.Claims, want)
		}
		b.Advance(t, lease)
	}
	c := claimOne(t, b)
	must(t, "Postpone", b.Postpone(t.Context(), c, fallback.Postponement{Reason: c.Reason, Cause: c.Cause}))
	if c := claimOne(t, b); c.Claims != 1 {
		t.Errorf("Claims after an orderly end = %d, want 1", c.Claims)
	}
}

func giveBack(t *testing.T, b Bed) {
	record(t, b, entry(1, 1))
	record(t, b, entry(2, 2))
	claims := claim(t, b, 2)
	must(t, "GiveBack", b.GiveBack(t.Context(), claims))
	must(t, "GiveBack of nothing", b.GiveBack(t.Context(), nil))
	again := claim(t, b, 2)
	if !slices.Equal(ids(again), ids(claims)) {
		t.Fatalf("Claim after GiveBack = %v, want %v at once", ids(again), ids(claims))
	}
	for _, c := range again {
		if c.Claims != 1 {
			t.Errorf("Claims = %d, want 1: what was given back does not count", c.Claims)
		}
	}
	must(t, "Settle", b.Settle(t.Context(), again[0], valid(), nil))
	if err := b.GiveBack(t.Context(), again); !errors.Is(err, fallback.ErrLeaseLost) {
		t.Errorf("GiveBack of one that is settled = %v, want ErrLeaseLost", err)
	}
	if got := claimOne(t, b); got.ReviewID != again[1].ReviewID {
		t.Errorf("Claim = %s, want the other, which was given back all the same", got.ReviewID)
	}
}

func postpone(t *testing.T, b Bed) {
	e := entry(1, 1)
	record(t, b, e)
	c := claimOne(t, b)
	base := c.Outage
	type counts struct{ Attempts, Snoozes, Unusable, Claims int }
	var outage time.Duration
	for i, p := range []struct {
		cause  verdict.Cause
		reason verdict.Reason
		in     time.Duration
		want   counts
	}{
		{verdict.CauseUpstream, verdict.UpstreamThrottled, 30 * time.Second, counts{0, 1, 0, 1}},
		{verdict.CauseUpstream, verdict.CircuitOpen, 2 * time.Minute, counts{0, 2, 0, 1}},
		{verdict.CauseMailbox, verdict.MailboxTempRejected, 10 * time.Minute, counts{1, 0, 0, 1}},
		{verdict.CauseUpstream, verdict.UpstreamError, 30 * time.Second, counts{1, 1, 0, 1}},
		{verdict.CauseUnusable, verdict.Unmapped, time.Minute, counts{1, 0, 1, 1}},
		{verdict.CauseMailbox, verdict.MailboxFull, 6 * time.Hour, counts{2, 0, 1, 1}},
	} {
		now := time.Now()
		at := verdict.Attempt{At: time.Unix(int64(i), 0).UTC(), Outcome: "x"}
		must(t, "Postpone", b.Postpone(t.Context(), c, fallback.Postponement{
			CheckIn: p.in, Reason: p.reason, Cause: p.cause, Trail: []verdict.Attempt{at}}))
		r := review(t, b, e.ID)
		if r.State != fallback.Open || r.Reason != p.reason || r.Cause != p.cause || r.Address != e.Address {
			t.Errorf("step %d: review = %+v, want open with the postponement's reason and cause", i, r)
		}
		if len(r.Trail) != len(e.Trail)+i+1 || r.Trail[len(r.Trail)-1] != at {
			t.Errorf("step %d: trail = %v, want the new entry at its end", i, r.Trail)
		}
		b.near(t, "NextCheckAt", r.NextCheckAt, now.Add(p.in))
		b.near(t, "UpdatedAt", r.UpdatedAt, now)
		if err := b.Postpone(t.Context(), c, fallback.Postponement{Cause: p.cause}); !errors.Is(err, fallback.ErrLeaseLost) {
			t.Errorf("step %d: second Postpone = %v, want ErrLeaseLost", i, err)
		}
		b.Advance(t, p.in)
		c = claimOne(t, b)
		if got := (counts{c.Attempts, c.Snoozes, c.Unusable, c.Claims}); got != p.want {
			t.Errorf("step %d: counts = %+v, want %+v", i, got, p.want)
		}
		if p.cause == verdict.CauseUpstream {
			outage += p.in
		}
		if d := c.Outage - base - outage; d < 0 || d > b.Slack {
			t.Errorf("step %d: outage = %v, want %v", i, c.Outage-base, outage)
		}
	}
	if err := b.Postpone(t.Context(), c, fallback.Postponement{Cause: "weather"}); err == nil {
		t.Error("Postpone with an unknown cause gave no error")
	}
}

func kill(t *testing.T, b Bed) {
	e := entry(1, 1)
	record(t, b, e)
	now := time.Now()
	must(t, "Kill", b.Kill(t.Context(), claimOne(t, b), verdict.Contradictory))
	r := review(t, b, e.ID)
	if r.State != fallback.Dead || r.Reason != verdict.Contradictory || r.Address != e.Address || r.Verdict != nil ||
		!r.NextCheckAt.IsZero() {
		t.Errorf("after Kill: %+v, want dead with the reason and its address", r)
	}
	b.near(t, "EndedAt", r.EndedAt, now)
	b.Advance(t, 365*24*time.Hour)
	if got := claim(t, b, 10); len(got) != 0 {
		t.Errorf("Claim gave %d dead rows, want 0", len(got))
	}
	if st := stats(t, b); st.Dead != 1 || st.Open != 0 {
		t.Errorf("Stats = %+v, want 1 dead and none open", st)
	}
	e2 := entry(1, 1)
	if got := record(t, b, e2).ID; got != e2.ID {
		t.Errorf("Record beside a dead review gave %s, want a new one %s", got, e2.ID)
	}
}

func settleOpen(t *testing.T, b Bed) {
	e := entry(1, 1)
	v := valid()
	if id, settled, err := b.SettleOpen(t.Context(), e.Fingerprint, v, nil); id != "" || settled || err != nil {
		t.Fatalf("SettleOpen of nothing = %q, %t, %v, want none", id, settled, err)
	}
	if _, err := b.Verdict(t.Context(), v.ID); !errors.Is(err, fallback.ErrUnknownID) {
		t.Errorf("Verdict after SettleOpen of nothing = %v, want ErrUnknownID", err)
	}
	record(t, b, e)
	held := claimOne(t, b)
	late := []verdict.Attempt{{At: time.Unix(1_700_000_200, 0).UTC(), Outcome: "late"}}
	id, settled, err := b.SettleOpen(t.Context(), e.Fingerprint, v, late)
	if id != e.ID || !settled || err != nil {
		t.Fatalf("SettleOpen = %q, %t, %v, want %q, true, none", id, settled, err, e.ID)
	}
	r := review(t, b, e.ID)
	if r.State != fallback.Settled || r.Verdict == nil || !cmp.Equal(*r.Verdict, v) || !r.Address.IsZero() ||
		len(r.Trail) != 2 || r.Trail[1] != late[0] {
		t.Errorf("after SettleOpen: %+v, want settled, address erased, trail longer", r)
	}
	if stored, err := b.Verdict(t.Context(), v.ID); err != nil || stored.Fingerprint != e.Fingerprint {
		t.Errorf("Verdict = %v, %v, want the stored one", stored, err)
	}
	if err := b.Settle(t.Context(), held, valid(), nil); !errors.Is(err, fallback.ErrLeaseLost) {
		t.Errorf("Settle by the worker that held it = %v, want ErrLeaseLost", err)
	}
	if id, settled, err := b.SettleOpen(t.Context(), e.Fingerprint, v, nil); id != "" || settled || err != nil {
		t.Errorf("second SettleOpen = %q, %t, %v, want none", id, settled, err)
	}
	if st := stats(t, b); st.Open != 0 {
		t.Errorf("Stats.Open = %d, want 0", st.Open)
	}
}

func settleBatch(t *testing.T, b Bed) {
	for i := range 4 {
		record(t, b, entry(i, i))
	}
	claims := claim(t, b, 4)
	must(t, "Settle", b.Settle(t.Context(), claims[2], valid(), nil))
	var batch []fallback.Settlement
	for _, c := range claims {
		batch = append(batch, fallback.Settlement{Claim: c, Verdict: valid()})
	}
	lost, err := b.SettleBatch(t.Context(), batch)
	must(t, "SettleBatch", err)
	if !slices.Equal(ids(lost), []string{claims[2].ReviewID}) {
		t.Errorf("SettleBatch lost %v, want the one that was settled before", ids(lost))
	}
	for i, c := range claims {
		r := review(t, b, c.ReviewID)
		if r.State != fallback.Settled {
			t.Errorf("review %d is %s, want settled", i, r.State)
		}
		if i != 2 && r.Verdict.ID != batch[i].Verdict.ID {
			t.Errorf("review %d has verdict %s, want its own %s", i, r.Verdict.ID, batch[i].Verdict.ID)
		}
	}
	if _, err := b.SettleBatch(t.Context(), make([]fallback.Settlement, fallback.MaxBatch+1)); err == nil {
		t.Error("SettleBatch over its bound gave no error")
	}
	lost, err = b.SettleBatch(t.Context(), nil)
	if len(lost) != 0 || err != nil {
		t.Errorf("SettleBatch of nothing = %v, %v, want nothing", lost, err)
	}
}

func settleFinal(t *testing.T, b Bed) {
	e := entry(1, 1)
	record(t, b, e)
	c := claimOne(t, b)
	pending := valid()
	pending.Status = verdict.NeedsReview
	if err := b.Settle(t.Context(), c, pending, nil); err == nil || errors.Is(err, fallback.ErrLeaseLost) {
		t.Errorf("Settle with needs_review = %v, want an error about the verdict", err)
	}
	if _, _, err := b.SettleOpen(t.Context(), e.Fingerprint, pending, nil); err == nil {
		t.Error("SettleOpen with needs_review gave no error")
	}
	if err := b.PutVerdicts(t.Context(), []fallback.Stored{{Fingerprint: e.Fingerprint, Verdict: pending}}); err == nil {
		t.Error("PutVerdicts with needs_review gave no error")
	}
	if r := review(t, b, e.ID); r.State != fallback.Open {
		t.Errorf("review is %s, want open", r.State)
	}
}

func claimLimit(t *testing.T, b Bed) {
	for i := range 70 {
		record(t, b, entry(i, i%3))
	}
	for _, most := range []int{1, 7, 500} {
		want := min(most, fallback.MaxBatch)
		got := claim(t, b, most)
		if len(got) != want {
			t.Errorf("Claim of at most %d gave %d rows, want %d", most, len(got), want)
		}
		if n := len(slices.Compact(ids(got))); n != len(got) {
			t.Errorf("Claim gave %d rows, %d of them different", len(got), n)
		}
	}
	if st := stats(t, b); st.Leased != 1+7+fallback.MaxBatch {
		t.Errorf("Stats.Leased = %d, want %d: no more than was handed out", st.Leased, 1+7+fallback.MaxBatch)
	}
	if got := claim(t, b, 50); len(got) != 70-1-7-fallback.MaxBatch {
		t.Errorf("last Claim gave %d rows, want the %d left", len(got), 70-1-7-fallback.MaxBatch)
	}
}

func claimWraps(t *testing.T, b Bed) {
	const domains = 5 // keys 0 to 4
	for i := range 4 * domains {
		record(t, b, entry(i, i%domains))
	}
	var cursor int64
	var order []int64
	for range domains * 2 {
		res, err := b.Claim(t.Context(), fallback.ClaimRequest{Max: 1, Lease: time.Hour, Cursor: cursor})
		must(t, "Claim", err)
		if len(res.Claims) != 1 {
			t.Fatalf("Claim gave %d rows, want 1", len(res.Claims))
		}
		if res.Cursor != res.Claims[0].DomainKey {
			t.Errorf("cursor = %d after a row of domain %d, want that", res.Cursor, res.Claims[0].DomainKey)
		}
		order, cursor = append(order, res.Claims[0].DomainKey), res.Cursor
	}
	if want := []int64{1, 2, 3, 4, 0, 1, 2, 3, 4, 0}; !slices.Equal(order, want) {
		t.Errorf("domains were claimed in the order %v, want %v", order, want)
	}
	// Two a domain, going round from the cursor: 1, 2, 3, 4, 0.
	res, err := b.Claim(t.Context(), fallback.ClaimRequest{Max: 6, Lease: time.Hour, Cursor: 3})
	must(t, "Claim", err)
	got := map[int64]int{}
	for _, c := range res.Claims {
		got[c.DomainKey]++
	}
	if want := map[int64]int{4: 2, 0: 2, 1: 2}; !cmp.Equal(got, want) {
		t.Errorf("Claim from cursor 3 took %v, want %v", got, want)
	}
	if res.Cursor != 1 {
		t.Errorf("cursor = %d, want 1", res.Cursor)
	}
	// Nothing is due any more but 4 rows; the walk ends where it began.
	res, err = b.Claim(t.Context(), fallback.ClaimRequest{Max: 50, Lease: time.Hour, Cursor: 1})
	must(t, "Claim", err)
	if len(res.Claims) != 4 || res.Cursor != 1 {
		t.Errorf("Claim gave %d rows and cursor %d, want 4 and 1", len(res.Claims), res.Cursor)
	}
}

func claimFair(t *testing.T, b Bed) {
	// 90 % of the rows are one domain's, and were first.
	const rows, others = 400, 40
	for i := range rows {
		domain := 1000
		if i >= rows-others {
			domain = i
		}
		record(t, b, entry(i, domain))
	}
	var cursor int64
	claimed, seen := 0, 0
	for seen < others {
		res, err := b.Claim(t.Context(), fallback.ClaimRequest{Max: 10, Lease: time.Hour, Cursor: cursor})
		must(t, "Claim", err)
		if len(res.Claims) == 0 {
			t.Fatal("Claim gave nothing while rows are due")
		}
		for _, c := range res.Claims {
			claimed++
			if c.DomainKey != 1000 {
				seen++
			}
		}
		cursor = res.Cursor
	}
	// 41 domains share in turn: 40 rows of others, at most 2 of the big one a round of 20 claims.
	if most := others + others/2; claimed > most {
		t.Errorf("the rows of other domains were done after %d claims, want at most %d", claimed, most)
	}
	// And with no other domain due, the big one fills the batch.
	if got := claim(t, b, 50); len(got) != 50 {
		t.Errorf("Claim gave %d rows of the big domain, want a full batch of 50", len(got))
	}
}

func claimNotDue(t *testing.T, b Bed) {
	// More domains with nothing due than one claim walks over, before and after the one that is due.
	for i := range 130 {
		e := entry(i, i)
		if i != 90 {
			e.CheckIn = time.Hour
		}
		record(t, b, e)
	}
	if got := claimOne(t, b); got.DomainKey != 90 {
		t.Errorf("Claim gave a row of domain %d, want 90", got.DomainKey)
	}
	late := entry(200, 125)
	record(t, b, late)
	res, err := b.Claim(t.Context(), fallback.ClaimRequest{Max: 50, Lease: lease, Cursor: 7})
	must(t, "Claim", err)
	if !slices.Equal(ids(res.Claims), []string{late.ID}) {
		t.Errorf("Claim gave %v, want the one row that is due, %s", ids(res.Claims), late.ID)
	}
	if res.Cursor <= 7 || res.Cursor >= 125 {
		t.Errorf("cursor = %d, want it moved on from 7, by fewer domains than there are", res.Cursor)
	}
}

func claimPriority(t *testing.T, b Bed) {
	add := func(user, domain int, p fallback.Priority) {
		e := entry(user, domain)
		e.Priority = p
		record(t, b, e)
	}
	for i := range 5 {
		add(i, 1, fallback.PriorityBackfill)
		add(10+i, 1, fallback.PriorityBackground)
	}
	add(20, 1, fallback.PriorityInteractive)
	add(21, 2, fallback.PriorityBackfill)
	taken := map[fallback.Priority]int{}
	for _, c := range claim(t, b, 3) { // two of domain 1, one of domain 2
		taken[c.Priority]++
	}
	if want := map[fallback.Priority]int{20: 1, 10: 1, 0: 1}; !cmp.Equal(taken, want) {
		t.Errorf("first claim took %v, want the highest of each domain: %v", taken, want)
	}
	// The second pass: four more than two of domain 1.
	clear(taken)
	for _, c := range claim(t, b, 5) {
		taken[c.Priority]++
	}
	if want := map[fallback.Priority]int{10: 4, 0: 1}; !cmp.Equal(taken, want) {
		t.Errorf("second claim took %v, want the background rows first: %v", taken, want)
	}
}

func claimRefuses(t *testing.T, b Bed) {
	for _, req := range []fallback.ClaimRequest{
		{Max: 0, Lease: lease}, {Max: -1, Lease: lease}, {Max: 1}, {Max: 1, Lease: -lease}, {Max: 1, Lease: lease, PerDomain: -1},
	} {
		if _, err := b.Claim(t.Context(), req); err == nil {
			t.Errorf("Claim(%+v) gave no error", req)
		}
	}
	res, err := b.Claim(t.Context(), fallback.ClaimRequest{Max: 5, Lease: lease, Cursor: 9})
	if err != nil || len(res.Claims) != 0 || res.Cursor != 9 {
		t.Errorf("Claim of an empty queue = %+v, %v, want nothing and the same cursor", res, err)
	}
}

func unreadable(t *testing.T, b Bed) {
	lost := entry(1, 1)
	record(t, b, lost)
	b.Open(t, Sealer(1, 0))   // the secret was changed,
	s := b.Open(t, Sealer(1)) // and the old one taken away while rows were open
	kept := entry(2, 2)
	record(t, s, kept)
	if r := review(t, s, lost.ID); r.State != fallback.Open || !r.Address.IsZero() {
		t.Errorf("review = %+v, want open with no address", r)
	}
	got := claim(t, s, 10)
	if len(got) != 1 || got[0].ReviewID != kept.ID {
		t.Fatalf("Claim = %v, want only the readable row", ids(got))
	}
	if r := review(t, s, lost.ID); r.State != fallback.Dead || r.Reason != fallback.ReasonUnreadable {
		t.Errorf("review is %s for %s, want dead for %s", r.State, r.Reason, fallback.ReasonUnreadable)
	}
}

func hasten(t *testing.T, b Bed) {
	const spread = time.Minute
	const rows = 40
	at := func(user int, in time.Duration, cause verdict.Cause) fallback.Entry {
		e := entry(user, user)
		e.CheckIn, e.Cause = in, cause
		record(t, b, e)
		return e
	}
	var waiting []fallback.Entry
	for i := range rows {
		waiting = append(waiting, at(i, time.Hour, verdict.CauseUpstream))
	}
	mailbox := at(100, time.Hour, verdict.CauseMailbox)
	soon := at(101, 50*time.Second, verdict.CauseUpstream)
	due := at(102, 0, verdict.CauseUpstream)
	held := claimOne(t, b)
	if held.ReviewID != due.ID {
		t.Fatalf("claimed %s, want the due one", held.ReviewID)
	}
	must(t, "Heartbeat", b.Heartbeat(t.Context(), held.ReviewID, held.Token, time.Hour))

	now := time.Now()
	n, err := b.Hasten(t.Context(), 0, spread)
	must(t, "Hasten", err)
	if n != rows {
		t.Errorf("Hasten moved %d rows, want %d", n, rows)
	}
	early := 0
	for _, e := range waiting {
		in := review(t, b, e.ID).NextCheckAt.Sub(now)
		if in < -b.Slack || in > spread+b.Slack {
			t.Errorf("a row is due in %v, want within %v", in, spread)
		}
		if in < spread/2 {
			early++
		}
	}
	if early == 0 || early == rows { // odds of 2^-39
		t.Errorf("%d of %d rows are due in the first half, want them spread", early, rows)
	}
	b.near(t, "a mailbox's due time", review(t, b, mailbox.ID).NextCheckAt, now.Add(time.Hour))
	b.near(t, "a due time within the spread", review(t, b, soon.ID).NextCheckAt, now.Add(50*time.Second))
	b.near(t, "a lease's end", review(t, b, held.ReviewID).NextCheckAt, now.Add(time.Hour))
	if n, err := b.Hasten(t.Context(), 0, spread); n != 0 || err != nil {
		t.Errorf("second Hasten = %d, %v, want none", n, err)
	}
	// What it did not wait after all is no outage.
	b.Advance(t, spread)
	for _, c := range claim(t, b, 50) {
		if c.Outage > spread+2*b.Slack {
			t.Errorf("outage after a minute = %v, want at most %v", c.Outage, spread)
		}
	}
}

func hastenLimit(t *testing.T, b Bed) {
	for i := range 5 {
		e := entry(i, i)
		e.CheckIn = time.Hour
		record(t, b, e)
	}
	for _, want := range []int{3, 2, 0} {
		n, err := b.Hasten(t.Context(), 3, 0)
		must(t, "Hasten", err)
		if n != want {
			t.Errorf("Hasten of at most 3 moved %d rows, want %d", n, want)
		}
	}
	if got := claim(t, b, 10); len(got) != 5 {
		t.Errorf("Claim after Hasten without spread gave %d rows, want 5 at once", len(got))
	}
	if _, err := b.Hasten(t.Context(), -1, 0); err == nil {
		t.Error("Hasten with a negative limit gave no error")
	}
}

func verdicts(t *testing.T, b Bed) {
	fp := fingerprinter.Of(address(1, 1))
	put := func(v verdict.Verdict) {
		t.Helper()
		must(t, "PutVerdicts", b.PutVerdicts(t.Context(), []fallback.Stored{{Fingerprint: fp, Verdict: v}}))
	}
	newestID := func() string {
		t.Helper()
		found, err := b.Lookup(t.Context(), fp)
		must(t, "Lookup", err)
		if found.Verdict == nil {
			return ""
		}
		return found.Verdict.ID
	}
	long := valid()
	put(long)
	short := valid()
	short.Status, short.Reason = verdict.Invalid, verdict.MailboxNotFound
	short.CheckedAt = long.CheckedAt.Add(time.Second)
	short.HardUntil = long.CheckedAt.Add(time.Hour)
	put(short)
	if got := newestID(); got != short.ID {
		t.Errorf("Lookup gave %s, want the newest, %s", got, short.ID)
	}
	b.Advance(t, 2*time.Hour)
	if got := newestID(); got != long.ID {
		t.Errorf("Lookup after the newest expired gave %s, want the other, %s", got, long.ID)
	}
	if _, err := b.Verdict(t.Context(), short.ID); !errors.Is(err, fallback.ErrUnknownID) {
		t.Errorf("Verdict past its hard expiry = %v, want ErrUnknownID", err)
	}
	if got, err := b.Verdict(t.Context(), long.ID); err != nil || !cmp.Equal(got.Verdict, long) || got.Fingerprint != fp {
		t.Errorf("Verdict = %+v, %v, want it as it was put", got, err)
	}
	b.Advance(t, 30*24*time.Hour)
	if got := newestID(); got != "" {
		t.Errorf("Lookup after all expired gave %s, want none", got)
	}
}

func verdictBatch(t *testing.T, b Bed) {
	// More than one statement's worth, with an id twice: the newer stays, whichever comes first.
	var batch []fallback.Stored
	for i := range 620 {
		batch = append(batch, fallback.Stored{Fingerprint: fingerprinter.Of(address(i, 1)), Verdict: valid()})
	}
	newer, older := batch[3], batch[3]
	newer.Verdict.CheckedAt = newer.Verdict.CheckedAt.Add(time.Minute)
	newer.Verdict.Attempts = 9
	must(t, "PutVerdicts", b.PutVerdicts(t.Context(), append([]fallback.Stored{newer}, batch...)))
	must(t, "PutVerdicts again", b.PutVerdicts(t.Context(), []fallback.Stored{older}))
	for i, s := range batch {
		got, err := b.Verdict(t.Context(), s.Verdict.ID)
		must(t, "Verdict", err)
		want := s
		if i == 3 {
			want = newer
		}
		if !cmp.Equal(got, want) {
			t.Fatalf("Verdict %d = %+v, want %+v", i, got, want)
		}
	}
	must(t, "PutVerdicts of nothing", b.PutVerdicts(t.Context(), nil))
	bad := valid()
	bad.HardUntil = time.Time{}
	good := valid()
	if err := b.PutVerdicts(t.Context(), []fallback.Stored{{Verdict: good}, {Verdict: bad}}); err == nil {
		t.Error("PutVerdicts without a hard expiry gave no error")
	}
	if _, err := b.Verdict(t.Context(), good.ID); !errors.Is(err, fallback.ErrUnknownID) {
		t.Errorf("Verdict beside a refused one = %v, want ErrUnknownID", err)
	}
}

func lookupNothing(t *testing.T, b Bed) {
	found, err := b.Lookup(t.Context(), fingerprinter.Of(address(1, 1)))
	if err != nil || found.Verdict != nil || found.Review != nil {
		t.Errorf("Lookup = %+v, %v, want nothing and no error", found, err)
	}
}

func unknownIDs(t *testing.T, b Bed) {
	record(t, b, entry(1, 1))
	for _, id := range []string{"", "x", newID(), "00000000-0000-0000-0000-00000000000g"} {
		if _, err := b.Review(t.Context(), id); !errors.Is(err, fallback.ErrUnknownID) {
			t.Errorf("Review(%q) = %v, want ErrUnknownID", id, err)
		}
		if _, err := b.Verdict(t.Context(), id); !errors.Is(err, fallback.ErrUnknownID) {
			t.Errorf("Verdict(%q) = %v, want ErrUnknownID", id, err)
		}
		if w, err := b.Watchers(t.Context(), id); len(w) != 0 || err != nil {
			t.Errorf("Watchers(%q) = %v, %v, want none", id, w, err)
		}
	}
}

func sweep(t *testing.T, b Bed) {
	settle := func(user int) fallback.Entry {
		e := entry(user, user)
		record(t, b, e)
		must(t, "Settle", b.Settle(t.Context(), claimOne(t, b), valid(), nil))
		return e
	}
	old := settle(1)
	dead := entry(2, 2)
	record(t, b, dead)
	must(t, "Kill", b.Kill(t.Context(), claimOne(t, b), verdict.Unmapped))
	open := entry(3, 3)
	open.CheckIn = 365 * 24 * time.Hour
	record(t, b, open)
	b.Advance(t, 29*24*time.Hour)
	fresh := settle(4)
	if n, err := b.Sweep(t.Context(), fallback.Retention{}); n != 0 || err != nil {
		t.Fatalf("Sweep before anything is old = %d, %v, want 0", n, err)
	}
	b.Advance(t, 25*time.Hour)
	n, err := b.Sweep(t.Context(), fallback.Retention{})
	must(t, "Sweep", err)
	if n != 2 {
		t.Errorf("Sweep deleted %d, want a review and its verdict", n)
	}
	if _, err := b.Review(t.Context(), old.ID); !errors.Is(err, fallback.ErrUnknownID) {
		t.Errorf("Review of the swept one = %v, want ErrUnknownID", err)
	}
	if w, err := b.Watchers(t.Context(), old.ID); len(w) != 0 || err != nil {
		t.Errorf("Watchers of the swept one = %v, %v, want none", w, err)
	}
	for _, e := range []fallback.Entry{dead, open, fresh} {
		review(t, b, e.ID)
	}
	if n, err := b.Sweep(t.Context(), fallback.Retention{Ended: time.Hour}); n != 1 || err != nil {
		t.Errorf("Sweep with a shorter retention = %d, %v, want the other settled review", n, err)
	}
	review(t, b, dead.ID)
	review(t, b, open.ID)
}

func counts(t *testing.T, b Bed) {
	if st := stats(t, b); st != (fallback.Stats{}) {
		t.Errorf("Stats of an empty store = %+v, want zeros", st)
	}
	for i := range 5 {
		record(t, b, entry(i, i))
	}
	claims := claim(t, b, 3)
	must(t, "Kill", b.Kill(t.Context(), claims[0], verdict.Unmapped))
	must(t, "Postpone", b.Postpone(t.Context(), claims[1], fallback.Postponement{CheckIn: time.Hour, Cause: verdict.CauseMailbox}))
	b.Advance(t, 10*time.Second)
	st := stats(t, b)
	age := st.OldestOverdue
	st.OldestOverdue = 0
	if want := (fallback.Stats{Open: 4, Leased: 1, Overdue: 2, Scheduled: 1, Dead: 1}); st != want {
		t.Errorf("Stats = %+v, want %+v", st, want)
	}
	if age < 10*time.Second || age > 10*time.Second+b.Slack {
		t.Errorf("OldestOverdue = %v, want 10s", age)
	}
	// A lease that ran out is overdue from then on.
	b.Advance(t, lease)
	if st := stats(t, b); st.Leased != 0 || st.Overdue != 3 {
		t.Errorf("Stats = %+v, want none leased and 3 overdue", st)
	}
}

func noPlainAddress(t *testing.T, b Bed) {
	var planted []normalize.Address
	for i := range 4 {
		e := entry(i, i)
		planted = append(planted, e.Address)
		record(t, b, e)
	}
	claims := claim(t, b, 3)
	must(t, "Settle", b.Settle(t.Context(), claims[0], valid(), []verdict.Attempt{{Outcome: "ok"}}))
	must(t, "Kill", b.Kill(t.Context(), claims[1], verdict.Unmapped))
	must(t, "Postpone", b.Postpone(t.Context(), claims[2], fallback.Postponement{Cause: verdict.CauseMailbox}))
	dump := b.Dump(t)
	for _, c := range claims {
		if !strings.Contains(dump, c.ReviewID) {
			t.Fatalf("the dump lacks review %s: it shows nothing", c.ReviewID)
		}
	}
	for _, a := range planted {
		for _, part := range []string{a.Text(), a.Local(), a.Domain(), fmt.Sprintf("%x", a.Local()), fmt.Sprintf("%x", a.Domain())} {
			if strings.Contains(dump, part) {
				t.Errorf("the tables hold a part of an address in plain")
			}
		}
	}
}

func reopen(t *testing.T, b Bed) {
	e := entry(1, 1)
	record(t, b, e)
	s := b.Open(t, Sealer(0))
	must(t, "Ping", s.Ping(t.Context()))
	if r := review(t, s, e.ID); r.Address != e.Address {
		t.Error("the review does not hold its address under the same key")
	}
	s.SetMaxOpen(1)
	if _, err := s.Record(t.Context(), entry(2, 2)); !errors.Is(err, fallback.ErrQueueFull) {
		t.Errorf("Record beyond the bound = %v, want ErrQueueFull: rows from before count", err)
	}
	must(t, "Settle", s.Settle(t.Context(), claimOne(t, s), valid(), nil))
}

// everything lets workers do all there is to a few addresses at the same time. No operation may fail but by losing
// a lease, every id that was given must be found, and at the end a row must wait exactly where a review is open.
func everything(t *testing.T, b Bed) {
	const workers, steps, addresses = 8, 60, 10
	var wg sync.WaitGroup
	var mu sync.Mutex
	given := map[string]bool{}
	for w := range workers {
		wg.Go(func() {
			ctx := t.Context()
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			check := func(what string, err error) {
				if err != nil && !errors.Is(err, fallback.ErrLeaseLost) {
					t.Errorf("%s = %v, want no error or a lost lease", what, err)
				}
			}
			for range steps {
				e := entry(rnd.IntN(addresses), rnd.IntN(3))
				e.Fingerprint = fingerprinter.Of(address(int(e.Fingerprint[0])%addresses, 0))
				switch rnd.IntN(8) {
				case 0, 1, 2:
					e.Cause = verdict.Causes[rnd.IntN(len(verdict.Causes))]
					r, err := b.Record(ctx, e)
					check("Record", err)
					mu.Lock()
					given[r.ID] = true
					mu.Unlock()
				case 3:
					_, _, err := b.SettleOpen(ctx, e.Fingerprint, valid(), nil)
					check("SettleOpen", err)
				case 4:
					_, err := b.Hasten(ctx, 5, 0)
					check("Hasten", err)
					_, err = b.Lookup(ctx, e.Fingerprint)
					check("Lookup", err)
				default:
					res, err := b.Claim(ctx, fallback.ClaimRequest{Max: 4, Lease: time.Hour, Cursor: rnd.Int64N(3)})
					check("Claim", err)
					for i, c := range res.Claims {
						switch (i + rnd.IntN(5)) % 5 {
						case 0:
							check("Settle", b.Settle(ctx, c, valid(), nil))
						case 1:
							check("Postpone", b.Postpone(ctx, c, fallback.Postponement{Cause: verdict.CauseMailbox}))
						case 2:
							check("GiveBack", b.GiveBack(ctx, []fallback.Claim{c}))
						case 3:
							check("Kill", b.Kill(ctx, c, verdict.Unmapped))
						default:
							check("Heartbeat", b.Heartbeat(ctx, c.ReviewID, c.Token, time.Hour))
							_, err := b.SettleBatch(ctx, []fallback.Settlement{{Claim: c, Verdict: valid()}})
							check("SettleBatch", err)
						}
					}
				}
			}
		})
	}
	wg.Wait()
	open := map[normalize.Fingerprint]bool{}
	for id := range given {
		r := review(t, b, id)
		if waits := !r.NextCheckAt.IsZero(); waits != (r.State == fallback.Open) {
			t.Errorf("review %s is %s, and a row waits: %t", id, r.State, waits)
		}
		if r.State == fallback.Open {
			if open[r.Fingerprint] {
				t.Errorf("two reviews of one fingerprint are open")
			}
			open[r.Fingerprint] = true
		}
	}
	if st := stats(t, b); st.Open != int64(len(open)) {
		t.Errorf("Stats.Open = %d, want the %d open reviews", st.Open, len(open))
	}
}
