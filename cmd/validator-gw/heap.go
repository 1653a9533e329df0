package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
)

// heapFloor is how far the heap may grow before it is collected, in bytes, however little of it is in use. What the gateway keeps is
// small next to what requests leave behind: with Go's own rule, twice what is in use, a busy one would collect every ten megabytes, which
// are two thousand requests, and spend a twentieth of its processor on it.
const heapFloor = 48 << 20

// goPercent is Go's own rule: the heap may double.
const goPercent = 100

// floorHeap collects no heap that is smaller than heapFloor. A larger one follows Go's rule, so that it takes no more memory than
// without. It looks anew after each collection, as long as the process lives. Where GOGC or GOMEMLIMIT say what the operator wants, it
// does nothing.
func floorHeap(environ []string) {
	for _, v := range environ {
		if name, value, _ := strings.Cut(v, "="); value != "" && (name == "GOGC" || name == "GOMEMLIMIT") {
			return
		}
	}
	percent := goPercent
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	var watch func()
	watch = func() {
		metrics.Read(live)
		if p := percentFor(live[0].Value.Uint64()); p != percent {
			percent = p
			debug.SetGCPercent(p)
		}
		type collected struct{ _ *byte } // a pointer, or many would share one block
		runtime.AddCleanup(&collected{}, func(watch func()) { watch() }, watch)
	}
	watch()
}

// percentFor is the growth, in percent, that brings so much live heap to heapFloor, in steps of ten: each change stops the world
// for a moment.
func percentFor(live uint64) int {
	const most = 1000 // after a start next to nothing is live
	if live == 0 {
		return most
	}
	return max(goPercent, min(int((heapFloor-min(live, heapFloor))*10/live)*10, most))
}
