package verimail

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/net/http/httpguts"

	"validator-gw/internal/verdict"
)

// parseProfile makes a profile of a file's text. The error joins every fault, in the order of their lines.
func parseProfile(file string, data []byte) (*Profile, error) {
	r := &profileReader{file: file, p: &Profile{
		codes: map[int]meaning{}, families: map[int]meaning{}, known: map[string]bool{}, scoreTimes: 1, hints: defaultHints,
	}}
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	err := dec.Decode(&doc)
	switch {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%s: is empty; docs/profiles.md shows what a profile has", file)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", file, err)
	case !errors.Is(dec.Decode(new(yaml.Node)), io.EOF):
		return nil, fmt.Errorf("%s: has more than one YAML document; keep one", file)
	}
	r.profile(doc.Content[0])
	if len(r.faults) > 0 {
		slices.SortStableFunc(r.faults, func(a, b profileFault) int {
			return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.column, b.column))
		})
		errs := make([]error, len(r.faults))
		for i, f := range r.faults {
			errs[i] = fmt.Errorf("%s:%d:%d: %s: %s", file, f.line, f.column, f.field, f.text)
		}
		return nil, errors.Join(errs...)
	}
	return r.p, nil
}

type profileFault struct {
	line, column int
	field, text  string
}

// profileReader reads one file strictly: what it does not know is a fault.
type profileReader struct {
	file   string
	p      *Profile
	fields map[string]place
	faults []profileFault
}

// fault notes what is wrong at a node, and what to do.
func (r *profileReader) fault(n *yaml.Node, field, format string, args ...any) {
	if field == "" {
		field = "profile"
	}
	r.faults = append(r.faults, profileFault{n.Line, n.Column, field, fmt.Sprintf(format, args...)})
}

// section is a mapping of the file.
type section struct {
	r     *profileReader
	node  *yaml.Node
	path  string
	keys  []string // in the file's order
	names map[string]*yaml.Node
	nodes map[string]*yaml.Node
}

// section reads a mapping. Its keys must be known ones, unless there are none: then any will do.
func (r *profileReader) section(n *yaml.Node, path string, known ...string) *section {
	s := &section{r: r, node: n, path: path, names: map[string]*yaml.Node{}, nodes: map[string]*yaml.Node{}}
	n = follow(n)
	if n.Kind != yaml.MappingNode {
		r.fault(n, path, "must be a mapping of names to values")
		return s
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], follow(n.Content[i+1])
		name := key.Value
		switch {
		case s.nodes[name] != nil:
			r.fault(key, s.at(name), "is there twice; line %d has the first; keep one", s.names[name].Line)
		case len(known) > 0 && !slices.Contains(known, name):
			r.fault(key, s.at(name), "is not known here%s", nearest(name, known))
		default:
			s.keys = append(s.keys, name)
			s.names[name], s.nodes[name] = key, value
		}
	}
	return s
}

// follow returns what an alias stands for.
func follow(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func (s *section) at(key string) string {
	if s.path == "" {
		return key
	}
	return s.path + "." + key
}

// has returns the value of a key, or nil. A null counts as absent.
func (s *section) has(key string) *yaml.Node {
	if n := s.nodes[key]; n != nil && n.Tag != "!!null" {
		return n
	}
	return nil
}

// must is has for what can't be left out.
func (s *section) must(key, what string) *yaml.Node {
	n := s.has(key)
	if n == nil {
		s.r.fault(s.node, s.at(key), "is missing; %s", what)
	}
	return n
}

// text is a plain value.
func (r *profileReader) text(n *yaml.Node, field string) (string, bool) {
	n = follow(n)
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		r.fault(n, field, "must be one value")
		return "", false
	}
	return n.Value, true
}

// list is a list, or the one value that stands for a list of one.
func (r *profileReader) list(n *yaml.Node) []*yaml.Node {
	n = follow(n)
	if n.Kind != yaml.SequenceNode {
		return []*yaml.Node{n}
	}
	all := make([]*yaml.Node, len(n.Content))
	for i, e := range n.Content {
		all[i] = follow(e)
	}
	return all
}

// oneOf is a plain value out of a closed set.
func (r *profileReader) oneOf(n *yaml.Node, field string, legal ...string) (string, bool) {
	text, ok := r.text(n, field)
	if ok && !slices.Contains(legal, text) {
		r.fault(n, field, "%q is not one of %s%s", cut(text), strings.Join(legal, ", "), nearest(text, legal))
		return "", false
	}
	return text, ok
}

