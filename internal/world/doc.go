// Package world plays the whole gateway, its clients and its upstream through days of trouble inside one
// testing/synctest bubble, and then checks what was promised. It holds tests only.
//
// A world is drawn from a seed: phases in which the upstream is healthy, slow, silent, throttling, failing, resetting,
// talking rubbish or refusing the account, and a stream of visits (new and known addresses, double clicks, crowds,
// callers who hang up, callers who poll or wait). The gateway is built by gateway.New, as the program builds it, with
// SQLite in a folder of its own; HTTP goes over net.Pipe in place of TCP. Time is the bubble's: a day passes in
// seconds, and whatever takes time does so exactly, since computing takes none. The gateway is stopped and started once during
// the day, and after it for hours at a time, so that the ladder of days is walked at little cost.
//
// What happened is kept in a ledger, and each promise is one check of that ledger (promises_test.go), tried on ledgers
// made by hand in which it is broken (bite_test.go).
//
// What is drawn hangs on the seed alone, and, for the gateway's own jitter, on the instant. The order in which
// goroutines run is the runtime's, in a bubble too, so a seed replays closely and not to the last byte: of two runs of
// a day, some 97 in 100 requests got the same answer after the same time, and the loop's calls differed by fractions of
// a second. The test's log has a digest of both. A broken rule shows again; a race that hangs on the order of two
// events in one instant may take a few runs.
//
//	go test ./internal/world -run TestWorld -v -world.seeds=100
//	go test ./internal/world -run TestWorld -v -world.seed=17
package world
