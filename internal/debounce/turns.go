package debounce

import (
	"errors"
	"sync"
)

// ErrPanic is what those get who waited for a turn whose work panicked.
var ErrPanic = errors.New("turn panicked")

// Turns do the same thing once for all who want it at the same time: whoever comes while it is being done waits for the
// turn after, which begins later than he came, and shares it with all who wait with him. So each gets the result of work
// that began after he asked, and however many come at once cost two or three turns. The zero value is ready; safe for
// concurrent use. There are as many keys as calls in progress, at most.
type Turns[K comparable, V any] struct {
	mu    sync.Mutex
	lines map[K]*line[V]
}

// line is there while a turn of its key is being done.
type line[V any] struct {
	next *turn[V] // or nil, while nobody waits
}

type turn[V any] struct {
	begin, done chan struct{}
	value       V
	err         error
}

// Do does the work of one turn, in the caller's goroutine, or waits for another caller's; shared says which. It always
// waits: the work must end by itself. The works of one key must be equal, since any of them may stand for the others.
func (t *Turns[K, V]) Do(key K, work func() (V, error)) (v V, shared bool, err error) {
	t.mu.Lock()
	l, busy := t.lines[key]
	if busy && l.next != nil {
		mine := l.next
		t.mu.Unlock()
		<-mine.done
		return mine.value, true, mine.err
	}
	mine := &turn[V]{done: make(chan struct{}), err: ErrPanic}
	if busy {
		mine.begin = make(chan struct{})
		l.next = mine
		t.mu.Unlock()
		<-mine.begin
	} else {
		if t.lines == nil {
			t.lines = make(map[K]*line[V])
		}
		l = &line[V]{}
		t.lines[key] = l
		t.mu.Unlock()
	}
	defer t.end(key, l, mine)
	mine.value, mine.err = work()
	return mine.value, false, mine.err
}

// end tells those who shared the turn, and lets the next one begin.
func (t *Turns[K, V]) end(key K, l *line[V], mine *turn[V]) {
	close(mine.done)
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.next == nil {
		delete(t.lines, key)
		return
	}
	close(l.next.begin)
	l.next = nil
}
