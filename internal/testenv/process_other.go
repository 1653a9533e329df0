//go:build !linux

package testenv

import "syscall"

// childAttr starts a server in a session of its own. Other systems than Linux can't end it with its keeper.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
