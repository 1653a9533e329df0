// Package flight keeps one piece of work in the air per key: whoever asks for a key that is in flight joins
// it. The work has a context and a deadline of its own and is never cancelled by those who wait, since it may
// be paid for already; those who wait leave whenever they like. It differs from singleflight in just that.
package flight

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"
)

// ErrPanic is the error of a flight whose work panicked.
var ErrPanic = errors.New("flight panicked")

// ErrClosed: the group is closing and starts nothing new.
var ErrClosed = errors.New("flight group is closed")

const shards = 32

// Group is a set of flights. Make one with NewGroup; end it with Close. Safe for concurrent use.
type Group[K comparable, V any] struct {
	base   context.Context //nolint:containedctx // the process's context, from which every flight's is made
	max    int
	seed   maphash.Seed
	shards [shards]shard[K, V]

	mu     sync.Mutex // guards closed against a Start in progress
	closed bool
	work   sync.WaitGroup
}

type shard[K comparable, V any] struct {
	mu sync.Mutex
	m  map[K]*Flight[V]
}

// Flight is one piece of work in the air, or landed.
type Flight[V any] struct {
	done  chan struct{}
	value V
	err   error
	// Started is when it began.
	Started time.Time
}

// NewGroup returns a group whose flights live on contexts made from base. At most maxKeys keys are kept
// apart (more precisely: maxKeys/32 in each of 32 shards); beyond that work still runs, but is not joined.
func NewGroup[K comparable, V any](base context.Context, maxKeys int) *Group[K, V] {
	g := &Group[K, V]{base: base, max: max(maxKeys/shards, 1), seed: maphash.MakeSeed()}
	for i := range g.shards {
		g.shards[i].m = make(map[K]*Flight[V])
	}
	return g
}

// Start joins the flight of key, or begins one that does work under a deadline of limit from now. It never
// blocks. first is called before the work begins and only by whoever begins it: what it returns is carried by the
// flight from its first moment on, so that those who join can see it before the work ends.
//
// The order at the end matters: work stores its result where later callers look first, then done is closed, and with
// that the key is free. So whoever begins the next flight finds that result if it looks again.
func (g *Group[K, V]) Start(key K, limit time.Duration, first func() V,
	work func(ctx context.Context, v V) error) (f *Flight[V], joined bool, err error) {
	s := &g.shards[maphash.Comparable(g.seed, key)%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.m[key]; ok && !f.landed() {
		return f, true, nil
	}
	if !g.enter() {
		return nil, false, ErrClosed
	}
	f = &Flight[V]{done: make(chan struct{}), Started: time.Now(), value: first()}
	_, again := s.m[key]
	kept := again || len(s.m) < g.max
	if kept {
		s.m[key] = f
	}
	go func() {
		defer g.work.Done()
		ctx, cancel := context.WithTimeout(g.base, limit)
		defer cancel()
		f.err = run(ctx, f.value, work)
		close(f.done)
		if kept {
			s.mu.Lock()
			if s.m[key] == f { // else the next one began meanwhile
				delete(s.m, key)
			}
			s.mu.Unlock()
		}
	}()
	return f, false, nil
}

func (g *Group[K, V]) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.work.Add(1)
	return true
}

// run turns a panic into an error: a bug in one check must not end the process, nor leave those who wait hanging.
func run[V any](ctx context.Context, v V, work func(context.Context, V) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %T", ErrPanic, p) // the value could hold an address: its type must do
		}
	}()
	return work(ctx, v)
}

// Close refuses new flights and waits until those in the air have landed or ctx ends. To land them early,
// end the base context.
func (g *Group[K, V]) Close(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	landed := make(chan struct{})
	go func() {
		g.work.Wait()
		close(landed)
	}()
	select {
	case <-landed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Len counts the keys in flight.
func (g *Group[K, V]) Len() int {
	n := 0
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		n += len(s.m)
		s.mu.Unlock()
	}
	return n
}

// Value is what first returned. The value itself must be safe to share.
func (f *Flight[V]) Value() V { return f.value }

func (f *Flight[V]) landed() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// Done is closed when the work has ended.
func (f *Flight[V]) Done() <-chan struct{} { return f.done }

// Err returns the work's error. Call it only after Done is closed.
func (f *Flight[V]) Err() error { return f.err }
