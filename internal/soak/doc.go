// Package soak runs the whole gateway as its users run it, over real sockets and in processes of its own, under load
// and under faults, and checks what it promises. The command in cmd/soak is behind "make soak"; docs/soak.md says what
// each profile plays and what each line of its table means.
//
// One run is a plan, a ledger and a list of promises. The plan is drawn from a seed before anything starts: which
// address is asked at which instant. The load is open: a request is sent at its instant whether or not earlier ones
// were answered, and its latency counts from that instant, so that a gateway that stalls can't hide it by slowing the
// load down. The simulated upstream runs in this process, because its log of calls is what the rate is checked by, in
// every window and not only in whole seconds. The ledger is everything that clients, upstream and metrics saw; the
// promises are functions of the ledger.
//
// Everything is bounded: requests in flight, the time of each request, the length of a profile, the wait for the
// backlog. Whatever happens, Run stops what it started.
package soak
