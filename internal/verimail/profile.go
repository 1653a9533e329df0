package verimail

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"validator-gw/internal/verdict"
)

// ProfileVerimailV3 is the name of the default provider profile.
const ProfileVerimailV3 = "verimail_v3"

// DefaultURL is where verimail.io serves its v3 API (verimail.io, API documentation).
const DefaultURL = "https://api.verimail.io"

// Profiles lists the provider profiles that this program ships, the default first.
var Profiles = []string{ProfileVerimailV3, "abstract", "bouncer", "emailable", "hunter", "kickbox", "mailgun", "neverbounce", "reacher", "zerobounce"}

// shipped holds a file for each of Profiles.
//
//go:embed profiles/*.yaml
var shipped embed.FS

// maxProfile bounds a profile's file in bytes.
const maxProfile = 256 << 10

// Profile is the wire contract of one provider, read from a YAML file: how a question is put, and what the answers
// mean. docs/profiles.md says how one is written. It holds no key, and is immutable: share it freely.
type Profile struct {
	name    string
	version int
	pages   []string // of the provider's documentation
	checked string   // when they were read

	method      string
	base        string // empty: the operator must say where it is
	path        string
	key         slot
	keyOptional bool
	address     slot
	params      []param
	idempotency string // header; empty when the provider has none

	codes          map[int]meaning
	families       map[int]meaning // by the first digit
	bodies         []bodyRule
	require        conditions
	rows           []row
	also           []addition
	flags          []flagRule
	noFlags        conditions // when these hold, flags of the body mean nothing; none: never
	contradictions []contradiction
	freePending    bool // asking again for what is in progress costs nothing

	result, subResult, suggestion, bodyID, bodyWait place

	score      place
	scoreTimes float64
	scoreWords map[string]int

	hints     hints
	idHeaders []string
	known     map[string]bool // every word of result and sub_result that the rows name
}

// meaning is what an HTTP status or a rule on the body makes of an answer: a class, and with classTransient also the reason.
type meaning struct {
	class  class
	reason verdict.Reason
}

// bodyRule overrides the class that the HTTP status gives.
type bodyRule struct {
	codes []int // statuses, and families as their first digit; none: where the status alone would give a verdict
	when  conditions
	gives meaning
}

// row maps what the provider says to what we say. The first that holds is taken.
type row struct {
	when   conditions
	status verdict.Status
	reason verdict.Reason
	flags  []flagValue
	line   int
}

// addition adds to a final verdict.
type addition struct {
	when   conditions
	reason verdict.Reason // empty: flags only
	flags  []flagValue
}

// flagRule takes a flag from a place in the body.
type flagRule struct {
	name  string
	place place
}

type flagValue struct {
	name  string
	value verdict.Tri
}

// contradiction says which statuses can't be while its conditions hold.
type contradiction struct {
	when   conditions
	never  []verdict.Status
	except []verdict.Reason
}

