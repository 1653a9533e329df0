package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"strings"
	"time"

	"validator-gw/internal/gateway"
	"validator-gw/internal/secret"
	"validator-gw/internal/settings"
)

// serveProfiled is the child that serves the gateway as the program does, and beside it the profiler, which the program
// has not. It takes what gatewayEnv makes.
func serveProfiled(ctx context.Context) error {
	live := []string{"VALIDATOR_GW_UPSTREAM_RATE=" + os.Getenv("VALIDATOR_GW_UPSTREAM_RATE"), "VALIDATOR_GW_UPSTREAM_BURST=" + os.Getenv("VALIDATOR_GW_UPSTREAM_BURST")}
	set, err := settings.Load("", live)
	if err != nil {
		return err
	}
	master, err := secret.Decode(secret.Text(os.Getenv("VALIDATOR_GW_SECRET")))
	if err != nil {
		return err
	}
	var ls [3]net.Listener
	for i := range ls {
		if ls[i], err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.Handle("GET /debug/pprof/allocs", pprof.Handler("allocs"))
	profiler := &http.Server{Handler: mux} //nolint:gosec // G112: loopback, and only this program asks
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = profiler.Serve(ls[2]) // without it there is no profile, which the fetch says
	}()
	g, err := gateway.New(ctx, gateway.Config{Mode: "profiled", DataDir: os.Getenv("VALIDATOR_GW_DATA"),
		UpstreamURL: os.Getenv("VALIDATOR_GW_UPSTREAM_URL"), UpstreamKey: secret.Text(os.Getenv("VALIDATOR_GW_UPSTREAM_KEY")),
		UpstreamProfile: "verimail_v3", Secret: master, APIKey: secret.Text(os.Getenv("VALIDATOR_GW_API_KEY")), Migrate: true, Version: "profiled"},
		gateway.Deps{Listener: ls[0], MetricsListener: ls[1], Log: slog.New(slog.NewJSONHandler(os.Stderr, nil)),
			Settings: settings.NewLive(set, "", nil, nil)})
	if err != nil {
		return errors.Join(err, profiler.Close())
	}
	fmt.Fprintf(os.Stderr, "listening http://%s (metrics http://%s)\n", ls[0].Addr(), ls[2].Addr())
	err = g.Run(ctx)
	err = errors.Join(err, profiler.Close())
	<-ended
	return err
}

// takeProfiles loads a gateway that can be profiled, and writes where its time and its allocations go.
func (m *measurement) takeProfiles(ctx context.Context, folder, self string, env []string, requests [][]byte) (err error) {
	if err := os.MkdirAll(m.profile, 0o700); err != nil {
		return err
	}
	for i, e := range env {
		if strings.HasPrefix(e, "VALIDATOR_GW_DATA=") {
			env[i] = "VALIDATOR_GW_DATA=" + filepath.Join(folder, "profiled")
		}
	}
	c, err := start(ctx, folder, "profiled", self, []string{profileChild}, env)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	if _, err := m.warm(ctx, c.host, requests); err != nil {
		return err
	}
	seconds := max(int(m.round.Seconds()), 1)
	loaded := make(chan error, 1)
	go func() {
		_, err := drive(ctx, c.host, requests, m.connections, time.Duration(seconds)*time.Second+time.Second, []byte(`"kind":"cache"`))
		loaded <- err
	}()
	err = errors.Join(fetch(ctx, fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", c.metrics, seconds), filepath.Join(m.profile, "cpu.pprof")),
		fetch(ctx, c.metrics+"/debug/pprof/allocs", filepath.Join(m.profile, "allocs.pprof")))
	return errors.Join(err, <-loaded)
}

// fetch writes a page into a file.
func fetch(ctx context.Context, address, file string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	res, err := (&http.Client{Timeout: 2 * time.Minute}).Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("profile: %s", res.Status)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, res.Body)
	return errors.Join(err, f.Close())
}
