package cache

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"validator-gw/internal/verdict"
)

// typical is a verdict as the upstream's are.
func typical(n int) verdict.Verdict {
	now := time.Now()
	v := verdict.Verdict{ID: uuid.Must(uuid.NewV7()).String(), Status: verdict.Valid, Reason: verdict.MailboxAccepted,
		Reasons:  []verdict.Reason{verdict.MailboxAccepted},
		Flags:    verdict.Flags{Disposable: verdict.False, Role: verdict.Known(n%7 == 0), CatchAll: verdict.False, SMTPUTF8: verdict.False},
		Local:    &verdict.Local{Flags: verdict.Flags{Free: verdict.Known(n%2 == 0)}, Unicode: "17.0.0", Rules: 1},
		Attempts: 1, Provider: "verimail_v3", Profile: "verimail_v3@1", CheckedAt: now,
		Trail: []verdict.Attempt{{At: now.Add(-150 * time.Millisecond), Outcome: verdict.AttemptAnswered, HTTPStatus: 200, LatencyMS: 150,
			UpstreamRequestID: fmt.Sprint("req_", n), ProviderResult: "deliverable"}}}
	if n%5 == 0 {
		v.Status, v.Reason, v.Reasons = verdict.Risky, verdict.CatchAll, []verdict.Reason{verdict.CatchAll, verdict.MailboxFull}
	}
	return v
}

// What the process keeps is what was put, but for the trail, of which the moment is left in which the call began.
func TestPackedIsWhatItWas(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	tri := func() verdict.Tri { return verdict.Tri(r.IntN(3)) }
	flags := func() verdict.Flags {
		return verdict.Flags{Disposable: tri(), Role: tri(), Free: tri(), CatchAll: tri(), MailboxFull: tri(), SMTPUTF8: tri(), Subaddressed: tri(), MixedScript: tri()}
	}
	at := func() time.Time {
		if r.IntN(4) == 0 {
			return time.Time{}
		}
		return time.Unix(1_700_000_000+r.Int64N(1e9), r.Int64N(1e9)).UTC()
	}
	for range 2000 {
		v := typical(r.IntN(100))
		v.Flags, v.CheckedAt, v.SoftUntil, v.HardUntil, v.Trail = flags(), at(), at(), at(), nil
		v.Attempts = r.IntN(5)
		v.Reasons = [][]verdict.Reason{nil, {verdict.CatchAll}, {verdict.CatchAll, verdict.MailboxFull, verdict.Disposable}}[r.IntN(3)]
		if v.ID = []string{v.ID, "a", "00000000-0000-0000-0000-00000000000G", "ABCDEF00-0000-7000-8000-000000000000"}[r.IntN(4)]; r.IntN(3) == 0 {
			v.Suggestion = verdict.Suggestion{Domain: "example.com"}
		}
		if r.IntN(3) == 0 {
			v.Suggestion = verdict.Suggestion{Sealed: []byte("sealed")}
		}
		if v.Local.Flags = flags(); r.IntN(2) == 0 {
			v.Local.Disposable = verdict.List{Name: "a list", Version: "1.2.3", Entries: 7}
		}
		if r.IntN(4) == 0 {
			v.Local = nil
		}
		began := v.CheckedAt
		if !began.IsZero() && r.IntN(2) == 0 {
			began = v.CheckedAt.Add(-time.Duration(r.Int64N(1e9)))
			v.Trail = []verdict.Attempt{{At: began, Outcome: verdict.AttemptAnswered, HTTPStatus: 200}}
		}
		k := pack(verdict.Cached{Verdict: &v}).unpack()
		got := *k.Verdict
		if !got.Began().Equal(began) || len(got.Trail) > 1 {
			t.Fatalf("began at %v, want %v", got.Began(), began)
		}
		v.Trail, got.Trail = nil, nil
		if !reflect.DeepEqual(got, v) {
			t.Fatalf("got  %+v\nwant %+v", got, v)
		}
	}
	m := verdict.Marker{ID: "a", Reason: verdict.Greylisted, Until: time.Unix(1, 2), NextCheckAt: time.Unix(3, 4)}
	if k := pack(verdict.Cached{Marker: &m}).unpack(); k.Verdict != nil || *k.Marker != m {
		t.Errorf("the marker is %+v", k)
	}
	if k := (packed{}).unpack(); k != (verdict.Cached{}) {
		t.Errorf("nothing is %+v", k)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := New(&store{}, Config{Rand: half, Memory: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10_000 {
			v := valid("a")
			v.Suggestion.Sealed = make([]byte, 100)
			c.Put(fp(i), v)
		}
		synctest.Wait()
		c.local.CleanUp()
		// A node and what is beside it are more than 300 bytes.
		if n := c.local.EstimatedSize(); n > (64<<10)/300 || n < 50 {
			t.Errorf("%d entries in 64 KiB", n)
		}
		c.Close()
	})
}

// The default holds 100,000 verdicts, and they take what they are said to weigh.
//
//nolint:paralleltest // it looks at the heap
func TestHundredThousandFit(t *testing.T) {
	const n = 100_000
	c, err := New(&store{}, Config{Rand: half})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for i := range n {
		v := typical(i)
		c.Fill(fp(i), c.stamp(v))
	}
	c.local.CleanUp()
	each := float64(heap()-before) / n
	t.Logf("%.0f bytes an entry, %d by weight", each, pack(verdict.Cached{Verdict: new(typical(1))}).weight())
	if got := c.local.EstimatedSize(); got != n {
		t.Errorf("%d of %d entries are there", got, n)
	}
	if each > 1.15*baseWeight || each < 0.7*baseWeight {
		t.Errorf("an entry takes %.0f bytes, and weighs %d", each, baseWeight)
	}
	runtime.KeepAlive(c)
}

func BenchmarkLocal(b *testing.B) {
	c, err := New(&store{}, Config{Rand: half})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	c.Fill(fp(1), c.stamp(typical(1)))
	b.ReportAllocs()
	for b.Loop() {
		c.Local(fp(1))
	}
}
