package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"validator-gw/internal/normalize"
	"validator-gw/internal/secret"
	"validator-gw/internal/settings"
	"validator-gw/internal/testenv"
	"validator-gw/internal/verimail/simulator"
)

// newFleet starts three gateways on one Postgres and one Redis that is the test's own.
func newFleet(t *testing.T, sim simulator.Config, tune func(*Config)) ([]*bench, *testenv.Server) {
	t.Helper()
	server := testenv.RedisServer(t)
	first := newBench(t, func(t *testing.T, c *Config) {
		stores[1].set(t, c)
		c.RedisURL = secret.Text(server.URL())
		if tune != nil {
			tune(c)
		}
	}, sim, func(s *settings.Settings) {
		signup := s.Flows["signup"]
		signup.Budget = 950 * time.Millisecond // the machine may be busy
		s.Flows["signup"] = signup
	})
	fleet := []*bench{first}
	for range 2 {
		b := *first
		b.start()
		t.Cleanup(b.halt)
		fleet = append(fleet, &b)
	}
	first.eventually("all share Redis", func() bool { return all(fleet, func(b *bench) bool { return b.gauge("ratelimit_instances") == 3 }) })
	for _, b := range fleet { // a connection that is not open yet takes its time under the race detector
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() { b.post(fmt.Sprintf("deliverable+warm%d@example.net", i)) })
		}
		wg.Wait()
	}
	first.eventually("the upstream is at rest", func() bool { return first.sim.Stats().InFlight == 0 })
	first.sim.Reset()
	c := redisOf(t, server)
	for _, b := range fleet {
		<-b.gateway.cache.Written()
	}
	keys, err := c.Keys(t.Context(), "ev1:*").Result()
	if err == nil && len(keys) > 0 {
		err = c.Del(t.Context(), keys...).Err()
	}
	if err != nil {
		t.Fatal(err)
	}
	return fleet, server
}

func all(fleet []*bench, is func(*bench) bool) bool {
	for _, b := range fleet {
		if !is(b) {
			return false
		}
	}
	return true
}

// crowd posts an address a hundred times, spread over the fleet.
func crowd(fleet []*bench, email string) []answer {
	answers := make([]answer, 100)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = fleet[i%len(fleet)].post(email) })
	}
	wg.Wait()
	return answers
}

// oneVerdict checks that each of a crowd's answers is the same verdict, or came without one because its time was up: what costs an
// answer its verdict before half of the usual budget is no slow machine. told is how many had it, of each replica.
func oneVerdict(t *testing.T, fleet []*bench, answers []answer) (id string, told []int) {
	t.Helper()
	told = make([]int, len(fleet))
	for i, a := range answers {
		if a.Status != "valid" {
			if a.took < 400*time.Millisecond {
				t.Errorf("answer %d has no verdict after %v: %d %s %s", i, a.took, a.code, a.Status, a.Reason)
			}
			continue
		}
		told[i%len(fleet)]++
		if id = cmp.Or(id, a.ID); a.ID != id {
			t.Errorf("answer %d: id %s and %s", i, a.ID, id)
		}
	}
	return id, told
}