// cut keeps a value in a message readable.
func cut(text string) string {
	if r := []rune(text); len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return text
}

// profileKeys are the sections of a file.
var profileKeys = []string{
	"name", "version", "documentation", "checked", "request", "fields", "http", "bodies", "require", "verdicts", "also", "flags",
	"no_flags_when", "contradictions", "suggestion", "score", "request_id", "retry_after", "hints", "pending",
}

var (
	profileName  = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)
	fieldName    = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)
	pathSegment  = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	profileBase  = "such as https://api.example.com"
	profileCheck = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}$`)
)

func (r *profileReader) profile(n *yaml.Node) {
	s := r.section(n, "", profileKeys...)
	if follow(n).Kind != yaml.MappingNode {
		return
	}
	p := r.p
	if n := s.must("name", "give the provider a short one: lower-case letters, digits and _"); n != nil {
		text, ok := r.text(n, "name")
		if ok && !profileName.MatchString(text) {
			r.fault(n, "name", "%q: a name is a lower-case letter, then up to 31 of a–z, 0–9 and _", cut(text))
		}
		p.name = text
	}
	if n := s.must("version", "begin with 1, and add 1 whenever the mapping changes"); n != nil {
		text, ok := r.text(n, "version")
		v, err := strconv.Atoi(text)
		if ok && (err != nil || v < 1) {
			r.fault(n, "version", "%q is no whole number from 1", cut(text))
		}
		p.version = v
	}
	if n := s.has("documentation"); n != nil {
		for _, e := range r.list(n) {
			text, ok := r.text(e, "documentation")
			if u, err := url.Parse(text); ok && (err != nil || u.Host == "") {
				r.fault(e, "documentation", "%q is no URL", cut(text))
			}
			p.pages = append(p.pages, text)
		}
	}
	if n := s.has("checked"); n != nil {
		text, ok := r.text(n, "checked")
		if ok && !profileCheck.MatchString(text) {
			r.fault(n, "checked", "%q is no date; write it as 2026-11-30", cut(text))
		}
		p.checked = text
	}
	if n := s.must("request", "say how the provider is asked"); n != nil {
		r.request(n)
	}
	if n := s.must("fields", "name the places of the body, at least result"); n != nil {
		r.places(n)
	}
	r.answers(s)
	r.extras(s)
}

func (r *profileReader) request(n *yaml.Node) {
	p := r.p
	s := r.section(n, "request", "method", "url", "path", "key", "address", "params", "idempotency_header")
	if n := s.must("method", "write GET or POST"); n != nil {
		p.method, _ = r.oneOf(n, "request.method", "GET", "POST")
	}
	if n := s.has("url"); n != nil {
		text, ok := r.text(n, "request.url")
		u, err := url.Parse(text)
		switch {
		case !ok:
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			r.fault(n, "request.url", "is not a base URL; write it %s", profileBase)
		case u.User != nil || u.RawQuery != "" || u.Fragment != "":
			r.fault(n, "request.url", "is a base URL, without user, query or fragment; those go into key and params")
		}
		p.base = text
	}
	if n := s.must("path", "write what follows the base URL, such as v2/verify"); n != nil {
		text, ok := r.text(n, "request.path")
		if ok && strings.ContainsAny(text, "?#") {
			r.fault(n, "request.path", "has a query; write fixed parameters under request.params")
		}
		p.path = text
	}
	if n := s.must("key", "say where the key goes, such as {in: header, name: X-Api-Key}"); n != nil {
		k := r.section(n, "request.key", "in", "name", "user", "optional")
		p.key = r.slot(k, inQuery, inForm, inJSON, inHeader, inBearer, inBasic)
		if n := k.has("optional"); n != nil {
			text, _ := r.oneOf(n, "request.key.optional", "true", "false")
			p.keyOptional = text == "true"
		}
	}
	if n := s.must("address", "say where the address goes, such as {in: query, name: email}"); n != nil {
		p.address = r.slot(r.section(n, "request.address", "in", "name"), inQuery, inForm, inJSON)
	}
	if n := s.has("params"); n != nil {
		r.params(n)
	}
	if n := s.has("idempotency_header"); n != nil {
		text, ok := r.text(n, "request.idempotency_header")
		if ok && !httpguts.ValidHeaderFieldName(text) {
			r.fault(n, "request.idempotency_header", "%q is no name of a header", cut(text))
		}
		p.idempotency = text
	}
	r.layout(s)
}

// layout checks that the parts of a request fit together.
func (r *profileReader) layout(s *section) {
	p := r.p
	kinds := map[string]bool{}
	taken := map[string]string{}
	for _, x := range append([]param{{slot: p.key}, {slot: p.address}}, p.params...) {
		kinds[x.in] = true
		what := x.in + " " + strings.ToLower(x.name)
		if x.in == inQuery || x.in == inForm || x.in == inJSON {
			what = x.in + " " + x.name // these tell upper from lower case
		}
		if x.name != "" && taken[what] != "" {
			r.fault(s.node, "request", "%s is filled twice; give each value a name of its own", what)
		}
		taken[what] = what
	}
	if kinds[inForm] && kinds[inJSON] {
		r.fault(s.node, "request", "has both form and json values, and a body is one of them; choose one")
	}
	if p.method == "GET" && (kinds[inForm] || kinds[inJSON]) {
		r.fault(s.nodes["method"], "request.method", "a GET has no body; put the values into the query, or use POST")
	}
}

// reservedHeaders are those that are made here or by the transport.
var reservedHeaders = []string{
	"authorization", "host", "content-length", "content-type", "transfer-encoding", "connection", "cookie", "idempotency-key",
	"x-idempotency-key", "accept-encoding", "te", "trailer", "upgrade",
}

// slot reads where a value goes.
func (r *profileReader) slot(s *section, legal ...string) slot {
	var at slot
	n := s.must("in", "it is one of "+strings.Join(legal, ", "))
	if n == nil {
		return at
	}
	at.in, _ = r.oneOf(n, s.at("in"), legal...)
	switch at.in {
	case inBearer:
		if n := s.has("name"); n != nil {
			r.fault(n, s.at("name"), "a bearer key has no name; leave it out")
		}
	case inBasic:
		if n := s.must("user", "basic authorization wants a user; the key is the password"); n != nil {
			at.name, _ = r.text(n, s.at("user"))
		}
	case "":
	default:
		if n := s.must("name", "say what the "+at.in+" value is called"); n != nil {
			at.name, _ = r.text(n, s.at("name"))
			r.header(n, s.at("name"), at)
		}
	}
	if n := s.has("user"); n != nil && at.in != inBasic {
		r.fault(n, s.at("user"), "is for in: basic; leave it out")
	}
	return at
}

func (r *profileReader) header(n *yaml.Node, field string, at slot) {
	switch {
	case at.in != inHeader:
		if at.name == "" {
			r.fault(n, field, "is empty; write the name of the value")
		}
	case !httpguts.ValidHeaderFieldName(at.name):
		r.fault(n, field, "%q is no name of a header", cut(at.name))
	case strings.Contains(strings.ToLower(at.name), "idempotency-key"):
		r.fault(n, field, "goes into request.idempotency_header, which keeps the request from being sent twice")
	case slices.Contains(reservedHeaders, strings.ToLower(at.name)) && (field != "request.key.name" || !strings.EqualFold(at.name, "authorization")):
		r.fault(n, field, "%s is not a profile's to set; leave it out", at.name)
	}
}

func (r *profileReader) params(n *yaml.Node) {
	s := r.section(n, "request.params", inQuery, inForm, inJSON, inHeader)
	for _, in := range s.keys {
		group := r.section(s.nodes[in], s.at(in))
		for _, name := range group.keys {
			field, value := group.at(name), group.nodes[name]
			text, ok := r.text(value, field)
			if !ok {
				continue
			}
			x := param{slot: slot{in: in, name: name}, text: text, value: text}
			switch value.Tag {
			case "!!bool":
				x.value = text == "true"
			case "!!int", "!!float":
				if f, err := strconv.ParseFloat(text, 64); err == nil {
					x.value = f
				}
			}
			r.header(group.names[name], field, x.slot)
			if in == inHeader && !httpguts.ValidHeaderFieldValue(text) {
				r.fault(value, field, "can't be the value of a header")
			}
			r.p.params = append(r.p.params, x)
		}
	}
}

// places reads the names for places in the body.
func (r *profileReader) places(n *yaml.Node) {
	r.fields = map[string]place{}
	s := r.section(n, "fields")
	for _, name := range s.keys {
		field := s.at(name)
		if !fieldName.MatchString(name) {
			r.fault(s.names[name], field, "a field's name is a lower-case letter, then up to 31 of a–z, 0–9 and _")
		}
		var at place
		for _, e := range r.list(s.nodes[name]) {
			text, ok := r.text(e, field)
			if !ok {
				continue
			}
			path := strings.Split(text, ".")
			if slices.ContainsFunc(path, func(k string) bool { return !pathSegment.MatchString(k) }) {
				r.fault(e, field, "%q is no path; write keys with dots between, such as data.status or errors.0.id", cut(text))
				continue
			}
			if slices.ContainsFunc(at, func(other []string) bool { return slices.Equal(other, path) }) {
				r.fault(e, field, "%q is there twice; keep one", text)
			}
			at = append(at, path)
		}
		r.fields[name] = at
	}
	if follow(n).Kind == yaml.MappingNode {
		s.must("result", "say where the body has the verdict, such as result: status")
	}
	r.p.result, r.p.subResult = r.fields["result"], r.fields["sub_result"]
}

// place returns the place that a field stands for.
func (r *profileReader) place(n *yaml.Node, field, name string) place {
	at, ok := r.fields[name]
	if !ok && r.fields != nil {
		known := make([]string, 0, len(r.fields))
		for f := range r.fields {
			known = append(known, f)
		}
		slices.Sort(known)
		r.fault(n, field, "%q is none of fields; add it there%s", cut(name), nearest(name, known))
	}
	return at
}

var comparison = regexp.MustCompile(`^(>=|<=|>|<)\s*(-?\d+(?:\.\d+)?)$`)

// conditions reads a mapping of fields to what is asked of them.
func (r *profileReader) conditions(n *yaml.Node, path string) conditions {
	s := r.section(n, path)
	if len(s.keys) > maxConditions {
		r.fault(n, path, "has %d conditions, and %d is the most", len(s.keys), maxConditions)
		return nil
	}
	var all conditions
	for _, name := range s.keys {
		field, value := s.at(name), s.nodes[name]
		c := condition{field: name, place: r.place(s.names[name], field, name)}
		m := comparison.FindStringSubmatch(value.Value)
		switch {
		case value.Kind == yaml.ScalarNode && value.Tag == "!!bool":
			c.tri = verdict.Known(value.Value == "true")
		case value.Kind == yaml.ScalarNode && m != nil:
			c.op = m[1]
			c.limit, _ = strconv.ParseFloat(m[2], 64)
		default:
			list := r.list(value)
			if len(list) > maxWords {
				r.fault(value, field, "has %d words, and %d is the most", len(list), maxWords)
				continue
			}
			for _, e := range list {
				text, ok := r.text(e, field)
				if !ok {
					continue
				}
				w := strings.ToLower(strings.TrimSpace(text))
				if strings.Contains(strings.Trim(w, "*"), "*") {
					r.fault(e, field, "%q has a * inside; it stands for any text at the ends only", cut(text))
				}
				if slices.Contains(c.words, w) {
					r.fault(e, field, "%q is there twice; keep one", cut(text))
				}
				c.words = append(c.words, w)
			}
			if name == "result" || name == "sub_result" {
				for _, w := range c.words {
					r.p.known[w] = true
				}
			}
		}
		all = append(all, c)
	}
	if len(s.keys) == 0 && follow(n).Kind == yaml.MappingNode {
		r.fault(n, path, "asks for nothing; name a field and what it must be")
	}
	return all
}

// statusWords are the statuses that a mapping can give. needs_review is what the provider could not say.
var statusWords = []string{string(verdict.Valid), string(verdict.Invalid), string(verdict.Risky), string(verdict.NeedsReview), string(verdict.Unresolved)}

// gives reads a status and a reason, such as "risky catch_all".
func (r *profileReader) gives(n *yaml.Node, field string) (verdict.Status, verdict.Reason) {
	text, ok := r.text(n, field)
	if !ok {
		return "", ""
	}
	parts := strings.Fields(text)
	if len(parts) != 2 {
		r.fault(n, field, "%q must be a status and a reason, such as \"risky catch_all\"", cut(text))
		return "", ""
	}
	status, reason := verdict.Status(parts[0]), verdict.Reason(parts[1])
	legal := verdict.Answers(status)
	switch {
	case legal == nil:
		r.fault(n, field, "%q is no status; it is one of %s%s", cut(parts[0]), strings.Join(statusWords, ", "), nearest(parts[0], statusWords))
	case slices.Contains(legal, reason):
		return status, reason
	case len(statusesOf(reason)) > 0:
		r.fault(n, field, "%s does not go with %s; it goes with %s", reason, status, strings.Join(statusesOf(reason), " or "))
	default:
		r.fault(n, field, "%q is no reason; with %s it is one of %s%s", cut(parts[1]), status, joined(legal), nearest(parts[1], names(legal)))
	}
	return "", ""
}

func statusesOf(reason verdict.Reason) (all []string) {
	for _, s := range statusWords {
		if slices.Contains(verdict.Answers(verdict.Status(s)), reason) {
			all = append(all, s)
		}
	}
	return all
}

func names[T ~string](list []T) []string {
	all := make([]string, len(list))
	for i, w := range list {
		all[i] = string(w)
	}
	return all
}

func joined[T ~string](list []T) string { return strings.Join(names(list), ", ") }

// meaning reads a class, or a status and a reason.
func (r *profileReader) meaning(n *yaml.Node, field string) meaning {
	text, ok := r.text(n, field)
	if !ok {
		return meaning{}
	}
	if slices.Contains(profileClasses, class(text)) {
		return meaning{class: class(text)}
	}
	if !strings.Contains(text, " ") {
		r.fault(n, field, "%q is no class; it is one of %s, or a status and a reason%s", cut(text), joined(profileClasses),
			nearest(text, names(profileClasses)))
		return meaning{}
	}
	status, reason := r.gives(n, field)
	if status != "" && status != verdict.NeedsReview {
		r.fault(n, field, "an HTTP status or an error can't make an address %s; that takes a row of verdicts", status)
	}
	return meaning{class: classTransient, reason: reason}
}

// code reads an HTTP status or a family of them, such as 5xx.
func (r *profileReader) code(n *yaml.Node, field string) (code int, family bool) {
	text, ok := r.text(n, field)
	if !ok {
		return 0, false
	}
	if d, found := strings.CutSuffix(text, "xx"); found && len(d) == 1 && d[0] >= '2' && d[0] <= '5' {
		return int(d[0] - '0'), true
	}
	code, err := strconv.Atoi(text)
	if err != nil || code < 200 || code > 599 {
		r.fault(n, field, "%q is no HTTP status; write one from 200 to 599, or a family such as 4xx", cut(text))
	}
	return code, false
}

// items reads a list of mappings.
func (r *profileReader) items(n *yaml.Node, path string, known ...string) []*section {
	n = follow(n)
	if n.Kind != yaml.SequenceNode {
		r.fault(n, path, "must be a list of mappings")
		return nil
	}
	if len(n.Content) > maxRows {
		r.fault(n, path, "has %d items, and %d is the most", len(n.Content), maxRows)
		return nil
	}
	all := make([]*section, len(n.Content))
	for i, e := range n.Content {
		all[i] = r.section(e, fmt.Sprintf("%s[%d]", path, i), known...)
		all[i].node = follow(e)
	}
	return all
}

// when reads the conditions of an item.
func (r *profileReader) when(s *section) conditions {
	n := s.must("when", "say what it holds for, such as when: {result: deliverable}")
	if n == nil {
		return nil
	}
	return r.conditions(n, s.at("when"))
}

func (r *profileReader) answers(s *section) {
	p := r.p
	if n := s.has("http"); n != nil {
		h := r.section(n, "http")
		for _, key := range h.keys {
			code, family := r.code(h.names[key], h.at(key))
			m := r.meaning(h.nodes[key], h.at(key))
			if family {
				p.families[code] = m
			} else {
				p.codes[code] = m
			}
		}
	}
	if n := s.has("bodies"); n != nil {
		for _, item := range r.items(n, "bodies", "http", "when", "class") {
			b := bodyRule{when: r.when(item)}
			if n := item.has("http"); n != nil {
				for _, e := range r.list(n) {
					code, _ := r.code(e, item.at("http"))
					b.codes = append(b.codes, code)
				}
			}
			if n := item.must("class", "it is one of "+joined(profileClasses)+", or a status and a reason"); n != nil {
				b.gives = r.meaning(n, item.at("class"))
			}
			p.bodies = append(p.bodies, b)
		}
	}
	if n := s.has("require"); n != nil {
		p.require = r.conditions(n, "require")
	}
	if n := s.must("verdicts", "map what the provider says, such as - {when: {result: ok}, give: valid mailbox_accepted}"); n != nil {
		for _, item := range r.items(n, "verdicts", "when", "give", "flags") {
			x := row{when: r.when(item), line: item.node.Line}
			if n := item.must("give", "write a status and a reason, such as \"risky catch_all\""); n != nil {
				x.status, x.reason = r.gives(n, item.at("give"))
			}
			x.flags = r.flagValues(item)
			r.shadowed(item, x)
			p.rows = append(p.rows, x)
		}
		if follow(n).Kind == yaml.SequenceNode && len(p.rows) == 0 {
			r.fault(n, "verdicts", "is empty; without a row no answer is ever a verdict")
		}
	}
	if n := s.has("also"); n != nil {
		for _, item := range r.items(n, "also", "when", "reason", "flags") {
			x := addition{when: r.when(item), flags: r.flagValues(item)}
			if n := item.has("reason"); n != nil {
				legal := names(slices.Concat(verdict.ValidReasons, verdict.InvalidReasons, verdict.RiskyReasons))
				text, _ := r.oneOf(n, item.at("reason"), legal...)
				x.reason = verdict.Reason(text)
			} else if len(x.flags) == 0 {
				r.fault(item.node, item.path, "adds nothing; give it a reason or flags")
			}
			p.also = append(p.also, x)
		}
	}
	if n := s.has("contradictions"); n != nil {
		for _, item := range r.items(n, "contradictions", "when", "never", "except") {
			c := contradiction{when: r.when(item)}
			if n := item.must("never", "list the statuses that can't be then, such as [valid]"); n != nil {
				for _, e := range r.list(n) {
					text, _ := r.oneOf(e, item.at("never"), statusWords...)
					c.never = append(c.never, verdict.Status(text))
				}
			}
			if n := item.has("except"); n != nil {
				legal := names(slices.Concat(verdict.FinalReasons, verdict.MailboxReasons))
				for _, e := range r.list(n) {
					text, _ := r.oneOf(e, item.at("except"), legal...)
					c.except = append(c.except, verdict.Reason(text))
				}
			}
			p.contradictions = append(p.contradictions, c)
		}
	}
}

// flagValues reads fixed flags of a row.
func (r *profileReader) flagValues(item *section) (all []flagValue) {
	n := item.has("flags")
	if n == nil {
		return nil
	}
	s := r.section(n, item.at("flags"), flagNames...)
	for _, name := range s.keys {
		text, ok := r.oneOf(s.nodes[name], s.at(name), "true", "false")
		if ok {
			all = append(all, flagValue{name, verdict.Known(text == "true")})
		}
	}
	return all
}

// extras reads what stands beside the verdict.
func (r *profileReader) extras(s *section) {
	p := r.p
	at := func(key string) place {
		n := s.has(key)
		if n == nil {
			return nil
		}
		name, ok := r.text(n, key)
		if !ok {
			return nil
		}
		return r.place(n, key, name)
	}
	p.suggestion, p.bodyWait = at("suggestion"), at("retry_after")
	if n := s.has("flags"); n != nil {
		f := r.section(n, "flags", flagNames...)
		for _, name := range f.keys {
			if text, ok := r.text(f.nodes[name], f.at(name)); ok {
				p.flags = append(p.flags, flagRule{name, r.place(f.nodes[name], f.at(name), text)})
			}
		}
	}
	if n := s.has("no_flags_when"); n != nil {
		p.noFlags = r.conditions(n, "no_flags_when")
	}
	if n := s.has("score"); n != nil {
		r.score(r.section(n, "score", "field", "times", "words"))
	}
	if n := s.has("request_id"); n != nil {
		id := r.section(n, "request_id", "headers", "field")
		if n := id.has("headers"); n != nil {
			for _, e := range r.list(n) {
				if text, ok := r.text(e, id.at("headers")); ok {
					p.idHeaders = append(p.idHeaders, text)
				}
			}
		}
		if n := id.has("field"); n != nil {
			if text, ok := r.text(n, id.at("field")); ok {
				p.bodyID = r.place(n, id.at("field"), text)
			}
		}
	}
	if n := s.has("hints"); n != nil {
		p.hints = nil
		for _, item := range r.items(n, "hints", "header", "form") {
			var h hint
			if n := item.must("header", "name it"); n != nil {
				h.header, _ = r.text(n, item.at("header"))
			}
			if n := item.must("form", "it is http, seconds, epoch or auto"); n != nil {
				h.form, _ = r.oneOf(n, item.at("form"), formHTTP, formSeconds, formEpoch, formAuto)
			}
			p.hints = append(p.hints, h)
		}
	}
	if n := s.has("pending"); n != nil {
		text, _ := r.oneOf(n, "pending", "free", "billed")
		p.freePending = text == "free"
	}
}

func (r *profileReader) score(s *section) {
	p := r.p
	if n := s.must("field", "name the field that has it"); n != nil {
		if text, ok := r.text(n, s.at("field")); ok {
			p.score = r.place(n, s.at("field"), text)
		}
	}
	if n := s.has("times"); n != nil {
		text, ok := r.text(n, s.at("times"))
		f, err := strconv.ParseFloat(text, 64)
		if ok && (err != nil || f <= 0) {
			r.fault(n, s.at("times"), "%q is no factor; write what makes the provider's best 100", cut(text))
		}
		p.scoreTimes = f
	}
	if n := s.has("words"); n != nil {
		p.scoreWords = map[string]int{}
		w := r.section(n, s.at("words"))
		for _, name := range w.keys {
			text, ok := r.text(w.nodes[name], w.at(name))
			v, err := strconv.Atoi(text)
			if ok && (err != nil || v < 0 || v > 100) {
				r.fault(w.nodes[name], w.at(name), "%q is no score from 0 to 100", cut(text))
			}
			p.scoreWords[strings.ToLower(name)] = v
		}
	}
}

// Bounds of a file. They are far above what a provider needs, and keep one that repeats itself by aliases from taking long.
const (
	maxRows       = 400
	maxWords      = 100
	maxConditions = 12
	// maxCombinations bounds how many pairs of words of one row are looked at for a row above that has them already.
	maxCombinations = 128
)

// shadowed finds words of a row that a row above takes: the row would never be reached for them.
func (r *profileReader) shadowed(item *section, x row) {
	type pick map[string]string
	picks := []pick{{}}
	for _, c := range x.when {
		options := c.words
		if c.tri != verdict.Unknown || c.op != "" {
			options = []string{c.key()}
		}
		var next []pick
		for _, base := range picks {
			for _, w := range options {
				if len(next) >= maxCombinations {
					return
				}
				more := pick{c.field: w}
				for k, v := range base {
					more[k] = v
				}
				next = append(next, more)
			}
		}
		picks = next
	}
	for _, above := range r.p.rows {
		if len(above.when) == 0 {
			continue // faulty already
		}
		for _, pick := range picks {
			taken := !slices.ContainsFunc(above.when, func(c condition) bool {
				have, ok := pick[c.field]
				if !ok {
					return true
				}
				if c.tri != verdict.Unknown || c.op != "" {
					return c.key() != have
				}
				return !slices.ContainsFunc(c.words, func(w string) bool { return w == have || alike(have, w) && have != noWord })
			})
			if taken && len(pick) > 0 {
				var what []string
				for _, c := range x.when {
					what = append(what, c.field+" "+strconv.Quote(pick[c.field]))
				}
				r.fault(item.node, item.path, "is never reached for %s: the row on line %d takes it; put it above that one, or drop it",
					strings.Join(what, ", "), above.line)
				return
			}
		}
	}
}

// key is a condition that is no list of words, for comparing.
func (c *condition) key() string {
	if c.op != "" {
		return c.op + strconv.FormatFloat(c.limit, 'f', -1, 64)
	}
	return strconv.FormatBool(c.tri == verdict.True)
}

// nearest offers the legal name that a misspelt one is near to.
func nearest(name string, legal []string) string {
	best, least := "", max(2, len(name)/3)+1
	for _, l := range legal {
		if d := edits(name, l); d < least {
			best, least = l, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// edits is Levenshtein's distance, in bytes.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := corner
			if a[i] != b[j] {
				change++
			}
			corner, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, change)
		}
	}
	return row[len(b)]
}
