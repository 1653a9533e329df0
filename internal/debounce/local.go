package debounce

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// Local debounces in one process. Safe for concurrent use. Nothing fires but in Run.
type Local[K comparable, V any] struct {
	window Window
	max    int
	fire   func(ctx context.Context, key K, value V)
	wake   chan struct{}

	mu     sync.Mutex
	bursts map[K]*burst[K, V]
	order  byDue[K, V]
}

// burst is one key's, of at least one event.
type burst[K comparable, V any] struct {
	key        K
	value      V
	first, due time.Time
	at         int // in the heap
}

// NewLocal returns a debouncer of at most maxKeys keys at a time. fire is called once for each burst, by Run and one after
// the other, with the value of the burst's last event; an event that comes while its key fires begins another burst.
func NewLocal[K comparable, V any](w Window, maxKeys int, fire func(ctx context.Context, key K, value V)) *Local[K, V] {
	return &Local[K, V]{window: w, max: maxKeys, fire: fire, wake: make(chan struct{}, 1), bursts: make(map[K]*burst[K, V])}
}

// Arm notes an event and returns when its burst will be over, as things stand. It is false when the key would be one too
// many: the event is not noted.
func (l *Local[K, V]) Arm(key K, value V) (due time.Time, ok bool) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	b, known := l.bursts[key]
	switch {
	case known:
		b.value, b.due = value, l.window.Due(b.first, now)
		heap.Fix(&l.order, b.at)
	case len(l.bursts) >= l.max:
		return time.Time{}, false
	default:
		b = &burst[K, V]{key: key, value: value, first: now, due: l.window.Due(now, now)}
		l.bursts[key] = b
		heap.Push(&l.order, b)
	}
	if !known && b.at == 0 { // Run sleeps for longer; a burst that only moved is found in its own time
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return b.due, true
}

// Len counts the keys that have a burst.
func (l *Local[K, V]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.bursts)
}

// Run fires until ctx ends, and returns nil. What has not fired by then stays armed.
func (l *Local[K, V]) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		b, wait, some := l.next(time.Now())
		if b != nil {
			l.fire(ctx, b.key, b.value)
			continue
		}
		var over <-chan time.Time
		if some {
			timer.Reset(wait)
			over = timer.C
		}
		select {
		case <-over:
		case <-l.wake:
		case <-ctx.Done():
		}
	}
	return nil
}

// next takes the first burst if it is over; else it says how long that takes, if there is one.
func (l *Local[K, V]) next(now time.Time) (b *burst[K, V], wait time.Duration, some bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.order) == 0 {
		return nil, 0, false
	}
	if wait = l.order[0].due.Sub(now); wait > 0 {
		return nil, wait, true
	}
	b = heap.Pop(&l.order).(*burst[K, V])
	delete(l.bursts, b.key)
	return b, 0, true
}

// byDue is a heap, the earliest first.
type byDue[K comparable, V any] []*burst[K, V]

func (h byDue[K, V]) Len() int           { return len(h) }
func (h byDue[K, V]) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h byDue[K, V]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *byDue[K, V]) Push(x any) {
	b := x.(*burst[K, V])
	b.at = len(*h)
	*h = append(*h, b)
}

// Pop implements heap.Interface.
func (h *byDue[K, V]) Pop() any {
	last := len(*h) - 1
	b := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return b
}
