package fallback_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"validator-gw/internal/fallback"
	"validator-gw/internal/fallback/conformance"
	"validator-gw/internal/verdict"
)

// A watcher is committed while what ends the review waits for its row: a statement that began before does not see it.
func TestPostgresTellsWhoCameWhileItWaited(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(ctx context.Context, s *fallback.Postgres, c fallback.Claim) error{
		"Settle": func(ctx context.Context, s *fallback.Postgres, c fallback.Claim) error {
			return s.Settle(ctx, c, final(), nil)
		},
		"SettleOpen": func(ctx context.Context, s *fallback.Postgres, c fallback.Claim) error {
			_, _, err := s.SettleOpen(ctx, c.Fingerprint, final(), nil)
			return err
		},
		"Kill": func(ctx context.Context, s *fallback.Postgres, c fallback.Claim) error {
			return s.Kill(ctx, c, verdict.Unmapped)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := migrated.Database(t)
			s := openPostgres(t, url, conformance.Sealer(0))
			if _, err := s.Record(t.Context(), numbered(1, 1)); err != nil {
				t.Fatal(err)
			}
			res, err := s.Claim(t.Context(), fallback.ClaimRequest{Max: 1, Lease: time.Hour})
			if err != nil || len(res.Claims) != 1 {
				t.Fatalf("Claim = %d, %v, want the row", len(res.Claims), err)
			}
			c := res.Claims[0]
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.WithoutCancel(t.Context()))
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, sql := range []string{
				`SELECT FROM reviews WHERE id = $1 FOR UPDATE`,
				`INSERT INTO review_watchers (review_id, client, flow, callback) VALUES ($1, 'late', 'signup', 'crm')`,
			} {
				if _, err := tx.Exec(t.Context(), sql, c.ReviewID); err != nil {
					t.Fatal(err)
				}
			}
			ended := make(chan error, 1)
			go func() { ended <- end(context.WithoutCancel(t.Context()), s, c) }()
			for waits := false; !waits; {
				const waiting = `
SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database()))`
				if err := tx.QueryRow(t.Context(), waiting).Scan(&waits); err != nil {
					t.Fatal(err)
				}
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			got, err := s.ClaimNotices(t.Context(), map[string]int{"crm": 5}, time.Minute)
			if err != nil || len(got) != 1 || got[0].Watcher.Client != "late" {
				t.Errorf("messages are %+v, %v, want one for who came late", got, err)
			}
		})
	}
}

// final is a verdict that ends a review.
func final() verdict.Verdict {
	now := time.Now()
	return verdict.Verdict{ID: "01989f6e-0000-7000-8000-00000000000a", Status: verdict.Valid, Reason: verdict.MailboxAccepted,
		Reasons: []verdict.Reason{verdict.MailboxAccepted}, CheckedAt: now, SoftUntil: now.Add(time.Hour), HardUntil: now.Add(time.Hour)}
}
