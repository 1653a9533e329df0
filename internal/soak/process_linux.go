package soak

import "syscall"

// childAttr lets the kernel end a gateway whose soak was killed, and keeps an interrupt at the terminal from it: the
// soak stops it in order. The kernel ties the signal to the thread that started the child, and the runtime keeps its
// threads unless a goroutine that is locked to one ends, which none here is.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
