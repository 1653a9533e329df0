package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"validator-gw/internal/backfill"
	"validator-gw/internal/fallback"
	"validator-gw/internal/gateway"
	"validator-gw/internal/settings"
)

// backfillCommand is for lists of addresses.
type backfillCommand struct {
	Run     backfillRunCommand     `cmd:"" help:"Check a list of addresses and write the results, in its order. The same file and output again goes on where it was."`
	List    backfillListCommand    `cmd:"" help:"List the backfills, the newest first."`
	Show    backfillShowCommand    `cmd:"" help:"Show how far a backfill is."`
	Cancel  backfillCancelCommand  `cmd:"" help:"End a backfill; what nobody else waits for is not asked any more."`
	Results backfillResultsCommand `cmd:"" help:"Write the results of a backfill."`
}

// serverFlags say which gateway is asked. Without --server the store is opened here.
type serverFlags struct {
	Server string `placeholder:"URL" help:"Hand the work to the gateway there."`
	Key    string `placeholder:"KEY" help:"Its API key; better in VALIDATOR_GW_API_KEY, since others on this machine can read arguments."`
}

// remote is the client of the gateway that the flags name, or nil.
func (f serverFlags) remote(p *program) (*remote, error) {
	if f.Server == "" {
		return nil, nil
	}
	r := newReader(nil, p.environ, &config{})
	key := cmp.Or(f.Key, r.secretText(envAPIKey).Reveal())
	if err := errors.Join(r.errs...); err != nil {
		return nil, usageError{err}
	}
	return newRemote(f.Server, key)
}

// backfillFlags are what every subcommand takes.
type backfillFlags struct {
	commonFlags
	serverFlags
	AllowUnsafeServer bool `help:"Go on even if the database may lose what it commits (VALIDATOR_GW_ALLOW_UNSAFE_SERVER)."`
}

// stored runs f on the configured store.
func (c backfillFlags) stored(ctx context.Context, p *program, f func(context.Context, *gateway.StoredLists) error) error {
	return deadFlags{c.commonFlags, c.AllowUnsafeServer}.configured(ctx, p, func(ctx context.Context, cfg *config) error {
		s, err := gateway.OpenLists(ctx, cfg.gateway(), cfg.settings, cfg.logger(p.stderr))
		if err != nil {
			return err
		}
		defer s.Close()
		return f(ctx, s)
	})
}

type backfillListCommand struct {
	backfillFlags
	JSON bool `name:"json" help:"One JSON object a line."`
}