// leases sums what became of leases over the fleet.
func leases(fleet []*bench, outcome string) (sum float64) {
	for _, b := range fleet {
		families, err := b.gateway.Registry().Gather()
		if err != nil {
			b.t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "validator_gw_flight_leases_total" {
				continue
			}
			for _, m := range f.GetMetric() {
				if m.GetLabel()[0].GetValue() == outcome {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

func redisOf(t *testing.T, server *testenv.Server) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// lease returns what is left of the one lease's life; not positive when there is none.
func lease(t *testing.T, c *redis.Client) time.Duration {
	t.Helper()
	keys, err := c.Keys(t.Context(), "lease:*").Result()
	if err != nil || len(keys) > 1 {
		t.Fatalf("leases %q, %v; want one at the most", keys, err)
	}
	if len(keys) == 0 {
		return 0
	}
	left, err := c.PTTL(t.Context(), keys[0]).Result()
	if err != nil {
		t.Fatal(err)
	}
	return left
}

func (b *bench) billed(email string) int64 { return b.sim.Stats().ByAddress[email] }

// onTheWire posts and returns once the upstream has the call.
func (b *bench) onTheWire(email string) (answered <-chan answer) {
	b.t.Helper()
	before := b.sim.Stats().Calls
	got := make(chan answer, 1)
	go func() { got <- b.post(email) }()
	b.eventually("the upstream is asked", func() bool { return b.sim.Stats().Calls > before })
	return got
}

// TestFleetMakesOneCall: a hundred equal requests over three replicas are one billed call, and three at the most once
// Redis is dead. Not parallel: a hundred at once under the race detector are work enough.
func TestFleetMakesOneCall(t *testing.T) { // not parallel
	fleet, server := newFleet(t, simulator.Config{P50: 150 * time.Millisecond}, nil)
	first := fleet[0]
	const two = "deliverable+two@example.com"
	var one, id string
	whole := false
	for n := 0; n < 5 && !whole; n++ { // a machine that stands still for a second lets answers run out of time
		one = fmt.Sprintf("deliverable+one%d@example.com", n)
		before := [2]float64{leases(fleet, "mine"), leases(fleet, "joined")}
		answers := crowd(fleet, one)
		var told []int
		id, told = oneVerdict(t, fleet, answers)
		whole = slices.Min(told) >= 30 // of 33
		if got := first.billed(one); got != 1 {
			t.Errorf("billed %d calls, want 1", got)
		}
		if mine, joined := leases(fleet, "mine")-before[0], leases(fleet, "joined")-before[1]; whole && (mine != 1 || joined > 2) {
			t.Errorf("%v leases and %v joined, want 1 and 2 at the most", mine, joined)
		}
	}
	if !whole {
		t.Error("in none of five crowds all replicas had the verdict in time")
	}
	for _, b := range fleet[1:] { // what was joined is in each process now
		if a := b.post(one); a.ID != id || a.Source.Kind != "cache" {
			t.Errorf("again: %s %s from %s, want the same from cache", a.Status, a.ID, a.Source.Kind)
		}
	}
	server.Kill()
	probes := 0
	first.eventually("each goes on by itself", func() bool {
		probes++
		return all(fleet, func(b *bench) bool {
			return b.gauge("ratelimit_shared") == 0 && b.post(fmt.Sprintf("deliverable+%d@example.com", probes)).code == 200
		})
	})
	for i, a := range crowd(fleet, two) {
		if a.code != 200 && a.code != 202 && a.code != 503 {
			t.Errorf("without Redis, answer %d: %d", i, a.code)
		}
	}
	if got := first.billed(two); got < 1 || got > 3 {
		t.Errorf("without Redis %d calls were billed, want 1 to 3", got)
	}
	if leases(fleet, "away") == 0 {
		t.Error("no lease was counted as away")
	}
}

// TestFleetSharesAFailure: who waits at another replica gets the same answer and the same row, and does not ask.
func TestFleetSharesAFailure(t *testing.T) {
	t.Parallel()
	fleet, _ := newFleet(t, simulator.Config{P50: 300 * time.Millisecond}, nil)
	for n := range 3 { // a machine that stands still for a second lets answers run out of time
		email := fmt.Sprintf("softbounce+%d@example.com", n)
		before := leases(fleet, "failed")
		asked := fleet[0].onTheWire(email)
		answers := make([]answer, 3)
		var wg sync.WaitGroup
		for i, b := range fleet[1:] {
			wg.Go(func() { answers[i] = b.post(email) })
		}
		wg.Wait()
		answers[2] = <-asked
		late := false
		for i, a := range answers {
			late = late || a.Reason == "upstream_timeout" || a.code == 503
			if !late && (a.Status != "needs_review" || a.Reason != "mailbox_temp_rejected" || a.ID != answers[2].ID) {
				t.Errorf("answer %d: %s %s %s, want needs_review mailbox_temp_rejected %s", i, a.Status, a.Reason, a.ID, answers[2].ID)
			}
		}
		if late {
			continue
		}
		if got := fleet[0].billed(email); got != 1 {
			t.Errorf("billed %d calls, want 1", got)
		}
		if failed := leases(fleet, "failed") - before; failed != 2 {
			t.Errorf("%v checks ended on the other's failure, want 2", failed)
		}
		if st := fleet[1].status(answers[2].ID); len(st.Trail) != 1 || time.Until(st.NextCheckAt) < 5*time.Minute {
			t.Errorf("the row has %d calls and is checked at %v; want one call, and the ladder of the mailbox's side", len(st.Trail), st.NextCheckAt)
		}
		return
	}
	t.Error("three times, somebody ran out of time")
}

// TestLateAnswerReachesTheFleet: those who waited elsewhere have rows; the answer that comes after them settles the row
// and fills the other process's cache.
func TestLateAnswerReachesTheFleet(t *testing.T) {
	t.Parallel()
	fleet, _ := newFleet(t, simulator.Config{P50: 2 * time.Second}, nil)
	const email = "deliverable@example.com"
	asked := fleet[0].onTheWire(email)
	other := fleet[1].post(email)
	first := <-asked
	if first.Status != "needs_review" || other.Status != "needs_review" || first.ID != other.ID {
		t.Errorf("%s %s and %s %s, want one review", first.Status, first.ID, other.Status, other.ID)
	}
	fleet[1].eventually("the review is settled", func() bool { return fleet[1].status(other.ID).Status == "valid" })
	fleet[1].eventually("the other process has the verdict", func() bool { return leases(fleet[1:2], "joined") == 1 })
	if a := fleet[1].post(email); a.Status != "valid" || a.Source.Kind != "cache" {
		t.Errorf("again: %s from %s, want valid from cache", a.Status, a.Source.Kind)
	}
	if got := fleet[0].billed(email); got != 1 {
		t.Errorf("billed %d calls, want 1", got)
	}
}

// TestVerdictThatRedisRefuses: who waits at another replica finds in the store what Redis could not take, and does not ask.
func TestVerdictThatRedisRefuses(t *testing.T) {
	t.Parallel()
	fleet, server := newFleet(t, simulator.Config{P50: 250 * time.Millisecond}, nil)
	c := redisOf(t, server)
	joined := false
	for n := 0; n < 3 && !joined; n++ { // on a machine that stands still for a moment the last look may come before the store has it
		email := fmt.Sprintf("deliverable+%d@example.com", n)
		if err := c.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
			t.Fatal(err)
		}
		fleet[0].eventually("all share Redis", func() bool { return all(fleet, func(b *bench) bool { return b.gauge("ratelimit_shared") == 1 }) })
		asked := fleet[0].onTheWire(email)
		if err := c.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
			t.Fatal(err)
		}
		other, first := fleet[1].post(email), <-asked
		joined = first.Status == "valid" && other.Status == "valid" && other.ID == first.ID && other.Source.Kind == "flight"
		if got := fleet[0].billed(email); got != 1 {
			t.Errorf("billed %d calls, want 1", got)
		}
		t.Logf("%s %s from %s, and %s %s from %s", first.Status, first.ID, first.Source.Kind, other.Status, other.ID, other.Source.Kind)
	}
	if !joined {
		t.Error("the other replica never had the verdict in time")
	}
}

// TestFleetTakesOver: a replica that died in the middle of its call holds nobody up for longer than its lease.
func TestFleetTakesOver(t *testing.T) {
	t.Parallel()
	fleet, server := newFleet(t, simulator.Config{}, nil)
	const email = "deliverable@example.com"
	keys, err := deriveKeys(fleet[0].cfg.Secret, nil)
	if err != nil {
		t.Fatal(err)
	}
	addr, err := normalize.Restore(email)
	if err != nil {
		t.Fatal(err)
	}
	const left = 300 * time.Millisecond // of what nobody renews any more
	c, name := redisOf(t, server), "lease:{ev1:"+keys.id+":"+keys.prints.Of(addr).String()+"}"
	if err := c.Set(t.Context(), name, "OFTHEDEAD", left).Err(); err != nil {
		t.Fatal(err)
	}
	answers := make([]answer, len(fleet))
	var wg sync.WaitGroup
	for i, b := range fleet {
		wg.Go(func() { answers[i] = b.post(email) })
	}
	wg.Wait()
	asked := 0
	for i, a := range answers {
		if a.Status != "valid" || a.ID != answers[0].ID {
			t.Errorf("answer %d: %s %s %s from %s after %v, want valid %s", i, a.Status, a.Reason, a.ID, a.Source.Kind, a.took, answers[0].ID)
		}
		if a.Source.Kind == "upstream" {
			asked++
			if a.took < left/2 {
				t.Errorf("asked after %v, while another's lease was there", a.took)
			}
		}
	}
	if got := fleet[0].billed(email); got != 1 || asked != 1 {
		t.Errorf("%d answers from the upstream, %d calls billed, want 1 and 1", asked, got)
	}
	fleet[0].eventually("the lease is given back", func() bool { return lease(t, c) <= 0 })
}

// TestFleetWithAHungRedis: nobody waits for it for long, and each replica asks once at the most.
func TestFleetWithAHungRedis(t *testing.T) { // not parallel: a hundred at once are work enough
	fleet, server := newFleet(t, simulator.Config{P50: 50 * time.Millisecond}, func(c *Config) { c.RedisLookUp = 0 })
	server.Pause()
	const email = "deliverable@example.com"
	for i, a := range crowd(fleet, email) {
		if a.code != 200 && a.code != 202 && a.code != 503 { // a busy machine may have no connection to the store to spare
			t.Errorf("answer %d: %d", i, a.code)
		}
	}
	if got := fleet[0].billed(email); got > 3 {
		t.Errorf("billed %d calls, want 3 at the most", got)
	}
	server.Resume()
}

// TestErasedStaysErasedInTheFleet: neither a lease nor who waits for one brings an address back.
func TestErasedStaysErasedInTheFleet(t *testing.T) {
	t.Parallel()
	fleet, server := newFleet(t, simulator.Config{P50: 2 * time.Second}, nil)
	c := redisOf(t, server)
	const email = "deliverable@example.com"
	asked := fleet[0].onTheWire(email)
	other := fleet[1].post(email)
	<-asked
	if code, _, text := fleet[2].patient("DELETE", "/addresses", `{"email":"`+email+`"}`, ""); code != 200 {
		t.Fatalf("DELETE: %d %s", code, text)
	}
	fleet[0].eventually("the call and the lease have ended", func() bool {
		return fleet[0].sim.Stats().InFlight == 0 && lease(t, c) <= 0 && leases(fleet, "timeout") == 1
	})
	if held := dumpRedis(t, server.URL()); strings.Contains(held, `"v"`) || strings.Contains(held, `"m"`) {
		t.Errorf("Redis holds\n%s", held)
	}
	for _, b := range fleet { // the first has it for the moment in which it tries to write it
		b.eventually("the check is unknown", func() bool { return b.status(other.ID).code == 404 })
	}
	if err := fleet[0].sim.SetMode(simulator.Mode{P50: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if a := fleet[2].post(email); a.Status != "valid" || a.Source.Kind != "upstream" || a.ID == other.ID {
		t.Errorf("a new post: %s %s from %s, want a new check", a.Status, a.ID, a.Source.Kind)
	}
}
