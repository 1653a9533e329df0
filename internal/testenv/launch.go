package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
)

// Launch runs a command, normally "go test ./...", with TEST_DATABASE_URL and TEST_REDIS_URL set to servers that
// it starts first and removes at the end; a URL that is set already stays. It returns the command's exit code, or
// 2 when a server can't be had. A signal to stop is handed to the command, and the servers go after it.
func Launch(argv []string) int {
	keepIfAsked()
	if len(argv) == 0 {
		fmt.Fprintln(os.Stderr, "usage: testenv run -- COMMAND [ARGUMENT...]")
		return 2
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(stop)

	services := []*shared{sharedPostgres, sharedRedis}
	var starting sync.WaitGroup
	for _, s := range services {
		starting.Go(func() { _, _ = s.start() }) // the error is kept in s
	}
	starting.Wait()
	env := append(os.Environ(), envRun+"="+runID())
	var errs []error
	for _, s := range services {
		errs = append(errs, s.err)
		env = append(env, s.service.urlEnv+"="+s.url)
		if s.err == nil && s.keeper == nil {
			fmt.Fprintf(os.Stderr, "testenv: %s: as %s says\n", s.service.title, s.service.urlEnv)
		}
	}
	code := 2
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
	} else {
		code = runCommand(argv, env, stop)
	}
	if err := closeAll(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = max(code, 1)
	}
	return code
}

// runCommand runs argv to its end and returns its exit code.
func runCommand(argv, env []string, stop <-chan os.Signal) int {
	select {
	case <-stop: // told to stop while the servers started
		return 1
	default:
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		return 2
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case sig := <-stop:
			_ = cmd.Process.Signal(sig) // it may have ended by now
		case err := <-ended:
			if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
				return exit.ExitCode()
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "testenv:", err)
				return 1
			}
			return 0
		}
	}
}
