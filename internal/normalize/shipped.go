package normalize

import (
	_ "embed" // the lists
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// ListRef names a list that a flag comes from, so that the flag can be explained.
type ListRef struct {
	// Name is the package that the list was taken from, or for a list of our own what it holds.
	Name string `json:"name"`
	// Version is that package's, or our own count of changes.
	Version string `json:"version"`
	// Count is the number of entries.
	Count int `json:"count"`
}

// The lists. "make lists" rebuilds the first two, the others are kept by hand; a test holds what each promises.
// Every file begins with "# name version count licence", may go on with comments, and has one entry a line.
var (
	//go:embed data/disposable.txt
	disposableText string
	//go:embed data/free.txt
	freeText string
	//go:embed data/protected.txt
	protectedText string
	//go:embed data/aliases.txt
	aliasesText string
	//go:embed data/known.txt
	knownText string
	//go:embed data/providers.txt
	providersText string
	//go:embed data/roles.txt
	rolesText string
)

// The long lists are searched in the text that they came in: as maps they would take ten times the memory.
var (
	disposableList = mustRead(disposableText)
	freeList       = mustRead(freeText)
)

// The short lists, which decide for nearly every address, are one map.
var (
	protectedList = mustRead(protectedText)
	aliasesList   = mustRead(aliasesText)
	knownList     = mustRead(knownText)
	providersList = mustRead(providersText)
	rolesList     = mustRead(rolesText)

	domains = mustMap(protectedList, aliasesList, knownList)
	roles   = mustMap(rolesList)

	// protectedNames are the major providers in the order of their list, and not of a map.
	protectedNames = protectedList.names()
)

// shipped is what Lists.Shipped returns.
var shipped = []ListRef{
	disposableList.ref, freeList.ref, protectedList.ref, aliasesList.ref, knownList.ref, providersList.ref, rolesList.ref,
}

// list is a list as it is embedded.
type list struct {
	ref  ListRef
	text string // the entries, each ended by a line feed, after the comments
	// labels is the most labels that an entry has: a longer name can only be listed by a parent.
	labels int
}

// mustRead reads a list that is part of the program, and panics if it is no list: then a test fails.
func mustRead(text string) list {
	head, _, _ := strings.Cut(text, "\n")
	words := strings.Fields(head)
	if len(words) != 5 || words[0] != "#" {
		panic(fmt.Sprintf("normalize: a list begins with %q", head))
	}
	count, err := strconv.Atoi(words[3])
	if err != nil {
		panic(fmt.Sprintf("normalize: a list begins with %q", head))
	}
	for strings.HasPrefix(text, "#") {
		_, text, _ = strings.Cut(text, "\n")
	}
	l := list{ref: ListRef{Name: words[1], Version: words[2], Count: count}, text: text}
	for line := range strings.Lines(text) {
		l.labels = max(l.labels, strings.Count(line, ".")+1)
	}
	return l
}

// names returns the entries, the first word of each line.
func (l list) names() []string {
	names := make([]string, 0, l.ref.Count)
	for line := range strings.Lines(l.text) {
		names = append(names, strings.Fields(line)[0])
	}
	return names
}

// has says whether name is an entry. The entries are sorted by their octets.
func (l list) has(name string) bool {
	low, high := 0, len(l.text)
	for low < high {
		mid := int(uint(low+high) / 2)
		start := low + strings.LastIndexByte(l.text[low:mid], '\n') + 1
		end := start + strings.IndexByte(l.text[start:], '\n')
		switch order := strings.Compare(l.text[start:end], name); {
		case order == 0:
			return true
		case order < 0:
			low = end + 1
		default:
			high = start
		}
	}
	return false
}

// covers says whether domain or a parent of it is an entry, down to the registrable domain: what is above that
// belongs to others.
func (l list) covers(domain string) bool {
	for name := range parents(domain, l.labels) {
		if l.has(name) {
			return registrable(domain, name)
		}
	}
	return false
}

// parents yields domain and its parents of two labels or more, the longest first, leaving out those of more
// than most labels.
func parents(domain string, most int) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		if most < 2 {
			return
		}
		// Found from the end, since a domain can have 127 labels.
		start := len(domain)
		for n := 0; n < most && start >= 0; n++ {
			start = strings.LastIndexByte(domain[:start], '.')
		}
		for name := domain[start+1:]; ; {
			_, parent, ok := strings.Cut(name, ".")
			if !ok || !yield(name) {
				return
			}
			name = parent
		}
	}
}

// registrable says whether parent, which is domain or a parent of it, is no public suffix: what is known of it
// then holds for domain.
func registrable(domain, parent string) bool {
	if parent == domain {
		return true
	}
	suffix, _ := publicsuffix.PublicSuffix(domain)
	return len(parent) > len(suffix)
}

// kind is which list of domains a name is from.
type kind uint8

const (
	protected kind = iota // a major provider
	alias                 // a service that forwards
	known                 // no misspelling
)

// entry is what is known of a domain.
type entry struct {
	kind   kind
	family family
}

// family is the providers whose rules for dots and tags a domain follows, as protected.txt spells it.
type family string

// The families, with rules in dedupe.go.
const (
	noFamily  family = "-"
	gmail     family = "gmail"
	microsoft family = "microsoft"
	yahoo     family = "yahoo"
	apple     family = "apple"
	fastmail  family = "fastmail"
	proton    family = "proton"
	yandex    family = "yandex"
)

var families = []family{noFamily, gmail, microsoft, yahoo, apple, fastmail, proton, yandex}

// domainLabels is the most labels of a name in domains.
var domainLabels = max(protectedList.labels, aliasesList.labels, knownList.labels)

// mustMap makes one map of lists by kind; a name has the first kind that it is listed under.
func mustMap(byKind ...list) map[string]entry {
	entries := map[string]entry{}
	for i, l := range byKind {
		for line := range strings.Lines(l.text) {
			words := strings.Fields(line)
			e := entry{kind: kind(i), family: noFamily}
			if len(words) > 1 {
				e.family = family(words[1])
				if !slices.Contains(families, e.family) {
					panic(fmt.Sprintf("normalize: a list has the line %q", line))
				}
			}
			if _, ok := entries[words[0]]; !ok {
				entries[words[0]] = e
			}
		}
	}
	return entries
}

// lookup returns what is known of domain, or else of the nearest parent that something is known of.
func lookup(domain string) (e entry, exact, ok bool) {
	if e, ok = domains[domain]; ok {
		return e, true, true
	}
	for name := range parents(domain, domainLabels) {
		if e, ok = domains[name]; ok {
			return e, false, registrable(domain, name)
		}
	}
	return entry{}, false, false
}
