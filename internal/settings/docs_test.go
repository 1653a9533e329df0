package settings

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/settings.md")

const (
	tableBegin = "<!-- table: written by go test ./internal/settings -update -->\n"
	tableEnd   = "<!-- end of table -->\n"
)

// table writes the settings as Markdown.
func table() string {
	var b strings.Builder
	b.WriteString("| setting | default | bounds | change | what it does |\n|---|---|---|---|---|\n")
	for _, r := range Default().Rows() {
		change := "live"
		if !r.Live {
			change = "restart"
		}
		value := "(none)"
		if r.Value != "" {
			value = "`" + r.Value + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", r.Path, value, r.Bounds, change, r.Doc)
	}
	return b.String()
}

// The documentation's table is the code's.
func TestDocumentationIsCurrent(t *testing.T) {
	t.Parallel()
	path := filepath.Join("..", "..", "docs", "settings.md")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok1 := strings.Cut(string(data), tableBegin)
	old, tail, ok2 := strings.Cut(rest, tableEnd)
	if !ok1 || !ok2 {
		t.Fatalf("%s lacks the marks of the table", path)
	}
	if old == table() {
		return
	}
	if !*update {
		t.Fatalf("%s is out of date; run: go test ./internal/settings -update", path)
	}
	if err := os.WriteFile(path, []byte(head+tableBegin+table()+tableEnd+tail), 0o600); err != nil {
		t.Fatal(err)
	}
}
