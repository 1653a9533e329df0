package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"validator-gw/internal/settings"
)

type checkCommand struct {
	serveFlags
	Complete bool `help:"Fail too when something is missing that serve needs."`
}

// Run reads the configuration as serve would and prints what is in force. No secret is printed, only whether it is
// there.
func (c checkCommand) Run(ctx context.Context, p *program) error {
	cfg, err := loadConfig(modeServe, c.given(), p.environ)
	if c.Complete {
		err = withMissing(err, cfg.missing)
	}
	if err != nil {
		return err
	}

	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FIXED AT THE START\tVALUE\tFROM")
	for _, r := range cfg.rows {
		fmt.Fprintf(w, "%s\t%s\t%s\n", r.name, r.value, r.origin)
	}
	fmt.Fprintln(w, "\nSETTING\tVALUE\tFROM")
	for _, r := range cfg.settings.Rows() {
		note := ""
		if !r.Live {
			note = "; a change needs a restart"
		}
		fmt.Fprintf(w, "%s\t%s\t%s%s\n", r.Path, r.Value, r.Origin, note)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, warning := range append(cfg.settings.Warnings(), cfg.warnings...) {
		fmt.Fprintf(p.stdout, "\nwarning: %s\n", warning)
	}
	for _, fault := range settings.Faults(errors.Join(cfg.missing...)) {
		fmt.Fprintf(p.stdout, "\nserve would not start: %s\n", fault)
	}
	return nil
}
