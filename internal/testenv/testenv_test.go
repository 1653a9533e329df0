package testenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/ory/dockertest/v3"
)

// envLaunch makes this binary a launcher of its arguments.
const envLaunch = "TESTENV_TEST_LAUNCH"

func TestMain(m *testing.M) {
	if os.Getenv(envLaunch) != "" {
		os.Exit(Launch(os.Args[1:]))
	}
	Main(m)
}

// offered says whether this machine has what a route needs. Local programs that are missing may be installed where
// that can't surprise a person: on a machine of continuous integration, or when the route was asked for.
func offered(route string, s service) bool {
	if route == "docker" {
		pool, err := dockertest.NewPool("")
		if err != nil {
			return false
		}
		defer pool.Client.HTTPClient.CloseIdleConnections()
		_, err = pool.Client.InspectImage(s.image())
		return err == nil
	}
	if _, err := findPrograms(s); err == nil {
		return true
	}
	_, err := exec.LookPath("apt-get")
	return err == nil && os.Geteuid() == 0 && (os.Getenv("CI") != "" || os.Getenv(envRoute) == "local")
}

// Each route's server can be frozen, thawed, killed and started again, and leaves nothing.
func TestRoutes(t *testing.T) {
	t.Parallel()
	for _, route := range []string{"docker", "local"} {
		for _, s := range []service{postgresService, redisService} {
			t.Run(route+"/"+s.name, func(t *testing.T) {
				t.Parallel()
				if !offered(route, s) {
					s.programs, s.packages = []string{"no-such-program"}, "no-such-package"
					s.repo = "validator-gw/no-such-image"
					_, _, err := startBy(s, route)
					if err == nil || !strings.Contains(err.Error(), s.urlEnv) {
						t.Errorf("startBy(%s) = %v, want an error that names %s", route, err, s.urlEnv)
					}
					return
				}
				k, err := startKeeperBy(s, route)
				if err != nil {
					t.Fatal(err)
				}
				t.Log(k)
				live(t, k)
				if err := k.stop(); err != nil {
					t.Fatal(err)
				}
				if conn, err := net.Dial("tcp", hostPort(t, k.url)); err == nil {
					conn.Close()
					t.Error("the server still listens after stop")
				}
				eventually(t, func() error { return orphans(k) })
			})
		}
	}
}

// live takes a server through its life.
func live(t *testing.T, k *keeper) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	answers := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return k.service.probe(ctx, k.url)
	}
	if k.service.name == "postgres" {
		must(exec1(t.Context(), k.url, "CREATE TABLE kept AS SELECT 1 AS n"))
	}
	must(answers())
	must(k.do("pause"))
	if err := answers(); !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) {
		t.Errorf("a frozen server: %v, want a time-out", err)
	}
	must(k.do("resume"))
	must(waitReady(t.Context(), k.service, k.url, func() error { return nil }))
	must(k.do("kill"))
	if err := answers(); err == nil {
		t.Error("a killed server answers")
	}
	if err := k.do("kill"); err == nil {
		t.Error("killing twice is no error")
	}
	must(k.do("start"))
	must(answers())
	if err := k.do("dance"); err == nil {
		t.Error("an unknown command is no error")
	}
	if k.service.name == "postgres" {
		must(exec1(t.Context(), k.url, "SELECT n FROM kept"))
	}
	must(k.do("pause")) // a frozen server is removed all the same
}

// orphans is an error when a process of a local server is left, frozen perhaps.
func orphans(k *keeper) error {
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return err
	}
	for _, l := range links {
		if dir, err := os.Readlink(l); err == nil && strings.Contains(dir, fmt.Sprintf("%s%s.%d.", folderPrefix, hostTag(), k.cmd.Process.Pid)) {
			return fmt.Errorf("%s still runs in %s", filepath.Dir(l), dir)
		}
	}
	return nil
}

func isTimeout(err error) bool {
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout()
}

