package verimail

import (
	"context"
	"log/slog"
	"time"

	"validator-gw/internal/verdict"
)

// attempted writes the one line of an attempt that was sent, when it has ended, late or not. What is no verdict is worth
// a line by itself; a verdict is in the line of its request, so its attempt's is for debugging. Gate and breaker are as
// the attempt found them at its end, with what it said itself to the gates, and before the breaker was told.
func (c *Client) attempted(ctx context.Context, q question, r *reply) {
	level := slog.LevelInfo
	if r.outcome == verdict.AttemptAnswered {
		level = slog.LevelDebug
	}
	if !c.log.Enabled(ctx, level) {
		return
	}
	c.line(ctx, level, q, r.outcome, slog.Int("http_status", r.http), slog.String("upstream_request_id", r.upstream),
		slog.Int64("latency_ms", r.took.Milliseconds()))
}

// notSent writes the line of an attempt that was not sent. While the breaker is open that is every request, and each
// has its own line and its metric, so this one is for debugging.
func (c *Client) notSent(ctx context.Context, q question, why *refusal) {
	if c.log.Enabled(ctx, slog.LevelDebug) {
		c.line(ctx, slog.LevelDebug, q, verdict.AttemptNotSent, slog.String("reason", string(why.reason)))
	}
}

func (c *Client) line(ctx context.Context, level slog.Level, q question, outcome string, more ...slog.Attr) {
	attrs := make([]slog.Attr, 0, 12)
	attrs = append(attrs, slog.String("request_id", q.plan.RequestID), slog.String("fingerprint", q.plan.Fingerprint),
		slog.String("class", q.plan.Class.String()), slog.Int("attempt", q.attempt), slog.String("outcome", outcome))
	attrs = append(attrs, more...)
	attrs = append(attrs, slog.Int64("backoff_ms", q.backoff.Milliseconds()), slog.String("gate", c.gateNow(time.Now())),
		slog.String("breaker", stateLabel(c.breaker.state())))
	c.log.LogAttrs(ctx, level, "upstream attempt", attrs...)
}

// gateNow names the gate that is closed, or says open.
func (c *Client) gateNow(now time.Time) string {
	if _, _, closed := c.account.blocked(now); closed {
		return "account"
	}
	if _, closed := c.gate.blocked(now); closed {
		return "not_before"
	}
	return "open"
}
