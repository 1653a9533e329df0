package simulator

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync"
	"time"
)

// Bounds and defaults. They are this simulator's own; the vendor documents none of them.
const (
	maxBody           = 64 << 10         // bytes of a request body; more is answered 413
	maxAddress        = 320              // bytes; a longer address is answered, but counted under no address
	maxDelay          = 10 * time.Minute // the longest answer that a phase, a flag or a magic name may ask for
	defaultMaxHang    = time.Minute
	defaultDrip       = 100 * time.Millisecond
	defaultAddresses  = 200_000
	defaultCallLog    = 100_000
	defaultSlow       = 2 * time.Second
	maxDrip           = 2 * time.Second
	defaultRetryAfter = 2 // seconds, of a magic name that has a hint and no number
)

// Config says how the simulated upstream behaves while no fault is played. The zero value is a healthy
// upstream that answers at once, accepts any key and has no limits.
type Config struct {
	// Key is the only key that is accepted. Empty: any non-empty key.
	Key string

	// Rate is the sustained number of calls a second that are let through, Burst how many may come at once.
	// Calls over it are answered 429. Rate 0: no limit. Burst 0: Rate rounded up.
	Rate  float64
	Burst int
	// Hint is the form in which a 429 of the rate limit says when to come back. Default HintNone.
	Hint Hint

	// Quota is the number of billed calls after which every call is answered 403. 0: no quota.
	Quota int64

	// P50 and P99 are the median and 99th percentile of the time that a verdict takes, log-normal, never more
	// than ten times P99. P99 0: every verdict takes P50. Errors (4xx and 5xx) come at once.
	P50, P99 time.Duration

	// Seed is where every draw comes from. A draw depends on the seed, the address and how many calls that
	// address had before, not on the order in which calls of different addresses arrive.
	Seed uint64

	// Mix says what addresses without a magic name get; each address keeps what it drew. Empty: deliverable.
	Mix Mix

	// Script is played from the first call on, or from Start. Empty: healthy.
	Script Script

	// MaxHang is how long a hung call is kept before its connection is closed. Default 60 s.
	MaxHang time.Duration
	// DripInterval is the time before each byte of a dripping body. Default 100 ms, at most 2 s.
	DripInterval time.Duration

	// MaxAddresses bounds how many addresses are counted one by one (default 200,000). Calls for more are in
	// the totals only, as Stats.Untracked says, and their flip-after and recover-after never come to the turn.
	MaxAddresses int
	// MaxCalls bounds the log of calls: the latest so many are kept. Default 100,000.
	MaxCalls int
}

// withDefaults fills what was left out and reports everything that can't be.
func (c Config) withDefaults() (Config, error) {
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(!(c.Rate >= 0) || math.IsInf(c.Rate, 0), "rate %v: must be 0 or more", c.Rate)
	refuse(c.Rate > 0 && c.Rate < 1e-6, "rate %v: must be at least 0.000001 a second", c.Rate)
	refuse(c.Burst < 0, "burst %d: must be 0 or more", c.Burst)
	refuse(c.Burst > 0 && c.Rate == 0, "burst %d: needs a rate", c.Burst)
	refuse(c.Quota < 0, "quota %d: must be 0 or more", c.Quota)
	refuse(c.MaxHang < 0, "maximum hang %v: must be 0 or more", c.MaxHang)
	refuse(c.DripInterval < 0 || c.DripInterval > maxDrip, "drip interval %v: 0 to %v", c.DripInterval, maxDrip)
	refuse(c.MaxAddresses < 0, "maximum of addresses %d: must be 0 or more", c.MaxAddresses)
	refuse(c.MaxCalls < 0, "maximum of calls %d: must be 0 or more", c.MaxCalls)
	if _, err := ParseHint(string(c.Hint)); err != nil {
		errs = append(errs, err)
	}
	if err := checkLatency(c.P50, c.P99); err != nil {
		errs = append(errs, err)
	}
	if err := c.Script.check(); err != nil {
		errs = append(errs, fmt.Errorf("script: %w", err))
	}
	if err := c.Mix.check(); err != nil {
		errs = append(errs, fmt.Errorf("mix: %w", err))
	}
	if err := errors.Join(errs...); err != nil {
		return Config{}, err
	}

	if c.Burst == 0 && c.Rate > 0 {
		c.Burst = int(math.Ceil(c.Rate))
	}
	setDefault(&c.MaxHang, defaultMaxHang)
	setDefault(&c.DripInterval, defaultDrip)
	setDefault(&c.MaxAddresses, defaultAddresses)
	setDefault(&c.MaxCalls, defaultCallLog)
	return c, nil
}

