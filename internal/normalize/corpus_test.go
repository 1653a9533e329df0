package normalize

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// corpusFrom is the folder in which the go command keeps what fuzzing found of interest.
var corpusFrom = flag.String("corpus", "", "write testdata/corpus.gz from a folder: $(go env GOCACHE)/fuzz/validator-gw/internal/normalize")

const corpusFile = "testdata/corpus.gz"

// What fuzzing for hours found of interest is kept in one file: each line is a target, then its arguments in the
// encoding of testdata/fuzz, parted by tabs. Its inputs are run with every test, and are where fuzzing begins.
func TestWriteCorpus(t *testing.T) {
	if *corpusFrom == "" {
		if n := len(readCorpus(t, "FuzzParse")); n < 100 {
			t.Errorf("%d inputs for FuzzParse, want hundreds", n)
		}
		return
	}
	var lines []string
	for _, path := range must(filepath.Glob(filepath.Join(*corpusFrom, "Fuzz*", "*")))(t) {
		args := strings.Split(strings.TrimSpace(string(must(os.ReadFile(path))(t))), "\n") // the first line is the version
		if len(args) < 2 || args[0] != "go test fuzz v1" {
			t.Fatalf("%s is no input of a fuzz target", path)
		}
		args[0] = filepath.Base(filepath.Dir(path))
		lines = append(lines, strings.Join(args, "\t"))
	}
	slices.Sort(lines)
	var out bytes.Buffer
	z := must(gzip.NewWriterLevel(&out, gzip.BestCompression))(t)
	if _, err := io.WriteString(z, strings.Join(slices.Compact(lines), "\n")+"\n"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(z.Close(), os.WriteFile(corpusFile, out.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// addCorpus gives a target its kept inputs.
func addCorpus(f *testing.F, target string) {
	f.Helper()
	for _, args := range readCorpus(f, target) {
		f.Add(args...)
	}
}

func readCorpus(t testing.TB, target string) (inputs [][]any) {
	t.Helper()
	file := must(os.Open(corpusFile))(t)
	defer file.Close()
	lines := bufio.NewScanner(must(gzip.NewReader(file))(t))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		words := strings.Split(lines.Text(), "\t")
		if words[0] != target {
			continue
		}
		args := make([]any, len(words)-1)
		for i, w := range words[1:] {
			args[i] = must(argument(w))(t)
		}
		inputs = append(inputs, args)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return inputs
}

// argument reads one value in the encoding of testdata/fuzz.
func argument(text string) (any, error) {
	kind, rest, ok := strings.Cut(text, "(")
	value, whole := strings.CutSuffix(rest, ")")
	if !ok || !whole {
		return nil, fmt.Errorf("%q is no value", text)
	}
	switch kind {
	case "bool":
		return strconv.ParseBool(value)
	case "string":
		return strconv.Unquote(value)
	case "[]byte":
		s, err := strconv.Unquote(value)
		return []byte(s), err
	}
	return nil, fmt.Errorf("%q is of a kind that no target takes", text)
}
