package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"validator-gw/internal/api/apitest"
	"validator-gw/internal/settings"
	"validator-gw/internal/verimail/simulator"
)

// bulk makes a call of the lists and holds it to the document.
func (b *bench) bulk(method, path, media, body string, into any) (status int, text string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", media)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	all, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	if media == "text/csv" {
		body = "email\n" // the bad lines of a list are not the document's business
	}
	sent := req.Clone(b.t.Context())
	sent.Body, sent.GetBody = io.NopCloser(strings.NewReader(body)), nil
	if err := apitest.Conforms(sent, res.StatusCode, res.Header, all); err != nil {
		b.t.Error(err)
	}
	if into != nil {
		if err := json.Unmarshal(all, into); err != nil {
			b.t.Fatalf("%s %s: %d %s", method, path, res.StatusCode, all)
		}
	}
	return res.StatusCode, string(all)
}

// listState is a backfill as far as the stories care.
type listState struct {
	ID, State                            string
	Rows, Distinct, Done, Known, Credits int64
	Plan                                 *struct{ Known, Open, Credits int64 }
}

func (b *bench) list(id string, until ...string) (l listState) {
	b.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if status, text := b.bulk("GET", "/backfills/"+id, "", "", &l); status != 200 {
			b.t.Fatalf("%d %s", status, text)
		}
		for _, state := range until {
			if l.State == state {
				return l
			}
		}
		if time.Now().After(end) {
			b.t.Fatalf("%+v, want %v", l, until)
		}
	}
}

// A list goes through a whole gateway: counted first, then run to its bound, then to its end; what it costs is what was
// counted, what people asked for before costs nothing, and an erasure reaches its rows.
func TestLists(t *testing.T) {
	t.Parallel()
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, store.set, simulator.Config{P50: time.Millisecond, P99: 2 * time.Millisecond}, func(s *settings.Settings) {
				s.Backfill.Share, s.Queue.Workers = 1, 32
			})
			var a answer
			b.eventually("a person's verdict", func() bool { a = b.post("person1@example.com"); return a.code == 200 })
			b.eventually("it is stored", func() bool { _, err := b.gateway.store.Verdict(t.Context(), a.ID); return err == nil })
			asked := b.sim.Stats().Billed
			var text strings.Builder
			text.WriteString("id;email\n")
			for i := range 200 {
				fmt.Fprintf(&text, "%d;person%d@example.com\n", i, i%120)
			}
			text.WriteString("x;hardbounce@example.com\ny;no address\nz;\"broken\n")
			var l listState
			if status, body := b.bulk("POST", "/backfills?dry_run=true", "text/csv", text.String(), &l); status != 202 {
				t.Fatalf("%d %s", status, body)
			}
			plan := b.list(l.ID, "planned")
			if plan.Rows != 203 || plan.Distinct != 121 || plan.Plan == nil || plan.Plan.Known != 1 || plan.Plan.Credits != 120 {
				t.Errorf("plan = %+v %+v, want 120 credits for 121 addresses", plan, plan.Plan)
			}
			if n := b.sim.Stats().Billed - asked; n != 0 {
				t.Errorf("%d calls were billed by a dry run", n)
			}
			if status, body := b.bulk("GET", "/backfills/"+l.ID+"/results", "", "", nil); status != 409 {
				t.Errorf("results of a plan: %d %s, want 409", status, body)
			}
			if status, body := b.bulk("POST", "/backfills/"+l.ID+"?max_credits=50", "", "", nil); status != 202 {
				t.Fatalf("resume: %d %s", status, body)
			}
			if l = b.list(l.ID, "stopped"); l.Credits != 50 {
				t.Errorf("%+v, want it stopped at its bound", l)
			}
			if n := b.sim.Stats().Billed - asked; n != 50 {
				t.Errorf("%d calls were billed, want 50", n)
			}
			b.halt()
			b.start() // where it stands is in the store
			if status, body := b.bulk("POST", "/backfills/"+l.ID+"?max_credits=-1", "", "", nil); status != 202 {
				t.Fatalf("resume: %d %s", status, body)
			}
			l = b.list(l.ID, "done")
			if l.Credits != 120 || l.Done != 121 || l.Known != 1 {
				t.Errorf("%+v, want what was planned", l)
			}
			if n := b.sim.Stats().Billed - asked; n != 120 {
				t.Errorf("%d calls were billed, want each address once", n)
			}
			_, results := b.bulk("GET", "/backfills/"+l.ID+"/results", "", "", nil)
			lines := strings.Split(strings.TrimSpace(results), "\n")
			if len(lines) != 204 || lines[1] != "person0@example.com,person0@example.com,valid,accept,mailbox_accepted," ||
				!strings.HasPrefix(lines[201], "hardbounce@example.com,hardbounce@example.com,invalid,reject,mailbox_not_found") ||
				lines[202] != "no address,,invalid,reject,missing_at," || lines[203] != ",,,,bad_quotes," {
				t.Errorf("%d lines of results:\n%s\n…\n%s", len(lines), lines[1], strings.Join(lines[len(lines)-3:], "\n"))
			}
			var page struct{ Backfills []listState }
			if status, body := b.bulk("GET", "/backfills", "", "", &page); status != 200 || len(page.Backfills) != 1 || page.Backfills[0].ID != l.ID {
				t.Errorf("list: %d %s", status, body)
			}
			if status, body := b.bulk("DELETE", "/backfills/"+l.ID, "", "", nil); status != 409 {
				t.Errorf("cancel a done one: %d %s, want 409", status, body)
			}
			var gone struct {
				Rows int64 `json:"backfill_rows"`
			}
			if status, body := b.bulk("DELETE", "/addresses", "application/json", `{"email":"person5@example.com"}`, &gone); status != 200 || gone.Rows != 2 {
				t.Errorf("erase: %d %s, want two rows of the list", status, body)
			}
			if _, results = b.bulk("GET", "/backfills/"+l.ID+"/results", "", "", nil); strings.Contains(results, "person5@") ||
				strings.Count(results, ",,,,erased,") != 2 {
				t.Errorf("%d erased lines, want two and no more of the address", strings.Count(results, ",,,,erased,"))
			}
			if strings.Contains(b.log.String(), "person") {
				t.Error("an address is in the log")
			}
		})
	}
}

// A list that was sent once and again with one key is one list.
func TestListsAreIdempotent(t *testing.T) {
	t.Parallel()
	b := newBench(t, stores[0].set, simulator.Config{P50: time.Millisecond, P99: 2 * time.Millisecond}, nil)
	send := func(key, path, body string) (status int, l listState) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "text/plain")
		req.Header.Set("Idempotency-Key", key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		all, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = json.Unmarshal(all, &l)
		return res.StatusCode, l
	}
	status, first := send("one", "/backfills", "a@example.com\n")
	if status != 202 {
		t.Fatalf("%d", status)
	}
	if status, again := send("one", "/backfills", "a@example.com\n"); status != 202 || again.ID != first.ID {
		t.Errorf("again: %d %+v, want the first", status, again)
	}
	if status, _ := send("one", "/backfills?flow=high_risk", "a@example.com\n"); status != 422 {
		t.Errorf("in another flow: %d, want 422", status)
	}
	if status, other := send("two", "/backfills", "a@example.com\n"); status != 202 || other.ID == first.ID {
		t.Errorf("under another key: %d %+v, want another", status, other)
	}
}
