package fallback

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
	"validator-gw/internal/verdict"
)

// What the two stores share: how a value becomes a column and back.

// ReasonUnreadable is why Claim buries a row whose sealed address can't be opened under any key the store was
// given: nothing can be checked without it, and no other row must wait for it. The sealed bytes stay, so the
// row can be replayed once the key is back.
const ReasonUnreadable = verdict.AddressUnreadable

// Bounds of one statement: small enough that nobody waits long for it, large enough to be worth a commit.
const (
	maxVerdictBatch = 500
	maxHastenBatch  = 1000
	maxSweepBatch   = 500
)

// defaultPerDomain is ClaimRequest.PerDomain when it is zero.
const defaultPerDomain = 2

// claimWalk is how many domains one claim looks at, due or not. It does not shrink with the number of rows asked
// for: a loop with one free slot would else fall through to the second pass, which knows no fairness.
const claimWalk = MaxBatch

// defaultMaxOpen bounds the open reviews (queue.max_open).
const defaultMaxOpen = 1_000_000

// priorities, the highest first, as the claims probe them one by one.
var priorities = []Priority{PriorityInteractive, PriorityBackground, PriorityBackfill}

// Settlement is one settled claim of SettleBatch.
type Settlement struct {
	Claim   Claim
	Verdict verdict.Verdict
	// Trail is appended to the review's.
	Trail []verdict.Attempt
}

// Delay is one postponed claim of PostponeBatch.
type Delay struct {
	Claim Claim
	Postponement
}

// moves says whether an entry moves an open review's due time to its own. Only what comes from the upstream's
// side without a time that the upstream named may not put off what is due earlier.
func (e Entry) moves() bool { return e.Firm || e.Cause != verdict.CauseUpstream }

// openBound is how many reviews may be open before one of this priority is turned away: backfills stop at 80 %, so that
// what is left is for people.
func openBound(p Priority, maxOpen int64) int64 {
	if p == PriorityBackfill {
		return maxOpen - maxOpen/5
	}
	return maxOpen
}

// check refuses entries that no row can hold.
func (e Entry) check() error {
	switch {
	case canonicalID(e.ID) == "":
		return errors.New("entry: id is not a uuid")
	case e.Address.IsZero():
		return errors.New("entry: no address")
	case !slices.Contains(verdict.Causes, e.Cause):
		return fmt.Errorf("entry: unknown cause %q", e.Cause)
	case !slices.Contains(priorities, e.Priority):
		return fmt.Errorf("entry: unknown priority %d", e.Priority)
	case e.CheckIn < 0:
		return errors.New("entry: check-in time is negative")
	case e.DomainKey < 0:
		return errors.New("entry: domain key is negative")
	}
	return nil
}

func (p Postponement) check() error {
	if !slices.Contains(verdict.Causes, p.Cause) {
		return fmt.Errorf("postponement: unknown cause %q", p.Cause)
	}
	if p.CheckIn < 0 {
		return errors.New("postponement: check-in time is negative")
	}
	return nil
}

func checkDelays(batch []Delay) error {
	if len(batch) > MaxBatch {
		return fmt.Errorf("%d claims, at most %d", len(batch), MaxBatch)
	}
	for _, d := range batch {
		if err := d.check(); err != nil {
			return err
		}
	}
	return nil
}

func (r ClaimRequest) check() (ClaimRequest, error) {
	if r.Max < 1 || r.Lease <= 0 || r.PerDomain < 0 {
		return r, errors.New("claim: rows, lease or rows per domain out of bounds")
	}
	r.Max = min(r.Max, MaxBatch)
	r.PerDomain = min(cmp.Or(r.PerDomain, defaultPerDomain), MaxBatch)
	return r, nil
}

// checkFinal refuses verdicts that end nothing.
func checkFinal(v verdict.Verdict) error {
	if !v.Status.Final() {
		return fmt.Errorf("verdict: status %q is not final", v.Status)
	}
	if canonicalID(v.ID) == "" {
		return errors.New("verdict: id is not a uuid")
	}
	return nil
}

