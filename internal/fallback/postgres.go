package fallback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/secret"
	"validator-gw/migrations"
)

// PostgresConfig is what OpenPostgres needs. URL and Sealer are required.
type PostgresConfig struct {
	// URL is a connection URL or keyword string in any form libpq knows. A pooler in front must be in session
	// mode, since settings are made once a connection.
	URL secret.Text
	// Sealer encrypts addresses at rest.
	Sealer *secret.Sealer
	// RecordConns is the number of connections for what a request waits for, 8 to 16; 16 when zero. Another 4
	// serve the loop, 2 statistics and clean-up, and 3 backfills, so that none of them can take the others' connections.
	RecordConns int32
	// AcquireTimeout is how long a request waits for a connection; 50 ms when zero. With every connection stuck,
	// its 120 ms for the row are better spent on saying so.
	AcquireTimeout time.Duration
	// MaxOpen bounds the open reviews (queue.max_open); 1,000,000 when zero. Replicas learn of one another's
	// rows every ten seconds, so it may be overshot by what they write in that time.
	MaxOpen int64
	// AllowUnsafe opens a server even when it may lose what it committed. For throw-away servers only.
	AllowUnsafe bool
	// Registerer takes the metrics; may be nil.
	Registerer prometheus.Registerer
}

// How long a caller waits for a connection.
const (
	recordAcquire = 50 * time.Millisecond
	workAcquire   = time.Second
	adminAcquire  = 5 * time.Second
)

// pingTimeout ends pings of connections that were idle. By default none does, and a stalled one eats its caller's
// deadline.
const pingTimeout = 100 * time.Millisecond

// Connections of the other pools.
const (
	workConns  = 4
	adminConns = 2
	bulkConns  = 3
)

// openRefresh is how often the number of open reviews is counted, and openRefreshFull how often once it is near
// the bound.
const (
	openRefresh     = 10 * time.Second
	openRefreshFull = time.Second
)

// Postgres is the durable store for any number of replicas. All methods are safe for concurrent use, and wait no
// longer than their context and, for a connection, AcquireTimeout on the path of a request. Errors that are not listed at
// a method mean that the server could not do it; none holds an address.
type Postgres struct {
	record, work, admin, bulk bulkhead
	sealer                    *secret.Sealer
	metrics                   *metrics
	recordings                recordings

	open      atomic.Int64 // estimate of the open reviews
	maxOpen   atomic.Int64
	countedAt atomic.Int64 // unix nanoseconds of the last count's start

	ctx    context.Context // ends with Close; for the counting goroutine only
	cancel context.CancelFunc
	mu     sync.Mutex // guards closed, so that nothing starts after Close waited
	closed bool
	tasks  sync.WaitGroup
}

// bulkhead is a pool with a bounded wait for its connections.
type bulkhead struct {
	pool *pgxpool.Pool
	// wait is how long to wait for one. Where answer is set and the context has a deadline, it is at least all of
	// the time that is left but for answer, which is kept for the statement.
	wait, answer time.Duration
}

// answerTime is kept of a request's time for the statement itself.
const answerTime = 70 * time.Millisecond

// closeTimeout bounds Close: a connection whose server hangs is given up, since nothing waits for it any more.
const closeTimeout = 2 * time.Second

var errNoConnection = errors.New("no connection came free in time")

// notSentError is the lack of a connection: nothing was sent.
type notSentError struct{ err error }

func (e *notSentError) Error() string { return e.err.Error() }
func (e *notSentError) Unwrap() error { return e.err }

// acquire takes a connection, which the caller releases.
func (b bulkhead) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	wait := b.wait
	if deadline, ok := ctx.Deadline(); ok && b.answer > 0 {
		wait = max(wait, time.Until(deadline)-b.answer)
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	conn, err := b.pool.Acquire(waiting)
	switch {
	case err == nil:
		return conn, nil
	case waiting.Err() != nil && ctx.Err() == nil:
		return nil, &notSentError{errNoConnection}
	}
	return nil, &notSentError{err}
}

