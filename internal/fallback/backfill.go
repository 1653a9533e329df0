package fallback

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
	"validator-gw/internal/verdict"
)

// What both stores keep of a backfill: a list of addresses that is worked off through the review queue. See
// docs/decisions/0017-backfill.md.
//
//	loading --> merging --> running --> done
//	                |        ^   |
//	            planning     |   v
//	                |        stopped (the bound of credits)
//	                v        ^
//	             planned ----+          any but done --> cancelling --> cancelled

// BackfillState is where a backfill stands.
type BackfillState string

// The states.
const (
	BackfillLoading    BackfillState = "loading"    // its input is being stored, or was when that broke off
	BackfillMerging    BackfillState = "merging"    // distinct addresses are being found
	BackfillPlanning   BackfillState = "planning"   // a dry run counts what it would cost
	BackfillPlanned    BackfillState = "planned"    // a dry run has counted
	BackfillRunning    BackfillState = "running"    //
	BackfillStopped    BackfillState = "stopped"    // nothing more can be done within its bound of credits
	BackfillCancelling BackfillState = "cancelling" // its open reviews are being withdrawn
	BackfillCancelled  BackfillState = "cancelled"
	BackfillDone       BackfillState = "done"
)

// Ended says that nothing will become of a backfill any more.
func (s BackfillState) Ended() bool { return s == BackfillCancelled || s == BackfillDone }

// Errors of backfills, beside ErrLeaseLost and ErrUnknownID.
var (
	// ErrBackfillBusy: its input is being stored by someone else just now.
	ErrBackfillBusy = errors.New("backfill is being loaded elsewhere")
	// ErrBackfillTerms: the source is known, with another format, column or flow.
	ErrBackfillTerms = errors.New("backfill of this source has other terms")
	// ErrBackfillState: it can't be done in the state that the backfill is in.
	ErrBackfillState = errors.New("state of the backfill does not allow it")
)

// Bounds of one call.
const (
	MaxBackfillChunk   = 5000   // rows of one LoadBackfill
	MaxBackfillPortion = 1000   // rows of one Portion, items of one step
	MaxBackfillResults = 2000   // rows of one BackfillResults
	MaxBackfillMerge   = 20_000 // rows of one MergeBackfill
	MaxBackfills       = 100    // of one Backfills
	MaxBackfillBad     = 100    // unreadable rows that are remembered by their lines
)

// backfillAbandoned is how long one stays whose input was never stored to its end.
const backfillAbandoned = 24 * time.Hour

// FaultErased is the fault of a row whose address was erased.
const FaultErased = "erased"

// NewBackfill is what OpenBackfill makes a backfill of.
type NewBackfill struct {
	ID string // UUIDv7
	// Source names the input, so that who brings it again goes on with it; the zero Hash: nobody can.
	Source Hash
	// Terms are how the input is read, and what else must be the same when it is brought again.
	Terms        string
	Client, Flow string
	// Rate bounds its checks a second; 0: no bound of its own.
	Rate float64
	// MaxCredits bounds its billed checks; negative: no bound.
	MaxCredits int64
	// Dry counts what it would cost, and stops there.
	Dry bool
	// Lease is how long it is ours to load.
	Lease time.Duration
}

func (n NewBackfill) check() error {
	if canonicalID(n.ID) == "" || n.Rate < 0 || n.Lease <= 0 {
		return errors.New("backfill: id, rate or lease out of bounds")
	}
	return nil
}

