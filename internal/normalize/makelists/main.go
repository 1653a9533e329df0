// Command makelists rebuilds the lists of domains that are embedded in normalize from the npm packages that
// they come from: disposable.txt and free.txt with their licences. What it writes depends on the two packages
// and on the lists kept by hand beside its output, and on nothing else. It uses no network: "make lists"
// fetches the packages.
package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// Bounds on what is read. The packages of today are 200 kB and 900 kB, their lists 9,000 and 4,500 domains.
const (
	maxPackage  = 64 << 20 // octets, unpacked
	maxFile     = 8 << 20  // octets
	maxDomains  = 100_000
	leastOfList = 1000 // a list that shrank to less than this is broken, not shorter
)

// source is where in a package a list is. The licence is named as package.json must name it.
type source struct {
	name, data, licence string
	licenceFiles        []string // the first that is there is copied
	licenceTo           string
	parse               func([]byte) ([]string, error)
}

var (
	disposable = source{
		name: "disposable-email-domains-js", data: "dist/dict/disposable_email_blocklist.json", licence: "CC0-1.0",
		licenceFiles: []string{"LICENSE", "LICENSE.txt", "LICENSE.md"}, licenceTo: "LICENSE.disposable",
		parse: func(b []byte) (names []string, err error) { return names, json.Unmarshal(b, &names) },
	}
	free = source{
		name: "freemail", data: "data/free.txt", licence: "ISC",
		licenceFiles: []string{"LICENSE", "LICENSE.txt", "LICENSE.md", "license.txt"}, licenceTo: "LICENSE.freemail",
		parse: func(b []byte) ([]string, error) { return strings.Split(string(b), "\n"), nil },
	}
)

// freeToo are providers with a free plan that the package freemail doesn't have.
var freeToo = []string{"proton.me", "pm.me", "tuta.com"}

func main() {
	disposableTGZ := flag.String("disposable", "", "the package disposable-email-domains-js as a .tgz `file`")
	freeTGZ := flag.String("free", "", "the package freemail as a .tgz `file`")
	dir := flag.String("dir", "internal/normalize/data", "the `folder` of the lists")
	flag.Parse()
	if err := run(*disposableTGZ, *freeTGZ, *dir, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "makelists:", err)
		os.Exit(1)
	}
}

// run reads both packages before it writes anything.
func run(disposableTGZ, freeTGZ, dir string, out io.Writer) error {
	if disposableTGZ == "" || freeTGZ == "" {
		return errors.New("name both packages: -disposable FILE.tgz -free FILE.tgz")
	}
	kept := map[string]map[string]bool{}
	for _, name := range []string{"protected", "aliases", "squats"} {
		set, err := readKept(filepath.Join(dir, name+".txt"))
		if err != nil {
			return err
		}
		kept[name] = set
	}
	short, err := read(disposable, disposableTGZ)
	if err != nil {
		return err
	}
	long, err := read(free, freeTGZ)
	if err != nil {
		return err
	}

	var major []string
	for _, name := range short.domains {
		if covers(kept["protected"], name) {
			major = append(major, name)
		}
	}
	if major != nil {
		return fmt.Errorf("%s lists major providers as disposable: %s: a person must look at that version; nothing was written",
			short.name, strings.Join(major, ", "))
	}
	short.drop("forward mail to a lasting mailbox", out, func(name string) bool { return covers(kept["aliases"], name) })

	disposed := setOf(short.domains)
	long.drop("are disposable, or below what is", out, func(name string) bool { return below(disposed, name) })
	long.drop("give no mailboxes to the public", out, func(name string) bool { return kept["squats"][name] })
	long.add(freeToo)

	return errors.Join(short.write(dir, "disposable.txt", out), long.write(dir, "free.txt", out))
}

// list is what a package holds.
type list struct {
	source
	version     string
	domains     []string // sorted, each once
	licenceText []byte
	dropped     int
}