// acquireLive is acquire for after a failure: the server may have restarted, and every idle connection be dead.
func (b bulkhead) acquireLive(ctx context.Context) (*pgxpool.Conn, error) {
	for {
		conn, err := b.acquire(ctx)
		if err != nil {
			return nil, err
		}
		answer, cancel := context.WithTimeout(ctx, pingTimeout)
		err = conn.Ping(answer)
		cancel()
		if err == nil {
			return conn, nil
		}
		conn.Release() // a dead one leaves the pool, so this ends when none is left and connecting fails
		if ctx.Err() != nil {
			return nil, err
		}
	}
}

// exec runs a statement and returns the number of rows it changed.
func (b bulkhead) exec(ctx context.Context, sql string, args ...any) (int64, error) {
	conn, err := b.acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	tag, err := conn.Exec(ctx, sql, args...)
	return tag.RowsAffected(), err
}

// queryRow runs a statement and scans its first row; pgx.ErrNoRows when there is none.
func (b bulkhead) queryRow(ctx context.Context, dest []any, sql string, args ...any) error {
	conn, err := b.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return conn.QueryRow(ctx, sql, args...).Scan(dest...)
}

// OpenPostgres connects and checks the server: that it keeps what it commits (ErrUnsafeServer) and that its
// schema is this program's (ErrSchema). It does not migrate; see MigratePostgres. The store keeps reconnecting by
// itself; end it with Close.
func OpenPostgres(ctx context.Context, c PostgresConfig) (*Postgres, error) {
	switch {
	case c.URL == "":
		return nil, errNoURL
	case c.Sealer == nil:
		return nil, errors.New("postgres: no sealer")
	case c.RecordConns != 0 && (c.RecordConns < 8 || c.RecordConns > 16):
		return nil, fmt.Errorf("postgres: %d connections for requests, want 8 to 16", c.RecordConns)
	case c.AcquireTimeout < 0:
		return nil, errors.New("postgres: time to wait for a connection is negative")
	case c.MaxOpen < 0:
		return nil, errors.New("postgres: most open reviews is negative")
	}
	m, err := newMetrics(c.Registerer, "postgres")
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	s := &Postgres{sealer: c.Sealer, metrics: m}
	s.maxOpen.Store(cmp.Or(c.MaxOpen, defaultMaxOpen))
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))

	if err := s.connect(ctx, c); err != nil {
		s.Close()
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return s, nil
}

func (s *Postgres) connect(ctx context.Context, c PostgresConfig) (err error) {
	// The admin pool first: it is the smallest, and nothing else is opened on a server that is refused.
	admin := limits{conns: adminConns, lock: 10 * time.Second, statement: time.Minute, transaction: 90 * time.Second}
	if s.admin, err = openPool(ctx, c.URL, adminAcquire, admin); err != nil {
		return err
	}
	if err := s.checkServer(ctx, c.AllowUnsafe); err != nil {
		return err
	}
	if err := s.checkSecret(ctx); err != nil {
		return err
	}
	if err := s.countOpen(ctx); err != nil {
		return err
	}
	work := limits{conns: workConns, lock: 3 * time.Second, statement: 10 * time.Second, transaction: 15 * time.Second, probesOnly: true}
	if s.work, err = openPool(ctx, c.URL, workAcquire, work); err != nil {
		return err
	}
	// A chunk of a list takes a tenth of a second, on a busy server a few; a statement of a sweep no more.
	bulk := limits{conns: bulkConns, lock: 5 * time.Second, statement: 30 * time.Second, transaction: 60 * time.Second, probesOnly: true}
	if s.bulk, err = openPool(ctx, c.URL, adminAcquire, bulk); err != nil {
		return err
	}
	record := limits{
		conns: cmp.Or(c.RecordConns, 16), lock: 750 * time.Millisecond, statement: time.Second, transaction: 2 * time.Second, probesOnly: true,
	}
	if s.record, err = openPool(ctx, c.URL, cmp.Or(c.AcquireTimeout, recordAcquire), record); err != nil {
		return err
	}
	s.record.answer = answerTime
	// Connecting takes longer than a request waits: the first must not be the one that finds none.
	return errors.Join(s.work.pool.Ping(ctx), s.record.pool.Ping(ctx))
}

