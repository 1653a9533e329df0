package api

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"validator-gw/internal/api/openapi"
	"validator-gw/internal/validate"
)

// shelf is a Lists that keeps what it was given.
type shelf struct {
	list List
	body string
	err  error
	max  *int64
}

func (s *shelf) one() openapi.Backfill {
	return openapi.Backfill{ID: checkID, State: openapi.BackfillStateRunning, BadLines: []openapi.BadLine{{Line: 3, Reason: "not_json"}}, CreatedAt: checkedAt}
}

func (s *shelf) LoadList(_ context.Context, body io.Reader, l List) (openapi.Backfill, error) {
	s.list = l
	b, err := io.ReadAll(body)
	s.body = string(b)
	return s.one(), errors.Join(err, s.err)
}

func (s *shelf) Backfill(_ context.Context, id string) (openapi.Backfill, error) {
	if id != checkID {
		return openapi.Backfill{}, validate.ErrUnknownID
	}
	return s.one(), s.err
}

func (s *shelf) Backfills(_ context.Context, client, before string) ([]openapi.Backfill, string, error) {
	if before != "" || client != "backend" {
		return nil, "", s.err
	}
	return []openapi.Backfill{s.one()}, checkID, s.err
}

func (s *shelf) CancelBackfill(ctx context.Context, id string) (openapi.Backfill, error) {
	return s.Backfill(ctx, id)
}

func (s *shelf) ResumeBackfill(ctx context.Context, id string, most *int64) (openapi.Backfill, error) {
	s.max = most
	return s.Backfill(ctx, id)
}

func (s *shelf) Results(ctx context.Context, id string, partial bool) (func(context.Context, io.Writer, bool) error, error) {
	if _, err := s.Backfill(ctx, id); err != nil {
		return nil, err
	}
	return func(_ context.Context, w io.Writer, asJSON bool) error {
		format := "partial,json\n%v,%v\n"
		if asJSON {
			format = "{\"partial\":%v}\n{\"json\":%v}\n"
		}
		_, err := fmt.Fprintf(w, format, partial, asJSON)
		return errors.Join(err, s.err)
	}, nil
}

func withShelf(s *shelf) func(*Config) { return func(c *Config) { c.Lists = s } }

func csvBody(target, body string) request {
	return request{target: target, body: body, header: h("Content-Type", "text/csv; charset=utf-8")}
}

func TestCreateBackfill(t *testing.T) {
	t.Parallel()
	s := &shelf{}
	b := setup(t, withShelf(s))
	q := csvBody("/backfills?column=Mail&flow=high_risk&rate=5/s&max_credits=7&dry_run=true", "Mail\nana@example.com\n")
	q.header["Idempotency-Key"] = `"k"`
	res := b.do(t, q)
	if res.status != 202 || res.header.Get("Location") != "/backfills/"+checkID || res.json["id"] != checkID {
		t.Fatalf("%d %s, want 202 and where it is", res.status, res.body)
	}
	most := int64(7)
	want := List{Client: "backend", Flow: "high_risk", Column: "Mail", Format: "csv", Rate: "5/s", MaxCredits: &most, Dry: true, Key: "k"}
	if s.list.MaxCredits == nil || *s.list.MaxCredits != most {
		t.Fatalf("max_credits = %v, want 7", s.list.MaxCredits)
	}
	if s.list.MaxCredits = want.MaxCredits; s.list != want || s.body != "Mail\nana@example.com\n" {
		t.Errorf("LoadList(%+v, %q), want %+v and the body", s.list, s.body, want)
	}
	for media, format := range map[string]string{"text/plain": "lines", "application/x-ndjson": "ndjson", "application/jsonl": "ndjson"} {
		q := request{target: "/backfills", body: "a", header: h("Content-Type", media)}
		if rec := httptest.NewRecorder(); true {
			b.api.Handler().ServeHTTP(rec, q.build(t))
			if rec.Code != 202 || s.list.Format != format || s.list.Flow != "signup" || s.list.MaxCredits != nil {
				t.Errorf("%s: %d, %+v, want 202 and %s", media, rec.Code, s.list, format)
			}
		}
	}
}

