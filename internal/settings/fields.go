package settings

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// EnvPrefix begins the name of every variable of the gateway's own.
const EnvPrefix = "VALIDATOR_GW_"

// envName is a setting's name in the environment.
func envName(path string) string {
	return EnvPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(path))
}

// field is one setting: its name, its text form, and where it lives in Settings.
type field struct {
	path, doc, bounds string
	restart           bool // a change takes a restart
	list              bool // may be written as a YAML list
	// show is the value as people and logs may see it; nil: as it is.
	show func(string) string
	get  func(*Settings) string
	set  func(*Settings, string) error
}

// at describes a setting that has a place of its own.
func at[T any](path string, k kind[T], place func(*Settings) *T, doc string) field {
	return field{
		path: path, doc: doc, bounds: k.bounds,
		get: func(s *Settings) string { return k.format(*place(s)) },
		set: func(s *Settings, text string) error {
			v, err := k.parse(text)
			if err == nil {
				*place(s) = v
			}
			return err
		},
	}
}

// inFlow describes a setting of one flow.
func inFlow[T any](name, leaf string, k kind[T], place func(*Flow) *T, doc string) field {
	return field{
		path: "flows." + name + "." + leaf, doc: doc, bounds: k.bounds,
		get: func(s *Settings) string { f := s.Flows[name]; return k.format(*place(&f)) },
		set: func(s *Settings, text string) error {
			v, err := k.parse(text)
			if err == nil {
				f := s.Flows[name]
				*place(&f) = v
				s.Flows[name] = f
			}
			return err
		},
	}
}

// shown is a value as people and logs may see it.
func (f field) shown(text string) string {
	if f.show == nil || text == "" {
		return text
	}
	return f.show(text)
}

// flowFields are the settings of one flow.
func flowFields(name string) []field {
	return []field{
		inFlow(name, "budget", durations(300*time.Millisecond, 950*time.Millisecond),
			func(f *Flow) *time.Duration { return &f.Budget },
			"Time from a request's arrival to its answer; the last 150 ms are kept for the durable row."),
		inFlow(name, "max_retries", counts(0, 5), func(f *Flow) *int { return &f.MaxRetries },
			"Attempts after the first, as far as they fit into the budget."),
		inFlow(name, "on_unverified", words(AcceptPending, Hold),
			func(f *Flow) *OnUnverified { return &f.OnUnverified },
			"Decision while nothing is known about an address; `hold` is how a flow blocks."),
	}
}

// inCallback describes a setting of one callback.
func inCallback[T any](name, leaf string, k kind[T], place func(*Callback) *T, doc string) field {
	return field{
		path: "callbacks." + name + "." + leaf, doc: doc, bounds: k.bounds,
		get: func(s *Settings) string { c := s.Callbacks[name]; return k.format(*place(&c)) },
		set: func(s *Settings, text string) error {
			v, err := k.parse(text)
			if err == nil {
				c := s.Callbacks[name]
				*place(&c) = v
				s.Callbacks[name] = c
			}
			return err
		},
	}
}

// callbackFields are the settings of one callback.
func callbackFields(name string) []field {
	url := inCallback(name, "url", urls(), func(c *Callback) *string { return &c.URL },
		"Where messages are posted; shown without its path, which may hold a token.")
	url.show = hostOnly
	events := inCallback(name, "events", events(), func(c *Callback) *[]string { return &c.Events }, "What it is told.")
	events.list = true
	return []field{
		url,
		inCallback(name, "secret_file", paths(), func(c *Callback) *string { return &c.SecretFile },
			"File that holds the key that messages are signed with; read at each delivery."),
		events,
		inCallback(name, "allow_private", switches(), func(c *Callback) *bool { return &c.AllowPrivate },
			"Allow a target in a private network or on this machine, and http."),
	}
}

