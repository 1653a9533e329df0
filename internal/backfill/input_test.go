package backfill

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// readAll reads rows as "line text" or "line !fault".
func readAll(r io.Reader, f Format, column string) (rows []string, format Format, err error) {
	in, err := newReader(r, f, column, sha256.New())
	if err != nil {
		return nil, f, err
	}
	for {
		one, err := in.next()
		switch {
		case errors.Is(err, io.EOF):
			return rows, in.format, nil
		case err != nil:
			return rows, in.format, err
		case one.fault != "":
			rows = append(rows, fmt.Sprintf("%d !%s", one.line, one.fault))
		default:
			rows = append(rows, fmt.Sprintf("%d %s", one.line, one.text))
		}
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxLine+10)
	for _, c := range []struct {
		name, input, column string
		format, is          Format
		want                []string
	}{
		{"lines", "a@x.com\n\n  b@x.com  \r\nc@x.com", "", "", FormatLines, []string{"1 a@x.com", "3   b@x.com  ", "4 c@x.com"}},
		{"lines that are asked for", "name\na@x.com\n", "", FormatLines, FormatLines, []string{"1 name", "2 a@x.com"}},
		{"a line that is too long", "a@x.com\n" + long + "\nb@x.com\n", "", "", FormatLines, []string{"1 a@x.com", "2 !line_too_long", "3 b@x.com"}},
		{"a last line that is too long", "a@x.com\n" + long, "", "", FormatLines, []string{"1 a@x.com", "2 !line_too_long"}},
		{"nothing", "", "", "", FormatLines, nil},
		{"blank", "\n \r\n", "", FormatNDJSON, FormatNDJSON, nil},

		{"csv", "id,Email\n1,a@x.com\n2,b@x.com\n", "", "", FormatCSV, []string{"2 a@x.com", "3 b@x.com"}},
		{"csv of one column", "email\na@x.com\n", "", "", FormatCSV, []string{"2 a@x.com"}},
		{"csv with a mark and blanks", "\ufeff\n id ; E-Mail \n1;a@x.com\n", "", "", FormatCSV, []string{"3 a@x.com"}},
		{"csv with tabs", "id\temail\n1\ta@x.com\n", "", "", FormatCSV, []string{"2 a@x.com"}},
		{"csv with another column", "id|contact|email\n1|a@x.com|no\n", "Contact", "", FormatCSV, []string{"2 a@x.com"}},
		{"csv with quotes", "email,name\n\"a@x.com\",\"say \"\"hi\"\", x\"\n\"b@x.com\"\n", "", "", FormatCSV, []string{"2 a@x.com", "3 b@x.com"}},
		{"csv over several lines", "name,email\n\"one\ntwo, three\r\n\",a@x.com\nx,b@x.com\n", "", "", FormatCSV, []string{"2 a@x.com", "5 b@x.com"}},
		{"csv with a quote inside", "email,name\na@x.com,6\" pipe\nb@x.com,y\n", "", "", FormatCSV, []string{"2 a@x.com", "3 b@x.com"}},
		{"csv with a stray quote", "email,name\n\"a@x.com,x\nb@x.com,y\nc@x.com,\"z\"\n", "", "", FormatCSV,
			[]string{"2 !bad_quotes", "3 b@x.com", "4 c@x.com"}},
		{"csv with text behind a quote", "email,name\n\"a@x.com\"x,y\nb@x.com,y\n", "", "", FormatCSV, []string{"2 !bad_quotes", "3 b@x.com"}},
		{"csv with short records", "name,email\nx\ny,b@x.com\nz,\n", "", "", FormatCSV, []string{"2 !no_column", "3 b@x.com", "4 "}},
		{"csv that ends in a quote", "email\n\"a@x.com", "", "", FormatCSV, []string{"2 !bad_quotes"}},
		{"csv with a quote that never ends", "email\n\"" + strings.Repeat("a@x.com\n", 100), "", "", FormatCSV, nil},

		{"ndjson", `"a@x.com"` + "\n" + `{"id":1,"email":"b@x.com"}` + "\n", "", "", FormatNDJSON, []string{"1 a@x.com", "2 b@x.com"}},
		{"ndjson with another key", `{"Mail":"a@x.com"}`, "mail", "", FormatNDJSON, []string{"1 a@x.com"}},
		{"bad ndjson", "{\"email\":\"a@x.com\"}\n{\"email\":\n{\"email\":7}\n[]\n{}\n7\nnull\n\"b@x.com\n\"c@x.com\"", "", "", FormatNDJSON,
			[]string{"1 a@x.com", "2 !not_json", "3 !no_email", "4 !no_email", "5 !no_email", "6 !no_email", "7 !no_email", "8 !not_json", "9 c@x.com"}},
	} {
		rows, format, err := readAll(strings.NewReader(c.input), c.format, c.column)
		if err != nil || format != c.is {
			t.Errorf("%s: %s, %v, want %s and no error", c.name, format, err, c.is)
		}
		if c.want == nil && strings.Contains(c.name, "never ends") {
			if len(rows) != 100 || rows[0] != "2 !bad_quotes" || rows[99] != "101 a@x.com" {
				t.Errorf("%s: %d rows, %q to %q, want the first bad and the others read", c.name, len(rows), rows[0], rows[len(rows)-1])
			}
			continue
		}
		if diff := cmp.Diff(c.want, rows); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		// A reader that hands out a byte at a time changes nothing.
		if small, _, _ := readAll(byByte{strings.NewReader(c.input)}, c.format, c.column); !cmp.Equal(small, rows) {
			t.Errorf("%s by bytes: %q, want %q", c.name, small, rows)
		}
	}
}

