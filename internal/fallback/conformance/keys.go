package conformance

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
)

// The stories of answers under an Idempotency-Key.
var keyStories = []story{
	{"a key is held by one", keyHeldByOne},
	{"an answer stands under its key", keyAnswered},
	{"an answer is there after a restart", keyReopened},
	{"a freed key is the next one's", keyFreed},
	{"a lease that ran out holds no key", keyLease},
	{"an answer that came too late is not kept", keyLost},
	{"an answer is kept for its time", keyExpires},
	{"keys know nothing of one another", keysApart},
	{"a key refuses what no row can hold", keyRefuses},
}

const (
	keyLeaseTime = 15 * time.Second
	keepTime     = 24 * time.Hour
)

// hash makes a hash out of a number.
func hash(n int) (h fallback.Hash) {
	binary.BigEndian.PutUint64(h[:], uint64(n)+1)
	return h
}

func reservation(key, request int) fallback.Reservation {
	return fallback.Reservation{Key: hash(key), Request: hash(request), Fingerprint: fingerprinter.Of(address(request, 1)), Lease: keyLeaseTime}
}

func reserve(t *testing.T, s Store, r fallback.Reservation) fallback.Held {
	t.Helper()
	h, err := s.ReserveKey(t.Context(), r)
	must(t, "ReserveKey", err)
	if h.Free {
		t.Fatalf("ReserveKey = %+v, want it to be held by someone", h)
	}
	return h
}

// reserveOwn is reserve where the key must be free.
func reserveOwn(t *testing.T, s Store, r fallback.Reservation) int64 {
	t.Helper()
	h := reserve(t, s, r)
	if h.Token == 0 || h.Request != r.Request || h.Answer != nil {
		t.Fatalf("ReserveKey of a free key = %+v, want a token and no answer", h)
	}
	return h.Token
}

func keep(t *testing.T, s Store, key int, token int64, answer string) {
	t.Helper()
	must(t, "KeepAnswer", s.KeepAnswer(t.Context(), hash(key), token, []byte(answer), keepTime))
}

func keyHeldByOne(t *testing.T, b Bed) {
	const crowd = 40
	var wg sync.WaitGroup
	got := make([]fallback.Held, crowd)
	errs := make([]error, crowd)
	for i := range crowd {
		wg.Go(func() { got[i], errs[i] = b.ReserveKey(t.Context(), reservation(1, i)) })
	}
	wg.Wait()
	holder := -1
	for i, h := range got {
		must(t, "ReserveKey", errs[i])
		if h.Token != 0 && holder >= 0 {
			t.Fatalf("callers %d and %d both hold the key", holder, i)
		}
		if h.Token != 0 {
			holder = i
		}
	}
	if holder < 0 {
		t.Fatal("nobody holds the key")
	}
	for i, h := range got {
		if h.Request != hash(holder) || h.Answer != nil || h.Free {
			t.Errorf("caller %d got %+v, want the holder's request, in work", i, h)
		}
	}
	h, err := b.ReadKey(t.Context(), hash(1))
	must(t, "ReadKey", err)
	if h.Token != 0 || h.Request != hash(holder) || h.Free || h.Answer != nil {
		t.Errorf("ReadKey = %+v, want the holder's request, in work, and no token", h)
	}
}

func keyAnswered(t *testing.T, b Bed) {
	h, err := b.ReadKey(t.Context(), hash(1))
	must(t, "ReadKey", err)
	if !h.Free {
		t.Errorf("ReadKey of an unknown key = %+v, want free", h)
	}
	const answer = "{\"status\":202}\x00\xff"
	token := reserveOwn(t, b, reservation(1, 1))
	keep(t, b, 1, token, answer)
	keep(t, b, 1, token, answer) // a try whose outcome was unknown, made again
	for _, request := range []int{1, 2} {
		if h := reserve(t, b, reservation(1, request)); h.Token != 0 || h.Request != hash(1) || string(h.Answer) != answer {
			t.Errorf("ReserveKey for request %d = %+v, want the first request and its answer", request, h)
		}
	}
	h, err = b.ReadKey(t.Context(), hash(1))
	must(t, "ReadKey", err)
	if h.Request != hash(1) || string(h.Answer) != answer || h.Free {
		t.Errorf("ReadKey = %+v, want the first request and its answer", h)
	}
	// An answer is never freed.
	must(t, "FreeKey", b.FreeKey(t.Context(), hash(1), token))
	if h := reserve(t, b, reservation(1, 1)); string(h.Answer) != answer {
		t.Errorf("ReserveKey after FreeKey of an answered key = %+v, want the answer", h)
	}
}

