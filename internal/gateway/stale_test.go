package gateway

import (
	"testing"
	"time"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// TestFiveHundredOverAnExpiryInAFleet: over real Redis everyone gets the old verdict, or the new one at once; one replica
// pays, and the others find what it got.
func TestFiveHundredOverAnExpiryInAFleet(t *testing.T) { // not parallel: five hundred are work enough
	fleet, _ := newFleet(t, simulator.Config{P50: 150 * time.Millisecond}, nil)
	first := fleet[0]
	const email = "deliverable+old@example.com"
	addr, err := normalize.Restore(email)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := deriveKeys(first.cfg.Secret, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	old := verdict.Verdict{ID: newID(), Status: verdict.Valid, Reason: verdict.MailboxAccepted, Provider: "verimail_v3",
		CheckedAt: now.Add(-8 * 24 * time.Hour), SoftUntil: now.Add(-time.Hour), HardUntil: now.Add(24 * time.Hour)}
	first.gateway.cache.FillStale(keys.prints.Of(addr), old)
	<-first.gateway.cache.Written()

	var answers []answer
	for range 5 {
		answers = append(answers, crowd(fleet, email)...)
	}
	stale := 0
	for i, a := range answers {
		if a.Status != "valid" || a.Source.Kind != "cache" || a.Source.Stale != (a.ID == old.ID) {
			t.Errorf("answer %d: %d %s %s from %s, stale %v", i, a.code, a.Status, a.Reason, a.Source.Kind, a.Source.Stale)
		}
		if a.Source.Stale {
			stale++
		}
	}
	if stale == 0 {
		t.Error("nobody got the old verdict")
	}
	id := ""
	for _, b := range fleet {
		b.eventually("every replica has the new verdict", func() bool {
			a := b.post(email)
			if id == "" && a.ID != old.ID {
				id = a.ID
			}
			return a.ID == id && !a.Source.Stale
		})
	}
	most := int64(1)
	if leases(fleet, leaseAway) > 0 {
		most = 3 // a machine that stood still: each replica for itself
	}
	if n := first.billed(email); n < 1 || n > most {
		t.Errorf("billed %d calls, want 1, or up to %d", n, most)
	}
}

// leaseAway is the outcome of a lease when Redis did not say.
const leaseAway = "away"
