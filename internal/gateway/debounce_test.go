package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"validator-gw/internal/debounce"
	"validator-gw/internal/verimail/simulator"
)

// pgOf is a connection to the database of a bench.
func pgOf(t *testing.T, b *bench) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), b.cfg.DatabaseURL.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// patientWindow is for bursts on a busy machine: what takes minutes there is one burst all the same.
var patientWindow = debounce.Window{Quiet: 6 * time.Second, Max: 10 * time.Minute}

// event asks for a new check of an address. A busy store may need more than one try; then nothing was promised.
func (b *bench) event(email string) (code int, id string) {
	b.t.Helper()
	for range 100 {
		a := b.do(http.MethodPost, "/revalidate", `{"email":"`+email+`"}`)
		if a.code != http.StatusServiceUnavailable {
			return a.code, a.ID
		}
	}
	b.t.Error("an event was not accepted in a hundred tries")
	return 0, ""
}

// burst sends a thousand events for an address to the fleet, thirty at a time, and returns the one id they got.
func burst(fleet []*bench, email string) (id string) {
	t := fleet[0].t
	t.Helper()
	began := time.Now()
	ids := make([]string, 1000)
	var senders sync.WaitGroup
	for s := range 30 {
		senders.Go(func() {
			for i := s; i < len(ids); i += 30 {
				code, id := fleet[i%len(fleet)].event(email)
				if code != http.StatusAccepted {
					t.Errorf("event %d: %d, want 202", i, code)
				}
				ids[i] = id
			}
		})
	}
	senders.Wait()
	t.Logf("a thousand events in %v", time.Since(began))
	for _, other := range ids {
		if other != ids[0] {
			t.Fatalf("events got the checks %s and %s, want one", ids[0], other)
		}
	}
	return ids[0]
}

