package simulator_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"validator-gw/internal/verimail/simulator"
)

func TestParseScript(t *testing.T) {
	t.Parallel()
	tests := []struct {
		text string
		want simulator.Script
		back string // as String writes it
	}{
		{"", nil, ""},
		{"  ", nil, ""},
		{"hang", simulator.Script{{Mode: simulator.Mode{Fault: simulator.Hang}}}, "hang"},
		{
			"healthy 30s, hang 60s, 429 30s, healthy",
			simulator.Script{
				{Mode: simulator.Mode{Fault: simulator.Healthy}, For: 30 * time.Second},
				{Mode: simulator.Mode{Fault: simulator.Hang}, For: time.Minute},
				{Mode: simulator.Mode{Fault: simulator.Throttle}, For: 30 * time.Second},
				{Mode: simulator.Mode{Fault: simulator.Healthy}},
			},
			"healthy 30s, hang 1m0s, throttle 30s, healthy",
		},
		{
			"429 30s retry-after=5,slow 30s p50=800ms p99=2s",
			simulator.Script{
				{Mode: simulator.Mode{Fault: simulator.Throttle, RetryAfter: 5 * time.Second}, For: 30 * time.Second},
				{
					Mode: simulator.Mode{Fault: simulator.Slow, P50: 800 * time.Millisecond, P99: 2 * time.Second},
					For:  30 * time.Second,
				},
			},
			"throttle 30s retry-after=5s, slow 30s p50=800ms p99=2s",
		},
		{
			"503 retry_after=2m hint=epoch share=0.25 latency=1s",
			simulator.Script{{Mode: simulator.Mode{
				Fault: simulator.Error503, RetryAfter: 2 * time.Minute, Hint: simulator.HintEpoch, Share: 0.25, P50: time.Second,
			}}},
			"error503 p50=1s retry-after=2m0s hint=epoch share=0.25",
		},
		{
			"500 1s, 401 1s, 403 1s, drip 1s, reset 1s, garbage 1h",
			simulator.Script{
				{Mode: simulator.Mode{Fault: simulator.Error500}, For: time.Second},
				{Mode: simulator.Mode{Fault: simulator.Auth}, For: time.Second},
				{Mode: simulator.Mode{Fault: simulator.Quota}, For: time.Second},
				{Mode: simulator.Mode{Fault: simulator.Drip}, For: time.Second},
				{Mode: simulator.Mode{Fault: simulator.Reset}, For: time.Second},
				{Mode: simulator.Mode{Fault: simulator.Garbage}, For: time.Hour},
			},
			"error500 1s, auth 1s, quota 1s, drip 1s, reset 1s, garbage 1h0m0s",
		},
	}
	for _, tt := range tests {
		got, err := simulator.ParseScript(tt.text)
		if err != nil {
			t.Errorf("ParseScript(%q): %v", tt.text, err)
			continue
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("ParseScript(%q) (-want +got):\n%s", tt.text, d)
		}
		if got.String() != tt.back {
			t.Errorf("ParseScript(%q).String() = %q, want %q", tt.text, got, tt.back)
		}
		if again, err := simulator.ParseScript(got.String()); err != nil || !cmp.Equal(got, again) {
			t.Errorf("%q does not read back: %v, %v", got, again, err)
		}
	}
}

func TestParseScriptRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"sleepy 30s":                     "slow, hang, reset, drip, error500, error503, throttle, quota, auth, garbage",
		"404":                            "unknown mode",
		"healthy 30s,, hang":             "phase 2: nothing",
		"healthy, hang":                  "phase 1: only the last phase",
		"healthy 30":                     "not a duration",
		"healthy -3s":                    "not a duration",
		"healthy 0s, hang":               "not a duration",
		"healthy 3s 4s":                  "want name=value",
		"429 retry-after=soon":           "option retry-after",
		"429 retry-after=-5":             "retry-after: 0 to",
		"hang retry-after=5":             "retry-after is for throttle and error503",
		"429 hint=date":                  "hint needs retry-after",
		"429 retry-after=5 hint=smoke":   "unknown hint",
		"hang p50=1s":                    "takes no latency",
		"slow p50=2s p99=1s":             "less than p50",
		"slow p50=1s latency=2s":         "given twice",
		"slow p50=1h":                    "at most 10m",
		"error500 share=2":               "share",
		"error500 share=0":               "share",
		"error500 share=NaN":             "share",
		"error500 colour=red":            "unknown option",
		"429 retry-after=99999999999999": "retry-after",
	} {
		if s, err := simulator.ParseScript(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseScript(%q) = %v, %v; want an error with %q", text, s, err, want)
		}
	}
}

func TestParseHint(t *testing.T) {
	t.Parallel()
	for _, h := range simulator.Hints {
		if got, err := simulator.ParseHint(string(h)); got != h || err != nil {
			t.Errorf("ParseHint(%q) = %q, %v", h, got, err)
		}
	}
	if got, err := simulator.ParseHint(""); got != simulator.HintNone || err != nil {
		t.Errorf("ParseHint of nothing = %q, %v", got, err)
	}
	if _, err := simulator.ParseHint("Date"); err == nil {
		t.Error("ParseHint(Date): no error")
	}
}
