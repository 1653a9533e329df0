package validate

import (
	"testing"
	"time"
)

// TestLooks: 20, 30, 45, 70 and 100 ms apart, give or take 30 %, then three that share the rest of the window, none in its
// last moment, and one in half a second after that.
func TestLooks(t *testing.T) {
	t.Parallel()
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	first := []time.Duration{ms(20), ms(30), ms(45), ms(70), ms(100)}
	for _, window := range []time.Duration{ms(150), ms(400), ms(650), ms(800), 15 * time.Second} {
		for _, draw := range []float64{0, 0.5, 0.999999} {
			var at, last time.Duration
			for n := range 40 {
				d := nextLook(n, window-at, func() float64 { return draw })
				inside := window-at > ms(40)
				want := ms(500)
				if inside && n < len(first) {
					want = first[n]
				}
				if (!inside || n < 5 || n >= 8) && (d < want*7/10-1 || d > want*13/10+1) {
					t.Errorf("window %v, look %d: after %v, want %v ± 30 %%", window, n, d, want)
				}
				if d <= 0 || n != 7 && d < ms(14) || d > ms(650) {
					t.Errorf("window %v, look %d: after %v", window, n, d)
				}
				if at += d; at < window && n < 8 {
					last = at
				}
			}
			if window >= ms(650) && window < time.Second && (last < window-ms(150) || last > window-ms(40)) {
				t.Errorf("window %v, draw %v: the last look is at %v", window, draw, last)
			}
		}
	}
}
