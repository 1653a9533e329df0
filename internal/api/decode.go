package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// The formats of a body that are read.
const (
	mediaJSON = "application/json"
	mediaForm = "application/x-www-form-urlencoded"
)

// maxSessionID bounds session_id, as the document says.
const maxSessionID = 128

var malformedSession = malformedBody.because("The field session_id may have 128 visible ASCII characters at most.")

// sessionText says whether s can be a session_id; the empty one is none.
func sessionText(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return len(s) <= maxSessionID
}

// fields are the fields of a body.
type fields []field

// field names one and says where it goes: to text or to flag, which stays nil when it is absent.
type field struct {
	name string
	text **string
	flag **bool
}

// validateBody is the body of POST /validate, in either format.
type validateBody struct {
	email, flow, sessionID, callback *string
	typing                           *bool
}

// readValidate reads the body of POST /validate.
func (a *API) readValidate(x *exchange, r *http.Request) (validateBody, *problem) {
	var b validateBody
	dest := fields{
		{name: "email", text: &b.email}, {name: "flow", text: &b.flow}, {name: "typing", flag: &b.typing},
		{name: "session_id", text: &b.sessionID}, {name: "callback", text: &b.callback},
	}
	media := mediaType(r.Header)
	if media != mediaJSON && media != mediaForm {
		x.Header().Set("Accept", mediaJSON+", "+mediaForm)
		return b, unsupportedMedia.plain()
	}
	body, p := a.readBody(x, r)
	if p != nil {
		return b, p
	}
	if media == mediaJSON {
		p = decodeJSON(body, dest)
	} else {
		p = decodeForm(body, dest)
	}
	switch {
	case p != nil:
		return b, p
	case b.email == nil:
		return b, missingEmail.plain()
	case b.sessionID != nil && !sessionText(*b.sessionID):
		return b, malformedSession
	case b.typing != nil && *b.typing && (b.sessionID == nil || *b.sessionID == ""):
		return b, malformedBody.because("With typing the field session_id is required.")
	}
	return b, nil
}

// mediaType returns the format of a body that can be read as it is: UTF-8 and not compressed; else nothing.
func mediaType(h http.Header) string {
	if e := h.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return ""
	}
	v := h["Content-Type"]
	if len(v) != 1 {
		return ""
	}
	if v[0] == mediaJSON || v[0] == mediaForm {
		return v[0] // the usual case, without the parser
	}
	media, params, err := mime.ParseMediaType(v[0])
	if err != nil {
		return ""
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		return ""
	}
	return media
}

// readBody reads the whole body within the limit. What it returns is good until the exchange's scratch is used again.
func (a *API) readBody(x *exchange, r *http.Request) ([]byte, *problem) {
	if r.ContentLength > a.config.MaxBody {
		return nil, a.tooLarge()
	}
	if r.ContentLength >= 0 { // the server ends the body there
		body := slices.Grow(x.scratch(), int(r.ContentLength))[:r.ContentLength]
		if _, err := io.ReadFull(r.Body, body); err != nil {
			return nil, endedEarly
		}
		x.keep(body)
		return body, nil
	}
	// The server's own writer, since it is told to close the connection of a body that goes on for too long.
	body, err := io.ReadAll(http.MaxBytesReader(x.ResponseWriter, r.Body, a.config.MaxBody))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, a.tooLarge()
		}
		return nil, endedEarly
	}
	return body, nil
}

func (a *API) tooLarge() *problem {
	return bodyTooLarge.because("The body may have " + strconv.FormatInt(a.config.MaxBody, 10) + " bytes at most.")
}

// The details of a JSON body that is refused. None quotes the body: even a field's name may be an address.
var (
	endedEarly    = malformedBody.because("The body ended early.")
	notOneObject  = malformedBody.because("The body must be one JSON object and nothing else.")
	notUTF8       = malformedBody.because("The body must be UTF-8.")
	halfSurrogate = malformedBody.because("A string has an escape that is half a character.")
	unknownField  = malformedBody.because("The body has a field that is not part of this request.")
	fieldTwice    = malformedBody.because("A field is given twice.")
	wrongType     = malformedBody.because("A field has a value of the wrong type.")
	malformedForm = malformedBody.because("The body is not a form: an escape or a separator is wrong.")
)

