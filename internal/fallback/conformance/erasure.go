package conformance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// The stories of erasure.
var erasureStories = []story{
	{"erasure removes all of an address", eraseAll},
	{"erasure takes the former keys' fingerprints along", eraseFormer},
	{"erasure of a leased row", eraseLeased},
	{"what began before an erasure writes nothing", eraseLate},
	{"an erasure is remembered for an hour", eraseForgotten},
	{"erasure refuses nonsense", eraseRefuses},
	{"erasure beside everything", eraseBeside},
}

func eraseNow(t *testing.T, s Store, fps ...normalize.Fingerprint) fallback.Erased {
	t.Helper()
	got, err := s.Erase(t.Context(), fallback.Erasure{Fingerprints: fps, UpTo: newID()})
	must(t, "Erase", err)
	return got
}

func putVerdict(t *testing.T, s Store, fp normalize.Fingerprint, v verdict.Verdict) {
	t.Helper()
	must(t, "PutVerdicts", s.PutVerdicts(t.Context(), []fallback.Stored{{Fingerprint: fp, Verdict: v}}))
}

// fill leaves a settled, a dead and an open review of an address, two verdicts and two idempotent answers.
func fill(t *testing.T, b Bed, user int) (e fallback.Entry) {
	t.Helper()
	record(t, b, entry(user, user))
	must(t, "Settle", b.Settle(t.Context(), claimOne(t, b), valid(), nil)) // its verdict is the first
	record(t, b, entry(user, user))
	must(t, "Kill", b.Kill(t.Context(), claimOne(t, b), verdict.Unmapped))
	e = entry(user, user)
	e.CheckIn = time.Hour
	record(t, b, e)
	putVerdict(t, b, e.Fingerprint, valid())
	keep(t, b, 10*user, reserveOwn(t, b, keyOf(10*user, e)), "answer")
	reserveOwn(t, b, keyOf(10*user+1, e))
	return e
}

func keyOf(key int, e fallback.Entry) fallback.Reservation {
	r := reservation(key, key)
	r.Fingerprint = e.Fingerprint
	return r
}

func eraseAll(t *testing.T, b Bed) {
	gone, stays := fill(t, b, 1), fill(t, b, 2)
	if n := strings.Count(b.Dump(t), fmt.Sprintf("%x", gone.Fingerprint[:])); n < 7 {
		t.Fatalf("the dump names the fingerprint %d times before, want all 7 rows: it shows nothing", n)
	}
	want := fallback.Erased{Reviews: 3, Verdicts: 2, Answers: 2}
	if got := eraseNow(t, b, gone.Fingerprint); got != want {
		t.Errorf("Erase = %+v, want %+v", got, want)
	}
	if n := strings.Count(b.Dump(t), fmt.Sprintf("%x", gone.Fingerprint[:])); n != 1 {
		t.Errorf("the dump names the fingerprint %d times after, want 1: the erasure's own", n)
	}
	found, err := b.Lookup(t.Context(), gone.Fingerprint)
	must(t, "Lookup", err)
	if found != (fallback.Found{}) {
		t.Errorf("Lookup = %+v, want nothing", found)
	}
	if _, err := b.Review(t.Context(), gone.ID); !errors.Is(err, fallback.ErrUnknownID) {
		t.Errorf("Review = %v, want ErrUnknownID", err)
	}
	if w, err := b.Watchers(t.Context(), gone.ID); err != nil || len(w) != 0 {
		t.Errorf("Watchers = %v, %v, want none", w, err)
	}
	if st := stats(t, b); st.Open != 1 || st.Dead != 1 {
		t.Errorf("Stats = %+v, want one open and one dead, the other address's", st)
	}
	reserveOwn(t, b, keyOf(10, gone))
	if got := eraseNow(t, b, gone.Fingerprint); got != (fallback.Erased{Answers: 1}) {
		t.Errorf("Erase again = %+v, want the key that was held since", got)
	}
	if got := eraseNow(t, b, stays.Fingerprint); got != want {
		t.Errorf("Erase of the other address = %+v, want all of it, %+v", got, want)
	}
	// What is asked for from now on is like any other.
	b.SetMaxOpen(1)
	again := entry(1, 1)
	record(t, b, again)
	putVerdict(t, b, again.Fingerprint, valid())
	must(t, "Settle", b.Settle(t.Context(), claimOne(t, b), valid(), nil))
	if found, err := b.Lookup(t.Context(), again.Fingerprint); err != nil || found.Verdict == nil {
		t.Errorf("Lookup after a new check = %+v, %v, want its verdict", found, err)
	}
}

