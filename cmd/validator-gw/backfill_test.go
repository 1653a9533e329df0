package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"validator-gw/internal/testenv"
	"validator-gw/internal/verimail/simulator"
)

// upstream runs a simulated upstream until the end of the test.
func upstream(t *testing.T) (sim *simulator.Simulator, url string) {
	t.Helper()
	sim, err := simulator.New(simulator.Config{Key: "upstream-key", P50: time.Millisecond, P99: 2 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- sim.Run(ctx, l) }()
	t.Cleanup(func() { cancel(); sim.Close(); <-ended })
	return sim, "http://" + l.Addr().String()
}

func backfillEnv(t *testing.T, upstream string, more ...string) []string {
	return processEnv(t, upstream, append([]string{"VALIDATOR_GW_BACKFILL_SHARE=1", "VALIDATOR_GW_UPSTREAM_RATE=400/s"}, more...)...)
}

func TestBackfillRun(t *testing.T) {
	t.Parallel()
	sim, url := upstream(t)
	env := backfillEnv(t, url)
	in := file(t, "list.csv", "id,email\n1,ana@example.com\n2,\"broken\n3,Ana@Example.com\n4,hardbounce@example.com\n5,nobody\n")
	out := filepath.Join(t.TempDir(), "out.csv")
	do := func(environ []string, stdin string, args ...string) (code int, stdout, stderr string) {
		t.Helper()
		var o, e output
		code = run(t.Context(), append([]string{"backfill"}, args...), environ, strings.NewReader(stdin), &o, &e, make(chan os.Signal))
		return code, o.String(), e.String()
	}
	code, stdout, stderr := do(env, "", "run", "--dry-run", "-o", out, in)
	if code != exitDone || !strings.Contains(stdout, "credits needed   2\n") || !strings.Contains(stdout, "invalid locally  1\n") ||
		!strings.Contains(stderr, "line 3: bad_quotes") || sim.Stats().Billed != 0 {
		t.Fatalf("dry run: %d\n%s\n%s, %d billed", code, stdout, stderr, sim.Stats().Billed)
	}
	if code, _, stderr = do(env, "", "run", "--max-credits", "1", "-o", out, in); code != exitFailed ||
		!strings.Contains(stderr, "stopped at its bound of 1 credits") || sim.Stats().Billed != 1 {
		t.Errorf("bounded run: %d %s, %d billed", code, stderr, sim.Stats().Billed)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("a run that was stopped has left results that are not whole")
	}
	if code, _, stderr = do(env, "", "run", "--max-credits", "2", "-o", out, in); code != exitDone || !strings.Contains(stderr, "2 credits") {
		t.Errorf("run: %d %s", code, stderr)
	}
	const want = `input,normalized,status,decision,reason,suggestion
ana@example.com,ana@example.com,valid,accept,mailbox_accepted,
,,,,bad_quotes,
Ana@Example.com,Ana@example.com,valid,accept,mailbox_accepted,
`
	text, err := os.ReadFile(out)
	if err != nil || !strings.HasPrefix(strings.ToLower(string(text)), strings.ToLower(want)) || strings.Count(string(text), "\n") != 6 {
		t.Errorf("results: %v\n%s\nwant\n%s…", err, text, want)
	}
	if code, _, stderr = do(env, "", "run", "-o", out, in); code != exitDone || sim.Stats().Billed != 2 {
		t.Errorf("the same again: %d %s, %d billed", code, stderr, sim.Stats().Billed)
	}
	// Standard input has no name to be resumed by; what is known costs nothing.
	code, stdout, stderr = do(env, "{\"email\":\"ana@example.com\"}\n{\"email\":\"ben@example.com\"}\n", "run", "-")
	if code != exitDone || strings.Count(stdout, ",valid,") != 2 || sim.Stats().Billed != 3 {
		t.Errorf("from standard input: %d\n%s\n%s, %d billed", code, stdout, stderr, sim.Stats().Billed)
	}
	code, stdout, stderr = do(env, "", "list", "--json")
	var first progress
	line, _, _ := strings.Cut(stdout, "\n")
	if err := json.Unmarshal([]byte(line), &first); code != exitDone || err != nil || strings.Count(stdout, "\n") != 2 || first.Known != 1 {
		t.Fatalf("list: %d\n%s\n%s", code, stdout, stderr)
	}
	if code, stdout, stderr = do(env, "", "show", first.ID); code != exitDone || !strings.Contains(stdout, `"state": "done"`) {
		t.Errorf("show: %d\n%s\n%s", code, stdout, stderr)
	}
	if code, stdout, stderr = do(env, "", "results", first.ID); code != exitDone || strings.Count(stdout, "\n") != 3 {
		t.Errorf("results: %d\n%s\n%s", code, stdout, stderr)
	}
	if code, _, stderr = do(env, "", "cancel", first.ID); code != exitFailed || !strings.Contains(stderr, "does not allow it") {
		t.Errorf("cancel a done one: %d %s", code, stderr)
	}
	for name, args := range map[string][]string{
		"no file":       {"run", "-o", out, in + ".none"},
		"itself":        {"run", "-o", in, in},
		"format":        {"run", "--format", "xml", in},
		"rate":          {"run", "--rate", "fast", in},
		"bound":         {"run", "--max-credits=-1", in},
		"flow":          {"run", "--flow", "nope", in},
		"server":        {"run", "--server", "here", in},
		"unknown flags": {"run", "--nope", in},
	} {
		if code, _, stderr := do(env, "", args...); code != exitUsage {
			t.Errorf("%s: %d %s, want %d", name, code, stderr, exitUsage)
		}
	}
	if code, _, stderr := do(env, "", "run", file(t, "list.txt", "what is this\n")); code != exitFailed || !strings.Contains(stderr, "name the format") {
		t.Errorf("what nobody can read: %d %s", code, stderr)
	}
}

// A gateway that runs on the folder is named, and takes the list itself.
func TestBackfillByServer(t *testing.T) {
	t.Parallel()
	sim, url := upstream(t)
	env := backfillEnv(t, url)
	p := serveProcess(t, env)
	var text strings.Builder
	for i := range 50 {
		fmt.Fprintf(&text, "person%d@example.com\n", i%40)
	}
	in, out := file(t, "list.txt", text.String()), filepath.Join(t.TempDir(), "out.ndjson")
	code, _, stderr := call(t, env, "backfill", "run", "-o", out, in)
	if code != exitFailed || !strings.Contains(stderr, "--server") {
		t.Errorf("beside a gateway: %d %s, want the hint", code, stderr)
	}
	if code, _, stderr = call(t, []string{"VALIDATOR_GW_API_KEY=wrong"}, "backfill", "run", "--server", p.url, in); code != exitFailed || !strings.Contains(stderr, "401") {
		t.Errorf("with a wrong key: %d %s", code, stderr)
	}
	key := []string{"VALIDATOR_GW_API_KEY=client-key"}
	if code, stdout, stderr := call(t, key, "backfill", "run", "--server", p.url, "--dry-run", "-o", out, in); code != exitDone ||
		!strings.Contains(stdout, "credits needed   40\n") {
		t.Errorf("dry run: %d\n%s\n%s", code, stdout, stderr)
	}
	if code, _, stderr := call(t, key, "backfill", "run", "--server", p.url, "-o", out, in); code != exitDone || !strings.Contains(stderr, "50 rows, 40 addresses") {
		t.Errorf("run: %d %s", code, stderr)
	}
	got, err := os.ReadFile(out)
	if err != nil || strings.Count(string(got), `"status":"valid"`) != 50 || sim.Stats().Billed != 40 {
		t.Errorf("%d results, %v, %d billed; want 50 for 40", strings.Count(string(got), "\n"), err, sim.Stats().Billed)
	}
	code, stdout, stderr := call(t, key, "backfill", "list", "--server", p.url)
	if code != exitDone || strings.Count(stdout, "done") != 2 { // the column and the state
		t.Errorf("list: %d\n%s\n%s", code, stdout, stderr)
	}
}

// Killed three times and run again, a list is complete, and no address was billed twice but those that were on the wire.
func TestBackfillSurvivesKills(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"sqlite", "postgres"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			const people, workers, kills = 1200, 8, 3
			sim, url := upstream(t)
			env := backfillEnv(t, url, fmt.Sprintf("VALIDATOR_GW_QUEUE_WORKERS=%d", workers), "VALIDATOR_GW_QUEUE_LEASE=16s")
			if store == "postgres" {
				env = append(env, "DATABASE_URL="+testenv.Postgres(t))
			}
			var text strings.Builder
			text.WriteString("email\n")
			for i := range people {
				fmt.Fprintf(&text, "person%d@domain%d.example.com\n", i, i%50)
			}
			in, out := file(t, "list.csv", text.String()), filepath.Join(t.TempDir(), "out.csv")
			work := func() *exec.Cmd {
				cmd := exec.CommandContext(t.Context(), os.Args[0], "backfill", "run", "-o", out, in)
				cmd.Env = append(env, asProgram+"=1")
				log, err := os.Create(filepath.Join(t.TempDir(), "log"))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if text, _ := os.ReadFile(log.Name()); t.Failed() {
						t.Logf("log of the program:\n%s", text)
					}
					_ = log.Close()
				})
				cmd.Stderr = log
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				return cmd
			}
			for kill := range kills {
				cmd := work()
				for limit := time.Now().Add(time.Minute); sim.Stats().Billed < int64((kill+1)*200); time.Sleep(10 * time.Millisecond) {
					if time.Now().After(limit) {
						t.Fatalf("run %d: %d billed after a minute", kill, sim.Stats().Billed)
					}
				}
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
			if err := work().Wait(); err != nil {
				t.Fatalf("the last run: %v", err)
			}
			got, err := os.ReadFile(out)
			if err != nil || strings.Count(string(got), ",valid,accept,mailbox_accepted,") != people {
				t.Errorf("%d of %d results, %v", strings.Count(string(got), ",valid,"), people, err)
			}
			stats := sim.Stats()
			if len(stats.ByAddress) != people {
				t.Errorf("%d addresses were billed, want %d", len(stats.ByAddress), people)
			}
			// What is on the wire, or answered and not yet written, is forgotten with the process.
			if twice := stats.Billed - people; twice > kills*2*workers {
				t.Errorf("%d calls more than addresses, want %d at most", twice, kills*2*workers)
			} else {
				t.Logf("%d calls for %d addresses and %d kills", stats.Billed, people, kills)
			}
		})
	}
}
