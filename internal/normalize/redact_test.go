package normalize

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"validator-gw/internal/verdict"
)

// TestPrintsNoAddress prints an address, and a refusal that suggests one, by every common route.
func TestPrintsNoAddress(t *testing.T) {
	t.Parallel()
	const local, domain = "secretive.person", "hidden-place.com"
	a, err := Parse(local + "@" + domain)
	if err != nil {
		t.Fatal(err)
	}
	_, refused := Parse("<" + local + "@" + domain + ">")
	refusal, ok := errors.AsType[*Refusal](refused)
	if !ok || refusal.Suggestion != local+"@"+domain {
		t.Fatalf("suggestion %q: the test needs one", refusal.Suggestion)
	}
	type holder struct {
		Address Address
		Pointer *Address
		Err     error
		Refusal Refusal
	}
	held := holder{a, &a, refused, *refusal}
	wrapped := fmt.Errorf("check: %w", refused)

	for name, value := range map[string]any{
		"address": a, "pointer": &a, "refusal": *refusal, "error": refused, "wrapped": wrapped,
		"holder": held, "holder pointer": &held, "slice": []Address{a}, "map": map[Address]Address{a: a},
	} {
		var printed []string
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X"} {
			printed = append(printed, fmt.Sprintf(verb, value))
		}
		if name != "map" { // JSON has no keys of that type
			b, err := json.Marshal(value)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			printed = append(printed, string(b))
		}
		var text, jsonLog bytes.Buffer
		slog.New(slog.NewTextHandler(&text, nil)).Info("checked", "value", value)
		slog.New(slog.NewJSONHandler(&jsonLog, nil)).Info("checked", slog.Group("group", slog.Any("value", value)))
		printed = append(printed, text.String(), jsonLog.String())

		for _, out := range printed {
			for _, part := range []string{
				local, domain, "secretive", "hidden-place",
				fmt.Sprintf("%x", local), fmt.Sprintf("%X", local), fmt.Sprintf("%x", domain), fmt.Sprintf("%X", domain),
			} {
				if strings.Contains(out, part) {
					t.Errorf("%s prints as %s", name, out)
				}
			}
		}
	}

	if got := fmt.Sprint(a); got != "[address]" {
		t.Errorf("an address prints as %q", got)
	}
	if got := refused.Error(); got != "not an address: wrapped" {
		t.Errorf("a refusal prints as %q", got)
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in                   string
		smtputf8, subaddress verdict.Tri
	}{
		{"ana@example.com", verdict.False, verdict.False},
		{"ana+news@example.com", verdict.False, verdict.True},
		{"+news@example.com", verdict.False, verdict.False},
		{"ana@bücher.com", verdict.False, verdict.False}, // A-labels need no extension
		{"bücher@example.com", verdict.True, verdict.False},
		{"bücher+x@example.com", verdict.True, verdict.True},
	} {
		a, err := Parse(tc.in)
		if err != nil {
			t.Fatal(err)
		}
		want := verdict.Flags{SMTPUTF8: tc.smtputf8, Subaddressed: tc.subaddress}
		if got := a.Flags(); got != want {
			t.Errorf("Flags of %q = %+v, want %+v", tc.in, got, want)
		}
	}
}