// Backfill is a list of addresses and how far it is worked off.
type Backfill struct {
	ID, Client, Flow string
	State            BackfillState
	Dry              bool
	Rate             float64 // checks a second; 0: no bound of its own
	MaxCredits       int64   // negative: no bound
	// LoadedLine is the last line that is stored, and Digest what LoadBackfill was given with it.
	LoadedLine int64
	Digest     []byte
	// PlannedLine and FedLine are how far the rows were looked at; FedAll: to their end.
	PlannedLine, FedLine int64
	FedAll               bool
	// Rows = Unreadable + Refused + the rows of Distinct addresses.
	Rows, Unreadable, Refused, Distinct int64
	// Asked are the addresses whose review is open, and Waiting those that wait on the mailbox's side; Own counts, of both,
	// those whose review this backfill opened, each of which may still cost a credit.
	Asked, Waiting, Own int64
	// Final answers by status, and how many of them cost nothing.
	Valid, Invalid, Risky, Unresolved, Known int64
	// Credits are the calls that the upstream may have billed.
	Credits int64
	// Bad are the first unreadable rows, at most MaxBackfillBad.
	Bad []BadRow
	// Of a plan: what is known, under review already, and to be asked.
	PlanKnown, PlanOpen, PlanAsk int64

	CreatedAt, UpdatedAt time.Time
	// The rest is zero before it happened. KeepUntil is when all of it is deleted.
	LoadedAt, BeganAt, FinishedAt, KeepUntil time.Time
}

// BadRow is a row of a list in which there is no address to be read.
type BadRow struct {
	Line  int64  `json:"line"`
	Fault string `json:"fault"`
}

// Done counts the distinct addresses with a final answer.
func (b Backfill) Done() int64 { return b.Valid + b.Invalid + b.Risky + b.Unresolved }

// BackfillLease is the right to write to a backfill. The zero value is none.
type BackfillLease struct {
	ID     string
	number int64
	token  int64
}

// BackfillRow is one row of the input.
type BackfillRow struct {
	// Line is the number of its first line in the input, from 1.
	Line int64
	// Input is the text as it was; empty when there is none.
	Input string
	// Address and Fingerprint are zero when Fault says why there is none: a syntax reason or, with Unreadable, a word of
	// the reader's.
	Address     normalize.Address
	Fingerprint normalize.Fingerprint
	Fault       string
	Unreadable  bool
}

// BackfillChunk is a part of the input, in the order of its lines.
type BackfillChunk struct {
	Rows []BackfillRow
	// Line is the last line that it covers, with or without a row.
	Line int64
	// Digest stands for the input up to there.
	Digest []byte
}

func (c BackfillChunk) check() error {
	if len(c.Rows) > MaxBackfillChunk {
		return fmt.Errorf("backfill: chunk of %d rows, at most %d", len(c.Rows), MaxBackfillChunk)
	}
	at := int64(0)
	for _, r := range c.Rows {
		if r.Line <= at || r.Line > c.Line {
			return errors.New("backfill: lines are out of order")
		}
		if r.Fault == "" && r.Address.IsZero() {
			return errors.New("backfill: a row has neither address nor fault")
		}
		at = r.Line
	}
	return nil
}

// counts of a chunk's rows.
func (c BackfillChunk) counts() (unreadable, refused int64) {
	for _, r := range c.Rows {
		switch {
		case r.Unreadable:
			unreadable++
		case r.Fault != "":
			refused++
		}
	}
	return unreadable, refused
}

// bad returns the unreadable rows that are remembered when the chunk's follow those before.
func (c BackfillChunk) bad(before []BadRow) (string, error) {
	for _, r := range c.Rows {
		if r.Unreadable && len(before) < MaxBackfillBad {
			before = append(before, BadRow{r.Line, r.Fault})
		}
	}
	if before == nil {
		return "[]", nil
	}
	b, err := json.Marshal(before)
	return string(b), err
}

// BackfillItem is a distinct address that is not fed yet.
type BackfillItem struct {
	Line        int64
	Fingerprint normalize.Fingerprint
	Address     normalize.Address // zero when it can't be unsealed
	// Known is the newest verdict within its hard expiry, or nil. Open says that a review of the address is open.
	Known *verdict.Verdict
	Open  bool
}

// BackfillPortion is a stretch of rows.
type BackfillPortion struct {
	Items []BackfillItem // those of its rows that come to their address first
	Line  int64          // its last row's
	Rows  int
}

