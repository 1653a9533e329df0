package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"validator-gw/internal/cache"
	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
	"validator-gw/internal/verdict"
)

// store is what the gateway asks of a durable store; both of fallback's have it.
type store interface {
	Lookup(ctx context.Context, fp normalize.Fingerprint) (fallback.Found, error)
	Record(ctx context.Context, e fallback.Entry) (fallback.Review, error)
	SettleOpen(ctx context.Context, fp normalize.Fingerprint, v verdict.Verdict, trail []verdict.Attempt) (string, bool, error)
	Review(ctx context.Context, id string) (fallback.Review, error)
	Verdict(ctx context.Context, id string) (fallback.Stored, error)
	Watch(ctx context.Context, id string, w fallback.Watcher) error
	Watchers(ctx context.Context, id string) ([]fallback.Watcher, error)
	Erase(ctx context.Context, e fallback.Erasure) (fallback.Erased, error)
	Ask(ctx context.Context, e fallback.Event) (fallback.Asked, error)
	Ripen(ctx context.Context, fps []normalize.Fingerprint) (int, error)
	ReserveKey(ctx context.Context, r fallback.Reservation) (fallback.Held, error)
	ReadKey(ctx context.Context, key fallback.Hash) (fallback.Held, error)
	KeepAnswer(ctx context.Context, key fallback.Hash, token int64, answer []byte, keep time.Duration) error
	FreeKey(ctx context.Context, key fallback.Hash, token int64) error
	Claim(ctx context.Context, r fallback.ClaimRequest) (fallback.ClaimResult, error)
	Heartbeat(ctx context.Context, id string, token int64, lease time.Duration) error
	GiveBack(ctx context.Context, claims []fallback.Claim) error
	SettleBatch(ctx context.Context, batch []fallback.Settlement) (lost []fallback.Claim, err error)
	PostponeBatch(ctx context.Context, batch []fallback.Delay) (lost []fallback.Claim, err error)
	Kill(ctx context.Context, c fallback.Claim, reason verdict.Reason) error
	DeadReviews(ctx context.Context, after fallback.DeadPage, limit int) ([]fallback.Review, error)
	Replay(ctx context.Context, id string) error
	Drop(ctx context.Context, id string) error
	Hasten(ctx context.Context, limit int, spread time.Duration) (int, error)
	PutVerdicts(ctx context.Context, batch []fallback.Stored) error
	ClaimNotices(ctx context.Context, room map[string]int, lease time.Duration) ([]fallback.Notice, error)
	EndNotice(ctx context.Context, n fallback.Notice, delivered bool, why string) error
	DelayNotice(ctx context.Context, n fallback.Notice, in time.Duration, why string) error
	OutboxStats(ctx context.Context) (fallback.OutboxStats, error)
	OpenBackfill(ctx context.Context, n fallback.NewBackfill) (fallback.Backfill, fallback.BackfillLease, error)
	LoadBackfill(ctx context.Context, l fallback.BackfillLease, c fallback.BackfillChunk, lease time.Duration) error
	LoadedBackfill(ctx context.Context, l fallback.BackfillLease) error
	ClaimBackfill(ctx context.Context, lease time.Duration) (fallback.Backfill, fallback.BackfillLease, bool, error)
	RenewBackfill(ctx context.Context, l fallback.BackfillLease, lease time.Duration) (fallback.Backfill, error)
	ReleaseBackfill(ctx context.Context, l fallback.BackfillLease) error
	MergeBackfill(ctx context.Context, l fallback.BackfillLease, lease time.Duration) (fallback.Backfill, error)
	BackfillPortion(ctx context.Context, l fallback.BackfillLease, after int64, limit int) (fallback.BackfillPortion, error)
	PlanBackfill(ctx context.Context, l fallback.BackfillLease, p fallback.BackfillPlan) (fallback.Backfill, error)
	BackfillNews(ctx context.Context, l fallback.BackfillLease, limit int) ([]fallback.BackfillNews, error)
	StepBackfill(ctx context.Context, l fallback.BackfillLease, step fallback.BackfillStep) (fallback.Backfill, error)
	WithdrawBackfill(ctx context.Context, l fallback.BackfillLease, w fallback.BackfillWithdrawal) (fallback.Backfill, int, error)
	EndBackfill(ctx context.Context, l fallback.BackfillLease, s fallback.BackfillState, keep time.Duration) (fallback.Backfill, error)
	CancelBackfill(ctx context.Context, id string) (fallback.Backfill, error)
	ResumeBackfill(ctx context.Context, id string, maxCredits *int64) (fallback.Backfill, error)
	Backfill(ctx context.Context, id string) (fallback.Backfill, error)
	Backfills(ctx context.Context, client, before string, limit int) ([]fallback.Backfill, error)
	BackfillResults(ctx context.Context, id string, after int64, limit int) ([]fallback.BackfillResult, error)
	Stats(ctx context.Context) (fallback.Stats, error)
	Sweep(ctx context.Context, r fallback.Retention) (int, error)
	Ping(ctx context.Context) error
	SetMaxOpen(n int64)
	Close()
}

