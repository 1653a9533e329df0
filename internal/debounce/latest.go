package debounce

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"validator-gw/internal/redisconn"
)

// sessionLife is how long Redis remembers a session after its last request: longer than any of them waits.
const sessionLife = 5 * time.Second

// Latest tells which of a session's requests is the newest, in this process and, with a Redis, among all that share it.
// Without an answer of Redis each process goes by what it knows. Safe for concurrent use.
type Latest struct {
	conn   *redisconn.Conn // or nil
	prefix string
	max    int

	mu  sync.Mutex
	now map[string]*Stroke // the newest of each session that waits here
}

// NewLatest returns one that keeps at most maxSessions apart in this process; what is over is known to Redis only. conn may
// be nil, and stays the caller's. prefix goes before each session in Redis.
func NewLatest(conn *redisconn.Conn, prefix string, maxSessions int) *Latest {
	return &Latest{conn: conn, prefix: prefix, max: maxSessions, now: make(map[string]*Stroke)}
}

// Stroke is one request of a session.
type Stroke struct {
	latest  *Latest
	session string
	n       int64 // its number in Redis, 0 when that did not say
	over    chan struct{}
}

// Begin begins a request: all earlier ones of the session are superseded by it. It waits for the connection's LookUp at
// most. The session must be a hash when it is somebody's secret. Call End when the request has its answer.
func (l *Latest) Begin(ctx context.Context, session string) *Stroke {
	s := &Stroke{latest: l, session: session, over: make(chan struct{})}
	if l.conn != nil {
		_ = l.conn.Call(ctx, l.conn.LookUp(), func(ctx context.Context, c redis.UniversalClient) (err error) {
			s.n, err = luaStroke.Run(ctx, c, []string{l.prefix + session}, sessionLife.Milliseconds()).Int64()
			return err
		})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before, known := l.now[session]
	switch {
	case known && s.n != 0 && before.n > s.n: // it came to Redis first, and here second
		close(s.over)
		return s
	case known:
		close(before.over)
	case len(l.now) >= l.max:
		return s
	}
	l.now[session] = s
	return s
}

// Quiet waits for d and says whether the request is still the newest of its session. It is false as soon as another came
// to this process, or ctx ended.
func (s *Stroke) Quiet(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.over:
		return false
	case <-ctx.Done():
		return false
	}
	l := s.latest
	if l.conn == nil || s.n == 0 {
		return true
	}
	var n int64
	err := l.conn.Call(ctx, l.conn.LookUp(), func(ctx context.Context, c redis.UniversalClient) (err error) {
		n, err = c.Get(ctx, l.prefix+s.session).Int64()
		return err
	})
	return err != nil || n <= s.n // what Redis forgot supersedes nobody
}

// End forgets the request in this process.
func (s *Stroke) End() {
	l := s.latest
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now[s.session] == s {
		delete(l.now, s.session)
	}
}

// luaStroke: KEYS session; ARGV its life in ms. Gives the request's number.
var luaStroke = redis.NewScript(`
local n = redis.call('INCR', KEYS[1])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return n`)
