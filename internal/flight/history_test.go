package flight_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"validator-gw/internal/admission"
	"validator-gw/internal/cache"
	"validator-gw/internal/fallback"
	"validator-gw/internal/flight"
	"validator-gw/internal/normalize"
	"validator-gw/internal/redisconn"
	"validator-gw/internal/secret"
	"validator-gw/internal/testenv"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
)

var (
	historiesFlag = flag.Int("flight.histories", 150, "how many histories to play")
	seedFlag      = flag.Uint64("flight.seed", 0, "their seed; 0 draws one")
	onlyFlag      = flag.Int("flight.only", -1, "play this one of the seed's histories, again and again")
	atOnceFlag    = flag.Int("flight.atonce", 50, "how many at once; the fewer, the more are well on a busy machine")
)

const (
	// lateTimeout is how long a flight outlives its callers: some works are longer.
	lateTimeout = 2 * time.Second
	// stillness is what a process, or Redis, may stand still before a history is no longer held to what is promised while all
	// is well: the renewal of a lease waits that long for Redis.
	stillness = 200 * time.Millisecond
	// endless is how long a caller is waited for. A form's patience is less than a second; this is for a test that would hang.
	endless = time.Minute
	// everyBlow histories, Redis itself is hit, and all that are in play with it.
	everyBlow = 250
	// apart is the time between two begins: a crowd of fleets that connect at once would measure the machine.
	apart = 15 * time.Millisecond
	// hang is how long Redis hangs when it does.
	hang = 500 * time.Millisecond
)

// ground is what the histories share: one Redis, and the clocks.
type ground struct {
	t      *testing.T
	server *testenv.Server
	redis  string
	client *redis.Client
	dir    string
	lists  *normalize.Lists
	prints *normalize.Fingerprinter
	blows  atomic.Int64 // on Redis as a whole; odd while one is under way
	played atomic.Int64
	still  stillnesses
}

// TestHistories plays histories of one key each and holds them to the rules of history: three processes with all that a
// check goes through in production, but for the upstream and the store, each with a Redis at the end of a bad wire. A seed
// and a number give the plan and not the order of what happens at once: -flight.only plays one plan as often as one likes.
func TestHistories(t *testing.T) {
	t.Parallel()
	seed := cmp.Or(*seedFlag, uint64(time.Now().UnixNano()))
	t.Logf("seed %d", seed)
	server := testenv.RedisServer(t)
	u, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	lists, err := normalize.NewLists(normalize.Own{})
	if err != nil {
		t.Fatal(err)
	}
	o, err := redis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	g := &ground{t: t, server: server, redis: u.Host, client: redis.NewClient(o), dir: t.TempDir(), lists: lists,
		prints: normalize.NewFingerprinter([]byte("key of the test"))}
	defer g.client.Close()
	watching, stop := context.WithCancel(t.Context())
	var watch, all sync.WaitGroup
	watch.Go(func() { g.still.watch(watching) })
	defer watch.Wait()
	defer stop()
	began, sum := time.Now(), newTotals()
	places := make(chan struct{}, max(*atOnceFlag, 1))
	pace := time.NewTicker(apart)
	defer pace.Stop()
	for i := range *historiesFlag {
		toBlow := everyBlow/2 - i%everyBlow
		if toBlow == 0 {
			g.blow(seed + uint64(i/everyBlow))
		}
		n := i
		if *onlyFlag >= 0 {
			n = *onlyFlag
		}
		<-pace.C
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			p := drawPlan(rand.New(rand.NewPCG(seed, uint64(n))))
			if toBlow > 0 && toBlow <= *atOnceFlag {
				p.lookUp = min(p.lookUp, 60*time.Millisecond) // as in production: Redis will hang
			}
			h, hit := g.play(p, rand.New(rand.NewPCG(seed, ^uint64(n))))
			sum.add(p, h, hit)
			if found := h.check(); len(found) > 0 {
				t.Errorf("seed %d, history %d (%v): %v%v", seed, n, p, found, h)
			}
		})
	}
	all.Wait()
	t.Logf("seed %d, %d histories in %v\n%v", seed, *historiesFlag, time.Since(began).Round(time.Second), sum)
}

