package settings

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"validator-gw/internal/normalize"
)

// lowJitter is the jitter below which callers that failed together retry together (simulated; two retries).
const lowJitter = 50 * time.Millisecond

// check looks at settings beside one another. A contradiction under which the gateway could not do what either
// setting says is a fault; what merely has no effect, or is probably not meant, is a warning. Settings that already
// have a fault of their own are left out.
func (s *Settings) check(faulty map[string]bool, values map[string]string) (faults []error, warnings []string) {
	sound := func(paths ...string) bool {
		return !slices.ContainsFunc(paths, func(p string) bool { return faulty[p] })
	}
	show := func(path string) string {
		origin := s.origins[path]
		if origin == "" {
			origin = originDefault
		}
		return fmt.Sprintf("%s %s (%s)", path, values[path], origin)
	}
	// lessThan demands a ≤ b.
	lessThan := func(bad bool, a, b, why string) {
		if bad && sound(a, b) {
			faults = append(faults, fmt.Errorf("%s is more than %s: %s", show(a), show(b), why))
		}
	}

	lessThan(s.Retry.Base > s.Retry.Max, "retry.base", "retry.max", "the first pause is longer than the longest")
	lessThan(s.Background.Retry.Base > s.Background.Retry.Max, "background.retry.base", "background.retry.max",
		"the first pause is longer than the longest")
	lessThan(s.Breaker.MinSamples > s.Breaker.Window, "breaker.min_samples", "breaker.window",
		"the window never holds so many calls, so the ratio would never count")
	lessThan(s.Breaker.SlowGrace > s.LateTimeout, "breaker.slow_grace", "late_timeout",
		"a late call is ended before it is judged")
	lessThan(s.Retry.AttemptTimeout > s.LateTimeout, "retry.attempt_timeout", "late_timeout",
		"an attempt would be ended before its time-out")
	lessThan(s.Cache.Marker.Min > s.Cache.Marker.Max, "cache.marker.min", "cache.marker.max",
		"nothing lies between the two")
	for _, t := range []struct {
		name string
		ttl  TTL
	}{
		{"valid", s.Cache.Valid}, {"invalid", s.Cache.Invalid}, {"risky", s.Cache.Risky},
		{"mailbox_full", s.Cache.MailboxFull}, {"unresolved", s.Cache.Unresolved},
	} {
		lessThan(t.ttl.Soft > t.ttl.Hard, "cache."+t.name+".soft", "cache."+t.name+".hard",
			"a verdict would be fresh after its end")
	}
	if a, b := "upstream.interactive_reserve", "upstream.background_floor"; sound(a, b) &&
		s.Upstream.InteractiveReserve+s.Upstream.BackgroundFloor > 1 {
		faults = append(faults, fmt.Errorf("%s and %s are more than 1 together: both are shares of the same burst",
			show(a), show(b)))
	}

	own := normalize.Own{Allow: s.Lists.Allow, Deny: s.Lists.Deny, DenyMajor: s.Lists.DenyMajor, Rules: s.Address.Rules}
	if lists, err := normalize.NewLists(own); err != nil {
		faults = append(faults, err)
	} else {
		s.lists = lists
	}
	if err := s.Address.Rules.Check(); err != nil {
		faults = append(faults, fmt.Errorf("address.extra_tlds: %w", err))
	}

	for _, name := range slices.Sorted(maps.Keys(s.Callbacks)) {
		c, of := s.Callbacks[name], "callbacks."+name+"."
		if sound(of+"url") && c.URL == "" {
			faults = append(faults, fmt.Errorf("%surl is not set: there is nowhere to post to", of))
		}
		if sound(of+"secret_file") && c.SecretFile == "" {
			faults = append(faults, fmt.Errorf("%ssecret_file is not set: messages could not be signed", of))
		}
		if sound(of+"url", of+"allow_private") && strings.HasPrefix(strings.ToLower(c.URL), "http://") && !c.AllowPrivate {
			faults = append(faults, fmt.Errorf("%surl (%s) is not https; http is for private networks, with %sallow_private", of, s.origins[of+"url"], of))
		}
	}

	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	for _, name := range slices.Sorted(maps.Keys(s.Flows)) {
		f := s.Flows[name]
		budget, retries := "flows."+name+".budget", "flows."+name+".max_retries"
		need := s.Retry.Base + MinAttempt
		if f.MaxRetries == 0 || need <= f.Window() || !sound(budget, retries, "retry.base") {
			continue
		}
		text := fmt.Sprintf("%s leaves the upstream %s, and a retry needs %s at the least (%s and an attempt of %s): "+
			"%s never happens; raise the budget or set it to 0", show(budget), FormatDuration(f.Window()),
			FormatDuration(need), show("retry.base"), FormatDuration(MinAttempt), show(retries))
		// Asked for in so many words it is a contradiction; with a default it is a consequence.
		if s.origins[retries] != "" && s.origins[retries] != originDefault {
			faults = append(faults, errors.New(text))
		} else {
			warn("%s", text)
		}
	}
	for _, j := range []struct {
		path string
		low  bool
	}{
		{"retry.jitter", s.Retry.Jitter < lowJitter},
		{"background.retry.jitter", s.Background.Retry.Jitter < lowJitter},
	} {
		if j.low && sound(j.path) {
			warn("%s is below %s: callers that failed together would retry together", show(j.path),
				FormatDuration(lowJitter))
		}
	}
	if a, b := "background.retry.attempt_timeout", "background.budget"; sound(a, b) &&
		s.Background.Retry.AttemptTimeout > s.Background.Budget {
		warn("%s is more than %s: an attempt never gets so long", show(a), show(b))
	}
	if a, b := "upstream.burst", "upstream.instances"; sound(a, b) && s.Upstream.Burst < s.Upstream.Instances {
		warn("%s is less than %s: while Redis is away each replica makes one call at once, which is more together", show(a), show(b))
	}
	// A check takes some 300 ms at a healthy upstream (verimail.io's own listings: 224 and 832 ms).
	if a, b := "queue.workers", "upstream.rate"; sound(a, b) && float64(s.Queue.Workers)/0.3 < float64(s.Upstream.Rate) {
		warn("%s do some %d checks a second in one process, and %s is more: after an outage the backlog drains no faster; with one "+
			"process, %d workers use the rate", show(a), int(float64(s.Queue.Workers)/0.3), show(b), int(math.Ceil(float64(s.Upstream.Rate)*0.3)))
	}
	if a, b := "queue.lease", "background.budget"; sound(a, b) && s.Queue.Lease < s.Background.Budget {
		warn("%s is less than %s: a slow check depends on its heartbeat to keep its row", show(a), show(b))
	}
	return faults, warnings
}
