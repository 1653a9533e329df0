// Package idempotency keeps answers under the Idempotency-Keys that clients send
// (draft-ietf-httpapi-idempotency-key-header-07). A key is bound to its client and to the request that came under it first:
// the same request again gets the stored answer as it was, another one is refused, and while the first is in work the
// second waits, on any replica, for as long as it can. It works by the durable store alone.
//
// Whoever gets the key holds it under a short lease and ends that with an answer or with none; after a crash the next
// request takes over when the lease ends. Keys and requests are kept as keyed hashes. An answer is kept as the caller of
// this package gives it, so it must hold no address.
package idempotency

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
)

// Times of a key.
const (
	// KeepFor is how long an answer is kept.
	KeepFor = 24 * time.Hour
	// leaseTime is how long a request holds a key at most: many times a request's budget, which is under a second.
	leaseTime = 15 * time.Second
	// pollFirst and pollMost bound the pauses between looks at a key that another request holds; each is twice the one
	// before it.
	pollFirst = 10 * time.Millisecond
	pollMost  = 50 * time.Millisecond
	// reserveTimeout bounds the first statement of a request. A healthy store answers in milliseconds, and without a key
	// there is no answer.
	reserveTimeout = 200 * time.Millisecond
	// freeTimeout bounds the freeing of a key, for which nobody waits, and maxFreeing how many are freed at a time. A key
	// that can't be freed is free when its lease ends.
	freeTimeout = 2 * time.Second
	maxFreeing  = 64
)

// Errors that callers act on. Both wrap the store's, which holds no address and no key.
var (
	// ErrUnavailable: the store can't be reached, so nothing can be promised under a key.
	ErrUnavailable = errors.New("idempotency key can't be looked up")
	// ErrNotKept: the answer could not be kept, or the key is another request's by now.
	ErrNotKept = errors.New("answer can't be kept under its idempotency key")
)

type store interface {
	ReserveKey(ctx context.Context, r fallback.Reservation) (fallback.Held, error)
	ReadKey(ctx context.Context, key fallback.Hash) (fallback.Held, error)
	KeepAnswer(ctx context.Context, key fallback.Hash, token int64, answer []byte, keep time.Duration) error
	FreeKey(ctx context.Context, key fallback.Hash, token int64) error
}

// Config is what New needs besides the store.
type Config struct {
	// Key is for the hashes, at least 32 bytes and for this use alone. Under another key all stored answers are unknown.
	Key []byte
	// Rand returns numbers in [0, 1) and must be safe for concurrent use.
	Rand func() float64
	// Log gets warnings; nil discards.
	Log *slog.Logger
	// Registerer gets the metrics; nil keeps them unseen.
	Registerer prometheus.Registerer
}

// Keeper keeps answers. Safe for concurrent use. End it with Close.
type Keeper struct {
	store   store
	cfg     Config
	metrics *metrics
	freeing chan struct{} // one value for each key that is being freed
	tasks   sync.WaitGroup

	mu    sync.Mutex
	looks map[fallback.Hash]*look // of keys that are being looked up
}