// blow hits Redis itself, and with it all histories of the moment.
func (g *ground) blow(n uint64) {
	g.blows.Add(1)
	defer g.blows.Add(1)
	switch n % 3 {
	case 0:
		g.server.Kill()
		g.server.Start()
	case 1:
		if err := g.client.FlushAll(g.t.Context()).Err(); err != nil {
			g.t.Error(err)
		}
	case 2: // it hangs for longer than anyone asks
		if err := g.client.Do(g.t.Context(), "CLIENT", "PAUSE", hang.Milliseconds(), "ALL").Err(); err != nil {
			g.t.Error(err)
		}
		<-time.After(hang)
	}
}

// fleet is three processes, and what happens to one key in them.
type fleet struct {
	plan      plan
	began     time.Time
	addr      string
	rows      rows
	processes [replicas]*process

	mu      sync.Mutex
	history history
}

// process is one of them, from its connection to Redis up.
type process struct {
	wire    *wire
	conn    *redisconn.Conn
	cache   *cache.Cache
	service *validate.Service
	dead    chan struct{}
	stop    func()
}

// play plays one history, and says whether Redis was hit meanwhile.
func (g *ground) play(p plan, r *rand.Rand) (history, bool) {
	blows := g.blows.Load()
	n := g.played.Add(1)
	f := &fleet{plan: p, addr: fmt.Sprintf("key%d@example.com", n), began: time.Now()}
	for i := range f.processes {
		f.processes[i] = g.start(f, i, filepath.Join(g.dir, fmt.Sprintf("%d.%d", n, i)), rand.New(rand.NewPCG(r.Uint64(), r.Uint64())))
	}
	f.began = time.Now()
	var side sync.WaitGroup
	over := make(chan struct{})
	at := func(when time.Duration, do func()) {
		side.Go(func() {
			t := time.NewTimer(when)
			defer t.Stop()
			select {
			case <-t.C:
				do()
			case <-over:
			}
		})
	}
	if p.dies >= 0 {
		at(p.diesAt, func() { f.kill(p.dies) })
	}
	addr, err := normalize.Rules{}.Parse(f.addr)
	if err != nil {
		g.t.Error(err)
	}
	fp := g.prints.Of(addr)
	for _, when := range p.forgets {
		at(when, func() { _ = g.client.Del(g.t.Context(), g.keys(fp)...).Err() })
	}
	f.ask(fp, addr)
	close(over)
	side.Wait()
	for _, q := range f.processes {
		q.stop()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	h, hit := f.history, blows%2 == 1 || g.blows.Load() != blows
	h.well = !hit && p.lookUp == patient && (p.trouble == none || p.trouble == death || p.trouble == shelf) && !g.still.since(f.began)
	for _, q := range f.processes {
		h.well = h.well && q.wire.prompt(stillness)
	}
	return h, hit
}

func (g *ground) keys(fp normalize.Fingerprint) []string {
	value := "ev1:k:" + fp.String()
	return []string{value, "lease:{" + value + "}"}
}

// ask lets everyone come at their times, and returns once all have what they came for.
func (f *fleet) ask(fp normalize.Fingerprint, addr normalize.Address) {
	f.history.calls = make([]call, len(f.plan.calls))
	var callers sync.WaitGroup
	for i, v := range f.plan.calls {
		f.history.calls[i] = call{process: v.process, patience: v.patience}
		callers.Go(func() { f.visit(i, v, fp, addr) })
	}
	answered := make(chan struct{})
	go func() {
		callers.Wait()
		close(answered)
	}()
	late := time.NewTimer(endless)
	defer late.Stop()
	select {
	case <-answered:
	case <-late.C:
	}
}

func (f *fleet) visit(i int, v visit, fp normalize.Fingerprint, addr normalize.Address) {
	q := f.processes[v.process]
	t := time.NewTimer(v.at - time.Since(f.began))
	defer t.Stop()
	c := call{process: v.process, patience: v.patience}
	select {
	case <-t.C:
	case <-q.dead:
		f.note(i, c, true)
		return
	}
	c.from = time.Since(f.began)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if v.loop {
			ctx, cancel := context.WithTimeout(context.Background(), v.patience)
			defer cancel()
			out := q.service.Recheck(ctx, fallback.Claim{ReviewID: uuid.Must(uuid.NewV7()).String(), Fingerprint: fp, Address: addr})
			c.verdict, c.of = out.Final(), out.Verdict.Provider
			return
		}
		a, err := q.service.Validate(context.Background(), validate.Request{Raw: f.addr, Client: "c", Budget: v.patience})
		c.err, c.verdict, c.of = err != nil, err == nil && a.Status != verdict.NeedsReview, a.Provider
	}()
	select {
	case <-done:
		c.to = time.Since(f.began)
		f.note(i, c, false)
	case <-q.dead:
		f.note(i, call{process: v.process, from: c.from, patience: v.patience}, true)
	}
}

