package callback

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/fallback"
)

// Errors that Config's functions return.
var (
	// ErrGone: the review of a message is not kept any more, so there is nothing to tell.
	ErrGone = errors.New("review is gone")
	// ErrNotConfigured: no callback has this name any more.
	ErrNotConfigured = errors.New("callback is not configured any more")
)

// outbox is the store's part; see package fallback.
type outbox interface {
	ClaimNotices(ctx context.Context, room map[string]int, lease time.Duration) ([]fallback.Notice, error)
	EndNotice(ctx context.Context, n fallback.Notice, delivered bool, why string) error
	DelayNotice(ctx context.Context, n fallback.Notice, in time.Duration, why string) error
}

// Config is what New needs besides the outbox. All functions must be safe for concurrent use.
type Config struct {
	// Names returns the configured callbacks. Messages for others wait until they are configured again.
	Names func() []string
	// Target returns the callback of a name, at each delivery. Another error than ErrNotConfigured is logged, so it holds no
	// secret.
	Target func(name string) (Target, error)
	// Data returns what a message says, as JSON; ErrGone when there is nothing to say any more.
	Data func(ctx context.Context, n fallback.Notice) ([]byte, error)
	// Rand returns numbers in [0, 1).
	Rand func() float64
	Log  *slog.Logger
	// Registerer gets the metrics; nil keeps them unseen.
	Registerer prometheus.Registerer
	// Transport carries deliveries in tests; nil takes our own, which refuses private targets.
	Transport http.RoundTripper
}

// Intervals and bounds of the delivery.
const (
	pollEvery = 2 * time.Second
	// restAfter is the least time between two looks at the outbox: settles come in crowds.
	restAfter = 50 * time.Millisecond
	// perCallback bounds the deliveries of one callback under way in this process. Each has its own, so that a target that
	// hangs holds up nobody else's messages.
	perCallback = 4
	// lease is longer than a delivery with its reads and writes can take.
	lease = time.Minute
	// giveUp is how long a message is tried.
	giveUp = 24 * time.Hour
	// stopTime is how long what is on the wire may go on at a stop.
	stopTime = 3 * time.Second
	// storeTimeout bounds a read or write of the store.
	storeTimeout = 5 * time.Second
)

// pauses are the waits after the failed deliveries; the last one repeats until a day is over. They follow the
// specification's advice (seconds at first, then hours), each up to a fifth longer so that many do not come at once.
var pauses = []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 4 * time.Hour}

// pauseAfter is the wait after a failed delivery. The last one is at the end of the day.
func pauseAfter(n fallback.Notice, rand func() float64) time.Duration {
	d := pauses[min(max(n.Attempts, 1), len(pauses))-1]
	d += time.Duration(0.2 * rand() * float64(d))
	return min(d, max(giveUp-n.Now.Sub(n.RecordedAt), pauses[0]))
}

// Sender delivers what is in the outbox. Make one with New, start it with Run. Several senders, in one process or many, share
// the work.
type Sender struct {
	cfg             Config
	box             outbox
	public, private *http.Client
	metrics         *metrics
	wake            chan struct{}
	work            sync.WaitGroup
	unread          bool // the outbox could not be read; of Run's goroutine

	mu      sync.Mutex
	busy    map[string]int  // deliveries under way
	more    map[string]bool // the last claim may have left some
	failing map[string]bool // the last delivery failed
}

// New returns a sender. It does no I/O.
func New(box outbox, cfg Config) (*Sender, error) {
	if cfg.Names == nil || cfg.Target == nil || cfg.Data == nil || cfg.Rand == nil {
		return nil, errors.New("callback: Names, Target, Data and Rand are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Sender{cfg: cfg, box: box, public: newClient(false, nil), private: newClient(true, nil), metrics: newMetrics(cfg.Registerer),
		wake: make(chan struct{}, 1), busy: map[string]int{}, more: map[string]bool{}, failing: map[string]bool{}}
	if cfg.Transport != nil {
		s.public.Transport, s.private.Transport = cfg.Transport, cfg.Transport
	}
	return s, nil
}

// Wake tells the sender that this process has put something into the outbox. It never blocks. Safe for concurrent use.
func (s *Sender) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run delivers until ctx ends, lets what is on the wire be finished, for at most three seconds, gives the rest back and
// returns nil.
func (s *Sender) Run(ctx context.Context) error {
	wire, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	defer s.public.CloseIdleConnections()
	defer s.private.CloseIdleConnections()
	for ctx.Err() == nil {
		err := s.step(ctx, wire)
		switch {
		case ctx.Err() != nil:
		case err != nil && !s.unread:
			s.unread = true
			s.cfg.Log.ErrorContext(ctx, "outbox of callbacks can't be read now; it is tried again", "error", err)
		case err == nil && s.unread:
			s.unread = false
			s.cfg.Log.InfoContext(ctx, "outbox of callbacks is read again")
		}
		pause(ctx, restAfter, nil)
		pause(ctx, pollEvery+time.Duration(s.cfg.Rand()*float64(pollEvery)/4), s.wake)
	}
	stop := time.AfterFunc(stopTime, cut)
	defer stop.Stop()
	s.work.Wait()
	return nil
}

func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	case <-ctx.Done():
	}
}