// decodeJSON reads one JSON object into dest. It is stricter than encoding/json, which lets unknown and repeated
// fields, names in other cases, null, trailing data and broken Unicode through.
func decodeJSON(body []byte, dest fields) *problem {
	if !utf8.Valid(body) {
		return notUTF8
	}
	if !wholeEscapes(body) {
		return halfSurrogate
	}
	if !json.Valid(body) {
		return notOneObject
	}
	// From here on the body is known to be JSON, so that to look for what ends a thing is to find it.
	rest := bytes.TrimLeft(body, jsonSpace)
	if rest[0] != '{' {
		return notOneObject
	}
	var seen uint64 // a bit for each of dest
	for rest = bytes.TrimLeft(rest[1:], jsonSpace); rest[0] != '}'; {
		if rest[0] == ',' {
			rest = bytes.TrimLeft(rest[1:], jsonSpace)
		}
		n := valueEnd(rest)
		i := dest.named(rest[:n])
		rest = bytes.TrimLeft(rest[n:], jsonSpace)
		switch {
		case i < 0:
			return unknownField
		case seen&(1<<i) != 0:
			return fieldTwice
		}
		seen |= 1 << i
		rest = bytes.TrimLeft(rest[1:], jsonSpace) // after the colon
		n = valueEnd(rest)
		if !dest[i].set(rest[:n]) {
			return wrongType
		}
		rest = bytes.TrimLeft(rest[n:], jsonSpace)
	}
	return nil
}

// jsonSpace is what may stand between the parts of JSON (RFC 8259 2).
const jsonSpace = " \t\r\n"

// named is the index of the field whose name is this JSON string, or -1.
func (f fields) named(quoted []byte) int {
	name := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(name, '\\') >= 0 {
		name = []byte(unquote(quoted))
	}
	for i := range f {
		if f[i].name == string(name) {
			return i
		}
	}
	return -1
}

// set takes a JSON value, and says whether it is of the field's type. Null is not, which would pass as absent.
func (f *field) set(value []byte) bool {
	switch {
	case f.text != nil && value[0] == '"':
		s := unquote(value)
		*f.text = &s
	case f.flag != nil && (value[0] == 't' || value[0] == 'f'):
		b := value[0] == 't'
		*f.flag = &b
	default:
		return false
	}
	return true
}

// unquote returns the text of a JSON string that is known to be one.
func unquote(quoted []byte) (s string) {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1 : len(quoted)-1])
	}
	_ = json.Unmarshal(quoted, &s) // it is valid
	return s
}

// valueEnd is the length of the JSON value at the beginning of b, which is known to be valid.
func valueEnd(b []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++ // whatever follows ends nothing
		case c == '"':
			quoted = !quoted
			if !quoted && depth == 0 {
				return i + 1
			}
		case quoted:
		case c == '{' || c == '[':
			depth++
		case (c == '}' || c == ']') && depth > 0:
			depth--
			if depth == 0 {
				return i + 1
			}
		case depth == 0 && (c == ',' || c == '}' || c == ' ' || c == '\t' || c == '\r' || c == '\n'): // after a number or a word
			return i
		}
	}
	return len(b)
}

// wholeEscapes says whether each \u escape of a surrogate in body has its other half (RFC 8259 8.2). encoding/json puts
// U+FFFD in the place of one that has not, which would be another address.
func wholeEscapes(body []byte) bool {
	for {
		i := bytes.IndexByte(body, '\\')
		if i < 0 || i+1 == len(body) {
			return true
		}
		r := escaped(body[i:])
		if !utf16.IsSurrogate(r) {
			body = body[i+2:] // an escape of one letter, or the digits after \u, which hold no backslash
			continue
		}
		if utf16.DecodeRune(r, escaped(body[i+6:])) == utf8.RuneError {
			return false
		}
		body = body[i+12:]
	}
}

// escaped returns what the \uXXXX at the beginning of b stands for, or -1.
func escaped(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}

// decodeForm reads a form into dest. Fields that dest does not name travel along and are ignored.
func decodeForm(body []byte, dest fields) *problem {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return malformedForm
	}
	for _, to := range dest {
		values := form[to.name]
		if len(values) == 0 {
			continue
		}
		if len(values) > 1 {
			return fieldTwice
		}
		if to.text != nil {
			*to.text = &values[0]
			continue
		}
		b, ok := formBool(values[0])
		if !ok {
			return wrongType
		}
		*to.flag = &b
	}
	return nil
}

// formBool reads a check box or a script's boolean.
func formBool(s string) (value, ok bool) {
	switch s {
	case "true", "on", "1":
		return true, true
	case "false", "off", "0", "":
		return false, true
	}
	return false, false
}