func keyReopened(t *testing.T, b Bed) {
	keep(t, b, 1, reserveOwn(t, b, reservation(1, 1)), "answer")
	token := reserveOwn(t, b, reservation(2, 1))
	s := b.Open(t, Sealer(0))
	if h := reserve(t, s, reservation(1, 1)); h.Token != 0 || string(h.Answer) != "answer" {
		t.Errorf("ReserveKey after a restart = %+v, want the answer", h)
	}
	if h := reserve(t, s, reservation(2, 1)); h.Token != 0 || h.Answer != nil {
		t.Errorf("ReserveKey after a restart within the lease = %+v, want it in work", h)
	}
	keep(t, s, 2, token, "late")
}

func keyFreed(t *testing.T, b Bed) {
	first := reserveOwn(t, b, reservation(1, 1))
	must(t, "FreeKey of another token", b.FreeKey(t.Context(), hash(1), first+2))
	if h := reserve(t, b, reservation(1, 1)); h.Token != 0 {
		t.Fatal("another's token freed the key")
	}
	must(t, "FreeKey", b.FreeKey(t.Context(), hash(1), first))
	must(t, "FreeKey again", b.FreeKey(t.Context(), hash(1), first))
	second := reserveOwn(t, b, reservation(1, 2)) // another request, since nothing was answered
	if second == first {
		t.Error("two holders drew the same token")
	}
	must(t, "FreeKey of the first", b.FreeKey(t.Context(), hash(1), first))
	if h := reserve(t, b, reservation(1, 1)); h.Token != 0 || h.Request != hash(2) {
		t.Errorf("ReserveKey = %+v, want it held by the second", h)
	}
}

func keyLease(t *testing.T, b Bed) {
	reserveOwn(t, b, reservation(1, 1)) // and crashes
	b.Advance(t, keyLeaseTime-b.Slack-time.Second)
	if h := reserve(t, b, reservation(1, 1)); h.Token != 0 {
		t.Fatal("the key was taken over within the lease")
	}
	b.Advance(t, b.Slack+time.Second)
	h, err := b.ReadKey(t.Context(), hash(1))
	must(t, "ReadKey", err)
	if !h.Free {
		t.Errorf("ReadKey after the lease = %+v, want free", h)
	}
	token := reserveOwn(t, b, reservation(1, 2))
	keep(t, b, 1, token, "answer")
	b.Advance(t, keyLeaseTime)
	if h := reserve(t, b, reservation(1, 2)); string(h.Answer) != "answer" {
		t.Errorf("ReserveKey after the answered one's lease = %+v, want the answer", h)
	}
}

func keyLost(t *testing.T, b Bed) {
	stalled := reserveOwn(t, b, reservation(1, 1))
	b.Advance(t, keyLeaseTime)
	second := reserveOwn(t, b, reservation(1, 2))
	keepLost := func(what string, token int64) {
		t.Helper()
		err := b.KeepAnswer(t.Context(), hash(1), token, []byte("late"), keepTime)
		if !errors.Is(err, fallback.ErrLeaseLost) {
			t.Errorf("KeepAnswer %s = %v, want ErrLeaseLost", what, err)
		}
	}
	keepLost("of one whose key was taken over", stalled)
	keepLost("without a token", 0)
	keep(t, b, 1, second, "answer")
	if h := reserve(t, b, reservation(1, 2)); string(h.Answer) != "answer" {
		t.Errorf("ReserveKey = %+v, want the second's answer", h)
	}
	// A lease that ran out and that nobody took over is as good as one that holds.
	slow := reserveOwn(t, b, reservation(2, 2))
	b.Advance(t, 2*keyLeaseTime)
	keep(t, b, 2, slow, "slow")
	if h := reserve(t, b, reservation(2, 2)); string(h.Answer) != "slow" {
		t.Errorf("ReserveKey = %+v, want the slow one's answer", h)
	}
}