// SQLiteFile is the name of SQLite's file in Config.DataDir.
const SQLiteFile = "validator-gw.db"

// connectFor is how long a database that can't be reached is tried at the start.
const connectFor = time.Minute

// openTimeout bounds one try.
const openTimeout = 15 * time.Second

func (g *Gateway) openStore(ctx context.Context, sealer *secret.Sealer, rand func() float64) (store, error) {
	maxOpen := int64(g.settings.Current().Queue.MaxOpen)
	if g.cfg.DatabaseURL == "" {
		return opened(fallback.OpenSQLite(ctx, fallback.SQLiteConfig{Path: filepath.Join(g.cfg.DataDir, SQLiteFile), Sealer: sealer,
			MaxOpen: maxOpen, Rand: rand, Registerer: g.registry}))
	}
	// The minute bounds the trying and not a migration that is under way.
	end := time.Now().Add(connectFor)
	for wait := 250 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		s, err := g.openPostgres(ctx, sealer, maxOpen)
		if err == nil || final(err) || ctx.Err() != nil || time.Until(end) < wait {
			return s, err
		}
		g.log.WarnContext(ctx, "database can't be reached; trying on for a minute at most", "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func (g *Gateway) openPostgres(ctx context.Context, sealer *secret.Sealer, maxOpen int64) (store, error) {
	if g.cfg.Migrate {
		if err := fallback.MigratePostgres(ctx, g.cfg.DatabaseURL); err != nil {
			return nil, fmt.Errorf("migrate: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return opened(fallback.OpenPostgres(ctx, fallback.PostgresConfig{URL: g.cfg.DatabaseURL, Sealer: sealer, MaxOpen: maxOpen,
		AllowUnsafe: g.cfg.AllowUnsafe, Registerer: g.registry}))
}

// opened keeps a nil pointer from becoming a store that is not nil.
func opened[S store](s S, err error) (store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Migrate brings the schema of the configured store up to this program's.
func Migrate(ctx context.Context, cfg Config, log *slog.Logger) error {
	if cfg.DatabaseURL == "" {
		return fallback.MigrateSQLite(ctx, filepath.Join(cfg.DataDir, SQLiteFile))
	}
	log.InfoContext(ctx, "migrating", "store", "postgres")
	return fallback.MigratePostgres(ctx, cfg.DatabaseURL)
}

// verdictStore hands the cache's batches to a store.
type verdictStore struct{ store store }

// PutVerdicts implements what package cache asks for.
func (v verdictStore) PutVerdicts(ctx context.Context, batch []cache.Stored) error {
	out := make([]fallback.Stored, len(batch))
	for i, s := range batch {
		out[i] = fallback.Stored(s)
	}
	return v.store.PutVerdicts(ctx, out)
}

// final says that trying again can't help: credentials, database name, schema, server settings.
func final(err error) bool {
	if errors.Is(err, fallback.ErrSchema) || errors.Is(err, fallback.ErrWrongSecret) || errors.Is(err, fallback.ErrUnsafeServer) {
		return true
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code[:2] {
		case "08", "53", "57": // connection, resources, shutting down or starting up
			return false
		}
		return true
	}
	// What is neither the server's word nor the network's (a URL that can't be read, say) stays as it is.
	var dial *net.OpError
	var connect *pgconn.ConnectError
	return !errors.As(err, &dial) && !errors.As(err, &connect) && !errors.Is(err, context.DeadlineExceeded)
}
