package fallback

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"validator-gw/internal/secret"
	"validator-gw/migrations"
)

// versionTable is goose's record of what was applied. It has a name of its own, so that a database shared with
// another program that uses goose is no trouble.
const versionTable = "validator_gw_schema_version"

// migrateLock is the key of the advisory lock that replicas take turns on; any constant would do.
const migrateLock int64 = 0x76_67_77_6d_69_67 // "vgwmig"

// MigratePostgres brings the schema of the database at url up to this program. Replicas may do so at the same
// time: they take turns on an advisory lock, waiting for at most five minutes, so url must lead to the server
// itself or to a pooler in session mode. A schema that is newer than this program is ErrSchema.
func MigratePostgres(ctx context.Context, url secret.Text) error {
	config, err := pgx.ParseConfig(url.Reveal())
	if err != nil {
		return fmt.Errorf("migrate: %w", err) // pgx leaves the password out
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(migrateLock), lock.WithLockTimeout(1, 300))
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return migrate(ctx, db, goose.DialectPostgres, migrations.Postgres, "postgres", goose.WithSessionLocker(locker))
}

// migrate runs what is pending of one dialect.
func migrate(ctx context.Context, db *sql.DB, d goose.Dialect, all fs.FS, dir string, opts ...goose.ProviderOption) error {
	sub, err := fs.Sub(all, dir)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	p, err := goose.NewProvider(d, db, sub, append(opts,
		goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true))...)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	version, err := p.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return checkVersion(version, newestVersion(all, dir))
}

// newestVersion is the highest number among the migration files in dir, which are embedded and so well formed.
func newestVersion(all fs.FS, dir string) int64 {
	var newest int64
	entries, _ := fs.ReadDir(all, dir)
	for _, e := range entries {
		if v, err := goose.NumericComponent(e.Name()); err == nil {
			newest = max(newest, v)
		}
	}
	return newest
}

// checkVersion compares the version that the database has with the one this program wants.
func checkVersion(has, wants int64) error {
	switch {
	case has < wants:
		return fmt.Errorf("%w: it is at version %d and this program needs %d: run \"validator-gw migrate\", "+
			"or start with --migrate", ErrSchema, has, wants)
	case has > wants:
		return fmt.Errorf("%w: it is at version %d and this program knows %d only: start a newer program",
			ErrSchema, has, wants)
	}
	return nil
}

// errNoURL is what an empty URL gets; pgx would fall back to a server on this machine.
var errNoURL = errors.New("no database URL")
