package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"validator-gw/internal/secret"
)

func processEnv(t *testing.T, upstream string, more ...string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "VALIDATOR_GW_DATA=" + t.TempDir(), "VALIDATOR_GW_UPSTREAM_URL=" + upstream,
		"VALIDATOR_GW_UPSTREAM_KEY=upstream-key", "VALIDATOR_GW_SECRET=" + secret.Generate().Reveal(), "VALIDATOR_GW_API_KEY=client-key",
		"VALIDATOR_GW_UPSTREAM_RATE=1000/s", "VALIDATOR_GW_MIGRATE=true"}, more...)
}

// What an upstream sends after the end of its answer is written to the standard log by net/http as it is, and it holds
// addresses.
func TestBytesAfterAnAnswerAreNotLogged(t *testing.T) {
	t.Parallel()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	noticed := make(chan struct{}, 100)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				in := bufio.NewReader(c)
				r, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				text, _ := io.ReadAll(r.Body)
				form, _ := url.ParseQuery(string(text))
				body := `{"status":"success","result":"deliverable","deliverable":true}`
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s{\"email\":%q}", len(body), body, form.Get("email"))
				_, _ = io.Copy(io.Discard, in) // until the client closes, which it does after it has complained
				noticed <- struct{}{}
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); all.Wait() })

	p := serveProcess(t, processEnv(t, "http://"+ln.Addr().String()))
	for tries := 0; ; tries++ {
		code, _, status := p.call(http.MethodPost, "/validate", url.Values{"email": {"ana.secret@example.com"}})
		if code == http.StatusOK && status == "valid" {
			break
		}
		if tries > 1000 {
			t.Fatalf("%d %s", code, status)
		}
	}
	select {
	case <-noticed:
	case <-time.After(time.Minute):
		t.Fatal("the connection is still open")
	}
	text, err := os.ReadFile(p.cmd.Stderr.(*os.File).Name())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "ana.secret") {
		t.Errorf("the address is in the log:\n%s", text)
	}
}

// However many SIGHUPs come, the one SIGTERM among them is not lost.
func TestStopAmongHangups(t *testing.T) {
	t.Parallel()
	config := file(t, "settings.yaml", "upstream: {rate: 5}\n")
	p := serveProcess(t, processEnv(t, "http://127.0.0.1:9", "VALIDATOR_GW_CONFIG="+config, "VALIDATOR_GW_UPSTREAM_RATE="))
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	storm := time.NewTicker(100 * time.Microsecond)
	defer storm.Stop()
	give := time.After(time.Minute)
	for n := 0; ; n++ {
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("ended with %v, want an orderly stop", err)
			}
			return
		case <-give:
			_ = p.cmd.Process.Kill()
			<-ended
			t.Fatal("still running a minute after SIGTERM")
		case <-storm.C:
			_ = p.cmd.Process.Signal(syscall.SIGHUP)
			if n == 500 {
				_ = p.cmd.Process.Signal(syscall.SIGTERM)
			}
		}
	}
}
