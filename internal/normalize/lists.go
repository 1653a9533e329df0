package normalize

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/net/publicsuffix"

	"validator-gw/internal/verdict"
)

// Own has the operator's own lists of domains. A domain stands for itself and for every domain below it; where
// both lists have a parent of a domain, the longer one counts. Domains beyond ASCII may be written either way.
type Own struct {
	// Allow beats the shipped lists: nothing below is called disposable or a misspelling.
	Allow []string
	// Deny is for what the operator won't have.
	Deny []string
	// DenyMajor names the major providers that Deny is meant to cover; without it, that is an error.
	DenyMajor []string
	// Rules say which domains there are: a list may name those under a top-level domain that only they know. The
	// zero value is the default.
	Rules Rules
}

// maxFaults bounds the faults told of one list. Who pasted a file of URLs learns it from the first few, and a log
// has no place for tens of thousands.
const maxFaults = 20

// Lists tells what the shipped lists and the operator's own know of an address. It doesn't change, and is safe
// for concurrent use; for other lists make another.
type Lists struct {
	own    map[string]ruling
	labels int // the most labels of a name in own
	seen   seen
}

// facts are what the lists know of a domain, whoever has an address there.
type facts struct {
	ruled      ruling
	free       bool
	disposable verdict.Tri
	meant      string // the domain that was probably meant, and why; or nothing
	reason     verdict.Reason
}

// seen remembers the facts of domains that were asked about, since most addresses are at few domains, and a domain that no
// list has costs as much to look for as all the rest of a cached answer. Over its bound it begins anew. Safe for concurrent use.
type seen struct {
	m atomic.Pointer[sync.Map] // of domain to facts
	n atomic.Int64             // about how many
}

// maxSeen bounds seen: a few hundred kilobytes.
const maxSeen = 4096

func (s *seen) of(domain string, find func() facts) facts {
	m := s.m.Load()
	if f, ok := m.Load(domain); ok {
		return f.(facts)
	}
	f := find()
	if s.n.Add(1) > maxSeen {
		m = &sync.Map{}
		s.m.Store(m)
		s.n.Store(1)
	}
	m.Store(strings.Clone(domain), f)
	return f
}

// ruling is the operator's word on a domain.
type ruling uint8

const (
	noRuling ruling = iota
	allow
	deny
)

// Settings of the operator's lists, as errors name them.
const (
	allowSetting     = "lists.allow"
	denySetting      = "lists.deny"
	denyMajorSetting = "lists.deny_major"
)

// NewLists returns the shipped lists with the operator's own. Its error joins what is wrong with each entry,
// and says what to do about it; of each list it tells the first maxFaults, and how many more there are. An entry
// that holds an address is not quoted.
func NewLists(own Own) (*Lists, error) {
	l := &Lists{own: make(map[string]ruling, len(own.Allow)+len(own.Deny))}
	l.seen.m.Store(&sync.Map{})
	var faults []error
	read := func(setting string, entries []string, take func(i int, domain string) error) {
		wrong := 0
		for i, entry := range entries {
			domain, err := listed(entry, own.Rules)
			if err == nil {
				err = take(i, domain)
			}
			if err == nil {
				continue
			}
			if wrong++; wrong <= maxFaults {
				faults = append(faults, fmt.Errorf("%s, entry %d: %w", setting, i+1, err))
			}
		}
		if wrong > maxFaults {
			faults = append(faults, fmt.Errorf("%s: %d more entries are wrong", setting, wrong-maxFaults))
		}
	}
	rule := func(r ruling) func(int, string) error {
		return func(_ int, domain string) error {
			if before := l.own[domain]; before != noRuling && before != r {
				return fmt.Errorf("%s is in %s too: take it out of one of them", domain, allowSetting)
			}
			l.own[domain] = r
			l.labels = max(l.labels, strings.Count(domain, ".")+1)
			return nil
		}
	}
	read(allowSetting, own.Allow, rule(allow))
	read(denySetting, own.Deny, rule(deny))

	meant := map[string]bool{}
	read(denyMajorSetting, own.DenyMajor, func(_ int, domain string) error {
		if e, ok := domains[domain]; !ok || e.kind != protected {
			return fmt.Errorf("%s is no major provider: take it out, %s alone is enough", domain, denySetting)
		}
		if l.ruling(domain) != deny {
			return fmt.Errorf("%s is not denied: name it in %s too, or take it out", domain, denySetting)
		}
		meant[domain] = true
		return nil
	})
	for _, provider := range protectedNames {
		if by := l.ruledBy(provider); l.own[by] == deny && !meant[provider] {
			covered := ""
			if by != provider {
				covered = fmt.Sprintf(", which %s covers", by)
			}
			faults = append(faults, fmt.Errorf("%s: %s is a major provider%s: to deny it all the same, name it in %s too",
				denySetting, provider, covered, denyMajorSetting))
		}
	}
	if faults != nil {
		return nil, errors.Join(faults...)
	}
	return l, nil
}