// A body over 16 KiB is taken, packed or not: its size is nobody's business but the store's.
func TestCreateBackfillOfAnySize(t *testing.T) {
	t.Parallel()
	s := &shelf{}
	b := setup(t, withShelf(s))
	long := strings.Repeat("a@example.com\n", 100_000)
	if res := b.do(t, csvBody("/backfills", long)); res.status != 202 || s.body != long {
		t.Errorf("%d and %d bytes, want 202 and all of it", res.status, len(s.body))
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, long)
	_ = z.Close()
	q := csvBody("/backfills", packed.String())
	q.header["Content-Encoding"] = "gzip"
	rec := httptest.NewRecorder()
	b.api.Handler().ServeHTTP(rec, q.build(t))
	if rec.Code != 202 || s.body != packed.String() {
		t.Errorf("gzip: %d and %d bytes, want 202 and what was sent", rec.Code, len(s.body))
	}
}

func TestBackfillProblems(t *testing.T) {
	t.Parallel()
	get := func(target string) request { return request{method: "GET", target: target} }
	post := func(target string) request { return request{target: target} }
	del := func(target string) request { return request{method: "DELETE", target: target} }
	one := "/backfills/" + checkID
	for _, c := range []struct {
		name   string
		err    error
		q      request
		status int
		code   string
	}{
		{"form", nil, request{target: "/backfills", body: "a=b", header: h("Content-Type", mediaForm)}, 415, "unsupported_media_type"},
		{"another charset", nil, request{target: "/backfills", body: "a", header: h("Content-Type", "text/csv; charset=latin1")}, 415, "unsupported_media_type"},
		{"unknown flow", nil, csvBody("/backfills?flow=nope", "a"), 422, "unknown_flow"},
		{"negative bound", nil, csvBody("/backfills?max_credits=-1", "a"), 400, "malformed_parameter"},
		{"no number", nil, csvBody("/backfills?max_credits=x", "a"), 400, "malformed_parameter"},
		{"no rate", ErrListRate, csvBody("/backfills?rate=x", "a"), 400, "malformed_parameter"},
		{"no list", fmt.Errorf("%w: x", ErrListInput), csvBody("/backfills", "a"), 400, "malformed_body"},
		{"ended early", io.ErrUnexpectedEOF, csvBody("/backfills", "a"), 400, "malformed_body"},
		{"too long", ErrListTooLong, csvBody("/backfills", "a"), 413, "body_too_large"},
		{"sent elsewhere", validate.ErrKeyInFlight, csvBody("/backfills", "a"), 409, "idempotency_in_flight"},
		{"another list", validate.ErrKeyReused, csvBody("/backfills", "a"), 422, "idempotency_key_reused"},
		{"store away", validate.ErrUnavailable, csvBody("/backfills", "a"), 503, "store_unavailable"},
		{"list, store away", validate.ErrUnavailable, get("/backfills"), 503, "store_unavailable"},
		{"unknown", nil, get("/backfills/x"), 404, "unknown_id"},
		{"unknown results", nil, get("/backfills/x/results"), 404, "unknown_id"},
		{"unfinished", ErrListUnfinished, get(one + "/results"), 409, "backfill_unfinished"},
		{"malformed partial", nil, get(one + "/results?partial=x"), 400, "malformed_parameter"},
		{"unknown to cancel", nil, del("/backfills/x"), 404, "unknown_id"},
		{"ended", ErrListEnded, del(one), 409, "backfill_ended"},
		{"ended to resume", ErrListEnded, post(one), 409, "backfill_ended"},
		{"a bound below none", nil, post(one + "?max_credits=-2"), 400, "malformed_parameter"},
		{"no key", nil, request{method: "GET", target: one, key: "none"}, 401, "unauthorized"},
	} {
		b := setup(t, withShelf(&shelf{err: c.err}))
		res := b.do(t, c.q)
		if res.status != c.status || res.json["code"] != c.code {
			t.Errorf("%s: %d %s, want %d %s", c.name, res.status, res.body, c.status, c.code)
		}
		if c.code == "backfill_unfinished" && res.header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", c.name)
		}
	}
	if res := setup(t).do(t, get("/backfills")); res.status != 503 {
		t.Errorf("without lists: %d %s, want 503", res.status, res.body)
	}
}

