package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"validator-gw/internal/secret"
	"validator-gw/internal/settings"
	"validator-gw/internal/testenv"
)

// childVariable makes the test binary run one gateway, so that a test can kill a whole process. Its value is a childConfig.
const childVariable = "GATEWAY_TEST_CHILD"

type childConfig struct {
	DatabaseURL, RedisURL, UpstreamURL, UpstreamKey string
	Secret                                          []byte
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testenv.Main(m)
}

// child serves until its standard input ends, and so never outlives the test.
func child(text string) error {
	var cfg childConfig
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mls, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	set := settings.Default()
	set.Upstream.Rate, set.Upstream.Burst = 1000, 200
	g, err := New(ctx, Config{Mode: "test", DatabaseURL: secret.Text(cfg.DatabaseURL), RedisURL: secret.Text(cfg.RedisURL), RedisLookUp: busyLookUp,
		UpstreamURL: cfg.UpstreamURL, UpstreamKey: secret.Text(cfg.UpstreamKey), UpstreamProfile: "verimail_v3", Secret: cfg.Secret, Version: "test"},
		Deps{Listener: lis, MetricsListener: mls, Log: slog.New(slog.NewJSONHandler(os.Stderr, nil)), Settings: settings.NewLive(set, "", nil, nil)})
	if err != nil {
		return err
	}
	fmt.Println("http://" + lis.Addr().String()) // told to the test
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return g.Run(ctx)
}

// startChild runs a gateway like b's in a process of its own. The bench that it returns can post, and cannot halt.
func (b *bench) startChild() (c *bench, kill func()) {
	b.t.Helper()
	text, err := json.Marshal(childConfig{DatabaseURL: b.cfg.DatabaseURL.Reveal(), RedisURL: b.cfg.RedisURL.Reveal(), UpstreamURL: b.cfg.UpstreamURL,
		UpstreamKey: b.cfg.UpstreamKey.Reveal(), Secret: b.cfg.Secret})
	if err != nil {
		b.t.Fatal(err)
	}
	cmd := exec.CommandContext(b.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	cmd.Stderr = b.log
	in, err := cmd.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	b.t.Cleanup(func() {
		_ = in.Close()
		kill()
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.t.Fatalf("the other process did not start: %v\n%s", err, b.log)
	}
	c = &bench{t: b.t, sim: b.sim, log: b.log, cfg: b.cfg, url: strings.TrimSpace(url)}
	return c, kill
}
