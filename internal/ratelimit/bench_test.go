package ratelimit

import (
	"sync"
	"testing"
	"time"

	"validator-gw/internal/testenv"
)

// BenchmarkLocal is one take in this process, granted and refused.
func BenchmarkLocal(b *testing.B) {
	for name, rate := range map[string]float64{"granted": 1e6, "refused": 0.001} {
		b.Run(name, func(b *testing.B) {
			l := NewLocal(fixed(Limits{Rate: rate, Burst: 1_000_000, Reserve: 0.5, Floor: 0.1}))
			b.ReportAllocs()
			for b.Loop() {
				l.TakeInteractive(b.Context(), MaxWait)
			}
		})
	}
}

// BenchmarkFleet is one take in Redis, beside a bare PING over the same connection on the same server.
func BenchmarkFleet(b *testing.B) {
	url, prefix := testenv.Redis(b)
	r := newReplica(b, url, prefix, fixed(Limits{Rate: 1e6, Burst: 1_000_000, Reserve: 0.5, Floor: 0.1}))
	bare := bareClient(b, url)
	eventually(b, "it shares", shares(r))
	for _, parallel := range []bool{false, true} {
		for _, c := range []struct {
			name string
			call func()
		}{
			{"take", func() { r.TakeInteractive(b.Context(), MaxWait) }},
			{"background", func() { r.TakeBackground(b.Context()) }},
			{"ping", func() { bare.Ping(b.Context()) }},
		} {
			name := c.name
			if parallel {
				name += "-8-at-once"
			}
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				if !parallel {
					for b.Loop() {
						c.call()
					}
					return
				}
				var all sync.WaitGroup
				began := time.Now()
				for range 8 {
					all.Go(func() {
						for range b.N/8 + 1 {
							c.call()
						}
					})
				}
				all.Wait()
				b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "calls/s")
			})
		}
	}
}
