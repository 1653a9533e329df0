package gateway

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"validator-gw/internal/secret"
	"validator-gw/internal/settings"
	"validator-gw/internal/testenv"
	"validator-gw/internal/verimail/simulator"
)

// dumpRedis returns every key and value of the server as text.
func dumpRedis(t *testing.T, url string) string {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	defer c.Close()
	keys, err := c.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, k := range keys {
		v, err := c.Get(t.Context(), k).Result()
		if err != nil {
			v = err.Error() // another test's, of another type or gone since
		}
		fmt.Fprintln(&all, k, v)
	}
	return all.String()
}

// TestThreeReplicas: on one Redis, three gateways together keep to one rate, and go on keeping to it when Redis dies.
func TestThreeReplicas(t *testing.T) {
	t.Parallel()
	server := testenv.RedisServer(t)
	const rate, burst = 50, 20
	first := newBench(t, func(t *testing.T, c *Config) {
		stores[1].set(t, c)
		c.RedisURL = secret.Text(server.URL())
	}, simulator.Config{}, func(s *settings.Settings) {
		s.Upstream.Rate, s.Upstream.Burst = rate, burst
	})
	fleet := []*bench{first}
	for range 2 {
		b := *first
		b.start()
		t.Cleanup(b.halt)
		fleet = append(fleet, &b)
	}
	first.eventually("all share the rate", func() bool {
		for _, b := range fleet {
			if b.gauge("ratelimit_instances") != 3 {
				return false
			}
		}
		return true
	})
	stop := make(chan struct{})
	var people sync.WaitGroup
	for i, b := range fleet {
		for n := range 2 {
			people.Go(func() {
				for visit := 0; ; visit++ {
					select {
					case <-stop:
						return
					default:
						b.post(fmt.Sprintf("person.%d.%d.%d@example.com", i, n, visit))
					}
				}
			})
		}
	}
	calls := func(more int64) func() bool {
		want := first.sim.Stats().Calls + more
		return func() bool { return first.sim.Stats().Calls >= want }
	}
	first.eventually("people are answered", calls(2*rate))
	server.Kill()
	first.eventually("each goes on by itself", func() bool {
		for _, b := range fleet {
			if b.gauge("ratelimit_shared") != 0 {
				return false
			}
		}
		return true
	})
	first.eventually("people are answered without Redis", calls(rate))
	server.Start()
	first.eventually("all share again", func() bool {
		for _, b := range fleet {
			if b.gauge("ratelimit_shared") != 1 {
				return false
			}
		}
		return true
	})
	first.eventually("people are answered with Redis back", calls(rate))
	close(stop)
	people.Wait()
	seen := first.sim.Calls()
	peak := simulator.PeakBurst(seen, rate)
	t.Logf("%d calls, over %d/s by %.1f at the most", len(seen), rate, peak)
	if peak > burst+rate/4 { // what a busy machine may bring together on the way, a quarter of a second's worth
		t.Errorf("the upstream saw %.1f over %d/s, want at most the burst of %d", peak, rate, burst)
	}
}

// gauge is a metric without labels.
func (b *bench) gauge(name string) float64 {
	b.t.Helper()
	families, err := b.gateway.Registry().Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "validator_gw_"+name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return 0
}
