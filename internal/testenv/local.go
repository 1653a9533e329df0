package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// folderPrefix begins the name of each temporary folder; the owner follows.
const folderPrefix = "validator-gw-testenv-"

// localServer is a server run from a program of this machine, in a temporary folder.
type localServer struct {
	service  service
	bin      string // folder of the programs
	folder   string
	port     string
	password string
	user     *syscall.Credential // nil: ourselves

	cmd    *exec.Cmd
	exited chan struct{}
}

// startLocal runs the service from this machine's programs. As root on Debian it installs them first.
func startLocal(s service) (server, string, error) {
	how := "local programs"
	bin, err := findPrograms(s)
	if err != nil {
		if inst := install(s.packages); inst != nil {
			return nil, "", fmt.Errorf("%w, and %w", err, inst)
		}
		how = "local programs, just installed"
		if bin, err = findPrograms(s); err != nil {
			return nil, "", err
		}
	}
	l := &localServer{service: s, bin: bin, password: randomName()}
	if err := l.boot(); err != nil {
		l.remove()
		return nil, "", err
	}
	return l, how + " in " + bin, nil
}

// findPrograms returns the folder that holds all programs of the service, of the newest version if there are many.
func findPrograms(s service) (string, error) {
	var dirs []string
	if s.dirs != "" {
		dirs, _ = filepath.Glob(s.dirs) // the pattern is a constant
		version := func(dir string) int {
			n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir))) // what is no number comes last
			return n
		}
		slices.SortFunc(dirs, func(a, b string) int { return version(b) - version(a) })
	}
	dirs = append(filepath.SplitList(os.Getenv("PATH")), dirs...)
	for _, dir := range dirs {
		if !slices.ContainsFunc(s.programs, func(p string) bool {
			st, err := os.Stat(filepath.Join(dir, p))
			return err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0
		}) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%s not found on PATH %s", strings.Join(s.programs, " and "), s.dirs)
}

// boot makes the folder and its files and starts the server.
func (l *localServer) boot() error {
	var err error
	if l.folder, err = os.MkdirTemp("", folderPrefix+ownerID()+"-"); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	if os.Geteuid() == 0 {
		if err := l.demote(); err != nil {
			return err
		}
	}
	if l.service.prepare != nil {
		if err := l.service.prepare(l); err != nil {
			return err
		}
	}
	for try := 1; ; try++ {
		if _, l.port, err = freePort(); err != nil {
			return err
		}
		if err = l.start(); err == nil || try == startRetries {
			return err
		}
	}
}

// demote gives the folder to an unprivileged user, who will run everything: Postgres refuses root.
func (l *localServer) demote() error {
	for _, name := range l.service.users {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("user %s: %w", name, err)
		}
		l.user = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(l.folder, int(uid), int(gid)); err != nil {
			return fmt.Errorf("give the folder to %s: %w", name, err)
		}
		return nil
	}
	return fmt.Errorf("none of the users %s exists to run it", strings.Join(l.service.users, ", "))
}

// command is one of the service's programs, in the folder and as the unprivileged user.
func (l *localServer) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(l.bin, program), args...)
	cmd.Dir = l.folder
	cmd.Env = []string{"PATH=" + l.bin + ":" + os.Getenv("PATH"), "HOME=" + l.folder, "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = childAttr()
	cmd.SysProcAttr.Credential = l.user
	return cmd
}

// run runs a program to its end.
func (l *localServer) run(program string, args ...string) error {
	if out, err := l.command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, tail(out))
	}
	return nil
}

// writeFile makes a file in the folder that the server's user can read.
func (l *localServer) writeFile(name, text string) error {
	path := filepath.Join(l.folder, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if l.user == nil {
		return nil
	}
	if err := os.Chown(path, int(l.user.Uid), int(l.user.Gid)); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

func (l *localServer) url() string { return l.service.url("127.0.0.1:"+l.port, l.password) }

// start runs the server and waits until it answers. A postmaster that was killed may leave children that still
// end, and its successor refuses to start until they have; so an early end is tried again for a while.
func (l *localServer) start() error {
	if l.running() {
		return errors.New("it is running")
	}
	ctx, cancel := context.WithTimeout(context.Background(), bootTimeout)
	defer cancel()
	patience := time.Now().Add(5 * time.Second)
	for {
		err := l.startOnce(ctx)
		if err == nil || l.running() || time.Now().After(patience) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (l *localServer) startOnce(ctx context.Context) error {
	logName := filepath.Join(l.folder, "log")
	log, err := os.Create(logName)
	if err != nil {
		return fmt.Errorf("make the log: %w", err)
	}
	defer log.Close()
	argv := l.service.argv(l)
	cmd := l.command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", argv[0], err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // how it ended is in its log
	}()
	l.cmd, l.exited = cmd, exited
	return waitReady(ctx, l.service, l.url(), func() error {
		if l.running() {
			return nil
		}
		text, _ := os.ReadFile(logName) // the log only explains the error
		return fmt.Errorf("%s ended at once: %s", argv[0], tail(text))
	})
}

// running says whether the server's first process lives.
func (l *localServer) running() bool {
	if l.cmd == nil {
		return false
	}
	select {
	case <-l.exited:
		return false
	default:
		return true
	}
}

// pause freezes the server with all its children, as a machine does that hangs: connections open, no answers.
func (l *localServer) pause() error { return l.signalAll(syscall.SIGSTOP) }

func (l *localServer) resume() error { return l.signalAll(syscall.SIGCONT) }

// kill ends all processes of the server at once, as a machine does that loses power (but for its disk's cache).
func (l *localServer) kill() error {
	if err := l.signalAll(syscall.SIGKILL); err != nil {
		return err
	}
	<-l.exited // nothing outlives SIGKILL
	return nil
}

// signalAll signals the server and its children. Postgres makes a session of each child, so the group is no help.
func (l *localServer) signalAll(sig syscall.Signal) error {
	if !l.running() {
		return errors.New("it is not running")
	}
	// Frozen first, so that no child is born meanwhile; listed while it lives, since orphans have another parent.
	pid := l.cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("signal: %w", err)
	}
	all, err := childrenOf(pid)
	for _, p := range append(all, pid) {
		if kill := syscall.Kill(p, sig); kill != nil && !errors.Is(kill, syscall.ESRCH) {
			err = errors.Join(err, fmt.Errorf("signal: %w", kill))
		}
	}
	return err
}

func (l *localServer) remove() {
	if l.running() {
		_ = l.kill() // the data is removed anyhow
	}
	if l.folder != "" {
		_ = os.RemoveAll(l.folder)
	}
}
