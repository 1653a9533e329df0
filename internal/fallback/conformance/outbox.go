package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/verdict"
)

// The stories of the outbox.
var outboxStories = []story{
	{"each watcher with a callback gets one message an end", outboxOneEach},
	{"a settled batch writes messages for what it settled", outboxBatch},
	{"a review and its messages end together or not at all", outboxTogether},
	{"a watcher of an ended review gets a message at once", outboxLateWatcher},
	{"who joins while a review ends is told", outboxRace},
	{"messages are leased under a token", outboxLease},
	{"a callback's messages wait for nobody else's", outboxRooms},
	{"given up messages are kept for a week", outboxGivenUp},
	{"erasure takes messages along", outboxErased},
	{"two claimants share the messages", outboxTwo},
}

func withCallback(e fallback.Entry, name string) fallback.Entry {
	e.Watcher.Callback = name
	return e
}

// notices claims all that is due of these callbacks.
func notices(t *testing.T, s Store, names ...string) []fallback.Notice {
	t.Helper()
	room := map[string]int{}
	for _, n := range names {
		room[n] = fallback.MaxNotices / len(names)
	}
	got, err := s.ClaimNotices(t.Context(), room, lease)
	must(t, "ClaimNotices", err)
	return got
}

func outbox(t *testing.T, s Store) fallback.OutboxStats {
	t.Helper()
	st, err := s.OutboxStats(t.Context())
	must(t, "OutboxStats", err)
	return st
}

// told says who is told what of which review, sorted.
func told(list []fallback.Notice) []string {
	out := make([]string, len(list))
	for i, n := range list {
		out[i] = strings.Join([]string{n.ReviewID, n.Event, n.Watcher.Client, n.Watcher.Flow, n.Watcher.Callback}, " ")
	}
	slices.Sort(out)
	return out
}

func sameTold(t *testing.T, what string, got []fallback.Notice, want ...string) {
	t.Helper()
	slices.Sort(want)
	if g := told(got); !slices.Equal(g, want) {
		t.Errorf("%s: messages are\n%s\nwant\n%s", what, strings.Join(g, "\n"), strings.Join(want, "\n"))
	}
}

func outboxOneEach(t *testing.T, b Bed) {
	settled, late, dead := entry(1, 1), entry(2, 2), entry(3, 3)
	for _, e := range []fallback.Entry{settled, late, dead} {
		record(t, b, e) // a watcher without a callback
		for range 2 {
			record(t, b, withCallback(e, "crm"))
		}
		other := withCallback(e, "mail")
		other.Watcher.Flow = "high_risk"
		record(t, b, other)
	}
	if got := notices(t, b, "crm", "mail"); len(got) != 0 {
		t.Fatalf("%d messages before any end, want none", len(got))
	}
	before := time.Now()
	if _, ok, err := b.SettleOpen(t.Context(), late.Fingerprint, valid(), nil); err != nil || !ok {
		t.Fatalf("SettleOpen = %v, %v, want it settled", ok, err)
	}
	for _, c := range claim(t, b, 10) {
		if c.ReviewID == dead.ID {
			must(t, "Kill", b.Kill(t.Context(), c, verdict.Unmapped))
		} else {
			must(t, "Settle", b.Settle(t.Context(), c, valid(), nil))
		}
	}
	if st := outbox(t, b); st.Waiting != 6 || st.GivenUp != 0 {
		t.Errorf("OutboxStats = %+v, want 6 that wait", st)
	}
	got := notices(t, b, "crm", "mail")
	sameTold(t, "after the ends", got,
		settled.ID+" review.settled forms signup crm", settled.ID+" review.settled forms high_risk mail",
		late.ID+" review.settled forms signup crm", late.ID+" review.settled forms high_risk mail",
		dead.ID+" review.dead forms signup crm", dead.ID+" review.dead forms high_risk mail")
	ids := map[string]bool{}
	for _, n := range got {
		ids[n.ID] = true
		b.near(t, "RecordedAt", n.RecordedAt, before)
		if n.Attempts != 1 || n.Token == 0 {
			t.Errorf("message has attempts %d and token %d, want 1 and one", n.Attempts, n.Token)
		}
	}
	if len(ids) != 6 {
		t.Errorf("%d ids, want 6", len(ids))
	}
	if _, ok, err := b.SettleOpen(t.Context(), late.Fingerprint, valid(), nil); err != nil || ok {
		t.Errorf("SettleOpen again = %v, %v, want nothing to settle", ok, err)
	}
	if st := outbox(t, b); st.Waiting != 6 {
		t.Errorf("%d messages wait after an end that was none, want 6", st.Waiting)
	}
	// A dead review that is tried again has another end.
	must(t, "Replay", b.Replay(t.Context(), dead.ID))
	must(t, "Settle", b.Settle(t.Context(), claimOne(t, b), valid(), nil))
	sameTold(t, "after the replay", notices(t, b, "crm", "mail"),
		dead.ID+" review.settled forms signup crm", dead.ID+" review.settled forms high_risk mail")
}

