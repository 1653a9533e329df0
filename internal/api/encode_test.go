package api

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
)

// drawAnswer draws an answer of any shape, texts that need escapes among them.
func drawAnswer(r *rand.Rand) validate.Answer {
	texts := []string{"", "", "ana@example.com", "a\"b\\c@example.com", "<&>@example.com", "ñandú@münchen.example", "\u2028\x00\x7f\t", "bro\xffken",
		"\U0001f600"}
	text := func() string { return texts[r.IntN(len(texts))] }
	tri := func() verdict.Tri { return verdict.Tri(r.IntN(3)) }
	moment := func() time.Time {
		if r.IntN(3) == 0 {
			return time.Time{}
		}
		zone := time.FixedZone("", r.IntN(7200))
		return time.Unix(1_700_000_000+r.Int64N(1e9), []int64{0, 1e6, 120e6, 999_999_999, r.Int64N(1e9)}[r.IntN(5)]).In(zone)
	}
	n := validate.Answer{ID: text(), Status: verdict.Statuses[r.IntN(len(verdict.Statuses))], Decision: validate.Decision(text()),
		Reason: verdict.Reason(text()), Normalized: text(), Unicode: text(), Suggestion: text(), SuggestionReason: verdict.Reason(text()),
		DedupeKey: text(), Flags: verdict.Flags{Disposable: tri(), Role: tri(), Free: tri(), CatchAll: tri(), MailboxFull: tri(),
			SMTPUTF8: tri(), Subaddressed: tri(), MixedScript: tri()},
		Attempts: r.IntN(4), Source: verdict.Sources[r.IntN(len(verdict.Sources))], Provider: text(), CheckedAt: moment(),
		Age: time.Duration(r.Int64N(1e15) - 1e14), Stale: r.IntN(2) == 0, ExpiresAt: moment(), NextCheckAt: moment(), PollAfter: time.Duration(r.Int64N(3e9))}
	for range r.IntN(4) {
		n.Reasons = append(n.Reasons, verdict.Reason(text()))
	}
	if r.IntN(2) == 0 {
		n.Reasons = append(n.Reasons, n.Reason)
	}
	if r.IntN(2) == 0 {
		n.DisposableList = verdict.List{Name: text(), Version: text(), Entries: r.IntN(100)}
	}
	return n
}

// What is written out by hand is what encoding/json makes of the document's type.
func TestAppendAnswer(t *testing.T) {
	t.Parallel()
	const seed = 7
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 20_000 {
		n := drawAnswer(r)
		lang := langs[r.IntN(len(langs))]
		want, err := json.Marshal(toWire(n, lang))
		if err != nil {
			t.Fatal(err)
		}
		if got := appendAnswer([]byte("before "), &n, lang); string(got) != "before "+string(want) {
			t.Fatalf("answer %d of seed %d:\n%s, want\n%s", i, seed, got, want)
		}
	}
}
