package backfill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
	"validator-gw/internal/verdict"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var prints = normalize.NewFingerprinter([]byte("key of the test"))

// lists knows addresses as the pipeline does, and has one flow.
type lists struct{}

func (lists) Read(raw string) (normalize.Address, error)            { return normalize.Parse(raw) }
func (lists) Fingerprint(a normalize.Address) normalize.Fingerprint { return prints.Of(a) }
func (lists) Former(a normalize.Address) []normalize.Fingerprint    { return prints.Previous(a) }
func (lists) DomainKey(a normalize.Address) int64                   { return prints.DomainKey(a) }
func (lists) Refused(string, string) Answer                         { return Answer{Decision: "reject"} }
func (lists) Fresh(v *verdict.Verdict) bool                         { return time.Now().Before(v.SoftUntil) }
func (lists) Final(_ string, _ normalize.Address, v verdict.Verdict) Answer {
	return Answer{Status: v.Status, Reason: v.Reason, Decision: "so " + string(v.Status)}
}

func (lists) Denied(_ string, a normalize.Address) (Answer, bool) {
	return Answer{Status: verdict.Risky, Reason: verdict.LocalDenylist, Decision: "reject"}, a.Domain() == "denied.com"
}

// world is a store in a bubble, with a loop that answers what is due.
type world struct {
	t     *testing.T
	store *fallback.SQLite

	mu     sync.Mutex
	tuning Tuning
	closed bool
	rate   int // answers a second
	// answer says what becomes of a claim; nil: valid.
	answer func(c fallback.Claim) (verdict.Verdict, *fallback.Postponement)
	asked  map[string]int
	at     []time.Time
}

func bubble(t *testing.T, story func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.db")
	synctest.Test(t, func(t *testing.T) {
		sealer, err := secret.NewSealer(make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		store, err := fallback.OpenSQLite(t.Context(), fallback.SQLiteConfig{Path: path, Sealer: sealer})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		w := &world{t: t, store: store, tuning: Tuning{Rate: 50, Keep: 7 * 24 * time.Hour, MaxRows: 1000}, rate: 100, asked: map[string]int{}}
		ctx, stop := context.WithCancel(t.Context())
		var loop sync.WaitGroup
		loop.Go(func() { w.loop(ctx) })
		story(t, w)
		stop()
		loop.Wait()
	})
}

// loop claims as the real one does, twenty times a second when there is something.
func (w *world) loop(ctx context.Context) {
	const busy = 50 * time.Millisecond
	for pause := busy; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		w.mu.Lock()
		most, closed, answer := w.rate/20, w.closed, w.answer
		w.mu.Unlock()
		if closed || most == 0 {
			continue
		}
		res, err := w.store.Claim(ctx, fallback.ClaimRequest{Max: most, Lease: 30 * time.Second})
		if err != nil {
			if ctx.Err() == nil {
				w.t.Errorf("Claim = %v", err)
			}
			continue
		}
		if pause = busy; len(res.Claims) == 0 {
			pause = min(max(res.Idle, busy), time.Second)
		}
		for _, c := range res.Claims {
			w.mu.Lock()
			w.asked[c.Address.Text()]++
			w.at = append(w.at, time.Now())
			w.mu.Unlock()
			v, p := w.verdict(), (*fallback.Postponement)(nil)
			if answer != nil {
				v, p = answer(c)
			}
			if p != nil {
				err = w.store.Postpone(ctx, c, *p)
			} else {
				err = w.store.Settle(ctx, c, v, []verdict.Attempt{{At: time.Now(), Outcome: verdict.AttemptAnswered, HTTPStatus: 200}})
			}
			if err != nil && !errors.Is(err, fallback.ErrLeaseLost) && ctx.Err() == nil {
				w.t.Errorf("after a check: %v", err)
			}
		}
	}
}

func (w *world) verdict() verdict.Verdict {
	now := time.Now()
	return verdict.Verdict{ID: newID(), Status: verdict.Valid, Reason: verdict.MailboxAccepted, CheckedAt: now,
		SoftUntil: now.Add(24 * time.Hour), HardUntil: now.Add(48 * time.Hour)}
}

// greylist is an answer that asks for another try.
func greylist() *fallback.Postponement {
	return &fallback.Postponement{CheckIn: 10 * time.Minute, Reason: verdict.Greylisted, Cause: verdict.CauseMailbox,
		Trail: []verdict.Attempt{{At: time.Now(), Outcome: verdict.AttemptTransient, HTTPStatus: 200}}}
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) newEngine() *Engine {
	w.t.Helper()
	e, err := New(w.store, lists{}, Config{
		Tuning: func() Tuning { w.mu.Lock(); defer w.mu.Unlock(); return w.tuning },
		Closed: func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.closed },
		Fed:    func() {}, DigestKey: []byte("digests"), NewID: newID, Rand: func() float64 { return 0.5 }})
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