// newestByID drops all but the newest verdict of each id and sorts by id, so that batches of several writers
// lock rows in one order. Verdicts that can't be stored are an error, before anything is written.
func newestByID(batch []Stored) ([]Stored, error) {
	out := slices.Clone(batch)
	for _, s := range out {
		if err := checkFinal(s.Verdict); err != nil {
			return nil, err
		}
		if s.Verdict.HardUntil.IsZero() {
			return nil, fmt.Errorf("verdict %s: no hard expiry", s.Verdict.ID)
		}
	}
	slices.SortStableFunc(out, func(a, b Stored) int {
		return cmp.Or(strings.Compare(a.Verdict.ID, b.Verdict.ID), b.Verdict.CheckedAt.Compare(a.Verdict.CheckedAt))
	})
	return slices.CompactFunc(out, func(a, b Stored) bool { return a.Verdict.ID == b.Verdict.ID }), nil
}

// canonicalID returns id in lower-case canonical form, or "" when it is none.
func canonicalID(id string) string {
	if len(id) != 36 {
		return ""
	}
	u, err := uuid.Parse(id)
	if err != nil {
		return ""
	}
	return u.String()
}

// seal encrypts an address for the review id.
// proof is the known text of sealed_proof.
const proof = "validator-gw"

func sealProof(s *secret.Sealer) []byte { return s.Seal(proof, "proof") }

func openProof(s *secret.Sealer, sealed []byte) error {
	if text, err := s.Open(sealed, "proof"); err != nil || text != proof {
		return ErrWrongSecret
	}
	return nil
}

func seal(s *secret.Sealer, a normalize.Address, id string) []byte { return s.Seal(a.Text(), id) }

// unseal reverses seal. Erased and unreadable addresses are both zero.
func unseal(s *secret.Sealer, sealed []byte, id string) normalize.Address {
	if len(sealed) == 0 {
		return normalize.Address{}
	}
	text, err := s.Open(sealed, id)
	if err != nil {
		return normalize.Address{}
	}
	a, err := normalize.Restore(text)
	if err != nil {
		return normalize.Address{}
	}
	return a
}

// maxTrailText bounds the upstream's own words in a trail, in bytes.
const maxTrailText = 128

// printable keeps what an upstream says about itself from growing a row or from being refused by jsonb, which
// takes no NUL. Losing a character of a request id is better than losing the row.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	if len(s) > maxTrailText {
		s = strings.ToValidUTF8(s[:maxTrailText], "")
	}
	return s
}

// newest returns the last MaxTrail entries.
func newest(trail []verdict.Attempt) []verdict.Attempt {
	return trail[max(0, len(trail)-MaxTrail):]
}

func encodeTrail(trail []verdict.Attempt) (string, error) {
	clean := make([]verdict.Attempt, 0, min(len(trail), MaxTrail)) // never nil: the column holds an array
	for _, a := range newest(trail) {
		a.Outcome, a.UpstreamRequestID = printable(a.Outcome), printable(a.UpstreamRequestID)
		clean = append(clean, a)
	}
	b, err := json.Marshal(clean)
	if err != nil {
		return "", fmt.Errorf("trail: %w", err)
	}
	return string(b), nil
}

func decodeTrail(text string) ([]verdict.Attempt, error) {
	var trail []verdict.Attempt
	if err := json.Unmarshal([]byte(text), &trail); err != nil {
		return nil, fmt.Errorf("trail: %w", err)
	}
	return trail, nil
}

func encodeVerdict(v verdict.Verdict) (string, error) {
	v.ID = canonicalID(v.ID)
	v.Provider, v.Suggestion.Domain = printable(v.Provider), strings.ReplaceAll(v.Suggestion.Domain, "\x00", "")
	b, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("verdict: %w", err)
	}
	return string(b), nil
}

func decodeVerdict(text string) (*verdict.Verdict, error) {
	var v verdict.Verdict
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return nil, fmt.Errorf("verdict: %w", err)
	}
	return &v, nil
}

// withID gives a claim's verdict the review's id when it has none of its own.
func withID(v verdict.Verdict, id string) verdict.Verdict {
	v.ID = cmp.Or(v.ID, id)
	return v
}

// milliseconds is how durations are kept in a column.
func milliseconds(d time.Duration) int64 { return d.Milliseconds() }

// count is 1 for true: how much of a counter a cause uses up.
func count(b bool) int {
	if b {
		return 1
	}
	return 0
}