func setDefault[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

// Simulator is one simulated upstream. It is an http.Handler, and by RoundTripper a transport without sockets;
// both share its state. It is safe for concurrent use and has no goroutine of its own.
type Simulator struct {
	cfg       Config
	closed    chan struct{}
	closeOnce sync.Once

	mu       sync.Mutex
	limiter  limiter
	script   Script
	started  time.Time // when the script began; zero until then
	override *Mode     // set by SetMode: wins over the script
	ledger   ledger
	inFlight int
}

// New builds a simulator. The error lists everything in the Config that can't be.
func New(cfg Config) (*Simulator, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("simulator: %w", err)
	}
	s := &Simulator{cfg: cfg, closed: make(chan struct{})}
	s.Reset()
	return s, nil
}

// Close ends every call that is waiting (hung, delayed, dripping) by closing its connection, and makes later
// calls fail in the same way without being counted. It may be called more than once.
func (s *Simulator) Close() {
	s.closeOnce.Do(func() { close(s.closed) })
}

// Start begins the script now, instead of with the first call. It does nothing once the script has begun.
func (s *Simulator) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin(time.Now())
}

func (s *Simulator) begin(now time.Time) {
	if s.started.IsZero() {
		s.started = now
	}
}

// SetMode plays one mode from the next call on, in place of the script, until SetMode, SetScript or Reset. A call
// whose fate is decided already keeps it: what hangs goes on hanging. A mode that can't be is an error.
func (s *Simulator) SetMode(m Mode) error {
	if err := m.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.override = &m
	return nil
}

// SetScript plays another script, from now on.
func (s *Simulator) SetScript(script Script) error {
	if err := script.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script, s.started, s.override = script, time.Now(), nil
	return nil
}

// Mode is the mode that a call would meet now.
func (s *Simulator) Mode() Mode {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.modeAt(time.Now())
}

func (s *Simulator) modeAt(now time.Time) Mode {
	switch {
	case s.override != nil:
		return *s.override
	case s.started.IsZero():
		return s.script.At(0)
	default:
		return s.script.At(now.Sub(s.started))
	}
}

// Reset puts everything back to what New made: counters and log empty, rate limit and quota full, flips undone, no
// SetMode, and the Config's script waiting for the first call. Calls in flight stay in flight.
func (s *Simulator) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limiter = newLimiter(s.cfg.Rate, s.cfg.Burst)
	s.script, s.started, s.override = s.cfg.Script, time.Time{}, nil
	s.ledger = newLedger(s.cfg.MaxAddresses, s.cfg.MaxCalls)
}

// decide settles the fate of one call to the verify endpoint, and books it. Everything that a call changes is
// changed here, before any waiting: a call is billed once it was read, whether or not its answer ever arrives.
func (s *Simulator) decide(r request) fate {
	p := r.params()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.begin(now)
	s.inFlight++

	c := call{
		params:   p,
		keyValid: p.key != "" && (s.cfg.Key == "" || subtle.ConstantTimeCompare([]byte(p.key), []byte(s.cfg.Key)) == 1),
		at:       now,
		account:  s.ledger.account(p.email),
	}
	s.ledger.calls++
	c.account.calls++
	c.nth = c.account.calls
	c.random = draws{seed: s.cfg.Seed, address: p.email, nth: c.nth}

	f := s.fateOf(c)
	f.counted = true
	if f.header == nil {
		f.header = make(http.Header)
	}
	f.header.Set("X-Request-Id", fmt.Sprintf("sim-%d", s.ledger.calls))
	billed := p.problem == nil && c.keyValid && f.billable()
	s.ledger.book(c.account, Call{At: r.arrived, Address: p.email, Status: f.status, Result: f.result, Billed: billed},
		f.label())
	return f
}

