package validate_test

import (
	"testing"
	"time"

	"validator-gw/internal/cache"
	"validator-gw/internal/redisconn"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
)

// TestNobodyElseCanBeAsked: Redis is away and the store silent. What the process was told minutes ago is the answer; before,
// it was paid for again each minute.
func TestNobodyElseCanBeAsked(t *testing.T) {
	bubble(t, func(t *testing.T, s *setup) {
		conn, err := redisconn.Open(redisconn.Config{URL: "redis://127.0.0.1:1"}) // nobody listens there
		if err != nil {
			t.Fatal(err)
		}
		s.end()
		s.redis = cache.NewRedis(conn, "k", "")
		s.begin()
		for i, wait := range []time.Duration{0, 2 * time.Minute, time.Hour} {
			time.Sleep(wait)
			a, err := s.service.Validate(t.Context(), validate.Request{Raw: "ana@example.com", Client: "c"})
			if err != nil || a.Status != verdict.Valid || a.Stale {
				t.Errorf("request %d: %s, stale %v, %v; want valid", i, a.Status, a.Stale, err)
			}
			s.records.slowly(time.Second)
		}
		s.wantBilled(1)
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
}
