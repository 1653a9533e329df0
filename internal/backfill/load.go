package backfill

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"io"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/normalize"
	"validator-gw/internal/verdict"
)

// List is what is asked for with an input.
type List struct {
	// Source names the input: who brings the same again goes on with it. Empty: nobody can.
	Source       string
	Client, Flow string
	Format       Format
	Column       string // empty: the usual ones
	Rate         float64
	MaxCredits   int64 // negative: no bound
	Dry          bool
}

// maxChunkText bounds a chunk's text, in bytes.
const maxChunkText = 1 << 20

// Source returns a keyed hash of a name, for what must be found again without being known.
func (e *Engine) source(l List) fallback.Hash {
	if l.Source == "" {
		return fallback.Hash{}
	}
	h := hmac.New(sha256.New, e.cfg.DigestKey)
	for _, part := range []string{"source", l.Client, l.Source} {
		_, _ = io.WriteString(h, part)
		_, _ = h.Write([]byte{0})
	}
	return fallback.Hash(h.Sum(nil)[:16])
}

// terms are what must be the same when an input is brought again.
func (l List) terms() string { return string(l.Format) + "\n" + l.Column + "\n" + l.Flow }

// Load stores an input, as it comes and no faster than it can be stored, and returns the backfill, on which Run works from then
// on. An input that was stored before, by its Source, is not read; of one of which a part is stored the rest is.
//
// ErrInput: the input can't be read. ErrChanged, ErrTooLong. fallback.ErrBackfillBusy: the same is being loaded by someone else.
// fallback.ErrBackfillTerms: it was loaded with another format, column or flow. After any error what was stored stays, for whoever
// brings the same Source again; without one it is cancelled.
func (e *Engine) Load(ctx context.Context, r io.Reader, l List) (fallback.Backfill, error) {
	b, held, err := e.store.OpenBackfill(ctx, fallback.NewBackfill{ID: e.cfg.NewID(), Source: e.source(l), Terms: l.terms(), Client: l.Client,
		Flow: l.Flow, Rate: l.Rate, MaxCredits: l.MaxCredits, Dry: l.Dry, Lease: lease})
	if err != nil {
		return fallback.Backfill{}, err
	}
	if held == (fallback.BackfillLease{}) {
		return b, nil
	}
	if err := e.load(ctx, r, l, b, held); err != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		if l.Source == "" || errors.Is(err, ErrTooLong) {
			_, _ = e.store.CancelBackfill(end, b.ID) // it is swept in time, if not
		} else {
			_ = e.store.ReleaseBackfill(end, held) // it ends by itself, if not
		}
		return fallback.Backfill{}, err
	}
	e.poke()
	return e.store.Backfill(ctx, b.ID)
}

// part is a chunk on its way from who reads to who stores.
type part struct {
	chunk fallback.BackfillChunk
	err   error // of what came after it
}

func (e *Engine) load(ctx context.Context, r io.Reader, l List, b fallback.Backfill, held fallback.BackfillLease) error {
	// The reader is never waited for: it may hang in a read that only its owner can end. It finds nobody to give to then.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts := make(chan part)
	go func() {
		defer close(parts)
		e.read(ctx, r, l, b, func(p part) bool {
			select {
			case parts <- p:
				return p.err == nil
			case <-ctx.Done():
				return false
			}
		})
	}()
	rows := b.Rows
	tick := time.NewTicker(lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C: // the input comes slowly
			if err := e.call(ctx, func(ctx context.Context) error { _, err := e.store.RenewBackfill(ctx, held, lease); return err }); err != nil {
				return err
			}
		case p, more := <-parts:
			if !more {
				return e.call(ctx, func(ctx context.Context) error { return e.store.LoadedBackfill(ctx, held) })
			}
			if rows += int64(len(p.chunk.Rows)); rows > e.cfg.Tuning().MaxRows {
				return ErrTooLong
			}
			if p.chunk.Line > 0 {
				if err := e.call(ctx, func(ctx context.Context) error { return e.store.LoadBackfill(ctx, held, p.chunk, lease) }); err != nil {
					return err
				}
				e.count(p.chunk)
			}
			if p.err != nil {
				return p.err
			}
		}
	}
}

func (e *Engine) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return f(ctx)
}

func (e *Engine) count(c fallback.BackfillChunk) {
	kinds := map[string]int{}
	for _, r := range c.Rows {
		switch {
		case r.Unreadable:
			kinds[rowUnreadable]++
		case r.Fault != "":
			kinds[rowRefused]++
		default:
			kinds[rowAddress]++
		}
	}
	for kind, n := range kinds {
		e.metrics.rows.WithLabelValues(kind).Add(float64(n))
	}
}

// read hands out the input in chunks, from where it is stored on, until give says no. An error comes with the last one.
func (e *Engine) read(ctx context.Context, r io.Reader, l List, b fallback.Backfill, give func(part) bool) {
	digest := hmac.New(sha256.New, e.cfg.DigestKey)
	in, err := newReader(r, l.Format, l.Column, digest)
	if err == nil && b.LoadedLine > 0 {
		if err = in.skip(b.LoadedLine); err == nil && !bytes.Equal(digest.Sum(nil), b.Digest) {
			err = ErrChanged
		}
	}
	if err != nil {
		give(part{err: err})
		return
	}
	var c fallback.BackfillChunk
	text := 0
	for ctx.Err() == nil {
		one, err := in.next()
		switch {
		case err == nil:
			c.Rows = append(c.Rows, e.row(one))
			text += len(one.text)
		case errors.Is(err, io.EOF):
			err = nil
			fallthrough
		default:
			if c.Line = in.lines.taken; len(c.Rows) == 0 && c.Line <= b.LoadedLine {
				c.Line = 0 // there is nothing to store
			}
			c.Digest = digest.Sum(nil)
			if err != nil && len(c.Rows) == 0 {
				c = fallback.BackfillChunk{}
			}
			if c.Line > 0 || err != nil {
				give(part{c, err})
			}
			return
		}
		if len(c.Rows) == fallback.MaxBackfillChunk || text >= maxChunkText {
			c.Line, c.Digest = in.lines.taken, digest.Sum(nil)
			if !give(part{chunk: c}) {
				return
			}
			b.LoadedLine, c, text = c.Line, fallback.BackfillChunk{}, 0
		}
	}
}

// row reads a row's text as an address.
func (e *Engine) row(one row) fallback.BackfillRow {
	out := fallback.BackfillRow{Line: one.line, Input: one.text, Fault: one.fault, Unreadable: one.fault != ""}
	if out.Unreadable {
		return out
	}
	a, err := e.judge.Read(one.text)
	if err == nil {
		out.Address, out.Fingerprint = a, e.judge.Fingerprint(a)
		return out
	}
	out.Fault = string(verdict.SyntaxInvalid)
	if r := (*normalize.Refusal)(nil); errors.As(err, &r) {
		out.Fault = string(r.Reason)
	}
	return out
}