// fateOf weighs what may befall a call, in this order: it was not read or isn't a call at all; the mode decides
// it; its parameters, its key; the rate limit; the quota; the address.
func (s *Simulator) fateOf(c call) fate {
	if c.problem != nil && c.problem.fatal {
		return c.problem.fate()
	}
	mode := s.modeAt(c.at)
	hit := mode.Share == 0 || mode.Share == 1 || c.random.uniform("share") < mode.Share
	if !hit {
		mode = Mode{Fault: Healthy}
	}

	f, decided := s.faultOf(c, mode)
	if !decided {
		f = s.healthy(c)
		if mode.Fault == Drip && f.ending == answers && f.status == http.StatusOK {
			f.ending = drips
		}
	}
	switch {
	case f.ending == hangs || f.exactDelay:
	case mode.P50 > 0:
		f.delay = c.random.latency(mode.P50, mode.P99)
	case mode.Fault == Slow:
		f.delay = defaultSlow
	case f.status == http.StatusOK && s.cfg.P50 > 0:
		f.delay = c.random.latency(s.cfg.P50, s.cfg.P99)
	}
	return f
}

// faultOf is the fate that the mode alone decides.
func (s *Simulator) faultOf(c call, mode Mode) (fate, bool) {
	switch mode.Fault {
	case Hang:
		return fate{ending: hangs}, true
	case Reset:
		return fate{ending: resets}, true
	case Error500:
		return failure(http.StatusInternalServerError, "internal error"), true
	case Error503:
		f := failure(http.StatusServiceUnavailable, "temporarily unavailable")
		mode.setHint(f.header, c.at)
		return f, true
	case Throttle:
		f := failure(http.StatusTooManyRequests, "too many requests")
		mode.setHint(f.header, c.at)
		return f, true
	case Quota:
		return failure(http.StatusForbidden, "quota used up"), true
	case Auth:
		return failure(http.StatusUnauthorized, "key not valid"), true
	case Garbage:
		kinds := []func(call) fate{htmlPage, truncated, emptyBody}
		return kinds[(c.nth-1)%int64(len(kinds))](c), true
	default: // Healthy, Slow and Drip change how an answer comes, not which
		return fate{}, false
	}
}

// healthy is the fate of a call that no fault befell.
func (s *Simulator) healthy(c call) fate {
	if c.problem != nil {
		return c.problem.fate()
	}
	if !c.keyValid {
		return failure(http.StatusUnauthorized, "key missing or not valid")
	}
	if ok, wait := s.limiter.allow(c.at); !ok {
		f := failure(http.StatusTooManyRequests, "too many requests")
		s.cfg.Hint.set(f.header, c.at, wait)
		return f
	}
	if s.cfg.Quota > 0 && s.ledger.billed >= s.cfg.Quota {
		return failure(http.StatusForbidden, "quota used up")
	}
	if b, ok := magicOf(c.user); ok {
		return b.play(c)
	}
	if c.user == "" || c.domain == "" {
		return result(c, "hardbounce")
	}
	return s.cfg.Mix.of(s.cfg.Seed, c.email).play(c)
}

// done ends a call that decide began.
func (s *Simulator) done(f fate) {
	if !f.counted {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
}

// errUnread is a request whose body did not arrive whole.
var errUnread = errors.New("simulator: request body not read to its end")

// readBody reads a request body to its end, within the bound.
func readBody(body io.Reader) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	b, err := io.ReadAll(io.LimitReader(body, maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnread, err)
	}
	return b, nil
}