func TestShowBackfills(t *testing.T) {
	t.Parallel()
	s := &shelf{}
	b := setup(t, withShelf(s))
	one := "/backfills/" + checkID
	if res := b.do(t, request{method: "GET", target: one}); res.status != 200 || res.json["state"] != "running" {
		t.Errorf("show: %d %s", res.status, res.body)
	}
	if res := b.do(t, request{method: "GET", target: "/backfills"}); res.status != 200 || res.json["next"] != checkID {
		t.Errorf("list: %d %s", res.status, res.body)
	}
	res := b.do(t, request{method: "GET", target: "/backfills?before=" + checkID})
	if list, ok := res.json["backfills"].([]any); res.status != 200 || res.json["next"] != nil || !ok || len(list) != 0 {
		t.Errorf("the end of the list: %d %s, want an empty page", res.status, res.body)
	}
	if res := b.do(t, request{method: "DELETE", target: one}); res.status != 202 {
		t.Errorf("cancel: %d %s", res.status, res.body)
	}
	if res := b.do(t, request{target: one}); res.status != 202 || s.max != nil {
		t.Errorf("resume: %d %s, bound %v", res.status, res.body, s.max)
	}
	if res := b.do(t, request{target: one + "?max_credits=-1"}); res.status != 202 || s.max == nil || *s.max != -1 {
		t.Errorf("resume without a bound: %d %s, bound %v", res.status, res.body, s.max)
	}
	for _, c := range []struct{ query, accept, media, want string }{
		{"", "", "text/csv", "partial,json\nfalse,false\n"},
		{"?partial=true", "application/x-ndjson", "application/x-ndjson", "{\"partial\":true}\n{\"json\":true}\n"},
	} {
		res := b.do(t, request{method: "GET", target: one + "/results" + c.query, header: h("Accept", c.accept)})
		if res.status != 200 || string(res.body) != c.want || res.header.Get("Content-Type") != c.media {
			t.Errorf("results%s: %d %s %q, want %q", c.query, res.status, res.header.Get("Content-Type"), res.body, c.want)
		}
	}
}

// Results that broke off must not look whole.
func TestResultsThatBreakOff(t *testing.T) {
	t.Parallel()
	b := setup(t, withShelf(&shelf{}))
	b.api.config.Lists = &breaking{}
	s := httptest.NewServer(b.api.Handler())
	defer s.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/backfills/x/results", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+testKey)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return // cut before the header was out
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("read %q to its end, want it cut", body)
	}
}

type breaking struct{ shelf }

func (*breaking) Results(context.Context, string, bool) (func(context.Context, io.Writer, bool) error, error) {
	return func(_ context.Context, w io.Writer, _ bool) error {
		_, _ = io.WriteString(w, strings.Repeat("row\n", 10_000))
		return errors.New("the store is away")
	}, nil
}

// A list may take any time while it moves, and ends after half a minute when it does not.
func TestBodiesThatMove(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		b := setup(t, withShelf(s))
		lis := &pipe{conns: make(chan net.Conn, 1)}
		server := Server(b.api.Handler(), nil)
		served := make(chan error, 1)
		go func() { served <- server.Serve(lis) }()
		send := func(pause time.Duration, parts int) (answer string) {
			near, far := net.Pipe()
			lis.conns <- far
			defer near.Close()
			got := make(chan string)
			go func() {
				all, _ := io.ReadAll(near)
				got <- string(all)
			}()
			_, _ = fmt.Fprintf(near, "POST /backfills HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: text/csv\r\nConnection: close\r\nContent-Length: %d\r\n\r\n",
				testKey, 2*parts)
			for range parts {
				time.Sleep(pause)
				if _, err := io.WriteString(near, "a\n"); err != nil {
					break
				}
			}
			return <-got
		}
		if answer := send(20*time.Second, 30); !strings.HasPrefix(answer, "HTTP/1.1 202") || s.body != strings.Repeat("a\n", 30) {
			t.Errorf("ten minutes that move: %.60q and %d bytes, want 202", answer, len(s.body))
		}
		if answer := send(40*time.Second, 3); !strings.HasPrefix(answer, "HTTP/1.1 400") || !strings.Contains(answer, "half a minute") {
			t.Errorf("40 s without a byte: %.300q, want 400", answer)
		}
		_ = server.Close()
		<-served
	})
}

// pipe is a listener over connections in memory.
type pipe struct{ conns chan net.Conn }

func (p *pipe) Accept() (net.Conn, error) {
	if c, ok := <-p.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p *pipe) Close() error {
	close(p.conns)
	return nil
}

func (*pipe) Addr() net.Addr { return &net.TCPAddr{} }

func h(name, value string) map[string]string { return map[string]string{name: value} }
