package fallback

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/prometheus/client_golang/prometheus"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"validator-gw/internal/secret"
	"validator-gw/migrations"
)

// ErrInUse: another process has the data folder open.
var ErrInUse = errors.New("data folder is in use by another process")

// SQLiteConfig is what OpenSQLite needs. Path and Sealer are required.
type SQLiteConfig struct {
	// Path is the database file. Its folder is made when missing; beside the file live SQLite's own (-wal, -shm)
	// and a lock.
	Path string
	// Sealer encrypts addresses at rest.
	Sealer *secret.Sealer
	// MaxOpen bounds the open reviews (queue.max_open); 1,000,000 when zero.
	MaxOpen int64
	// Rand draws from [0, 1) for Hasten; a random source of its own when nil. It is never called twice at once.
	Rand func() float64
	// Registerer takes the metrics; may be nil.
	Registerer prometheus.Registerer
}

// SQLite is the durable store of a single process. All methods are safe for concurrent use. It keeps every
// promise of Postgres's methods of the same names, where they are documented; its clock is Go's, and no statement
// asks SQLite for the time.
//
// Writes go through one connection and are committed together: while one commit waits for the disk the next
// writes gather. A commit is on the disk when a method returns (synchronous=FULL). Reads have connections of
// their own and do not wait for writes.
type SQLite struct {
	writer  *writer
	reads   *sql.DB
	unlock  func()
	sealer  *secret.Sealer
	metrics *metrics
	random  func() float64 // used under the writer only

	maxOpen atomic.Int64
}

// readConns bounds the connections for reading.
const readConns = 4

// OpenSQLite opens the file, making and migrating it as needed. ErrInUse: another process has it open. ErrSchema:
// a newer program wrote it. End it with Close.
func OpenSQLite(ctx context.Context, c SQLiteConfig) (*SQLite, error) {
	switch {
	case c.Path == "":
		return nil, errors.New("sqlite: no path")
	case c.Sealer == nil:
		return nil, errors.New("sqlite: no sealer")
	case c.MaxOpen < 0:
		return nil, errors.New("sqlite: most open reviews is negative")
	}
	m, err := newMetrics(c.Registerer, "sqlite")
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	s := &SQLite{sealer: c.Sealer, metrics: m, random: c.Rand}
	if s.random == nil {
		s.random = rand.Float64
	}
	s.maxOpen.Store(cmp.Or(c.MaxOpen, defaultMaxOpen))

	db, unlock, err := openMigrated(ctx, c.Path)
	if err != nil {
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	s.writer, s.unlock = newWriter(ctx, db), unlock
	s.reads, err = openFile(c.Path, "query_only(1)")
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	s.reads.SetMaxOpenConns(readConns)
	s.reads.SetMaxIdleConns(readConns)

	if err := s.checkSecret(ctx, db); err != nil {
		s.Close()
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	// Whoever held a backfill is gone: there is one process.
	const free = `UPDATE backfills SET lease_token = 0, lease_until = ? WHERE lease_token <> 0`
	if _, err := db.ExecContext(ctx, free, micros(time.Now())); err != nil {
		s.Close()
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	var n int64
	if err := s.reads.QueryRowContext(ctx, `SELECT count(*) FROM review_queue`).Scan(&n); err != nil {
		s.Close()
		return nil, fmt.Errorf("sqlite: %w", err)
	}
	s.writer.open.Store(n)
	return s, nil
}

// checkSecret: see [Postgres.checkSecret].
func (s *SQLite) checkSecret(ctx context.Context, db *sql.DB) error {
	const (
		leaveProof  = `INSERT INTO sealed_proof (one, sealed) VALUES (1, ?) ON CONFLICT DO NOTHING`
		selectProof = `SELECT sealed FROM sealed_proof`
		renewProof  = `UPDATE sealed_proof SET sealed = ?`
	)
	if _, err := db.ExecContext(ctx, leaveProof, sealProof(s.sealer)); err != nil {
		return err
	}
	var sealed []byte
	if err := db.QueryRowContext(ctx, selectProof).Scan(&sealed); err != nil {
		return err
	}
	if err := openProof(s.sealer, sealed); err != nil {
		return err
	}
	_, err := db.ExecContext(ctx, renewProof, sealProof(s.sealer))
	return err
}

// MigrateSQLite brings the schema of the file at path up to this program, making it when there is none. ErrInUse:
// another process has it open.
func MigrateSQLite(ctx context.Context, path string) error {
	db, unlock, err := openMigrated(ctx, path)
	if err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	defer unlock()
	return db.Close()
}

// openMigrated locks the folder and opens the one connection for writing on an up-to-date schema. unlock is
// called after the connection is closed.
func openMigrated(ctx context.Context, path string) (db *sql.DB, unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, nil, err
	}
	release, err := lockFolder(ctx, path+".lock")
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			if db != nil {
				db.Close()
			}
			release()
		}
	}()
	// Made here, so that only its owner can read it; SQLite gives the files beside it the same mode.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil, err
	}
	if err = f.Close(); err != nil {
		return nil, nil, err
	}
	db, err = openFile(path, "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)", "journal_size_limit(67108864)")
	if err != nil {
		return nil, nil, err
	}
	db.SetMaxOpenConns(1)
	db.SetMaxIdleConns(1)
	if err = migrate(ctx, db, goose.DialectSQLite3, migrations.SQLite, "sqlite"); err != nil {
		return db, nil, err
	}
	var mode string
	if err = db.QueryRowContext(ctx, `PRAGMA journal_mode`).Scan(&mode); err == nil && mode != "wal" {
		err = fmt.Errorf("journal mode is %q, want wal: the file system may lack shared memory", mode)
	}
	return db, release, err
}

