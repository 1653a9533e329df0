package ratelimit

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"validator-gw/internal/redisconn"
)

// Quotas are buckets in Redis, one a key, for what comes in: a caller who was not seen for a while finds its bucket full.
// Safe for concurrent use.
type Quotas struct {
	conn   *redisconn.Conn
	prefix string
}

// NewQuotas returns buckets on conn, which stays the caller's. name tells kinds of keys apart, prefix goes before every
// key; it is for tests that share a server.
func NewQuotas(conn *redisconn.Conn, name, prefix string) *Quotas {
	return &Quotas{conn: conn, prefix: prefix + "rq1:" + name + ":"}
}

// Take takes n grants from the bucket of key, which must hold nothing that identifies a person: hash it. The bucket gives
// rate grants a second (at least a millionth) and burst at once. Refused, nothing is taken, and after is how long the
// bucket lacks; more than burst is refused for ever. An error is redisconn's: then nothing is known, and who asks decides.
func (q *Quotas) Take(ctx context.Context, key string, rate float64, burst, n int) (after time.Duration, ok bool, err error) {
	rate, burst = max(rate, minRate), max(burst, 1)
	var got []int64
	err = q.conn.Call(ctx, q.conn.LookUp(), func(ctx context.Context, c redis.UniversalClient) (err error) {
		got, err = run(ctx, c, luaQuota, []string{q.prefix + key}, text(rate), burst, n)
		return err
	})
	if err != nil {
		return 0, false, err
	}
	if got[0] == 1 {
		return 0, true, nil
	}
	return time.Duration(got[1]) * time.Microsecond, false, nil
}