func keyExpires(t *testing.T, b Bed) {
	keep(t, b, 1, reserveOwn(t, b, reservation(1, 1)), "answer")
	reserveOwn(t, b, reservation(2, 1)) // and crashes
	b.Advance(t, keepTime-time.Hour)
	sweepAll(t, b, 1) // the crashed one's
	if h := reserve(t, b, reservation(1, 1)); string(h.Answer) != "answer" {
		t.Fatalf("ReserveKey an hour before the end = %+v, want the answer", h)
	}
	b.Advance(t, time.Hour)
	h, err := b.ReadKey(t.Context(), hash(1))
	must(t, "ReadKey", err)
	if !h.Free {
		t.Errorf("ReadKey after 24 h = %+v, want free", h)
	}
	// Past its time it is nothing, swept or not.
	keep(t, b, 1, reserveOwn(t, b, reservation(1, 2)), "another")
	sweepAll(t, b, 0)
	b.Advance(t, keepTime)
	sweepAll(t, b, 1)
	if dump := b.Dump(t); strings.Contains(dump, "616e6f74686572") { // "another" in hex
		t.Error("the swept answer is still in the tables")
	}
}

func sweepAll(t *testing.T, b Bed, want int) {
	t.Helper()
	n, err := b.Sweep(t.Context(), fallback.Retention{})
	must(t, "Sweep", err)
	if n != want {
		t.Errorf("Sweep deleted %d, want %d", n, want)
	}
}

func keysApart(t *testing.T, b Bed) {
	first, second := reserveOwn(t, b, reservation(1, 1)), reserveOwn(t, b, reservation(2, 1))
	if err := b.KeepAnswer(t.Context(), hash(1), second, []byte("x"), keepTime); !errors.Is(err, fallback.ErrLeaseLost) {
		t.Errorf("KeepAnswer with another key's token = %v, want ErrLeaseLost", err)
	}
	keep(t, b, 2, second, "answer")
	if h := reserve(t, b, reservation(1, 1)); h.Answer != nil || h.Token != 0 {
		t.Errorf("ReserveKey = %+v, want the first still in work", h)
	}
	keep(t, b, 1, first, "own")
	// A text that can't be an address has no fingerprint.
	r := reservation(3, 3)
	r.Fingerprint = normalize.Fingerprint{}
	keep(t, b, 3, reserveOwn(t, b, r), "no address")
}

func keyRefuses(t *testing.T, b Bed) {
	r := reservation(1, 1)
	r.Lease = 0
	if _, err := b.ReserveKey(t.Context(), r); err == nil {
		t.Error("ReserveKey without a lease gave no error")
	}
	token := reserveOwn(t, b, reservation(1, 1))
	for name, answer := range map[string][]byte{"empty": {}, "over the bound": bytes.Repeat([]byte("x"), fallback.MaxAnswer+1)} {
		if err := b.KeepAnswer(t.Context(), hash(1), token, answer, keepTime); err == nil || errors.Is(err, fallback.ErrLeaseLost) {
			t.Errorf("%s: KeepAnswer = %v, want an error of its own", name, err)
		}
	}
	if err := b.KeepAnswer(t.Context(), hash(1), token, []byte("x"), 0); err == nil {
		t.Error("KeepAnswer for no time gave no error")
	}
	must(t, "KeepAnswer at the bound", b.KeepAnswer(t.Context(), hash(1), token, bytes.Repeat([]byte("x"), fallback.MaxAnswer), keepTime))
}
