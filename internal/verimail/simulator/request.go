package simulator

import (
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	verifyPath = "/v3/verify"
	statsPath  = "/control/stats"
	modePath   = "/control/mode"
	resetPath  = "/control/reset"
	livezPath  = "/livez" // for health checks: that it answers is the answer
)

// request is what the two ways in, the http.Handler and the RoundTripper, have in common.
type request struct {
	method, path, query, contentType string

	body    []byte
	err     error // why the body is not whole
	arrived time.Time
}

// params are the parameters of a call to the verify endpoint, and what is wrong with them.
type params struct {
	email, key   string
	user, domain string
	problem      *problem
}

// problem is why a request is not a well-formed call. A fatal one is answered whatever the mode is.
type problem struct {
	status  int // 0: no answer, the connection is closed
	message string
	fatal   bool
}

func (p problem) fate() fate {
	if p.status == 0 {
		return fate{ending: breaks}
	}
	f := failure(p.status, p.message)
	if p.status == http.StatusMethodNotAllowed {
		f.header.Set("Allow", "GET, POST")
	}
	return f
}

// params reads email and key: from the query of a GET, from the form body of a POST. A POST's query is not
// looked at, so that a client that puts the key into an URL by mistake is noticed.
func (r request) params() params {
	switch {
	case r.err != nil:
		return params{problem: &problem{fatal: true}}
	case len(r.body) > maxBody:
		return params{problem: &problem{http.StatusRequestEntityTooLarge, "request body too large", true}}
	}
	source := r.query
	switch r.method {
	case http.MethodGet:
	case http.MethodPost:
		if t, _, err := mime.ParseMediaType(r.contentType); err != nil || t != "application/x-www-form-urlencoded" {
			return params{problem: &problem{http.StatusBadRequest, "a POST takes a form body", false}}
		}
		source = string(r.body)
	default:
		return params{problem: &problem{http.StatusMethodNotAllowed, "GET or POST", true}}
	}
	values, err := url.ParseQuery(source)
	if err != nil {
		return params{problem: &problem{http.StatusBadRequest, "parameters not readable", false}}
	}
	p := params{email: values.Get("email"), key: values.Get("key")}
	if p.email == "" {
		p.problem = &problem{http.StatusBadRequest, "parameter email missing", false}
	}
	p.user, p.domain = p.email, ""
	if at := strings.LastIndexByte(p.email, '@'); at >= 0 {
		p.user, p.domain = p.email[:at], p.email[at+1:]
	}
	return p
}

// call is one call to the verify endpoint while its fate is decided.
type call struct {
	params
	keyValid bool
	at       time.Time
	account  *account
	nth      int64 // of this address, from 1
	random   draws
}

// fate is what becomes of a request.
type fate struct {
	ending  ending
	status  int // of the answer; 0 when there is none
	header  http.Header
	body    []byte
	result  string // the result word in the body, if there is one
	delay   time.Duration
	counted bool // a call to the verify endpoint, so in flight until done

	exactDelay bool // delay is the address's own and replaces any latency
}

// ending is how a request ends.
type ending int

const (
	answers ending = iota // the whole answer
	drips                 // the answer, its body byte by byte
	cuts                  // the answer, the connection closed half way through its body
	hangs                 // nothing, until the client leaves or MaxHang is over
	resets                // a connection reset
	breaks                // the connection is closed without a word
)

// billable says whether the fate lets a well-formed call with a valid key be billed: it does, unless the answer is
// 400, 401, 402, 403, 429 or 5xx.
func (f fate) billable() bool {
	switch f.status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden,
		http.StatusTooManyRequests:
		return false
	default:
		return f.status < 500
	}
}
