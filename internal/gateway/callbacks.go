package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"validator-gw/internal/api"
	"validator-gw/internal/callback"
	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/settings"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
)

// CheckCallbacks says which callbacks could not be signed: their keys are in files beside the settings. The error joins all
// faults and holds no key.
func CheckCallbacks(s *settings.Settings) error {
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(s.Callbacks)) {
		if _, err := callback.ReadKeys(s.Callbacks[name].SecretFile); err != nil {
			faults = append(faults, fmt.Errorf("callbacks.%s.secret_file: %w", name, err))
		}
	}
	return errors.Join(faults...)
}

func (t tunings) hasCallback(name string) bool {
	_, ok := t.live.Current().Callbacks[name]
	return ok
}

func (t tunings) callbacks() []string {
	return slices.Collect(maps.Keys(t.live.Current().Callbacks))
}

// target reads the keys at each delivery: they are rotated without a reload.
func (t tunings) target(name string) (callback.Target, error) {
	c, ok := t.live.Current().Callbacks[name]
	if !ok {
		return callback.Target{}, callback.ErrNotConfigured
	}
	keys, err := callback.ReadKeys(c.SecretFile)
	if err != nil {
		return callback.Target{}, fmt.Errorf("secret_file: %w", err)
	}
	return callback.Target{URL: c.URL, Keys: keys, Events: c.Events, Private: c.AllowPrivate}, nil
}

// told is what a message says: the status of its review, as its watcher would be answered.
func (g *Gateway) told(ctx context.Context, n fallback.Notice) ([]byte, error) {
	q := validate.Inquiry{ID: n.ReviewID, Flow: n.Watcher.Flow, Client: n.Watcher.Client}
	answer, err := g.service.Status(ctx, q)
	if errors.Is(err, validate.ErrUnknownFlow) { // it left the settings
		q.Flow = ""
		answer, err = g.service.Status(ctx, q)
	}
	switch {
	case errors.Is(err, validate.ErrUnknownID):
		return nil, callback.ErrGone
	case err != nil:
		return nil, err
	}
	return api.StatusJSON(answer)
}

// telling is a store that wakes the sender of callbacks when this process may have given it work. Another's is found by its
// polls.
type telling struct {
	store
	wake func()
}

// SettleOpen is the store's.
func (s telling) SettleOpen(ctx context.Context, fp normalize.Fingerprint, v verdict.Verdict, trail []verdict.Attempt) (string, bool, error) {
	id, settled, err := s.store.SettleOpen(ctx, fp, v, trail)
	if settled {
		s.wake()
	}
	return id, settled, err
}

// SettleBatch is the store's.
func (s telling) SettleBatch(ctx context.Context, batch []fallback.Settlement) ([]fallback.Claim, error) {
	lost, err := s.store.SettleBatch(ctx, batch)
	s.wake()
	return lost, err
}

// Kill is the store's.
func (s telling) Kill(ctx context.Context, c fallback.Claim, reason verdict.Reason) error {
	err := s.store.Kill(ctx, c, reason)
	s.wake()
	return err
}

// Watch is the store's.
func (s telling) Watch(ctx context.Context, id string, w fallback.Watcher) error {
	err := s.store.Watch(ctx, id, w)
	if w.Callback != "" {
		s.wake()
	}
	return err
}
