package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// backfillStore is what package backfill and its callers ask of a store.
type backfillStore interface {
	OpenBackfill(ctx context.Context, n fallback.NewBackfill) (fallback.Backfill, fallback.BackfillLease, error)
	LoadBackfill(ctx context.Context, l fallback.BackfillLease, c fallback.BackfillChunk, lease time.Duration) error
	LoadedBackfill(ctx context.Context, l fallback.BackfillLease) error
	ClaimBackfill(ctx context.Context, lease time.Duration) (fallback.Backfill, fallback.BackfillLease, bool, error)
	RenewBackfill(ctx context.Context, l fallback.BackfillLease, lease time.Duration) (fallback.Backfill, error)
	ReleaseBackfill(ctx context.Context, l fallback.BackfillLease) error
	MergeBackfill(ctx context.Context, l fallback.BackfillLease, lease time.Duration) (fallback.Backfill, error)
	BackfillPortion(ctx context.Context, l fallback.BackfillLease, after int64, limit int) (fallback.BackfillPortion, error)
	PlanBackfill(ctx context.Context, l fallback.BackfillLease, p fallback.BackfillPlan) (fallback.Backfill, error)
	BackfillNews(ctx context.Context, l fallback.BackfillLease, limit int) ([]fallback.BackfillNews, error)
	StepBackfill(ctx context.Context, l fallback.BackfillLease, step fallback.BackfillStep) (fallback.Backfill, error)
	WithdrawBackfill(ctx context.Context, l fallback.BackfillLease, w fallback.BackfillWithdrawal) (fallback.Backfill, int, error)
	EndBackfill(ctx context.Context, l fallback.BackfillLease, s fallback.BackfillState, keep time.Duration) (fallback.Backfill, error)
	CancelBackfill(ctx context.Context, id string) (fallback.Backfill, error)
	ResumeBackfill(ctx context.Context, id string, maxCredits *int64) (fallback.Backfill, error)
	Backfill(ctx context.Context, id string) (fallback.Backfill, error)
	Backfills(ctx context.Context, client, before string, limit int) ([]fallback.Backfill, error)
	BackfillResults(ctx context.Context, id string, after int64, limit int) ([]fallback.BackfillResult, error)
}

// The stories of backfills.
var backfillStories = []story{
	{"a list is loaded, and resumed where it broke off", backfillLoads},
	{"distinct addresses are found, and repeats", backfillMerges},
	{"a dry run is planned, and may then run", backfillPlans},
	{"a list goes through the queue", backfillRuns},
	{"a list joins open reviews", backfillJoins},
	{"what waits on the mailbox's side is looked at again", backfillWaits},
	{"one works on a backfill at a time", backfillFenced},
	{"a step that came too late changes nothing", backfillLate},
	{"a vanished review is asked again", backfillVanished},
	{"backfills leave a fifth of the queue", backfillQueueBound},
	{"a cancelled backfill withdraws what nobody waits for", backfillCancels},
	{"beyond its bound a waiting mailbox is given up", backfillGivesUp},
	{"results come in the order of the input", backfillResultsOrder},
	{"erasure reaches lists", backfillErased},
	{"erasure reaches lists that are being loaded", backfillErasedLoading},
	{"old backfills are deleted", backfillSwept},
	{"backfills are listed", backfillListed},
	{"backfills refuse nonsense", backfillRefuses},
}

func backfillOf(source byte) fallback.NewBackfill {
	n := fallback.NewBackfill{ID: newID(), Terms: "csv", Client: "crm", Flow: "signup", MaxCredits: -1, Lease: lease}
	if source != 0 {
		n.Source[0] = source
	}
	return n
}

// row is a line with the user's address at the domain of the same number.
func row(line int64, user int) fallback.BackfillRow {
	a := address(user, user)
	return fallback.BackfillRow{Line: line, Input: a.Text(), Address: a, Fingerprint: fingerprinter.Of(a)}
}

// load opens a backfill and stores the rows.
func load(t *testing.T, b Store, n fallback.NewBackfill, rows ...fallback.BackfillRow) fallback.Backfill {
	t.Helper()
	f, l, err := b.OpenBackfill(t.Context(), n)
	must(t, "OpenBackfill", err)
	if len(rows) > 0 {
		must(t, "LoadBackfill", b.LoadBackfill(t.Context(), l, fallback.BackfillChunk{Rows: rows, Line: rows[len(rows)-1].Line, Digest: []byte("d")}, lease))
	}
	must(t, "LoadedBackfill", b.LoadedBackfill(t.Context(), l))
	return f
}

func claimBackfill(t *testing.T, b Store) (fallback.Backfill, fallback.BackfillLease) {
	t.Helper()
	f, l, ok, err := b.ClaimBackfill(t.Context(), lease)
	must(t, "ClaimBackfill", err)
	if !ok {
		t.Fatal("ClaimBackfill found nothing, want the backfill")
	}
	return f, l
}

// merge brings a claimed backfill through its merging.
func merge(t *testing.T, b Store, l fallback.BackfillLease) (f fallback.Backfill) {
	t.Helper()
	var err error
	for f.State = fallback.BackfillMerging; f.State == fallback.BackfillMerging; {
		f, err = b.MergeBackfill(t.Context(), l, lease)
		must(t, "MergeBackfill", err)
	}
	return f
}

// running loads the rows into a backfill, which runs under the lease that it returns.
func running(t *testing.T, b Store, n fallback.NewBackfill, rows ...fallback.BackfillRow) (fallback.Backfill, fallback.BackfillLease) {
	t.Helper()
	load(t, b, n, rows...)
	_, l := claimBackfill(t, b)
	return merge(t, b, l), l
}