// Run lists.
func (c backfillListCommand) Run(ctx context.Context, p *program) error {
	far, err := c.remote(p)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	if !c.JSON {
		fmt.Fprintln(table, "id\tstate\trows\tdistinct\tdone\tcredits\tcreated")
	}
	one := func(b progress) error {
		if c.JSON {
			return json.NewEncoder(p.stdout).Encode(b)
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%s\n", b.ID, b.State, b.Rows, b.Distinct, b.Done, b.Credits, b.CreatedAt.Format(time.RFC3339))
		return nil
	}
	if far != nil {
		err = p.untilStopped(ctx, nil, func(ctx context.Context) error { return far.each(ctx, one) })
		return errors.Join(err, table.Flush())
	}
	err = c.stored(ctx, p, func(ctx context.Context, s *gateway.StoredLists) error {
		for before := ""; ; {
			list, err := s.Backfills(ctx, "", before, fallback.MaxBackfills)
			if err != nil || len(list) == 0 {
				return err
			}
			for _, b := range list {
				before = b.ID
				if err := one(progressOf(b)); err != nil {
					return err
				}
			}
		}
	})
	return errors.Join(err, table.Flush())
}

// chosenBackfill is one that a command is for.
type chosenBackfill struct {
	backfillFlags
	ID string `arg:"" help:"Id of the backfill, as list shows it."`
}

// do runs one of two and prints how the backfill stands after it.
func (c chosenBackfill) do(
	ctx context.Context, p *program, here func(context.Context, *gateway.StoredLists) (fallback.Backfill, error),
	there func(context.Context, *remote) (progress, error),
) error {
	far, err := c.remote(p)
	if err != nil {
		return err
	}
	show := func(b progress) error {
		out := json.NewEncoder(p.stdout)
		out.SetIndent("", "  ")
		return out.Encode(b)
	}
	if far != nil {
		return p.untilStopped(ctx, nil, func(ctx context.Context) error {
			b, err := there(ctx, far)
			if err != nil {
				return err
			}
			return show(b)
		})
	}
	return c.stored(ctx, p, func(ctx context.Context, s *gateway.StoredLists) error {
		b, err := here(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", c.ID, err)
		}
		return show(progressOf(b))
	})
}

type backfillShowCommand struct{ chosenBackfill }

// Run shows.
func (c backfillShowCommand) Run(ctx context.Context, p *program) error {
	return c.do(ctx, p,
		func(ctx context.Context, s *gateway.StoredLists) (fallback.Backfill, error) {
			return s.Backfill(ctx, c.ID)
		},
		func(ctx context.Context, r *remote) (progress, error) { return r.show(ctx, c.ID) })
}

type backfillCancelCommand struct{ chosenBackfill }

// Run cancels. Who works on it, or whoever does so next, withdraws what is open.
func (c backfillCancelCommand) Run(ctx context.Context, p *program) error {
	return c.do(ctx, p,
		func(ctx context.Context, s *gateway.StoredLists) (fallback.Backfill, error) {
			return s.CancelBackfill(ctx, c.ID)
		},
		func(ctx context.Context, r *remote) (progress, error) { return r.cancel(ctx, c.ID) })
}

// worker are the flags of what needs a whole gateway.
type worker struct {
	backfillFlags
	RedisMode       *string `placeholder:"MODE" help:"single, sentinel or cluster (VALIDATOR_GW_REDIS_MODE; single)."`
	UpstreamURL     *string `name:"upstream-url" placeholder:"URL" help:"Where the upstream is (VALIDATOR_GW_UPSTREAM_URL)."`
	UpstreamProfile *string `placeholder:"NAME" help:"Its wire contract (VALIDATOR_GW_UPSTREAM_PROFILE; verimail_v3)."`
	Migrate         bool    `help:"Bring the schema up first (VALIDATOR_GW_MIGRATE)."`
}

// work runs f beside a whole gateway that serves nobody, and then stops that in order.
func (c worker) work(ctx context.Context, p *program, f func(context.Context, *gateway.Gateway) error) error {
	given := serveFlags{commonFlags: c.commonFlags, RedisMode: c.RedisMode, UpstreamURL: c.UpstreamURL, UpstreamProfile: c.UpstreamProfile,
		Migrate: c.Migrate, AllowUnsafeServer: c.AllowUnsafeServer}.given()
	if c.LogLevel == nil {
		quiet := "warn" // progress is what people look at
		given[envLogLevel] = &quiet
	}
	cfg, err := loadConfig(modeBackfill, given, p.environ)
	if err := withMissing(err, cfg.missing); err != nil {
		return err
	}
	log, flush := cfg.serveLogger(p.stderr)
	defer flush()
	live := settings.NewLive(cfg.settings, cfg.settingsPath, p.environ, statics)
	live.Log, live.Verify = log, gateway.CheckCallbacks
	return p.untilStopped(ctx, func(ctx context.Context) { _ = live.Reload(ctx) }, func(ctx context.Context) error {
		g, err := gateway.New(ctx, cfg.gateway(), gateway.Deps{Log: log, Settings: live})
		switch {
		case errors.Is(err, fallback.ErrInUse):
			return fmt.Errorf("%w with --server URL", err)
		case err != nil:
			return err
		}
		serving, stop := context.WithCancel(context.WithoutCancel(ctx))
		ended := make(chan error, 1)
		go func() { ended <- g.Run(serving) }()
		err = f(ctx, g)
		stop()
		return errors.Join(err, <-ended)
	})
}

type backfillResultsCommand struct {
	worker
	Output  string `short:"o" placeholder:"FILE" help:"Where the results go; NDJSON when it ends in .ndjson or .jsonl, else CSV. Standard output unless given."`
	Partial bool   `help:"Write what is there, also when not all is."`
	ID      string `arg:"" help:"Id of the backfill, as list shows it."`
}

// Run writes results.
func (c backfillResultsCommand) Run(ctx context.Context, p *program) error {
	far, err := c.remote(p)
	if err != nil {
		return err
	}
	if far != nil {
		return p.untilStopped(ctx, nil, func(ctx context.Context) error {
			return writeOutput(c.Output, p.stdout, func(w io.Writer, asJSON bool) error { return far.results(ctx, c.ID, c.Partial, asJSON, w) })
		})
	}
	return c.work(ctx, p, func(ctx context.Context, g *gateway.Gateway) error {
		return writeResults(ctx, p, g.Lists(), c.ID, c.Output, c.Partial)
	})
}

func writeResults(ctx context.Context, p *program, lists *backfill.Engine, id, path string, partial bool) error {
	r, err := lists.Results(ctx, id, partial)
	if err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	return writeOutput(path, p.stdout, func(w io.Writer, asJSON bool) error { return r.Write(ctx, w, asJSON) })
}

// asNDJSON says whether a file's name asks for NDJSON.
func asNDJSON(path string) bool {
	return strings.HasSuffix(path, ".ndjson") || strings.HasSuffix(path, ".jsonl")
}

// writeOutput writes a file as a whole or not at all; without a path it writes to stdout.
func writeOutput(path string, stdout io.Writer, write func(w io.Writer, asJSON bool) error) (err error) {
	if path == "" {
		return write(stdout, false)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	err = write(f, asNDJSON(path))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// input is a list as the command line names it.
type input struct {
	io.ReadCloser
	size   int64  // 0: not known
	source string // names file and output; empty for standard input
}

// openInput opens a file, or standard input for "-". What it is called for a resumption says nothing to others.
func openInput(path, out string, stdin io.Reader) (input, error) {
	if path == "-" {
		return input{ReadCloser: io.NopCloser(stdin)}, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return input{}, usageError{err}
	}
	info, err := f.Stat()
	if err != nil {
		return input{}, errors.Join(err, f.Close())
	}
	if !info.Mode().IsRegular() {
		return input{ReadCloser: f}, nil
	}
	if same, err := os.Stat(out); err == nil && os.SameFile(info, same) {
		return input{}, errors.Join(usageError{errors.New("the output is the input")}, f.Close())
	}
	from, err1 := filepath.Abs(path)
	to, err2 := filepath.Abs(out)
	if err := errors.Join(err1, err2); err != nil {
		return input{}, errors.Join(err, f.Close())
	}
	// A file that was changed since is another one.
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%t\x00%d\x00%d", from, to, out == "", info.Size(), info.ModTime().UnixNano()))
	return input{f, info.Size(), "file-" + hex.EncodeToString(sum[:16])}, nil
}