// limits of the connections of one pool.
type limits struct {
	conns int32
	// lock is how long a statement waits for one lock, below its own time: it is then refused, which leaves no doubt, where
	// a statement that is given up may.
	lock, statement, transaction time.Duration
	// probesOnly keeps the planner to nested loops over indexes, planned once a connection. Every statement on
	// these pools touches a handful of rows by key, and must go on doing so when its plan was made from the
	// statistics of a table that was empty then.
	probesOnly bool
}

// setLimits skips what the server does not know: transaction_timeout came with Postgres 17.
const setLimits = `
SELECT count(set_config(name, value, false))
FROM (SELECT unnest($1::text[]) AS name, unnest($2::text[]) AS value) wanted
JOIN pg_settings USING (name)`

func (l limits) settings() (names, values []string) {
	set := func(name, value string) { names, values = append(names, name), append(values, value) }
	set("statement_timeout", fmt.Sprint(l.statement.Milliseconds()))
	set("lock_timeout", fmt.Sprint(l.lock.Milliseconds()))
	set("transaction_timeout", fmt.Sprint(l.transaction.Milliseconds()))
	set("idle_in_transaction_session_timeout", "10000")
	if l.probesOnly {
		set("enable_seqscan", "off")
		set("enable_hashjoin", "off")
		set("enable_mergejoin", "off")
		set("plan_cache_mode", "force_generic_plan") // planning a claim takes as long as running it
		set("jit", "off")                            // what is turned off costs so much on paper that the compiler would start
	}
	return names, values
}

// openPool makes a pool; connections are made when they are needed.
func openPool(ctx context.Context, url secret.Text, wait time.Duration, l limits) (bulkhead, error) {
	config, err := pgxpool.ParseConfig(url.Reveal())
	if err != nil {
		return bulkhead{}, err // pgx leaves the password out
	}
	config.MaxConns = l.conns
	config.MinConns = 0
	// Opening one takes about as long as a request waits for its row, and rows are wanted all at once: in the moment in
	// which an upstream turns slow. So half of the pool is open before anyone asks.
	config.MinIdleConns = max(l.conns/2, 1)
	config.MaxConnLifetime = 30 * time.Minute
	config.MaxConnLifetimeJitter = 5 * time.Minute
	config.PingTimeout = pingTimeout
	if config.ConnConfig.ConnectTimeout == 0 || config.ConnConfig.ConnectTimeout > 5*time.Second {
		config.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	config.ConnConfig.RuntimeParams["application_name"] = "validator-gw"
	names, values := l.settings()
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		var n int
		return conn.QueryRow(ctx, setLimits, names, values).Scan(&n)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	return bulkhead{pool: pool, wait: wait}, err
}

const selectServer = `
SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes'),
       to_regclass($1) IS NOT NULL`

const selectVersion = `SELECT coalesce(max(version_id), 0) FROM ` + versionTable + ` WHERE is_applied`

// checkSecret makes sure that the store's rows can be opened. The first program to come leaves the proof; one that
// has the old secret as its previous one replaces it.
func (s *Postgres) checkSecret(ctx context.Context) error {
	const (
		leaveProof  = `INSERT INTO sealed_proof (sealed) VALUES ($1) ON CONFLICT DO NOTHING`
		selectProof = `SELECT sealed FROM sealed_proof`
		renewProof  = `UPDATE sealed_proof SET sealed = $1`
	)
	if _, err := s.admin.exec(ctx, leaveProof, sealProof(s.sealer)); err != nil {
		return err
	}
	var sealed []byte
	if err := s.admin.queryRow(ctx, []any{&sealed}, selectProof); err != nil {
		return err
	}
	if err := openProof(s.sealer, sealed); err != nil {
		return err
	}
	_, err := s.admin.exec(ctx, renewProof, sealProof(s.sealer))
	return err
}

// checkServer refuses a server that may lose commits, and a schema that is not ours.
func (s *Postgres) checkServer(ctx context.Context, allowUnsafe bool) error {
	var fsync, commit, pages string
	var versioned bool
	err := s.admin.queryRow(ctx, []any{&fsync, &commit, &pages, &versioned}, selectServer, versionTable)
	if err != nil {
		return err
	}
	if err := checkSafe(fsync, commit, pages); err != nil && !allowUnsafe {
		return err
	}
	var version int64
	if versioned {
		if err := s.admin.queryRow(ctx, []any{&version}, selectVersion); err != nil {
			return err
		}
	}
	return checkVersion(version, newestVersion(migrations.Postgres, "postgres"))
}

// checkSafe says what is wrong with settings under which a confirmed commit can be lost.
func checkSafe(fsync, synchronousCommit, fullPageWrites string) error {
	var off []string
	for _, s := range []struct{ name, value string }{
		{"fsync", fsync}, {"synchronous_commit", synchronousCommit}, {"full_page_writes", fullPageWrites},
	} {
		if s.value == "off" {
			off = append(off, s.name)
		}
	}
	if len(off) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s is off: turn it on (for the server, and for this database and role), or allow an "+
		"unsafe server if every accepted address may be lost", ErrUnsafeServer, strings.Join(off, ", "))
}