func step(t *testing.T, b Store, l fallback.BackfillLease, s fallback.BackfillStep) fallback.Backfill {
	t.Helper()
	s.Lease = lease
	f, err := b.StepBackfill(t.Context(), l, s)
	must(t, "StepBackfill", err)
	return f
}

func askOf(user int) fallback.BackfillAsk {
	a := address(user, user)
	return fallback.BackfillAsk{ID: newID(), Fingerprint: fingerprinter.Of(a), DomainKey: int64(user), Address: a}
}

// feed asks the users' addresses, up to the line.
func feed(t *testing.T, b Store, l fallback.BackfillLease, line int64, all bool, users ...int) fallback.Backfill {
	t.Helper()
	s := fallback.BackfillStep{Fed: line, All: all}
	for _, u := range users {
		s.Asks = append(s.Asks, askOf(u))
	}
	return step(t, b, l, s)
}

func news(t *testing.T, b Store, l fallback.BackfillLease) []fallback.BackfillNews {
	t.Helper()
	got, err := b.BackfillNews(t.Context(), l, fallback.MaxBackfillPortion)
	must(t, "BackfillNews", err)
	return got
}

func answer(user int, status verdict.Status, billed int) fallback.BackfillAnswer {
	return fallback.BackfillAnswer{Fingerprint: fingerprinter.Of(address(user, user)), Line: int64(user), Status: status,
		Reason: verdict.MailboxAccepted, Decision: "accept", Billed: billed}
}

func results(t *testing.T, b Store, id string) (all []fallback.BackfillResult) {
	t.Helper()
	for after := int64(0); ; {
		page, err := b.BackfillResults(t.Context(), id, after, 2)
		must(t, "BackfillResults", err)
		if len(page) == 0 {
			return all
		}
		all, after = append(all, page...), page[len(page)-1].Line
	}
}

func backfillLoads(t *testing.T, b Bed) {
	n := backfillOf(1)
	f, l, err := b.OpenBackfill(t.Context(), n)
	must(t, "OpenBackfill", err)
	if f.ID != n.ID || f.State != fallback.BackfillLoading || f.MaxCredits != -1 || f.Client != "crm" || f.Flow != "signup" {
		t.Errorf("OpenBackfill = %+v, want a loading one of this id", f)
	}
	chunk := func(digest string, last int64, rows ...fallback.BackfillRow) fallback.BackfillChunk {
		return fallback.BackfillChunk{Rows: rows, Line: last, Digest: []byte(digest)}
	}
	bad := fallback.BackfillRow{Line: 3, Input: "{", Fault: "not_json", Unreadable: true}
	refused := fallback.BackfillRow{Line: 4, Input: "nobody", Fault: string(verdict.MissingAt)}
	must(t, "LoadBackfill", b.LoadBackfill(t.Context(), l, chunk("one", 4, row(2, 1), bad, refused), lease))
	if err := b.LoadBackfill(t.Context(), l, chunk("again", 4, row(4, 1)), lease); err == nil {
		t.Error("LoadBackfill of stored lines gave no error")
	}
	other := backfillOf(1)
	if _, _, err := b.OpenBackfill(t.Context(), other); !errors.Is(err, fallback.ErrBackfillBusy) {
		t.Errorf("OpenBackfill while it is loaded = %v, want ErrBackfillBusy", err)
	}
	b.Advance(t, lease+b.Slack)
	wrong := backfillOf(1)
	wrong.Terms = "ndjson"
	if _, _, err := b.OpenBackfill(t.Context(), wrong); !errors.Is(err, fallback.ErrBackfillTerms) && !errors.Is(err, fallback.ErrBackfillBusy) {
		t.Errorf("OpenBackfill with other terms = %v, want ErrBackfillTerms", err)
	}
	again, l2, err := b.OpenBackfill(t.Context(), other)
	must(t, "OpenBackfill again", err)
	if again.ID != n.ID || again.LoadedLine != 4 || string(again.Digest) != "one" || again.Rows != 3 || again.Unreadable != 1 || again.Refused != 1 ||
		len(again.Bad) != 1 || again.Bad[0] != (fallback.BadRow{Line: 3, Fault: "not_json"}) {
		t.Errorf("OpenBackfill again = %+v, want it as far as it was", again)
	}
	if err := b.LoadBackfill(t.Context(), l, chunk("late", 5, row(5, 5)), lease); !errors.Is(err, fallback.ErrLeaseLost) {
		t.Errorf("LoadBackfill under the former lease = %v, want ErrLeaseLost", err)
	}
	must(t, "LoadBackfill", b.LoadBackfill(t.Context(), l2, chunk("two", 9, row(6, 2)), lease))
	must(t, "LoadedBackfill", b.LoadedBackfill(t.Context(), l2))
	done, none, err := b.OpenBackfill(t.Context(), backfillOf(1))
	if err != nil || none != (fallback.BackfillLease{}) || done.State != fallback.BackfillMerging || done.Rows != 4 || done.LoadedAt.IsZero() {
		t.Errorf("OpenBackfill of a loaded one = %+v, %v, %v, want it without a lease", done, none, err)
	}
	if strings.Contains(b.Dump(t), "planted") {
		t.Error("an address is in the store as plain text")
	}
}