// start runs an engine, which stop ends.
func (w *world) start() (e *Engine, stop func()) {
	e = w.newEngine()
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	return e, func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run = %v, want nil", err)
		}
	}
}

// list is a CSV of n addresses from the first on, of nine domains.
func list(first, n int) string {
	var b strings.Builder
	b.WriteString("email\n")
	for i := first; i < first+n; i++ {
		fmt.Fprintf(&b, "person%d@domain%d.com\n", i, i%9)
	}
	return b.String()
}

func (w *world) load(e *Engine, text string, l List) fallback.Backfill {
	w.t.Helper()
	if l.MaxCredits == 0 {
		l.MaxCredits = -1
	}
	l.Client, l.Flow = "crm", "signup"
	b, err := e.Load(w.t.Context(), strings.NewReader(text), l)
	if err != nil {
		w.t.Fatalf("Load = %v, want no error", err)
	}
	return b
}

// until waits for a state, for a while.
func (w *world) until(e *Engine, id string, limit time.Duration, states ...fallback.BackfillState) fallback.Backfill {
	w.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(max(limit/600, 100*time.Millisecond)) {
		b, err := e.Backfill(w.t.Context(), id)
		if err != nil {
			w.t.Fatal(err)
		}
		if slices.Contains(states, b.State) {
			return b
		}
		if time.Now().After(end) {
			w.t.Fatalf("after %v: %+v, want %v", limit, b, states)
		}
	}
}

func (w *world) calls() (n, most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, times := range w.asked {
		n, most = n+times, max(most, times)
	}
	return n, most
}

func (w *world) results(e *Engine, id string, partial bool) string {
	w.t.Helper()
	r, err := e.Results(w.t.Context(), id, partial)
	if err != nil {
		w.t.Fatalf("Results = %v", err)
	}
	var out bytes.Buffer
	if err := r.Write(w.t.Context(), &out, false); err != nil {
		w.t.Fatalf("Write = %v", err)
	}
	return out.String()
}

func TestAListIsWorkedOff(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		now := time.Now()
		known := verdict.Verdict{ID: newID(), Status: verdict.Invalid, Reason: verdict.NoMX, CheckedAt: now, SoftUntil: now.Add(time.Hour), HardUntil: now.Add(time.Hour)}
		a, _ := normalize.Parse("known@domain1.com")
		if err := w.store.PutVerdicts(t.Context(), []fallback.Stored{{Fingerprint: prints.Of(a), Verdict: known}}); err != nil {
			t.Fatal(err)
		}
		e, stop := w.start()
		defer stop()
		text := "email,name\nAna@Example.com,x\nnobody,y\nknown@domain1.com,\n\"broken\nana@example.com,again\nx@denied.com,\n"
		b := w.load(e, text, List{})
		b = w.until(e, b.ID, time.Minute, fallback.BackfillDone)
		if b.Rows != 6 || b.Distinct != 3 || b.Refused != 1 || b.Unreadable != 1 || b.Known != 2 || b.Credits != 1 || b.Done() != 3 ||
			!cmpBad(b.Bad, fallback.BadRow{Line: 5, Fault: FaultQuotes}) {
			t.Errorf("done = %+v, want six rows, three addresses, one credit", b)
		}
		want := `input,normalized,status,decision,reason,suggestion
Ana@Example.com,Ana@example.com,valid,so valid,mailbox_accepted,
nobody,,invalid,reject,missing_at,
known@domain1.com,known@domain1.com,invalid,so invalid,no_mx,
,,,,bad_quotes,
ana@example.com,ana@example.com,valid,so valid,mailbox_accepted,
x@denied.com,x@denied.com,risky,reject,local_denylist,
`
		got := w.results(e, b.ID, false)
		if !strings.EqualFold(got, want) {
			t.Errorf("results:\n%s\nwant:\n%s", got, want)
		}
		if n, _ := w.calls(); n != 1 {
			t.Errorf("%d calls, want one", n)
		}
		var lines bytes.Buffer
		r, err := e.Results(t.Context(), b.ID, false)
		if err == nil {
			err = r.Write(t.Context(), &lines, true)
		}
		if first, _, _ := strings.Cut(lines.String(), "\n"); err != nil || strings.Count(lines.String(), "\n") != 6 ||
			!strings.Contains(first, `"suggestion":null`) {
			t.Errorf("NDJSON: %v\n%s", err, lines.String())
		}
	})
}

func cmpBad(got []fallback.BadRow, want ...fallback.BadRow) bool { return slices.Equal(got, want) }

