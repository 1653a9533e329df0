package idempotency

import (
	"context"
	"time"

	"validator-gw/internal/fallback"
)

// look is one statement about a key, which all who ask about that key at the same time share: a crowd under one key takes
// one connection of this process, and not all that sign-ups have, nor does it queue for one row.
type look struct {
	done chan struct{}
	// Set once done is closed.
	held fallback.Held
	err  error
	// left says that whoever began it has gone, and landed that it has ended. Keeper.mu guards both.
	left, landed bool
}

// look asks the store by do, or waits for what somebody else is asking about the key: to them the key is never given. The
// statement ends at the until of whoever began it and not with them, who may leave at any time; a key that it brings then is
// freed. look returns at until at the latest.
func (k *Keeper) look(ctx context.Context, key fallback.Hash, until time.Time, do func(context.Context) (fallback.Held, error)) (fallback.Held, error) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for first := true; ; first = false {
		l, joined := k.joinLook(ctx, key, until, do)
		var err error
		select {
		case <-l.done:
		case <-ctx.Done():
			err = ctx.Err()
		case <-timer.C:
			err = context.DeadlineExceeded
		}
		switch {
		case !joined && (err == nil || !k.leaveLook(l)):
			return l.held, l.err
		case err != nil:
			return fallback.Held{}, err
		case l.err != nil && first:
			continue // that one had less time than we have, maybe
		}
		held := l.held
		held.Token = 0
		return held, l.err
	}
}

// joinLook joins the look at a key that is under way, or begins one.
func (k *Keeper) joinLook(ctx context.Context, key fallback.Hash, until time.Time, do func(context.Context) (fallback.Held, error)) (l *look, joined bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l, ok := k.looks[key]; ok {
		return l, true
	}
	l = &look{done: make(chan struct{})}
	k.looks[key] = l
	k.tasks.Go(func() {
		ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), until)
		defer cancel()
		l.held, l.err = do(ctx)
		k.mu.Lock()
		delete(k.looks, key)
		l.landed = true
		left := l.left
		k.mu.Unlock()
		close(l.done)
		if left && l.err == nil && l.held.Token != 0 {
			(&Claim{keeper: k, key: key, token: l.held.Token}).Abandon(ctx)
		}
	})
	return l, false
}

// leaveLook says that whoever began a look goes. It is false when that has ended: what it brought is theirs then.
func (k *Keeper) leaveLook(l *look) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	l.left = !l.landed
	return l.left
}