func outboxBatch(t *testing.T, b Bed) {
	var want []string
	for i := range 20 {
		e := entry(i, i)
		if i%2 == 0 {
			e = withCallback(e, "crm")
		}
		record(t, b, e)
		if i%2 == 0 && i != 4 {
			want = append(want, e.ID+" review.settled forms signup crm")
		}
	}
	var batch []fallback.Settlement
	for _, c := range claim(t, b, 20) {
		if c.DomainKey == 4 { // one that was lost is not told
			c.Token += 1000
		}
		batch = append(batch, fallback.Settlement{Claim: c, Verdict: valid()})
	}
	lost, err := b.SettleBatch(t.Context(), batch)
	must(t, "SettleBatch", err)
	if len(lost) != 1 {
		t.Errorf("%d lost, want 1", len(lost))
	}
	sameTold(t, "after the batch", notices(t, b, "crm"), want...)
}

func outboxTogether(t *testing.T, b Bed) {
	e, other := withCallback(entry(1, 1), "crm"), entry(2, 2)
	record(t, b, e)
	record(t, b, other)
	b.Refuse(t, "outbox")
	for _, c := range claim(t, b, 2) {
		if c.ReviewID == other.ID {
			must(t, "Settle without a callback", b.Settle(t.Context(), c, valid(), nil))
			continue
		}
		if err := b.Settle(t.Context(), c, valid(), nil); err == nil || errors.Is(err, fallback.ErrLeaseLost) {
			t.Errorf("Settle = %v, want the outbox's error", err)
		}
		if err := b.Kill(t.Context(), c, verdict.Unmapped); err == nil || errors.Is(err, fallback.ErrLeaseLost) {
			t.Errorf("Kill = %v, want the outbox's error", err)
		}
		if _, _, err := b.SettleOpen(t.Context(), c.Fingerprint, valid(), nil); err == nil {
			t.Error("SettleOpen = no error, want the outbox's")
		}
	}
	if r := review(t, b, e.ID); r.State != fallback.Open || r.Address.IsZero() {
		t.Errorf("review is %s, want open and with its address", r.State)
	}
	if st := stats(t, b); st.Open != 1 {
		t.Errorf("%d open, want 1", st.Open)
	}
}

func outboxLateWatcher(t *testing.T, b Bed) {
	settled, dead, open := entry(1, 1), entry(2, 2), entry(3, 3)
	open.CheckIn = time.Hour
	for _, e := range []fallback.Entry{settled, dead, open} {
		record(t, b, e)
	}
	for _, c := range claim(t, b, 3) {
		if c.ReviewID == dead.ID {
			must(t, "Kill", b.Kill(t.Context(), c, verdict.Unmapped))
		} else {
			must(t, "Settle", b.Settle(t.Context(), c, valid(), nil))
		}
	}
	crm := fallback.Watcher{Client: "forms", Flow: "signup", Callback: "crm"}
	for range 2 { // known ones change nothing
		for _, id := range []string{settled.ID, dead.ID, open.ID, newID()} {
			must(t, "Watch", b.Watch(t.Context(), id, crm))
			must(t, "Watch", b.Watch(t.Context(), id, fallback.Watcher{Client: "forms", Flow: "other"}))
		}
	}
	sameTold(t, "after Watch", notices(t, b, "crm"), settled.ID+" review.settled forms signup crm", dead.ID+" review.dead forms signup crm")
	if _, ok, err := b.SettleOpen(t.Context(), open.Fingerprint, valid(), nil); err != nil || !ok {
		t.Fatalf("SettleOpen = %v, %v, want it settled", ok, err)
	}
	sameTold(t, "after the end", notices(t, b, "crm"), open.ID+" review.settled forms signup crm")
}

