package gateway

import (
	"fmt"
)

// Summary tells a person what runs, one line a fact. It holds no secret and no URL that may carry one.
func (g *Gateway) Summary() []string {
	s := g.settings.Current()
	lines := []string{fmt.Sprintf("validator-gw %s (%s)", g.cfg.Version, g.cfg.Mode)}
	add := func(name, format string, args ...any) {
		lines = append(lines, fmt.Sprintf("  %-9s %s", name, fmt.Sprintf(format, args...)))
	}
	if g.cfg.DatabaseURL == "" {
		add("store", "SQLite in %s (one process; set DATABASE_URL for Postgres)", g.cfg.DataDir)
	} else {
		add("store", "Postgres")
	}
	if g.redis == nil {
		add("cache", "in this process, %v (single node; set REDIS_URL to share)", s.Cache.Memory)
	} else {
		add("cache", "in this process, %v, and Redis", s.Cache.Memory)
	}
	add("upstream", "%s at %s", g.cfg.UpstreamProfile, g.client.Host())
	add("limits", "%v to the upstream, burst %d; signup answers within %v; %d requests at a time",
		s.Upstream.Rate, s.Upstream.Burst, s.Flows["signup"].Budget, s.Ingress.Concurrency)
	add("listening", "http://%s (metrics http://%s/metrics)", g.lis.Addr(), g.mls.Addr())
	if g.cfg.APIKey == "" {
		add("keys", "none: everyone who reaches the address is let in")
	}
	for _, w := range s.Warnings() {
		add("warning", "%s", w)
	}
	return lines
}
