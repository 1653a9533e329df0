package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestPercentFor(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int{0: 1000, 1 << 20: 1000, 8 << 20: 500, 12 << 20: 300, 16 << 20: 200, 20 << 20: 140, 24 << 20: 100, 30 << 20: 100, 1 << 40: 100} {
		if got := percentFor(live); got != want {
			t.Errorf("percentFor(%d MiB) = %d, want %d", live>>20, got, want)
		}
	}
}

// A small heap of the program may grow to its floor, and what an operator asks for stands.
func TestFloorOfTheHeap(t *testing.T) {
	t.Parallel()
	for env, raised := range map[string]bool{"": true, "GOGC=100": false, "GOMEMLIMIT=1GiB": false} {
		p := serveProcess(t, processEnv(t, "http://127.0.0.1:1", env))
		res, err := http.Get(p.metrics)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if plain := strings.Contains(string(text), "\ngo_gc_gogc_percent 100\n"); plain == raised {
			t.Errorf("%q: the heap's growth is Go's own: %v, want %v", env, plain, !raised)
		}
		p.kill()
	}
}
