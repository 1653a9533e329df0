package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"
	yamlnode "go.yaml.in/yaml/v3"
)

// Known is a name that is not a setting of this package and may stand beside them: what the program reads once,
// at its start.
type Known struct {
	// Env is its variable.
	Env string
	// Path is its key in the file; empty when it has none.
	Path string
	// Secret says that it must not be written into the file; Load then says where it goes instead.
	Secret bool
}

const originDefault = "default"

// maxFile bounds the settings file in bytes.
const maxFile = 1 << 20

// flowName is what a flow or a callback may be called: it becomes part of a variable's name and of metrics.
var flowName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)

// Load reads the settings: defaults, then the file when path is not empty, then the variables of environ, which
// holds "NAME=value" as os.Environ does. A variable with an empty value counts as not set. Unknown keys of the file
// and unknown variables that begin with EnvPrefix are faults, but for known ones and for those that Kubernetes
// makes for Services.
//
// The error joins every fault found, each naming the setting, its value, the bound, and where it came from.
func Load(path string, environ []string, known ...Known) (*Settings, error) {
	var data []byte
	if path != "" {
		var err error
		if data, err = readFile(path); err != nil {
			// The other layers are still read, so that their faults are not found one start later.
			_, more := parse("", nil, environ, known)
			return nil, errors.Join(fmt.Errorf("settings file: %w", err), more)
		}
	}
	return parse(path, data, environ, known)
}

// readFile reads the whole file, refusing one that can't be meant.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s is larger than 1 MiB", path)
	}
	return data, nil
}

// parse makes settings of what was read.
func parse(path string, data []byte, environ []string, known []Known) (*Settings, error) {
	s := Default()
	s.origins, s.static = map[string]string{}, map[string]string{}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	file, lines, err := readYAML(data)
	if err != nil {
		fault("%s: %w", filepath.Base(path), err)
	}
	where := func(key string) string {
		if n := lines[key]; n > 0 {
			return fmt.Sprintf("%s:%d", filepath.Base(path), n)
		}
		return filepath.Base(path)
	}

	var badNames []string
	for _, name := range file.MapKeys("flows") {
		switch _, ok := s.Flows[name]; {
		case ok:
		case flowName.MatchString(name):
			s.Flows[name] = s.Flows["signup"]
		default:
			badNames = append(badNames, "flows."+name)
			fault("flows.%s (%s): a flow's name is a lower-case letter, then up to 31 of a–z, 0–9, _ and -",
				name, where("flows."+name))
		}
	}
	for _, name := range file.MapKeys("callbacks") {
		if flowName.MatchString(name) {
			s.Callbacks[name] = untunedCallback()
			continue
		}
		badNames = append(badNames, "callbacks."+name)
		fault("callbacks.%s (%s): a callback's name is a lower-case letter, then up to 31 of a–z, 0–9, _ and -",
			name, where("callbacks."+name))
	}

	fields := fieldsOf(s)
	fromFile, faulty := fileLayer(file, fields, known, badNames, s.static, where, fault)
	fromEnv, envs := envLayer(environ, fields, known, fault)
	s.warnings = envs

	defaults := make(map[string]any, len(fields))
	for _, f := range fields {
		defaults[f.path] = f.get(s)
	}
	k := koanf.New(".")
	for _, layer := range []map[string]any{defaults, fromFile, fromEnv} {
		if err := k.Load(confmap.Provider(layer, "."), nil); err != nil {
			return nil, fmt.Errorf("settings: %w", err)
		}
	}

	values := make(map[string]string, len(fields))
	for _, f := range fields {
		text := strings.TrimSpace(fmt.Sprint(k.Get(f.path)))
		_, inFile := fromFile[f.path]
		_, inEnv := fromEnv[f.path]
		switch {
		case inEnv:
			s.origins[f.path] = envName(f.path)
			delete(faulty, f.path)
			if inFile {
				s.warnings = append(s.warnings, fmt.Sprintf("%s: %s sets it, so %s does not",
					f.path, envName(f.path), where(f.path)))
			}
		case inFile:
			s.origins[f.path] = where(f.path)
		default:
			s.origins[f.path] = originDefault
		}
		if err := f.set(s, text); err != nil {
			faulty[f.path] = true
			fault("%s (%s): %s %w; legal is %s", f.path, s.origins[f.path], quote(f.shown(text)), err, f.bounds)
		}
		values[f.path] = f.get(s)
	}

	more, warnings := s.check(faulty, values)
	faults = append(faults, more...)
	s.warnings = append(s.warnings, warnings...)
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return s, nil
}

// readYAML reads the file into koanf and finds the line of every key. It always returns something to work with.
func readYAML(data []byte) (*koanf.Koanf, map[string]int, error) {
	k, lines := koanf.New("."), map[string]int{}
	if len(bytes.TrimSpace(data)) == 0 {
		return k, lines, nil
	}
	var doc yamlnode.Node
	dec := yamlnode.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) { // comments only
			return k, lines, nil
		}
		return k, lines, err
	}
	if err := dec.Decode(new(yamlnode.Node)); !errors.Is(err, io.EOF) {
		return k, lines, errors.New("more than one YAML document")
	}
	root := doc.Content[0]
	if root.Kind == yamlnode.ScalarNode && root.Tag == "!!null" {
		return k, lines, nil
	}
	if root.Kind != yamlnode.MappingNode {
		return k, lines, errors.New("is not a YAML mapping of settings")
	}
	findLines(root, "", lines)
	if err := k.Load(rawbytes.Provider(data), yaml.Parser()); err != nil {
		return koanf.New("."), lines, err
	}
	return k, lines, nil
}

