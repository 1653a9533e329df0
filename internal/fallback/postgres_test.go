package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"validator-gw/internal/fallback"
	"validator-gw/internal/fallback/conformance"
	"validator-gw/internal/secret"
	"validator-gw/internal/testenv"
)

var migrated = testenv.PostgresTemplate("fallback", func(ctx context.Context, url string) error {
	return fallback.MigratePostgres(ctx, secret.Text(url))
})

func openPostgres(t testing.TB, url string, s *secret.Sealer) *fallback.Postgres {
	t.Helper()
	// A busy test machine is no reason to turn a caller away.
	store, err := fallback.OpenPostgres(t.Context(), fallback.PostgresConfig{
		URL: secret.Text(url), Sealer: s, AcquireTimeout: 10 * time.Second})
	if err != nil {
		t.Fatalf("OpenPostgres = %v, want no error", err)
	}
	t.Cleanup(store.Close)
	return store
}

// exec runs statements on a connection of its own.
func exec(t testing.TB, url string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	for _, s := range statements {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func TestPostgresConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T, story func(t *testing.T, b conformance.Bed)) {
		url := migrated.Database(t)
		story(t, conformance.Bed{
			Store: openPostgres(t, url, conformance.Sealer(0)),
			Open: func(t *testing.T, s *secret.Sealer) conformance.Store {
				return openPostgres(t, url, s)
			},
			Advance: func(t *testing.T, d time.Duration) {
				by := fmt.Sprintf("interval '%d microseconds'", d.Microseconds())
				exec(t, url,
					"UPDATE reviews SET recorded_at = recorded_at - "+by+", updated_at = updated_at - "+by+
						", ended_at = ended_at - "+by+", asked_from = asked_from - "+by+", asked_at = asked_at - "+by,
					"UPDATE review_queue SET due_at = due_at - "+by,
					"UPDATE verdicts SET checked_at = checked_at - "+by+", hard_until = hard_until - "+by,
					"UPDATE idempotent_answers SET until = until - "+by,
					"UPDATE erasures SET forget_at = forget_at - "+by,
					"UPDATE outbox SET recorded_at = recorded_at - "+by+", due_at = due_at - "+by+", given_up_at = given_up_at - "+by,
					"UPDATE backfills SET lease_until = lease_until - "+by+", updated_at = updated_at - "+by+", keep_until = keep_until - "+by,
					"UPDATE backfill_items SET look_at = look_at - "+by)
			},
			Refuse: func(t *testing.T, table string) {
				exec(t, url, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END'`,
					`CREATE TRIGGER refuse BEFORE INSERT ON `+table+` FOR EACH ROW EXECUTE FUNCTION refuse()`)
			},
			Dump:  func(t *testing.T) string { return dumpPostgres(t, url) },
			Slack: 8 * time.Second, // below every difference that a story tells apart
		})
	})
}

func dumpPostgres(t *testing.T, url string) string {
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	var out strings.Builder
	rows, _ := conn.Query(t.Context(), `SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1`)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("dump: %v", err)
	}
	for _, table := range tables {
		rows, _ := conn.Query(t.Context(), "SELECT x::text FROM "+table+" x ORDER BY 1")
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("dump: %v", err)
		}
		out.WriteString(table + "\n" + strings.Join(lines, "\n") + "\n")
	}
	return out.String()
}

