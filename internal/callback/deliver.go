package callback

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Limits of one delivery. The specification advises senders to wait for 15 to 30 s.
const (
	deliverTimeout = 15 * time.Second
	dialTimeout    = 5 * time.Second
	headerLimit    = 16 << 10
	// answerLimit is how much of an answer is read, so that its connection can be used again.
	answerLimit = 4 << 10
)

const userAgent = "validator-gw"

// newClient returns a client that follows no redirect, uses no proxy (one would connect for us, past the guard) and keeps
// few connections. A nil resolver is the system's.
func newClient(private bool, resolver *net.Resolver) *http.Client {
	d := &net.Dialer{Timeout: dialTimeout, Resolver: resolver, ControlContext: guard(private)}
	return &http.Client{
		Timeout:       deliverTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: d.DialContext, TLSHandshakeTimeout: dialTimeout, MaxResponseHeaderBytes: headerLimit,
			MaxIdleConnsPerHost: perCallback, IdleConnTimeout: 30 * time.Second, ForceAttemptHTTP2: true, DisableCompression: true,
		},
	}
}

// deliver makes one POST, and says what came of it and why it is not delivered.
func (s *Sender) deliver(ctx context.Context, id string, target Target, body []byte) (result, why string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.URL, bytes.NewReader(body))
	if err != nil {
		return resultFailed, "target's URL can't be used"
	}
	now := time.Now()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", userAgent)
	req.Header.Set("Webhook-Id", id)
	req.Header.Set("Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
	req.Header.Set("Webhook-Signature", sign(target.Keys, id, now, body))
	client := s.public
	if target.Private {
		client = s.private
	}
	res, err := client.Do(req)
	if err != nil {
		return resultFailed, failure(err)
	}
	_, _ = io.CopyN(io.Discard, res.Body, answerLimit) // what it says does not matter
	_ = res.Body.Close()
	s.metrics.duration.Observe(time.Since(now).Seconds())
	switch code := res.StatusCode; {
	case code >= 200 && code < 300:
		return resultDelivered, ""
	case code >= 300 && code < 400:
		return resultFailed, "target redirects, which is refused: configure the URL that it points to"
	case code == http.StatusGone: // the specification: the receiver wants no more
		return resultGone, "target answered 410"
	default:
		return resultFailed, fmt.Sprintf("target answered %d", code)
	}
}

// failure is why a delivery failed, in words of ours: the driver's error quotes the URL, which may hold a token.
func failure(err error) string {
	var timeout net.Error
	if errors.Is(err, ErrForbidden) {
		return ErrForbidden.Error()
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "target's name could not be resolved"
	}
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "target did not answer in time"
	}
	return "target could not be reached"
}