func backfillMerges(t *testing.T, b Bed) {
	n := backfillOf(0)
	var rows []fallback.BackfillRow
	for line := range int64(2100) { // more than one stretch of either store's smallest
		rows = append(rows, row(line+1, int(line%700)))
	}
	f, l := running(t, b, n, rows...)
	if f.State != fallback.BackfillRunning || f.Rows != 2100 || f.Distinct != 700 || f.BeganAt.IsZero() {
		t.Errorf("merged = %+v, want 700 distinct addresses of 2100 rows, running", f)
	}
	p, err := b.BackfillPortion(t.Context(), l, 0, 1000)
	must(t, "BackfillPortion", err)
	if p.Rows != 1000 || p.Line != 1000 || len(p.Items) != 700 {
		t.Errorf("portion of %d rows up to %d with %d items, want 1000, 1000, 700", p.Rows, p.Line, len(p.Items))
	}
	if i := p.Items[5]; i.Line != 6 || i.Address != address(5, 5) || i.Fingerprint != fingerprinter.Of(i.Address) || i.Known != nil || i.Open {
		t.Errorf("item = %+v, want the address of line 6", i)
	}
	p, err = b.BackfillPortion(t.Context(), l, 1000, 1000)
	must(t, "BackfillPortion", err)
	if p.Rows != 1000 || len(p.Items) != 0 {
		t.Errorf("portion of repeats: %d rows, %d items, want 1000 and none", p.Rows, len(p.Items))
	}
	if p, err = b.BackfillPortion(t.Context(), l, 2100, 1000); err != nil || p.Rows != 0 {
		t.Errorf("portion after the end = %+v, %v, want nothing", p, err)
	}
}

func backfillPlans(t *testing.T, b Bed) {
	n := backfillOf(0)
	n.Dry = true
	record(t, b, entry(2, 2))
	putVerdict(t, b, fingerprinter.Of(address(1, 1)), valid())
	load(t, b, n, row(1, 1), row(2, 2), row(3, 3))
	_, l := claimBackfill(t, b)
	if f := merge(t, b, l); f.State != fallback.BackfillPlanning {
		t.Fatalf("merged dry run is %s, want planning", f.State)
	}
	p, err := b.BackfillPortion(t.Context(), l, 0, 10)
	must(t, "BackfillPortion", err)
	if len(p.Items) != 3 || p.Items[0].Known == nil || p.Items[0].Known.Status != verdict.Valid || !p.Items[1].Open || p.Items[2].Open {
		t.Errorf("portion = %+v, want a known one, one under review and a new one", p.Items)
	}
	f, err := b.PlanBackfill(t.Context(), l, fallback.BackfillPlan{Known: 1, Open: 1, Ask: 1, Line: 3, Lease: lease})
	if err != nil || f.State != fallback.BackfillPlanning || f.PlannedLine != 3 {
		t.Errorf("PlanBackfill = %+v, %v, want it to go on after line 3", f, err)
	}
	f, err = b.PlanBackfill(t.Context(), l, fallback.BackfillPlan{All: true, Lease: lease})
	if err != nil || f.State != fallback.BackfillPlanned || f.PlanKnown != 1 || f.PlanOpen != 1 || f.PlanAsk != 1 || f.FedLine != 0 {
		t.Errorf("PlanBackfill to the end = %+v, %v, want it planned and nothing fed", f, err)
	}
	if _, _, ok, err := b.ClaimBackfill(t.Context(), lease); ok || err != nil {
		t.Errorf("ClaimBackfill of a planned one = %v, %v, want nothing", ok, err)
	}
	most := int64(7)
	f, err = b.ResumeBackfill(t.Context(), n.ID, &most)
	if err != nil || f.State != fallback.BackfillRunning || f.Dry || f.MaxCredits != 7 {
		t.Errorf("ResumeBackfill = %+v, %v, want it running with the bound", f, err)
	}
	if f, _ := claimBackfill(t, b); f.ID != n.ID {
		t.Errorf("ClaimBackfill = %s, want the resumed one", f.ID)
	}
}

func backfillRuns(t *testing.T, b Bed) {
	n := backfillOf(0)
	_, l := running(t, b, n, row(1, 1), row(2, 2), row(3, 1))
	f := feed(t, b, l, 3, true, 1, 2)
	if f.Asked != 2 || f.Own != 2 || f.FedLine != 3 || !f.FedAll {
		t.Errorf("fed = %+v, want two asked, both its own", f)
	}
	if got := news(t, b, l); len(got) != 0 {
		t.Errorf("news of reviews that nobody has looked at: %+v", got)
	}
	if _, err := b.EndBackfill(t.Context(), l, fallback.BackfillDone, time.Hour); !errors.Is(err, fallback.ErrBackfillState) {
		t.Errorf("EndBackfill with open reviews = %v, want ErrBackfillState", err)
	}
	claims := claim(t, b, 10)
	if len(claims) != 2 || claims[0].Priority != fallback.PriorityBackfill || claims[0].Reason != verdict.RevalidationRequested {
		t.Fatalf("claims = %+v, want both at the lowest priority", claims)
	}
	if w, err := b.Watchers(t.Context(), claims[0].ReviewID); err != nil || len(w) != 0 {
		t.Errorf("Watchers = %v, %v, want nobody", w, err)
	}
	trail := []verdict.Attempt{{At: time.Now().UTC(), Outcome: verdict.AttemptAnswered, HTTPStatus: 200}}
	for _, c := range claims {
		must(t, "Settle", b.Settle(t.Context(), c, valid(), trail))
	}
	got := news(t, b, l)
	if len(got) != 2 || got[0].State != fallback.Settled || got[0].Verdict == nil || got[0].Verdict.Status != verdict.Valid || !got[0].Own ||
		len(got[0].Trail) != 1 || got[0].Address.IsZero() {
		t.Fatalf("news = %+v, want both settled", got)
	}
	s := fallback.BackfillStep{Answers: []fallback.BackfillAnswer{answer(1, verdict.Valid, 1), answer(2, verdict.Risky, 2)}}
	f = step(t, b, l, s)
	if f.Asked != 0 || f.Own != 0 || f.Valid != 1 || f.Risky != 1 || f.Done() != 2 || f.Credits != 3 || f.Known != 0 {
		t.Errorf("answered = %+v, want two done for three credits", f)
	}
	if f = step(t, b, l, s); f.Done() != 2 || f.Credits != 3 {
		t.Errorf("answered twice = %+v, want what it was", f)
	}
	f, err := b.EndBackfill(t.Context(), l, fallback.BackfillDone, time.Hour)
	if err != nil || f.State != fallback.BackfillDone || f.FinishedAt.IsZero() || !f.KeepUntil.After(f.FinishedAt) {
		t.Errorf("EndBackfill = %+v, %v, want it done", f, err)
	}
	if _, err := b.StepBackfill(t.Context(), l, s); !errors.Is(err, fallback.ErrLeaseLost) {
		t.Errorf("StepBackfill of a done one = %v, want ErrLeaseLost", err)
	}
	if _, err := b.ResumeBackfill(t.Context(), n.ID, nil); !errors.Is(err, fallback.ErrBackfillState) {
		t.Errorf("ResumeBackfill of a done one = %v, want ErrBackfillState", err)
	}
}

