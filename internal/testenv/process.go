package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// ownerID names this process beyond the reuse of its number: host, process and the time when it started.
var ownerID = sync.OnceValue(func() string {
	return fmt.Sprintf("%s.%d.%s", hostTag(), os.Getpid(), startTime(os.Getpid()))
})

// hostTag is the host's name without dots. Containers on one engine may belong to several hosts.
func hostTag() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return strings.NewReplacer(".", "_", "-", "_").Replace(name)
}

// startTime is when the process started, in the kernel's ticks, or 0 where the system does not say.
func startTime(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "0"
	}
	// The second field is the program's name in parentheses, which may hold anything; field 22 is meant.
	if _, rest, ok := cutLast(string(stat), ") "); ok {
		if f := strings.Fields(rest); len(f) > 19 {
			return f[19]
		}
	}
	return "0"
}

// ownerGone says that the owner was a process of this host and has ended.
func ownerGone(owner string) bool {
	host, rest, ok1 := strings.Cut(owner, ".")
	number, started, ok2 := strings.Cut(rest, ".")
	pid, err := strconv.Atoi(number)
	if !ok1 || !ok2 || err != nil || pid <= 0 || host != hostTag() {
		return false
	}
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	return started != startTime(pid)
}

// sweepFolders removes the temporary folders of keepers that were killed.
func sweepFolders() {
	found, _ := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*")) // the pattern is well formed
	for _, folder := range found {
		owner, _, ok := cutLast(strings.TrimPrefix(filepath.Base(folder), folderPrefix), "-")
		if ok && ownerGone(owner) {
			_ = os.RemoveAll(folder) // another's folder stays where it is
		}
	}
}

// childrenOf lists the processes whose parent is pid.
func childrenOf(pid int) ([]int, error) {
	var found []int
	add := func(child, parent string) {
		if n, err := strconv.Atoi(child); err == nil && parent == strconv.Itoa(pid) {
			found = append(found, n)
		}
	}
	if stats, _ := filepath.Glob("/proc/[0-9]*/stat"); len(stats) > 0 {
		for _, name := range stats {
			stat, err := os.ReadFile(name)
			if err != nil {
				continue // it has ended
			}
			if _, rest, ok := cutLast(string(stat), ") "); ok {
				if f := strings.Fields(rest); len(f) > 1 {
					add(filepath.Base(filepath.Dir(name)), f[1])
				}
			}
		}
		return found, nil
	}
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 2 {
			add(f[0], f[1])
		}
	}
	return found, nil
}

// cutLast is strings.Cut at the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
