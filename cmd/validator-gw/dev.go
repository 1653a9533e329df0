package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"validator-gw/internal/secret"
	"validator-gw/internal/verimail"
	"validator-gw/internal/verimail/simulator"
)

// Where dev's simulated upstream listens when nobody says: a fixed port, so that what the documentation shows can be
// typed as it is, or any other when that one is taken.
const (
	devSimulator    = "127.0.0.1:8090"
	devSimulatorAny = "127.0.0.1:0"
)

// Latency of dev's simulated upstream: that of a provider on a good day.
const (
	devP50 = 80 * time.Millisecond
	devP99 = 250 * time.Millisecond // one call in 100,000 is later than a form waits: the tour shows what it prints
)

type devCommand struct {
	commonFlags
	listenFlags
	SimulatorListen *string `placeholder:"ADDR" help:"Of the simulated upstream (127.0.0.1:8090, or any free port)."`
	Script          string  `placeholder:"PHASES" help:"What the upstream plays: \"healthy 30s, hang 60s, 429 30s\"."`
}

// Run serves with no set-up at all.
func (c devCommand) Run(ctx context.Context, p *program) error {
	cfg, err := loadConfig(modeDev, serveFlags{commonFlags: c.commonFlags, listenFlags: c.listenFlags}.given(), p.environ)
	var wrong []error
	script, scriptErr := simulator.ParseScript(c.Script)
	if scriptErr != nil {
		wrong = append(wrong, fmt.Errorf("--script: %w", scriptErr))
	}
	if a := c.SimulatorListen; a != nil {
		if host, _, err := net.SplitHostPort(*a); err != nil || !isLoopback(host) {
			wrong = append(wrong, fmt.Errorf("--simulator-listen: %q is not a loopback address such as %s", *a, devSimulator))
		}
	}
	if err := withMissing(err, wrong); err != nil {
		return err
	}

	if cfg.secret == nil {
		if cfg.secret, err = ownSecret(cfg.dataDir); err != nil {
			return err
		}
	}
	cfg.upstreamKey, cfg.upstreamProfile = secret.Generate(), verimail.ProfileVerimailV3
	sim, err := simulator.New(simulator.Config{
		Key: cfg.upstreamKey.Reveal(), P50: devP50, P99: devP99, Script: script, Hint: simulator.HintSeconds,
	})
	if err != nil {
		return err
	}
	ln, err := c.listenSimulator(ctx)
	if err != nil {
		return err
	}
	cfg.upstreamURL = "http://" + ln.Addr().String()

	// The upstream outlives the gateway's drain, and the gateway ends with an upstream that broke.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	simCtx, stopSim := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSim()
	simDone := make(chan error, 1)
	go func() {
		err := sim.Run(simCtx, ln)
		if err != nil {
			cancel(err)
		}
		simDone <- err
	}()
	err = p.serve(ctx, cfg, func(api net.Addr) {
		fmt.Fprint(p.stdout, greeting("http://"+api.String(), cfg.upstreamURL, cfg.dataDir))
	})
	stopSim()
	return errors.Join(err, <-simDone)
}

func (c devCommand) listenSimulator(ctx context.Context) (net.Listener, error) {
	if c.SimulatorListen != nil {
		return listen(ctx, *c.SimulatorListen, "--simulator-listen", "")
	}
	if ln, err := new(net.ListenConfig).Listen(ctx, "tcp", devSimulator); err == nil {
		return ln, nil
	}
	return listen(ctx, devSimulatorAny, "--simulator-listen", "")
}

// greeting is what dev says once it runs.
func greeting(api, upstream, dataDir string) string {
	return fmt.Sprintf(`
  This is dev: for trying out, on this machine only. The upstream is SIMULATED: nothing is really verified, nothing is
  billed, and no key is asked for. What it answers depends on the part before the @. Everything is kept in %[3]s.

  Try, in another terminal:
    curl -s %[1]s/validate -H 'Content-Type: application/json' -d '{"email":"ana@example.com"}'
    curl -s %[1]s/validate -H 'Content-Type: application/json' -d '{"email":"hardbounce@example.com"}'
    curl -s %[1]s/validate -H 'Content-Type: application/json' -d '{"email":"disposable@example.com"}'
    curl -s %[1]s/validate -H 'Content-Type: application/json' -d '{"email":"delay-1500@example.com"}'
  The last one takes longer than a form can wait: it answers needs_review with an id. A moment later:
    curl -s %[1]s/status/THE-ID

  Break the upstream, see what it counted, mend it:
    curl -s %[2]s/control/mode -d mode=hang
    curl -s %[2]s/control/stats
    curl -s %[2]s/control/mode -d mode=healthy

  Ctrl-C stops it.
`, api, upstream, dataDir)
}

// secretFile is the file in dev's data folder.
const secretFile = "secret"

// ownSecret returns the secret that dev keeps in its data folder, and makes it the first time: whoever reads the file
// can read the addresses in the store, so it is its owner's only.
func ownSecret(dataDir string) ([]byte, error) {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	path := filepath.Join(dataDir, secretFile)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		text, err := readSecretFile(path)
		if err != nil {
			return nil, fmt.Errorf("dev's own secret: %w", err)
		}
		b, err := secret.Decode(text)
		if err != nil {
			return nil, fmt.Errorf("dev's own secret in %s: %w; to begin anew, remove the folder", path, err)
		}
		return b, nil
	}
	if err != nil {
		return nil, fmt.Errorf("dev's own secret: %w", err)
	}
	text := secret.Generate()
	_, err = f.WriteString(text.Reveal() + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("dev's own secret: %w", err), os.Remove(path))
	}
	return secret.Decode(text)
}