// LoadProfile returns a shipped profile by its name, or reads one from a file: whatever has a path separator or ends in
// .yaml or .yml is a file. The error joins every fault of the file, each with its line and column, the field, and what to do.
func LoadProfile(nameOrFile string) (*Profile, error) {
	if slices.Contains(Profiles, nameOrFile) {
		return shippedProfile(nameOrFile)
	}
	ext := filepath.Ext(nameOrFile)
	if !strings.ContainsRune(nameOrFile, filepath.Separator) && ext != ".yaml" && ext != ".yml" {
		return nil, fmt.Errorf("%q is not one of %s, nor a file that ends in .yaml", nameOrFile, strings.Join(Profiles, ", "))
	}
	f, err := os.Open(nameOrFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxProfile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxProfile {
		return nil, fmt.Errorf("%s is larger than 256 KiB", nameOrFile)
	}
	return parseProfile(filepath.Base(nameOrFile), data)
}

// namedProfile returns a shipped profile.
func namedProfile(name string) (*Profile, error) {
	if !slices.Contains(Profiles, name) {
		return nil, fmt.Errorf("unknown upstream profile %q; known: %s", name, strings.Join(Profiles, ", "))
	}
	return shippedProfile(name)
}

func shippedProfile(name string) (*Profile, error) {
	data, err := shipped.ReadFile("profiles/" + name + ".yaml")
	if err != nil {
		return nil, err
	}
	return parseProfile(name+".yaml", data)
}

// Name is the profile's name: what answers and metrics call the provider.
func (p *Profile) Name() string { return p.name }

// Version names the profile's contract, mapping included, such as verimail_v3@1: verdicts made under another one may mean
// something else.
func (p *Profile) Version() string { return p.name + "@" + strconv.Itoa(p.version) }

// URL is the provider's own base URL; empty for one that everybody hosts for themselves.
func (p *Profile) URL() string { return p.base }

// NeedsKey says that the provider does not answer without a key.
func (p *Profile) NeedsKey() bool { return !p.keyOptional }

// answer is what one response says.
type answer struct {
	class      class
	status     verdict.Status
	reason     verdict.Reason
	reasons    []verdict.Reason // all of them, reason first
	flags      verdict.Flags
	suggestion string   // as the provider spelt it
	result     []string // the provider's own words, as it spelt them; not safe to show yet
	score      *int     // 0–100
	id         string   // from the body; not safe to show yet
	recheck    any      // what the body says about when to come back
}

// decode reads a response. A body that could not be read whole is nil.
func (p *Profile) decode(code int, body []byte) answer {
	var root any
	object, parsed := map[string]any(nil), false
	if json.Unmarshal(body, &root) == nil {
		// null has no fields, and is JSON.
		if object, parsed = root.(map[string]any); root == nil {
			parsed = true
		}
	}
	m := p.meaning(code)
	if !parsed {
		if m.class == classVerdict {
			m.class = classBadBody
		}
		return m.answer()
	}
	read := any(object)
	said := p.words(read)
	for _, b := range p.bodies {
		if b.applies(code, m) && b.when.hold(read) {
			m = b.gives
			break
		}
	}
	a := m.answer()
	if m.class == classVerdict {
		a = p.judge(read)
	}
	a.result = said
	a.id, _ = p.bodyID.in(read).(string)
	a.recheck = p.bodyWait.in(read)
	return a
}

// meaning is what the HTTP status alone says.
func (p *Profile) meaning(code int) meaning {
	if m, ok := p.codes[code]; ok {
		return m
	}
	if m, ok := p.families[code/100]; ok {
		return m
	}
	return meaning{class: defaultClass(code)}
}

func (m meaning) answer() answer {
	do := actions[m.class]
	a := answer{class: m.class, status: do.status, reason: do.reason}
	if m.class == classTransient {
		a.status, a.reason = verdict.NeedsReview, m.reason
	}
	a.reasons = []verdict.Reason{a.reason}
	return a
}

func (b *bodyRule) applies(code int, byStatus meaning) bool {
	if len(b.codes) == 0 {
		return byStatus.class == classVerdict
	}
	return slices.Contains(b.codes, code) || slices.Contains(b.codes, code/100)
}

// judge makes a verdict of a body, or says why there is none.
func (p *Profile) judge(body any) answer {
	if !p.require.hold(body) {
		a := meaning{class: classSoftError}.answer()
		a.reason, a.reasons = verdict.UpstreamBadResponse, []verdict.Reason{verdict.UpstreamBadResponse}
		return a
	}
	i := slices.IndexFunc(p.rows, func(r row) bool { return r.when.hold(body) })
	if i < 0 {
		return meaning{class: classUnmapped}.answer()
	}
	r := &p.rows[i]
	for _, c := range p.contradictions {
		if slices.Contains(c.never, r.status) && !slices.Contains(c.except, r.reason) && c.when.hold(body) {
			return meaning{class: classContradictory}.answer()
		}
	}
	if r.status == verdict.NeedsReview {
		return meaning{class: classTransient, reason: r.reason}.answer()
	}
	a := answer{class: classVerdict, status: r.status, reason: r.reason, reasons: []verdict.Reason{r.reason}}
	if r.status == verdict.Unresolved {
		a.class = classLegalStop
	}
	if len(p.noFlags) == 0 || !p.noFlags.hold(body) {
		for _, f := range p.flags {
			setFlag(&a.flags, f.name, truth(f.place.in(body)))
		}
	}
	setFlags(&a.flags, r.flags)
	for _, x := range p.also {
		if !x.when.hold(body) {
			continue
		}
		setFlags(&a.flags, x.flags)
		if x.reason != "" && !slices.Contains(a.reasons, x.reason) {
			a.reasons = append(a.reasons, x.reason)
		}
	}
	text, _ := p.suggestion.in(body).(string)
	a.suggestion = strings.TrimSpace(text)
	a.score = p.scoreOf(body)
	return a
}

// words are the provider's own words for its result: the verdict first, then up to three of its details.
func (p *Profile) words(body any) []string {
	var all []string
	for _, at := range []place{p.result, p.subResult} {
		list, ok := at.in(body).([]any)
		if !ok {
			list = []any{at.in(body)}
		}
		for _, v := range list[:min(len(list), 3)] {
			switch t := v.(type) {
			case string:
				all = append(all, strings.TrimSpace(t))
			case bool, float64:
				all = append(all, fmt.Sprint(t))
			}
		}
	}
	return all
}

// scoreOf is the provider's confidence on our scale; nil when it gave none.
func (p *Profile) scoreOf(body any) *int {
	v := p.score.in(body)
	if v == nil {
		return nil
	}
	if p.scoreWords != nil {
		if n, ok := p.scoreWords[word(v)]; ok {
			return &n
		}
		return nil
	}
	n, ok := number(v)
	if n *= p.scoreTimes; !ok || n < 0 || n > 100 {
		return nil
	}
	whole := int(n + 0.5)
	return &whole
}

// flagNames are the flags that a profile may set.
var flagNames = []string{"disposable", "role", "free", "catch_all", "mailbox_full", "subaddressed"}

func setFlags(f *verdict.Flags, values []flagValue) {
	for _, v := range values {
		setFlag(f, v.name, v.value)
	}
}

// setFlag sets one of flagNames.
func setFlag(f *verdict.Flags, name string, v verdict.Tri) {
	switch name {
	case "disposable":
		f.Disposable = v
	case "role":
		f.Role = v
	case "free":
		f.Free = v
	case "catch_all":
		f.CatchAll = v
	case "mailbox_full":
		f.MailboxFull = v
	case "subaddressed":
		f.Subaddressed = v
	}
}

var errNoURL = errors.New("upstream URL must be http(s)://host[:port], such as " + DefaultURL)

// waitOf is the wait that the body asks for, clamped to limit; 0 when it asks for none.
func (a *answer) waitOf(now time.Time, limit time.Duration) time.Duration {
	if a.recheck == nil {
		return 0
	}
	return moment(a.recheck, now, limit)
}
