package gateway

import (
	"math"

	"validator-gw/internal/admission"
	"validator-gw/internal/api"
	"validator-gw/internal/cache"
	"validator-gw/internal/ratelimit"
	"validator-gw/internal/revalidate"
	"validator-gw/internal/settings"
	"validator-gw/internal/validate"
	"validator-gw/internal/verimail"
)

// tunings translate the settings into each part's own. They are read at each use, so a change takes effect with the next.
type tunings struct{ live *settings.Live }

func (t tunings) cache() cache.Tuning {
	c := t.live.Current().Cache
	return cache.Tuning{Valid: cache.TTL(c.Valid), Invalid: cache.TTL(c.Invalid), Risky: cache.TTL(c.Risky), MailboxFull: cache.TTL(c.MailboxFull),
		Unresolved: cache.TTL(c.Unresolved), Jitter: c.Jitter, MarkerMin: c.Marker.Min, MarkerMax: c.Marker.Max}
}

func (t tunings) limits() ratelimit.Limits {
	u := t.live.Current().Upstream
	client := t.client()
	return ratelimit.Limits{Rate: float64(u.Rate), Burst: u.Burst, Reserve: u.InteractiveReserve, Floor: u.BackgroundFloor,
		Instances: u.Instances, MaxHold: client.LongestWait()}
}

func (t tunings) client() verimail.Tuning {
	s := t.live.Current()
	class := func(b settings.Backoff) verimail.ClassTuning {
		return verimail.ClassTuning{Base: b.Base, Max: b.Max, Jitter: b.Jitter, AttemptTimeout: b.AttemptTimeout}
	}
	b := s.Breaker
	return verimail.Tuning{
		Interactive: class(s.Retry.Backoff), Background: class(s.Background.Retry),
		RetryBudgetRatio: s.Retry.BudgetRatio, RetryOnTimeout: s.Retry.OnTimeout, LateTimeout: s.LateTimeout,
		RetryAfterMax: s.RetryAfter.Max, MaxInFlight: s.Upstream.MaxInFlight,
		Breaker: verimail.BreakerTuning{ConsecutiveFailures: b.ConsecutiveFailures, MinSpan: b.MinSpan, Window: b.Window, MinSamples: b.MinSamples,
			FailureRatio: b.FailureRatio, Cooldown: b.Cooldown, Probes: b.Probes, SlowGrace: b.SlowGrace},
	}
}

func (t tunings) admission() admission.Limits {
	i := t.live.Current().Ingress
	if i.Concurrency == 0 {
		return admission.Limits{Concurrency: math.MaxInt}
	}
	return admission.Limits{Concurrency: i.Concurrency, Wait: i.QueueWait}
}

func (t tunings) flow(name string) (validate.Flow, bool) {
	f, ok := t.live.Current().Flows[name]
	return validate.Flow{Budget: f.Budget, MaxRetries: f.MaxRetries, Policy: validate.Policy{OnUnverified: validate.Decision(f.OnUnverified)}}, ok
}

func (t tunings) routineLines() int { return t.live.Current().Log.RoutinePerSecond }

// shown is what GET /admin/settings shows.
func (t tunings) shown() api.Settings {
	s, stats := t.live.Current(), t.live.Stats()
	shown := api.Settings{Applied: stats.Applied, Refused: stats.Refused, Stale: stats.Stale, Warnings: s.Warnings()}
	for _, r := range s.Rows() {
		shown.Settings = append(shown.Settings, api.Setting{Path: r.Path, Value: r.Value, Default: r.Default, Origin: r.Origin,
			Live: r.Live, Bounds: r.Bounds, Doc: r.Doc})
	}
	return shown
}

func (t tunings) address() validate.AddressPlan {
	s := t.live.Current()
	return validate.AddressPlan{Rules: s.Address.Rules, Domains: s.Domains(), DedupeKey: s.Address.DedupeKey}
}

func (t tunings) background() validate.BackgroundPlan {
	b := t.live.Current().Background
	return validate.BackgroundPlan{Budget: b.Budget, MaxRetries: b.MaxRetries}
}

func (t tunings) loop() revalidate.Tuning {
	s := t.live.Current()
	return revalidate.Tuning{Workers: s.Queue.Workers, Batch: s.Queue.Batch, Lease: s.Queue.Lease, Probes: s.Breaker.Probes,
		// What is left of the rate when people take none, and a margin: the spread is a guess, the bucket decides.
		Rate: float64(s.Upstream.Rate) * 0.7}
}
