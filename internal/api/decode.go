package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
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

// maxSessionID bounds session_id, as the document says; it counts characters.
const maxSessionID = 128

// fields names the fields of a body and where each goes: a **string or a **bool, which stays nil when it is absent.
type fields map[string]any

// validateBody is the body of POST /validate, in either format.
type validateBody struct {
	email, flow, sessionID, callback *string
	typing                           *bool
}

// readValidate reads the body of POST /validate.
func (a *API) readValidate(x *exchange, r *http.Request) (validateBody, *problem) {
	var b validateBody
	dest := fields{
		"email": &b.email, "flow": &b.flow, "typing": &b.typing, "session_id": &b.sessionID, "callback": &b.callback,
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
	case b.sessionID != nil && utf8.RuneCountInString(*b.sessionID) > maxSessionID:
		return b, malformedBody.because("The field session_id may have 128 characters at most.")
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

// readBody reads the whole body within the limit.
func (a *API) readBody(x *exchange, r *http.Request) ([]byte, *problem) {
	if r.ContentLength > a.config.MaxBody {
		return nil, a.tooLarge()
	}
	// The server's own writer, since it is told to close the connection of a body that goes on for too long.
	body, err := io.ReadAll(http.MaxBytesReader(x.ResponseWriter, r.Body, a.config.MaxBody))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, a.tooLarge()
		}
		return nil, malformedBody.because("The body ended early.")
	}
	return body, nil
}

func (a *API) tooLarge() *problem {
	return bodyTooLarge.because("The body may have " + strconv.FormatInt(a.config.MaxBody, 10) + " bytes at most.")
}

// The details of a JSON body that is refused. None quotes the body: even a field's name may be an address.
var (
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
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return notOneObject
	}
	seen := make(map[string]bool, len(dest))
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return notOneObject
		}
		name := t.(string) // the decoder lets only strings be names
		to, known := dest[name]
		switch {
		case !known:
			return unknownField
		case seen[name]:
			return fieldTwice
		}
		seen[name] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return notOneObject
		}
		if value[0] == 'n' || json.Unmarshal(value, to) != nil { // null would pass as absent
			return wrongType
		}
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return notOneObject
	}
	if _, err := d.Token(); err != io.EOF {
		return notOneObject
	}
	return nil
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
	for name, to := range dest {
		values := form[name]
		if len(values) == 0 {
			continue
		}
		if len(values) > 1 {
			return fieldTwice
		}
		switch to := to.(type) {
		case **string:
			*to = &values[0]
		case **bool:
			b, ok := formBool(values[0])
			if !ok {
				return wrongType
			}
			*to = &b
		}
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
