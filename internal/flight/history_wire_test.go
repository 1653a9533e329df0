package flight_test

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// wire is one process's way to Redis: a proxy that can be late, lose what goes either way, or break. What is lost on the way
// back was done by Redis all the same. Each piece of traffic has its own fate.
type wire struct {
	ln    net.Listener
	redis string // host:port
	began time.Time
	fates func(r *rand.Rand, at time.Duration, back bool) fate
	ends  chan struct{}
	all   sync.WaitGroup

	mu      sync.Mutex
	rand    *rand.Rand
	dark    bool // the process is dead: nothing goes through any more
	over    bool // the process has ended in order
	gaveUp  bool
	open    map[net.Conn]struct{}
	slowest time.Duration // from a command to its reply, or to its connection's end
}

// fate is what becomes of one piece.
type fate struct {
	after time.Duration // it is held back
	lost  bool          // it and all that follows on its connection
	cut   bool          // the connection is closed
}

// newWire listens on a socket in a file, so that a crowd of fleets needs no ports of its own.
func newWire(socket, redis string, began time.Time, r *rand.Rand, fates func(r *rand.Rand, at time.Duration, back bool) fate) (*wire, error) {
	ln, err := new(net.ListenConfig).Listen(context.Background(), "unix", socket)
	if err != nil {
		return nil, err
	}
	w := &wire{ln: ln, redis: redis, began: began, fates: fates, rand: r, ends: make(chan struct{}), open: map[net.Conn]struct{}{}}
	w.all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if w.keep(c) {
				w.all.Go(func() { w.carry(c) })
			}
		}
	})
	return w, nil
}

// keep notes a connection, or closes it when nothing is to go through any more.
func (w *wire) keep(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dark {
		c.Close()
		return false
	}
	w.open[c] = struct{}{}
	return true
}

func (w *wire) drop(cs ...net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range cs {
		c.Close()
		delete(w.open, c)
	}
}

// carry serves one connection. Redis is dialled at its first command: most of a pool's idle ones never have any.
func (w *wire) carry(c net.Conn) {
	defer w.drop(c)
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if err != nil {
		return
	}
	var asked pending
	defer func() { w.took(asked.since()) }() // what was never answered
	asked.sent()
	r, err := (&net.Dialer{Timeout: 5 * time.Second}).Dial("tcp", w.redis)
	if err != nil || !w.keep(r) {
		return
	}
	defer w.drop(r)
	var back sync.WaitGroup
	defer back.Wait()
	defer w.drop(c, r)
	back.Go(func() {
		defer w.drop(c, r)
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			if err != nil {
				return
			}
			w.took(asked.since())
			asked.answered()
			if !w.pass(r, c, buf[:n], true) {
				return
			}
		}
	})
	for err == nil && w.pass(c, r, buf[:n], false) {
		if n, err = c.Read(buf); err != nil {
			w.left()
			return
		}
		asked.sent()
	}
}

// left notes that the process closed a connection that it had used: somebody gave up on a reply. Nothing else makes a pool do
// so before its end.
func (w *wire) left() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over && !w.dark {
		w.gaveUp = true
	}
}

// ending says that the process is about to close its connections.
func (w *wire) ending() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
}

// pending is when a connection's command was sent, while it has no reply.
type pending struct {
	mu sync.Mutex
	at time.Time
}

func (p *pending) sent()     { p.set(time.Now()) }
func (p *pending) answered() { p.set(time.Time{}) }

func (p *pending) set(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = at
}

func (p *pending) since() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at.IsZero() {
		return 0
	}
	return time.Since(p.at)
}

func (w *wire) took(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slowest = max(w.slowest, d)
}

// pass hands one piece on as its fate will have it, and says whether the connection goes on.
func (w *wire) pass(from, to net.Conn, piece []byte, back bool) bool {
	w.mu.Lock()
	f := w.fates(w.rand, time.Since(w.began), back)
	w.mu.Unlock()
	if f.cut {
		return false
	}
	if f.lost { // whoever waits for it gives up and closes
		piece = make([]byte, 4096)
		for {
			if _, err := from.Read(piece); err != nil {
				return false
			}
		}
	}
	if f.after > 0 {
		t := time.NewTimer(f.after)
		defer t.Stop()
		select {
		case <-t.C:
		case <-w.ends:
		}
	}
	_, err := to.Write(piece)
	return err == nil
}

// die ends all traffic for good.
func (w *wire) die() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dark = true
	for c := range w.open {
		c.Close()
	}
}

// close ends the proxy and returns once nothing of it runs.
func (w *wire) close() {
	close(w.ends)
	w.ln.Close()
	w.die()
	w.all.Wait()
}

// prompt says that each reply came in time for whoever asked, and within limit.
func (w *wire) prompt(limit time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.gaveUp && w.slowest < limit
}
