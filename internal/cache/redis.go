package cache

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"validator-gw/internal/normalize"
	"validator-gw/internal/redisconn"
	"validator-gw/internal/verdict"
)

// writeTimeout bounds one batch of writes. Nobody waits for it, but the stop does.
const writeTimeout = 200 * time.Millisecond

// valueVersion is the first byte of a value; another one is a miss.
const valueVersion = '1'

// Redis is the level that replicas share. Safe for concurrent use.
type Redis struct {
	conn   *redisconn.Conn
	prefix string
	former []string // the prefixes of former keys
}

// NewRedis returns the level on conn, which stays the caller's. keyID names the fingerprint key in use: a new key is
// a new key space. prefix goes before every key; it is for tests that share a server. formerIDs name former keys, whose
// entries are erased and not read.
func NewRedis(conn *redisconn.Conn, keyID, prefix string, formerIDs ...string) *Redis {
	r := &Redis{conn: conn, prefix: prefix + "ev1:" + keyID + ":"}
	for _, id := range formerIDs {
		r.former = append(r.former, prefix+"ev1:"+id+":")
	}
	return r
}

// Prefix is what goes before a fingerprint's text in a key.
func (r *Redis) Prefix() string { return r.prefix }

func (r *Redis) key(fp normalize.Fingerprint) string { return r.prefix + fp.String() }

func (r *Redis) get(ctx context.Context, fp normalize.Fingerprint) (verdict.Cached, bool, error) {
	var b []byte
	err := r.conn.Call(ctx, r.conn.LookUp(), func(ctx context.Context, c redis.UniversalClient) (err error) {
		b, err = c.Get(ctx, r.key(fp)).Bytes()
		return err
	})
	if errors.Is(err, redis.Nil) {
		return verdict.Cached{}, false, nil
	}
	if err != nil {
		return verdict.Cached{}, false, err
	}
	e, ok := decode(b)
	return e, ok, nil
}

// decode reads a value. Another version's, or a damaged one, is a miss.
func decode(b []byte) (e verdict.Cached, ok bool) {
	if len(b) == 0 || b[0] != valueVersion || json.Unmarshal(b[1:], &e) != nil {
		return verdict.Cached{}, false
	}
	switch v, m := e.Verdict, e.Marker; {
	case v != nil && m == nil && v.ID != "" && v.Status.Final():
	case m != nil && v == nil && m.ID != "":
	default:
		return verdict.Cached{}, false
	}
	return e, true
}

// put writes a batch in one round trip, each with its own expiry.
func (r *Redis) put(ctx context.Context, batch []sharedEntry) error {
	type value struct {
		keys []string
		id   string
		b    []byte
		life time.Duration
		weak int
	}
	now := time.Now()
	var values []value
	for _, s := range batch {
		d := s.e.Life(now)
		if d < time.Millisecond { // over, or no entry
			continue
		}
		b, err := json.Marshal(s.e)
		if err != nil {
			return err
		}
		weak := 0
		if s.weak || s.e.Marker != nil {
			weak = 1
		}
		values = append(values, value{erasureKeys(r.key(s.fp)), idOf(s.e), append([]byte{valueVersion}, b...), d, weak})
	}
	if len(values) == 0 {
		return nil
	}
	return r.conn.Call(ctx, max(writeTimeout, r.conn.LookUp()), func(ctx context.Context, c redis.UniversalClient) error {
		_, err := c.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, v := range values {
				pipe.Eval(ctx, setUnlessErased, v.keys, v.b, v.life.Milliseconds(), v.weak, v.id)
			}
			return nil
		})
		return err
	})
}