// note writes what became of a caller; with a dead process it is gone.
func (f *fleet) note(i int, c call, gone bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c.gone = gone || f.history.died[c.process] > 0
	f.history.calls[i] = c
}

// kill ends a process as SIGKILL would: its traffic, its work and its callers end, and nothing of what it does after is seen.
func (f *fleet) kill(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.processes[i]
	q.wire.die()
	now := time.Since(f.began)
	f.history.died[i] = now
	close(q.dead)
	for n, w := range f.history.works {
		if w.process == i && w.to == 0 {
			f.history.works[n].to, f.history.works[n].end = now, died
		}
	}
}

// start makes one process out of the parts that production has, but for the upstream and the store.
func (g *ground) start(f *fleet, i int, socket string, r *rand.Rand) *process {
	q := &process{dead: make(chan struct{})}
	fail := func(err error) {
		if err != nil {
			g.t.Error(err)
		}
	}
	var err error
	q.wire, err = newWire(socket, g.redis, f.began, r, f.plan.fates(i))
	fail(err)
	q.conn, err = redisconn.Open(redisconn.Config{URL: secret.Text("unix://" + socket + "?db=0"), LookUp: f.plan.lookUp})
	fail(err)
	shared := cache.NewRedis(q.conn, "k", "")
	tuning := cache.DefaultTuning()
	tuning.MarkerMin, tuning.MarkerMax = 200*time.Millisecond, 600*time.Millisecond // so that it is asked again within a history
	d := door{rows: &f.rows, state: func() (bool, bool) { return f.storeState(i) }}
	q.cache, err = cache.New(d, cache.Config{Redis: shared, Tuning: func() cache.Tuning { return tuning }, Rand: rand.Float64})
	fail(err)
	base, cut := context.WithCancel(context.Background())
	q.service, err = validate.New(base, g.prints, q.cache, d, upstream{f, i},
		admission.NewGate(func() admission.Limits { return admission.Limits{Concurrency: 512} }), validate.Config{
			Flow:        func(string) (validate.Flow, bool) { return validate.Flow{Budget: validate.MaxBudget}, true },
			Background:  func() validate.BackgroundPlan { return validate.BackgroundPlan{Budget: 1500 * time.Millisecond} },
			Address:     func() validate.AddressPlan { return validate.AddressPlan{Domains: g.lists} },
			LateTimeout: func() time.Duration { return lateTimeout },
			Open:        func([]byte) (string, error) { return "", errUnused },
			Leases:      flight.NewLeases(q.conn, shared.Prefix()),
			NewID:       func() string { return uuid.Must(uuid.NewV7()).String() },
			Rand:        rand.Float64,
		})
	fail(err)
	running, end := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { fail(q.cache.Run(running)) })
	q.stop = func() {
		if !f.plan.drain || f.isDead(i) {
			cut()
		}
		ctx, cancel := context.WithTimeout(context.Background(), endless)
		defer cancel()
		fail(q.service.Close(ctx))
		cut()
		end()
		run.Wait()
		q.wire.ending()
		_ = q.conn.Close()
		q.cache.Close()
		q.wire.close()
	}
	return q
}

func (f *fleet) isDead(i int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.history.died[i] > 0
}

// storeState says how the store is for a process: for a dead one it is away.
func (f *fleet) storeState(i int) (away, hangs bool) {
	if f.isDead(i) {
		return true, false
	}
	if f.plan.has(shelf) && f.plan.hit[i] && f.plan.spell(time.Since(f.began)) && rand.Float64() < f.plan.odds {
		away = rand.IntN(2) == 0
		return away, !away
	}
	return false, false
}

// upstream is what the processes ask. It does what the plan says, and writes down when.
type upstream struct {
	f *fleet
	i int
}

