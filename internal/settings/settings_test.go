package settings

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The defaults as the design's table has them, and the neighbours it names in words.
var designDefaults = map[string]string{
	"flows.signup.budget": "800ms", "flows.signup.max_retries": "2", "flows.signup.on_unverified": "accept_pending",
	"flows.high_risk.budget": "950ms", "flows.high_risk.max_retries": "2", "flows.high_risk.on_unverified": "hold",
	"background.budget": "15s", "background.max_retries": "3",
	"background.retry.base": "1s", "background.retry.max": "30s", "background.retry.jitter": "1s",
	"background.retry.attempt_timeout": "10s",
	"retry.base":                       "130ms", "retry.max": "400ms", "retry.jitter": "60ms",
	"retry.attempt_timeout": "600ms",
	"retry.budget_ratio":    "0.1", "retry.on_timeout": "false", "late_timeout": "10s",
	"breaker.consecutive_failures": "5", "breaker.window": "30", "breaker.min_samples": "20",
	"breaker.failure_ratio": "0.5", "breaker.cooldown": "30s", "breaker.probes": "3", "breaker.slow_grace": "2s",
	"breaker.min_span": "1s",
	"upstream.rate":    "20/s", "upstream.burst": "20", "upstream.instances": "1", "upstream.interactive_reserve": "0.5",
	"upstream.background_floor": "0.1", "upstream.max_in_flight": "512",
	"retry_after.max":  "1h",
	"cache.valid.soft": "7d", "cache.valid.hard": "30d", "cache.invalid.soft": "24h", "cache.invalid.hard": "72h",
	"cache.risky.soft": "7d", "cache.risky.hard": "30d", "cache.mailbox_full.soft": "1h",
	"cache.mailbox_full.hard": "24h", "cache.unresolved.soft": "24h", "cache.unresolved.hard": "24h",
	"cache.marker.min": "30s", "cache.marker.max": "1m", "cache.jitter": "0.1", "cache.memory": "32MiB",
	"queue.workers": "8", "queue.batch": "50", "queue.lease": "30s", "queue.max_open": "1000000", "backfill.share": "0.5", "backfill.keep": "7d", "backfill.max_rows": "10000000",
	"queue.keep_address": "0",
	"lists.allow":        "", "lists.deny": "", "lists.deny_major": "",
	"address.long_local_parts": "false", "address.test_domains": "false", "address.extra_tlds": "", "address.dedupe_key": "false",
	"ingress.per_key": "1000/s burst 2000", "ingress.per_ip": "5/s burst 20", "ingress.concurrency": "512",
	"ingress.queue_wait": "20ms", "log.routine_per_second": "1000",
}

func TestDefaultsAreTheDesigns(t *testing.T) {
	t.Parallel()
	s, err := Load("", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Warnings()) > 0 {
		t.Errorf("the defaults warn: %q", s.Warnings())
	}
	seen := 0
	for _, r := range s.Rows() {
		want, ok := designDefaults[r.Path]
		if !ok {
			t.Errorf("%s is not in the design", r.Path)
			continue
		}
		seen++
		if r.Value != want || r.Origin != "default" {
			t.Errorf("%s = %s (%s), want %s (default)", r.Path, r.Value, r.Origin, want)
		}
	}
	if seen != len(designDefaults) {
		t.Errorf("%d settings of %d", seen, len(designDefaults))
	}
}

// leaves walks the exported fields of a struct and calls f for each that holds a value.
func leaves(v reflect.Value, path string, f func(string, reflect.Value)) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if !field.IsExported() || field.Name == "Flows" {
			continue
		}
		name := path + "." + field.Name
		if field.Type.Kind() == reflect.Struct && field.Type != reflect.TypeFor[Limit]() {
			leaves(v.Field(i), name, f)
			continue
		}
		f(name, v.Field(i))
	}
}

// Every field of Settings is one row, and each row changes exactly one field: none is forgotten, none is wired to
// its neighbour.
func TestEachRowIsOneField(t *testing.T) {
	t.Parallel()
	fields := fieldsOf(Default()) // signup, high_risk and the rest
	owner := map[string]string{}
	for _, f := range fields {
		s := Default()
		changed := false
		others := []string{"hold", "accept_pending", "true", "1", "0.3", "7", "21", "777ms", "10ms", "7s", "20s", "7/s", "250", "7MiB", "2h"}
		for _, text := range others {
			if before := f.get(s); f.set(s, text) == nil && f.get(s) != before {
				changed = true
				break
			}
		}
		if !changed {
			t.Errorf("%s takes none of the other values", f.path)
			continue
		}
		if strings.HasPrefix(f.path, "flows.") {
			n := 0
			for name, flow := range Default().Flows {
				if s.Flows[name] != flow {
					n++
					if !strings.HasPrefix(f.path, "flows."+name+".") {
						t.Errorf("%s changes flow %s", f.path, name)
					}
				}
			}
			if n != 1 {
				t.Errorf("%s changes %d flows", f.path, n)
			}
			continue
		}
		now := map[string]any{}
		leaves(reflect.ValueOf(*s), "", func(name string, v reflect.Value) { now[name] = v.Interface() })
		leaves(reflect.ValueOf(*Default()), "", func(name string, v reflect.Value) {
			if reflect.DeepEqual(now[name], v.Interface()) {
				return
			}
			if other := owner[name]; other != "" {
				t.Errorf("%s and %s change the same field %s", f.path, other, name)
			}
			owner[name] = f.path
		})
	}
	leaves(reflect.ValueOf(*Default()), "", func(name string, _ reflect.Value) {
		if owner[name] == "" && name != ".Callbacks" { // there are none by default; TestCallbacks has them
			t.Errorf("no setting for field %s", name)
		}
	})
}

func TestRowsHoldWhatReadersNeed(t *testing.T) {
	t.Parallel()
	var restart []string
	for _, r := range Default().Rows() {
		if r.Doc == "" || r.Bounds == "" || !strings.HasSuffix(r.Doc, ".") {
			t.Errorf("%s: doc %q, bounds %q", r.Path, r.Doc, r.Bounds)
		}
		if !r.Live {
			restart = append(restart, r.Path)
		}
	}
	if !slices.Equal(restart, []string{"cache.memory"}) {
		t.Errorf("settings that need a restart: %q", restart)
	}
	if got := Default().Rows()[0].Env; got != "VALIDATOR_GW_FLOWS_SIGNUP_BUDGET" {
		t.Errorf("env of the first row = %s", got)
	}
}
