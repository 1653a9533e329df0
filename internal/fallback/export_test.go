package fallback

import (
	"testing"

	"github.com/google/uuid"

	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
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

// plainEntry is an entry that a store takes.
func plainEntry(t *testing.T) Entry {
	a, err := normalize.Restore("planted@domain.example")
	if err != nil {
		t.Fatal(err)
	}
	return Entry{ID: uuid.Must(uuid.NewV7()).String(), Address: a, Cause: verdict.CauseUpstream}
}
