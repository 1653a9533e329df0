package verimail

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"

	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
)

// Where a value of a request goes.
const (
	inQuery  = "query"
	inForm   = "form"
	inJSON   = "json"
	inHeader = "header"
	inBearer = "bearer" // Authorization: Bearer
	inBasic  = "basic"  // Authorization: Basic, as the password of a fixed user
)

// slot is where the key or the address goes.
type slot struct {
	in   string
	name string // of the field; the user for inBasic
}

// param is a fixed part of every request.
type param struct {
	slot
	value any // text, number or boolean; the last two are themselves in JSON and written out elsewhere
	text  string
}

// provider is a profile at one place with one key. Never print it: the key is a field.
type provider struct {
	*Profile
	endpoint *url.URL
	host     string // scheme and host, for people
	key      secret.Text
}

func newProvider(p *Profile, base string, key secret.Text) (*provider, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, errNoURL // not the text: it may hold a password
	}
	return &provider{Profile: p, endpoint: u.JoinPath(p.path), host: u.Scheme + "://" + u.Host, key: key}, nil
}

// checkID is the key of a context under which one check's idempotency key is kept.
type checkID struct{}

// begin marks the context of one check, so that all its attempts are one to a provider that recognizes repetitions.
func (p *provider) begin(ctx context.Context) context.Context {
	if p.idempotency == "" {
		return ctx
	}
	return context.WithValue(ctx, checkID{}, rand.Text())
}

// request puts address and key where the profile says.
//
// What it returns is never sent twice by net/http. That repeats a request on a kept connection that turns out dead if it
// can be sent again from the beginning and is a GET, or has an idempotency header; and each repetition may be billed, takes
// no token of the rate and is seen by nobody. So such a request has a body that can't be had again: for a GET an empty
// one, of which nothing is seen on the wire.
func (p *provider) request(ctx context.Context, addr normalize.Address) (*http.Request, error) {
	query, form, object := url.Values{}, url.Values{}, map[string]any{}
	header := http.Header{"Accept": {"application/json"}}
	user := ""
	put := func(s slot, text string, value any) {
		switch s.in {
		case inQuery:
			query.Set(s.name, text)
		case inForm:
			form.Set(s.name, text)
		case inJSON:
			object[s.name] = value
		case inHeader:
			header.Set(s.name, text)
		case inBearer:
			header.Set("Authorization", "Bearer "+text)
		case inBasic:
			user = s.name
		}
	}
	for _, x := range p.params {
		put(x.slot, x.text, x.value)
	}
	put(p.address, addr.Text(), addr.Text())
	key := p.key.Reveal()
	if key != "" || !p.keyOptional {
		put(p.Profile.key, key, key)
	}

	var body io.Reader
	switch {
	case len(form) > 0:
		body = strings.NewReader(form.Encode())
		header.Set("Content-Type", "application/x-www-form-urlencoded")
	case len(object) > 0:
		text, err := json.Marshal(object)
		if err != nil {
			return nil, errUnsendable
		}
		body = bytes.NewReader(text)
		header.Set("Content-Type", "application/json")
	}
	u := *p.endpoint
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, p.method, u.String(), body)
	if err != nil {
		return nil, errUnsendable
	}
	req.Header = header
	if user != "" {
		req.SetBasicAuth(user, key)
	}
	if p.idempotency != "" {
		id, _ := ctx.Value(checkID{}).(string)
		if id == "" {
			id = rand.Text()
		}
		req.Header.Set(p.idempotency, id)
		req.GetBody = nil
	}
	if req.Body == nil || req.Body == http.NoBody {
		req.Body = onceOnly{}
	}
	return req, nil
}

// onceOnly is an empty body that net/http does not know to be empty, and so does not know how to send again.
type onceOnly struct{}

// Read is at the end at once.
func (onceOnly) Read([]byte) (int, error) { return 0, io.EOF }

// Close does nothing.
func (onceOnly) Close() error { return nil }