// outboxRace has watchers come in the moment in which a review ends: in it or after it, each is told.
func outboxRace(t *testing.T, b Bed) {
	var want []string
	const rounds = 20
	for i := range rounds {
		e := entry(i, i)
		record(t, b, e)
		c := claimOne(t, b)
		var all sync.WaitGroup
		for j := range 3 {
			who := func(does string) fallback.Watcher {
				return fallback.Watcher{Client: fmt.Sprint(does, "-", j), Flow: "signup", Callback: "crm"}
			}
			all.Go(func() {
				again := entry(i, i)
				again.Watcher, again.CheckIn, again.Counted = who("joins"), time.Hour, true
				if _, err := b.Record(t.Context(), again); err != nil {
					t.Errorf("Record = %v, want no error", err)
				}
			})
			all.Go(func() {
				if err := b.Watch(t.Context(), e.ID, who("watches")); err != nil {
					t.Errorf("Watch = %v, want no error", err)
				}
			})
			all.Go(func() {
				a := entry(i, i)
				_, err := b.Ask(t.Context(), fallback.Event{ID: newID(), Fingerprint: a.Fingerprint, DomainKey: a.DomainKey, Address: a.Address,
					Watcher: who("asks"), Quiet: time.Hour, Max: 2 * time.Hour, Held: true})
				if err != nil {
					t.Errorf("Ask = %v, want no error", err)
				}
			})
		}
		all.Go(func() {
			if err := b.Settle(t.Context(), c, valid(), nil); err != nil && !errors.Is(err, fallback.ErrLeaseLost) {
				t.Errorf("Settle = %v, want no error", err)
			}
		})
		all.Wait()
		if r := review(t, b, e.ID); r.State == fallback.Open { // an event took the lease away
			_, _, err := b.SettleOpen(t.Context(), e.Fingerprint, later(valid()), nil)
			must(t, "SettleOpen", err)
		}
		watchers, err := b.Watchers(t.Context(), e.ID)
		must(t, "Watchers", err)
		for _, w := range watchers {
			if w.Callback != "" {
				want = append(want, e.ID+" review.settled "+w.Client+" signup crm")
			}
		}
		// What opened another review has its end, too.
		found, err := b.Lookup(t.Context(), e.Fingerprint)
		must(t, "Lookup", err)
		if found.Review != nil {
			watchers, err := b.Watchers(t.Context(), found.Review.ID)
			must(t, "Watchers", err)
			_, _, err = b.SettleOpen(t.Context(), e.Fingerprint, later(valid()), nil)
			must(t, "SettleOpen", err)
			for _, w := range watchers {
				want = append(want, found.Review.ID+" review.settled "+w.Client+" signup crm")
			}
		}
	}
	var got []fallback.Notice
	for more := notices(t, b, "crm"); len(more) > 0; more = notices(t, b, "crm") {
		got = append(got, more...)
	}
	if len(want) < 3*rounds {
		t.Errorf("%d watchers were told in %d rounds, want far more: it shows nothing", len(want), rounds)
	}
	sameTold(t, "after the races", got, want...)
}

// later began after every event.
func later(v verdict.Verdict) verdict.Verdict {
	v.CheckedAt = v.CheckedAt.Add(24 * time.Hour)
	return v
}