func exec1(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

func hostPort(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// What a killed keeper leaves is gone after the next one's sweep.
func TestSweep(t *testing.T) {
	t.Parallel()
	for _, route := range []string{"docker", "local"} {
		t.Run(route, func(t *testing.T) {
			t.Parallel()
			if !offered(route, redisService) {
				return // TestRoutes holds what is said then
			}
			k, err := startKeeperBy(redisService, route)
			if err != nil {
				t.Fatal(err)
			}
			if err := k.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			<-k.exited
			next, err := startKeeperBy(redisService, route)
			if err != nil {
				t.Fatal(err)
			}
			defer next.stop()
			eventually(t, func() error {
				conn, err := net.Dial("tcp", hostPort(t, k.url))
				if err != nil {
					return nil
				}
				conn.Close()
				return errors.New("the killed keeper's server still listens")
			})
		})
	}
}

// The launcher hands on the command's exit code, and its servers go with it however it ends.
func TestLaunch(t *testing.T) {
	t.Parallel()
	launch := func(t *testing.T, script string) (*exec.Cmd, *bufio.Scanner) {
		t.Helper()
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self, "sh", "-c", script)
		for _, kv := range os.Environ() {
			if !strings.HasPrefix(kv, envDatabaseURL) && !strings.HasPrefix(kv, envRedisURL) && !strings.HasPrefix(kv, envRun) {
				cmd.Env = append(cmd.Env, kv)
			}
		}
		cmd.Env = append(cmd.Env, envLaunch+"=1")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, bufio.NewScanner(out)
	}
	const report = "echo $TEST_REDIS_URL; echo $TEST_DATABASE_URL; "
	for _, c := range []struct {
		name, script string
		end          syscall.Signal // sent to the launcher; 0: none
		code         int
	}{
		{"exit code", report + "exit 7", 0, 7},
		{"terminated", report + "exec sleep 600", syscall.SIGTERM, 1},
		{"killed", report + "exec sleep 5", syscall.SIGKILL, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cmd, out := launch(t, c.script)
			var addresses []string
			for len(addresses) < 2 && out.Scan() {
				addresses = append(addresses, hostPort(t, out.Text()))
			}
			if len(addresses) < 2 {
				t.Fatal("the launcher's command did not run")
			}
			if c.end != 0 {
				if err := cmd.Process.Signal(c.end); err != nil {
					t.Fatal(err)
				}
			}
			_ = cmd.Wait() // the code says it
			if got := cmd.ProcessState.ExitCode(); got != c.code {
				t.Errorf("exit code %d, want %d", got, c.code)
			}
			for _, address := range addresses {
				eventually(t, func() error {
					conn, err := net.Dial("tcp", address)
					if err != nil {
						return nil
					}
					conn.Close()
					return fmt.Errorf("%s still listens", address)
				})
			}
		})
	}
}

func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatal(err)
		case <-tick.C:
		}
	}
}

var (
	prepared atomic.Int32
	people   = PostgresTemplate("people", func(ctx context.Context, url string) error {
		prepared.Add(1)
		return exec1(ctx, url, "CREATE TABLE people (name text PRIMARY KEY)")
	})
)

// Tests that run at the same time on one template do not see one another.
func TestTemplate(t *testing.T) {
	t.Parallel()
	t.Run("copies", func(t *testing.T) {
		for range 8 {
			t.Run("copy", func(t *testing.T) {
				t.Parallel()
				if err := exec1(t.Context(), people.Database(t), "INSERT INTO people VALUES ('ana')"); err != nil {
					t.Error(err)
				}
			})
		}
	})
	if n := prepared.Load(); n != 1 {
		t.Errorf("prepared %d times, want once", n)
	}
}

// A second test binary of the same run takes the template that is there; a preparation that fails leaves none.
func TestTemplateAcrossBinaries(t *testing.T) {
	t.Parallel()
	server := postgresURL(t)
	calls, fail := 0, errors.New("cut short")
	name := fmt.Sprintf("two%d", time.Now().UnixNano()%1_000_000_000) // the same run may play this twice
	for _, want := range []error{fail, nil, nil} {
		tpl := PostgresTemplate(name, func(context.Context, string) error { calls++; return want })
		if err := tpl.build(server); !errors.Is(err, want) {
			t.Errorf("build = %v, want %v", err, want)
		}
	}
	if calls != 2 {
		t.Errorf("prepared %d times, want twice: once in vain, once for good", calls)
	}
}

func TestPostgresIsEmptyAndDropped(t *testing.T) {
	t.Parallel()
	var db string
	t.Run("use", func(t *testing.T) {
		db = Postgres(t)
		conn, err := pgx.Connect(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
		var tables int
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").Scan(&tables); err != nil {
			t.Fatal(err)
		}
		if tables != 0 {
			t.Errorf("%d tables in a new database", tables)
		}
	})
	if err := exec1(t.Context(), db, "SELECT 1"); err == nil {
		t.Error("the database is there after its test")
	}
}

