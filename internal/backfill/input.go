package backfill

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
)

// Format is how a list is written.
type Format string

// The formats. FormatAuto looks at the first line.
const (
	FormatAuto   Format = ""
	FormatCSV    Format = "csv"    // with a header line
	FormatNDJSON Format = "ndjson" // one JSON value a line: a string, or an object
	FormatLines  Format = "lines"  // one address a line
)

// Formats lists those that can be asked for.
var Formats = []Format{FormatCSV, FormatNDJSON, FormatLines}

// Errors of an input as a whole. A bad line is none: it is a row with a fault.
var (
	// ErrInput wraps whatever is wrong with an input.
	ErrInput = errors.New("input can't be read")
	// ErrChanged: it is not the input of which the beginning is stored.
	ErrChanged = errors.New("input differs from what is stored of it")
	// ErrTooLong: it has more rows than backfill.max_rows.
	ErrTooLong = errors.New("input has too many rows")
)

// inputError is ErrInput with what is wrong. It holds nothing of the input.
type inputError string

func (e inputError) Error() string { return ErrInput.Error() + ": " + string(e) }
func (e inputError) Unwrap() error { return ErrInput }

// ReadError is the error of whoever the input comes from.
type ReadError struct{ Err error }

// Error says what it was.
func (e *ReadError) Error() string { return "input: " + e.Err.Error() }

// Unwrap gives it.
func (e *ReadError) Unwrap() error { return e.Err }

// source marks the errors of an input.
type source struct{ io.Reader }

// Read implements io.Reader.
func (s source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &ReadError{err}
	}
	return n, err
}

// Why a row has no text.
const (
	FaultLong     = "line_too_long"
	FaultQuotes   = "bad_quotes"
	FaultNoColumn = "no_column"
	FaultNotJSON  = "not_json"
	FaultNoEmail  = "no_email"
)

// Faults lists them.
var Faults = []string{FaultLong, FaultQuotes, FaultNoColumn, FaultNotJSON, FaultNoEmail}

// row is one row of the input: its text, or why it has none.
type row struct {
	line  int64 // of its beginning, from 1
	text  string
	fault string
}

// reader reads rows. Blank lines are none.
type reader struct {
	lines  *lines
	next   func() (row, error)
	format Format
}

// usualColumns are tried when no column is named.
var usualColumns = []string{"email", "e-mail", "email_address", "email address", "emailaddress", "mail"}

// newReader begins to read an input, which may be gzipped. Column is the CSV column or JSON key with the address; empty: the usual.
func newReader(r io.Reader, f Format, column string, digest hash.Hash) (*reader, error) {
	plain, err := unzipped(r)
	if err != nil {
		return nil, err
	}
	in := &reader{lines: newLines(plain, digest), format: f}
	columns := usualColumns
	if column != "" {
		columns = []string{strings.ToLower(column)}
	}
	if in.format == FormatAuto {
		if in.format, err = in.detect(columns); err != nil {
			return nil, err
		}
	}
	switch in.format {
	case FormatLines:
		in.next = in.plainLine
	case FormatNDJSON:
		in.next = func() (row, error) { return in.jsonLine(columns) }
	case FormatCSV:
		t, err := in.header(columns)
		if err != nil {
			return nil, err
		}
		in.next = func() (row, error) { return in.record(t) }
	default:
		return nil, inputError("unknown format")
	}
	return in, nil
}

// unzipped returns what r holds, unpacked if it is gzipped, without a byte order mark.
func unzipped(r io.Reader) (io.Reader, error) {
	b := bufio.NewReaderSize(source{r}, 64<<10)
	if head, _ := b.Peek(2); bytes.Equal(head, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, inputError("gzip header")
		}
		b = bufio.NewReaderSize(zipped{z}, 64<<10)
	}
	head, _ := b.Peek(3) // an error comes again
	switch {
	case bytes.HasPrefix(head, []byte{0xef, 0xbb, 0xbf}):
		_, _ = b.Discard(3)
	case bytes.HasPrefix(head, []byte{0xff, 0xfe}), bytes.HasPrefix(head, []byte{0xfe, 0xff}):
		return nil, inputError("UTF-16; convert it to UTF-8")
	}
	return b, nil
}

// zipped tells what is wrong with packed data from what is wrong with its transport.
type zipped struct{ z *gzip.Reader }

