package backfill

import (
	"compress/flate"
	"errors"
	"io"
	"slices"
	"strings"
)

// flateError is the error of damaged packed data.
type flateError = flate.CorruptInputError

// Bounds of a record whose quoted field goes on over several lines.
const (
	maxRecordLines = 32
	maxRecord      = maxLine
)

// table is how the records of a CSV are read.
type table struct {
	delimiter byte
	column    int // from 0
}

// delimiters, by how common they are.
const delimiters = ",;\t|"

// tableOf reads a header. The delimiter is the one with which it has the column, and the most columns.
func tableOf(header string, columns []string) (t table, ok bool) {
	most := 0
	for _, d := range []byte(delimiters) {
		fields, open, good := split(header, d)
		if open || !good || len(fields) <= most {
			continue
		}
		for i := range fields {
			fields[i] = strings.ToLower(strings.TrimSpace(fields[i]))
		}
		for _, name := range columns {
			if i := slices.Index(fields, name); i >= 0 {
				t, ok, most = table{d, i}, true, len(fields)
				break
			}
		}
	}
	return t, ok
}

// header takes the header line.
func (in *reader) header(columns []string) (table, error) {
	text, before, err := in.first()
	if errors.Is(err, io.EOF) {
		return table{}, inputError("it is empty; a CSV has a header line")
	}
	if err != nil {
		return table{}, err
	}
	t, ok := tableOf(text, columns)
	if !ok {
		return table{}, inputError("its header line does not have the column")
	}
	in.lines.take(before + 1)
	return t, nil
}

// record reads one record. A quoted field may go on over several lines; when it finds no end, or goes on after it, the line on
// which the record began is bad, and the next is a new beginning: a stray quote costs one line and not the rest of the file.
func (in *reader) record(t table) (row, error) {
	first, n, err := in.solid()
	if err != nil {
		return row{}, err
	}
	if first.long {
		in.lines.take(1)
		return row{line: n, fault: FaultLong}, nil
	}
	text := first.text
	for used := 1; ; used++ {
		fields, open, good := split(text, t.delimiter)
		if good && !open {
			in.lines.take(used)
			if t.column >= len(fields) {
				return row{line: n, fault: FaultNoColumn}, nil
			}
			return row{line: n, text: fields[t.column]}, nil
		}
		if good && used < maxRecordLines {
			more, err := in.lines.peek(used)
			if err == nil && !more.long && len(text)+len(more.text) < maxRecord {
				text += "\n" + more.text
				continue
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return row{}, err
			}
		}
		in.lines.take(1)
		return row{line: n, fault: FaultQuotes}, nil
	}
}

// split divides a record into its fields (RFC 4180). Open says that it ends inside of a quoted one; good is false when there is
// something behind the closing quote. A quote inside of a field that does not begin with one is a character like any other.
func split(text string, delimiter byte) (fields []string, open, good bool) {
	for {
		if !strings.HasPrefix(text, `"`) {
			field, rest, more := strings.Cut(text, string(rune(delimiter)))
			fields = append(fields, field)
			if !more {
				return fields, false, true
			}
			text = rest
			continue
		}
		field, rest, closed := quoted(text[1:])
		switch {
		case !closed:
			return fields, true, true
		case rest == "":
			return append(fields, field), false, true
		case rest[0] != delimiter:
			return fields, false, false
		}
		fields, text = append(fields, field), rest[1:]
	}
}

// quoted reads up to the closing quote; two quotes are one.
func quoted(text string) (field, rest string, closed bool) {
	var b strings.Builder
	for {
		i := strings.IndexByte(text, '"')
		switch {
		case i < 0:
			return "", "", false
		case i+1 < len(text) && text[i+1] == '"':
			b.WriteString(text[:i+1])
			text = text[i+2:]
		default:
			b.WriteString(text[:i])
			return b.String(), text[i+1:], true
		}
	}
}