func TestOpenPostgresRefusesUnsafeServers(t *testing.T) {
	t.Parallel()
	url := migrated.Database(t)
	exec(t, url, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$`)
	config := fallback.PostgresConfig{URL: secret.Text(url), Sealer: conformance.Sealer(0)}
	_, err := fallback.OpenPostgres(t.Context(), config)
	if !errors.Is(err, fallback.ErrUnsafeServer) || !strings.Contains(err.Error(), "synchronous_commit is off") {
		t.Errorf("OpenPostgres = %v, want ErrUnsafeServer that names synchronous_commit", err)
	}
	config.AllowUnsafe = true
	s, err := fallback.OpenPostgres(t.Context(), config)
	if err != nil {
		t.Fatalf("OpenPostgres with AllowUnsafe = %v, want no error", err)
	}
	s.Close()
}

func TestOpenPostgresChecksTheSchema(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, url, says string
	}{
		{"empty", testenv.Postgres(t), `run "validator-gw migrate"`},
		{"older", older(t), `run "validator-gw migrate"`},
		{"newer", newer(t), "start a newer program"},
	} {
		_, err := fallback.OpenPostgres(t.Context(),
			fallback.PostgresConfig{URL: secret.Text(c.url), Sealer: conformance.Sealer(0)})
		if !errors.Is(err, fallback.ErrSchema) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: OpenPostgres = %v, want ErrSchema saying %q", c.name, err, c.says)
		}
	}
	if err := fallback.MigratePostgres(t.Context(), secret.Text(newer(t))); !errors.Is(err, fallback.ErrSchema) {
		t.Errorf("MigratePostgres of a newer schema = %v, want ErrSchema", err)
	}
}

func older(t *testing.T) string {
	url := migrated.Database(t)
	exec(t, url, `DELETE FROM validator_gw_schema_version WHERE version_id > 0`)
	return url
}

func newer(t *testing.T) string {
	url := migrated.Database(t)
	exec(t, url, `INSERT INTO validator_gw_schema_version (version_id, is_applied) VALUES (999999, true)`)
	return url
}

func TestOpenPostgresRefusesBadConfigs(t *testing.T) {
	t.Parallel()
	good := fallback.PostgresConfig{URL: "postgres://nobody@127.0.0.1:1/none", Sealer: conformance.Sealer(0)}
	for name, spoil := range map[string]func(c *fallback.PostgresConfig){
		"no url":               func(c *fallback.PostgresConfig) { c.URL = "" },
		"malformed url":        func(c *fallback.PostgresConfig) { c.URL = "postgres://x:hunter2@host:port" },
		"no sealer":            func(c *fallback.PostgresConfig) { c.Sealer = nil },
		"too few connections":  func(c *fallback.PostgresConfig) { c.RecordConns = 7 },
		"too many connections": func(c *fallback.PostgresConfig) { c.RecordConns = 17 },
		"negative bound":       func(c *fallback.PostgresConfig) { c.MaxOpen = -1 },
		"nobody answers":       func(*fallback.PostgresConfig) {},
	} {
		c := good
		spoil(&c)
		s, err := fallback.OpenPostgres(t.Context(), c)
		if err == nil {
			s.Close()
			t.Errorf("%s: OpenPostgres gave no error", name)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error holds the password", name)
		}
	}
}

func TestMigratePostgresAtTheSameTime(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := fallback.MigratePostgres(t.Context(), secret.Text(url)); err != nil {
				t.Errorf("MigratePostgres = %v, want no error", err)
			}
		})
	}
	wg.Wait()
	openPostgres(t, url, conformance.Sealer(0))
}

// A migration without a transaction may be cut off anywhere, and is run again from its beginning.
func TestMigratePostgresAfterOneThatWasCutOff(t *testing.T) {
	t.Parallel()
	url := migrated.Database(t)
	exec(t, url, `DELETE FROM validator_gw_schema_version WHERE version_id > 1`,
		`DROP INDEX idempotent_answers_until`, `DROP TABLE erasures`)
	if err := fallback.MigratePostgres(t.Context(), secret.Text(url)); err != nil {
		t.Fatalf("MigratePostgres = %v, want no error", err)
	}
	exec(t, url, `DROP INDEX idempotent_answers_until`, `DROP INDEX reviews_ended_fingerprint`, `SELECT FROM erasures`) // all are there
	openPostgres(t, url, conformance.Sealer(0))
}

func TestPostgresSettingsOfConnections(t *testing.T) {
	t.Parallel()
	// Every pool's connections end what hangs by themselves. The server's own default is none.
	url := migrated.Database(t)
	s := openPostgres(t, url, conformance.Sealer(0))
	for name, got := range s.Timeouts(t) {
		if got == "0" || got == "" {
			t.Errorf("%s is not set", name)
		}
	}
}

func TestPostgresRefusesAnotherSecret(t *testing.T) {
	t.Parallel()
	url := migrated.Database(t)
	try := func(seeds ...byte) error {
		store, err := fallback.OpenPostgres(t.Context(), fallback.PostgresConfig{URL: secret.Text(url), Sealer: conformance.Sealer(seeds...)})
		if err == nil {
			store.Close()
		}
		return err
	}
	for _, c := range []struct {
		seeds []byte
		want  error
	}{{[]byte{0}, nil}, {[]byte{1}, fallback.ErrWrongSecret}, {[]byte{1, 0}, nil}, {[]byte{1}, nil}, {[]byte{0}, fallback.ErrWrongSecret}} {
		if err := try(c.seeds...); !errors.Is(err, c.want) {
			t.Errorf("OpenPostgres with keys %v = %v, want %v", c.seeds, err, c.want)
		}
	}
}
