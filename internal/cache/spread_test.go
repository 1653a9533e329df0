package cache

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"validator-gw/internal/testenv"
	"validator-gw/internal/verdict"
)

// TestWrittenTogetherExpireApart: five hundred entries that are written within a second do not leave Redis within one.
func TestWrittenTogetherExpireApart(t *testing.T) {
	t.Parallel()
	url, prefix := testenv.Redis(t)
	r, bare := openRedis(t, url, prefix)
	draw := rand.New(rand.NewPCG(1, 2))
	c, err := New(&store{}, Config{Redis: r, Rand: draw.Float64}) // one goroutine puts
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const n = 500
	kinds := []struct {
		name string
		put  func(i int)
		span time.Duration // over which they may expire
	}{
		{"mailbox full", func(i int) {
			c.Put(fp(i), verdict.Verdict{ID: fmt.Sprint(i), Status: verdict.Risky, Reason: verdict.MailboxFull, CheckedAt: time.Now()})
		}, 24 * time.Hour / 5},
		{"valid", func(i int) { c.Put(fp(i), valid(fmt.Sprint(i))) }, 30 * 24 * time.Hour / 5},
		{"marker", func(i int) { c.Mark(fp(i), verdict.Marker{ID: fmt.Sprint(i), Reason: verdict.UpstreamTimeout}) }, 30 * time.Second},
	}
	for k, kind := range kinds {
		for i := range n {
			kind.put(k*n + i)
		}
		ends := make(map[time.Duration]int)
		most := 0
		for i := range n {
			i += k * n
			patient(t, r, func() error {
				c.behind.flushShared(t.Context(), func() {})
				left, err := bare.PTTL(t.Context(), r.key(fp(i))).Result()
				if err != nil || left > 0 {
					ends[left.Truncate(time.Second)]++
					most = max(most, ends[left.Truncate(time.Second)])
					return err
				}
				kind.put(i) // its write timed out on a busy machine
				return fmt.Errorf("%s %d is not in Redis", kind.name, i)
			})
		}
		// Evenly spread, a second has n a span; four times as many is no accident any more.
		if even := float64(n) / kind.span.Seconds(); float64(most) > 4*even+4 {
			t.Errorf("%s: %d of %d expire in one second, want about %.1f", kind.name, most, n, even)
		}
	}
}
