package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// Bounds of the load.
const (
	maxInFlight  = 4096            // requests at once; one more fails without being sent, and breaks a promise
	maxWait      = 5 * time.Second // for one answer; the gateway promises a fifth of it
	maxAnswer    = 256 << 10       // bytes read of one answer
	statusAtOnce = 16              // GET /status at once, after the load
)

// Answer is what one request came to. Times count from the beginning of the load.
type Answer struct {
	Ask
	Sent, Got time.Duration
	Code      int // 0 when none came
	ID        string
	Status    string
	Reason    string
	Source    string
	Err       string // why no answer came
}

// Took is how long the person waited: from the instant at which the request was meant to be sent.
func (a Answer) Took() time.Duration { return a.Got - a.At }

// drive sends every ask at its instant and returns the answers in the order of the asks. It ends when all are
// answered, or with ctx, and leaves no goroutine behind. Send must keep to its context and fill what it learns.
func drive(ctx context.Context, asks []Ask, began time.Time, send func(context.Context, *Answer)) ([]Answer, error) {
	answers := make([]Answer, len(asks))
	places := make(chan struct{}, maxInFlight)
	var sending sync.WaitGroup
	defer sending.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range asks {
		a := &answers[i]
		a.Ask = asks[i]
		if wait := time.Until(began.Add(a.At)); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		select {
		case places <- struct{}{}:
		default:
			a.Sent = time.Since(began)
			a.Got, a.Err = a.Sent, "not sent: too many requests in flight"
			continue
		}
		sending.Go(func() {
			defer func() { <-places }()
			a.Sent = time.Since(began)
			one, cancel := context.WithTimeout(ctx, maxWait)
			defer cancel()
			send(one, a)
			a.Got = time.Since(began)
		})
	}
	sending.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return answers, nil
}

// client asks the gateways over connections that are kept.
type client struct {
	http *http.Client
	key  string
	urls []string
}

func newClient(key string, urls []string) *client {
	return &client{key: key, urls: urls, http: &http.Client{Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
		MaxIdleConns:        maxInFlight,
		MaxIdleConnsPerHost: maxInFlight,
		IdleConnTimeout:     time.Minute,
	}}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// body is the part of an answer that matters here.
type body struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Reason string `json:"reason"`
	Source struct {
		Kind      string    `json:"kind"`
		CheckedAt time.Time `json:"checked_at"`
	} `json:"source"`
	Trail []struct {
		Outcome string `json:"outcome"`
	} `json:"trail"`
}

// send makes the request of an answer and fills in what came of it.
func (c *client) send(ctx context.Context, a *Answer) {
	var b body
	var err error
	if a.Address == "" {
		a.Code, err = c.do(ctx, http.MethodGet, c.urls[a.Gateway]+"/livez", nil, nil)
	} else {
		question, _ := json.Marshal(map[string]string{"email": a.Address}) // strings always marshal
		a.Code, err = c.do(ctx, http.MethodPost, c.urls[a.Gateway]+"/validate", question, &b)
	}
	if err != nil {
		a.Err = err.Error()
	}
	a.ID, a.Status, a.Reason, a.Source = b.ID, b.Status, b.Reason, b.Source.Kind
}

// do makes one request. An answer of 4xx or 5xx is not decoded.
func (c *client) do(ctx context.Context, method, address string, question []byte, into any) (code int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(question))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+c.key)
	if question != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		if u, ok := err.(*url.Error); ok { //nolint:errorlint // Client.Do documents this very type
			err = u.Err // the URL is ours and tells nothing
		}
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return 0, err
	}
	if into != nil && res.StatusCode < 400 {
		if err := json.Unmarshal(text, into); err != nil {
			return res.StatusCode, fmt.Errorf("answer: %w", err)
		}
	}
	return res.StatusCode, nil
}

// Ending is what GET /status/{id} says of an id at the end of a run.
type Ending struct {
	Code     int
	Status   string
	Reason   string
	Checked  time.Time
	Outcomes []string // of the trail, oldest first
	Err      string
}

// Final says that the gateway has nothing more to do for the id.
func (e Ending) Final() bool {
	return e.Code == http.StatusOK && e.Status != "" && e.Status != "needs_review"
}

// statuses asks for each id, a few at once, each of the gateways in turn.
func (c *client) statuses(ctx context.Context, ids []string) map[string]Ending {
	endings := make([]Ending, len(ids))
	var asking sync.WaitGroup
	for worker := range statusAtOnce {
		asking.Go(func() {
			for i := worker; i < len(ids) && ctx.Err() == nil; i += statusAtOnce {
				endings[i] = c.status(ctx, c.urls[i%len(c.urls)], ids[i])
			}
		})
	}
	asking.Wait()
	all := make(map[string]Ending, len(ids))
	for i, id := range ids {
		all[id] = endings[i]
	}
	return all
}

func (c *client) status(ctx context.Context, address, id string) Ending {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	var b body
	code, err := c.do(ctx, http.MethodGet, address+"/status/"+url.PathEscape(id), nil, &b)
	e := Ending{Code: code, Status: b.Status, Reason: b.Reason, Checked: b.Source.CheckedAt}
	for _, t := range b.Trail {
		e.Outcomes = append(e.Outcomes, t.Outcome)
	}
	if err != nil {
		e.Err = err.Error()
	}
	return e
}