func outboxLease(t *testing.T, b Bed) {
	e := withCallback(entry(1, 1), "crm")
	record(t, b, e)
	must(t, "Settle", b.Settle(t.Context(), claimOne(t, b), valid(), nil))
	first := notices(t, b, "crm")
	if len(first) != 1 || len(notices(t, b, "crm")) != 0 {
		t.Fatalf("claimed %d and then more, want one and then none", len(first))
	}
	b.Advance(t, lease+time.Minute)
	second := notices(t, b, "crm")
	if len(second) != 1 || second[0].ID != first[0].ID || second[0].Attempts != 2 || second[0].Token == first[0].Token {
		t.Fatalf("after its lease the message is %+v, want %s under another token", second, first[0].ID)
	}
	if second[0].Now.Sub(second[0].RecordedAt) < lease {
		t.Errorf("its age is %v, want at least the lease", second[0].Now.Sub(second[0].RecordedAt))
	}
	none := first[0]
	none.Token = 0
	for what, err := range map[string]error{
		"EndNotice":             b.EndNotice(t.Context(), first[0], true, ""),
		"EndNotice, given up":   b.EndNotice(t.Context(), first[0], false, "lost"),
		"DelayNotice":           b.DelayNotice(t.Context(), first[0], 0, "lost"),
		"EndNotice, no lease":   b.EndNotice(t.Context(), none, true, ""),
		"DelayNotice, no lease": b.DelayNotice(t.Context(), none, 0, ""),
	} {
		if !errors.Is(err, fallback.ErrLeaseLost) {
			t.Errorf("%s with a lost token = %v, want ErrLeaseLost", what, err)
		}
	}
	must(t, "DelayNotice", b.DelayNotice(t.Context(), second[0], time.Hour, "target answered 500"))
	if got := notices(t, b, "crm"); len(got) != 0 {
		t.Errorf("claimed %d while delayed, want none", len(got))
	}
	if err := b.EndNotice(t.Context(), second[0], true, ""); !errors.Is(err, fallback.ErrLeaseLost) {
		t.Errorf("EndNotice after the delay = %v, want ErrLeaseLost", err)
	}
	b.Advance(t, time.Hour+time.Minute)
	third := notices(t, b, "crm")
	if len(third) != 1 || third[0].ID != first[0].ID || third[0].Attempts != 3 {
		t.Fatalf("after the delay the message is %+v, want %s at its third attempt", third, first[0].ID)
	}
	must(t, "EndNotice", b.EndNotice(t.Context(), third[0], true, ""))
	if st := outbox(t, b); st != (fallback.OutboxStats{}) {
		t.Errorf("OutboxStats = %+v after the delivery, want nothing", st)
	}
}

func outboxRooms(t *testing.T, b Bed) {
	var order []string
	for i := range 6 {
		e := withCallback(entry(i, i), map[bool]string{true: "slow", false: "crm"}[i < 4])
		record(t, b, e)
		must(t, "Settle", b.Settle(t.Context(), claimOne(t, b), valid(), nil))
		b.Advance(t, time.Minute)
		order = append(order, e.ID)
	}
	claimed := func(room map[string]int) (ids []string) {
		got, err := b.ClaimNotices(t.Context(), room, 24*time.Hour)
		must(t, "ClaimNotices", err)
		for _, n := range got {
			ids = append(ids, n.ReviewID)
		}
		return ids
	}
	if got := claimed(nil); len(got) != 0 {
		t.Errorf("claimed %d for nobody, want none", len(got))
	}
	if got := claimed(map[string]int{"other": 5, "crm": 0}); len(got) != 0 {
		t.Errorf("claimed %d for another, want none", len(got))
	}
	if got, want := claimed(map[string]int{"slow": 2, "crm": 5}), []string{order[0], order[1], order[4], order[5]}; !slices.Equal(got, want) {
		t.Errorf("claimed %v, want the two longest due of slow and both of crm, %v", got, want)
	}
	if got, want := claimed(map[string]int{"slow": 5, "crm": 5}), order[2:4]; !slices.Equal(got, want) {
		t.Errorf("claimed %v, want what slow has left, %v", got, want)
	}
	if st := outbox(t, b); st.Waiting != 6 || (st.Oldest-6*time.Minute).Abs() > b.Slack+time.Microsecond {
		t.Errorf("OutboxStats = %+v, want 6, the oldest of 6 minutes", st)
	}
}

