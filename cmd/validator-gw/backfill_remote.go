package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"validator-gw/internal/api/openapi"
	"validator-gw/internal/backfill"
	"validator-gw/internal/fallback"
)

// remote is the client of a gateway elsewhere.
type remote struct {
	base   *url.URL
	key    string
	client *http.Client
}

// remoteTimeout bounds calls that stream nothing.
const remoteTimeout = 30 * time.Second

func newRemote(server, key string) (*remote, error) {
	base, err := url.Parse(server)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, usageError{errors.New("--server: write it as http://host:8080")} // the parser's error quotes it, and it may hold a password
	}
	// No time-out for the header: a list is answered when it is stored.
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true}
	return &remote{base: base, key: key, client: &http.Client{Transport: t}}, nil
}

// refusedError is a problem that the gateway answered with.
type refusedError struct {
	status       int
	code, detail string
	after        time.Duration
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("the gateway answered %d %s: %s", e.status, e.code, e.detail)
}

// Is lets an unknown id be asked for.
func (e *refusedError) Is(target error) bool {
	return target == fallback.ErrUnknownID && e.code == "unknown_id"
}

// send makes a call; the caller closes the body of an answer that is no error.
func (r *remote) send(ctx context.Context, method, path string, query url.Values, header http.Header, body io.Reader) (*http.Response, error) {
	u := r.base.JoinPath(path)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	if r.key != "" {
		req.Header.Set("Authorization", "Bearer "+r.key)
	}
	res, err := r.client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // it quotes the URL
		}
		return nil, err
	}
	if res.StatusCode < 300 {
		return res, nil
	}
	defer func() { _ = res.Body.Close() }()
	var p openapi.Problem
	text, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	_ = json.Unmarshal(text, &p) // else another server's words, which are not repeated
	refused := &refusedError{status: res.StatusCode, code: p.Code}
	if p.Detail != nil {
		refused.detail = *p.Detail
	}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil {
		refused.after = time.Duration(s) * time.Second
	}
	return nil, refused
}

// call makes a call and reads its JSON.
func (r *remote) call(ctx context.Context, method, path string, query url.Values, into any) error {
	ctx, cancel := context.WithTimeout(ctx, remoteTimeout)
	defer cancel()
	res, err := r.send(ctx, method, path, query, nil, nil)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	return json.NewDecoder(res.Body).Decode(into)
}

func (r *remote) show(ctx context.Context, id string) (b progress, err error) {
	return b, r.call(ctx, http.MethodGet, "/backfills/"+url.PathEscape(id), nil, &b)
}

func (r *remote) cancel(ctx context.Context, id string) (b progress, err error) {
	return b, r.call(ctx, http.MethodDelete, "/backfills/"+url.PathEscape(id), nil, &b)
}

// each calls f for every backfill of the key.
func (r *remote) each(ctx context.Context, f func(progress) error) error {
	for query := (url.Values{}); ; {
		var page openapi.Backfills
		if err := r.call(ctx, http.MethodGet, "/backfills", query, &page); err != nil {
			return err
		}
		for _, b := range page.Backfills {
			if err := f(progress(b)); err != nil {
				return err
			}
		}
		if page.Next == nil {
			return nil
		}
		query.Set("before", *page.Next)
	}
}

func (r *remote) results(ctx context.Context, id string, partial, asJSON bool, w io.Writer) error {
	header := http.Header{"Accept": {"text/csv"}}
	if asJSON {
		header.Set("Accept", "application/x-ndjson")
	}
	res, err := r.send(ctx, http.MethodGet, "/backfills/"+url.PathEscape(id)+"/results", url.Values{"partial": {strconv.FormatBool(partial)}}, header, nil)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, err = io.Copy(w, res.Body)
	return err
}

// farList is a list that a gateway elsewhere works off.
type farList struct {
	*remote
	list backfill.List
	path string
	in   input
}

func (f *farList) size() int64 { return f.in.size }

// How often a list that broke off is sent again from its beginning, of which the gateway reads past what it has.
const (
	maxSends  = 5
	sendAgain = 2 * time.Second
)

func (f *farList) load(ctx context.Context, read *atomic.Int64) (progress, error) {
	if f.list.Format == backfill.FormatAuto {
		f.list.Format = formatOf(f.path)
	}
	for try := 1; ; try++ {
		b, err := f.send(ctx, read)
		seek, seekable := f.in.ReadCloser.(io.Seeker)
		wait := sendAgain
		if refused, ok := errors.AsType[*refusedError](err); ok {
			if refused.after == 0 {
				return b, err
			}
			wait = refused.after
		}
		if err == nil || ctx.Err() != nil || try == maxSends || !seekable || f.list.Source == "" {
			return b, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return b, ctx.Err()
		}
		if _, err := seek.Seek(0, io.SeekStart); err != nil {
			return b, err
		}
		read.Store(0)
	}
}

// mediaOf are the media types of the formats.
var mediaOf = map[backfill.Format]string{
	backfill.FormatCSV: "text/csv", backfill.FormatNDJSON: "application/x-ndjson", backfill.FormatLines: "text/plain",
}

// formatOf tells the format by a file's name; the gateway is told by the media type.
func formatOf(path string) backfill.Format {
	path = strings.TrimSuffix(path, ".gz")
	switch {
	case asNDJSON(path):
		return backfill.FormatNDJSON
	case strings.HasSuffix(path, ".txt"):
		return backfill.FormatLines
	}
	return backfill.FormatCSV
}

func (f *farList) send(ctx context.Context, read *atomic.Int64) (b progress, err error) {
	query := url.Values{"flow": {f.list.Flow}}
	if f.list.Column != "" {
		query.Set("column", f.list.Column)
	}
	if f.list.Rate > 0 {
		query.Set("rate", strconv.FormatFloat(f.list.Rate, 'f', -1, 64))
	}
	if f.list.MaxCredits >= 0 {
		query.Set("max_credits", strconv.FormatInt(f.list.MaxCredits, 10))
	}
	if f.list.Dry {
		query.Set("dry_run", "true")
	}
	header := http.Header{"Content-Type": {mediaOf[f.list.Format]}}
	if f.list.Source != "" {
		header.Set("Idempotency-Key", f.list.Source)
	}
	// The transport closes a body; the file is needed again.
	res, err := f.remote.send(ctx, http.MethodPost, "/backfills", query, header, io.NopCloser(counting{f.in, read}))
	if err != nil {
		return b, err
	}
	defer func() { _ = res.Body.Close() }()
	return b, json.NewDecoder(res.Body).Decode(&b)
}

func (f *farList) resume(ctx context.Context, id string, maxCredits *int64) (b progress, err error) {
	query := url.Values{}
	if maxCredits != nil {
		query.Set("max_credits", strconv.FormatInt(*maxCredits, 10))
	}
	return b, f.call(ctx, http.MethodPost, "/backfills/"+url.PathEscape(id), query, &b)
}

func (f *farList) write(ctx context.Context, p *program, id, path string) error {
	return writeOutput(path, p.stdout, func(w io.Writer, asJSON bool) error { return f.results(ctx, id, false, asJSON, w) })
}
