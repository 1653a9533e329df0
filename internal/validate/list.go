package validate

import (
	"time"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// What lists of addresses ask of the pipeline: the same readings, lists and policies that a person's request meets.

// Read reads a text as an address, under the rules in force. *normalize.Refusal: it can't be one.
func (s *Service) Read(raw string) (normalize.Address, error) {
	return s.cfg.Address().Rules.Parse(raw)
}

// Refused answers for a text that can't be an address.
func (s *Service) Refused(flow, raw string) Answer {
	plan := s.cfg.Address()
	_, err := plan.Rules.Parse(raw)
	return refused(err, s.policyOf(flow), plan)
}

// Denied answers for an address on the operator's own list, of which nobody is asked, if it is there.
func (s *Service) Denied(flow string, a normalize.Address) (Answer, bool) {
	who := s.asking(a, s.prints.Of(a), s.policyOf(flow), s.cfg.Address())
	if !who.hints.Denied {
		return Answer{}, false
	}
	return denied(who), true
}

// Final answers with a final verdict. The zero Address is one that is not known any more.
func (s *Service) Final(flow string, a normalize.Address, v verdict.Verdict) Answer {
	who := asker{policy: s.policyOf(flow)}
	if !a.IsZero() {
		who = s.asking(a, s.prints.Of(a), who.policy, s.cfg.Address())
	}
	return s.known(who, verdict.Cached{Verdict: &v}, verdict.FromReview)
}

// Fresh says that a verdict needs no new check.
func (s *Service) Fresh(v *verdict.Verdict) bool {
	return s.fresh(verdict.Cached{Verdict: v}, time.Now())
}

// policyOf is the policy of a flow; one that the settings do not have any more decides as the one that is always there.
func (s *Service) policyOf(flow string) Policy {
	f, ok := s.cfg.Flow(flow)
	if !ok {
		f, _ = s.cfg.Flow(DefaultFlow)
	}
	return f.Policy
}
