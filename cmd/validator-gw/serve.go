package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"validator-gw/internal/gateway"
	"validator-gw/internal/settings"
)

type serveCommand struct{ serveFlags }

// Run serves until a signal comes.
func (c serveCommand) Run(ctx context.Context, p *program) error {
	cfg, err := loadConfig(modeServe, c.given(), p.environ)
	if err := withMissing(err, cfg.missing); err != nil {
		return err
	}
	return p.serve(ctx, cfg, nil)
}

// withMissing adds what is missing to the faults, so that one start tells all.
func withMissing(err error, missing []error) error {
	if u, ok := errors.AsType[usageError](err); ok {
		err = u.err
	}
	if err := errors.Join(append([]error{err}, missing...)...); err != nil {
		return usageError{err}
	}
	return nil
}

// serve builds the gateway and runs it until a signal or ctx ends it. Greeting, when not nil, is printed after the
// summary; it is given the address of the API.
func (p *program) serve(ctx context.Context, cfg *config, greeting func(api net.Addr)) error {
	log, flush := cfg.serveLogger(p.stderr)
	defer flush()
	p.log = log
	for _, w := range cfg.warnings { // those of the live settings are in the summary
		log.WarnContext(ctx, "settings warning", "warning", w)
	}
	live := settings.NewLive(cfg.settings, cfg.settingsPath, p.environ, statics)
	live.Log, live.Verify = log, gateway.CheckCallbacks
	reload := func(ctx context.Context) { _ = live.Reload(ctx) } // it logs what is wrong
	return p.untilStopped(ctx, reload, func(ctx context.Context) error {
		// Listen first, then build: a taken port fails at once and not after a minute of waiting for a database.
		api, metrics, err := listenBoth(ctx, cfg)
		if err != nil {
			return err
		}
		g, err := gateway.New(ctx, cfg.gateway(), gateway.Deps{
			Listener: api, MetricsListener: metrics, Log: log, Settings: live,
		})
		if err != nil {
			if ctx.Err() != nil { // asked to stop, so what was not reached by then is no failure
				return ctx.Err()
			}
			return err
		}
		p.summarize(ctx, cfg, log, g.Summary())
		if greeting != nil {
			greeting(api.Addr())
		}
		return g.Run(ctx)
	})
}

// listenBoth takes both addresses, or neither.
func listenBoth(ctx context.Context, cfg *config) (api, metrics net.Listener, err error) {
	api, err = listen(ctx, cfg.listen, "--listen", envListen)
	if err != nil {
		return nil, nil, err
	}
	metrics, err = listen(ctx, cfg.metricsListen, "--metrics-listen", envMetricsListen)
	if err != nil {
		return nil, nil, errors.Join(err, api.Close())
	}
	return api, metrics, nil
}

func listen(ctx context.Context, address, flag, env string) (net.Listener, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		hint := flag
		if env != "" {
			hint += " or " + env
		}
		return nil, fmt.Errorf("%w; choose another address with %s", err, hint)
	}
	return ln, nil
}

// summarize tells once what was built. People read it as lines; where the log is JSON it stays JSON.
func (p *program) summarize(ctx context.Context, cfg *config, log *slog.Logger, lines []string) {
	if cfg.logJSON {
		for _, line := range lines {
			log.InfoContext(ctx, "started", "summary", strings.TrimSpace(line))
		}
		return
	}
	fmt.Fprintln(p.stdout, strings.Join(lines, "\n"))
}

type migrateCommand struct {
	commonFlags
	AllowUnsafeServer bool `help:"Go on even if the database may lose what it commits (VALIDATOR_GW_ALLOW_UNSAFE_SERVER)."`
}

// Run brings the schema up.
func (c migrateCommand) Run(ctx context.Context, p *program) error {
	cfg, err := loadConfig(modeMigrate, serveFlags{
		commonFlags: c.commonFlags, AllowUnsafeServer: c.AllowUnsafeServer,
	}.given(), p.environ)
	if err != nil {
		return err
	}
	return p.untilStopped(ctx, nil, func(ctx context.Context) error {
		if err := gateway.Migrate(ctx, cfg.gateway(), cfg.logger(p.stderr)); err != nil {
			return err
		}
		_, err := fmt.Fprintln(p.stdout, "the schema is up to date")
		return err
	})
}
