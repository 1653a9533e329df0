package soak

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestProcessIsStartedReadAndStopped(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	g, err := StartProcess(t.Context(), os.Args[0], folder, "gateway-0", []string{asGateway + "=listens"})
	if err != nil {
		t.Fatal(err)
	}
	if g.URL() != "http://127.0.0.1:4711" || g.MetricsURL() != "http://127.0.0.1:4712/metrics" {
		t.Errorf("listens on %s, metrics on %s", g.URL(), g.MetricsURL())
	}
	if err := g.Stop(); err != nil {
		t.Errorf("Stop = %v, want nil", err)
	}
	if err := g.Stop(); err != nil {
		t.Errorf("a second Stop = %v, want nil", err)
	}
	log, err := os.ReadFile(filepath.Join(folder, "gateway-0.log"))
	if err != nil || !strings.Contains(string(log), "a line for the log") {
		t.Errorf("log %q, %v", log, err)
	}
}

func TestProcessThatDoesNotStartIsAnError(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	_, err := StartProcess(t.Context(), os.Args[0], folder, "gateway-0", []string{asGateway + "=fails"})
	if err == nil || !strings.Contains(err.Error(), "gateway-0.log") {
		t.Errorf("error %v, want one that names the log", err)
	}
}

func TestProcessThatEndsByItselfIsNoOrderlyStop(t *testing.T) {
	t.Parallel()
	g, err := StartProcess(t.Context(), os.Args[0], t.TempDir(), "gateway-0", []string{asGateway + "=listens"})
	if err != nil {
		t.Fatal(err)
	}
	p := g.(*process)
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.exited
	if err := g.Stop(); err == nil {
		t.Error("Stop = nil for a process that was gone")
	}
}

func TestProcessThatStopsBadlyIsNoOrderlyStop(t *testing.T) {
	t.Parallel()
	g, err := StartProcess(t.Context(), os.Args[0], t.TempDir(), "gateway-0", []string{asGateway + "=stops badly"})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Stop(); err == nil || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("Stop = %v, want the exit status", err)
	}
}
