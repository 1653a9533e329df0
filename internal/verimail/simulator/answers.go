package simulator

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// verdictBody is the vendor's answer to a call. Code is in some clients' models, its meaning is not documented.
type verdictBody struct {
	Status      string `json:"status"`
	Email       string `json:"email"`
	Result      string `json:"result"`
	Deliverable bool   `json:"deliverable"`
	User        string `json:"user"`
	Domain      string `json:"domain"`
	DidYouMean  string `json:"did_you_mean"`
	Code        int    `json:"code"`
	Message     string `json:"message"`
}

// errorBody is the vendor's answer when there is no verdict.
type errorBody struct {
	Status  string `json:"status"`
	Email   string `json:"email,omitempty"`
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// encode is JSON of values that can't fail to encode.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("simulator: " + err.Error())
	}
	return b
}

// jsonAnswer is JSON on one line that ends with a newline, so that a terminal's prompt begins on its own.
func jsonAnswer(status int, v any) fate {
	return fate{status: status, header: http.Header{"Content-Type": {"application/json"}}, body: append(encode(v), '\n')}
}

// failure is an answer with a status other than 200.
func failure(status int, message string) fate {
	return jsonAnswer(status, errorBody{Status: "error", Code: status, Message: message})
}

// verdict is an answer 200 with this result and this boolean, which need not fit together.
func verdict(c call, word string, deliverable bool, didYouMean string) fate {
	f := jsonAnswer(http.StatusOK, verdictBody{
		Status: "success", Email: c.email, Result: word, Deliverable: deliverable,
		User: c.user, Domain: c.domain, DidYouMean: didYouMean, Code: http.StatusOK,
	})
	f.result = word
	return f
}

// result is an answer 200 as the vendor gives it: deliverable is true for that one result only.
func result(c call, word string) fate {
	return verdict(c, word, word == "deliverable", "")
}

func htmlPage(call) fate {
	return fate{
		status: http.StatusOK,
		header: http.Header{"Content-Type": {"text/html; charset=utf-8"}},
		body:   []byte("<!doctype html>\n<title>Maintenance</title>\n<p>We are back soon. result: \"deliverable\"\n"),
	}
}

// truncated is a verdict cut in the middle of its JSON, with HTTP in perfect order. The cut comes after the result,
// so that a client which searches the text instead of decoding it is noticed.
func truncated(c call) fate {
	f := result(c, "deliverable")
	f.body = f.body[:bytes.Index(f.body, []byte(`,"user"`))]
	f.result = ""
	return f
}

func emptyBody(call) fate {
	return fate{status: http.StatusOK, header: http.Header{"Content-Type": {"application/json"}}}
}

// oversized is a well-formed verdict in a body of 4 MiB, most of it an overlong message.
func oversized(c call) fate {
	f := jsonAnswer(http.StatusOK, verdictBody{
		Status: "success", Email: c.email, Result: "deliverable", Deliverable: true, User: c.user, Domain: c.domain,
		Code: http.StatusOK, Message: strings.Repeat("x", 4<<20),
	})
	f.result = "deliverable"
	return f
}

// hinted is an answer with a hint about when to come back.
func hinted(c call, status int, h Hint, seconds int) fate {
	f := failure(status, strings.ToLower(http.StatusText(status)))
	h.set(f.header, c.at, time.Duration(seconds)*time.Second)
	return f
}

// label is how the statistics name the fate: its status code, or what came in its place.
func (f fate) label() string {
	switch f.ending {
	case hangs:
		return "hang"
	case resets:
		return "reset"
	case breaks:
		return "unread"
	default:
		return strconv.Itoa(f.status)
	}
}