func backfillJoins(t *testing.T, b Bed) {
	e := entry(1, 1)
	e.CheckIn = time.Minute
	was := record(t, b, e)
	_, l := running(t, b, backfillOf(0), row(1, 1), row(2, 2))
	f := feed(t, b, l, 2, true, 1, 2)
	if f.Asked != 2 || f.Own != 1 {
		t.Errorf("fed = %+v, want one of two its own", f)
	}
	if r := review(t, b, was.ID); r.Reason != e.Reason || r.NextCheckAt.Before(time.Now().Add(30*time.Second)) || len(r.Trail) != 1 {
		t.Errorf("joined review = %+v, want it as it was", r)
	}
	if w, err := b.Watchers(t.Context(), was.ID); err != nil || len(w) != 1 {
		t.Errorf("Watchers = %v, %v, want the one there was", w, err)
	}
	_, settled, err := b.SettleOpen(t.Context(), e.Fingerprint, valid(), nil)
	if !settled || err != nil {
		t.Fatalf("SettleOpen = %v, %v, want the review settled", settled, err)
	}
	if got := news(t, b, l); len(got) != 1 || got[0].Own || got[0].State != fallback.Settled {
		t.Errorf("news = %+v, want the joined one", got)
	}
}

func backfillWaits(t *testing.T, b Bed) {
	_, l := running(t, b, backfillOf(0), row(1, 1))
	feed(t, b, l, 1, true, 1)
	trail := []verdict.Attempt{{At: time.Now().UTC(), Outcome: verdict.AttemptTransient, HTTPStatus: 200}}
	must(t, "Postpone", b.Postpone(t.Context(), claimOne(t, b), fallback.Postponement{
		CheckIn: 10 * time.Minute, Reason: verdict.Greylisted, Cause: verdict.CauseMailbox, Trail: trail}))
	got := news(t, b, l)
	if len(got) != 1 || got[0].State != fallback.Open || got[0].Cause != verdict.CauseMailbox || (got[0].LookIn-10*time.Minute).Abs() > b.Slack+time.Second {
		t.Fatalf("news = %+v, want one that waits for ten minutes", got)
	}
	stay := fallback.BackfillStay{Fingerprint: got[0].Fingerprint, Billed: 1, Waiting: true, LookIn: got[0].LookIn}
	f := step(t, b, l, fallback.BackfillStep{Stays: []fallback.BackfillStay{stay}})
	if f.Asked != 0 || f.Waiting != 1 || f.Own != 1 || f.Credits != 1 {
		t.Errorf("stays = %+v, want one that waits, billed once", f)
	}
	if got := news(t, b, l); len(got) != 0 {
		t.Errorf("news before it is due = %+v, want none", got)
	}
	b.Advance(t, 10*time.Minute+b.Slack)
	if _, err := b.RenewBackfill(t.Context(), l, lease); err != nil {
		t.Fatalf("RenewBackfill of a lease that ran out and nobody took = %v, want no error", err)
	}
	if got = news(t, b, l); len(got) != 1 || !got[0].Waited || got[0].Billed != 1 {
		t.Fatalf("news when it is due = %+v, want the one that waited", got)
	}
	must(t, "Settle", b.Settle(t.Context(), claimOne(t, b), valid(), trail))
	if got = news(t, b, l); len(got) != 1 || got[0].State != fallback.Settled || len(got[0].Trail) != 2 {
		t.Fatalf("news = %+v, want it settled with both attempts", got)
	}
	f = step(t, b, l, fallback.BackfillStep{Answers: []fallback.BackfillAnswer{answer(1, verdict.Valid, 2)}})
	if f.Waiting != 0 || f.Own != 0 || f.Credits != 2 || f.Valid != 1 {
		t.Errorf("answered = %+v, want two credits in all", f)
	}
}

