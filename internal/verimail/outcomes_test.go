package verimail

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// What one attempt tells the breaker, whether it is followed by a retry where there is time for one, and which gate it
// closes: the whole table, a row a test. (TestClassification has what each answer means beside this.)
func TestOutcomesAndTheBreaker(t *testing.T) {
	t.Parallel()
	success, failure, nothing := health{successes: 1}, health{failures: 1}, health{excluded: 1}
	broken := func(err error) func(*Config) {
		return func(c *Config) { c.Transport = roundTripError(err) }
	}
	rows := []struct {
		name   string
		local  string
		change func(*Config)
		within time.Duration // of the caller's own context; 0 is none
		leaves time.Duration // the caller cancels then; 0 is never
		spent  string        // what there is nothing left of: "rate", "retries"
		tells  health
		retry  bool
		gate   string
	}{
		{name: "2xx with a verdict", local: "deliverable", tells: success},
		{name: "2xx with a verdict that is no", local: "hardbounce", tells: success},
		{name: "2xx, and the mailbox's side can't say", local: "softbounce", tells: success},
		{name: "2xx, still at work", change: answering(202, "{}"), tells: nothing},
		{name: "2xx with an answer that can't be used", local: "contradictory", tells: nothing},
		{name: "2xx with an error", local: "status-error", tells: nothing},
		// Billed, so not asked again: the usual advice is to retry it.
		{name: "2xx that can't be read", local: "html", tells: failure},
		{name: "2xx, cut off", local: "cut-off", tells: failure},
		{name: "5xx", local: "server-error", tells: failure, retry: true},
		{name: "connection refused", change: broken(&net.OpError{Op: "dial", Err: errors.New("refused")}), tells: failure, retry: true},
		{name: "no such host", change: broken(&net.DNSError{IsNotFound: true}), tells: failure, retry: true},
		{name: "TLS", change: broken(errors.New("tls: handshake failure")), tells: failure, retry: true},
		{name: "reset", local: "reset", tells: failure, retry: true},
		// A time-out is waited for and judged by the grace time: 2 s.
		{name: "silent for the grace time", local: "hang", tells: failure},
		{name: "answered within it, after the attempt's time-out", local: "delay-1999", tells: success},
		{name: "answered after it", local: "delay-2001", tells: failure},
		{name: "cut short by the caller's time", local: "hang", within: 1500 * ms, tells: nothing},
		{name: "cut short by the caller's time under 100 ms", local: "hang", within: 99 * ms, tells: nothing},
		{name: "caller cancelled", local: "hang", leaves: 300 * ms, tells: nothing},
		{name: "429", local: "throttled", tells: nothing, retry: true},
		{name: "429 with a hint that fits", local: "throttled-3", tells: nothing, retry: true, gate: "not_before"},
		{name: "429 with a hint that does not", local: "throttled-60", tells: nothing, gate: "not_before"},
		{name: "503", local: "unavailable", tells: failure, retry: true},
		{name: "503 with a hint that fits", local: "unavailable-3", tells: failure, retry: true, gate: "not_before"},
		{name: "503 with a hint that does not", local: "unavailable-60", tells: failure, gate: "not_before"},
		// Not the upstream's health: our account. The gate is the alarm.
		{name: "401", local: "unauthorized", tells: nothing, gate: "account"},
		{name: "402", local: "payment-required", tells: nothing, gate: "account"},
		{name: "403", local: "forbidden", tells: nothing, gate: "account"},
		{name: "400", local: "bad-request", tells: nothing},
		{name: "404", local: "status-404", tells: nothing},
		{name: "a redirect", local: "redirect", tells: nothing},
		{name: "408", local: "status-408", tells: failure, retry: true},
		{name: "no token", spent: "rate"},
		{name: "no retry left to pay with", local: "server-error", spent: "retries", tells: failure},
	}
	for _, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var changes []func(*Config)
				if tt.change != nil {
					changes = append(changes, tt.change)
				}
				r := newRig(t, simulator.Config{Key: testKey}, changes...)
				switch tt.spent {
				case "rate":
					r.limits.refuse = true
				case "retries":
					for r.budgets[verdict.Interactive].take() {
					}
				}
				ctx := t.Context()
				if tt.within > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.within)
					defer cancel()
				}
				if tt.leaves > 0 {
					ctx = cancelAfter(t, tt.leaves)
				}
				local := tt.local
				if local == "" {
					local = "ana"
				}
				out := r.Check(ctx, address(t, local), plan(10*time.Second, 1))
				synctest.Wait()
				want := tt.tells
				if tt.retry { // the second attempt tells the same
					want = health{2 * want.successes, 2 * want.failures, 2 * want.excluded}
				}
				if got := r.health(); got != want {
					t.Errorf("the breaker was told %+v, want %+v", got, want)
				}
				sent := int(want.successes + want.failures + want.excluded)
				if out.Sent != sent {
					t.Errorf("%d calls, want %d", out.Sent, sent)
				}
				gate := tt.gate
				if gate == "" {
					gate = "open"
				}
				if got := r.gateNow(time.Now()); got != gate {
					t.Errorf("gate %s, want %s", got, gate)
				}
			})
		})
	}
}
