// Package testenv gives tests a real Postgres and a real Redis. It is imported by tests only.
//
// Each service is found by the first route that works, and one line on stderr says which it was:
//
//  1. a URL in the environment: TEST_DATABASE_URL, TEST_REDIS_URL;
//  2. Docker, where an engine answers and has the image, or can get it within a bounded time;
//  3. programs of this machine (initdb and postgres, redis-server), run as an unprivileged user on a free
//     port of the loopback interface in a temporary folder;
//  4. as root on Debian, the same after installing their packages.
//
// TEST_ENV=docker keeps to the second, TEST_ENV=local to the last two. A service that can't be had fails the
// test with one message that says what to do; nothing is ever skipped.
//
// A package that uses a service hands its TestMain to [Main]. The servers are started at their first use, once
// a test binary; the launcher in cmd/testenv starts them once for a whole "go test ./..." instead and passes
// their URLs on. Tests stay apart by a database of their own ([Postgres], [Template.Database]) or a key prefix
// ([Redis]), so that all can run in parallel. A test that wants to stop or kill a server asks for a private one
// ([PostgresServer], [RedisServer]).
//
// Servers live under a keeper, a child process that removes everything when the pipe to it closes: so nothing
// stays behind when a test binary panics, runs out of time or is killed.
package testenv

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// The environment variables that choose where servers come from. See the package comment.
const (
	envDatabaseURL = "TEST_DATABASE_URL"
	envRedisURL    = "TEST_REDIS_URL"
	envRoute       = "TEST_ENV"
)

// Main runs a package's tests, stops the servers that they started, and exits. Goroutines still running after
// that are an error, but for those that ignore names. Call it from TestMain and do nothing else there: the
// binary also serves as its own keeper.
func Main(m *testing.M, ignore ...goleak.Option) {
	keepIfAsked()
	code := m.Run()
	if err := closeAll(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(ignore...); err != nil {
			fmt.Fprintln(os.Stderr, "testenv: goroutines are left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// shared is a server that all tests of this process use.
type shared struct {
	service service
	once    sync.Once
	keeper  *keeper // nil where the URL came from the environment
	url     string
	err     error
}

var (
	sharedPostgres = &shared{service: postgresService}
	sharedRedis    = &shared{service: redisService}
)

// start finds or starts the server at its first call. It returns the server's URL.
func (s *shared) start() (string, error) {
	s.once.Do(func() {
		if s.url = os.Getenv(s.service.urlEnv); s.url != "" {
			if s.err = probeOnce(s.service, s.url); s.err != nil {
				s.err = fmt.Errorf("%s is set, but %s does not answer there: %w",
					s.service.urlEnv, s.service.title, s.err)
			}
			return
		}
		if s.keeper, s.err = startKeeper(s.service); s.err == nil {
			s.url = s.keeper.url
			fmt.Fprintln(os.Stderr, "testenv:", s.keeper)
		}
	})
	return s.url, s.err
}

// stop ends what start started.
func (s *shared) stop() error {
	if s.keeper == nil {
		return nil
	}
	return s.keeper.stop()
}

// closeAll drops this run's databases and stops the shared servers.
func closeAll() error {
	err := dropRun()
	return errors.Join(err, sharedPostgres.stop(), sharedRedis.stop())
}