func backfillFenced(t *testing.T, b Bed) {
	n := backfillOf(0)
	load(t, b, n, row(1, 1))
	_, first := claimBackfill(t, b)
	if _, _, ok, err := b.ClaimBackfill(t.Context(), lease); ok || err != nil {
		t.Errorf("second ClaimBackfill = %v, %v, want nothing", ok, err)
	}
	b.Advance(t, lease+b.Slack)
	_, second := claimBackfill(t, b)
	if _, err := b.MergeBackfill(t.Context(), first, lease); !errors.Is(err, fallback.ErrLeaseLost) {
		t.Errorf("MergeBackfill under a lost lease = %v, want ErrLeaseLost", err)
	}
	merge(t, b, second)
	_, stepErr := b.StepBackfill(t.Context(), first, fallback.BackfillStep{Asks: []fallback.BackfillAsk{askOf(1)}, Lease: lease})
	_, planErr := b.PlanBackfill(t.Context(), first, fallback.BackfillPlan{All: true, Lease: lease})
	_, _, withdrawErr := b.WithdrawBackfill(t.Context(), first, fallback.BackfillWithdrawal{Limit: 10, All: true, Lease: lease})
	_, endErr := b.EndBackfill(t.Context(), first, fallback.BackfillStopped, time.Hour)
	_, renewErr := b.RenewBackfill(t.Context(), first, lease)
	for what, err := range map[string]error{"StepBackfill": stepErr, "PlanBackfill": planErr, "WithdrawBackfill": withdrawErr, "EndBackfill": endErr,
		"RenewBackfill": renewErr} {
		if !errors.Is(err, fallback.ErrLeaseLost) {
			t.Errorf("%s under a lost lease = %v, want ErrLeaseLost", what, err)
		}
	}
	must(t, "ReleaseBackfill", b.ReleaseBackfill(t.Context(), first))
	if _, _, ok, _ := b.ClaimBackfill(t.Context(), lease); ok {
		t.Error("the former holder gave away the lease of the present one")
	}
	must(t, "ReleaseBackfill", b.ReleaseBackfill(t.Context(), second))
	if f, _ := claimBackfill(t, b); f.Asked != 0 || f.State != fallback.BackfillRunning {
		t.Errorf("claimed = %+v, want it merged, and nothing asked", f)
	}
}

func backfillLate(t *testing.T, b Bed) {
	_, l := running(t, b, backfillOf(0), row(1, 1), row(2, 2))
	feed(t, b, l, 1, false, 1)
	if f := feed(t, b, l, 2, true, 1, 2); f.Asked != 2 || f.Own != 2 {
		t.Errorf("asked again = %+v, want each once", f)
	}
	step(t, b, l, fallback.BackfillStep{Answers: []fallback.BackfillAnswer{answer(1, verdict.Valid, 1)}})
	fp := fingerprinter.Of(address(1, 1))
	f := step(t, b, l, fallback.BackfillStep{Stays: []fallback.BackfillStay{{Fingerprint: fp, Billed: 3}},
		Again: []fallback.BackfillNews{{Fingerprint: fp}}, Asks: []fallback.BackfillAsk{askOf(1), askOf(9)}})
	if f.Asked != 1 || f.Credits != 1 || f.Valid != 1 || !f.FedAll {
		t.Errorf("after steps for a done and an unknown item = %+v, want what it was", f)
	}
	if st := stats(t, b); st.Open != 2 {
		t.Errorf("%d reviews are open, want two", st.Open)
	}
}

func backfillVanished(t *testing.T, b Bed) {
	_, l := running(t, b, backfillOf(0), row(3, 1), row(5, 2))
	feed(t, b, l, 5, true, 1, 2)
	c := claim(t, b, 10)
	for _, c := range c {
		must(t, "Settle", b.Settle(t.Context(), c, valid(), nil))
	}
	b.Advance(t, 31*24*time.Hour)
	if _, err := b.Sweep(t.Context(), fallback.Retention{}); err != nil {
		t.Fatal(err)
	}
	got := news(t, b, l)
	if len(got) != 2 || !got[0].Gone || !got[1].Gone {
		t.Fatalf("news = %+v, want both gone", got)
	}
	f := step(t, b, l, fallback.BackfillStep{Again: got})
	if f.Asked != 0 || f.Own != 0 || f.FedAll || f.FedLine != 2 {
		t.Errorf("fed again = %+v, want the cursor before line 3", f)
	}
}

func backfillQueueBound(t *testing.T, b Bed) {
	b.SetMaxOpen(5)
	_, l := running(t, b, backfillOf(0), row(1, 1), row(2, 2), row(3, 3), row(4, 4), row(5, 5))
	feed(t, b, l, 4, false, 1, 2, 3, 4)
	_, err := b.StepBackfill(t.Context(), l, fallback.BackfillStep{Asks: []fallback.BackfillAsk{askOf(5)}, Fed: 5, All: true, Lease: lease})
	if !errors.Is(err, fallback.ErrQueueFull) {
		t.Errorf("StepBackfill at 80 %% = %v, want ErrQueueFull", err)
	}
	f, err := b.RenewBackfill(t.Context(), l, lease)
	if err != nil || f.Asked != 4 || f.FedLine != 4 {
		t.Errorf("after it = %+v, %v, want nothing written", f, err)
	}
}

