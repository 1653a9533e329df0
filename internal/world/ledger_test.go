package world

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"validator-gw/internal/verimail/simulator"
)

// answer is what one request to POST /validate came to.
type answer struct {
	visit, copy int
	kind        string // empty for text that can't be an address
	address     string
	flow        string
	asked, got  time.Time
	budget      time.Duration

	code     int
	id       string
	word     word
	decision string
	source   string
	checked  time.Time // source.checked_at
	err      string    // no answer came, and why
}

// word is what the gateway says of an address.
type word struct{ status, reason string }

func (w word) final() bool { return w.status != "needs_review" && w.status != "" }

// look is one GET /status/{id}.
type look struct {
	id         string
	asked, got time.Time
	wait       time.Duration
	code       int
	word       word
	decision   string
	checked    time.Time
	err        string
}

// span is a stretch of time.
type span struct{ from, to time.Time }

// ledger is all that happened in one world, as its clients and its upstream saw it.
type ledger struct {
	seed  uint64
	began time.Time

	mu      sync.Mutex
	answers []answer
	looks   []look
	// orphans are requests whose caller left and of which neither row nor verdict was found afterwards.
	orphans []answer
	gone    []string // the addresses of callers who left
	script  simulator.Script

	calls  []simulator.Call // in the order of their arrival
	rate   float64          // the gateway's own limit towards the upstream
	burst  int
	stops  []span // from the beginning of a stop to the next start
	stuck  string // why the world did not come to rest in time; empty when it did
	open   int    // reviews that are open at the end
	dead   int    // and dead
	lost   float64
	errors []string // log records of level ERROR, and what Run returned
	leaks  []string // where a token was found that must not be there

	rested time.Time // when all was settled
}

func (l *ledger) answered(a answer) {
	l.mu.Lock()
	l.answers = append(l.answers, a)
	l.mu.Unlock()
}

func (l *ledger) looked(s look) {
	l.mu.Lock()
	l.looks = append(l.looks, s)
	l.mu.Unlock()
}

// at writes a time as the bubble's clock shows it since the beginning.
func (l *ledger) at(t time.Time) string { return t.Sub(l.began).Round(time.Millisecond).String() }

// sort puts everything in an order that does not hang on which goroutine came first.
func (l *ledger) sort() {
	slices.SortStableFunc(l.answers, func(a, b answer) int {
		return cmp.Or(a.asked.Compare(b.asked), cmp.Compare(a.visit, b.visit), cmp.Compare(a.copy, b.copy))
	})
	slices.SortStableFunc(l.looks, func(a, b look) int { return cmp.Or(a.got.Compare(b.got), cmp.Compare(a.id, b.id)) })
	slices.SortStableFunc(l.calls, func(a, b simulator.Call) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Address, b.Address))
	})
}

// digest tells two runs apart: what each request was answered and when, and when the upstream was asked what.
func (l *ledger) digest() string {
	h := fnv.New64a()
	for _, a := range l.answers {
		fmt.Fprintln(h, a.visit, a.copy, a.got.Sub(l.began), a.code, a.word)
	}
	for _, c := range l.calls {
		fmt.Fprintln(h, c.At.Sub(l.began), c.Address, c.Status, c.Result)
	}
	return fmt.Sprintf("%016x", h.Sum64())
}

func (l *ledger) accepted() int {
	ids := make(map[string]bool)
	for _, a := range l.answers {
		if a.code == 202 {
			ids[a.id] = true
		}
	}
	return len(ids)
}

func (l *ledger) billed() int {
	n := 0
	for _, c := range l.calls {
		if c.Billed {
			n++
		}
	}
	return n
}

// slowest is the longest that anyone waited for an answer.
func (l *ledger) slowest() time.Duration {
	var d time.Duration
	for _, a := range l.answers {
		if a.err == "" {
			d = max(d, a.got.Sub(a.asked))
		}
	}
	return d
}
