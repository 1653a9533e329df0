package validate_test

import (
	"sync"
	"testing"
	"time"

	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// TestWhoHasTimeLeftBeginsOneMore: whoever came first had too little time to ask; those who joined and have some left share
// one more check, and no third.
func TestWhoHasTimeLeftBeginsOneMore(t *testing.T) {
	for name, c := range map[string]struct {
		slow   time.Duration
		status verdict.Status
		billed int64
	}{
		"the second asks":    {100 * time.Millisecond, verdict.Valid, 1},
		"too little is left": {190 * time.Millisecond, verdict.NeedsReview, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *setup) {
				s.mode(simulator.Mode{P50: 50 * time.Millisecond})
				s.records.slowly(c.slow)
				budgets := []time.Duration{300 * time.Millisecond, 550 * time.Millisecond, 550 * time.Millisecond}
				var wg sync.WaitGroup
				answers := make([]validate.Answer, len(budgets))
				for i, budget := range budgets {
					wg.Go(func() {
						var err error
						answers[i], err = s.service.Validate(t.Context(), validate.Request{Raw: "ana@example.com", Client: "c", Budget: budget})
						if err != nil {
							t.Errorf("%d: %v", i, err)
						}
					})
					time.Sleep(time.Millisecond) // in this order
				}
				wg.Wait()
				if a := answers[0]; a.Status != verdict.NeedsReview {
					t.Errorf("the first: %s %s, want needs_review", a.Status, a.Reason)
				}
				for _, a := range answers[1:] {
					if a.Status != c.status {
						t.Errorf("who joined: %s %s, want %s", a.Status, a.Reason, c.status)
					}
				}
				s.wantBilled(c.billed)
			})
		})
	}
}
