package verimail

import (
	"context"
	"sync"
	"time"

	"validator-gw/internal/verdict"
)

// The account gate's cool-down: a key that is refused once is refused a thousand times, and providers block
// those who go on asking.
const (
	accountCooldown    = 10 * time.Minute
	accountCooldownMax = time.Hour
)

// accountGate is closed by answers that concern our account (key, quota) and not the address. While it is
// closed nothing is sent; after each cool-down one call may find out. Safe for concurrent use.
type accountGate struct {
	mu     sync.Mutex
	until  time.Time
	step   int       // closings in a row; 0 is open
	closed time.Time // the last closing
	reason verdict.Reason
}

// blocked says whether a call must not go now, why, and until when.
func (g *accountGate) blocked(now time.Time) (verdict.Reason, time.Time, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.step == 0 || !now.Before(g.until) {
		return "", time.Time{}, false
	}
	return g.reason, g.until, true
}

// enter is blocked for a call that is about to be sent: after a cool-down it lets one through and holds the
// others back for hold, by when that one has said how things stand.
func (g *accountGate) enter(now time.Time, hold time.Duration) (verdict.Reason, time.Time, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.step == 0 {
		return "", time.Time{}, false
	}
	if now.Before(g.until) {
		return g.reason, g.until, true
	}
	g.until = now.Add(hold)
	return "", time.Time{}, false
}

// close shuts the gate after an answer to a call that began at sent, and says whether that changed anything:
// calls that were on the wire together close it once.
func (g *accountGate) close(reason verdict.Reason, sent, now time.Time) (until time.Time, changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.step > 0 && !sent.After(g.closed) {
		return g.until, false
	}
	d := accountCooldown
	for range g.step {
		if d >= accountCooldownMax {
			break
		}
		d *= 2
	}
	g.step++
	g.reason = reason
	g.until = now.Add(min(d, accountCooldownMax))
	g.closed = now
	return g.until, true
}

// open says that the account works: a call that began at sent was answered. One that was on the wire already when
// the gate was closed proves nothing.
func (g *accountGate) open(sent time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if sent.After(g.closed) {
		g.step, g.until = 0, time.Time{}
	}
}

// The not-before gate for throttling without a hint: a single 429 only backs off, three in a row close it.
const (
	throttleRun    = 3
	throttleWithin = 10 * time.Second
	throttlePause  = time.Second
	throttleMax    = 30 * time.Second
)

// notBeforeGate holds the moment before which nobody calls the upstream. Hints (Retry-After) move it, and
// 429s without a hint that come in a row. It only ever moves later, but for shorten. Safe for concurrent use.
type notBeforeGate struct {
	mu    sync.Mutex
	until time.Time
	run   []time.Time // the latest 429s without a hint, with no verdict in between
	step  int         // pauses in a row
}

func (g *notBeforeGate) blocked(now time.Time) (time.Time, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.until, now.Before(g.until)
}

// shorten keeps the gate from being further ahead than most: whoever lowers the longest wait means the present one, too.
func (g *notBeforeGate) shorten(now time.Time, most time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if end := now.Add(most); g.until.After(end) {
		g.until = end
	}
}

// hint moves the gate to now+wait. It says whether the gate moved, and whether that is news, worth a log line: who were
// told the same together move it by next to nothing.
func (g *notBeforeGate) hint(now time.Time, wait time.Duration) (moved, news bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	until := now.Add(wait)
	if wait <= 0 || !until.After(g.until) {
		return false, false
	}
	news = !now.Before(g.until) || until.Sub(g.until) >= time.Second
	g.until = until
	return true, news
}

// throttled notes a 429 without a hint; the third within ten seconds pauses everyone. One that comes during a
// pause answers a call from before it, and does not count towards the next.
func (g *notBeforeGate) throttled(now time.Time) (until time.Time, paused bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Before(g.until) {
		return time.Time{}, false
	}
	g.run = append(g.run, now)
	if len(g.run) > throttleRun {
		g.run = g.run[len(g.run)-throttleRun:]
	}
	if len(g.run) < throttleRun || now.Sub(g.run[0]) > throttleWithin {
		return time.Time{}, false
	}
	pause := throttlePause
	for range g.step {
		if pause >= throttleMax {
			break
		}
		pause *= 2
	}
	g.step++
	g.until = now.Add(min(pause, throttleMax))
	g.run = g.run[:0]
	return g.until, true
}

// answered says that the upstream gives verdicts: the next pause is a short one again.
func (g *notBeforeGate) answered() {
	g.mu.Lock()
	g.run, g.step = g.run[:0], 0
	g.mu.Unlock()
}

// holdTimeout bounds one message to the fleet.
const holdTimeout = 2 * time.Second

// herald tells the fleet of a wait without making anybody wait for that: one message at a time is on its way, and of
// those that come meanwhile only the latest moment goes next. The zero value is ready; safe for concurrent use.
type herald struct {
	mu    sync.Mutex
	until time.Time // the latest moment that is told, or is to be told
	busy  bool
}

// hold has l told that nobody calls before until, unless it knows. What was told of a moment more than most ahead does not
// count: it was cut since. It outlives ctx, whose caller may be gone: the wait concerns everyone.
func (h *herald) hold(ctx context.Context, l limiter, until time.Time, most time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until.After(time.Now().Add(most)) {
		h.until = time.Time{}
	}
	if !until.After(h.until) {
		return
	}
	h.until = until
	if h.busy {
		return
	}
	h.busy = true
	go h.tell(context.WithoutCancel(ctx), l)
}

// tell tells until there is nothing new.
func (h *herald) tell(ctx context.Context, l limiter) {
	var told time.Time
	for {
		h.mu.Lock()
		until := h.until
		if !until.After(told) {
			h.busy = false
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		if d := time.Until(until); d > 0 {
			call, cancel := context.WithTimeout(ctx, holdTimeout)
			l.Hold(call, d)
			cancel()
		}
		told = until
	}
}
