package soak

import (
	"context"
	"sync"
	"time"
)

// replay sends the asks in their order, no more than Profile.Replay at once, and restarts everything where the plan says
// so: in order when all are answered, or killed when the last has just been sent. A request's At becomes the time at which
// it was sent, and the profile's stages become as long as they were. Send must keep to its context.
func (l *Ledger) replay(ctx context.Context, asks []Ask, send func(context.Context, *Answer), restart func(Restart) error,
	say func(string, ...any)) error {
	l.Answers = make([]Answer, len(asks))
	places := make(chan struct{}, l.Profile.Replay)
	var sending sync.WaitGroup
	defer sending.Wait()
	stages := append([]Stage(nil), l.Profile.Stages...) // the profile's own stay as they are
	l.Profile.Stages = stages
	stage, entered := 0, time.Duration(0)
	late := time.Duration(0) // how far the replay is behind its plan
	enter := func(next int) error {
		for stage < next {
			if stages[stage+1].Restart == InOrder {
				sending.Wait()
			}
			now := time.Since(l.Began)
			stages[stage].For, entered = now-entered, now
			stage++
			if how := stages[stage].Restart; how != NoRestart {
				say("%v: %s", now.Round(time.Second), stages[stage].Name)
				if err := restart(how); err != nil {
					return err
				}
				sending.Wait() // what was cut off has noticed
			}
		}
		return nil
	}
	for i, ask := range asks {
		a := &l.Answers[i]
		if err := enter(ask.Stage); err != nil {
			return err
		}
		if wait := ask.At + late - time.Since(l.Began); wait > 0 && !until(ctx, l.Began.Add(ask.At+late)) {
			return context.Cause(ctx)
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		a.Ask = ask
		a.At = time.Since(l.Began)
		a.Sent, late = a.At, max(late, a.At-ask.At)
		sending.Go(func() {
			defer func() { <-places }()
			one, cancel := context.WithTimeout(ctx, maxWait)
			defer cancel()
			send(one, a)
			a.Got = time.Since(l.Began)
		})
	}
	sending.Wait()
	stages[stage].For = time.Since(l.Began) - entered
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
