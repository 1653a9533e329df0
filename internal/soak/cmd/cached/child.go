package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Longest waits for a child.
const (
	startTimeout = 30 * time.Second
	stopTimeout  = 20 * time.Second
)

// child is a process that serves.
type child struct {
	cmd     *exec.Cmd
	log     string
	host    string // of the API
	metrics string // address of the metrics
	exited  chan struct{}
	exit    error // read after exited is closed
}

var listeningLine = regexp.MustCompile(`listening +http://(\S+) +\(metrics (http://[^)\s]+)\)`)

// start runs a program with its log in a file, as in production, and waits until that says where it listens.
func start(ctx context.Context, folder, name, program string, args, env []string) (*child, error) {
	c := &child{cmd: exec.Command(program, args...), log: filepath.Join(folder, name+".log"), exited: make(chan struct{})} //nolint:gosec,noctx // G204: whoever runs this names it; stop ends it, by a signal
	f, err := os.Create(c.log)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the child has its own
	c.cmd.Env, c.cmd.Stderr = env, f
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		c.exit = c.cmd.Wait()
		close(c.exited)
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(startTimeout)
	for {
		text, err := os.ReadFile(c.log)
		if m := listeningLine.FindSubmatch(text); m != nil {
			c.host, c.metrics = string(m[1]), string(m[2])
			return c, nil
		}
		select {
		case <-tick.C:
			continue
		case <-c.exited:
			err = errors.Join(err, errors.New("ended without listening"))
		case <-late:
			err = errors.Join(err, errors.New("does not listen"))
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		return nil, errors.Join(fmt.Errorf("%s: %w: %s", name, err, text), c.stop())
	}
}

// stop ends the child in order, or kills it.
func (c *child) stop() error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-c.exited:
		return nil
	case <-time.After(stopTimeout):
		_ = c.cmd.Process.Kill()
		<-c.exited
		return fmt.Errorf("%s did not stop", filepath.Base(c.log))
	}
}

// usage is what a process has taken since its start.
type usage struct{ allocs, bytes, cpu, resident float64 }

func (u usage) minus(v usage) usage {
	return usage{u.allocs - v.allocs, u.bytes - v.bytes, u.cpu - v.cpu, u.resident}
}

func (u usage) plus(v usage) usage {
	return usage{u.allocs + v.allocs, u.bytes + v.bytes, u.cpu + v.cpu, max(u.resident, v.resident)}
}

// used reads it from the metrics.
func (c *child) used(ctx context.Context) (u usage, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.metrics, nil)
	if err != nil {
		return u, err
	}
	res, err := (&http.Client{Timeout: 5 * time.Second}).Do(req)
	if err != nil {
		return u, err
	}
	defer res.Body.Close()
	into := map[string]*float64{"go_memstats_mallocs_total": &u.allocs, "go_memstats_alloc_bytes_total": &u.bytes,
		"process_cpu_seconds_total": &u.cpu, "process_resident_memory_bytes": &u.resident}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if to := into[name]; to != nil {
			if *to, err = strconv.ParseFloat(value, 64); err != nil {
				return u, err
			}
			delete(into, name)
		}
	}
	if len(into) > 0 {
		return u, fmt.Errorf("%s: metrics are missing", filepath.Base(c.log))
	}
	return u, lines.Err()
}
