package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"validator-gw/internal/settings"
)

type healthcheckCommand struct {
	Config  *string       `placeholder:"FILE" help:"Settings file, for its listen (VALIDATOR_GW_CONFIG)."`
	Listen  *string       `placeholder:"ADDR" help:"Address that the gateway listens on (VALIDATOR_GW_LISTEN; :8080)."`
	Ready   bool          `help:"Ask whether it takes requests, not only whether it lives."`
	Timeout time.Duration `default:"2s" help:"How long to wait (${default})."`
}

// Run asks the gateway on this machine. It reads of the configuration only where that listens, so that it says
// nothing about settings that the running gateway may not even have.
func (c healthcheckCommand) Run(ctx context.Context, p *program) error {
	r := newReader(map[string]*string{envListen: c.Listen, envConfig: c.Config}, p.environ, &config{})
	if path, _ := r.find(envConfig, ""); path != "" {
		r.file, _ = settings.Load(path, nil, statics...) // faulty: the default, or what flag and variable say
	}
	address := r.address(envListen, ":8080", false)
	if err := errors.Join(r.errs...); err != nil {
		return usageError{err}
	}
	host, port, _ := net.SplitHostPort(address) // r.address has read it
	if port == "0" {
		return usageError{errors.New("port 0 stands for any; say with --listen which one it is")}
	}
	if c.Timeout <= 0 {
		return usageError{errors.New("--timeout is not more than 0")}
	}
	switch ip := net.ParseIP(host); {
	case host == "":
		host = "127.0.0.1"
	case ip != nil && ip.IsUnspecified() && ip.To4() != nil:
		host = "127.0.0.1"
	case ip != nil && ip.IsUnspecified():
		host = "::1"
	}
	path := "/livez"
	if c.Ready {
		path = "/readyz"
	}
	return ask(ctx, "http://"+net.JoinHostPort(host, port)+path, c.Timeout)
}

// ask is nil when the answer is a 2xx within the time.
func ask(ctx context.Context, url string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	// Of its own: a proxy in the environment is not for this machine's own port.
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("not healthy: %s: %w", url, err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("not healthy: %s: %s", url, resp.Status)
	}
	return nil
}