// read reads the .tgz of one package.
func read(src source, file string) (*list, error) {
	files, err := unpack(file, append(slices.Clone(src.licenceFiles), "package.json", src.data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var about struct{ Name, Version, License string }
	if err := json.Unmarshal(files["package.json"], &about); err != nil {
		return nil, fmt.Errorf("%s: package.json: %w", file, err)
	}
	if about.Name != src.name || !version.MatchString(about.Version) {
		return nil, fmt.Errorf("%s holds the package %q in version %q, want a version of %s", file, about.Name, about.Version, src.name)
	}
	if about.License != src.licence {
		return nil, fmt.Errorf("%s: the licence is %q now, it was %s: see whether the list may still be used", file, about.License, src.licence)
	}
	l := &list{source: src, version: about.Version}
	for _, name := range src.licenceFiles {
		if text := files[name]; text != nil {
			l.licenceText = text
			break
		}
	}
	if l.licenceText == nil {
		return nil, fmt.Errorf("%s has no licence file", file)
	}
	raw, err := src.parse(files[src.data])
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", file, src.data, err)
	}
	names := map[string]bool{}
	for _, name := range raw {
		name = strings.ToLower(strings.TrimSpace(name))
		if isDomain(name) {
			names[name] = true
		} else if name != "" {
			l.dropped++
		}
	}
	if len(names) < leastOfList || len(names) > maxDomains {
		return nil, fmt.Errorf("%s: %s has %d domains, want %d to %d", file, src.data, len(names), leastOfList, maxDomains)
	}
	l.domains = slices.Sorted(maps.Keys(names))
	return l, nil
}

var version = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+-]*$`)

// unpack returns the wanted files of a package, whose names are below "package/".
func unpack(file string, wanted []string) (map[string][]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	zipped, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	archive := tar.NewReader(io.LimitReader(zipped, maxPackage))
	for {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		name, ok := strings.CutPrefix(head.Name, "package/")
		if !ok || head.Typeflag != tar.TypeReg || !slices.Contains(wanted, name) {
			continue
		}
		if head.Size > maxFile {
			return nil, fmt.Errorf("%s has %d octets, more than %d", name, head.Size, maxFile)
		}
		if files[name], err = io.ReadAll(archive); err != nil {
			return nil, err
		}
	}
	return files, nil
}

var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// isDomain says whether name is a host name, in ASCII and lower case, below a public suffix. A suffix itself
// would cover the domains of people who have nothing to do with one another.
func isDomain(name string) bool {
	if len(name) > 253 {
		return false
	}
	for part := range strings.SplitSeq(name, ".") {
		if len(part) > 63 || !label.MatchString(part) {
			return false
		}
	}
	suffix, icann := publicsuffix.PublicSuffix(name)
	return suffix != name && (icann || strings.Contains(suffix, "."))
}

// below says whether set has name or a parent of it.
func below(set map[string]bool, name string) bool {
	for ok := true; ok; _, name, ok = strings.Cut(name, ".") {
		if set[name] {
			return true
		}
	}
	return false
}

// covers says whether set has name, a parent of it or a domain below it.
func covers(set map[string]bool, name string) bool {
	if below(set, name) {
		return true
	}
	for entry := range set {
		if strings.HasSuffix(entry, "."+name) {
			return true
		}
	}
	return false
}

// drop leaves out what is, and says what that was.
func (l *list) drop(why string, out io.Writer, is func(string) bool) {
	var left []string
	l.domains = slices.DeleteFunc(l.domains, func(name string) bool {
		if !is(name) {
			return false
		}
		left = append(left, name)
		return true
	})
	l.dropped += len(left)
	if left != nil {
		fmt.Fprintf(out, "%s: without %d that %s: %s\n", l.name, len(left), why, strings.Join(left, " "))
	}
}

func (l *list) add(names []string) {
	l.domains = slices.Sorted(maps.Keys(setOf(append(l.domains, names...))))
}

func (l *list) write(dir, file string, out io.Writer) error {
	text := fmt.Sprintf("# %s %s %d %s\n%s\n", l.name, l.version, len(l.domains), l.licence, strings.Join(l.domains, "\n"))
	// The lists are public, as the rest of the source is.
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil { //nolint:gosec // source, read by all
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, l.licenceTo), l.licenceText, 0o644); err != nil { //nolint:gosec // source, read by all
		return err
	}
	fmt.Fprintf(out, "%s: %d domains from %s %s, %d left out\n", file, len(l.domains), l.name, l.version, l.dropped)
	return nil
}

// readKept reads a list that is kept by hand: the first word of each line that is no comment.
func readKept(file string) (map[string]bool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	set := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 0 && words[0] != "#" {
			set[words[0]] = true
		}
	}
	return set, nil
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}
