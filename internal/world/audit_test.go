package world

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver, to look at the file from outside

	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
)

// audit looks into the gateway's file from outside, through a connection that can't write. A fault of the audit is one
// of the test, and panics.
type audit struct {
	path   string
	prints *normalize.Fingerprinter
}

func newAudit(folder string, master []byte) *audit {
	key, err := secret.Derive(master, "fingerprint")
	if err != nil {
		panic(err)
	}
	return &audit{path: filepath.Join(folder, "validator-gw.db"), prints: normalize.NewFingerprinter(key)}
}

// count runs a query whose answer is a row of numbers.
func (a *audit) count(query string, args []any, into ...any) {
	db, err := sql.Open("sqlite", "file:"+a.path+"?_pragma=busy_timeout(2000)&_pragma=query_only(1)")
	if err != nil {
		panic(err)
	}
	defer db.Close()
	if err := db.QueryRowContext(context.Background(), query, args...).Scan(into...); err != nil {
		panic(fmt.Sprintf("audit: %v", err))
	}
}

// known says whether there is a review or a verdict of the address.
func (a *audit) known(text string) bool {
	addr, err := normalize.Parse(text)
	if err != nil {
		panic("audit: an address of the plan is none") // its text must not be in a log, nor here
	}
	fp := a.prints.Of(addr)
	var n int
	a.count(`
SELECT (SELECT count(*) FROM reviews WHERE fingerprint = ?1) + (SELECT count(*) FROM verdicts WHERE fingerprint = ?1)`,
		[]any{fp[:]}, &n)
	return n > 0
}

// queue counts the open reviews, those of them that are due or held by a worker, and the dead ones.
func (a *audit) queue() (open, busy, dead int) {
	a.count(`
SELECT count(*), count(*) FILTER (WHERE due_at <= ? OR lease_token <> 0),
       (SELECT count(*) FROM reviews WHERE state = 'dead')
FROM review_queue`, []any{time.Now().UnixMicro()}, &open, &busy, &dead)
	return open, busy, dead
}