// Two replicas work on a list in turns, when one is lost without a word.
func TestALostReplicaIsReplaced(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		lost := w.newEngine()
		b := w.load(lost, list(0, 200), List{})
		for range 5 {
			lost.Step(t.Context()) // and never again, nor does it give anything back
		}
		e, stop := w.start()
		defer stop()
		time.Sleep(lease / 3)
		if now, _ := e.Backfill(t.Context(), b.ID); now.Done() > 100 {
			t.Errorf("%d are done while another holds it", now.Done())
		}
		b = w.until(e, b.ID, 2*time.Minute, fallback.BackfillDone)
		if n, most := w.calls(); n != 200 || most != 1 {
			t.Errorf("%d calls, at most %d for one, want each once", n, most)
		}
		lost.Step(t.Context()) // the lost one comes back
		if len(lost.jobs) != 0 {
			t.Error("the lost replica still believes that it has the list")
		}
	})
}

func TestADryRunSaysWhatItCosts(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		e, stop := w.start()
		defer stop()
		first := w.load(e, list(0, 50), List{})
		w.until(e, first.ID, time.Minute, fallback.BackfillDone)
		before, _ := w.calls()
		text := list(30, 100) + "nobody\nx@denied.com\n"
		plan := w.load(e, text, List{Source: "file", Dry: true})
		plan = w.until(e, plan.ID, time.Minute, fallback.BackfillPlanned)
		if n, _ := w.calls(); n != before {
			t.Errorf("the dry run made %d calls", n-before)
		}
		if plan.PlanKnown != 21 || plan.PlanAsk != 80 || plan.PlanOpen != 0 || plan.Refused != 1 || plan.Distinct != 101 {
			t.Errorf("plan = %+v, want 21 known, 80 to be asked and one refused of 101", plan)
		}
		if got := e.TimeNeeded(plan); got != 1600*time.Millisecond {
			t.Errorf("time needed = %v, want 80 at 50/s", got)
		}
		if again := w.load(e, text, List{Source: "file"}); again.ID != plan.ID || again.State != fallback.BackfillPlanned {
			t.Errorf("the same again = %+v, want the plan", again)
		}
		if _, err := e.Resume(t.Context(), plan.ID, nil); err != nil {
			t.Fatal(err)
		}
		done := w.until(e, plan.ID, time.Minute, fallback.BackfillDone)
		if n, _ := w.calls(); int64(n-before) != plan.PlanAsk || done.Credits != plan.PlanAsk || done.Known != plan.PlanKnown {
			t.Errorf("it cost %d calls and %d credits, want what was planned, %d", n-before, done.Credits, plan.PlanAsk)
		}
	})
}

func TestTheBoundOfCreditsIsAsked(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		e, stop := w.start()
		defer stop()
		b := w.load(e, list(0, 60), List{MaxCredits: 1})
		w.until(e, b.ID, time.Minute, fallback.BackfillStopped)
		if n, _ := w.calls(); n != 1 {
			t.Errorf("%d calls for a bound of one", n)
		}
		none := int64(-1)
		if _, err := e.Resume(t.Context(), b.ID, &none); err != nil {
			t.Fatal(err)
		}
		w.until(e, b.ID, time.Minute, fallback.BackfillDone)
	})
}

func TestAFullQueueIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.store.SetMaxOpen(10)
		w.set(func() { w.rate = 20 })
		e, stop := w.start()
		defer stop()
		b := w.load(e, list(0, 40), List{})
		b = w.until(e, b.ID, time.Minute, fallback.BackfillDone)
		if n, most := w.calls(); n != 40 || most != 1 {
			t.Errorf("%d calls, at most %d for one, want each once", n, most)
		}
	})
}

// slow hands out its text in parts, and waits between them.
type slow struct {
	parts []string
	pause time.Duration
	fail  error
}

func (s *slow) Read(p []byte) (int, error) {
	if len(s.parts) == 0 {
		if s.fail != nil {
			return 0, s.fail
		}
		return 0, io.EOF
	}
	time.Sleep(s.pause)
	n := copy(p, s.parts[0])
	if s.parts[0] = s.parts[0][n:]; s.parts[0] == "" {
		s.parts = s.parts[1:]
	}
	return n, nil
}

func TestInputsThatComeSlowly(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		e, stop := w.start()
		defer stop()
		in := &slow{parts: []string{"email\n", "a@domain1.com\n", "b@domain1.com\n"}, pause: 10 * time.Minute}
		loaded := make(chan error, 1)
		go func() {
			_, err := e.Load(t.Context(), in, List{Source: "slow", Client: "crm", Flow: "signup", MaxCredits: -1})
			loaded <- err
		}()
		time.Sleep(5 * time.Minute)
		_, err := e.Load(t.Context(), strings.NewReader("email\n"), List{Source: "slow", Client: "crm", Flow: "signup", MaxCredits: -1})
		if !errors.Is(err, fallback.ErrBackfillBusy) {
			t.Errorf("Load of what is being loaded = %v, want ErrBackfillBusy", err)
		}
		if err := <-loaded; err != nil {
			t.Errorf("Load over half an hour = %v, want no error", err)
		}
	})
}