func backfillCancels(t *testing.T, b Bed) {
	n := backfillOf(0)
	_, l := running(t, b, n, row(1, 1), row(2, 2), row(3, 3), row(4, 4), row(5, 5))
	record(t, b, entry(4, 4)) // a person's
	feed(t, b, l, 5, true, 1, 2, 3, 4, 5)
	record(t, b, entry(2, 2)) // a person who joins
	var held fallback.Claim
	for _, c := range claim(t, b, 10) {
		switch c.Address {
		case address(3, 3):
			held = c
		case address(5, 5):
			must(t, "Postpone", b.Postpone(t.Context(), c, fallback.Postponement{CheckIn: time.Hour, Reason: verdict.Greylisted, Cause: verdict.CauseMailbox}))
		default:
			must(t, "GiveBack", b.GiveBack(t.Context(), []fallback.Claim{c}))
		}
	}
	if f, err := b.CancelBackfill(t.Context(), n.ID); err != nil || f.State != fallback.BackfillCancelling {
		t.Fatalf("CancelBackfill = %+v, %v, want it cancelling", f, err)
	}
	if _, err := b.StepBackfill(t.Context(), l, fallback.BackfillStep{Lease: lease}); !errors.Is(err, fallback.ErrLeaseLost) {
		t.Errorf("StepBackfill after the cancellation = %v, want ErrLeaseLost", err)
	}
	_, l = claimBackfill(t, b)
	all := fallback.BackfillWithdrawal{Limit: 100, All: true, Decision: "accept_pending", Lease: lease}
	f, let, err := b.WithdrawBackfill(t.Context(), l, all)
	if err != nil || let != 4 || f.Asked != 1 || f.Own != 1 || f.Unresolved != 1 {
		t.Errorf("WithdrawBackfill = %+v, %d, %v, want four let go of, one of them unresolved, and the held one left", f, let, err)
	}
	if _, err := b.EndBackfill(t.Context(), l, fallback.BackfillCancelled, time.Hour); !errors.Is(err, fallback.ErrBackfillState) {
		t.Errorf("EndBackfill with a call on the wire = %v, want ErrBackfillState", err)
	}
	must(t, "Settle", b.Settle(t.Context(), held, valid(), nil))
	if got := news(t, b, l); len(got) != 1 || got[0].State != fallback.Settled {
		t.Fatalf("news = %+v, want the one that was held", got)
	}
	step(t, b, l, fallback.BackfillStep{Answers: []fallback.BackfillAnswer{answer(3, verdict.Valid, 1)}})
	f, err = b.EndBackfill(t.Context(), l, fallback.BackfillCancelled, time.Hour)
	if err != nil || f.State != fallback.BackfillCancelled || f.FinishedAt.IsZero() {
		t.Errorf("EndBackfill = %+v, %v, want it cancelled", f, err)
	}
	if st := stats(t, b); st.Open != 2 {
		t.Errorf("%d reviews are open, want the two for which people wait", st.Open)
	}
	if _, err := b.CancelBackfill(t.Context(), n.ID); !errors.Is(err, fallback.ErrBackfillState) {
		t.Errorf("CancelBackfill again = %v, want ErrBackfillState", err)
	}
	if _, err := b.CancelBackfill(t.Context(), newID()); !errors.Is(err, fallback.ErrUnknownID) {
		t.Errorf("CancelBackfill of an unknown id = %v, want ErrUnknownID", err)
	}
	// A slot that was taken is free again.
	b.SetMaxOpen(3)
	record(t, b, entry(8, 8))
}

func backfillGivesUp(t *testing.T, b Bed) {
	_, l := running(t, b, backfillOf(0), row(1, 1), row(2, 2), row(3, 3))
	feed(t, b, l, 3, true, 1, 2, 3)
	var ids []string
	for _, c := range claim(t, b, 10) {
		if c.Address == address(3, 3) {
			must(t, "GiveBack", b.GiveBack(t.Context(), []fallback.Claim{c}))
			continue
		}
		must(t, "Postpone", b.Postpone(t.Context(), c, fallback.Postponement{CheckIn: time.Hour, Reason: verdict.Greylisted, Cause: verdict.CauseMailbox}))
		ids = append(ids, c.ReviewID)
	}
	var stays []fallback.BackfillStay
	for _, n := range news(t, b, l) {
		stays = append(stays, fallback.BackfillStay{Fingerprint: n.Fingerprint, Billed: 1, Waiting: true, LookIn: n.LookIn})
	}
	step(t, b, l, fallback.BackfillStep{Stays: stays})
	f, n, err := b.WithdrawBackfill(t.Context(), l, fallback.BackfillWithdrawal{Limit: 1, Decision: "hold", Lease: lease})
	if err != nil || n != 1 || f.Waiting != 1 || f.Asked != 1 || f.Own != 2 || f.Unresolved != 1 || f.Credits != 2 {
		t.Errorf("WithdrawBackfill = %+v, %d, %v, want one given up", f, n, err)
	}
	settled := 0
	for _, id := range ids {
		if r := review(t, b, id); r.State == fallback.Settled {
			settled++
			if r.Verdict.Status != verdict.Unresolved || r.Verdict.Reason != verdict.Greylisted || !r.Address.IsZero() {
				t.Errorf("given up review = %+v, want it unresolved, without its address", r)
			}
		}
	}
	if settled != 1 {
		t.Errorf("%d reviews have ended, want one", settled)
	}
	if st := stats(t, b); st.Open != 2 {
		t.Errorf("%d reviews are open, want two", st.Open)
	}
}