// listed returns an entry of the operator's as a normalized domain.
func listed(entry string, rules Rules) (string, error) {
	if strings.ContainsAny(entry, "@＠﹫") {
		return "", errors.New("an address, or what looks like one: write its domain alone") // and never print it
	}
	name := strings.ToLower(strings.TrimSpace(entry))
	if suffix, icann := publicsuffix.PublicSuffix(name); name != "" && suffix == name && icann {
		return "", fmt.Errorf("%q is a public suffix: its domains belong to people who have nothing in common; name them singly", entry)
	}
	a, err := rules.Parse("x@" + name)
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		advice := "write a domain such as example.com, which stands for all below it too"
		if meant, ok := strings.CutPrefix(refusal.Suggestion, "x@"); ok {
			advice = "did you mean " + meant + "?"
		} else if bare := strings.TrimLeft(name, "*."); bare != name && bare != "" {
			advice = fmt.Sprintf("write %s, which stands for all below it too", bare)
		}
		return "", fmt.Errorf("%q is not a domain (%s): %s", entry, refusal.Reason, advice)
	}
	if suffix, icann := publicsuffix.PublicSuffix(a.domain); suffix == a.domain && icann { // once it is A-labels
		return "", fmt.Errorf("%q is a public suffix: its domains belong to people who have nothing in common; name them singly", entry)
	}
	return a.domain, nil
}

// ruledBy returns the operator's entry that decides on domain, or nothing.
func (l *Lists) ruledBy(domain string) string {
	if len(l.own) == 0 {
		return ""
	}
	for name := range parents(domain, l.labels) {
		if l.own[name] != noRuling {
			return name
		}
	}
	return ""
}

func (l *Lists) ruling(domain string) ruling { return l.own[l.ruledBy(domain)] }

// Allows says whether the operator vouches for the domain of a.
func (l *Lists) Allows(a Address) bool { return l.ruling(a.domain) == allow }

// Refine takes the suggestion of a Refusal one step further: what was meant by "Ana <ana@gmial.com>" is at gmail.com. It
// returns nothing when the operator denies what would be suggested.
func (l *Lists) Refine(rules Rules, suggestion string) string {
	a, err := rules.Parse(suggestion)
	if err != nil {
		return ""
	}
	h := l.Look(a)
	switch {
	case h.Denied:
		return ""
	case h.Suggestion != "":
		return h.Suggestion
	}
	return suggestion
}

// Shipped returns the lists that are part of this program, in a fixed order.
func (l *Lists) Shipped() []ListRef { return slices.Clone(shipped) }

// Hints is what lists tell of an address. None of it makes an address invalid.
type Hints struct {
	Flags verdict.Flags
	// Suggestion is the address that was probably meant, normalized, or empty. Parse accepts it, and it is
	// personal data as the address is.
	Suggestion string
	// SuggestionReason is one of verdict.SuggestionReasons, and empty without a suggestion.
	SuggestionReason verdict.Reason
	// Denied says that the operator denies the domain.
	Denied bool
	// Disposable is the list that has the domain, and zero unless that flag is true.
	Disposable ListRef
}

// Look returns what the lists know of a. It asks nobody: it is a matter of microseconds, and the same every time.
//
// What a list doesn't have may still be so, so that most flags are true or unknown. Disposable is false for the
// major providers, for services that forward, and for what the operator allows. Free is true or unknown: no list
// says who is not free. Role is true or false: it is a question of the local part alone.
//
// A domain that is one edit from a provider is taken for a misspelling and not for disposable, even where the
// list of disposable domains has it: such lists collect misspellings, and a person who made one should be asked.
func (l *Lists) Look(a Address) Hints {
	if a.IsZero() {
		return Hints{}
	}
	h := Hints{Flags: a.Flags()}
	h.Flags.Role = verdict.Known(isRole(a.local))
	h.Flags.MixedScript = verdict.Known(a.mixed())
	f := l.seen.of(a.domain, func() facts { return l.facts(a.domain) })
	h.Denied = f.ruled == deny
	if f.free {
		h.Flags.Free = verdict.True
	}
	if h.Flags.Disposable = f.disposable; f.disposable == verdict.True {
		h.Disposable = disposableList.ref
	}
	h.Suggestion, h.SuggestionReason = a.suggest(f.meant, f.reason)
	if h.Denied && strings.HasSuffix(h.Suggestion, "@"+a.domain) {
		h.Suggestion, h.SuggestionReason = "", "" // to write the local part otherwise would not help
	}
	return h
}

// facts looks for a domain in all lists.
func (l *Lists) facts(domain string) facts {
	f := facts{ruled: l.ruling(domain)}
	about, exact, found := lookup(domain)
	f.free = exact && about.free() || freeList.has(domain)
	edits := 0
	if f.ruled != allow && !found && !f.free && !freeList.covers(domain) {
		f.meant, edits, f.reason = nearest(domain)
		if l.ruling(f.meant) == deny {
			f.meant = ""
		}
	}
	switch {
	case f.ruled == allow, found && about.kind != known:
		f.disposable = verdict.False
	case disposableList.covers(domain):
		if f.meant != "" && edits == 1 && f.meant[0] == domain[0] {
			break
		}
		f.meant = ""
		f.disposable = verdict.True
	}
	return f
}

// free says whether the domain is of a provider that gives mailboxes away, in every country.
func (e entry) free() bool {
	switch e.family {
	case gmail, microsoft, yahoo, apple, proton, yandex:
		return true
	}
	return false
}
