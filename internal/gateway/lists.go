package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"

	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/backfill"
	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/settings"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
)

// readings is what lists of addresses ask of the pipeline.
type readings struct {
	service *validate.Service
	prints  *normalize.Fingerprinter
}

// Read implements what package backfill asks for, as do the others.
func (r readings) Read(raw string) (normalize.Address, error) { return r.service.Read(raw) }

// Fingerprint is the address's under the present key.
func (r readings) Fingerprint(a normalize.Address) normalize.Fingerprint { return r.prints.Of(a) }

// Former are those under former keys.
func (r readings) Former(a normalize.Address) []normalize.Fingerprint { return r.prints.Previous(a) }

// DomainKey is that of the address's domain.
func (r readings) DomainKey(a normalize.Address) int64 { return r.prints.DomainKey(a) }

// Refused answers for a text that can't be an address.
func (r readings) Refused(flow, raw string) backfill.Answer {
	return listed(r.service.Refused(flow, raw))
}

// Denied answers for an address on the operator's own list.
func (r readings) Denied(flow string, a normalize.Address) (backfill.Answer, bool) {
	answer, ok := r.service.Denied(flow, a)
	return listed(answer), ok
}

// Final answers with a final verdict.
func (r readings) Final(flow string, a normalize.Address, v verdict.Verdict) backfill.Answer {
	return listed(r.service.Final(flow, a, v))
}

// Fresh says that a verdict needs no new check.
func (r readings) Fresh(v *verdict.Verdict) bool { return r.service.Fresh(v) }

func listed(a validate.Answer) backfill.Answer {
	return backfill.Answer{Status: a.Status, Reason: a.Reason, Decision: string(a.Decision), Suggestion: a.Suggestion}
}

func (t tunings) lists() backfill.Tuning {
	s := t.live.Current()
	return backfill.Tuning{Rate: float64(s.Upstream.Rate) * s.Backfill.Share, Keep: s.Backfill.Keep, MaxRows: int64(s.Backfill.MaxRows)}
}

// Lists gives the program the lists of addresses.
func (g *Gateway) Lists() *backfill.Engine { return g.lists }

// HasFlow says whether the settings have a flow of this name.
func (g *Gateway) HasFlow(name string) bool {
	_, ok := tunings{g.settings}.flow(name)
	return ok
}

// StoredLists are the lists in the configured store, to be looked at and cancelled without a running gateway. Close it.
type StoredLists struct{ store }

// OpenLists opens the configured store.
func OpenLists(ctx context.Context, cfg Config, live *settings.Settings, log *slog.Logger) (*StoredLists, error) {
	g := &Gateway{cfg: cfg, log: log, settings: settings.NewLive(live, "", nil, nil), registry: prometheus.NewRegistry()}
	keys, err := deriveKeys(cfg.Secret, cfg.SecretPrevious)
	if err != nil {
		return nil, err
	}
	s, err := g.openStore(ctx, keys.sealer, rand.Float64)
	if errors.Is(err, fallback.ErrInUse) {
		return nil, fmt.Errorf("%w with --server URL", err)
	}
	if err != nil {
		return nil, err
	}
	return &StoredLists{s}, nil
}
