package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"validator-gw/internal/secret"
	"validator-gw/internal/settings"
)

// whole is an environment with which serve starts on SQLite.
func whole(t *testing.T) []string {
	t.Helper()
	return []string{
		"VALIDATOR_GW_UPSTREAM_KEY=planted-upstream-key", "VALIDATOR_GW_API_KEY=planted-api-key",
		"VALIDATOR_GW_SECRET=" + secret.Generate().Reveal(), "VALIDATOR_GW_DATA=" + filepath.Join(t.TempDir(), "data"),
		"VALIDATOR_GW_UPSTREAM_URL=http://127.0.0.1:1",
		"VALIDATOR_GW_LISTEN=127.0.0.1:0", "VALIDATOR_GW_METRICS_LISTEN=127.0.0.1:0",
	}
}

// Wrong configurations: exit code 2, nothing on stdout, one message with every fault and no other.
func TestWrongConfiguration(t *testing.T) {
	t.Parallel()
	empty := file(t, "empty", " \n")
	tests := []struct {
		name    string
		file    string
		environ []string // above a whole one
		args    []string
		faults  []string // a part of each
	}{
		{"nothing given", "", []string{"VALIDATOR_GW_UPSTREAM_KEY=", "VALIDATOR_GW_API_KEY=", "VALIDATOR_GW_SECRET="},
			[]string{"serve"}, []string{
				"no upstream key: set VALIDATOR_GW_UPSTREAM_KEY", "no secret: set VALIDATOR_GW_SECRET",
				"no API key: set VALIDATOR_GW_API_KEY"}},
		{"missing and wrong together", "retry: {base: fast}\n",
			[]string{"VALIDATOR_GW_API_KEY=", "VALIDATOR_GW_FLOWS_SIGNUP_BUDGET=2s", "VALIDATOR_GW_LISTEN=8080"},
			[]string{"serve", "--log-level", "loud"}, []string{
				`retry.base (settings.yaml:1): "fast" is not a duration`,
				`flows.signup.budget (VALIDATOR_GW_FLOWS_SIGNUP_BUDGET): "2s" is above the most, 950ms`,
				`VALIDATOR_GW_LISTEN (VALIDATOR_GW_LISTEN): "8080" is not an address`,
				`VALIDATOR_GW_LOG_LEVEL (--log-level): "loud" is not one of debug, info, warn, error`,
				"no API key"}},
		{"contradictory budget", "", []string{"VALIDATOR_GW_FLOWS_SIGNUP_BUDGET=300ms", "VALIDATOR_GW_FLOWS_SIGNUP_MAX_RETRIES=2"},
			[]string{"serve"}, []string{"flows.signup.budget 300ms (VALIDATOR_GW_FLOWS_SIGNUP_BUDGET) leaves the upstream 150ms"}},
		{"misspelt variable", "", []string{"VALIDATOR_GW_LISTN=:80"}, []string{"serve"},
			[]string{"VALIDATOR_GW_LISTN: no such variable; did you mean VALIDATOR_GW_LISTEN?"}},
		{"missing settings file", "", nil, []string{"serve", "--config", "/no/such/file.yaml"}, []string{"/no/such/file.yaml"}},
		{"secret not base64", "", []string{"VALIDATOR_GW_SECRET=***"}, []string{"serve"}, []string{"openssl rand -base64 32"}},
		{"secret too short", "", []string{"VALIDATOR_GW_SECRET=c2hvcnQ="}, []string{"serve"}, []string{"shorter than 32 bytes"}},
		{"previous secret too short", "", []string{"VALIDATOR_GW_SECRET_PREVIOUS=c2hvcnQ="}, []string{"serve"},
			[]string{"VALIDATOR_GW_SECRET_PREVIOUS: secret is shorter than 32 bytes"}},
		{"secret twice", "", []string{"VALIDATOR_GW_SECRET_FILE=" + empty}, []string{"serve"},
			[]string{"VALIDATOR_GW_SECRET and VALIDATOR_GW_SECRET_FILE are both set"}},
		{"key file empty", "", []string{"VALIDATOR_GW_API_KEY=", "VALIDATOR_GW_API_KEY_FILE=" + empty}, []string{"serve"},
			[]string{"VALIDATOR_GW_API_KEY_FILE: " + empty + " is empty"}},
		{"key file missing", "", []string{"VALIDATOR_GW_UPSTREAM_KEY=", "VALIDATOR_GW_UPSTREAM_KEY_FILE=/no/such/key"},
			[]string{"serve"}, []string{"VALIDATOR_GW_UPSTREAM_KEY_FILE: open /no/such/key"}},
		{"stores", "", []string{"DATABASE_URL=postgres://u:p@h:port/d", "REDIS_URL=http://h", "VALIDATOR_GW_REDIS_MODE=ring"},
			[]string{"serve"}, []string{"DATABASE_URL: can't be read", "VALIDATOR_GW_REDIS_MODE", "REDIS_URL: can't be read"}},
		{"sentinel without a master", "", []string{"REDIS_URL=redis://h:26379?master_name=", "VALIDATOR_GW_REDIS_MODE=sentinel",
			"VALIDATOR_GW_MIGRATE=perhaps"}, []string{"serve"}, []string{
			"VALIDATOR_GW_MIGRATE (VALIDATOR_GW_MIGRATE): \"perhaps\" is neither"}},
		{"upstream URL", "", []string{"VALIDATOR_GW_UPSTREAM_URL=verimail.io"}, []string{"serve"},
			[]string{"VALIDATOR_GW_UPSTREAM_URL (VALIDATOR_GW_UPSTREAM_URL): is not a base URL"}},
		{"profile", "", []string{"VALIDATOR_GW_UPSTREAM_PROFILE=verimail_v4"}, []string{"serve"},
			[]string{`"verimail_v4" is not one of verimail_v3`}},
		{"key in the upstream URL", "", []string{"VALIDATOR_GW_UPSTREAM_URL=https://h/?key=x"}, []string{"serve"},
			[]string{"the key goes into VALIDATOR_GW_UPSTREAM_KEY"}},
		{"secret in the file", "upstream: {key: abc}\nsecret: def\napi_key: ghi\n", nil, []string{"serve"}, []string{
			"upstream.key (settings.yaml:1): a secret does not belong", "secret (settings.yaml:2)", "api_key (settings.yaml:3)"}},
		{"dev for everyone", "", []string{"VALIDATOR_GW_METRICS_LISTEN=0.0.0.0:9090"}, []string{"dev", "--listen", ":8080",
			"--simulator-listen", "10.0.0.1:1", "--script", "dance"}, []string{
			"VALIDATOR_GW_LISTEN (--listen): \":8080\" is reachable from other machines", "VALIDATOR_GW_METRICS_LISTEN",
			"--simulator-listen", "--script"}},
		{"callbacks", "callbacks:\n  crm: {url: 'https://crm.example.com/planted', secret_file: /no/such/key}\n  mail: {url: 'https://mail.example.com', secret_file: /no/mail/key}\n",
			nil, []string{"serve"}, []string{"callbacks.crm.secret_file: open /no/such/key", "callbacks.mail.secret_file: open /no/mail/key"}},
		{"config check", "retry: {base: fast}\n", []string{"VALIDATOR_GW_QUEUE_BATCH=0"}, []string{"config", "check"},
			[]string{"retry.base", "queue.batch"}},
		{"config check, complete", "", []string{"VALIDATOR_GW_API_KEY="}, []string{"config", "check", "--complete"},
			[]string{"no API key"}},
		{"migrate", "", []string{"VALIDATOR_GW_QUEUE_BATCH=0"}, []string{"migrate"}, []string{"queue.batch"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			environ := append(whole(t), tc.environ...)
			if tc.file != "" {
				environ = append(environ, "VALIDATOR_GW_CONFIG="+file(t, "settings.yaml", tc.file))
			}
			code, stdout, stderr := call(t, overlay(environ), tc.args...)
			if code != 2 || stdout != "" {
				t.Errorf("code %d, stdout %q, want 2 and nothing", code, stdout)
			}
			lines := strings.Split(strings.TrimSpace(stderr), "\n")
			if len(tc.faults) > 1 {
				lines = lines[1:] // the headline
			}
			if len(lines) != len(tc.faults) {
				t.Errorf("%d faults, want %d:\n%s", len(lines), len(tc.faults), stderr)
			}
			for _, want := range tc.faults {
				if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, want) }) {
					t.Errorf("no %q in:\n%s", want, stderr)
				}
			}
			if strings.Contains(stderr, "planted") {
				t.Errorf("a secret is printed:\n%s", stderr)
			}
		})
	}
}

