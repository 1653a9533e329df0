package fallback_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"validator-gw/internal/fallback"
	"validator-gw/internal/fallback/conformance"
	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// fault is what the wire does to a message of the client.
type fault int

const (
	pass      fault = iota
	loseReply       // the server gets it, its reply is lost and the connection with it
	loseQuery       // the server never gets it
	hang            // neither a message nor a reply gets through any more
)

// wire is a TCP proxy before Postgres that does what each next message holding mark is told.
type wire struct {
	mark  []byte
	met   chan fault // gets each fault as it is met; nil tells nobody
	mu    sync.Mutex
	next  []fault
	conns []net.Conn
	l     net.Listener
}

// cut ends all connections and takes no new ones.
func (w *wire) cut() {
	w.l.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		c.Close()
	}
}

func (w *wire) plan(faults ...fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = faults
}

func (w *wire) fault(message []byte) fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !bytes.Contains(message, w.mark) || len(w.next) == 0 {
		return pass
	}
	f := w.next[0]
	w.next = w.next[1:]
	if w.met != nil {
		w.met <- f
	}
	return f
}

// through returns the URL of the database behind the wire.
func (w *wire) through(t *testing.T, database string) string {
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	target := u.Host
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.l = l
	var all sync.WaitGroup
	t.Cleanup(func() { w.cut(); all.Wait() })
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			w.mu.Lock()
			w.conns = append(w.conns, client)
			w.mu.Unlock()
			all.Go(func() { w.carry(client, target, &all) })
		}
	})
	u.Host = l.Addr().String()
	return u.String()
}

