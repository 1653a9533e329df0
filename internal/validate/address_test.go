package validate_test

import (
	"testing"
	"time"

	"validator-gw/internal/normalize"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// plan returns an address plan with the operator's own lists.
func plan(t *testing.T, own normalize.Own) validate.AddressPlan {
	t.Helper()
	lists, err := normalize.NewLists(own)
	if err != nil {
		t.Fatal(err)
	}
	return validate.AddressPlan{Domains: lists}
}

// TestSuggestionInEveryOutcome: what was probably meant is offered whatever the upstream says, and when it says nothing;
// it changes neither the address nor the status nor the decision.
func TestSuggestionInEveryOutcome(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		const want = "@gmail.com"
		for _, c := range []struct {
			what     string
			local    string
			mode     simulator.Fault
			status   verdict.Status
			decision validate.Decision
		}{
			{"valid", "deliverable", simulator.Healthy, verdict.Valid, validate.Accept},
			{"invalid", "hardbounce", simulator.Healthy, verdict.Invalid, validate.Reject},
			{"from the cache", "deliverable", simulator.Healthy, verdict.Valid, validate.Accept},
			{"upstream hangs", "hangs", simulator.Hang, verdict.NeedsReview, validate.AcceptPending},
			{"the marker of that", "hangs", simulator.Hang, verdict.NeedsReview, validate.AcceptPending},
		} {
			s.mode(simulator.Mode{Fault: c.mode})
			a, _ := s.post(c.local + "@gmal.com")
			if a.Status != c.status || a.Decision != c.decision || a.Normalized != c.local+"@gmal.com" {
				t.Errorf("%s: %s %s %s, want %s %s and the address as typed", c.what, a.Status, a.Decision, a.Normalized, c.status, c.decision)
			}
			if a.Suggestion != c.local+want || a.SuggestionReason != verdict.TypoDomain {
				t.Errorf("%s: suggests %q (%s), want %q (typo_domain)", c.what, a.Suggestion, a.SuggestionReason, c.local+want)
			}
		}
		if a, _ := s.post("Ana <ana@gmal.com>"); a.Suggestion != "ana@gmail.com" || a.SuggestionReason != verdict.DisplayName {
			t.Errorf("refused and misspelt: suggests %q (%s), want ana@gmail.com (display_name)", a.Suggestion, a.SuggestionReason)
		}
		if a, _ := s.post("ana@gmail.con"); a.Status != verdict.Invalid || a.Suggestion != "ana@gmail.com" || a.SuggestionReason != verdict.TLDUnknown {
			t.Errorf("refused: %s with %q (%s), want invalid with ana@gmail.com (tld_unknown)", a.Status, a.Suggestion, a.SuggestionReason)
		}
	})
}

// TestDenied: the operator's own list refuses at once, without a call and without an id; the allow list lifts the
// shipped list's flag.
func TestDenied(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		s.address = plan(t, normalize.Own{Deny: []string{"spam-farm.com"}, Allow: []string{"mailinator.com"}})
		a, took := s.post("ana@mail.spam-farm.com")
		if a.Status != verdict.Risky || a.Reason != verdict.LocalDenylist || a.Decision != validate.Reject || a.Source != verdict.FromLocal || a.ID != "" {
			t.Errorf("denied: %s %s %s from %s with id %q, want risky local_denylist reject from local without one",
				a.Status, a.Reason, a.Decision, a.Source, a.ID)
		}
		if a, _ := s.post("ana@spam-farm.com,"); a.Reason != verdict.TrailingPunct || a.Suggestion != "" {
			t.Errorf("refused and denied: %s suggests %q, want trailing_punct and nothing", a.Reason, a.Suggestion)
		}
		if took != 0 || s.sim.Stats().Calls != 0 {
			t.Errorf("denied: took %v and %d calls, want none of either", took, s.sim.Stats().Calls)
		}
		if a, _ := s.post("ana@mailinator.com"); a.Flags.Disposable == verdict.True || a.Decision != validate.Accept {
			t.Errorf("allowed: disposable %v, %s; want not, and accept", a.Flags.Disposable, a.Decision)
		}
	})
}

// TestShippedListWarns: a shipped list sets its flag, says which list it was, and at most warns; by id alone it says
// the same as it did with the address.
func TestShippedListWarns(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		a, _ := s.post("info+x@sub.mailinator.com")
		if a.Status != verdict.Valid || a.Decision != validate.Warn || a.Flags.Disposable != verdict.True || a.Flags.Role != verdict.True {
			t.Errorf("%s %s, disposable %v, role %v; want valid, warn, and both", a.Status, a.Decision, a.Flags.Disposable, a.Flags.Role)
		}
		if l := a.DisposableList; l.Name != "disposable-email-domains-js" || l.Version == "" || l.Entries < 8000 {
			t.Errorf("list %+v, want the shipped one with version and count", l)
		}
		time.Sleep(2 * time.Second) // the verdict is written behind
		byID, err := s.service.Status(t.Context(), validate.Inquiry{ID: a.ID, Client: "c"})
		if err != nil || byID.Flags != a.Flags || byID.DisposableList != a.DisposableList || byID.Decision != a.Decision {
			t.Errorf("by id: %+v %+v %s, %v; want the same as with the address", byID.Flags, byID.DisposableList, byID.Decision, err)
		}
		// The upstream's word beats the list's, and then the list is not named.
		if a, _ := s.post("disposable@mailinator.com"); a.DisposableList != (verdict.List{}) || a.Decision != validate.Reject {
			t.Errorf("the upstream's own disposable: list %+v, %s; want none, and reject", a.DisposableList, a.Decision)
		}
	})
}

// TestPoisonedSuggestion: the upstream's suggestion is not shown when it leads to a denied domain, or away from an
// allowed one.
func TestPoisonedSuggestion(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		a, _ := s.post("did-you-mean@example.com")
		if a.Suggestion != "did-you-mean@gmail.com" || a.SuggestionReason != "" {
			t.Fatalf("the simulator suggests %q (%s), want did-you-mean@gmail.com without a reason of ours", a.Suggestion, a.SuggestionReason)
		}
		for what, own := range map[string]normalize.Own{
			"leads to a denied domain":   {Deny: []string{"gmail.com"}, DenyMajor: []string{"gmail.com"}},
			"leads away from an allowed": {Allow: []string{"example.com"}},
		} {
			s.address = plan(t, own)
			if a, _ := s.post("did-you-mean@example.com"); a.Suggestion != "" {
				t.Errorf("%s: suggests %q, want nothing", what, a.Suggestion)
			}
		}
	})
}

// TestDedupeKey: off by default; equal for what one provider delivers to one mailbox, which stay two addresses.
func TestDedupeKey(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		if a, _ := s.post("ana.lee@gmail.com"); a.DedupeKey != "" {
			t.Errorf("key %q without the setting, want none", a.DedupeKey)
		}
		s.address = plan(t, normalize.Own{})
		s.address.DedupeKey = true
		a, _ := s.post("ana.lee@gmail.com")
		b, _ := s.post("analee+news@googlemail.com")
		if a.DedupeKey == "" || a.DedupeKey != b.DedupeKey || a.Normalized == b.Normalized || a.ID == b.ID {
			t.Errorf("keys %q and %q of %s and %s; want equal keys and two checks", a.DedupeKey, b.DedupeKey, a.Normalized, b.Normalized)
		}
	})
}
