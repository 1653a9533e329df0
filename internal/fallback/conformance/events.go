package conformance

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// eventStories are about events that ask for a new check.
var eventStories = []story{
	{"an event opens a review", askOpens},
	{"a burst of events is due after its quiet", askBurst},
	{"a stream of events is due at its latest time", askStream},
	{"held events write nothing until they are ripe", askHeld},
	{"held events that nobody ripens are due at the latest time", askForgotten},
	{"an event without a hold ends one", askMixed},
	{"an event joins the open review", askJoins},
	{"an event takes a lease away and counts no claim", askLeased},
	{"an event leaves what is due", askDue},
	{"a verdict from before an event does not end its review", askSettleOpen},
	{"ripen leaves others alone", ripenOthers},
	{"a hundred events are one review", askCrowd},
	{"events stop at the bound", askFull},
	{"events and erasure", askErased},
	{"events refuse nonsense", askRefuses},
}

// The window of these stories: a busy machine's minutes are nothing beside it.
const (
	quiet  = time.Hour
	latest = 20 * time.Hour
)

// event asks for the user's address at the domain.
func event(user, domain int) fallback.Event {
	a := address(user, domain)
	return fallback.Event{ID: newID(), Fingerprint: fingerprinter.Of(a), DomainKey: int64(domain), Address: a,
		Watcher: fallback.Watcher{Client: "crm", Flow: "signup"}, Quiet: quiet, Max: latest}
}

func heldEvent(user, domain int) fallback.Event {
	e := event(user, domain)
	e.Held = true
	return e
}

func ask(t *testing.T, s Store, e fallback.Event) fallback.Asked {
	t.Helper()
	a, err := s.Ask(t.Context(), e)
	if err != nil {
		t.Fatalf("Ask = %v, want no error", err)
	}
	return a
}

// due checks how long it is until a check is due.
func (b Bed) due(t *testing.T, what string, a fallback.Asked, want time.Duration) {
	t.Helper()
	most := time.Microsecond
	if b.Slack > 0 { // real time passes
		most = quiet / 10
	}
	if d := (a.In - want).Abs(); d > most {
		t.Errorf("%s is due in %v, want %v", what, a.In, want)
	}
}

// none checks that nothing can be claimed.
func none(t *testing.T, s Store, when string) {
	t.Helper()
	if got := claim(t, s, fallback.MaxBatch); len(got) != 0 {
		t.Fatalf("%d rows are due %s, want none", len(got), when)
	}
}

func ripenNow(t *testing.T, s Store, want int, fps ...normalize.Fingerprint) {
	t.Helper()
	if n, err := s.Ripen(t.Context(), fps); err != nil || n != want {
		t.Errorf("Ripen = %d, %v, want %d", n, err, want)
	}
}

func askOpens(t *testing.T, b Bed) {
	e := event(1, 7)
	now := time.Now()
	a := ask(t, b, e)
	b.due(t, "the check", a, quiet)
	if a.ID != e.ID || !a.Fresh {
		t.Errorf("Ask = %+v, want a review of the event's id", a)
	}
	r := review(t, b, e.ID)
	if r.State != fallback.Open || r.Reason != verdict.RevalidationRequested || r.Cause != verdict.CauseUpstream || r.Address != e.Address ||
		len(r.Trail) != 0 {
		t.Errorf("Review = %+v, want an open one of the event", r)
	}
	b.near(t, "RecordedAt", r.RecordedAt, now)
	b.near(t, "NextCheckAt", r.NextCheckAt, now.Add(quiet))
	if w, err := b.Watchers(t.Context(), e.ID); err != nil || len(w) != 1 || w[0] != e.Watcher {
		t.Errorf("Watchers = %v, %v, want the event's", w, err)
	}
	if dump := b.Dump(t); strings.Contains(dump, "planted") {
		t.Error("the address is in the tables in plain")
	}
	none(t, b, "before the quiet is over")
	b.Advance(t, quiet+b.Slack)
	c := claimOne(t, b)
	if c.ReviewID != e.ID || c.Priority != fallback.PriorityBackground || c.DomainKey != 7 || c.Address != e.Address ||
		c.AskedAt.IsZero() || c.AskedAt.After(c.Now) {
		t.Errorf("Claim = %+v, want the event's, asked for before now", c)
	}
	must(t, "Settle", b.Settle(t.Context(), c, valid(), nil))
	if again := ask(t, b, event(1, 7)); again.ID == e.ID || !again.Fresh {
		t.Errorf("Ask after the end = %+v, want another review", again)
	}
	if c := record(t, b, entry(2, 2)); !c.NextCheckAt.IsZero() {
		if got := claimOne(t, b); !got.AskedAt.IsZero() {
			t.Errorf("AskedAt = %v of a row for which nobody asked, want none", got.AskedAt)
		}
	}
}