// BackfillNews is what became of an address that was asked.
type BackfillNews struct {
	Line        int64
	Fingerprint normalize.Fingerprint
	Address     normalize.Address
	// Own says that the review was opened for this backfill, Billed what was said of it last, and Waited that it waited.
	Own, Waited bool
	Billed      int
	// Gone says that the review is not there any more; the rest is zero then.
	Gone  bool
	State State
	// Verdict is set when the review is settled; Reason is why it is dead.
	Verdict *verdict.Verdict
	Reason  verdict.Reason
	// Cause, and LookIn from now to the review's next check, of an open one.
	Cause  verdict.Cause
	LookIn time.Duration
	Trail  []verdict.Attempt
}

// BackfillAnswer is the final answer to an item.
type BackfillAnswer struct {
	Fingerprint normalize.Fingerprint
	Line        int64
	Status      verdict.Status
	Reason      verdict.Reason
	Decision    string
	Suggestion  string // a whole address, or empty
	// Billed counts the calls of its review that the upstream may have billed: all there were, not those since the last look.
	Billed int
	// Known: nobody was asked.
	Known bool
}

// BackfillAsk is an item that a review is opened for, or joined.
type BackfillAsk struct {
	ID          string // UUIDv7, of the review when it is new
	Fingerprint normalize.Fingerprint
	// Row is the fingerprint of the review: that of a former key when it is open under that; else Fingerprint.
	Row       normalize.Fingerprint
	DomainKey int64
	Address   normalize.Address
}

// BackfillStay is an item whose review goes on.
type BackfillStay struct {
	Fingerprint normalize.Fingerprint
	Billed      int // as in BackfillAnswer
	// Waiting says that it waits on the mailbox's side, and is to be looked at again after LookIn.
	Waiting bool
	LookIn  time.Duration
}

// BackfillStep is what one look at a running backfill changes, in one transaction. At most MaxBackfillPortion items.
type BackfillStep struct {
	Answers []BackfillAnswer
	Asks    []BackfillAsk
	Stays   []BackfillStay
	// Again are items whose review is gone: they are new again.
	Again []BackfillNews
	// Fed is how far the rows were fed by this step, 0: no further than before. All: to their end.
	Fed int64
	All bool
	// Lease is how long the backfill is ours from now.
	Lease time.Duration
}

func (s BackfillStep) check() error {
	if n := len(s.Answers) + len(s.Asks) + len(s.Stays) + len(s.Again); n > MaxBackfillPortion {
		return fmt.Errorf("backfill: step of %d items, at most %d", n, MaxBackfillPortion)
	}
	for _, a := range s.Answers {
		if !a.Status.Final() {
			return fmt.Errorf("backfill: status %q is not final", a.Status)
		}
	}
	for _, a := range s.Asks {
		if err := a.entry().check(); err != nil {
			return err
		}
	}
	return nil
}

// entry is what Record would be given. Nobody watches; what an open review knows stays as it is.
func (a BackfillAsk) entry() Entry {
	return Entry{ID: canonicalID(a.ID), Fingerprint: cmp.Or(a.Row, a.Fingerprint), DomainKey: a.DomainKey, Address: a.Address,
		Reason: verdict.RevalidationRequested, Cause: verdict.CauseUpstream, Counted: true, Priority: PriorityBackfill}
}

// BackfillWithdrawal gives up what is not asked yet, where nobody else waits for it: a review that waits on the mailbox's side
// ends as unresolved, any other is removed, and its item is new again. What is being asked just now is left alone.
type BackfillWithdrawal struct {
	// Limit bounds the items; at most MaxBackfillPortion.
	Limit int
	// All takes every open item, and lets go of those for which others wait, too. Else only those are taken that wait on the
	// mailbox's side.
	All bool
	// Decision is what unresolved means for the backfill's flow.
	Decision string
	Lease    time.Duration
}

// withdrawn is the verdict of a review that was given up. It is not cached.
func withdrawn(id string, reason verdict.Reason, now time.Time) verdict.Verdict {
	return verdict.Verdict{ID: id, Status: verdict.Unresolved, Reason: reason, Reasons: []verdict.Reason{reason}, CheckedAt: now, SoftUntil: now}
}