// Read implements io.Reader.
func (z zipped) Read(p []byte) (int, error) {
	n, err := z.z.Read(p)
	if errors.Is(err, io.ErrUnexpectedEOF) && !errors.As(err, new(*ReadError)) {
		err = inputError("gzip data that is not whole")
	}
	if errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader) || errors.As(err, new(flateError)) {
		err = inputError("damaged gzip data")
	}
	return n, err
}

// first returns the first line that is not blank, and how many are before it.
func (in *reader) first() (text string, before int, err error) {
	for ; before < 1000; before++ {
		l, err := in.lines.peek(before)
		if err != nil {
			return "", 0, err
		}
		if strings.TrimSpace(l.text) != "" {
			return l.text, before, nil
		}
	}
	return "", 0, inputError("a thousand blank lines")
}

func (in *reader) detect(columns []string) (Format, error) {
	text, _, err := in.first()
	if errors.Is(err, io.EOF) {
		return FormatLines, nil // of nothing
	}
	if err != nil {
		return "", err
	}
	if _, ok := tableOf(text, columns); ok {
		return FormatCSV, nil
	}
	switch trimmed := strings.TrimSpace(text); {
	case (trimmed[0] == '{' || trimmed[0] == '"') && json.Valid([]byte(trimmed)):
		return FormatNDJSON, nil
	case strings.Count(trimmed, "@") == 1 && !strings.ContainsAny(trimmed, ",;\t|"):
		return FormatLines, nil
	}
	return "", inputError("its first line is neither a CSV header with the column, nor JSON, nor an address; name the format and the column")
}

// skip takes lines, unread, up to one of this number.
func (in *reader) skip(to int64) error {
	for in.lines.taken < to {
		if _, err := in.lines.peek(0); err != nil {
			if errors.Is(err, io.EOF) {
				return ErrChanged // it has become shorter
			}
			return err
		}
		in.lines.take(1)
	}
	if in.lines.taken != to {
		return ErrChanged // the header is longer than what is stored
	}
	return nil
}

// solid returns the next line that is not blank, not taken yet, and its number.
func (in *reader) solid() (l line, number int64, err error) {
	for {
		l, err := in.lines.peek(0)
		if err != nil {
			return l, 0, err
		}
		if l.long || strings.TrimSpace(l.text) != "" {
			return l, in.lines.taken + 1, nil
		}
		in.lines.take(1)
	}
}

func (in *reader) plainLine() (row, error) {
	l, n, err := in.solid()
	if err != nil {
		return row{}, err
	}
	in.lines.take(1)
	if l.long {
		return row{line: n, fault: FaultLong}, nil
	}
	return row{line: n, text: l.text}, nil
}

func (in *reader) jsonLine(keys []string) (row, error) {
	l, n, err := in.solid()
	if err != nil {
		return row{}, err
	}
	in.lines.take(1)
	if l.long {
		return row{line: n, fault: FaultLong}, nil
	}
	text, fault := fromJSON(strings.TrimSpace(l.text), keys)
	return row{line: n, text: text, fault: fault}, nil
}

// fromJSON returns a JSON string, or what an object has under the first key that it has.
func fromJSON(value string, keys []string) (text, fault string) {
	if value[0] == '"' {
		if json.Unmarshal([]byte(value), &text) != nil {
			return "", FaultNotJSON
		}
		return text, ""
	}
	var object map[string]json.RawMessage
	if value[0] != '{' {
		if json.Valid([]byte(value)) {
			return "", FaultNoEmail
		}
		return "", FaultNotJSON
	}
	if json.Unmarshal([]byte(value), &object) != nil {
		return "", FaultNotJSON
	}
	for key, raw := range object {
		if lower := strings.ToLower(key); lower != key && slices.Contains(keys, lower) {
			object[lower] = raw
		}
	}
	for _, key := range keys {
		if raw, ok := object[key]; ok && len(raw) > 0 && raw[0] == '"' && json.Unmarshal(raw, &text) == nil {
			return text, ""
		}
	}
	return "", FaultNoEmail
}

// String names the format for people.
func (f Format) String() string {
	if f == FormatAuto {
		return "auto"
	}
	return string(f)
}

// ParseFormat reads a format's name; empty and "auto" are FormatAuto.
func ParseFormat(text string) (Format, error) {
	if f := Format(strings.ToLower(text)); slices.Contains(Formats, f) {
		return f, nil
	}
	if text == "" || text == "auto" {
		return FormatAuto, nil
	}
	return "", fmt.Errorf("unknown format; want %s, %s or %s", FormatCSV, FormatNDJSON, FormatLines)
}