// sums adds a counter over the fleet, by the value of its one label.
func sums(fleet []*bench, name, label string) (sum float64) {
	for _, b := range fleet {
		families, err := b.gateway.Registry().Gather()
		if err != nil {
			b.t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "validator_gw_"+name && m.GetLabel()[0].GetValue() == label {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

// TestThousandEventsAreOneCheck: over three replicas, for an address whose verdict is fresh; and once more with Redis dead.
func TestThousandEventsAreOneCheck(t *testing.T) {
	t.Parallel()
	fleet, server := newFleet(t, simulator.Config{}, func(c *Config) { c.EventWindow = patientWindow })
	first := fleet[0]
	checked := func(email string, before int64, old string) {
		t.Helper()
		id := burst(fleet, email)
		if id == old {
			t.Errorf("the events got the check that was known, %s", id)
		}
		if got := first.billed(email); got != before {
			t.Errorf("billed %d calls when the burst ended, want %d: its quiet was not over", got, before)
		}
		first.eventually("the check is made", func() bool { return fleet[1].status(id).Status == "valid" })
		if got := first.billed(email); got != before+1 {
			t.Errorf("billed %d calls, want %d", got, before+1)
		}
		if st := fleet[2].status(id); len(st.Trail) != 1 {
			t.Errorf("the check has %d calls, want one", len(st.Trail))
		}
	}
	const one, two = "deliverable@example.com", "deliverable+two@example.com"
	known := first.post(one)
	checked(one, 1, known.ID)
	if opened, merged := sums(fleet, "revalidate_events_total", "opened"), sums(fleet, "revalidate_events_total", "merged"); opened != 1 || merged < 999 {
		t.Errorf("%v events opened a check and %v merged, want 1 and 999", opened, merged)
	}
	if held := dumpRedis(t, server.URL()); strings.Contains(held, "example.com") {
		t.Errorf("Redis holds an address:\n%s", held)
	}
	server.Kill()
	first.eventually("each goes on by itself", func() bool { return all(fleet, func(b *bench) bool { return b.gauge("ratelimit_shared") == 0 }) })
	checked(two, 0, "")
}

// TestEventsOutliveRedis: Redis forgets a burst, and the row is due at its latest time.
func TestEventsOutliveRedis(t *testing.T) {
	t.Parallel()
	fleet, server := newFleet(t, simulator.Config{}, func(c *Config) {
		c.EventWindow = debounce.Window{Quiet: time.Hour - time.Second, Max: time.Hour}
	})
	const email = "deliverable@example.com"
	code, id := fleet[0].event(email)
	if code != http.StatusAccepted {
		t.Fatalf("event: %d", code)
	}
	if err := redisOf(t, server).FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	pg := pgOf(t, fleet[0])
	// An hour passes.
	if _, err := pg.Exec(t.Context(), `UPDATE review_queue SET due_at = due_at - interval '1 hour'`); err != nil {
		t.Fatal(err)
	}
	if _, err := pg.Exec(t.Context(), `UPDATE reviews SET asked_from = asked_from - interval '1 hour', asked_at = asked_at - interval '1 hour'`); err != nil {
		t.Fatal(err)
	}
	fleet[1].eventually("the check is made", func() bool { return fleet[1].status(id).Status == "valid" })
	if got := fleet[0].billed(email); got != 1 {
		t.Errorf("billed %d calls, want 1", got)
	}
}

// TestAcceptedEventsOutliveTheirProcess: what was accepted is checked by whoever comes next.
func TestAcceptedEventsOutliveTheirProcess(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store func(*testing.T, *Config)) {
		b := newBench(t, func(t *testing.T, c *Config) {
			store(t, c)
			c.EventWindow = debounce.Window{Quiet: 2 * time.Second, Max: 4 * time.Second}
		}, simulator.Config{}, nil)
		ids := make([]string, 20)
		for i := range ids {
			_, ids[i] = b.event(fmt.Sprintf("person%d@example.com", i))
		}
		b.halt()
		b.start()
		for i, id := range ids {
			b.eventually("the check is made", func() bool { return b.status(id).Status == "valid" })
			if got := b.billed(fmt.Sprintf("person%d@example.com", i)); got != 1 {
				t.Errorf("billed %d calls for event %d, want 1", got, i)
			}
		}
	})
}

// TestTwelveKeystrokesAreOneCall: on two replicas at once, of which none knows what the other was asked. The pause that they
// wait for is a third of a second: a machine that is too busy for twelve requests in it gets another try.
func TestTwelveKeystrokesAreOneCall(t *testing.T) {
	t.Parallel()
	fleet, _ := newFleet(t, simulator.Config{}, nil)
	type key struct {
		code int
		took time.Duration
	}
	for round := range 20 {
		keys := make([]key, 12)
		before, began := fleet[0].sim.Stats().Billed, time.Now()
		var typed sync.WaitGroup
		for i := range keys {
			typed.Go(func() {
				body, _ := json.Marshal(map[string]any{"email": fmt.Sprintf("deliverable+r%dk%d@example.com", round, i), "typing": true,
					"session_id": fmt.Sprint("session-", round)})
				a := fleet[i%2].do(http.MethodPost, "/validate", string(body))
				keys[i] = key{a.code, a.took}
			})
		}
		typed.Wait()
		count := map[int]int{}
		for _, k := range keys {
			count[k.code]++
		}
		billed := fleet[0].sim.Stats().Billed - before
		if count[200]+count[409]+count[503] != 12 || count[200]+count[503] == 0 || billed > int64(count[200]+count[503]) {
			t.Fatalf("answers %v with %d calls billed, want 200, 409 or 503, one that is not superseded, and no call for the others", count, billed)
		}
		if billed == 1 && count[200] == 1 && count[409] == 11 {
			if got := sums(fleet, "typing_checks_total", "superseded"); got < 11 {
				t.Errorf("%v were counted as superseded, want 11", got)
			}
			return
		}
		t.Logf("round %d took %v: %v, %d billed", round, time.Since(began), count, billed)
	}
	t.Error("in 20 rounds no burst of twelve was one billed call")
}

// TestTypingLeavesNothing: no row, no text in Redis, and the session's name nowhere.
func TestTypingLeavesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, stores[1].set, simulator.Config{}, nil)
	a := b.do(http.MethodPost, "/validate", `{"email":"softbounce@example.com","typing":true,"session_id":"planted-session"}`)
	if a.code != http.StatusServiceUnavailable {
		t.Errorf("a check without a verdict: %d, want 503", a.code)
	}
	b.do(http.MethodPost, "/validate", `{"email":"planted.typist@example.com","typing":true,"session_id":"planted-session"}`)
	pg := pgOf(t, b)
	var rows int
	if err := pg.QueryRow(t.Context(), `SELECT count(*) FROM reviews`).Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d reviews, %v; want none", rows, err)
	}
	b.halt()
	for name, text := range map[string]string{"log": b.log.String(), "redis": dumpRedis(t, b.cfg.RedisURL.Reveal())} {
		if strings.Contains(text, "planted") {
			t.Errorf("%s holds what was typed or the session", name)
		}
	}
}

// TestEventsAcrossARotation: an open review from before a change of the secret is the one that an event joins.
func TestEventsAcrossARotation(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store func(*testing.T, *Config)) {
		b := newBench(t, store, simulator.Config{}, nil)
		open := b.pending("softbounce@example.com")
		b.halt()
		b.cfg.Secret, b.cfg.SecretPrevious = []byte(strings.Repeat("n", 32)), b.cfg.Secret
		b.start()
		if code, id := b.event("softbounce@example.com"); code != http.StatusAccepted || id != open.ID {
			t.Errorf("event: %d %s, want 202 and the open review %s", code, id, open.ID)
		}
		b.eventually("it is checked again", func() bool { return len(b.status(open.ID).Trail) == 2 })
	})
}
