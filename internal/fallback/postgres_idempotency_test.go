package fallback_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"validator-gw/internal/fallback"
	"validator-gw/internal/fallback/conformance"
)

// A key whose time was over is taken over by one of two who come at the same moment. What the other sees is that one's
// request, and not what stood there before, which is promised to nobody any more.
func TestPostgresReservesBesideATakeOver(t *testing.T) {
	t.Parallel()
	url := migrated.Database(t)
	s := openPostgres(t, url, conformance.Sealer(0))
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	former, next := fallback.Hash{2}, fallback.Hash{3}
	story := func(key fallback.Hash) (fallback.Held, error) {
		reserve := func() (fallback.Held, error) {
			return s.ReserveKey(t.Context(), fallback.Reservation{Key: key, Request: former, Lease: time.Minute})
		}
		held, err := reserve()
		must(err)
		must(s.KeepAnswer(t.Context(), key, held.Token, []byte("former"), time.Hour))
		first, err := conn.Begin(t.Context())
		must(err)
		exec(t, url, `UPDATE idempotent_answers SET until = now() - interval '1 second'`)
		_, err = first.Exec(t.Context(), `UPDATE idempotent_answers SET request = $2, token = 7, answer = NULL, until = now() + interval '1 hour' WHERE key = $1`,
			key[:], next[:])
		must(err)
		type result struct {
			held fallback.Held
			err  error
		}
		second := make(chan result, 1)
		go func() {
			h, err := reserve()
			second <- result{h, err}
		}()
		for waits := false; !waits; {
			const waiting = `
SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database()))`
			must(first.QueryRow(t.Context(), waiting).Scan(&waits))
		}
		must(first.Commit(t.Context()))
		r := <-second
		return r.held, r.err
	}
	for try := byte(1); ; try++ {
		held, err := story(fallback.Hash{try})
		if err != nil && try < 5 { // a busy machine, on which it waited for lock_timeout
			t.Log(err)
			continue
		}
		if err != nil || held.Token != 0 || held.Request != next || held.Answer != nil {
			t.Errorf("ReserveKey = %+v, %v, want the request that took the key over", held, err)
		}
		return
	}
}