// step claims what is due, as far as there is room, and begins its deliveries, which end with wire at the latest.
func (s *Sender) step(ctx, wire context.Context) error {
	room := map[string]int{}
	s.mu.Lock()
	for _, name := range s.cfg.Names() {
		if n := perCallback - s.busy[name]; n > 0 {
			room[name] = n
		}
	}
	s.mu.Unlock()
	if len(room) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	batch, err := s.box.ClaimNotices(ctx, room, lease)
	if err != nil {
		return err
	}
	got := map[string]int{}
	for _, n := range batch {
		got[n.Watcher.Callback]++
	}
	s.mu.Lock()
	for name, n := range room {
		s.busy[name] += got[name]
		s.more[name] = got[name] == n
	}
	s.mu.Unlock()
	for _, n := range batch {
		s.work.Go(func() {
			s.one(wire, n)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.busy[n.Watcher.Callback]--
			if s.more[n.Watcher.Callback] {
				s.Wake()
			}
		})
	}
	return nil
}

// one delivers one message and writes what became of it.
func (s *Sender) one(wire context.Context, n fallback.Notice) {
	result, why := s.told(wire, n)
	if result == resultFailed && n.Now.Sub(n.RecordedAt) >= giveUp {
		result = resultGivenUp
	}
	s.metrics.deliveries.WithLabelValues(result).Inc()
	log := s.cfg.Log.With("callback", n.Watcher.Callback, "message_id", n.ID, "review_id", n.ReviewID, "attempts", n.Attempts)
	switch result {
	case resultDelivered:
		s.metrics.age.Observe(max(time.Since(n.RecordedAt), 0).Seconds())
		if s.fails(n, false) {
			log.InfoContext(wire, "callback takes messages again")
		}
	case resultGone:
		if why != "" {
			log.WarnContext(wire, "callback wants no more of it", "why", why)
		}
	case resultGivenUp:
		log.ErrorContext(wire, "callback was given up", "why", why)
		s.write(wire, n, "end", func(ctx context.Context) error { return s.box.EndNotice(ctx, n, false, why) })
		return
	case resultFailed:
		in := pauseAfter(n, s.cfg.Rand)
		if wire.Err() != nil { // stopping, which is not the target's fault
			in, why = 0, ""
		} else if !s.fails(n, true) {
			log.WarnContext(wire, "callback does not take messages; they are tried again for a day", "why", why)
		}
		s.write(wire, n, "delay", func(ctx context.Context) error { return s.box.DelayNotice(ctx, n, in, why) })
		return
	}
	s.write(wire, n, "end", func(ctx context.Context) error { return s.box.EndNotice(ctx, n, true, "") })
}

// fails notes how the callback does, and says how it did before.
func (s *Sender) fails(n fallback.Notice, now bool) (before bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.failing[n.Watcher.Callback]
	s.failing[n.Watcher.Callback] = now
	return before
}

// told makes one delivery and says what came of it, and why it is not delivered.
func (s *Sender) told(wire context.Context, n fallback.Notice) (result, why string) {
	target, err := s.cfg.Target(n.Watcher.Callback)
	switch {
	case err != nil:
		return resultFailed, err.Error()
	case !slices.Contains(target.Events, n.Event):
		return resultUnwanted, ""
	}
	read, cancel := context.WithTimeout(wire, storeTimeout)
	data, err := s.cfg.Data(read, n)
	cancel()
	switch {
	case errors.Is(err, ErrGone):
		return resultGone, ""
	case err != nil:
		return resultFailed, "review could not be read"
	}
	body, err := wrap(n, data)
	if err != nil {
		return resultFailed, "review could not be written as JSON"
	}
	return s.deliver(wire, n.ID, target, body)
}

// write changes a claimed message, also while stopping. If it can't, the lease ends and it is told again, under its id.
func (s *Sender) write(ctx context.Context, n fallback.Notice, what string, do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	if err := do(ctx); err != nil && !errors.Is(err, fallback.ErrLeaseLost) { // lost: erased, or another's since
		s.cfg.Log.ErrorContext(ctx, "outbox of callbacks was not written", "operation", what, "message_id", n.ID, "error", err)
	}
}
