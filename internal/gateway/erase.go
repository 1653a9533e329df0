package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/cache"
	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/redisconn"
	"validator-gw/internal/settings"
	"validator-gw/internal/validate"
)

// How often a replica asks the store for what others erased: with its jitter, and the time of a call, it answers from
// memory for half a minute at most.
const (
	erasuresEvery   = 20 * time.Second
	erasuresTimeout = 5 * time.Second
)

// remembering is the store that replicas share; SQLite's has one process.
type remembering interface {
	Erasures(ctx context.Context, since time.Time) (list []fallback.Remembered, next time.Time, err error)
}

// followErasures forgets in this process what another one erased.
func (g *Gateway) followErasures(ctx context.Context) {
	shared, ok := g.store.(remembering)
	if !ok {
		return
	}
	var since time.Time
	tick := time.NewTicker(erasuresEvery)
	defer tick.Stop()
	for {
		since = g.learnErasures(ctx, shared, since)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// learnErasures forgets what was erased since the time that it returned last.
func (g *Gateway) learnErasures(ctx context.Context, shared remembering, since time.Time) (next time.Time) {
	call, cancel := context.WithTimeout(ctx, erasuresTimeout)
	defer cancel()
	list, next, err := shared.Erasures(call, since)
	for _, e := range list {
		g.cache.Forget([]normalize.Fingerprint{e.Fingerprint}, e.UpTo)
	}
	if err != nil && ctx.Err() == nil {
		g.log.WarnContext(ctx, "erasures of other replicas are not known; they are asked for again", "error", err)
	}
	return next
}

// Erase removes all that is kept of the addresses, from the configured stores and without a running gateway. It calls each
// for every address in turn, and ends at the first error. validate.ErrNoAddress: a text can't be one; nothing was erased.
func Erase(ctx context.Context, cfg Config, live *settings.Settings, addresses []string, each func(validate.Removed) error, log *slog.Logger) error {
	g := &Gateway{cfg: cfg, log: log, settings: settings.NewLive(live, "", nil, nil), registry: prometheus.NewRegistry()}
	rules := tunings{g.settings}.address().Rules
	keys, err := deriveKeys(cfg.Secret, cfg.SecretPrevious)
	if err != nil {
		return err
	}
	var all [][]normalize.Fingerprint
	for i, raw := range addresses {
		addr, err := rules.Parse(raw)
		if err != nil {
			return fmt.Errorf("address %d of %d: %w", i+1, len(addresses), validate.ErrNoAddress)
		}
		all = append(all, append([]normalize.Fingerprint{keys.prints.Of(addr)}, keys.prints.Previous(addr)...))
	}
	store, err := g.openStore(ctx, keys.sealer, rand.Float64)
	if errors.Is(err, fallback.ErrInUse) {
		return fmt.Errorf("%w; or send DELETE /addresses to it", err)
	}
	if err != nil {
		return err
	}
	defer store.Close()
	var shared *cache.Redis
	if cfg.RedisURL != "" {
		conn, err := redisconn.Open(redisconn.Config{URL: cfg.RedisURL, Mode: cfg.RedisMode})
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		shared = cache.NewRedis(conn, keys.id, "", keys.formerIDs...)
	}
	for i, fps := range all {
		upTo := newID()
		if shared != nil {
			if err := shared.Erase(ctx, fps, upTo); err != nil {
				return fmt.Errorf("address %d of %d: %w", i+1, len(all), err)
			}
		}
		gone, err := store.Erase(ctx, fallback.Erasure{Fingerprints: fps, UpTo: upTo})
		if err != nil {
			return fmt.Errorf("address %d of %d: %w", i+1, len(all), err)
		}
		if err := each(validate.Removed{Reviews: gone.Reviews, Verdicts: gone.Verdicts, Answers: gone.Answers,
			BackfillRows: gone.Backfill}); err != nil {
			return err
		}
	}
	return nil
}