func askBurst(t *testing.T, b Bed) {
	first := ask(t, b, event(1, 1))
	for range 3 {
		b.Advance(t, quiet/2)
		a := ask(t, b, event(1, 1))
		if a.ID != first.ID || a.Fresh {
			t.Errorf("Ask = %+v, want the burst's review", a)
		}
		b.due(t, "the burst", a, quiet)
		none(t, b, "in the middle of the burst")
	}
	b.Advance(t, quiet+b.Slack)
	claimOne(t, b)
}

func askStream(t *testing.T, b Bed) {
	ask(t, b, event(1, 1))
	for range 25 { // every 45 min, 18 h 45 min in all
		b.Advance(t, 3*quiet/4)
		b.due(t, "the stream", ask(t, b, event(1, 1)), quiet)
	}
	b.Advance(t, 3*quiet/4)
	b.due(t, "the stream's last", ask(t, b, event(1, 1)), quiet/2)
	b.Advance(t, quiet/2+b.Slack)
	claimOne(t, b)
	// The next one's window is its own.
	b.due(t, "the next burst", ask(t, b, event(1, 1)), quiet)
}

func askHeld(t *testing.T, b Bed) {
	e := heldEvent(1, 1)
	a := ask(t, b, e)
	b.due(t, "a held event", a, latest)
	before := b.Dump(t)
	b.due(t, "a further one", ask(t, b, heldEvent(1, 1)), latest)
	if b.Dump(t) != before {
		t.Error("a further event of a held burst wrote something")
	}
	other := heldEvent(1, 1)
	other.Watcher.Client = "another"
	if got := ask(t, b, other); got.ID != a.ID || got.Fresh {
		t.Errorf("Ask by another client = %+v, want the same review", got)
	}
	if w, err := b.Watchers(t.Context(), a.ID); err != nil || len(w) != 2 {
		t.Errorf("Watchers = %v, %v, want both", w, err)
	}
	b.Advance(t, 2*quiet)
	none(t, b, "while the burst is held")
	ripenNow(t, b, 1, e.Fingerprint)
	ripenNow(t, b, 0, e.Fingerprint)
	c := claimLong(t, b)
	if c.AskedAt.IsZero() || c.AskedAt.After(c.Now) {
		t.Errorf("AskedAt = %v at %v, want a time that is over", c.AskedAt, c.Now)
	}
	// An event while it is being checked is another burst, of the same review, and is held again.
	again := ask(t, b, heldEvent(1, 1))
	if again.ID != a.ID {
		t.Errorf("Ask while leased = %+v, want the same review", again)
	}
	if err := b.Settle(t.Context(), c, valid(), nil); !errors.Is(err, fallback.ErrLeaseLost) {
		t.Errorf("Settle of what was asked since = %v, want ErrLeaseLost", err)
	}
	ripenNow(t, b, 1, e.Fingerprint)
	must(t, "Settle", b.Settle(t.Context(), claimOne(t, b), valid(), nil))
	ripenNow(t, b, 0, e.Fingerprint)
}

func askForgotten(t *testing.T, b Bed) {
	ask(t, b, heldEvent(1, 1))
	b.Advance(t, latest/2)
	ask(t, b, heldEvent(1, 1))
	b.Advance(t, latest/2-quiet)
	none(t, b, "before the latest time")
	b.Advance(t, quiet+b.Slack)
	if c := claimOne(t, b); c.AskedAt.After(c.Now) {
		t.Errorf("AskedAt = %v at %v, want a time that is over", c.AskedAt, c.Now)
	}
}

func askMixed(t *testing.T, b Bed) {
	e := heldEvent(1, 1)
	ask(t, b, e)
	b.Advance(t, quiet)
	b.due(t, "an event without a hold", ask(t, b, event(1, 1)), quiet)
	ripenNow(t, b, 0, e.Fingerprint) // its quiet is not over for whoever came without
	b.Advance(t, quiet/2)
	b.due(t, "held again", ask(t, b, heldEvent(1, 1)), latest-quiet-quiet/2)
	ripenNow(t, b, 1, e.Fingerprint)
	claimOne(t, b)
}

