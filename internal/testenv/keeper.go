package testenv

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// envKeep holds the name of the service in the keeper's environment, envKeepRoute the route to keep to.
const (
	envKeep      = "TESTENV_KEEP"
	envKeepRoute = "TESTENV_KEEP_ROUTE"
)

// The longest waits. A server is normally there in seconds; a pulled image and installed packages take longer.
const (
	startTimeout = 8 * time.Minute
	stepTimeout  = 90 * time.Second
	stopTimeout  = 30 * time.Second
)

// canKeep says that this process passed keepIfAsked, so that its executable may be started as a keeper. Without
// that check a test binary whose TestMain forgot it would run its own tests in the place of a keeper, and so on.
var canKeep atomic.Bool

// reply is one line from the keeper.
type reply struct {
	Error string `json:"error,omitempty"`
	URL   string `json:"url,omitempty"`
	How   string `json:"how,omitempty"`
}

// keeper is the end of the pipe that a test process holds. Its methods may be called concurrently.
type keeper struct {
	service service
	url     string
	how     string
	took    time.Duration

	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan reply
	exited chan struct{}
	stderr bytes.Buffer // read only after exited is closed

	mu sync.Mutex // one command at a time
}

// String says which route was taken.
func (k *keeper) String() string {
	return fmt.Sprintf("%s: %s (ready after %.1fs)", k.service.title, k.how, k.took.Seconds())
}

// startKeeper starts a server of the kind by the route that the environment asks for, or by the first that works.
func startKeeper(s service) (*keeper, error) {
	return startKeeperBy(s, os.Getenv(envRoute))
}

func startKeeperBy(s service, route string) (*keeper, error) {
	if !canKeep.Load() {
		return nil, errors.New("this test binary can't keep servers: let TestMain call testenv.Main(m)")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start a keeper: %w", err)
	}
	k := &keeper{service: s, lines: make(chan reply), exited: make(chan struct{})}
	k.cmd = exec.Command(self)
	k.cmd.Env = append(os.Environ(), envKeep+"="+s.name, envKeepRoute+"="+route)
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt at the terminal is not for the keeper
	k.cmd.Stderr = &k.stderr
	if k.in, err = k.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start a keeper: %w", err)
	}
	out, err := k.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start a keeper: %w", err)
	}
	began := time.Now()
	if err := k.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a keeper: %w", err)
	}
	go k.read(out)

	r, err := k.wait(startTimeout)
	if err != nil {
		return nil, errors.Join(err, k.stop())
	}
	k.url, k.how, k.took = r.URL, r.How, time.Since(began)
	return k, nil
}

// read hands the keeper's lines on until it closes its end, then collects its exit.
func (k *keeper) read(out io.Reader) {
	defer close(k.exited)
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var r reply
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
			r.Error = "the keeper said " + sc.Text()
		}
		k.lines <- r
	}
	_ = k.cmd.Wait() // its exit code tells nothing that its lines did not
}

// wait takes the next line.
func (k *keeper) wait(limit time.Duration) (reply, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case r := <-k.lines:
		if r.Error != "" {
			return reply{}, errors.New(r.Error)
		}
		return r, nil
	case <-k.exited:
		return reply{}, fmt.Errorf("the keeper of %s ended: %s", k.service.title, tail(k.stderr.Bytes()))
	case <-timer.C:
		return reply{}, fmt.Errorf("%s: no answer in %v", k.service.title, limit)
	}
}

// do asks the keeper for one of pause, resume, kill, start.
func (k *keeper) do(command string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, err := io.WriteString(k.in, command+"\n"); err != nil {
		return fmt.Errorf("%s %s: %w", command, k.service.title, err)
	}
	if _, err := k.wait(stepTimeout); err != nil {
		return fmt.Errorf("%s %s: %w", command, k.service.title, err)
	}
	return nil
}

// stop closes the pipe and waits until the keeper has removed everything.
func (k *keeper) stop() error {
	_ = k.in.Close()
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	for {
		select {
		case <-k.exited:
			return nil
		case <-k.lines: // a late line has no reader any more
		case <-timer.C:
			_ = k.cmd.Process.Kill()
			return fmt.Errorf("%s was not stopped in %v", k.service.title, stopTimeout)
		}
	}
}