func outboxGivenUp(t *testing.T, b Bed) {
	for i, name := range []string{"crm", "gone"} {
		record(t, b, withCallback(entry(i, i), name))
		must(t, "Settle", b.Settle(t.Context(), claimOne(t, b), valid(), nil))
	}
	b.Advance(t, 24*time.Hour)
	n := notices(t, b, "crm")
	if len(n) != 1 {
		t.Fatalf("claimed %d, want 1", len(n))
	}
	must(t, "EndNotice", b.EndNotice(t.Context(), n[0], false, "target answered 500"))
	if st := outbox(t, b); st.Waiting != 1 || st.GivenUp != 1 {
		t.Errorf("OutboxStats = %+v, want one that waits and one given up", st)
	}
	if got := notices(t, b, "crm"); len(got) != 0 {
		t.Errorf("claimed %d after it was given up, want none", len(got))
	}
	if !strings.Contains(b.Dump(t), "target answered 500") {
		t.Error("the dump does not say why it was given up")
	}
	sweep := func() {
		t.Helper()
		_, err := b.Sweep(t.Context(), fallback.Retention{Ended: 300 * 24 * time.Hour})
		must(t, "Sweep", err)
	}
	b.Advance(t, 6*24*time.Hour-time.Hour)
	sweep()
	if st := outbox(t, b); st.Waiting != 1 || st.GivenUp != 1 {
		t.Errorf("OutboxStats = %+v within the week, want both kept", st)
	}
	b.Advance(t, 2*time.Hour) // a week since nobody took the other one
	sweep()
	if st := outbox(t, b); st.Waiting != 0 || st.GivenUp != 1 {
		t.Errorf("OutboxStats = %+v, want the one that nobody takes gone", st)
	}
	b.Advance(t, 24*time.Hour)
	sweep()
	if st := outbox(t, b); st != (fallback.OutboxStats{}) {
		t.Errorf("OutboxStats = %+v a week after it was given up, want nothing", st)
	}
}

func outboxErased(t *testing.T, b Bed) {
	e, stays := withCallback(entry(1, 1), "crm"), withCallback(entry(2, 2), "crm")
	for _, e := range []fallback.Entry{e, stays} {
		record(t, b, e)
		must(t, "Settle", b.Settle(t.Context(), claimOne(t, b), valid(), nil))
	}
	held := notices(t, b, "crm")
	eraseNow(t, b, e.Fingerprint)
	for _, n := range held {
		err := b.EndNotice(t.Context(), n, true, "")
		if gone := n.ReviewID == e.ID; gone != errors.Is(err, fallback.ErrLeaseLost) || !gone && err != nil {
			t.Errorf("EndNotice = %v, of the erased one %t", err, gone)
		}
	}
	if st := outbox(t, b); st.Waiting != 0 {
		t.Errorf("OutboxStats = %+v, want nothing", st)
	}
}

func outboxTwo(t *testing.T, b Bed) {
	const n = 60
	for i := range n {
		record(t, b, withCallback(entry(i, i), "crm"))
	}
	for _, c := range slices.Concat(claim(t, b, 50), claim(t, b, 50)) {
		must(t, "Settle", b.Settle(t.Context(), c, valid(), nil))
	}
	var mu sync.Mutex
	seen := map[string]int{}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				got, err := b.ClaimNotices(t.Context(), map[string]int{"crm": 3}, time.Hour)
				if err != nil {
					t.Errorf("ClaimNotices = %v, want no error", err)
				}
				if len(got) == 0 {
					return
				}
				mu.Lock()
				for _, n := range got {
					seen[n.ID]++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	for id, times := range seen {
		if times != 1 {
			t.Errorf("message %s was claimed %d times, want once", id, times)
		}
	}
	// Who comes while another's transaction holds the rest goes without; it is due for the next.
	if left := notices(t, b, "crm"); len(seen)+len(left) != n {
		t.Errorf("%d were claimed and %d are left, want %d in all", len(seen), len(left), n)
	}
}
