package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"

	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/fallback"
	"validator-gw/internal/settings"
)

// DeadReviews are the dead reviews of the configured store, without a running gateway. Close it.
type DeadReviews struct{ store store }

// OpenDead opens the configured store.
func OpenDead(ctx context.Context, cfg Config, live *settings.Settings, log *slog.Logger) (*DeadReviews, error) {
	g := &Gateway{cfg: cfg, log: log, settings: settings.NewLive(live, "", nil, nil), registry: prometheus.NewRegistry()}
	keys, err := deriveKeys(cfg.Secret, cfg.SecretPrevious)
	if err != nil {
		return nil, err
	}
	s, err := g.openStore(ctx, keys.sealer, rand.Float64)
	if errors.Is(err, fallback.ErrInUse) {
		return nil, fmt.Errorf("%w; or send POST /admin/reviews/{id}/retry to it", err)
	}
	if err != nil {
		return nil, err
	}
	return &DeadReviews{s}, nil
}

// Close closes the store.
func (d *DeadReviews) Close() { d.store.Close() }

// Each calls f for every dead review, in the order in which they died, and ends at its first error. f may replay or drop
// the review.
func (d *DeadReviews) Each(ctx context.Context, f func(fallback.Review) error) error {
	for page := (fallback.DeadPage{}); ; {
		list, err := d.store.DeadReviews(ctx, page, fallback.MaxDead)
		if err != nil || len(list) == 0 {
			return err
		}
		for _, r := range list {
			page = fallback.DeadPage{EndedAt: r.EndedAt, ID: r.ID}
			if err := f(r); err != nil {
				return err
			}
		}
	}
}

// Replay makes a dead review open and due again.
func (d *DeadReviews) Replay(ctx context.Context, id string) error { return d.store.Replay(ctx, id) }

// Drop gives a dead review up and erases its address.
func (d *DeadReviews) Drop(ctx context.Context, id string) error { return d.store.Drop(ctx, id) }
