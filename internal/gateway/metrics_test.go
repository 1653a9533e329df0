package gateway

import (
	"flag"
	"fmt"
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
		labels := map[string]bool{}
		for _, m := range f.GetMetric() {
			series += max(1, len(m.GetHistogram().GetBucket())+3*min(1, len(m.GetHistogram().GetBucket())))
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
				if strings.Contains(l.GetValue(), "@") {
					t.Errorf("%s has a label value with an @", f.GetName())
				}
			}
		}
		if !strings.HasPrefix(f.GetName(), "validator_gw_") {
			continue // Go's and the process's own
		}
		names := make([]string, 0, len(labels))
		for l := range labels {
			names = append(names, "`"+l+"`")
		}
		slices.Sort(names)
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |", strings.TrimPrefix(f.GetName(), "validator_gw_"),
			strings.ToLower(dto.MetricType_name[int32(f.GetType())]), strings.Join(names, ", "), f.GetHelp()))
	}
	if series > maxSeries {
		t.Errorf("%d series, want at most %d", series, maxSeries)
	}
	want := metricsHead + strings.Join(rows, "\n") + "\n"
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

const metricsHead = `# Metrics

On the metrics port, ` + "`/metrics`" + `. Every name begins with ` + "`validator_gw_`" + `. Label values are closed sets: no address, domain, key or id is ever
one. Every series of a closed set is there from the start, at 0. Figures that come from the database (` + "`review_jobs`, `review_oldest_overdue_seconds`" + `)
are the same on every replica: take the max of them, never the sum. Beside these are Go's and the process's own.

| name | type | labels | meaning |
|---|---|---|---|
`
