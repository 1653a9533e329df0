package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"validator-gw/internal/secret"
	"validator-gw/internal/testenv"
	"validator-gw/internal/verimail/simulator"
)

// event asks for a new check of an address and returns its id; a busy machine's store may need more than one try.
func (p *served) event(email string) (id string) {
	p.t.Helper()
	for range 100 {
		req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.url+"/revalidate", strings.NewReader(`{"email":"`+email+`"}`))
		if err != nil {
			p.t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer client-key")
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			p.t.Fatal(err)
		}
		var body struct {
			ID string `json:"id"`
		}
		err = json.NewDecoder(res.Body).Decode(&body)
		_ = res.Body.Close()
		if res.StatusCode == http.StatusAccepted {
			return body.ID
		}
		if err != nil || res.StatusCode != http.StatusServiceUnavailable {
			p.t.Fatalf("event: %d, %v", res.StatusCode, err)
		}
	}
	p.t.Fatal("an event was not accepted in a hundred tries")
	return ""
}

// TestKilledBetweenEventAndCheck: an event that was accepted is there after kill -9, and its check is made by the next
// process, with a Redis that had the burst and without.
func TestKilledBetweenEventAndCheck(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"sqlite", "postgres", "postgres and redis"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			sim, err := simulator.New(simulator.Config{Key: "upstream-key"})
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

			env := []string{"PATH=" + os.Getenv("PATH"), "VALIDATOR_GW_DATA=" + t.TempDir(),
				"VALIDATOR_GW_UPSTREAM_URL=http://" + l.Addr().String(), "VALIDATOR_GW_UPSTREAM_KEY=upstream-key",
				"VALIDATOR_GW_SECRET=" + secret.Generate().Reveal(), "VALIDATOR_GW_API_KEY=client-key", "VALIDATOR_GW_MIGRATE=true"}
			if store != "sqlite" {
				env = append(env, "DATABASE_URL="+testenv.Postgres(t))
			}
			if store == "postgres and redis" {
				url, _ := testenv.Redis(t) // the key space is apart by the secret
				env = append(env, "REDIS_URL="+url)
			}
			p := serveProcess(t, env)
			ids := make([]string, 10)
			for i := range ids {
				ids[i] = p.event(fmt.Sprintf("person%d@example.com", i))
			}
			p.kill() // the last events are not due
			before := sim.Stats().Calls
			p = serveProcess(t, env)
			deadline := time.NewTimer(90 * time.Second)
			defer deadline.Stop()
			tick := time.NewTicker(200 * time.Millisecond)
			defer tick.Stop()
			for i := 0; i < len(ids); {
				code, _, status := p.call(http.MethodGet, "/status/"+ids[i], nil)
				switch {
				case code == http.StatusNotFound:
					t.Fatalf("event %d is lost", i)
				case code == http.StatusOK && status == "valid":
					i++
					continue
				}
				select {
				case <-tick.C:
				case <-deadline.C:
					t.Fatalf("event %d is %s after 90 s", i, status)
				}
			}
			t.Logf("%d of %d checks were made after the kill", sim.Stats().Calls-before, len(ids))
		})
	}
}
