package fallback

import (
	"testing"
)

// Timeouts returns the statement_timeout of a connection of each pool.
func (s *Postgres) Timeouts(t *testing.T) map[string]string {
	out := map[string]string{}
	for name, b := range map[string]bulkhead{"record": s.record, "work": s.work, "admin": s.admin} {
		var v string
		if err := b.queryRow(t.Context(), []any{&v}, `SHOW statement_timeout`); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out[name] = v
	}
	return out
}
