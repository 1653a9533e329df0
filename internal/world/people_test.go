package world

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"validator-gw/internal/api/apitest"
)

// wireAnswer is what a client reads of an answer (openapi.yaml, Answer).
type wireAnswer struct {
	ID       string `json:"id"`
	Status   string `json:"status"`
	Decision string `json:"decision"`
	Reason   string `json:"reason"`
	Source   struct {
		Kind      string    `json:"kind"`
		CheckedAt time.Time `json:"checked_at"`
	} `json:"source"`
	PollAfterMS int64 `json:"poll_after_ms"`
}

// visit sends a visit's requests, all in the same instant, and does what such a person does next.
func (w *world) visit(ctx context.Context, v visit) {
	for i := range v.copies {
		w.people.Go(func() { w.ask(ctx, v, i) })
	}
}

func (w *world) ask(ctx context.Context, v visit, i int) {
	a := answer{visit: v.n, copy: i, kind: v.kind, address: v.address, flow: v.flowOf(i), budget: v.budget(i)}
	a.asked = time.Now()
	call := ctx
	if v.hangUp > 0 {
		var cancel context.CancelFunc
		call, cancel = context.WithTimeout(ctx, v.hangUp)
		defer cancel()
	}
	body, pause, err := w.post(call, v, a.flow, &a)
	a.got = time.Now()
	switch {
	case err != nil && v.hangUp > 0 && !a.got.Before(a.asked.Add(v.hangUp)):
		w.leave(a)
		return
	case err != nil:
		a.err = err.Error()
	}
	w.ledger.answered(a)
	if a.err != "" || body.ID == "" {
		return
	}
	r := rand.New(rand.NewPCG(w.plan.seed, uint64(v.n)<<8|uint64(i)))
	if a.code == http.StatusAccepted {
		w.follow(ctx, v, a, pause, r)
		return
	}
	if i == 0 && r.Float64() < 0.1 { // the id of a 200 is good for a look, too
		sleep(ctx, between(r, 0, time.Minute))
		w.look(ctx, a.id, a.flow, 0)
	}
}

// post makes the request and reads the answer into a.
func (w *world) post(
	ctx context.Context, v visit, flow string, a *answer,
) (body wireAnswer, retryAfter time.Duration, err error) {
	var payload []byte
	media := "application/json"
	if v.form {
		media = "application/x-www-form-urlencoded"
		fields := url.Values{"email": {v.raw}, "csrf": {"x"}}
		if flow != "" {
			fields.Set("flow", flow)
		}
		payload = []byte(fields.Encode())
	} else {
		fields := map[string]string{"email": v.raw}
		if flow != "" {
			fields["flow"] = flow
		}
		if payload, err = json.Marshal(fields); err != nil {
			return body, 0, err
		}
	}
	const endpoint = "http://gateway.example/validate"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(payload))
	if err != nil {
		return body, 0, err
	}
	req.Header.Set("Content-Type", media)
	if v.timeout > 0 {
		req.Header.Set("X-Request-Timeout-Ms", strconv.FormatInt(v.timeout.Milliseconds(), 10))
	}
	a.code, body, retryAfter, err = w.do(req)
	a.id, a.word, a.decision = body.ID, word{body.Status, body.Reason}, body.Decision
	a.source, a.checked = body.Source.Kind, body.Source.CheckedAt
	return body, retryAfter, err
}

// do sends a request with the client's key and reads the whole answer.
func (w *world) do(req *http.Request) (code int, body wireAnswer, retryAfter time.Duration, err error) {
	req.Header.Set("Authorization", "Bearer "+clientKey)
	res, err := w.client.Do(req)
	if err != nil {
		return 0, body, 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, body, 0, err
	}
	if w.answers.Add(1)%10 == 1 { // holding an answer to the document takes longer than giving it
		if req.GetBody != nil {
			req.Body, _ = req.GetBody()
		}
		if err := apitest.Conforms(req, res.StatusCode, res.Header, text); err != nil {
			return 0, body, 0, err
		}
	}
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusAccepted {
		return res.StatusCode, body, 0, nil // a problem, and none is expected: the code says enough
	}
	seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
	return res.StatusCode, body, time.Duration(seconds) * time.Second, json.Unmarshal(text, &body)
}

// leave is a caller who hung up. Soon after, the store must know of the address all the same.
func (w *world) leave(a answer) {
	time.Sleep(2 * time.Second)
	known := w.audit.known(a.address)
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	w.ledger.gone = append(w.ledger.gone, a.address)
	if !known {
		w.ledger.orphans = append(w.ledger.orphans, a)
	}
}

// follow is what comes after a 202: a look at once, since the id must be good by now, then a few more.
func (w *world) follow(ctx context.Context, v visit, a answer, pause time.Duration, r *rand.Rand) {
	s := w.look(ctx, a.id, a.flow, 0)
	for range 3 {
		if v.follow == leaves || s.word.final() || ctx.Err() != nil {
			return
		}
		if v.follow == polls {
			sleep(ctx, pause+between(r, 0, time.Second))
			s = w.look(ctx, a.id, a.flow, 0)
			pause *= 2
			continue
		}
		s = w.look(ctx, a.id, a.flow, pick(r, 500*time.Millisecond, 20*time.Second, 30*time.Second))
	}
}

// look asks for the status of an id, perhaps waiting for it, and notes what it is told.
func (w *world) look(ctx context.Context, id, flow string, wait time.Duration) look {
	s := look{id: id, wait: wait, asked: time.Now()}
	q := url.Values{}
	if wait > 0 {
		q.Set("wait", strconv.FormatInt(wait.Milliseconds(), 10)+"ms")
	}
	if flow != "" {
		q.Set("flow", flow)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://gateway.example/status/"+id+"?"+q.Encode(), nil)
	if err == nil {
		var body wireAnswer
		s.code, body, _, err = w.do(req)
		s.word, s.decision, s.checked = word{body.Status, body.Reason}, body.Decision, body.Source.CheckedAt
	}
	s.got = time.Now()
	if err != nil {
		s.err = err.Error()
	}
	w.ledger.looked(s)
	return s
}

// sleep waits for d, or less when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