// server is a running server, as the keeper holds it. Methods are called from one goroutine.
type server interface {
	url() string
	pause() error
	resume() error
	kill() error
	start() error
	remove()
}

// keepIfAsked turns this process into a keeper where its environment says so, and then does not return.
func keepIfAsked() {
	name := os.Getenv(envKeep)
	if name == "" {
		canKeep.Store(true)
		return
	}
	for _, s := range []service{postgresService, redisService} {
		if s.name == name {
			keep(s, os.Getenv(envKeepRoute), os.Stdin, os.Stdout)
			os.Exit(0)
		}
	}
	fmt.Fprintf(os.Stderr, "testenv: no service is called %q\n", name)
	os.Exit(2)
}

// keep starts a server, answers commands, and removes the server when its input ends or it is told to terminate.
func keep(s service, route string, in io.Reader, out io.Writer) {
	// The kernel ties "signal me when my parent dies" to the thread that started the child, so this goroutine,
	// which starts all of them, must stay on a thread that lives as long as the process.
	runtime.LockOSThread()
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)

	commands := make(chan string)
	go func() {
		defer close(commands)
		sc := bufio.NewScanner(in)
		for sc.Scan() {
			commands <- sc.Text()
		}
	}()

	say := func(r reply) {
		line, _ := json.Marshal(r)             // strings always marshal
		_, _ = fmt.Fprintln(out, string(line)) // nobody is left to be told
	}

	sweepFolders()
	srv, how, err := startBy(s, route)
	if err != nil {
		say(reply{Error: err.Error()})
		return
	}
	defer srv.remove()
	say(reply{URL: srv.url(), How: how})
	steps := map[string]func() error{
		"pause": srv.pause, "resume": srv.resume, "kill": srv.kill, "start": srv.start,
	}
	for {
		select {
		case <-terminate:
			return
		case c, ok := <-commands:
			if !ok {
				return
			}
			step, known := steps[c]
			if !known {
				say(reply{Error: "no such command"})
			} else if err := step(); err != nil {
				say(reply{Error: err.Error()})
			} else {
				say(reply{})
			}
		}
	}
}

// startBy takes the routes in turn. The error names what each of them lacked and what a person can do.
func startBy(s service, route string) (server, string, error) {
	type way struct {
		name  string
		start func(service) (server, string, error)
	}
	ways := []way{{"docker", startDocker}, {"local", startLocal}}
	switch route {
	case "":
	case "docker":
		ways = ways[:1]
	case "local":
		ways = ways[1:]
	default:
		return nil, "", fmt.Errorf("%s=%s is neither docker nor local", envRoute, route)
	}
	var msg strings.Builder
	fmt.Fprintf(&msg, "no %s for the tests:\n", s.title)
	for _, w := range ways {
		srv, how, err := w.start(s)
		if err == nil {
			return srv, how, nil
		}
		fmt.Fprintf(&msg, "  %s: %v\n", w.name, err)
	}
	fmt.Fprintf(&msg, "Start a Docker engine that has %s, or install %s, or set %s.",
		s.image(), s.packages, s.urlEnv)
	return nil, "", errors.New(msg.String())
}

// waitReady asks the server until it answers. alive returns an error once it can't any more.
func waitReady(ctx context.Context, s service, url string, alive func() error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := s.probe(try, url)
		cancel()
		if err == nil {
			return nil
		}
		if dead := alive(); dead != nil {
			return dead
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", s.title, err)
		case <-tick.C:
		}
	}
}

// probeOnce asks a server that should be there already.
func probeOnce(s service, url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return s.probe(ctx, url)
}

// tail is the end of a log, short enough for an error.
func tail(b []byte) string {
	const most = 800
	b = bytes.TrimSpace(b)
	if len(b) > most {
		b = append([]byte("..."), b[len(b)-most:]...)
	}
	return string(b)
}