func (u upstream) Check(ctx context.Context, _ normalize.Address, _ verdict.Plan) verdict.Outcome {
	n, s := u.begin(ctx)
	t := time.NewTimer(s.takes)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		s.end = hung
	case <-u.f.processes[u.i].dead:
		<-ctx.Done() // until the test ends what is left of the process
		s.end = hung
	}
	name := u.finish(n, s.end)
	switch s.end {
	case succeeded:
		return verdict.Outcome{Verdict: verdict.Verdict{Status: verdict.Valid, Reason: verdict.MailboxAccepted, Reasons: []verdict.Reason{verdict.MailboxAccepted},
			Provider: name, Attempts: 1, CheckedAt: time.Now()}, Sent: 1}
	case panicked:
		panic(errUnused)
	case refused:
		return without(verdict.CircuitOpen, verdict.CauseUpstream, 0)
	case failed:
		if s.side {
			return without(verdict.MailboxTempRejected, verdict.CauseMailbox, 1)
		}
		return without(verdict.UpstreamError, verdict.CauseUpstream, 1)
	}
	return without(verdict.UpstreamTimeout, verdict.CauseUpstream, 1)
}

// without is an outcome without a verdict.
func without(why verdict.Reason, side verdict.Cause, sent int) verdict.Outcome {
	return verdict.Outcome{Verdict: verdict.Verdict{Status: verdict.NeedsReview, Reason: why, Reasons: []verdict.Reason{why}}, Cause: side, Sent: sent}
}

// begin writes down that a work began. What the dead begin is not seen, and with an ended context nothing is sent.
func (u upstream) begin(ctx context.Context) (n int, s script) {
	u.f.mu.Lock()
	defer u.f.mu.Unlock()
	if u.f.history.died[u.i] > 0 || ctx.Err() != nil {
		return -1, script{takes: time.Hour, end: hung}
	}
	n = len(u.f.history.works)
	u.f.history.works = append(u.f.history.works, work{name: fmt.Sprintf("%s#%d", u.f.addr, n), process: u.i, from: time.Since(u.f.began)})
	return n, u.f.plan.works[n%len(u.f.plan.works)]
}

func (u upstream) finish(n int, e end) (name string) {
	u.f.mu.Lock()
	defer u.f.mu.Unlock()
	if n < 0 {
		return ""
	}
	w := &u.f.history.works[n]
	if u.f.history.died[u.i] == 0 {
		w.to, w.end = time.Since(u.f.began), e
	}
	return w.name
}

// stillnesses are when this process did not come to run.
type stillnesses struct {
	mu   sync.Mutex
	last time.Time // the end of the latest
	n    int
}

func (s *stillnesses) watch(ctx context.Context) {
	const every = 20 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	before := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		if now.Sub(before) > stillness {
			s.mu.Lock()
			s.last, s.n = now, s.n+1
			s.mu.Unlock()
		}
		before = now
	}
}

func (s *stillnesses) since(t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.After(t)
}

// totals counts what was played.
type totals struct {
	mu   sync.Mutex
	rows map[trouble]*counts
}

// counts are those of the histories with one kind of trouble.
type counts struct {
	histories, well, hit              int
	works                             [6]int // histories by the number of works, the last for all above
	again                             int    // histories with more than one success
	calls, verdicts, errs, gone, late int
}

func newTotals() *totals { return &totals{rows: map[trouble]*counts{}} }

func (s *totals) add(p plan, h history, hit bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.rows[p.trouble]
	if c == nil {
		c = &counts{}
		s.rows[p.trouble] = c
	}
	c.histories++
	c.works[min(len(h.works), len(c.works)-1)]++
	if h.well {
		c.well++
	}
	if hit {
		c.hit++
	}
	if n := len(slices.DeleteFunc(slices.Clone(h.works), func(w work) bool { return w.end != succeeded })); n > 1 {
		c.again++
	}
	for _, v := range h.calls {
		c.calls++
		switch {
		case v.gone:
			c.gone++
		case v.verdict:
			c.verdicts++
		case v.err:
			c.errs++
		}
		if v.to-v.from > v.patience {
			c.late++
		}
	}
}

func (s *totals) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-8s %9s %6s %10s  %-26s %6s %7s %9s %7s %6s %5s\n", "trouble", "histories", "well", "Redis hit", "works 0 1 2 3 4 5+", "again",
		"calls", "verdicts", "errors", "died", "late")
	for _, k := range troubles {
		if c := s.rows[k]; c != nil {
			works := strings.Trim(fmt.Sprint(c.works), "[]")
			fmt.Fprintf(&b, "%-8s %9d %6d %10d  %-26s %6d %7d %9d %7d %6d %5d\n", k, c.histories, c.well, c.hit, works, c.again, c.calls, c.verdicts, c.errs, c.gone, c.late)
		}
	}
	return b.String()
}
