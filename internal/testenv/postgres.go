package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// envRun carries the launcher's run to the test binaries that it starts, so that they share templates.
const envRun = "TESTENV_RUN"

// Databases are called vgwtest_TIME_RANDOM_..., the first two naming the run and the time (hex seconds) when it
// began. On a server that outlives the run, what a killed run left is dropped by a later one after staleAfter.
const (
	databasePrefix = "vgwtest_"
	staleAfter     = 6 * time.Hour
	adminTimeout   = 60 * time.Second
)

// runID names this run.
var runID = sync.OnceValue(func() string {
	if id := os.Getenv(envRun); id != "" {
		return id
	}
	return newRunID()
})

func newRunID() string { return strconv.FormatInt(time.Now().Unix(), 16) + "_" + randomName()[:6] }

// Template makes databases that all begin with the same content. Safe for concurrent use.
type Template struct {
	name    string
	prepare func(ctx context.Context, url string) error

	once     sync.Once
	database string
	err      error
}

var templateName = regexp.MustCompile(`^[a-z0-9]{1,20}$`)

// PostgresTemplate declares a template: prepare fills an empty database, normally by the migrations, once a run
// even where several test binaries ask for it; each test then gets a copy in well under a second. Within a run one name
// must mean one content: lower case letters and digits, 20 at most. It does nothing until the first use, so it
// may be a package variable. prepare must close its connections.
func PostgresTemplate(name string, prepare func(ctx context.Context, url string) error) *Template {
	if !templateName.MatchString(name) {
		panic("testenv: bad template name " + strconv.Quote(name))
	}
	return &Template{name: name, prepare: prepare}
}

// Database returns the URL of a new database with the template's content. It is dropped when the test ends,
// whoever is still connected.
func (p *Template) Database(t testing.TB) string {
	t.Helper()
	server := postgresURL(t)
	p.once.Do(func() { p.err = p.build(server) })
	if p.err != nil {
		t.Fatalf("testenv: template %s: %v", p.name, p.err)
	}
	return newDatabase(t, server, p.database)
}

// Postgres returns the URL of a new, empty database, dropped when the test ends. The role may create more.
func Postgres(t testing.TB) string {
	t.Helper()
	return newDatabase(t, postgresURL(t), "template1")
}

func postgresURL(t testing.TB) string {
	t.Helper()
	server, err := sharedPostgres.start()
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return server
}

// build makes the template database, unless another test binary of the run has.
func (p *Template) build(server string) error {
	p.database = databasePrefix + runID() + "_tpl_" + p.name
	return admin(server, func(ctx context.Context, conn *pgx.Conn) error {
		// Two binaries may come at once. The lock ends with the connection.
		if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock(hashtext($1))`, p.database); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		var there bool
		err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, p.database).Scan(&there)
		if err != nil || there {
			return err
		}
		// It gets its name when it is complete, so that one that was cut short is never taken for it.
		draft := databasePrefix + runID() + "_" + randomName()
		if _, err := conn.Exec(ctx, "CREATE DATABASE "+draft); err != nil {
			return fmt.Errorf("create: %w", err)
		}
		if err := p.prepare(ctx, withDatabase(server, draft)); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
		if _, err := conn.Exec(ctx, "ALTER DATABASE "+draft+" RENAME TO "+p.database); err != nil {
			return fmt.Errorf("rename, is a connection left open? %w", err)
		}
		return nil
	})
}

// newDatabase makes a copy of template for t.
func newDatabase(t testing.TB, server, template string) string {
	t.Helper()
	name := databasePrefix + runID() + "_" + randomName()
	err := admin(server, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+template)
		return err
	})
	if err != nil {
		t.Fatalf("testenv: create a database: %v", err)
	}
	t.Cleanup(func() {
		if err := drop(server, name); err != nil {
			t.Errorf("testenv: drop a database: %v", err)
		}
	})
	return withDatabase(server, name)
}

func drop(server, name string) error {
	return admin(server, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
		return err
	})
}

// dropRun drops what is left of this run, templates mostly, where this process began it and the server is not its
// own. What is stale goes with it.
func dropRun() error {
	if sharedPostgres.url == "" || sharedPostgres.err != nil || sharedPostgres.keeper != nil || os.Getenv(envRun) != "" {
		return nil
	}
	return dropDatabases(sharedPostgres.url, runID(), time.Now())
}

func dropDatabases(server, run string, now time.Time) error {
	var names []string
	err := admin(server, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT datname FROM pg_database WHERE starts_with(datname, $1)`, databasePrefix)
		if err != nil {
			return err
		}
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	for _, name := range names {
		rest := strings.TrimPrefix(name, databasePrefix)
		began, _, _ := strings.Cut(rest, "_")
		seconds, bad := strconv.ParseInt(began, 16, 64)
		stale := bad == nil && now.Sub(time.Unix(seconds, 0)) > staleAfter
		if stale || strings.HasPrefix(rest, run+"_") {
			err = errors.Join(err, drop(server, name))
		}
	}
	return err
}

// admin runs do on a connection to the server's own database.
func admin(server string, do func(ctx context.Context, conn *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	return do(ctx, conn)
}

// withDatabase is the server's URL with another database.
func withDatabase(server, name string) string {
	u, err := url.Parse(server)
	if err != nil {
		return server // can't be: the probe parsed it
	}
	u.Path = "/" + name
	return u.String()
}
