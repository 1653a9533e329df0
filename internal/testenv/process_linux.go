package testenv

import "syscall"

// childAttr lets the kernel end a server whose keeper was killed. SIGKILL suits both: nothing of them is kept.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}
