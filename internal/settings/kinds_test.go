package settings

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseRate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Rate{
		"50/s": 50, "300/m": 5, "50": 50, "0.5": 0.5, "1/m": Rate(1) / 60, " 20 / s ": 20, "0": 0, "1e2": 100,
	} {
		if got, err := ParseRate(text); err != nil || got != want {
			t.Errorf("ParseRate(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "fast", "50/h", "50/", "/s", "-1", "NaN", "Inf", "1e9", "50/s/s", "50ms"} {
		if got, err := ParseRate(text); err == nil {
			t.Errorf("ParseRate(%q) = %v, want an error", text, got)
		}
	}
}

func TestParseLimit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Limit{
		"1000/s burst 2000": {1000, 2000},
		"300/m burst 20":    {5, 20},
		"5/s":               {5, 5},
		"6/m":               {0.1, 1},
		"0":                 {},
		"0/s burst 7":       {},
	} {
		if got, err := ParseLimit(text); err != nil || got != want {
			t.Errorf("ParseLimit(%q) = %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "off", "5/s burst", "5/s burst 0", "5/s burst x", "burst 5", "5/s 7", "5/s bursts 7"} {
		if got, err := ParseLimit(text); err == nil {
			t.Errorf("ParseLimit(%q) = %+v, want an error", text, got)
		}
	}
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Size{"64MiB": 64 << 20, "1GiB": 1 << 30, " 5 KiB ": 5 << 10, "1536KiB": 1536 << 10, "0MiB": 0} {
		got, err := ParseSize(text)
		if err != nil || got != want {
			t.Errorf("ParseSize(%q) = %v, %v, want %d", text, got, err, want)
		}
		if again, err := ParseSize(got.String()); err != nil || again != want {
			t.Errorf("%q is written %q and read as %v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"", "64", "64MB", "64M", "1.5GiB", "-1MiB", "MiB", "99999999999GiB"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("ParseSize(%q) = %v, want an error", text, got)
		}
	}
}

func TestParseDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"800ms": 800 * time.Millisecond, "1m30s": 90 * time.Second, "7d": 7 * 24 * time.Hour, "0": 0, "0s": 0,
		" 15s ": 15 * time.Second,
	} {
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "800", "1.5", "soon", "1.5d", "d", "99999999d", "8 00ms"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", text, got)
		}
	}
}

func TestFormatDuration(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"0": 0, "800ms": 800 * time.Millisecond, "1m": time.Minute, "1m30s": 90 * time.Second, "1h": time.Hour,
		"1h0m10s": time.Hour + 10*time.Second, "24h": 24 * time.Hour, "7d": 168 * time.Hour, "169h": 169 * time.Hour,
		"10m": 10 * time.Minute, "20h": 20 * time.Hour,
	} {
		if got := FormatDuration(d); got != want {
			t.Errorf("FormatDuration(%v) = %q, want %q", d, got, want)
		}
	}
}

// What is written can be read back: reloads and restart-only settings rest on it.
func TestTextFormsRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(400*24*time.Hour)).Draw(t, "duration"))
		if rapid.Bool().Draw(t, "whole seconds") {
			d = d.Truncate(time.Second)
		}
		if got, err := ParseDuration(FormatDuration(d)); err != nil || got != d {
			t.Errorf("duration %d: %q reads as %d, %v", d, FormatDuration(d), got, err)
		}
		r := Rate(rapid.Float64Range(0, maxRate).Draw(t, "rate"))
		if rapid.Bool().Draw(t, "a minute") {
			r = Rate(rapid.IntRange(0, 59).Draw(t, "events")) / 60
		}
		if got, err := ParseRate(r.String()); err != nil || got != r {
			t.Errorf("rate %v: %q reads as %v, %v", float64(r), r, float64(got), err)
		}
		l := Limit{Rate: r, Burst: rapid.IntRange(1, maxRate).Draw(t, "burst")}
		if r == 0 {
			l = Limit{}
		}
		if got, err := ParseLimit(l.String()); err != nil || got != l {
			t.Errorf("limit %+v: %q reads as %+v, %v", l, l, got, err)
		}
	})
}

func TestBounds(t *testing.T) {
	t.Parallel()
	tests := []struct {
		path       string
		legal, not []string
	}{
		{"flows.signup.budget", []string{"300ms", "950ms"}, []string{"299ms", "951ms", "1s"}},
		{"flows.high_risk.budget", []string{"300ms", "950ms"}, []string{"299ms", "951ms"}},
		{"flows.signup.max_retries", []string{"0", "5"}, []string{"-1", "6", "1.5", "two"}},
		{"flows.signup.on_unverified", []string{"accept_pending", "hold"}, []string{"reject", "accept", "Hold"}},
		{"background.budget", []string{"1s", "60s"}, []string{"999ms", "61s"}},
		{"background.max_retries", []string{"0", "8"}, []string{"9"}},
		{"retry.budget_ratio", []string{"0", "1", "0.25"}, []string{"-0.1", "1.01", "NaN", "10%"}},
		{"retry.on_timeout", []string{"true", "false"}, []string{"yes", "1", ""}},
		{"retry.attempt_timeout", []string{"100ms", "600ms"}, []string{"99ms"}},
		{"breaker.consecutive_failures", []string{"5", "10"}, []string{"4", "11"}},
		{"breaker.window", []string{"20", "50"}, []string{"19", "51"}},
		{"breaker.failure_ratio", []string{"0", "1"}, []string{"1.1"}},
		{"breaker.cooldown", []string{"15s", "60s"}, []string{"14s", "61s"}},
		{"breaker.probes", []string{"1", "5"}, []string{"0", "6"}},
		{"upstream.rate", []string{"50/s", "300/m", "50", "0.5"}, []string{"0", "-1", "quick"}},
		{"upstream.burst", []string{"1"}, []string{"0"}},
		{"queue.batch", []string{"1", "50"}, []string{"0", "51"}},
		{"cache.memory", []string{"1MiB", "64GiB", "1536KiB"}, []string{"1023KiB", "65GiB", "100000", "1MB"}},
		{"queue.keep_address", []string{"0", "30d"}, []string{"-1s", "30"}},
		{"ingress.per_key", []string{"0", "10/s", "10/s burst 40"}, []string{"off"}},
		{"ingress.concurrency", []string{"0", "512"}, []string{"-1"}},
	}
	for _, tc := range tests {
		for _, f := range fieldsOf(Default()) {
			if f.path != tc.path {
				continue
			}
			for _, text := range tc.legal {
				if err := f.set(Default(), text); err != nil {
					t.Errorf("%s = %q: %v, want it legal", tc.path, text, err)
				}
			}
			for _, text := range tc.not {
				s := Default()
				before := f.get(s)
				if err := f.set(s, text); err == nil || f.get(s) != before {
					t.Errorf("%s = %q: %v and %s, want an error and %s", tc.path, text, err, f.get(s), before)
				}
			}
		}
	}
}
