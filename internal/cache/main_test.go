package cache

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/normalize"
	"validator-gw/internal/testenv"
	"validator-gw/internal/verdict"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func half() float64 { return 0.5 }

// fp is the fingerprint with this number.
func fp(n int) (f normalize.Fingerprint) {
	f[0], f[1], f[2] = byte(n), byte(n>>8), byte(n>>16)
	return f
}

func valid(id string) verdict.Verdict {
	return verdict.Verdict{ID: id, Status: verdict.Valid, Reason: verdict.MailboxAccepted, CheckedAt: time.Now()}
}

// store is a durable store that does as told: it fails with err, or hangs until the call's time is over.
type store struct {
	mu     sync.Mutex
	err    error
	hang   bool
	enter  chan struct{} // when set, each call waits for a value before it does anything
	stored []Stored
	calls  int
}

var errDown = errors.New("store is down")

func (s *store) PutVerdicts(ctx context.Context, batch []Stored) error {
	if s.enter != nil {
		<-s.enter
	}
	s.mu.Lock()
	s.calls++
	hang, err := s.hang, s.err
	s.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored = append(s.stored, batch...)
	return nil
}

func (s *store) set(err error, hang bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.hang = err, hang
}

func (s *store) ids() (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.stored {
		ids = append(ids, v.Verdict.ID)
	}
	return ids
}

// rig is a cache on a store, with what it logs and counts.
type rig struct {
	*Cache
	t     testing.TB
	store *store
	draw  atomic.Value // what Rand returns
	log   *lockedBuffer
	reg   *prometheus.Registry
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newRig(t testing.TB, redis *Redis) *rig {
	t.Helper()
	r := &rig{t: t, store: &store{}, log: &lockedBuffer{}, reg: prometheus.NewRegistry()}
	r.draw.Store(0.5)
	c, err := New(r.store, Config{Redis: redis, Rand: func() float64 { return r.draw.Load().(float64) },
		Log: slog.New(slog.NewTextHandler(r.log, nil)), Registerer: r.reg})
	if err != nil {
		t.Fatal(err)
	}
	r.Cache = c
	t.Cleanup(c.Close)
	return r
}

// run runs the cache; stop ends it and waits.
func (r *rig) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return func() {
		r.t.Helper()
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Run = %v", err)
		}
	}
}

func (r *rig) metric(name string, labels ...string) (sum float64) {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "validator_gw_"+name {
			continue
		}
	series:
		for _, m := range f.GetMetric() {
			for i, l := range m.GetLabel() { // sorted by name
				if i < len(labels) && l.GetValue() != labels[i] {
					continue series
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
		return sum
	}
	r.t.Fatalf("no metric %s", name)
	return 0
}
