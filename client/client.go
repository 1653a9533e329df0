// Package client is the Go client of validator-gw. Its types and calls are generated from openapi.yaml; what is written
// by hand is a way to give the key, and a way from a response to its one answer or its one error:
//
//	c, err := client.NewClientWithResponses("https://validator.example.com", client.WithKey(key),
//		client.WithHTTPClient(&http.Client{Timeout: 2 * time.Second}))
//	res, err := c.ValidateAddressWithResponse(ctx, nil, client.ValidateRequest{Email: address})
//	answer, err := res.Answer()
//	switch answer.Decision { ... }
//
// Unless another is given, the http.Client has no timeout: bound each call by its context. The client does not retry;
// a Problem says in RetryAfterMs when trying again makes sense.
package client

import (
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
)

//go:generate go tool -modfile=../tools/go.mod oapi-codegen -config codegen.yaml ../openapi.yaml

// WithKey sends key with every request.
func WithKey(key string) ClientOption {
	return WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", "Bearer "+key)
		return nil
	})
}

// Error says what kind of error it was and how the gateway's log names it. A *Problem is what Answer returns for every
// error that the gateway itself gave; ask with errors.As, and compare Code.
func (p *Problem) Error() string {
	return fmt.Sprintf("validator-gw: %s (%d %s, correlation id %s)", p.Title, p.Status, p.Code, p.CorrelationID)
}

// StatusError is a response that is neither an answer nor a Problem, such as a proxy's.
type StatusError struct {
	Status int // the HTTP status
}

// Error says the status. The body is left out: it may be anything.
func (e *StatusError) Error() string {
	return fmt.Sprintf("validator-gw: unexpected response with status %d", e.Status)
}

// Answer returns the answer, final (200) or not known yet (202, status needs_review). The error is a *Problem or a
// *StatusError.
func (r *ValidateAddressResponse) Answer() (*Answer, error) {
	return answer(r.HTTPResponse, r.Body, r.JSON200, r.JSON202)
}

// Answer returns what is known of the check by now. The error is a *Problem or a *StatusError.
func (r *GetStatusResponse) Answer() (*Answer, error) {
	return answer(r.HTTPResponse, r.Body, r.JSON200)
}

func answer(res *http.Response, body []byte, answers ...*Answer) (*Answer, error) {
	for _, a := range answers {
		if a != nil {
			return a, nil
		}
	}
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	var p Problem
	if media == "application/problem+json" && json.Unmarshal(body, &p) == nil && p.Code != "" {
		return nil, &p
	}
	return nil, &StatusError{Status: res.StatusCode}
}
