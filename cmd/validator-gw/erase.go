package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"validator-gw/internal/gateway"
	"validator-gw/internal/validate"
)

// maxEraseInput bounds what erase reads from standard input, in bytes: some hundred thousand addresses.
const maxEraseInput = 16 << 20

type eraseCommand struct {
	commonFlags
	RedisMode         *string `placeholder:"MODE" help:"single, sentinel or cluster (VALIDATOR_GW_REDIS_MODE; single)."`
	AllowUnsafeServer bool    `help:"Go on even if the database may lose what it commits (VALIDATOR_GW_ALLOW_UNSAFE_SERVER)."`
	Address           string  `arg:"" help:"The address; better -, which reads addresses from standard input, one a line: others on this machine can read arguments."`
}

// Help is shown by --help.
func (eraseCommand) Help() string {
	return `Removes the reviews, verdicts, cached answers, answers under an Idempotency-Key and rows of lists of an address from the configured stores, ` +
		`and prints how many there were. All addresses are read before anything is erased. Gateways that share the database forget ` +
		`what they hold in memory within half a minute. With SQLite the gateway must be stopped; while it runs, send it ` +
		`DELETE /addresses.`
}

// Run erases.
func (c eraseCommand) Run(ctx context.Context, p *program) error {
	given := serveFlags{commonFlags: c.commonFlags, RedisMode: c.RedisMode, AllowUnsafeServer: c.AllowUnsafeServer}.given()
	cfg, err := loadConfig(modeMigrate, given, p.environ)
	var wrong []error
	if err == nil && cfg.secret == nil {
		wrong = append(wrong, errors.New("no secret: set "+envSecret+" (or "+envSecret+fileSuffix+
			") to that of the gateway, since addresses are found by what is derived from it"))
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
	return p.untilStopped(ctx, nil, func(ctx context.Context) error {
		addresses := []string{c.Address}
		if c.Address == "-" {
			if addresses, err = addressLines(p.stdin, maxEraseInput); err != nil {
				return err
			}
		}
		total, n := validate.Removed{}, 0
		err := gateway.Erase(ctx, cfg.gateway(), cfg.settings, addresses, func(r validate.Removed) error {
			n++
			total = validate.Removed{Reviews: total.Reviews + r.Reviews, Verdicts: total.Verdicts + r.Verdicts, Answers: total.Answers + r.Answers,
				BackfillRows: total.BackfillRows + r.BackfillRows}
			return nil
		}, cfg.logger(p.stderr))
		if n > 0 || err == nil { // what was done before an error is done
			fmt.Fprintf(p.stdout, "erased %d of %d addresses: %d reviews, %d verdicts, %d idempotent answers, %d rows of lists\n",
				n, len(addresses), total.Reviews, total.Verdicts, total.Answers, total.BackfillRows)
		}
		return err
	})
}

// addressLines reads lines without blank ones, of max bytes in all.
func addressLines(r io.Reader, most int64) (lines []string, err error) {
	text, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > most {
		return nil, fmt.Errorf("standard input has more than %d bytes; split it", most)
	}
	s := bufio.NewScanner(bytes.NewReader(text))
	s.Buffer(nil, len(text)+1)
	for s.Scan() {
		if line := s.Bytes(); len(bytes.TrimSpace(line)) > 0 {
			lines = append(lines, string(line))
		}
	}
	return lines, s.Err()
}