func TestInputsThatBreakOff(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.set(func() { w.tuning.MaxRows = 100_000 })
		e, stop := w.start()
		defer stop()
		whole := list(0, fallback.MaxBackfillChunk*2+100)
		cut := whole[:len(whole)*3/4]
		lost := errors.New("connection lost")
		l := List{Source: "file", Client: "crm", Flow: "signup", MaxCredits: -1, Dry: true}
		if _, err := e.Load(t.Context(), io.MultiReader(strings.NewReader(cut), failing{lost}), l); !errors.Is(err, lost) {
			t.Fatalf("Load = %v, want what the input said", err)
		}
		other := strings.Replace(whole, "person7@", "somebody7@", 1)
		if _, err := e.Load(t.Context(), strings.NewReader(other), l); !errors.Is(err, ErrChanged) {
			t.Errorf("Load of another input = %v, want ErrChanged", err)
		}
		if _, err := e.Load(t.Context(), strings.NewReader("email\nx@domain1.com\n"), l); !errors.Is(err, ErrChanged) {
			t.Errorf("Load of a shorter input = %v, want ErrChanged", err)
		}
		terms := l
		terms.Column = "mail"
		if _, err := e.Load(t.Context(), strings.NewReader(whole), terms); !errors.Is(err, fallback.ErrBackfillTerms) {
			t.Errorf("Load in another way = %v, want ErrBackfillTerms", err)
		}
		b, err := e.Load(t.Context(), strings.NewReader(whole), l)
		if err != nil {
			t.Fatal(err)
		}
		if b.Rows != fallback.MaxBackfillChunk*2+100 {
			t.Errorf("%d rows, want all of them, each once", b.Rows)
		}
		list, err := e.Backfills(t.Context(), "", "", 10)
		if err != nil || len(list) != 1 {
			t.Errorf("%d backfills, %v, want one", len(list), err)
		}
		// Nobody can come again for an input without a name.
		l.Source = ""
		if _, err := e.Load(t.Context(), failing{lost}, l); !errors.Is(err, lost) {
			t.Errorf("Load = %v, want what the input said", err)
		}
		list, err = e.Backfills(t.Context(), "", "", 1)
		if err != nil || len(list) != 1 {
			t.Fatal(err)
		}
		w.until(e, list[0].ID, time.Minute, fallback.BackfillCancelled)
	})
}

func TestInputsThatAreTooLong(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		e := w.newEngine()
		_, err := e.Load(t.Context(), strings.NewReader(list(0, 1001)), List{Client: "crm", Flow: "signup", Source: "x", MaxCredits: -1})
		if !errors.Is(err, ErrTooLong) {
			t.Errorf("Load = %v, want ErrTooLong", err)
		}
		if b := w.load(e, list(0, 1000), List{}); b.Rows != 1000 {
			t.Errorf("%d rows, want as many as are allowed", b.Rows)
		}
	})
}

func TestBilled(t *testing.T) {
	t.Parallel()
	at := func(s int, outcome string, status int) verdict.Attempt {
		return verdict.Attempt{At: time.Unix(int64(s), 0), Outcome: outcome, HTTPStatus: status}
	}
	for _, c := range []struct {
		trail []verdict.Attempt
		want  int
	}{
		{nil, 0},
		{[]verdict.Attempt{at(1, verdict.AttemptAnswered, 200)}, 1},
		{[]verdict.Attempt{at(1, verdict.AttemptNotSent, 0), at(2, verdict.AttemptThrottled, 429), at(3, verdict.AttemptFault, 503),
			at(4, verdict.AttemptQuota, 402), at(5, verdict.AttemptAuth, 401), at(6, verdict.AttemptRefused, 400)}, 0},
		{[]verdict.Attempt{at(1, verdict.AttemptTransient, 200), at(2, verdict.AttemptTimeout, 0), at(3, verdict.AttemptRefused, 451),
			at(4, verdict.AttemptNetwork, 0), at(5, verdict.AttemptCancelled, 0)}, 5},
		{[]verdict.Attempt{at(1, verdict.AttemptLate, 0), at(1, verdict.AttemptAnswered, 200)}, 1},
	} {
		if got := billed(c.trail); got != c.want {
			t.Errorf("billed(%+v) = %d, want %d", c.trail, got, c.want)
		}
	}
}