type byByte struct{ r io.Reader }

func (b byByte) Read(p []byte) (int, error) { return b.r.Read(p[:min(len(p), 1)]) }

func TestInputsThatCantBeRead(t *testing.T) {
	t.Parallel()
	packed := zip("email\n" + strings.Repeat("a@x.com\n", 10_000))
	damaged := bytes.Clone(packed)
	damaged[len(damaged)/2] ^= 0xff
	for name, c := range map[string]struct {
		input  string
		format Format
		column string
	}{
		"no header":         {"x,y\n1,2\n", FormatCSV, ""},
		"no such column":    {"email\na@x.com\n", FormatCSV, "contact"},
		"empty csv":         {"", FormatCSV, ""},
		"nobody knows what": {"first line\n", "", ""},
		"UTF-16":            {"\xff\xfee\x00m\x00", "", ""},
		"blank lines":       {strings.Repeat("\n", 2000), "", ""},
		"cut gzip":          {string(packed[:len(packed)-20]), "", ""},
		"damaged gzip":      {string(damaged), "", ""},
		"no gzip":           {"\x1f\x8bnothing", "", ""},
		"format":            {"a@x.com", "xml", ""},
	} {
		rows, _, err := readAll(strings.NewReader(c.input), c.format, c.column)
		if !errors.Is(err, ErrInput) {
			t.Errorf("%s: %d rows, %v, want ErrInput", name, len(rows), err)
		}
		if err != nil && strings.ContainsAny(err.Error(), "@") {
			t.Errorf("%s: the error quotes the input: %v", name, err)
		}
	}
	// What goes wrong on the way is another matter.
	lost := errors.New("connection lost")
	for _, input := range []string{"email\na@x.com\n", string(packed)} {
		_, _, err := readAll(io.MultiReader(strings.NewReader(input[:len(input)/2]), failing{lost}), "", "")
		var read *ReadError
		if !errors.As(err, &read) || !errors.Is(err, lost) || errors.Is(err, ErrInput) {
			t.Errorf("lost connection: %v, want a ReadError", err)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func zip(parts ...string) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		z := gzip.NewWriter(&b)
		_, _ = io.WriteString(z, p)
		_ = z.Close()
	}
	return b.Bytes()
}

func TestGzip(t *testing.T) {
	t.Parallel()
	rows, format, err := readAll(bytes.NewReader(zip("\ufeffemail\na@x.com\n", "b@x.com\n")), "", "")
	if want := []string{"2 a@x.com", "3 b@x.com"}; err != nil || format != FormatCSV || !cmp.Equal(rows, want) {
		t.Errorf("%q, %s, %v, want %q", rows, format, err, want)
	}
}

// The digest covers what was taken, line by line, whatever was looked at ahead.
func TestDigests(t *testing.T) {
	t.Parallel()
	sum := func(input string, rows int) string {
		h := sha256.New()
		in, err := newReader(strings.NewReader(input), FormatCSV, "", h)
		if err != nil {
			t.Fatal(err)
		}
		for range rows {
			if _, err := in.next(); err != nil {
				t.Fatal(err)
			}
		}
		return fmt.Sprintf("%d %x", in.lines.taken, h.Sum(nil))
	}
	// The first record looks ahead to the end of the input, and is a bad line by itself.
	const head = "email\n\"a@x.com\n"
	if sum(head+"b@x.com\n", 1) != sum(head+"other\n", 1) {
		t.Error("what comes after it changes the digest")
	}
	if sum(head+"b@x.com\n", 2) == sum(head+"c@x.com\n", 2) {
		t.Error("another line has the same digest")
	}
	if sum("email\na\nb\n", 2) == sum("email\nab\n\n\n", 1) {
		t.Error("lines that are divided in another way have the same digest")
	}
}

func TestParseFormat(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Format{"": FormatAuto, "auto": FormatAuto, "CSV": FormatCSV, "lines": FormatLines} {
		if f, err := ParseFormat(text); f != want || err != nil {
			t.Errorf("ParseFormat(%q) = %s, %v, want %s", text, f, err, want)
		}
	}
	if _, err := ParseFormat("xml"); err == nil {
		t.Error("ParseFormat of an unknown one gave no error")
	}
}

func FuzzInputs(f *testing.F) {
	for _, s := range []string{"email\na@x.com\n", "\"a\",email\n\"x\ny\",b\n", "{\"email\":\"a\"}\n", "a@x.com\n", "\x1f\x8b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, input string) {
		for _, format := range []Format{FormatAuto, FormatCSV, FormatNDJSON, FormatLines} {
			in, err := newReader(strings.NewReader(input), format, "", sha256.New())
			if err != nil {
				continue
			}
			at := int64(0)
			for {
				one, err := in.next()
				if err != nil {
					break
				}
				if one.line <= at || one.line > in.lines.taken {
					t.Fatalf("row of line %d after line %d, with %d taken", one.line, at, in.lines.taken)
				}
				at = one.line
			}
		}
	})
}
