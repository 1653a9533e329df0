package gateway

import (
	"context"
	"sync/atomic"
	"time"

	"validator-gw/internal/validate"
)

// late is the validator of an edge that serves from the first moment on: until the store is open, everything that
// needs it is answered with validate.ErrUnavailable (503 and when to come again), instead of hanging.
type late struct {
	service atomic.Pointer[validate.Service]
	gateway atomic.Pointer[Gateway]
	flow    func(name string) (validate.Flow, bool)
	// callback says whether there is one of this name.
	callback func(name string) bool
}

// Validate implements what package api asks for.
func (l *late) Validate(ctx context.Context, r validate.Request) (validate.Answer, error) {
	if s := l.service.Load(); s != nil {
		return s.Validate(ctx, r)
	}
	return validate.Answer{}, validate.ErrUnavailable
}

// Revalidate implements what package api asks for.
func (l *late) Revalidate(ctx context.Context, e validate.Event) (validate.Scheduled, error) {
	if s := l.service.Load(); s != nil {
		return s.Revalidate(ctx, e)
	}
	return validate.Scheduled{}, validate.ErrUnavailable
}

// Status implements what package api asks for.
func (l *late) Status(ctx context.Context, q validate.Inquiry) (validate.Answer, error) {
	if s := l.service.Load(); s != nil {
		return s.Status(ctx, q)
	}
	return validate.Answer{}, validate.ErrUnavailable
}

// Wait implements what package api asks for.
func (l *late) Wait(ctx context.Context, q validate.Inquiry, d time.Duration) (validate.Answer, error) {
	if s := l.service.Load(); s != nil {
		return s.Wait(ctx, q, d)
	}
	return validate.Answer{}, validate.ErrUnavailable
}

// Erase implements what package api asks for.
func (l *late) Erase(ctx context.Context, raw string) (validate.Removed, error) {
	if s := l.service.Load(); s != nil {
		return s.Erase(ctx, raw)
	}
	return validate.Removed{}, validate.ErrUnavailable
}

// Retry implements what package api asks for.
func (l *late) Retry(ctx context.Context, id string) error {
	g := l.gateway.Load()
	if g == nil {
		return validate.ErrUnavailable
	}
	if err := validate.Retry(ctx, g.store, id); err != nil {
		return err
	}
	g.loop.Due(time.Now())
	return nil
}

// HasFlow implements what package api asks for.
func (l *late) HasFlow(name string) bool {
	_, ok := l.flow(name)
	return ok
}

// HasCallback implements what package api asks for.
func (l *late) HasCallback(name string) bool { return l.callback(name) }