func eraseFormer(t *testing.T, b Bed) {
	e := fill(t, b, 1)
	former := normalize.NewFingerprinter([]byte("a key from before a rotation")).Of(e.Address)
	putVerdict(t, b, former, valid())
	old := entry(1, 1)
	old.Fingerprint = former
	record(t, b, old)
	want := fallback.Erased{Reviews: 4, Verdicts: 3, Answers: 2}
	if got := eraseNow(t, b, e.Fingerprint, former); got != want {
		t.Errorf("Erase = %+v, want %+v", got, want)
	}
}

func eraseLeased(t *testing.T, b Bed) {
	e := entry(1, 1)
	record(t, b, e)
	c := claimOne(t, b)
	if got := eraseNow(t, b, e.Fingerprint); got != (fallback.Erased{Reviews: 1}) {
		t.Errorf("Erase = %+v, want the leased review", got)
	}
	for what, err := range map[string]error{
		"Heartbeat": b.Heartbeat(t.Context(), c.ReviewID, c.Token, lease),
		"Postpone":  b.Postpone(t.Context(), c, fallback.Postponement{Cause: verdict.CauseMailbox}),
		"Settle":    b.Settle(t.Context(), c, valid(), nil),
		"Kill":      b.Kill(t.Context(), c, verdict.Unmapped),
		"GiveBack":  b.GiveBack(t.Context(), []fallback.Claim{c}),
	} {
		if !errors.Is(err, fallback.ErrLeaseLost) {
			t.Errorf("%s of an erased review = %v, want ErrLeaseLost", what, err)
		}
	}
	if _, settled, err := b.SettleOpen(t.Context(), e.Fingerprint, valid(), nil); settled || err != nil {
		t.Errorf("SettleOpen of an erased review = %t, %v, want nothing", settled, err)
	}
	if st := stats(t, b); st.Open != 0 || st.Leased != 0 {
		t.Errorf("Stats = %+v, want nothing outstanding", st)
	}
	if found, err := b.Lookup(t.Context(), e.Fingerprint); err != nil || found != (fallback.Found{}) {
		t.Errorf("Lookup = %+v, %v, want nothing: the verdict came back", found, err)
	}
}

func eraseLate(t *testing.T, b Bed) {
	// A verdict that waits to be written, one that is on its way, an amendment and a caller's row, all from before.
	older := newID()
	before := entry(1, 1)
	waiting := valid()
	token := reserveOwn(t, b, keyOf(1, before))
	eraseNow(t, b, before.Fingerprint)
	after := entry(1, 1)
	// An erasure that began earlier and comes second does not undo the later one.
	_, err := b.Erase(t.Context(), fallback.Erasure{Fingerprints: []normalize.Fingerprint{before.Fingerprint}, UpTo: older})
	must(t, "Erase", err)

	other := entry(2, 2)
	v := valid()
	must(t, "PutVerdicts", b.PutVerdicts(t.Context(), []fallback.Stored{
		{Fingerprint: before.Fingerprint, Verdict: waiting}, {Fingerprint: other.Fingerprint, Verdict: v}}))
	if _, err := b.Verdict(t.Context(), waiting.ID); !errors.Is(err, fallback.ErrUnknownID) {
		t.Errorf("Verdict from before the erasure = %v, want ErrUnknownID", err)
	}
	if _, err = b.Verdict(t.Context(), v.ID); err != nil {
		t.Errorf("Verdict of another address in the same batch = %v, want no error", err)
	}
	if _, err := b.Record(t.Context(), before); !errors.Is(err, fallback.ErrErased) {
		t.Errorf("Record from before the erasure = %v, want ErrErased", err)
	}
	if st := stats(t, b); st.Open != 0 {
		t.Errorf("Stats.Open = %d, want 0", st.Open)
	}
	if err := b.KeepAnswer(t.Context(), hash(1), token, []byte("late"), keepTime); !errors.Is(err, fallback.ErrLeaseLost) {
		t.Errorf("KeepAnswer from before the erasure = %v, want ErrLeaseLost", err)
	}
	// Beside a check that began since, too.
	record(t, b, after)
	before.Counted = true
	if _, err := b.Record(t.Context(), before); !errors.Is(err, fallback.ErrErased) {
		t.Errorf("Record from before the erasure, beside a new review = %v, want ErrErased", err)
	}
	if r := review(t, b, after.ID); len(r.Trail) != 1 {
		t.Errorf("the new review's trail has %d entries, want its own alone", len(r.Trail))
	}
}

