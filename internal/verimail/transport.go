package verimail

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// NewTransport returns a transport for the upstream: connections are kept for conns calls at a time, so that none is
// opened anew while traffic is steady, and every phase before the answer has a limit of its own below the call's.
func NewTransport(conns int) *http.Transport {
	dialer := &net.Dialer{Timeout: 2 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    2 * time.Second,
		MaxIdleConns:           conns,
		MaxIdleConnsPerHost:    conns,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 32 << 10,
		ForceAttemptHTTP2:      true, // not tried by itself once the TLS settings or the dialer are ours
		// All calls share one HTTP/2 connection. When its peer vanishes without a word, the kernel notices after
		// a quarter of an hour; a ping notices in ten seconds.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second},
	}
}

// sendOnce keeps net/http from sending a request again by itself. Over HTTP/2 it does so up to six times when the
// server sheds a call (REFUSED_STREAM), past the rate, the gates and the retry budget; it can only while it can get the
// body again. (Over HTTP/1 a POST is not sent again once a byte of it was written.)
type sendOnce struct{ http.RoundTripper }

// RoundTrip sends r once. Where a redirect would lead is taken off: http.Client reads it even if it does not go there, and
// makes an error of one that it can't read, which would look like a broken connection and be asked again.
func (s sendOnce) RoundTrip(r *http.Request) (*http.Response, error) {
	once := *r // a shallow copy, as http.Request.WithContext makes one: r itself must not be changed
	once.GetBody = nil
	res, err := s.RoundTripper.RoundTrip(&once)
	if res != nil {
		res.Header.Del("Location")
	}
	return res, err
}

// CloseIdleConnections closes those of the transport below.
func (s sendOnce) CloseIdleConnections() {
	if t, ok := s.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}