func askJoins(t *testing.T, b Bed) {
	e := entry(1, 1)
	e.CheckIn, e.Cause, e.Reason = 6*time.Hour, verdict.CauseMailbox, verdict.Greylisted
	record(t, b, e)
	a := ask(t, b, event(1, 1))
	b.due(t, "the check", a, quiet)
	if a.ID != e.ID || a.Fresh {
		t.Errorf("Ask = %+v, want the open review %s", a, e.ID)
	}
	if r := review(t, b, e.ID); r.Reason != e.Reason || r.Cause != e.Cause || r.Attempts != 1 || len(r.Trail) != 1 {
		t.Errorf("Review = %+v, want it as it was", r)
	}
	b.Advance(t, quiet+b.Slack)
	if c := claimOne(t, b); c.Priority != fallback.PriorityInteractive || c.AskedAt.IsZero() || c.Attempts != 1 {
		t.Errorf("Claim = %+v, want the row's own priority and attempts, and that it was asked for", c)
	}
	if st := stats(t, b); st.Open != 1 {
		t.Errorf("Stats.Open = %d, want 1", st.Open)
	}
}

func askLeased(t *testing.T, b Bed) {
	record(t, b, entry(1, 1))
	for i := range 2 * fallback.MaxClaims {
		c := claimLong(t, b)
		if c.Claims != 1 {
			t.Fatalf("claim %d is counted as the %d., want the first: none crashed", i, c.Claims)
		}
		b.due(t, "the check", ask(t, b, event(1, 1)), quiet)
		for what, err := range map[string]error{
			"Heartbeat": b.Heartbeat(t.Context(), c.ReviewID, c.Token, lease),
			"Postpone":  b.Postpone(t.Context(), c, fallback.Postponement{Cause: verdict.CauseMailbox}),
			"Settle":    b.Settle(t.Context(), c, valid(), nil),
			"GiveBack":  b.GiveBack(t.Context(), []fallback.Claim{c}),
			"Kill":      b.Kill(t.Context(), c, verdict.Unmapped),
		} {
			if !errors.Is(err, fallback.ErrLeaseLost) {
				t.Errorf("%s under the lease from before the event = %v, want ErrLeaseLost", what, err)
			}
		}
		none(t, b, "before the quiet is over")
		b.Advance(t, quiet+b.Slack)
	}
	// A worker that crashed does count.
	claimLong(t, b)
	b.Advance(t, quiet+b.Slack)
	ask(t, b, event(1, 1))
	if c := claimLong(t, b); c.Claims != 2 {
		t.Errorf("Claims = %d after a crash, want 2", c.Claims)
	}
}

// claimLong takes the only row that is due, under a lease that no busy machine outlasts.
func claimLong(t *testing.T, s Store) fallback.Claim {
	t.Helper()
	res, err := s.Claim(t.Context(), fallback.ClaimRequest{Max: 2, Lease: quiet})
	if err != nil || len(res.Claims) != 1 {
		t.Fatalf("Claim gave %d rows, %v, want 1", len(res.Claims), err)
	}
	return res.Claims[0]
}

func askDue(t *testing.T, b Bed) {
	record(t, b, entry(1, 1))
	for _, e := range []fallback.Event{event(1, 1), heldEvent(1, 1), event(1, 1)} {
		b.due(t, "what is due", ask(t, b, e), 0)
	}
	if c := claimOne(t, b); c.AskedAt.IsZero() || c.AskedAt.After(c.Now) {
		t.Errorf("AskedAt = %v at %v, want a time that is over", c.AskedAt, c.Now)
	}
}

func askSettleOpen(t *testing.T, b Bed) {
	before := valid()
	before.CheckedAt = time.Now().Add(-b.Slack - time.Minute)
	e := event(1, 1)
	ask(t, b, e)
	if _, settled, err := b.SettleOpen(t.Context(), e.Fingerprint, before, nil); settled || err != nil {
		t.Errorf("SettleOpen with a verdict from before = %t, %v, want nothing", settled, err)
	}
	// A call that was sent before and answered after does not know of the event.
	late := valid()
	late.CheckedAt = time.Now().Add(b.Slack + time.Minute)
	late.Trail = []verdict.Attempt{{At: before.CheckedAt, Outcome: verdict.AttemptAnswered}}
	if _, settled, err := b.SettleOpen(t.Context(), e.Fingerprint, late, nil); settled || err != nil {
		t.Errorf("SettleOpen with a verdict that began before = %t, %v, want nothing", settled, err)
	}
	after := valid()
	after.CheckedAt = late.CheckedAt
	if id, settled, err := b.SettleOpen(t.Context(), e.Fingerprint, after, nil); id != e.ID || !settled || err != nil {
		t.Errorf("SettleOpen with a verdict from after = %s, %t, %v, want it settled", id, settled, err)
	}
	// While events are held more may come.
	held := heldEvent(1, 1)
	ask(t, b, held)
	if _, settled, err := b.SettleOpen(t.Context(), e.Fingerprint, after, nil); settled || err != nil {
		t.Errorf("SettleOpen of a held review = %t, %v, want nothing", settled, err)
	}
}