// On a server that stays, a run drops its own databases and those of runs that ended long ago.
func TestDropDatabases(t *testing.T) {
	t.Parallel()
	server := postgresURL(t)
	now := time.Now()
	name := func(age time.Duration) string {
		return databasePrefix + fmt.Sprintf("%x_", now.Add(-age).Unix()) + randomName()
	}
	own, running, stale := name(0), name(5*time.Hour), name(7*time.Hour)
	t.Cleanup(func() { _ = drop(server, running) })
	for _, n := range []string{own, running, stale} {
		if err := exec1(t.Context(), server, "CREATE DATABASE "+n); err != nil {
			t.Fatal(err)
		}
	}
	if err := dropDatabases(server, strings.TrimPrefix(own, databasePrefix), now); err != nil {
		t.Fatal(err)
	}
	// What belongs to a run has more after its name, so its bare name is not taken for one.
	for _, c := range []struct {
		name string
		kept bool
	}{{own, true}, {running, true}, {stale, false}} {
		if err := exec1(t.Context(), withDatabase(server, c.name), "SELECT 1"); (err == nil) != c.kept {
			t.Errorf("%s: %v, kept should be %v", c.name, err, c.kept)
		}
	}
	ownRun, _, _ := strings.Cut(strings.TrimPrefix(own, databasePrefix), "_")
	if err := dropDatabases(server, ownRun, now); err != nil {
		t.Fatal(err)
	}
	if err := exec1(t.Context(), withDatabase(server, own), "SELECT 1"); err == nil {
		t.Error("a database of the run is left")
	}
}

func TestRedisKeysAreRemoved(t *testing.T) {
	t.Parallel()
	var address, first string
	t.Run("use", func(t *testing.T) {
		address, first = Redis(t)
		_, second := Redis(t)
		if first == second {
			t.Errorf("one prefix %q twice", first)
		}
		client, err := redisClient(address)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		for i := range 3000 {
			if err := client.Set(t.Context(), fmt.Sprint(first, i), "x", 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
	})
	client, err := redisClient(address)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	keys, err := client.Keys(t.Context(), first+"*").Result()
	if err != nil || len(keys) != 0 {
		t.Errorf("%d keys are left, %v", len(keys), err)
	}
}

func TestPrivateServers(t *testing.T) {
	t.Parallel()
	var addresses []string
	t.Run("use", func(t *testing.T) {
		s := RedisServer(t)
		addresses = append(addresses, hostPort(t, s.URL()))
		s.Pause()
		s.Resume()
		s.Kill()
		s.Start()
		addresses = append(addresses, hostPort(t, PostgresServer(t).URL()))
	})
	for _, address := range addresses {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			t.Errorf("%s listens after its test", address)
		}
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	if _, _, err := startBy(redisService, "cloud"); err == nil || !strings.Contains(err.Error(), "TEST_ENV=cloud") {
		t.Errorf("an unknown route: %v", err)
	}
	s := postgresService
	s.programs, s.packages, s.dirs, s.repo = []string{"no-such-program"}, "no-such-package", "", "bad image name"
	_, _, err := startBy(s, "")
	if err == nil {
		t.Fatal("a service that can't be had is no error")
	}
	for _, want := range []string{"no Postgres for the tests", "docker: ", "local: no-such-program", "set TEST_DATABASE_URL"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
}

// Not parallel: it sets the environment.
func TestURLFromTheEnvironment(t *testing.T) {
	_, port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		service service
		url     string
	}{
		{postgresService, "postgres://nobody@127.0.0.1:" + port + "/x"},
		{postgresService, "host=127.0.0.1 port=" + port},
		{redisService, "redis://127.0.0.1:" + port},
		{redisService, "nonsense"},
	} {
		t.Setenv(c.service.urlEnv, c.url)
		_, err := (&shared{service: c.service}).start()
		if err == nil || !strings.Contains(err.Error(), c.service.urlEnv+" is set") {
			t.Errorf("%s=%s: %v", c.service.urlEnv, c.url, err)
		}
	}
}

func TestOwnerGone(t *testing.T) {
	t.Parallel()
	me := strings.Split(ownerID(), ".")
	for _, c := range []struct {
		owner string
		want  bool
	}{
		{ownerID(), false},
		{me[0] + "." + me[1] + ".1", true}, // the number was given to another process since
		{"another_host.1." + me[2], false},
		{me[0] + ".999999999.5", true},
		{me[0] + ".-1.5", false},
		{"", false},
		{"x", false},
	} {
		if got := ownerGone(c.owner); got != c.want {
			t.Errorf("ownerGone(%q) = %v, want %v", c.owner, got, c.want)
		}
	}
}
