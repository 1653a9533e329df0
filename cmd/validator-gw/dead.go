package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/gateway"
)

// deadCommand is for reviews that nobody works on any more: their answers can't be used, or they ended their workers.
type deadCommand struct {
	List   deadListCommand   `cmd:"" help:"List the dead reviews, the longest dead first. No addresses."`
	Replay deadReplayCommand `cmd:"" help:"Make dead reviews open and due again, with all that was counted reset."`
	Drop   deadDropCommand   `cmd:"" help:"Give dead reviews up: their addresses are erased, their status stays unresolved."`
}

// deadFlags are what all three take.
type deadFlags struct {
	commonFlags
	AllowUnsafeServer bool `help:"Go on even if the database may lose what it commits (VALIDATOR_GW_ALLOW_UNSAFE_SERVER)."`
}

// open runs f on the configured store.
func (c deadFlags) open(ctx context.Context, p *program, f func(context.Context, *gateway.DeadReviews) error) error {
	return c.configured(ctx, p, func(ctx context.Context, cfg *config) error {
		d, err := gateway.OpenDead(ctx, cfg.gateway(), cfg.settings, cfg.logger(p.stderr))
		if err != nil {
			return err
		}
		defer d.Close()
		return f(ctx, d)
	})
}

// configured runs f with the configuration of a store that is there.
func (c deadFlags) configured(ctx context.Context, p *program, f func(context.Context, *config) error) error {
	given := serveFlags{commonFlags: c.commonFlags, AllowUnsafeServer: c.AllowUnsafeServer}.given()
	cfg, err := loadConfig(modeMigrate, given, p.environ)
	var wrong []error
	if err == nil && cfg.secret == nil {
		wrong = append(wrong, errors.New("no secret: set "+envSecret+" (or "+envSecret+fileSuffix+") to that of the gateway"))
	}
	if err == nil && cfg.databaseURL == "" {
		if _, statErr := os.Stat(filepath.Join(cfg.dataDir, gateway.SQLiteFile)); statErr != nil {
			wrong = append(wrong, fmt.Errorf("no store: there is no %s in %s; set %s, or %s to the gateway's folder",
				gateway.SQLiteFile, cfg.dataDir, envDatabaseURL, envData))
		}
	}
	if err := withMissing(err, wrong); err != nil {
		return err
	}
	return p.untilStopped(ctx, nil, func(ctx context.Context) error { return f(ctx, cfg) })
}

type deadListCommand struct {
	deadFlags
	JSON bool `name:"json" help:"One JSON object a line."`
}

// deadLine is a line of list --json.
type deadLine struct {
	ID         string    `json:"id"`
	Reason     string    `json:"reason"`
	RecordedAt time.Time `json:"recorded_at"`
	DiedAt     time.Time `json:"died_at"`
	Checks     int       `json:"checks"`
}

// Run lists.
func (c deadListCommand) Run(ctx context.Context, p *program) error {
	return c.open(ctx, p, func(ctx context.Context, d *gateway.DeadReviews) error {
		lines := json.NewEncoder(p.stdout)
		table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
		if !c.JSON {
			fmt.Fprintln(table, "id\treason\trecorded\tdied\tchecks")
		}
		err := d.Each(ctx, func(r fallback.Review) error {
			l := deadLine{ID: r.ID, Reason: string(r.Reason), RecordedAt: r.RecordedAt, DiedAt: r.EndedAt, Checks: len(r.Trail)}
			if c.JSON {
				return lines.Encode(l)
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\n", l.ID, l.Reason, l.RecordedAt.Format(time.RFC3339), l.DiedAt.Format(time.RFC3339), l.Checks)
			return nil
		})
		if c.JSON {
			return err
		}
		return errors.Join(err, table.Flush())
	})
}

// chosen are the reviews that a command is for.
type chosen struct {
	deadFlags
	All bool     `help:"All that are dead now."`
	IDs []string `arg:"" optional:"" name:"id" help:"Ids of reviews, as list shows them."`
}

// each does one thing to the chosen, and prints how many it was done to. What can't be done to one does not keep it from
// the others.
func (c chosen) each(ctx context.Context, p *program, done string, do func(context.Context, *gateway.DeadReviews, string) error) error {
	if c.All == (len(c.IDs) > 0) {
		return usageError{errors.New("give ids, or --all")}
	}
	return c.open(ctx, p, func(ctx context.Context, d *gateway.DeadReviews) error {
		ids := c.IDs
		if c.All {
			err := d.Each(ctx, func(r fallback.Review) error { ids = append(ids, r.ID); return nil })
			if err != nil {
				return err
			}
		}
		var failed []error
		n := 0
		for _, id := range ids {
			if err := do(ctx, d, id); err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", id, err))
				if ctx.Err() != nil {
					break
				}
				continue
			}
			n++
		}
		fmt.Fprintf(p.stdout, "%s %d of %d reviews\n", done, n, len(ids))
		return errors.Join(failed...)
	})
}

type deadReplayCommand struct{ chosen }

// Run replays.
func (c deadReplayCommand) Run(ctx context.Context, p *program) error {
	return c.each(ctx, p, "replayed", func(ctx context.Context, d *gateway.DeadReviews, id string) error { return d.Replay(ctx, id) })
}

type deadDropCommand struct{ chosen }

// Run drops.
func (c deadDropCommand) Run(ctx context.Context, p *program) error {
	return c.each(ctx, p, "dropped", func(ctx context.Context, d *gateway.DeadReviews, id string) error { return d.Drop(ctx, id) })
}