// SetMaxOpen changes the bound of the open reviews; n must be positive.
func (s *Postgres) SetMaxOpen(n int64) { s.maxOpen.Store(max(n, 1)) }

// countOpen counts just far enough to know whether the bound is reached.
func (s *Postgres) countOpen(ctx context.Context) error {
	const count = `SELECT count(*) FROM (SELECT 1 FROM review_queue LIMIT $1) AS bounded`
	s.countedAt.Store(time.Now().UnixNano())
	var n int64
	if err := s.admin.queryRow(ctx, []any{&n}, count, s.maxOpen.Load()+1); err != nil {
		return err
	}
	s.open.Store(n)
	return nil
}

// full says whether the bound is reached, by an estimate that is corrected in the background: a count takes
// longer than a request can wait.
func (s *Postgres) full() bool {
	open, most := s.open.Load(), s.maxOpen.Load()
	every := openRefresh
	if open >= most-most/10 {
		every = openRefreshFull
	}
	last := s.countedAt.Load()
	if now := time.Now().UnixNano(); now-last >= int64(every) && s.countedAt.CompareAndSwap(last, now) {
		s.start(func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			_ = s.countOpen(ctx) // the old estimate stands; the next try is soon
		})
	}
	return open >= most
}

// start runs f in a goroutine that Close ends and waits for, unless the store is closed.
func (s *Postgres) start(f func(ctx context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.tasks.Go(func() { f(s.ctx) })
	}
	return !s.closed
}

// Ping asks the server for a sign of life.
func (s *Postgres) Ping(ctx context.Context) (err error) {
	defer s.metrics.observe("ping", time.Now(), &err)
	conn, err := s.admin.acquire(ctx)
	if err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	defer conn.Release()
	if err := conn.Ping(ctx); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	return nil
}

// Close waits for running operations and closes all connections. Call it once nothing calls the store any more.
func (s *Postgres) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.tasks.Wait()
	closed := make(chan struct{})
	var pools sync.WaitGroup
	for _, b := range []bulkhead{s.record, s.work, s.admin, s.bulk} {
		if b.pool != nil {
			pools.Go(b.pool.Close)
		}
	}
	go func() {
		pools.Wait()
		close(closed)
	}()
	limit := time.NewTimer(closeTimeout)
	defer limit.Stop()
	select {
	case <-closed:
	case <-limit.C:
	}
}

// outcomeUnknown says whether a statement may have been committed although it ended in err.
func outcomeUnknown(err error) bool {
	if err == nil || pgconn.SafeToRetry(err) {
		return false
	}
	if _, ok := errors.AsType[*notSentError](err); ok {
		return false
	}
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return true // the connection, or our patience, ended before the answer
	}
	switch refused.Code {
	case "57P01", "57P02", "57P03", "40003": // shut down, crashed, starting; completion unknown
		return true
	}
	return strings.HasPrefix(refused.Code, "08") // connection exceptions
}

// steppedBack says whether Postgres gave a statement up for others' locks: in a deadlock, or after lock_timeout. Nothing of its
// transaction was written.
func steppedBack(err error) bool {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (refused.Code == "40P01" || refused.Code == "55P03")
}
