package verimail

import (
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// What another replica was told holds here, too: nothing is sent, the answer says when, and the gate of this process
// spares the rest of the calls a question.
func TestFleetsGate(t *testing.T) {
	t.Parallel()
	for _, class := range []verdict.Class{verdict.Interactive, verdict.Background} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, simulator.Config{})
			began := time.Now()
			until := began.Add(20 * time.Second)
			r.limits.held = until
			p := plan(15*time.Second, 2)
			p.Class = class
			out := r.Check(t.Context(), address(t, "ana"), p)
			if out.Sent != 0 || out.Verdict.Reason != verdict.UpstreamThrottled || !out.NotBefore.Equal(until) || time.Since(began) != 0 {
				t.Errorf("sent %d, %s, not before %v, after %v; want %v at once", out.Sent, out.Verdict.Reason, out.NotBefore, time.Since(began), until)
			}
			if s := r.Standing(); !s.Closed || !s.Until.Equal(until) {
				t.Errorf("standing %+v; want closed until %v", s, until)
			}
			r.limits.held = time.Time{}
			time.Sleep(20*time.Second - 1)
			if out := r.ask("ben", 0); out.Sent != 0 {
				t.Error("a call before the time")
			}
			time.Sleep(1)
			if out := r.ask("ben", 0); out.Sent != 1 || out.Verdict.Status != verdict.Valid {
				t.Errorf("after it: sent %d, %s", out.Sent, out.Verdict.Status)
			}
		})
	}
}