// BackfillPlan is what a dry run counted in a stretch of rows.
type BackfillPlan struct {
	Known, Open, Ask int64
	Line             int64
	All              bool
	Lease            time.Duration
}

// BackfillResult is one row of the results. At most one of Fault and Item is set.
type BackfillResult struct {
	Line              int64
	Input, Normalized string // empty once erased
	Fault             string
	// Status is empty while there is no final answer.
	Status     verdict.Status
	Reason     verdict.Reason
	Decision   string
	Suggestion string
	// Asked says that a review is open.
	Asked bool
}

// backfillDelta is how a step changed the counters.
type backfillDelta struct {
	asked, waiting, own, credits, known int64
	valid, invalid, risky, unresolved   int64
}

func (d *backfillDelta) answered(status verdict.Status, by int64) {
	switch status {
	case verdict.Valid:
		d.valid += by
	case verdict.Invalid:
		d.invalid += by
	case verdict.Risky:
		d.risky += by
	default:
		d.unresolved += by
	}
}

// left takes an item out of the state that it was in.
func (d *backfillDelta) left(state int, own bool) {
	switch state {
	case itemAsked:
		d.asked--
	case itemWaiting:
		d.waiting--
	default:
		return
	}
	if own {
		d.own--
	}
}

// moved takes an item from one state with an open review to the other.
func (d *backfillDelta) moved(from, to int) {
	d.left(from, false)
	if to == itemAsked {
		d.asked++
	} else {
		d.waiting++
	}
}

// States of an item.
const (
	itemNew = iota
	itemAsked
	itemWaiting
	itemDone
)

// openItem says that a review of the item is open.
func openItem(state int) bool { return state == itemAsked || state == itemWaiting }

// rowContext binds the sealed text of a row to its place.
func rowContext(backfill, line int64) string {
	return "backfill " + strconv.FormatInt(backfill, 10) + " " + strconv.FormatInt(line, 10)
}

// sealRow encrypts a row's text: the normalized address, and the input where that differs.
func sealRow(s *secret.Sealer, backfill int64, r BackfillRow) []byte {
	text := r.Address.Text()
	if r.Input != text {
		text += "\n" + r.Input
	}
	if text == "" {
		return nil
	}
	return s.Seal(text, rowContext(backfill, r.Line))
}

// unsealRow reverses sealRow. What can't be read is empty.
func unsealRow(s *secret.Sealer, sealed []byte, backfill, line int64) (normalized, input string) {
	if len(sealed) == 0 {
		return "", ""
	}
	text, err := s.Open(sealed, rowContext(backfill, line))
	if err != nil {
		return "", ""
	}
	normalized, input, differs := strings.Cut(text, "\n")
	if !differs {
		input = normalized
	}
	return normalized, input
}

// unsealItem returns the address of a row, zero when there is none to read.
func unsealItem(s *secret.Sealer, sealed []byte, backfill, line int64) normalize.Address {
	text, _ := unsealRow(s, sealed, backfill, line)
	a, err := normalize.Restore(text)
	if err != nil {
		return normalize.Address{}
	}
	return a
}

func sealSuggestion(s *secret.Sealer, backfill int64, a BackfillAnswer) []byte {
	if a.Suggestion == "" {
		return nil
	}
	return s.Seal(a.Suggestion, rowContext(backfill, a.Line)+" suggestion")
}

func unsealSuggestion(s *secret.Sealer, sealed []byte, backfill, line int64) string {
	if len(sealed) == 0 {
		return ""
	}
	text, _ := s.Open(sealed, rowContext(backfill, line)+" suggestion") // nothing, if it can't be read
	return text
}

// StaleQuery asks for addresses whose verdict is old.
type StaleQuery struct {
	OlderThan time.Duration
	Statuses  []verdict.Status
	// After is the id that the last page ended with; empty: the beginning.
	After string
	Limit int
}

// StaleAddress is one of them.
type StaleAddress struct {
	ID      string
	Address normalize.Address
}
