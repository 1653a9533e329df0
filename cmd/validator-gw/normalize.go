package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"validator-gw/internal/normalize"
	"validator-gw/internal/settings"
	"validator-gw/internal/verdict"
)

type normalizeCommand struct {
	Addresses []string `arg:"" optional:"" help:"Addresses as typed; - reads them from standard input, one a line."`
	Config    *string  `placeholder:"FILE" help:"Settings file, for its lists and its address rules (VALIDATOR_GW_CONFIG)."`
	JSON      bool     `name:"json" help:"One JSON object a line out; from standard input, one JSON value a line in: a string, or an object with email."`
}

// Run reads addresses and prints what becomes of each, without asking anyone.
func (c normalizeCommand) Run(ctx context.Context, p *program) error {
	r := newReader(map[string]*string{envConfig: c.Config}, p.environ, &config{})
	path, _ := r.find(envConfig, "")
	set, err := settings.Load(path, p.environ, statics...)
	if err != nil {
		return usageError{err}
	}
	if len(c.Addresses) == 0 {
		return usageError{errors.New("no addresses given; give some, or - to read them from standard input, one a line")}
	}
	stdin := false
	for _, text := range c.Addresses {
		stdin = stdin || text == "-"
	}
	if stdin && len(c.Addresses) > 1 {
		return usageError{errors.New("- reads the addresses from standard input: give it alone")}
	}
	return p.untilStopped(ctx, nil, func(ctx context.Context) error {
		n := &normalizer{rules: set.Address.Rules, domains: set.Domains()}
		if c.JSON {
			n.out = &jsonLines{enc: json.NewEncoder(p.stdout)}
		} else {
			n.out = newTable(p.stdout)
		}
		if !stdin {
			for _, text := range c.Addresses {
				if err := n.text(text); err != nil {
					return err
				}
			}
			return n.out.end()
		}
		return n.lines(ctx, p.stdin, c.JSON)
	})
}

// maxLine bounds one line of standard input, in bytes; it is far above the longest that Parse looks at.
const maxLine = 64 << 10

// normalizer reads addresses one by one.
type normalizer struct {
	rules   normalize.Rules
	domains *normalize.Lists
	out     interface {
		write(normalized) error
		end() error
	}
	line int // of standard input, from 1; all of them count, empty ones too
	bad  int // lines that could not be read
}

