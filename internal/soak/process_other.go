//go:build !linux

package soak

import "syscall"

// childAttr keeps an interrupt at the terminal from a gateway: the soak stops it in order.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
