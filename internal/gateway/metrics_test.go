package gateway

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"validator-gw/internal/verimail/simulator"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

// maxSeries bounds what one replica exposes at its start.
const maxSeries = 1500

// TestMetricsList holds docs/metrics.md and what is exposed together, and the exposition within its bound.
func TestMetricsList(t *testing.T) {
	t.Parallel()
	b := newBench(t, stores[1].set, simulator.Config{}, nil)
	b.post("deliverable@example.com")
	b.eventually("the stores are probed", func() bool { return b.do("GET", "/readyz", "").code == 200 })
	families, err := b.gateway.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	series := 0
	for _, f := range families {
		labels := map[string]map[string]bool{}
		for _, m := range f.GetMetric() {
			series += max(1, len(m.GetHistogram().GetBucket())+3*min(1, len(m.GetHistogram().GetBucket())))
			for _, l := range m.GetLabel() {
				if labels[l.GetName()] == nil {
					labels[l.GetName()] = map[string]bool{}
				}
				labels[l.GetName()][l.GetValue()] = true
				if strings.Contains(l.GetValue(), "@") {
					t.Errorf("%s has a label value with an @", f.GetName())
				}
			}
		}
		if !strings.HasPrefix(f.GetName(), "validator_gw_") {
			continue // Go's and the process's own
		}
		names := make([]string, 0, len(labels))
		for l, values := range labels {
			name := "`" + l + "`"
			if !strings.HasPrefix(f.GetName(), "validator_gw_http_") && l != "provider" && l != "version" {
				name += " (" + strings.Join(slices.Sorted(maps.Keys(values)), ", ") + ")"
			}
			names = append(names, name)
		}
		slices.Sort(names)
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |", strings.TrimPrefix(f.GetName(), "validator_gw_"),
			strings.ToLower(dto.MetricType_name[int32(f.GetType())]), strings.Join(names, ", "), f.GetHelp()))
	}
	t.Logf("%d series", series)
	if series > maxSeries {
		t.Errorf("%d series, want at most %d", series, maxSeries)
	}
	head, err := os.ReadFile("testdata/metrics_head.md")
	if err != nil {
		t.Fatal(err)
	}
	want := string(head) + strings.Join(rows, "\n") + "\n"
	const path = "../../docs/metrics.md"
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what is exposed; write it anew with: go test ./internal/gateway -run MetricsList -update\nwant:\n%s", path, want)
	}
}
