package verimail

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
	"validator-gw/internal/verdict"
)

// ProfileVerimailV3 is the name of the default provider profile.
const ProfileVerimailV3 = "verimail_v3"

// DefaultURL is where verimail.io serves its v3 API (verimail.io, API documentation).
const DefaultURL = "https://api.verimail.io"

// Profiles lists the provider profiles that this program knows.
var Profiles = []string{ProfileVerimailV3}

// verimailV3 is the wire contract of verimail.io's v3/verify: how a question is put and an answer read.
type verimailV3 struct {
	endpoint string
	host     string // scheme and host, for people
	key      secret.Text
}

func newVerimailV3(base string, key secret.Text) (*verimailV3, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		// Not the text: it may hold a password.
		return nil, fmt.Errorf("upstream URL must be http(s)://host[:port], such as %s", DefaultURL)
	}
	return &verimailV3{endpoint: u.JoinPath("v3/verify").String(), host: u.Scheme + "://" + u.Host, key: key}, nil
}

// request puts address and key in a form body. POST and not GET: net/http repeats a GET on a reused connection that
// resets, and each repetition is billed; and a URL with address and key ends in logs.
func (p *verimailV3) request(ctx context.Context, addr normalize.Address) (*http.Request, error) {
	form := url.Values{"email": {addr.Text()}, "key": {p.key.Reveal()}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, errUnsendable
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	return req, nil
}

// wire is the answer's body. Types are loose on purpose: clients in the wild see strings for booleans.
type wire struct {
	Status      any `json:"status"`
	Result      any `json:"result"`
	Deliverable any `json:"deliverable"`
	DidYouMean  any `json:"did_you_mean"`
}

// results maps the provider's words to ours (verimail.io, docs/results). It is an open set: a word that is not
// here is unmapped, never a verdict. "undeliverable" is not a bounce: the mail provider could not be reached.
var results = map[string]struct {
	status verdict.Status
	reason verdict.Reason
	flags  verdict.Flags
}{
	"deliverable":   {verdict.Valid, verdict.MailboxAccepted, verdict.Flags{CatchAll: verdict.False, Disposable: verdict.False}},
	"hardbounce":    {verdict.Invalid, verdict.MailboxNotFound, verdict.Flags{}},
	"inbox_full":    {verdict.Risky, verdict.MailboxFull, verdict.Flags{MailboxFull: verdict.True}},
	"catch_all":     {verdict.Risky, verdict.CatchAll, verdict.Flags{CatchAll: verdict.True}},
	"disposable":    {verdict.Risky, verdict.Disposable, verdict.Flags{Disposable: verdict.True}},
	"softbounce":    {verdict.NeedsReview, verdict.MailboxTempRejected, verdict.Flags{}},
	"undeliverable": {verdict.NeedsReview, verdict.MXUnreachable, verdict.Flags{}},
	"unknown":       {verdict.NeedsReview, verdict.VerifierError, verdict.Flags{}},
}

// decoded is what a 2xx body says.
type decoded struct {
	status     verdict.Status
	reason     verdict.Reason
	flags      verdict.Flags
	suggestion string // as the provider spelt it
	unusable   bool   // an answer, but not one to act on
	garbage    bool   // not an answer at all
}

func decode(body []byte) decoded {
	var w wire
	if json.Unmarshal(body, &w) != nil {
		return decoded{reason: verdict.UpstreamBadResponse, garbage: true}
	}
	// status is the success of the call, not the verdict: reading it as the verdict lets everything pass.
	switch word(w.Status) {
	case "success":
	case "error":
		return decoded{reason: verdict.UpstreamError, unusable: true}
	default:
		return decoded{reason: verdict.UpstreamBadResponse, unusable: true}
	}
	r, known := results[word(w.Result)]
	if !known {
		return decoded{reason: verdict.Unmapped, unusable: true}
	}
	if contradicts(r.status, r.reason, truth(w.Deliverable)) {
		return decoded{reason: verdict.Contradictory, unusable: true}
	}
	suggestion, _ := w.DidYouMean.(string)
	return decoded{status: r.status, reason: r.reason, flags: r.flags, suggestion: strings.TrimSpace(suggestion)}
}

// contradicts says that the boolean and the word disagree. The vendor sets deliverable for "send" alone; what a
// catch-all host carries there is not documented, so it is not held against it.
func contradicts(status verdict.Status, reason verdict.Reason, deliverable verdict.Tri) bool {
	switch {
	case deliverable == verdict.Unknown || reason == verdict.CatchAll:
		return false
	case status == verdict.Valid:
		return deliverable == verdict.False
	default:
		return deliverable == verdict.True
	}
}

func word(v any) string {
	s, _ := v.(string)
	return strings.ToLower(strings.TrimSpace(s))
}

// truth reads the spellings of a boolean that are seen in the wild.
func truth(v any) verdict.Tri {
	switch t := v.(type) {
	case bool:
		return verdict.Known(t)
	case float64:
		if t == 0 || t == 1 {
			return verdict.Known(t == 1)
		}
	case string:
		switch word(t) {
		case "true", "yes", "1":
			return verdict.True
		case "false", "no", "0":
			return verdict.False
		}
	case map[string]any:
		return truth(t["value"])
	}
	return verdict.Unknown
}