func backfillResultsOrder(t *testing.T, b Bed) {
	n := backfillOf(0)
	spelled := row(3, 1)
	spelled.Input = "  Planted.1@DOMAIN-1.example\n"
	_, l := running(t, b, n, row(1, 1),
		fallback.BackfillRow{Line: 2, Fault: "no_column", Unreadable: true}, spelled,
		fallback.BackfillRow{Line: 4, Input: "nobody", Fault: string(verdict.MissingAt)}, row(5, 2), row(6, 3))
	a := answer(1, verdict.Valid, 0)
	a.Suggestion, a.Known = "planted.1@domain.example", true
	f := step(t, b, l, fallback.BackfillStep{Answers: []fallback.BackfillAnswer{a}, Asks: []fallback.BackfillAsk{askOf(2)}, Fed: 5})
	if f.Known != 1 || f.Valid != 1 {
		t.Errorf("step = %+v, want one known", f)
	}
	one := fallback.BackfillResult{Line: 1, Input: address(1, 1).Text(), Normalized: address(1, 1).Text(), Status: verdict.Valid,
		Reason: verdict.MailboxAccepted, Decision: "accept", Suggestion: a.Suggestion}
	three := one
	three.Line, three.Input = 3, spelled.Input
	want := []fallback.BackfillResult{one, {Line: 2, Fault: "no_column"}, three, {Line: 4, Input: "nobody", Fault: string(verdict.MissingAt)},
		{Line: 5, Input: address(2, 2).Text(), Normalized: address(2, 2).Text(), Asked: true},
		{Line: 6, Input: address(3, 3).Text(), Normalized: address(3, 3).Text()}}
	if diff := cmp.Diff(want, results(t, b, n.ID)); diff != "" {
		t.Errorf("results differ (-want +got):\n%s", diff)
	}
	if _, err := b.BackfillResults(t.Context(), newID(), 0, 10); !errors.Is(err, fallback.ErrUnknownID) {
		t.Errorf("BackfillResults of an unknown id = %v, want ErrUnknownID", err)
	}
	if d := b.Dump(t); strings.Contains(d, "planted") || strings.Contains(d, "nobody") {
		t.Error("the store holds plain text")
	}
}

func backfillErased(t *testing.T, b Bed) {
	n := backfillOf(0)
	_, l := running(t, b, n, row(1, 1), row(2, 2), row(3, 1), row(4, 3), row(5, 4))
	step(t, b, l, fallback.BackfillStep{Answers: []fallback.BackfillAnswer{answer(1, verdict.Valid, 1)}, Asks: []fallback.BackfillAsk{askOf(2)}, Fed: 2})
	for _, user := range []int{1, 2, 3} {
		fp := fingerprinter.Of(address(user, user))
		want := fallback.Erased{Backfill: 1}
		switch user {
		case 1:
			want.Backfill = 2
		case 2:
			want.Reviews = 1
		}
		if got := eraseNow(t, b, fp); got != want {
			t.Errorf("Erase = %+v, want %+v", got, want)
		}
		if n := strings.Count(b.Dump(t), fmt.Sprintf("%x", fp[:])); n != 1 {
			t.Errorf("the dump names the fingerprint %d times, want 1: the erasure's own", n)
		}
	}
	f, err := b.Backfill(t.Context(), n.ID)
	if err != nil || f.Rows != 5 || f.Distinct != 1 || f.Asked != 0 || f.Own != 0 || f.Valid != 0 || f.Credits != 1 {
		t.Errorf("Backfill = %+v, %v, want one address left of five rows", f, err)
	}
	gone := func(line int64) fallback.BackfillResult {
		return fallback.BackfillResult{Line: line, Fault: fallback.FaultErased}
	}
	want := []fallback.BackfillResult{gone(1), gone(2), gone(3), gone(4), {Line: 5, Input: address(4, 4).Text(), Normalized: address(4, 4).Text()}}
	if diff := cmp.Diff(want, results(t, b, n.ID)); diff != "" {
		t.Errorf("results differ (-want +got):\n%s", diff)
	}
	// What was read before the erasure is not brought back by a step after it.
	if f := feed(t, b, l, 5, true, 1, 2, 3, 4); f.Asked != 1 {
		t.Errorf("fed = %+v, want the one that is left", f)
	}
	if st := stats(t, b); st.Open != 1 {
		t.Errorf("%d reviews are open, want one", st.Open)
	}
}

func backfillErasedLoading(t *testing.T, b Bed) {
	n := backfillOf(1)
	f, l, err := b.OpenBackfill(t.Context(), n)
	must(t, "OpenBackfill", err)
	must(t, "LoadBackfill", b.LoadBackfill(t.Context(), l, fallback.BackfillChunk{Rows: []fallback.BackfillRow{row(1, 1), row(2, 2)}, Line: 2}, lease))
	fp := fingerprinter.Of(address(1, 1))
	if got := eraseNow(t, b, fp); got != (fallback.Erased{Backfill: 1}) {
		t.Errorf("Erase = %+v, want the row", got)
	}
	must(t, "LoadBackfill", b.LoadBackfill(t.Context(), l, fallback.BackfillChunk{Rows: []fallback.BackfillRow{row(3, 1), row(4, 3)}, Line: 4}, lease))
	must(t, "LoadedBackfill", b.LoadedBackfill(t.Context(), l))
	_, l = claimBackfill(t, b)
	if got := merge(t, b, l); got.Distinct != 2 || got.Rows != 4 {
		t.Errorf("merged = %+v, want two addresses left", got)
	}
	if n := strings.Count(b.Dump(t), fmt.Sprintf("%x", fp[:])); n != 1 {
		t.Errorf("the dump names the fingerprint %d times, want 1: the erasure's own", n)
	}
	if r := results(t, b, f.ID); len(r) != 4 || r[0].Fault != fallback.FaultErased || r[2].Fault != fallback.FaultErased || r[1].Fault != "" {
		t.Errorf("results = %+v, want the first and the third erased", r)
	}
	// A list that is brought after the erasure is a new one.
	if got, _ := running(t, b, backfillOf(2), row(1, 1)); got.Distinct != 1 {
		t.Errorf("new list = %+v, want its address", got)
	}
}

