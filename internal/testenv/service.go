package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// service is a kind of server: all that differs between Postgres and Redis when one is started.
type service struct {
	name     string // for the keeper
	title    string // for people
	urlEnv   string // a URL in the environment
	repo     string // Docker image
	tag      string
	port     string   // the container's port
	programs []string // found together on PATH or in one of dirs
	dirs     string   // a glob
	packages string   // Debian's
	users    []string // who may run it when we are root; the first that exists

	// url of a server that listens on host:port and knows the password.
	url func(hostPort, password string) string
	// containerEnv and containerCmd make the image run with our settings.
	containerEnv func(password string) []string
	containerCmd []string
	// prepare makes the files before the first start; nil if there are none to make.
	prepare func(l *localServer) error
	// argv is the command that serves in the foreground.
	argv func(l *localServer) []string
	// probe returns nil once the server answers a client.
	probe func(ctx context.Context, url string) error
}

func (s service) image() string { return s.repo + ":" + s.tag }

// postgresSettings keeps fsync and synchronous_commit as they are, since tests are about what survives, and
// takes little memory for many connections.
var postgresSettings = []string{"-c", "max_connections=200", "-c", "shared_buffers=64MB"}

var postgresService = service{
	name: "postgres", title: "Postgres", urlEnv: envDatabaseURL,
	repo: "postgres", tag: "17", port: "5432/tcp",
	programs: []string{"initdb", "postgres"}, dirs: "/usr/lib/postgresql/*/bin", packages: "postgresql",
	users: []string{"postgres", "nobody"},
	url: func(hostPort, password string) string {
		return "postgres://postgres:" + url.QueryEscape(password) + "@" + hostPort + "/postgres?sslmode=disable"
	},
	containerEnv: func(password string) []string {
		return []string{"POSTGRES_PASSWORD=" + password, "POSTGRES_INITDB_ARGS=--no-sync"}
	},
	containerCmd: append([]string{"postgres"}, postgresSettings...),
	prepare: func(l *localServer) error {
		if err := l.writeFile("password", l.password+"\n"); err != nil {
			return err
		}
		// --no-sync spares the disk at creation only; the server itself syncs as always.
		return l.run("initdb", "--pgdata=data", "--username=postgres", "--pwfile=password",
			"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")
	},
	argv: func(l *localServer) []string {
		return append([]string{"postgres", "-D", "data", "-c", "listen_addresses=127.0.0.1",
			"-c", "port=" + l.port, "-c", "unix_socket_directories="}, postgresSettings...)
	},
	probe: func(ctx context.Context, address string) error {
		// Tests get the same URL with another database in it, so the keyword form won't do.
		if u, err := url.Parse(address); err != nil || u.Scheme == "" {
			return errors.New("not of the form postgres://user:password@host:port/database")
		}
		conn, err := pgx.Connect(ctx, address)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		return conn.Close(ctx)
	},
}

var redisService = service{
	name: "redis", title: "Redis", urlEnv: envRedisURL,
	repo: "redis", tag: "8.0", port: "6379/tcp",
	programs: []string{"redis-server"}, packages: "redis-server",
	users:        []string{"redis", "nobody"},
	url:          func(hostPort, _ string) string { return "redis://" + hostPort + "/0" },
	containerEnv: func(string) []string { return nil },
	containerCmd: []string{"redis-server", "--save", "", "--appendonly", "no"},
	argv: func(l *localServer) []string {
		return []string{"redis-server", "--bind", "127.0.0.1", "--port", l.port, "--save", "", "--appendonly", "no"}
	},
	probe: func(ctx context.Context, url string) error {
		client, err := redisClient(url)
		if err != nil {
			return err
		}
		defer func() { _ = client.Close() }()
		// The client logs each connection that fails, and while a server starts many do: knock first.
		conn, err := new(net.Dialer).DialContext(ctx, client.Options().Network, client.Options().Addr)
		if err != nil {
			return err
		}
		_ = conn.Close() // nothing was said
		return client.Ping(ctx).Err()
	},
}

// redisClient is a plain client for testenv's own few commands.
func redisClient(url string) (*redis.Client, error) {
	opt, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("parse the Redis URL: %w", err)
	}
	opt.MaxRetries = -1 // whoever calls asks again
	opt.ContextTimeoutEnabled = true
	return redis.NewClient(opt), nil
}

// randomName is a short name that no other test has: lower case letters and digits.
func randomName() string { return strings.ToLower(rand.Text())[:12] }
