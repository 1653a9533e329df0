package soak

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Gateway is one running gateway. Stop ends it in order and returns what was wrong with that, Kill ends it at once; after
// the first call of either they do nothing.
type Gateway interface {
	URL() string        // of the API
	MetricsURL() string // of /metrics
	Stop() error
	Kill()
}

// The longest waits for a gateway's process. It promises to stop within 15 s.
const (
	startTimeout = 90 * time.Second
	stopTimeout  = 20 * time.Second
)

// process is a gateway in a process of its own.
type process struct {
	cmd          *exec.Cmd
	url, metrics string
	exited       chan struct{}
	exit         error // of the process; read after exited is closed
	once         sync.Once
	stopped      error
}

// StartProcess runs "PROGRAM serve" with this environment and nothing else of ours, its log in the file folder/name.log,
// and waits until it says where it listens. On Linux the process ends with this one, however this one ends.
func StartProcess(ctx context.Context, program, folder, name string, env []string) (Gateway, error) {
	log, err := os.OpenFile(filepath.Join(folder, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	defer log.Close()                                                               // the process has its own
	p := &process{cmd: exec.Command(program, "serve"), exited: make(chan struct{})} //nolint:noctx // Stop ends it, by a signal
	p.cmd.Env, p.cmd.Stderr, p.cmd.SysProcAttr = env, log, childAttr()
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	where := make(chan [2]string, 1)
	go func() {
		defer close(p.exited)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if api, metrics, ok := listening(lines.Text()); ok {
				where <- [2]string{api, metrics}
				break
			}
		}
		_, _ = io.Copy(io.Discard, out)
		p.exit = p.cmd.Wait()
	}()
	timer := time.NewTimer(startTimeout)
	defer timer.Stop()
	select {
	case w := <-where:
		p.url, p.metrics = w[0], w[1]
		return p, nil
	case <-p.exited:
		err = errors.New("ended without listening")
	case <-timer.C:
		err = fmt.Errorf("does not listen after %v", startTimeout)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	_ = p.Stop() // the first error tells more
	return nil, fmt.Errorf("gateway: %w; its log is %s", err, log.Name())
}

// listening reads the line of the summary that says where the gateway is.
func listening(line string) (api, metrics string, ok bool) {
	name, rest, found := strings.Cut(strings.TrimSpace(line), " ")
	if !found || name != "listening" {
		return "", "", false
	}
	api, rest, found = strings.Cut(strings.TrimSpace(rest), " (metrics ")
	return api, strings.TrimSuffix(rest, ")"), found
}

// URL is where the API is.
func (p *process) URL() string { return p.url }

// MetricsURL is where the metrics are.
func (p *process) MetricsURL() string { return p.metrics }

// Stop asks the process to end and kills it when it does not. Only this process's own child is ever signalled.
func (p *process) Stop() error {
	p.once.Do(func() { p.stopped = p.stop() })
	return p.stopped
}

// Kill ends the process at once.
func (p *process) Kill() {
	p.once.Do(func() {
		_ = p.cmd.Process.Kill() // it may have ended by now
		<-p.exited
	})
}

func (p *process) stop() error {
	select {
	case <-p.exited:
		return fmt.Errorf("gateway ended by itself: %v", p.exit) //nolint:errorlint // nobody unwraps it, and it may be nil
	default:
	}
	began := time.Now()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by now
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.exited
		return fmt.Errorf("gateway did not stop within %v", stopTimeout)
	}
	if p.exit != nil {
		return fmt.Errorf("gateway stopped after %v: %w", time.Since(began).Round(time.Millisecond), p.exit)
	}
	return nil
}