func backfillSwept(t *testing.T, b Bed) {
	var rows []fallback.BackfillRow
	for line := range int64(1200) { // more than a step of the sweep
		rows = append(rows, row(line+1, int(line%1000)))
	}
	n := backfillOf(0)
	running(t, b, n, rows...)
	keep, left := backfillOf(0), backfillOf(0)
	running(t, b, keep, row(1, 1), row(2, 1))
	if _, _, err := b.OpenBackfill(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	if _, err := b.CancelBackfill(t.Context(), n.ID); err != nil {
		t.Fatal(err)
	}
	_, l := claimBackfill(t, b)
	if _, err := b.EndBackfill(t.Context(), l, fallback.BackfillCancelled, 7*24*time.Hour); err != nil {
		t.Fatal(err)
	}
	sweep := func() int {
		deleted, err := b.Sweep(t.Context(), fallback.Retention{})
		must(t, "Sweep", err)
		return deleted
	}
	if got := sweep(); got != 0 {
		t.Errorf("Sweep before its time deleted %d rows, want none", got)
	}
	b.Advance(t, 25*time.Hour)
	if got := sweep(); got != 1 {
		t.Errorf("Sweep after a day deleted %d rows, want the one whose loading broke off", got)
	}
	b.Advance(t, 6*24*time.Hour)
	if got := sweep(); got != 1201 {
		t.Errorf("Sweep after a week deleted %d rows, want 1200 and the backfill", got)
	}
	if _, err := b.Backfill(t.Context(), n.ID); !errors.Is(err, fallback.ErrUnknownID) {
		t.Errorf("Backfill = %v, want ErrUnknownID", err)
	}
	if r := results(t, b, keep.ID); len(r) != 2 {
		t.Errorf("%d rows of the other one are left, want both", len(r))
	}
	fp := fingerprinter.Of(address(999, 999))
	if strings.Contains(b.Dump(t), fmt.Sprintf("%x", fp[:])) {
		t.Error("something of the swept one is left")
	}
}

func backfillListed(t *testing.T, b Bed) {
	var ids []string
	for i := range 3 {
		n := backfillOf(0)
		if i == 1 {
			n.Client = "other"
		}
		load(t, b, n, row(1, i))
		ids = append(ids, n.ID)
	}
	for _, c := range []struct {
		client, before string
		limit          int
		want           []string
	}{
		{"", "", 10, []string{ids[2], ids[1], ids[0]}},
		{"", "", 1, []string{ids[2]}},
		{"", ids[2], 10, []string{ids[1], ids[0]}},
		{"crm", "", 10, []string{ids[2], ids[0]}},
		{"nobody", "", 10, nil},
	} {
		list, err := b.Backfills(t.Context(), c.client, c.before, c.limit)
		must(t, "Backfills", err)
		var got []string
		for _, f := range list {
			got = append(got, f.ID)
		}
		if !cmp.Equal(got, c.want) {
			t.Errorf("Backfills(%q, %q, %d) = %v, want %v", c.client, c.before, c.limit, got, c.want)
		}
	}
}

func backfillRefuses(t *testing.T, b Bed) {
	noID, noLease := backfillOf(0), backfillOf(0)
	noID.ID, noLease.Lease = "x", 0
	for _, n := range []fallback.NewBackfill{noID, noLease} {
		if _, _, err := b.OpenBackfill(t.Context(), n); err == nil {
			t.Errorf("OpenBackfill(%+v) gave no error", n)
		}
	}
	_, l, err := b.OpenBackfill(t.Context(), backfillOf(0))
	must(t, "OpenBackfill", err)
	for name, c := range map[string]fallback.BackfillChunk{
		"no address": {Rows: []fallback.BackfillRow{{Line: 1, Input: "x"}}, Line: 1},
		"order":      {Rows: []fallback.BackfillRow{row(2, 1), row(1, 2)}, Line: 2},
		"beyond":     {Rows: []fallback.BackfillRow{row(2, 1)}, Line: 1},
		"too many":   {Rows: make([]fallback.BackfillRow, fallback.MaxBackfillChunk+1), Line: 10_000},
	} {
		if err := b.LoadBackfill(t.Context(), l, c, lease); err == nil || errors.Is(err, fallback.ErrLeaseLost) {
			t.Errorf("LoadBackfill, %s = %v, want a refusal", name, err)
		}
	}
	none := fallback.BackfillLease{}
	if err := b.LoadBackfill(t.Context(), none, fallback.BackfillChunk{Line: 1}, lease); !errors.Is(err, fallback.ErrLeaseLost) {
		t.Errorf("LoadBackfill without a lease = %v, want ErrLeaseLost", err)
	}
	for name, s := range map[string]fallback.BackfillStep{
		"not final":  {Answers: []fallback.BackfillAnswer{answer(1, verdict.NeedsReview, 0)}},
		"no address": {Asks: []fallback.BackfillAsk{{ID: newID(), Fingerprint: normalize.Fingerprint{1}}}},
		"too many":   {Stays: make([]fallback.BackfillStay, fallback.MaxBackfillPortion+1)},
	} {
		if _, err := b.StepBackfill(t.Context(), l, s); err == nil || errors.Is(err, fallback.ErrLeaseLost) {
			t.Errorf("StepBackfill, %s = %v, want a refusal", name, err)
		}
	}
	for _, id := range []string{"", "x", newID()} {
		if _, err := b.Backfill(t.Context(), id); !errors.Is(err, fallback.ErrUnknownID) {
			t.Errorf("Backfill(%q) = %v, want ErrUnknownID", id, err)
		}
	}
}