func eraseForgotten(t *testing.T, b Bed) {
	e := entry(1, 1)
	eraseNow(t, b, e.Fingerprint)
	b.Advance(t, time.Hour-b.Slack-time.Second)
	sweepAll(t, b, 0)
	if _, err := b.Record(t.Context(), e); !errors.Is(err, fallback.ErrErased) {
		t.Errorf("Record within the hour = %v, want ErrErased", err)
	}
	b.Advance(t, b.Slack+time.Second)
	sweepAll(t, b, 1)
	if strings.Contains(b.Dump(t), fmt.Sprintf("%x", e.Fingerprint[:])) {
		t.Error("the fingerprint is in the tables after the hour")
	}
}

func eraseRefuses(t *testing.T, b Bed) {
	fp := fingerprinter.Of(address(1, 1))
	for name, e := range map[string]fallback.Erasure{
		"no fingerprint": {UpTo: newID()},
		"too many":       {UpTo: newID(), Fingerprints: make([]normalize.Fingerprint, fallback.MaxErasure+1)},
		"no id":          {Fingerprints: []normalize.Fingerprint{fp}},
		"malformed id":   {Fingerprints: []normalize.Fingerprint{fp}, UpTo: "0197-no-uuid"},
	} {
		if _, err := b.Erase(t.Context(), e); err == nil {
			t.Errorf("%s: Erase gave no error", name)
		}
	}
}

// eraseBeside erases while workers record, settle and write verdicts. At the end, after a last erasure, nothing is left.
func eraseBeside(t *testing.T, b Bed) {
	const workers, steps = 6, 40
	fp := entry(1, 1).Fingerprint
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			ctx := t.Context()
			rnd := rand.New(rand.NewPCG(2, uint64(w)))
			check := func(what string, err error) {
				if err != nil && !errors.Is(err, fallback.ErrLeaseLost) && !errors.Is(err, fallback.ErrErased) {
					t.Errorf("%s = %v, want no error, a lost lease or an erased address", what, err)
				}
			}
			for range steps {
				switch rnd.IntN(6) {
				case 0, 1:
					_, err := b.Record(ctx, entry(1, 1))
					check("Record", err)
				case 2:
					check("PutVerdicts", b.PutVerdicts(ctx, []fallback.Stored{{Fingerprint: fp, Verdict: valid()}}))
				case 3:
					_, _, err := b.SettleOpen(ctx, fp, valid(), nil)
					check("SettleOpen", err)
				case 4:
					res, err := b.Claim(ctx, fallback.ClaimRequest{Max: 4, Lease: time.Hour})
					check("Claim", err)
					for _, c := range res.Claims {
						check("Settle", b.Settle(ctx, c, valid(), nil))
					}
				default:
					_, err := b.Erase(ctx, fallback.Erasure{Fingerprints: []normalize.Fingerprint{fp}, UpTo: newID()})
					check("Erase", err)
					_, err = b.Sweep(ctx, fallback.Retention{})
					check("Sweep", err)
				}
			}
		})
	}
	wg.Wait()
	eraseNow(t, b, fp)
	if n := strings.Count(b.Dump(t), fmt.Sprintf("%x", fp[:])); n != 1 {
		t.Errorf("the dump names the fingerprint %d times, want 1: the erasure's own", n)
	}
	if st := stats(t, b); st.Open != 0 {
		t.Errorf("Stats.Open = %d, want 0", st.Open)
	}
}
