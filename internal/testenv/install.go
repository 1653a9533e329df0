package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// policyFile, when it says 101, keeps Debian's packages from starting their servers. See invoke-rc.d(8).
const policyFile = "/usr/sbin/policy-rc.d"

// installTimeout bounds the two runs of apt-get together.
const installTimeout = 4 * time.Minute

// install installs a Debian package, as root and where apt-get is. Nothing is started by it.
func install(pkg string) error {
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return errors.New("there is no apt-get to install it with")
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("only root could install %s", pkg)
	}
	unlock, err := lock(filepath.Dir(policyFile))
	if err != nil {
		return err
	}
	defer unlock()

	if _, err := os.Stat(policyFile); errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(policyFile, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil {
			return fmt.Errorf("keep services from starting: %w", err)
		}
		defer func() { _ = os.Remove(policyFile) }() // it would only keep services from starting
	}
	ctx, cancel := context.WithTimeout(context.Background(), installTimeout)
	defer cancel()
	for _, args := range [][]string{
		{"update", "-qq"},
		{"install", "-qq", "-y", "--no-install-recommends", pkg},
	} {
		cmd := exec.CommandContext(ctx, apt, append([]string{"-o", "DPkg::Lock::Timeout=120"}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", args[0], err, tail(out))
		}
	}
	return nil
}

// lock waits until no other test process of this machine installs. It locks a folder, so no file is left.
func lock(folder string) (unlock func(), err error) {
	f, err := os.Open(folder)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock: %w", err)
	}
	return func() { _ = f.Close() }, nil // closing unlocks
}