// New returns a keeper. It does no I/O.
func New(s store, cfg Config) (*Keeper, error) {
	if len(cfg.Key) < 32 || cfg.Rand == nil {
		return nil, errors.New("idempotency: a key of 32 bytes and Rand are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Keeper{store: s, cfg: cfg, metrics: newMetrics(cfg.Registerer), freeing: make(chan struct{}, maxFreeing), looks: make(map[fallback.Hash]*look)}, nil
}

// Request is one request under a key.
type Request struct {
	// Client is the name of the caller's key for the API. Clients know nothing of one another's keys.
	Client string
	// Key is what ParseKey returned.
	Key string
	// Asked is the operation and each of the request's parsed fields, in a fixed order. It is only hashed.
	Asked []string
	// Fingerprint is the address's, so that erasure finds the answer; zero when the text can't be an address.
	Fingerprint normalize.Fingerprint
}

// Patience says how long a Begin waits for a request that holds the key.
type Patience struct {
	// TakeOver is until when a key that comes free meanwhile is taken: an answer of one's own takes time, too.
	TakeOver time.Time
	// GiveUp ends the wait.
	GiveUp time.Time
}

// State is how a request stands to its key.
type State string

// The states.
const (
	// Mine: the key is the caller's. It must end the Claim.
	Mine State = "mine"
	// Replay: this request was answered before.
	Replay State = "replay"
	// Conflict: another request was answered under the key, or is in work.
	Conflict State = "conflict"
	// InFlight: this request is in work and was not answered in time.
	InFlight State = "in_flight"
)

// states lists every state, for metrics that are set to zero at start.
var states = []State{Mine, Replay, Conflict, InFlight}

// Begun is what Begin found.
type Begun struct {
	State State
	// Answer is set with Replay.
	Answer []byte
	// Claim is set with Mine.
	Claim *Claim
}

// Begin looks a request's key up, in one statement when nobody holds it or it was answered. When the same request is in
// work it waits for that one's answer. ctx ends the wait, too, with its error. ErrUnavailable: the store is away; an answer
// without the key's promise would be a lie.
func (k *Keeper) Begin(ctx context.Context, r Request, p Patience) (Begun, error) {
	b, err := k.begin(ctx, r, p)
	switch {
	case err == nil:
		k.metrics.begun[b.State].Inc()
	case ctx.Err() != nil:
		err = ctx.Err() // whoever asked has left: no fault
	default:
		k.metrics.unavailable.Inc()
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return b, err
}

func (k *Keeper) begin(ctx context.Context, r Request, p Patience) (Begun, error) {
	key, asked := k.hash('k', r.Client, r.Key), k.hash('r', r.Asked...)
	reserve := func() (fallback.Held, error) {
		return k.look(ctx, key, time.Now().Add(reserveTimeout), func(ctx context.Context) (fallback.Held, error) {
			return k.store.ReserveKey(ctx, fallback.Reservation{Key: key, Request: asked, Fingerprint: r.Fingerprint, Lease: leaseTime})
		})
	}
	held, err := reserve()
	for pause := pollFirst; err == nil; pause = min(2*pause, pollMost) {
		switch {
		case held.Token != 0:
			return Begun{State: Mine, Claim: &Claim{keeper: k, key: key, token: held.Token}}, nil
		case held.Free && time.Now().Before(p.TakeOver): // freed, or its lease ran out
			held, err = reserve()
			continue
		case held.Free:
			return Begun{State: InFlight}, nil
		case held.Request != asked:
			return Begun{State: Conflict}, nil
		case held.Answer != nil:
			return Begun{State: Replay, Answer: held.Answer}, nil
		}
		// Those who wait for one key look at different moments.
		pause := pause + time.Duration(k.cfg.Rand()*float64(pause)/2)
		if time.Until(p.GiveUp) <= pause {
			return Begun{State: InFlight}, nil
		}
		if err := sleep(ctx, pause); err != nil {
			return Begun{}, err
		}
		held, err = k.look(ctx, key, p.GiveUp, func(ctx context.Context) (fallback.Held, error) {
			return k.store.ReadKey(ctx, key)
		})
		if err != nil && !time.Now().Before(p.GiveUp) {
			return Begun{State: InFlight}, nil
		}
	}
	return Begun{}, err
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hash is an HMAC-SHA-256 over a byte that says what for, and each text with its length, cut to 128 bits.
func (k *Keeper) hash(what byte, texts ...string) (h fallback.Hash) {
	var b bytes.Buffer
	b.WriteByte(what)
	for _, s := range texts {
		b.Write(binary.AppendUvarint(nil, uint64(len(s))))
		b.WriteString(s)
	}
	mac := hmac.New(sha256.New, k.cfg.Key)
	mac.Write(b.Bytes())
	copy(h[:], mac.Sum(nil))
	return h
}

// Claim is a key that a request holds. It belongs to one goroutine.
type Claim struct {
	keeper *Keeper
	key    fallback.Hash
	token  int64
	ended  bool
}

// Finish keeps the answer, at most fallback.MaxAnswer bytes, under the key for KeepFor. It returns once that is durable.
// Send the answer only then: ErrNotKept means that a repetition may be answered otherwise. ctx bounds it.
func (c *Claim) Finish(ctx context.Context, answer []byte) error {
	c.ended = true
	err := c.keeper.store.KeepAnswer(ctx, c.key, c.token, answer, KeepFor)
	if err != nil {
		c.keeper.metrics.notKept.Inc()
		return fmt.Errorf("%w: %w", ErrNotKept, err)
	}
	return nil
}

// Abandon frees the key with no answer, so that the next request gets it. It does not wait for that. After Finish it does
// nothing: an answer that may have been kept is never taken back. The end of ctx does not end it.
func (c *Claim) Abandon(ctx context.Context) {
	if c.ended {
		return
	}
	c.ended = true
	k := c.keeper
	select {
	case k.freeing <- struct{}{}:
	default:
		return // the lease ends it
	}
	k.tasks.Go(func() {
		defer func() { <-k.freeing }()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeTimeout)
		defer cancel()
		if err := k.store.FreeKey(ctx, c.key, c.token); err != nil {
			k.cfg.Log.WarnContext(ctx, "idempotency key was not freed; its lease will end", "error", err)
		}
	})
}

// Close waits until the keys that were abandoned are freed, for two seconds at most. Call it once nothing begins any more.
func (k *Keeper) Close() { k.tasks.Wait() }