// findLines notes the line of every key below node. Aliases are not followed: their keys have no line here.
func findLines(node *yamlnode.Node, prefix string, lines map[string]int) {
	if node.Kind != yamlnode.MappingNode {
		return
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		path := prefix + node.Content[i].Value
		lines[path] = node.Content[i].Line
		findLines(node.Content[i+1], path+".", lines)
	}
}

// fileLayer sorts the keys of the file into settings, which it returns, known others, which it puts into static,
// and faults.
func fileLayer(
	file *koanf.Koanf, fields []field, known []Known, skip []string, static map[string]string,
	where func(string) string, fault func(string, ...any),
) (layer map[string]any, faulty map[string]bool) {
	layer, faulty = map[string]any{}, map[string]bool{}
	var names []string
	sections := map[string]bool{}
	section := func(path string) {
		for i, r := range path {
			if r == '.' {
				sections[path[:i]] = true
			}
		}
	}
	settings, lists := map[string]bool{}, map[string]bool{}
	for _, f := range fields {
		settings[f.path], lists[f.path] = true, f.list
		names = append(names, f.path)
		section(f.path)
	}
	others := map[string]Known{}
	for _, o := range known {
		if o.Path != "" {
			others[o.Path] = o
			if !o.Secret {
				names = append(names, o.Path)
			}
			section(o.Path)
		}
	}

	for _, key := range file.Keys() {
		if slices.ContainsFunc(skip, func(p string) bool { return key == p || strings.HasPrefix(key, p+".") }) {
			continue
		}
		value := file.Get(key)
		text, scalar := scalarText(value)
		if !scalar && lists[key] {
			text, scalar = listText(value)
		}
		other, isOther := others[key]
		switch {
		case isOther && other.Secret:
			fault("%s (%s): a secret does not belong into the settings file; give it as %s", key, where(key), other.Env)
		case isOther || settings[key]:
			if !scalar {
				faulty[key] = true
				fault("%s (%s): wants one value", key, where(key))
			} else if isOther {
				static[key] = text
			} else {
				layer[key] = text
			}
		case sections[key]:
			if scalar { // a section that is empty or null sets nothing
				fault("%s (%s): is a section of settings, not a setting", key, where(key))
			} else if _, list := value.([]any); list {
				fault("%s (%s): is a section of settings, not a list", key, where(key))
			}
		default:
			fault("%s (%s): no such setting%s", key, where(key), didYouMean(key, names))
		}
	}
	return layer, faulty
}

// scalarText is the text of a plain value; false for null, lists and sections.
func scalarText(v any) (string, bool) {
	switch v.(type) {
	case nil, map[string]any, []any:
		return "", false
	}
	return fmt.Sprint(v), true
}

// listText is the text of a list of plain values, joined with commas; an empty list is the empty text. False for
// anything else.
func listText(v any) (string, bool) {
	items, ok := v.([]any)
	if !ok {
		return "", v == nil // "allow:" with nothing behind it is an empty list
	}
	texts := make([]string, len(items))
	for i, item := range items {
		if texts[i], ok = scalarText(item); !ok {
			return "", false
		}
	}
	return strings.Join(texts, ","), true
}

// Variables that Kubernetes makes for each Service of the namespace: for one named as the program, and for one
// whose name begins so. See kubernetes.io, "Accessing the Service", environment variables.
var (
	ownService   = regexp.MustCompile(`^(SERVICE_HOST|SERVICE_PORT.*|PORT|PORT_.*)$`)
	otherService = regexp.MustCompile(
		`^.+_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
	otherPort = regexp.MustCompile(`^.+_PORT$`)
)

// injected says that a variable is Kubernetes' and not the operator's.
func injected(name, value string) bool {
	rest := strings.TrimPrefix(name, EnvPrefix)
	return ownService.MatchString(rest) || otherService.MatchString(rest) ||
		otherPort.MatchString(rest) && strings.Contains(value, "://")
}

// envLayer picks the settings out of the environment. The values of unknown variables are never shown: one may be
// a secret under a misspelt name.
func envLayer(
	environ []string, fields []field, known []Known, fault func(string, ...any),
) (layer map[string]any, warnings []string) {
	layer = map[string]any{}
	settings := map[string]string{}
	var names []string
	for _, f := range fields {
		name := envName(f.path)
		if other, ok := settings[name]; ok {
			fault("%s and %s have the same variable, %s; rename one of them", other, f.path, name)
		}
		settings[name] = f.path
		names = append(names, name)
	}
	others := map[string]bool{}
	for _, o := range known {
		others[o.Env] = true
		if strings.HasPrefix(o.Env, EnvPrefix) {
			names = append(names, o.Env)
		}
	}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, EnvPrefix) {
			continue
		}
		path, isSetting := settings[name]
		switch {
		case isSetting:
			if value != "" {
				layer[path] = value
			}
		case others[name]:
		case injected(name, value):
			if name == EnvPrefix+"PORT" && !strings.Contains(value, "://") {
				warnings = append(warnings, name+" is left to Kubernetes and sets nothing; VALIDATOR_GW_LISTEN does")
			}
		default:
			fault("%s: no such variable%s", name, didYouMean(name, names))
		}
	}
	return layer, warnings
}

// quote shows a value in a message, cut to a length that keeps the message readable.
func quote(text string) string {
	const most = 60
	if r := []rune(text); len(r) > most {
		text = string(r[:most]) + "…"
	}
	return fmt.Sprintf("%q", text)
}

// didYouMean offers the nearest legal name, when one is near.
func didYouMean(name string, legal []string) string {
	best, least := "", max(2, len(name)/3)+1
	for _, l := range legal {
		if d := distance(name, l); d < least {
			best, least = l, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance is Levenshtein's, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next := min(row[j]+1, row[j+1]+1, diagonal+cost)
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}