func (w *wire) carry(client net.Conn, target string, all *sync.WaitGroup) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	replies := make(chan fault, 1) // what to do with the next reply
	all.Go(func() {
		defer client.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if err != nil {
				return
			}
			select {
			case <-replies:
				return // it was executed and committed, and no one hears of it
			default:
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		switch w.fault(buf[:n]) {
		case loseReply:
			replies <- loseReply
		case loseQuery:
			return
		case hang:
			_, _ = io.Copy(io.Discard, client)
			return
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

func testEntry(t *testing.T, client string) fallback.Entry {
	a, err := normalize.Restore("planted@domain.example")
	if err != nil {
		t.Fatal(err)
	}
	return fallback.Entry{
		ID: uuid.Must(uuid.NewV7()).String(), Fingerprint: normalize.Fingerprint{1}, DomainKey: 1, Address: a,
		Reason: verdict.MailboxTempRejected, Cause: verdict.CauseMailbox, Watcher: fallback.Watcher{Client: client},
		Trail: []verdict.Attempt{{Outcome: "temporary"}},
	}
}

func TestRecordWithALostReply(t *testing.T) {
	t.Parallel()
	const mark = "cut-here"
	for _, c := range []struct {
		name    string
		faults  []fault
		want    error
		written bool
	}{
		{"reply lost once", []fault{loseReply}, nil, true},
		{"query lost once", []fault{loseQuery}, nil, true},
		{"reply lost twice", []fault{loseReply, loseReply}, fallback.ErrUnknownCommit, true},
		{"query lost twice", []fault{loseQuery, loseQuery}, fallback.ErrUnknownCommit, false},
		{"reply lost, then query lost", []fault{loseReply, loseQuery}, fallback.ErrUnknownCommit, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			database := migrated.Database(t)
			w := &wire{mark: []byte(mark)}
			s := openPostgres(t, w.through(t, database), conformance.Sealer(0))
			e := testEntry(t, mark)
			w.plan(c.faults...)
			got, err := s.Record(t.Context(), e)
			if !errors.Is(err, c.want) {
				t.Fatalf("Record = %v, want %v", err, c.want)
			}
			if err == nil && (got.ID != e.ID || len(got.Trail) != 1) {
				t.Errorf("Record = id %s with %d trail entries, want %s with 1: nothing is appended twice",
					got.ID, len(got.Trail), e.ID)
			}
			w.plan()
			r, err := s.Review(t.Context(), e.ID)
			if c.written != (err == nil) {
				t.Fatalf("Review = %v, want it found: %t", err, c.written)
			}
			if !c.written {
				return
			}
			if len(r.Trail) != 1 {
				t.Errorf("trail has %d entries, want 1", len(r.Trail))
			}
			res, err := s.Claim(t.Context(), fallback.ClaimRequest{Max: 5, Lease: time.Minute})
			if err != nil || len(res.Claims) != 1 || res.Claims[0].Attempts != 1 {
				t.Errorf("Claim = %+v, %v, want the one row with its answer counted once", res.Claims, err)
			}
		})
	}
}

func TestRecordOfASettledReviewWhoseReplyWasLost(t *testing.T) {
	t.Parallel()
	// The first upsert was committed, its reply lost, and the review settled before the second: the second finds
	// the id taken. That is one more way in which the review was recorded.
	const mark = "cut-here"
	database := migrated.Database(t)
	s := openPostgres(t, database, conformance.Sealer(0))
	e := testEntry(t, mark)
	if _, err := s.Record(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	v := verdict.Verdict{ID: e.ID, Status: verdict.Valid, Reason: verdict.MailboxAccepted, CheckedAt: time.Now()}
	if _, _, err := s.SettleOpen(t.Context(), e.Fingerprint, v, nil); err != nil {
		t.Fatal(err)
	}
	w := &wire{mark: []byte(mark)}
	behind := openPostgres(t, w.through(t, database), conformance.Sealer(0))
	w.plan(loseQuery)
	r, err := behind.Record(t.Context(), e)
	if err != nil || r.ID != e.ID || r.State != fallback.Settled {
		t.Errorf("Record = %s %s, %v, want the settled review", r.ID, r.State, err)
	}
}

func TestRecordOnAHungServerKeepsItsTime(t *testing.T) {
	t.Parallel()
	const mark = "cut-here"
	w := &wire{mark: []byte(mark)}
	s := openPostgres(t, w.through(t, migrated.Database(t)), conformance.Sealer(0))
	w.plan(hang)
	ctx, cancel := context.WithTimeout(t.Context(), 120*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := s.Record(ctx, testEntry(t, mark))
	if !errors.Is(err, fallback.ErrUnknownCommit) {
		t.Errorf("Record = %v, want ErrUnknownCommit", err)
	}
	if strings.Contains(err.Error(), "planted") {
		t.Error("the error holds the address")
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("Record took %v, want about 120ms", took)
	}
}

func TestRecordWithoutAServerIsCertain(t *testing.T) {
	t.Parallel()
	w := &wire{mark: []byte("cut-here")}
	s := openPostgres(t, w.through(t, migrated.Database(t)), conformance.Sealer(0))
	w.cut()
	// Each connection that the pool had may take one that is sent into the cut; once it has none, nothing is sent.
	for range 64 { // more than it may have
		if _, err := s.Record(t.Context(), testEntry(t, "forms")); !errors.Is(err, fallback.ErrUnknownCommit) {
			break
		}
	}
	for range 2 {
		_, err := s.Record(t.Context(), testEntry(t, "forms"))
		if err == nil || errors.Is(err, fallback.ErrUnknownCommit) {
			t.Errorf("Record = %v, want an error that leaves no doubt", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Record(ctx, testEntry(t, "forms")); err == nil || errors.Is(err, fallback.ErrUnknownCommit) {
		t.Errorf("Record with its time over = %v, want an error that leaves no doubt", err)
	}
}

func TestPostgresComesBackAfterItsConnectionsWereCut(t *testing.T) {
	t.Parallel()
	database := migrated.Database(t)
	s := openPostgres(t, database, conformance.Sealer(0))
	for i := range 3 {
		e := testEntry(t, "forms")
		e.Fingerprint = normalize.Fingerprint{byte(i)}
		if _, err := s.Record(t.Context(), e); err != nil {
			t.Fatalf("Record = %v, want no error", err)
		}
		exec(t, database, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	}
}

func TestPostgresProbesByKeyWhateverItsStatisticsSay(t *testing.T) {
	t.Parallel()
	// Plans are made while the tables are empty, then rows come by the thousand with no ANALYZE in between.
	database := migrated.Database(t)
	exec(t, database, `ALTER TABLE review_queue SET (autovacuum_enabled = off)`, `ALTER TABLE reviews SET (autovacuum_enabled = off)`)
	s, err := fallback.OpenPostgres(t.Context(), fallback.PostgresConfig{
		URL: secretText(database), Sealer: conformance.Sealer(0), AcquireTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	work := func() {
		for i := range 8 { // a generic plan is considered from the sixth on
			e := testEntry(t, "forms")
			e.Fingerprint = normalize.Fingerprint{byte(i), 1}
			if _, err := s.Record(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Lookup(t.Context(), e.Fingerprint); err != nil {
				t.Fatal(err)
			}
			res, err := s.Claim(t.Context(), fallback.ClaimRequest{Max: 3, Lease: time.Hour})
			if err != nil || len(res.Claims) == 0 || len(res.Claims) > 3 {
				t.Fatalf("Claim = %d rows, %v, want 1 to 3", len(res.Claims), err)
			}
			c := res.Claims[0]
			v := verdict.Verdict{ID: c.ReviewID, Status: verdict.Valid, Reason: verdict.MailboxAccepted,
				CheckedAt: time.Now(), HardUntil: time.Now().Add(time.Hour)}
			if err := s.Settle(t.Context(), c, v, nil); err != nil {
				t.Fatal(err)
			}
			for _, c := range res.Claims[1:] {
				if err := s.Postpone(t.Context(), c, fallback.Postponement{Cause: verdict.CauseUpstream}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	work()
	insertReviews(t, database, 5000, 50)
	work()
	s.Close()

	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	for table, most := range map[string]int{
		"reviews": 0, "review_watchers": 0, "verdicts": 0,
		"review_queue": 1, // counted at the start, while it was empty
	} {
		var scans int
		err := conn.QueryRow(t.Context(), `SELECT seq_scan FROM pg_stat_user_tables WHERE relname = $1`, table).Scan(&scans)
		if err != nil {
			t.Fatal(err)
		}
		if scans > most {
			t.Errorf("%s was scanned %d times, want at most %d", table, scans, most)
		}
	}
}