func ripenOthers(t *testing.T, b Bed) {
	scheduled := entry(1, 1)
	scheduled.CheckIn = time.Hour
	record(t, b, scheduled)
	ask(t, b, event(2, 2))
	ask(t, b, heldEvent(3, 3))
	two := heldEvent(4, 4)
	ask(t, b, two)
	fps := []normalize.Fingerprint{scheduled.Fingerprint, event(2, 2).Fingerprint, two.Fingerprint, event(9, 9).Fingerprint}
	ripenNow(t, b, 1, fps...)
	if c := claimOne(t, b); c.ReviewID != two.ID {
		t.Errorf("Claim gave %s, want the ripe one", c.ReviewID)
	}
	ripenNow(t, b, 0)
	if _, err := b.Ripen(t.Context(), make([]normalize.Fingerprint, fallback.MaxRipen+1)); err == nil {
		t.Error("Ripen of too many gave no error")
	}
}

func askCrowd(t *testing.T, b Bed) {
	var wg sync.WaitGroup
	got := make([]fallback.Asked, 100)
	for i := range got {
		wg.Go(func() {
			e := event(1, 1)
			e.Held = i%2 == 0
			var err error
			for range 20 { // a busy machine's server may cut a statement off
				if got[i], err = b.Ask(t.Context(), e); err == nil {
					return
				}
			}
			t.Errorf("Ask = %v, want no error", err)
		})
	}
	wg.Wait()
	fresh := 0
	for _, a := range got {
		if a.ID != got[0].ID {
			t.Errorf("Ask gave %s and %s, want one review", a.ID, got[0].ID)
		}
		if a.Fresh {
			fresh++
		}
	}
	if st := stats(t, b); st.Open != 1 || fresh != 1 {
		t.Errorf("%d are open and %d were fresh, want one", st.Open, fresh)
	}
	b.Advance(t, latest+b.Slack)
	claimOne(t, b)
}

func askFull(t *testing.T, b Bed) {
	b.SetMaxOpen(1)
	ask(t, b, event(1, 1))
	if _, err := b.Ask(t.Context(), event(2, 2)); !errors.Is(err, fallback.ErrQueueFull) {
		t.Errorf("Ask over the bound = %v, want ErrQueueFull", err)
	}
	ask(t, b, event(1, 1)) // joins
}

func askErased(t *testing.T, b Bed) {
	before := heldEvent(1, 1)
	ask(t, b, before)
	late := heldEvent(1, 1)
	if got := eraseNow(t, b, before.Fingerprint); got != (fallback.Erased{Reviews: 1}) {
		t.Errorf("Erase = %+v, want the asked review", got)
	}
	if _, err := b.Ask(t.Context(), late); !errors.Is(err, fallback.ErrErased) {
		t.Errorf("Ask from before the erasure = %v, want ErrErased", err)
	}
	ripenNow(t, b, 0, before.Fingerprint)
	if after := ask(t, b, heldEvent(1, 1)); !after.Fresh {
		t.Errorf("Ask after the erasure = %+v, want a review of its own", after)
	}
}

func askRefuses(t *testing.T, b Bed) {
	for name, spoil := range map[string]func(*fallback.Event){
		"no id":                         func(e *fallback.Event) { e.ID = "" },
		"no address":                    func(e *fallback.Event) { e.Address = normalize.Address{} },
		"no quiet":                      func(e *fallback.Event) { e.Quiet = 0 },
		"a quiet over the longest wait": func(e *fallback.Event) { e.Max = e.Quiet - 1 },
		"a negative domain":             func(e *fallback.Event) { e.DomainKey = -1 },
	} {
		e := event(1, 1)
		spoil(&e)
		if _, err := b.Ask(t.Context(), e); err == nil {
			t.Errorf("%s: Ask gave no error", name)
		}
	}
}
