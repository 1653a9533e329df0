package main

import (
	"strings"
	"testing"
)

// config check reads the profile, and says what is wrong with it.
func TestConfigCheckReadsTheProfile(t *testing.T) {
	t.Parallel()
	const good = `name: mine
version: 4
request: {method: GET, url: "https://api.mine.example", path: check, key: {in: query, name: k}, address: {in: query, name: e}}
fields: {result: r}
verdicts: [{when: {result: ok}, give: valid mailbox_accepted}]
`
	bad := strings.NewReplacer("version: 4", "versio: 4", "give: valid", "give: vaild").Replace(good)
	for _, tc := range []struct {
		name    string
		environ []string
		code    int
		want    []string
	}{
		{"shipped", []string{"VALIDATOR_GW_UPSTREAM_PROFILE=hunter"}, 0, []string{"hunter (hunter@1)"}},
		{"a file", []string{"VALIDATOR_GW_UPSTREAM_PROFILE=" + file(t, "mine.yaml", good)}, 0, []string{"mine.yaml (mine@4)"}},
		{"its faults", []string{"VALIDATOR_GW_UPSTREAM_PROFILE=" + file(t, "bad.yaml", bad)}, 2, []string{
			"VALIDATOR_GW_UPSTREAM_PROFILE (VALIDATOR_GW_UPSTREAM_PROFILE): bad.yaml:1:1: version: is missing",
			"bad.yaml:2:1: versio: is not known here; did you mean version?", `bad.yaml:5:39: verdicts[0].give: "vaild" is no status`}},
		{"no file", []string{"VALIDATOR_GW_UPSTREAM_PROFILE=/no/such.yaml"}, 2, []string{"open /no/such.yaml"}},
		{"self-hosted", []string{"VALIDATOR_GW_UPSTREAM_PROFILE=reacher", "VALIDATOR_GW_UPSTREAM_URL=", "VALIDATOR_GW_UPSTREAM_KEY="}, 0,
			[]string{"serve would not start: no upstream URL: profile reacher"}},
		{"self-hosted, with a place", []string{"VALIDATOR_GW_UPSTREAM_PROFILE=reacher", "VALIDATOR_GW_UPSTREAM_URL=http://localhost:1", "VALIDATOR_GW_UPSTREAM_KEY="},
			0, []string{"http://localhost:1"}},
		{"the provider's own place", []string{"VALIDATOR_GW_UPSTREAM_URL="}, 0, []string{"https://api.verimail.io (the profile's own)"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := call(t, overlay(append(whole(t), tc.environ...)), "config", "check")
			if code != tc.code {
				t.Errorf("code %d, want %d", code, tc.code)
			}
			for _, want := range tc.want {
				if !strings.Contains(stdout+stderr, want) {
					t.Errorf("no %q in:\n%s%s", want, stdout, stderr)
				}
			}
			if tc.name == "self-hosted, with a place" && strings.Contains(stdout, "would not start") {
				t.Errorf("something is missing:\n%s", stdout)
			}
		})
	}
}