// openFile describes a pool of connections with these pragmas; they are made when they are needed.
func openFile(path string, pragmas ...string) (*sql.DB, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	q := url.Values{"_txlock": {"immediate"}, "_dqs": {"0"}, "_pragma": append([]string{"busy_timeout(2000)"}, pragmas...)}
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(absolute), RawQuery: q.Encode()}
	connector, err := sqlite.NewConnector(u.String())
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// lockFolder holds an exclusive lock on a file of its own, through SQLite, which knows how to on every system. The
// lock ends with the process at the latest. The database itself can't be locked so: its readers are connections
// like any other.
func lockFolder(ctx context.Context, path string) (unlock func(), err error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(absolute)}
	connector, err := sqlite.NewConnector(u.String())
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	conn, err := db.Conn(ctx)
	if err == nil {
		_, err = conn.ExecContext(ctx, `BEGIN EXCLUSIVE`)
	}
	if err != nil {
		if conn != nil {
			conn.Close()
		}
		db.Close()
		if refused, ok := errors.AsType[*sqlite.Error](err); ok && refused.Code()&0xff == sqlite3.SQLITE_BUSY {
			return nil, fmt.Errorf("%w (%s): stop that process, or hand the work to it", ErrInUse, filepath.Dir(path))
		}
		return nil, err
	}
	return func() {
		conn.Close() // the pool rolls back and closes: nothing was written
		db.Close()
	}, nil
}

// SetMaxOpen changes the bound of the open reviews; n must be positive.
func (s *SQLite) SetMaxOpen(n int64) { s.maxOpen.Store(max(n, 1)) }

// Ping asks for a sign of life: that the file can be read.
func (s *SQLite) Ping(ctx context.Context) (err error) {
	defer s.metrics.observe("ping", time.Now(), &err)
	var one int
	if err := s.reads.QueryRowContext(ctx, `SELECT one FROM review_lease`).Scan(&one); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	return nil
}

// Close finishes the writes that were handed in, closes the file and lets go of the folder. Call it once nothing
// calls the store any more.
func (s *SQLite) Close() {
	if s.reads != nil {
		s.reads.Close()
	}
	s.writer.close()
	s.unlock()
}

// micros is a time as a column: microseconds since 1970.
func micros(t time.Time) int64 { return t.UnixMicro() }

// fromMicros reverses micros; NULL is the zero time.
func fromMicros(us sql.NullInt64) time.Time {
	if !us.Valid {
		return time.Time{}
	}
	return time.UnixMicro(us.Int64).UTC()
}