// ttlFields are the two lifetimes of one status.
func ttlFields(name, what string, place func(*Settings) *TTL) []field {
	life := durations(time.Second, 365*day)
	return []field{
		at("cache."+name+".soft", life, func(s *Settings) *time.Duration { return &place(s).Soft },
			what+" is served as it is for this long."),
		at("cache."+name+".hard", life, func(s *Settings) *time.Duration { return &place(s).Hard },
			what+" is served, marked stale, for this long; past its freshness a newer one is asked for in the background."),
	}
}

// fieldsOf lists every setting: flows in the order signup, high_risk, then by name, callbacks by name.
func fieldsOf(of *Settings) []field {
	flows := of.Flows
	var list []field
	names := []string{"signup", "high_risk"}
	for _, name := range slices.Sorted(maps.Keys(flows)) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		list = append(list, flowFields(name)...)
	}

	type S = Settings
	type D = time.Duration
	const ms, s, m = time.Millisecond, time.Second, time.Minute
	list = append(list,
		at("background.budget", durations(1*s, 60*s), func(x *S) *D { return &x.Background.Budget },
			"Time for one check by the loop, its attempts and pauses included."),
		at("background.max_retries", counts(0, 8), func(x *S) *int { return &x.Background.MaxRetries },
			"Attempts after the first of one check by the loop."),
		at("background.retry.base", durations(1*ms, 10*m), func(x *S) *D { return &x.Background.Retry.Base },
			"Pause before the loop's first retry; doubles each time."),
		at("background.retry.max", durations(1*ms, 10*m), func(x *S) *D { return &x.Background.Retry.Max },
			"Longest pause between the loop's attempts, before jitter."),
		at("background.retry.jitter", durations(0, 10*m), func(x *S) *D { return &x.Background.Retry.Jitter },
			"Up to this is added to each of the loop's pauses, at random."),
		at("background.retry.attempt_timeout", durations(MinAttempt, 60*s),
			func(x *S) *D { return &x.Background.Retry.AttemptTimeout },
			"How long the loop waits for one attempt."),

		at("retry.base", durations(1*ms, 10*s), func(x *S) *D { return &x.Retry.Base },
			"Pause before the first retry; doubles each time."),
		at("retry.max", durations(1*ms, 10*s), func(x *S) *D { return &x.Retry.Max },
			"Longest pause between attempts, before jitter."),
		at("retry.jitter", durations(0, 10*s), func(x *S) *D { return &x.Retry.Jitter },
			"Up to this is added to each pause, at random; below 50ms callers retry in step, and it warns."),
		at("retry.attempt_timeout", durations(MinAttempt, 10*s), func(x *S) *D { return &x.Retry.AttemptTimeout },
			"How long one attempt is waited for; it goes on as a late one, and its answer is kept."),
		at("retry.budget_ratio", shares(1), func(x *S) *float64 { return &x.Retry.BudgetRatio },
			"Share of the calls that may be retries, beside one a second that is always allowed; ten seconds' worth is saved up, 20 at the least."),
		at("retry.on_timeout", switches(), func(x *S) *bool { return &x.Retry.OnTimeout },
			"Ask again after a time-out; only for an upstream that does not bill what it was asked."),
		at("late_timeout", durations(1*s, 60*s), func(x *S) *D { return &x.LateTimeout },
			"End of a call that outlived its callers, from its start."),

		at("breaker.consecutive_failures", counts(5, 10), func(x *S) *int { return &x.Breaker.ConsecutiveFailures },
			"Failures in a row that open the breaker."),
		at("breaker.window", counts(20, 50), func(x *S) *int { return &x.Breaker.Window },
			"Calls that the failure ratio is taken over."),
		at("breaker.min_samples", counts(1, 50), func(x *S) *int { return &x.Breaker.MinSamples },
			"Calls that must be in the window before the ratio counts."),
		at("breaker.failure_ratio", shares(1), func(x *S) *float64 { return &x.Breaker.FailureRatio },
			"Share of failures in the window that opens the breaker."),
		at("breaker.cooldown", durations(15*s, 60*s), func(x *S) *D { return &x.Breaker.Cooldown },
			"Time that the breaker stays open, ±20 % for each process."),
		at("breaker.probes", counts(1, 5), func(x *S) *int { return &x.Breaker.Probes },
			"Calls in a row that must succeed before it closes."),
		at("breaker.slow_grace", durations(0, 60*s), func(x *S) *D { return &x.Breaker.SlowGrace },
			"A timed-out attempt that is answered this long after its start is no failure."),
		at("breaker.min_span", durations(0, 60*s), func(x *S) *D { return &x.Breaker.MinSpan },
			"Neither rule opens it before the trouble has lasted for this: a row of failures spans it, or their share was never below half of the ratio."),

		at("upstream.rate", rates(), func(x *S) *Rate { return &x.Upstream.Rate },
			"Calls to the upstream by all replicas together, shared through Redis; without `REDIS_URL`, by each process."),
		at("upstream.burst", counts(1, maxRate), func(x *S) *int { return &x.Upstream.Burst },
			"Calls at once, likewise."),
		at("upstream.instances", counts(1, 10_000), func(x *S) *int { return &x.Upstream.Instances },
			"Least number of replicas to assume. While Redis is away each keeps to its part of 0.7 of the rate, and one that "+
				"never saw Redis knows of no others but by this."),
		at("upstream.interactive_reserve", shares(1), func(x *S) *float64 { return &x.Upstream.InteractiveReserve },
			"Share of the burst that the loop and backfills leave to people who wait; a full bucket has one call for them all the same."),
		at("upstream.background_floor", shares(1), func(x *S) *float64 { return &x.Upstream.BackgroundFloor },
			"Share of rate and burst that is the loop's whatever comes in."),
		at("upstream.max_in_flight", counts(1, 100_000), func(x *S) *int { return &x.Upstream.MaxInFlight },
			"Calls in flight of one process, late ones included."),

		at("retry_after.max", durations(1*s, 24*time.Hour), func(x *S) *D { return &x.RetryAfter.Max },
			"A longer hint of the upstream is cut to this and logged once. Lowered, it also shortens the wait that is under way, of all replicas."),
	)

	list = append(list, ttlFields("valid", "A `valid` verdict", func(x *S) *TTL { return &x.Cache.Valid })...)
	list = append(list, ttlFields("invalid", "An `invalid` verdict", func(x *S) *TTL { return &x.Cache.Invalid })...)
	list = append(list, ttlFields("risky", "A `risky` verdict", func(x *S) *TTL { return &x.Cache.Risky })...)
	list = append(list, ttlFields("mailbox_full", "A verdict with the reason `mailbox_full`",
		func(x *S) *TTL { return &x.Cache.MailboxFull })...)
	list = append(list, ttlFields("unresolved", "An `unresolved` answer",
		func(x *S) *TTL { return &x.Cache.Unresolved })...)

	memory := at("cache.memory", sizes(1<<20, 64<<30), func(x *S) *Size { return &x.Cache.Memory },
		"Memory for what is known, in each process, about; a verdict takes some 180 bytes, so the default is for 190,000.")
	memory.restart = true

	domains := func(path string, place func(*S) *[]string, doc string) field {
		f := at(path, domainNames(), place, doc)
		f.list = true
		return f
	}
	list = append(list,
		domains("lists.allow", func(x *S) *[]string { return &x.Lists.Allow },
			"Domains that are neither disposable nor a typing error, whatever the shipped lists say; with all below them."),
		domains("lists.deny", func(x *S) *[]string { return &x.Lists.Deny },
			"Domains that are refused (`local_denylist`) without asking the upstream; with all below them."),
		domains("lists.deny_major", func(x *S) *[]string { return &x.Lists.DenyMajor },
			"Major providers in lists.deny that are really meant; without this they are refused there."),
		at("address.long_local_parts", switches(), func(x *S) *bool { return &x.Address.Rules.LongLocal },
			"Accept local parts of more than the 64 octets of RFC 5321, as some machines make them."),
		at("address.test_domains", switches(), func(x *S) *bool { return &x.Address.Rules.TestDomains },
			"Accept addresses under .test; for test environments."),
		domains("address.extra_tlds", func(x *S) *[]string { return &x.Address.Rules.TLDs },
			"Top-level domains that are newer than this program."),
		at("address.dedupe_key", switches(), func(x *S) *bool { return &x.Address.DedupeKey },
			"Add `email.dedupe_key` to answers: equal for spellings that one provider delivers to one mailbox."),
	)

	list = append(list,
		at("cache.marker.min", durations(1*s, 1*time.Hour), func(x *S) *D { return &x.Cache.Marker.Min },
			"Least time before a post for an address under review may ask the upstream again."),
		at("cache.marker.max", durations(1*s, 1*time.Hour), func(x *S) *D { return &x.Cache.Marker.Max },
			"Most time before it; each marker draws its own between the two."),
		at("cache.jitter", shares(0.5), func(x *S) *float64 { return &x.Cache.Jitter },
			"Every lifetime is varied by this share, up and down."),
		memory,

		at("queue.workers", counts(1, 256), func(x *S) *int { return &x.Queue.Workers },
			"Checks that the loop runs at once in one process."),
		at("queue.batch", counts(1, 50), func(x *S) *int { return &x.Queue.Batch },
			"Most rows of one claim."),
		at("queue.lease", durations(1*s, 10*m), func(x *S) *D { return &x.Queue.Lease },
			"Time that a claimed row is left to its worker; another takes it after that."),
		at("queue.max_open", counts(1, 100_000_000), func(x *S) *int { return &x.Queue.MaxOpen },
			"Open reviews; backfills stop feeding at 80 % of it, sign-ups get 503 above it."),
		at("queue.keep_address", durations(0, 365*day), func(x *S) *D { return &x.Queue.KeepAddress },
			"Not in effect yet. How long the encrypted address outlives its review."),

		at("backfill.share", shares(1), func(x *S) *float64 { return &x.Backfill.Share },
			"Share of `upstream.rate` that the lists in work in one process take together, at most; 0 feeds none. People and the loop's other reviews go first in any case."),
		at("backfill.keep", durations(1*time.Hour, 90*day), func(x *S) *D { return &x.Backfill.Keep },
			"Time that results and inputs of a list stay after its end; then all of it is deleted."),
		at("backfill.max_rows", counts(1, 1_000_000_000), func(x *S) *int { return &x.Backfill.MaxRows },
			"Rows of one list; a longer one is refused."),

		at("ingress.per_key", limits(), func(x *S) *Limit { return &x.Ingress.PerKey },
			"Not in effect yet. Requests of one client key."),
		at("ingress.per_ip", limits(), func(x *S) *Limit { return &x.Ingress.PerIP },
			"Not in effect yet. Requests of one IP address, for browser keys only: a back end speaks for many people."),
		at("ingress.concurrency", counts(0, 1_000_000), func(x *S) *int { return &x.Ingress.Concurrency },
			"Requests at work in one process; 0 is no bound."),
		at("ingress.queue_wait", durations(0, 200*ms), func(x *S) *D { return &x.Ingress.QueueWait },
			"How long a request waits for its turn before it is shed."),
		at("log.routine_per_second", counts(0, 1_000_000), func(x *S) *int { return &x.Log.RoutinePerSecond },
			"Log lines a second for routine requests (answered from what is known, or refused); those above are counted. 0 is no bound."),
	)
	for _, name := range slices.Sorted(maps.Keys(of.Callbacks)) {
		list = append(list, callbackFields(name)...)
	}
	return list
}