// lines reads standard input to its end, or until ctx ends.
func (n *normalizer) lines(ctx context.Context, in io.Reader, asJSON bool) error {
	type line struct {
		text string
		long bool
		err  error
	}
	next := make(chan line)
	go func() { // a read of a terminal can't be cut off: this ends with the process, or with the input
		defer close(next)
		src := bufio.NewReaderSize(in, maxLine)
		for {
			text, long, err := readLine(src)
			if err != nil && errors.Is(err, io.EOF) && text == "" {
				return
			}
			l := line{text: text, long: long}
			if err != nil && !errors.Is(err, io.EOF) {
				l.err = err
			}
			select {
			case next <- l:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			// No context.Canceled, which is a proper end elsewhere: half of an output must not pass for the whole.
			return errors.Join(errors.New("stopped before the end of standard input"), n.out.end())
		case l, ok := <-next:
			n.line++
			switch {
			case !ok:
				if err := n.out.end(); err != nil {
					return err
				}
				if n.bad > 0 {
					return fmt.Errorf("%d lines could not be read; each has its error in the output", n.bad)
				}
				return nil
			case l.err != nil:
				return errors.Join(fmt.Errorf("standard input: %w", l.err), n.out.end())
			case strings.TrimSpace(l.text) == "" && !l.long:
				continue
			}
			var err error
			if asJSON {
				err = n.json(l.text, l.long)
			} else {
				err = n.text(l.text)
			}
			if err != nil {
				return err
			}
		}
	}
}

// readLine returns the next line without its end, or its first maxLine bytes.
func readLine(src *bufio.Reader) (text string, long bool, err error) {
	line, err := src.ReadSlice('\n')
	text = strings.TrimRight(string(line), "\r\n")
	for errors.Is(err, bufio.ErrBufferFull) {
		long = true
		_, err = src.ReadSlice('\n')
	}
	return text, long, err
}

// json reads one line of JSON: a string, or an object with email.
func (n *normalizer) json(line string, long bool) error {
	fail := func(text string) error {
		n.bad++
		return n.out.write(normalized{Line: n.line, Error: text})
	}
	if long {
		return fail("line is longer than 64 KiB")
	}
	var value any
	dec := json.NewDecoder(bytes.NewReader([]byte(line)))
	if err := dec.Decode(&value); err != nil {
		return fail("line is not JSON; write a string, or an object with email")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fail("line holds more than one JSON value")
	}
	switch v := value.(type) {
	case string:
		return n.text(v)
	case map[string]any:
		if email, ok := v["email"].(string); ok {
			return n.text(email)
		}
		return fail("object has no email that is a string")
	}
	return fail("line is neither a string nor an object with email")
}

// normalized is what became of one text, as --json prints it.
type normalized struct {
	Input      *string         `json:"input,omitempty"`
	Outcome    string          `json:"outcome,omitempty"`
	Normalized *string         `json:"normalized"`
	Unicode    *string         `json:"unicode"`
	Reason     *verdict.Reason `json:"reason"`
	Suggestion *string         `json:"suggestion"`
	Flags      *verdict.Flags  `json:"flags"`
	// Disposable is the list behind that flag.
	Disposable *verdict.List `json:"disposable_list,omitempty"`
	Changes    []string      `json:"changes"`
	// Line and Error are of a line that could not be read; nothing else of it is printed.
	Line  int    `json:"-"`
	Error string `json:"-"`
}

// text decides on one text and prints it.
func (n *normalizer) text(text string) error {
	v := normalized{Input: &text, Changes: []string{}}
	addr, changes, err := n.rules.Read(text)
	if err != nil {
		v.Outcome = "invalid"
		if refusal, ok := errors.AsType[*normalize.Refusal](err); ok {
			v.Reason, v.Suggestion = &refusal.Reason, orNil(n.domains.Refine(n.rules, refusal.Suggestion))
		}
	} else {
		v.Outcome = "valid"
		h := n.domains.Look(addr)
		full := addr.Text()
		v.Normalized, v.Unicode, v.Flags, v.Suggestion = &full, orNil(addr.Unicode()), &h.Flags, orNil(h.Suggestion)
		v.Changes = append(v.Changes, changes.Names()...)
		if h.Suggestion != "" {
			v.Reason = &h.SuggestionReason
		}
		if l := h.Disposable; l != (normalize.ListRef{}) {
			v.Disposable = &verdict.List{Name: l.Name, Version: l.Version, Entries: l.Count}
		}
		if h.Denied { // stays refused, whatever else is suggested
			reason := verdict.LocalDenylist
			v.Outcome, v.Reason = "invalid", &reason
			return n.out.write(v)
		}
	}
	if v.Suggestion != nil {
		v.Outcome = "suggest"
	}
	return n.out.write(v)
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// jsonLines prints one object a line, with < and > as they are.
type jsonLines struct{ enc *json.Encoder }

func (j *jsonLines) write(v normalized) error {
	j.enc.SetEscapeHTML(false)
	if v.Error != "" {
		return j.enc.Encode(struct {
			Line  int    `json:"line"`
			Error string `json:"error"`
		}{v.Line, v.Error})
	}
	return j.enc.Encode(v)
}

func (j *jsonLines) end() error { return nil }

// table prints columns, aligned within a block of rows so that a long input is printed as it comes.
type table struct {
	w    *tabwriter.Writer
	rows int
}

const tableBlock = 100

func newTable(w io.Writer) *table {
	t := &table{w: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	fmt.Fprintln(t.w, "INPUT\tOUTCOME\tNORMALIZED\tREASON\tSUGGESTION\tFLAGS")
	return t
}

func (t *table) write(v normalized) error {
	show := func(s *string) string {
		if s == nil {
			return "-"
		}
		return printable(*s)
	}
	reason := "-"
	if v.Reason != nil {
		reason = string(*v.Reason)
	}
	fmt.Fprintf(t.w, "%s\t%s\t%s\t%s\t%s\t%s\n", show(v.Input), v.Outcome, show(v.Normalized), reason, show(v.Suggestion), flagNames(v.Flags))
	if t.rows++; t.rows%tableBlock == 0 {
		return t.w.Flush()
	}
	return nil
}

func (t *table) end() error { return t.w.Flush() }

// printable quotes what would move a terminal's cursor, be taken for a column's end, or not be seen.
func printable(s string) string {
	const most = 80
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	odd := func(r rune) bool { return r != ' ' && !unicode.IsGraphic(r) || r != ' ' && unicode.IsSpace(r) }
	if s == "" || s != strings.TrimSpace(s) || !utf8.ValidString(s) || strings.ContainsFunc(s, odd) {
		return strconv.Quote(s)
	}
	return s
}

// flagNames lists the flags that are true.
func flagNames(f *verdict.Flags) string {
	if f == nil {
		return "-"
	}
	var names []string
	for _, flag := range []struct {
		name string
		tri  verdict.Tri
	}{
		{"disposable", f.Disposable}, {"role", f.Role}, {"free", f.Free}, {"smtputf8", f.SMTPUTF8},
		{"subaddressed", f.Subaddressed}, {"mixed_script", f.MixedScript},
	} {
		if flag.tri == verdict.True {
			names = append(names, flag.name)
		}
	}
	if len(names) == 0 {
		return "-"
	}
	return strings.Join(names, ",")
}
