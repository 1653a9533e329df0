package soak

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// samplePace is the time between two looks at the metrics.
const samplePace = 500 * time.Millisecond

// Sample is what the metrics of all gateways said at one time.
type Sample struct {
	At time.Duration // since the beginning of the load
	// Breakers is the state of each gateway's breaker; empty where it did not answer.
	Breakers []string
	// Overdue, Scheduled and Leased are reviews, from the database: the most that any gateway says, -1 when none does.
	Overdue, Scheduled, Leased int
	// Opened is how often any breaker opened, GaveUp how often a check ended without a verdict, by why; up to then.
	Opened int
	GaveUp map[string]int
	// Levels are each gateway's look-ups of the cache by "tier result", and the store's that failed, since its start, Resident the memory of its process in
	// bytes; nil and 0 where it did not answer.
	Levels   []map[string]float64
	Resident []float64
}

// Open is the number of reviews that are not ended, -1 when it is not known.
func (s Sample) Open() int {
	if s.Overdue < 0 {
		return -1
	}
	return s.Overdue + s.Scheduled + s.Leased
}

// sampler looks at the metrics until its context ends.
type sampler struct {
	http  *http.Client
	urls  []string
	began time.Time

	mu      sync.Mutex
	samples []Sample
}

func (s *sampler) run(ctx context.Context) {
	tick := time.NewTicker(samplePace)
	defer tick.Stop()
	for {
		one := s.look(ctx)
		s.mu.Lock()
		s.samples = append(s.samples, one)
		s.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// taken returns the samples so far.
func (s *sampler) taken() []Sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Sample(nil), s.samples...)
}

func (s *sampler) look(ctx context.Context) Sample {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	one := Sample{At: time.Since(s.began), Overdue: -1, Scheduled: -1, Leased: -1, Breakers: make([]string, len(s.urls)),
		GaveUp: map[string]int{}, Levels: make([]map[string]float64, len(s.urls)), Resident: make([]float64, len(s.urls))}
	for i, address := range s.urls {
		values, err := scrape(ctx, s.http, address)
		if err != nil {
			continue // a gateway that is too busy for its metrics shows up in the answers
		}
		one.Levels[i], one.Resident[i] = map[string]float64{}, values["process_resident_memory_bytes"]
		for name, v := range values {
			if strings.HasPrefix(name, "validator_gw_cache_requests_total{") {
				one.Levels[i][labelOf(name, "tier")+" "+labelOf(name, "result")] = v
			}
			if name == "validator_gw_verdict_lookup_errors_total" {
				one.Levels[i]["store error"] = v
			}
			if v == 1 && strings.HasPrefix(name, "validator_gw_breaker_state{") {
				one.Breakers[i] = labelOf(name, "state")
			}
			if strings.HasPrefix(name, "validator_gw_breaker_transitions_total{") && labelOf(name, "to") == "open" {
				one.Opened += int(v)
			}
			if v > 0 && strings.HasPrefix(name, "validator_gw_provider_giveups_total{") {
				one.GaveUp[labelOf(name, "reason")] += int(v)
			}
		}
		jobs := func(state string) int { return int(values[`validator_gw_review_jobs{state="`+state+`"}`]) }
		one.Overdue = max(one.Overdue, jobs("overdue"))
		one.Scheduled = max(one.Scheduled, jobs("scheduled"))
		one.Leased = max(one.Leased, jobs("leased"))
	}
	return one
}

// scrape reads the plain text of a metrics page into values by series, as it writes them.
func scrape(ctx context.Context, c *http.Client, address string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics: %s", res.Status)
	}
	return parseMetrics(io.LimitReader(res.Body, 4<<20))
}

func parseMetrics(page io.Reader) (map[string]float64, error) {
	values := make(map[string]float64)
	lines := bufio.NewScanner(page)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if at < 0 {
			continue
		}
		if v, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
			values[line[:at]] = v
		}
	}
	return values, lines.Err()
}

// labelOf is the value of a label of a series, empty when it has none of that name. Our label values need no quoting.
func labelOf(series, name string) string {
	for _, open := range []string{"{", ","} {
		if _, rest, ok := strings.Cut(series, open+name+`="`); ok {
			value, _, _ := strings.Cut(rest, `"`)
			return value
		}
	}
	return ""
}