// A stop that is asked for while the gateway still waits for its database is no failure.
func TestStopWhileWaitingForTheDatabase(t *testing.T) {
	t.Parallel()
	p := begin(t, append(whole(t), "DATABASE_URL=postgres://u:planted@127.0.0.1:1/d"), "serve")
	p.wait(t, "can't be reached")
	p.signals <- os.Interrupt
	if code := p.end(t); code != 0 {
		t.Errorf("code %d, want 0:\n%s", code, p.stderr.String())
	}
	if out := p.stdout.String() + p.stderr.String(); strings.Contains(out, "planted") {
		t.Errorf("a secret is printed:\n%s", out)
	}
}

// overlay keeps the last of variables that are there twice, as a shell does.
func overlay(environ []string) []string {
	last := map[string]string{}
	var order []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if _, ok := last[name]; !ok {
			order = append(order, name)
		}
		last[name] = entry
	}
	list := make([]string, len(order))
	for i, name := range order {
		list[i] = last[name]
	}
	return list
}

func TestConfigCheck(t *testing.T) {
	t.Parallel()
	hook := file(t, "hook", "cGxhbnRlZC1zaWduaW5nLWtleS1vZi0zMi1ieXRlcy4=")
	path := file(t, "settings.yaml", "listen: 127.0.0.1:1111\nmetrics_listen: 127.0.0.1:2222\nlog: {level: warn}\n"+
		"retry:\n  base: 120ms\n  jitter: 10ms\nupstream: {url: 'http://simulator:8090', rate: 5}\n"+
		"callbacks: {crm: {url: 'https://crm.example.com/planted-token', secret_file: '"+hook+"'}}\n")
	code, stdout, stderr := call(t, []string{
		"VALIDATOR_GW_CONFIG=" + path, "VALIDATOR_GW_METRICS_LISTEN=127.0.0.1:3333", "VALIDATOR_GW_UPSTREAM_RATE=300/m",
		"VALIDATOR_GW_API_KEY_FILE=" + file(t, "key", "planted-api-key\n"), "VALIDATOR_GW_SECRET=" + secret.Generate().Reveal(),
	}, "config", "check", "--log-level", "debug", "--migrate")
	if code != 0 || stderr != "" {
		t.Fatalf("code %d, stderr %q", code, stderr)
	}
	for name, want := range map[string]string{
		"VALIDATOR_GW_LISTEN":         "127.0.0.1:1111 settings file",
		"VALIDATOR_GW_METRICS_LISTEN": "127.0.0.1:3333 VALIDATOR_GW_METRICS_LISTEN",
		"VALIDATOR_GW_LOG_LEVEL":      "debug --log-level",
		"VALIDATOR_GW_LOG_FORMAT":     "json default",
		"VALIDATOR_GW_MIGRATE":        "true --migrate",
		"VALIDATOR_GW_CONFIG":         path + " VALIDATOR_GW_CONFIG",
		"VALIDATOR_GW_UPSTREAM_URL":   "http://simulator:8090 settings file",
		"VALIDATOR_GW_UPSTREAM_KEY":   "not set default",
		"VALIDATOR_GW_API_KEY":        "set VALIDATOR_GW_API_KEY_FILE",
		"VALIDATOR_GW_SECRET":         "set VALIDATOR_GW_SECRET",
		"retry.base":                  "120ms settings.yaml:5",
		"upstream.rate":               "5/s VALIDATOR_GW_UPSTREAM_RATE",
		"retry.max":                   "400ms default",
		"cache.memory":                "32MiB default; a change needs a restart",
		"callbacks.crm.url":           "https://crm.example.com/… settings.yaml:8",
		"callbacks.crm.secret_file":   hook + " settings.yaml:8",
		"callbacks.crm.events":        "review.settled,review.dead default",
	} {
		var got string
		for line := range strings.Lines(stdout) {
			if words := strings.Fields(line); len(words) > 0 && words[0] == name {
				got = strings.Join(words[1:], " ")
			}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, want := range []string{
		"warning: retry.jitter 10ms", "warning: upstream.rate: VALIDATOR_GW_UPSTREAM_RATE sets it",
		"serve would not start: no upstream key",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in:\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "planted") || strings.Contains(stdout, "cGxhbnRlZ") {
		t.Errorf("a secret is printed:\n%s", stdout)
	}
}

// Every name of the static configuration is one that the settings accept beside theirs, and no setting has it.
func TestStaticNamesDoNotCollide(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, r := range settings.Default().Rows() {
		seen[r.Env], seen[r.Path] = true, true
	}
	for _, k := range statics {
		if seen[k.Env] || k.Path != "" && seen[k.Path] {
			t.Errorf("%s, %s: there twice", k.Env, k.Path)
		}
		seen[k.Env] = true
		if k.Path != "" {
			seen[k.Path] = true
		}
	}
}

func TestSecretFiles(t *testing.T) {
	t.Parallel()
	own := secret.Generate().Reveal()
	previous := secret.Generate().Reveal()
	cfg, err := loadConfig(modeServe, nil, []string{
		"VALIDATOR_GW_SECRET_FILE=" + file(t, "s", "\n "+own+" \r\n"),
		"VALIDATOR_GW_SECRET_PREVIOUS_FILE=" + file(t, "p", previous),
		"VALIDATOR_GW_API_KEY_FILE=" + file(t, "a", "the-api-key\n"),
		"VALIDATOR_GW_UPSTREAM_KEY_FILE=" + file(t, "u", "the-upstream-key\n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	wantOwn, _ := secret.Decode(secret.Text(own))
	wantPrevious, _ := secret.Decode(secret.Text(previous))
	g := cfg.gateway()
	if !slices.Equal(g.Secret, wantOwn) || !slices.Equal(g.SecretPrevious, wantPrevious) ||
		g.APIKey.Reveal() != "the-api-key" || g.UpstreamKey.Reveal() != "the-upstream-key" {
		t.Error("a secret from a file is not what the file says")
	}
	if len(cfg.missing) != 0 {
		t.Errorf("missing: %v", cfg.missing)
	}
}

func TestOwnSecret(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "a", "b")
	first, err := ownSecret(data)
	if err != nil || len(first) < secret.MinLength {
		t.Fatalf("ownSecret = %d bytes, %v", len(first), err)
	}
	if again, err := ownSecret(data); err != nil || !slices.Equal(first, again) {
		t.Errorf("the second call gives another secret (%v)", err)
	}
	if other, err := ownSecret(t.TempDir()); err != nil || slices.Equal(first, other) {
		t.Errorf("two folders have the same secret (%v)", err)
	}
	path := filepath.Join(data, secretFile)
	if err := os.WriteFile(path, []byte("garbage-in-the-file"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ownSecret(data); err == nil || !strings.Contains(err.Error(), path) ||
		strings.Contains(err.Error(), "garbage-in-the-file") {
		t.Errorf("a secret that can't be read: %v, want the path and not the text", err)
	}
}

// No secret, by whatever route it came, is ever printed: by its variable, by a file, misspelt, misplaced, refused.
func TestNoSecretIsPrinted(t *testing.T) {
	t.Parallel()
	const planted = "pl4nted"
	master := secret.Generate().Reveal()
	routes := []struct {
		name    string
		environ []string
	}{
		{"variables", []string{
			"VALIDATOR_GW_UPSTREAM_KEY=" + planted, "VALIDATOR_GW_API_KEY=" + planted, "VALIDATOR_GW_SECRET=" + master}},
		{"files", []string{
			"VALIDATOR_GW_UPSTREAM_KEY_FILE=" + file(t, "u", planted), "VALIDATOR_GW_API_KEY_FILE=" + file(t, "a", planted),
			"VALIDATOR_GW_SECRET_FILE=" + file(t, "s", master), "VALIDATOR_GW_SECRET_PREVIOUS_FILE=" + file(t, "p", master)}},
		{"faulty secrets", []string{
			"VALIDATOR_GW_SECRET=" + planted + "!", "VALIDATOR_GW_SECRET_PREVIOUS_FILE=" + file(t, "p", planted)}},
		{"misspelt", []string{
			"VALIDATOR_GW_UPSTREAM_KEI=" + planted, "VALIDATOR_GW_APIKEY=" + planted, "VALIDATOR_GW_SECRETS=" + master}},
		{"in the settings file", []string{"VALIDATOR_GW_CONFIG=" + file(t, "settings.yaml",
			"upstream: {key: "+planted+", kei: "+planted+"}\nsecret: "+master+"\napikey: "+planted+
				"\ndatabase_url: postgres://u:"+planted+"@h/d\n")}},
		{"a settings file that is a secret", []string{"VALIDATOR_GW_CONFIG=" + file(t, "settings.yaml", planted+"\n")}},
		{"stores", []string{"DATABASE_URL=postgres://u:" + planted + "@127.0.0.1:1/d?connect_timeout=1",
			"REDIS_URL=redis://:" + planted + "@127.0.0.1:1/0"}},
		{"stores that can't be read", []string{"DATABASE_URL=postgres://u:" + planted + "@h:port/d",
			"REDIS_URL=rediss//:" + planted + "@h:x"}},
		{"upstream URL", []string{"VALIDATOR_GW_UPSTREAM_URL=https://user:" + planted + "@h/v3?key=" + planted}},
		{"upstream URL that can't be read", []string{"VALIDATOR_GW_UPSTREAM_URL=https://h:" + planted + "@/%zz"}},
	}
	commands := [][]string{
		{"serve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"},
		{"serve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--log-format", "text", "--log-level", "debug"},
		{"dev", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--simulator-listen", "127.0.0.1:0"},
		{"config", "check"}, {"config", "check", "--complete"}, {"healthcheck", "--listen", "127.0.0.1:1"},
	}
	for _, route := range routes {
		for _, args := range commands {
			t.Run(route.name+" "+strings.Join(args[:min(2, len(args))], " "), func(t *testing.T) {
				t.Parallel()
				environ := append([]string{"VALIDATOR_GW_DATA=" + filepath.Join(t.TempDir(), "data")}, route.environ...)
				p := begin(t, environ, args...)
				if args[0] == "serve" || args[0] == "dev" {
					p.signals <- os.Interrupt // what starts stops again; what fails has failed
				}
				p.end(t)
				out := p.stdout.String() + p.stderr.String()
				if strings.Contains(out, planted) || strings.Contains(out, master) {
					t.Errorf("code %d, a secret is printed:\n%s", p.code, out)
				}
			})
		}
	}
}

// serve runs on SQLite with secrets from files, asks for the key, and prints neither.
func TestServe(t *testing.T) {
	t.Parallel()
	sim := begin(t, nil, "simulate", "--listen", "127.0.0.1:0", "--key", "planted-upstream-key")
	upstream := sim.wait(t, `on (http://127\.0\.0\.1:\d+)`)
	environ := overlay(append(whole(t), "VALIDATOR_GW_UPSTREAM_URL="+upstream))
	p := begin(t, environ, "serve", "--migrate")
	api := p.wait(t, `listening +(http://127\.0\.0\.1:\d+)`)
	if body := post(t, api+"/validate", `{"email":"ana@example.com"}`); !strings.Contains(body, "401") {
		t.Errorf("without a key: %s", body)
	}
	if body := fetch(t, upstream+"/control/stats"); !strings.Contains(body, `"billed":0`) {
		t.Errorf("without a key the upstream was asked: %s", body)
	}
	p.signals <- os.Interrupt
	if code := p.end(t); code != 0 {
		t.Errorf("code %d:\n%s", code, p.stderr.String())
	}
	// Without --log-format the log is JSON, the summary with it.
	for line := range strings.Lines(p.stderr.String() + p.stdout.String()) {
		if !strings.HasPrefix(line, "{") {
			t.Errorf("a line that is not JSON: %q", line)
		}
	}
	if out := p.stdout.String() + p.stderr.String(); strings.Contains(out, "planted") {
		t.Errorf("a secret is printed:\n%s", out)
	}
}
