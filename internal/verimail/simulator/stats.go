package simulator

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Stats are the counts since New or the last Reset, as GET /control/stats shows them.
type Stats struct {
	// Calls counts the requests to the verify endpoint, whatever became of them.
	Calls int64 `json:"calls"`
	// Billed counts the calls that the vendor would charge for; the package comment says which.
	Billed int64 `json:"billed"`
	// ByAddress counts billed calls by the address as it was sent. An address that was never billed is not in it.
	ByAddress map[string]int64 `json:"by_address"`
	// CallsByAddress counts all calls in the same way.
	CallsByAddress map[string]int64 `json:"calls_by_address"`
	// ByStatus counts calls by the HTTP status that they were given, or "hang", "reset", "unread".
	ByStatus map[string]int64 `json:"by_status"`
	// InFlight is the number of calls that are neither answered nor given up at the moment.
	InFlight int `json:"in_flight"`
	// Untracked counts the calls that are in the totals and under no address: of addresses beyond
	// Config.MaxAddresses, of addresses over 320 bytes, and without an address.
	Untracked int64 `json:"untracked"`
	// Mode is the mode that the next call would meet, as a script writes it.
	Mode string `json:"mode"`
}

// Call is one call to the verify endpoint, as it was decided.
type Call struct {
	At      time.Time // when the request's head had arrived
	Address string    // as it was sent
	Status  int       // HTTP status; 0 for a hang, a reset, or a request that never arrived whole
	Result  string    // the result word that was sent in a readable answer, else empty
	Billed  bool
}

// account is what is known of one address.
type account struct {
	calls, billed int64
	turns         int64 // calls that a flipping behaviour has answered
	untracked     bool
}

// turn counts a call of a flipping behaviour, from 1. Without an account to count in, it is always the first.
func (a *account) turn() int64 {
	if a.untracked {
		return 1
	}
	a.turns++
	return a.turns
}

// ledger holds the counts. The Simulator's mutex guards it.
type ledger struct {
	calls, billed, untracked int64
	byStatus                 map[string]int64
	accounts                 map[string]*account
	maxAccounts              int
	log                      []Call // a ring once it is full
	next                     int    // where the ring is written next
	maxLog                   int
}

func newLedger(maxAccounts, maxLog int) ledger {
	return ledger{
		byStatus: make(map[string]int64), accounts: make(map[string]*account),
		maxAccounts: maxAccounts, maxLog: maxLog,
	}
}

// account finds or opens an address's account. Beyond the bounds it is one that is thrown away.
func (l *ledger) account(address string) *account {
	if a, ok := l.accounts[address]; ok {
		return a
	}
	if address == "" || len(address) > maxAddress || len(l.accounts) >= l.maxAccounts {
		return &account{calls: l.calls, untracked: true} // the total keeps its draws from being all the same
	}
	a := &account{}
	l.accounts[strings.Clone(address)] = a // the request body is not kept
	return a
}

func (l *ledger) book(a *account, c Call, status string) {
	l.byStatus[status]++
	if a.untracked {
		l.untracked++
	}
	if c.Billed {
		l.billed++
		a.billed++
	}
	if len(c.Address) > maxAddress {
		c.Address = ""
	}
	c.Address = strings.Clone(c.Address)
	if len(l.log) < l.maxLog {
		l.log = append(l.log, c)
		return
	}
	l.log[l.next] = c
	l.next = (l.next + 1) % l.maxLog
}

// Stats returns the counts. The maps are the caller's own.
func (s *Simulator) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{
		Calls: s.ledger.calls, Billed: s.ledger.billed, Untracked: s.ledger.untracked,
		InFlight: s.inFlight, Mode: s.modeAt(time.Now()).String(),
		ByStatus:       maps.Clone(s.ledger.byStatus),
		ByAddress:      make(map[string]int64),
		CallsByAddress: make(map[string]int64, len(s.ledger.accounts)),
	}
	for address, a := range s.ledger.accounts {
		st.CallsByAddress[address] = a.calls
		if a.billed > 0 {
			st.ByAddress[address] = a.billed
		}
	}
	return st
}

// Calls returns the latest calls, Config.MaxCalls at most, in the order of their arrival.
func (s *Simulator) Calls() []Call {
	s.mu.Lock()
	calls := slices.Concat(s.ledger.log[s.ledger.next:], s.ledger.log[:s.ledger.next])
	s.mu.Unlock()
	slices.SortStableFunc(calls, func(a, b Call) int { return a.At.Compare(b.At) })
	return calls
}

// MaxInWindow is the largest number of calls in any half-open window of this length. The calls are in the order of
// their arrival, as Simulator.Calls returns them.
func MaxInWindow(calls []Call, window time.Duration) int {
	most, first := 0, 0
	for i := range calls {
		for calls[i].At.Sub(calls[first].At) >= window && first < i {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// PeakBurst is the smallest b for which the calls never exceeded rate·t + b, in any window of any length t: the
// highest level of a bucket that leaks rate a second. The calls are in the order of their arrival.
func PeakBurst(calls []Call, rate float64) float64 {
	level, peak := 0.0, 0.0
	for i, c := range calls {
		if i > 0 {
			level = max(0, level-rate*c.At.Sub(calls[i-1].At).Seconds())
		}
		level++
		peak = max(peak, level)
	}
	return peak
}
