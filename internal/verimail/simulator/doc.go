// Package simulator is a scriptable stand-in for the upstream, with the wire contract of the provider profile
// verimail_v3. Tests, the dev command and load runs talk to it, as an http.Handler (Run serves it) or through a
// RoundTripper without sockets. All its waiting is Go's time, so it lives in synctest bubbles.
//
// # Endpoints
//
//	GET, POST /v3/verify    email and key, in the query of a GET or the form body of a POST
//	GET       /control/stats  Stats as JSON: calls, billed, by_address (billed calls) and more
//	GET, POST /control/mode   the mode; a POST sets it, from JSON, a form or the query: mode, p50, p99, latency,
//	                          retry_after, hint, share; or script alone
//	POST      /control/reset  Simulator.Reset
//
// The control endpoints ask for no key: never put this on a public address.
//
// # Magic local parts
//
// What is before the @ drives the answer, whatever the domain. Case does not matter, an underscore is a hyphen, and a
// +tag and numbers after a hyphen or a dot may follow, so that any number of addresses behave alike: hardbounce,
// HardBounce+a, hardbounce-17, hardbounce.17.4. Where a name takes a number N, it is the first one and set off by a
// hyphen: throttled-60.17 hints 60 seconds, throttled.17 hints nothing.
//
//	deliverable inbox-full hardbounce softbounce     200, that result
//	catch-all disposable undeliverable unknown       200, that result
//	did-you-mean                hardbounce, did_you_mean is the same local part at gmail.com
//	did-you-mean-deliverable    the same with result deliverable
//	did-you-mean-local          hardbounce, did_you_mean is someone.else@gmail.com
//	unmapped                    200, a result that the vendor does not document
//	status-error                200, {"status":"error"}, no result
//	contradictory               200, result hardbounce, deliverable true
//	contradictory-deliverable   200, result deliverable, deliverable false
//	html truncated empty        200, an HTML page; JSON cut after the result; no body
//	oversized                   200, a deliverable in 4 MiB of JSON
//	bad-request unauthorized payment-required forbidden server-error     400 401 402 403 500
//	throttled, throttled-N      429 without a hint; with Retry-After: N
//	throttled-date[-N]          429, Retry-After as an HTTP-date N seconds ahead (2 without N, here and below)
//	throttled-epoch[-N]         429, X-RateLimit-Reset in Unix seconds
//	throttled-ratelimit-epoch[-N]   429, RateLimit-Reset in Unix seconds
//	throttled-ratelimit-delta[-N]   429, RateLimit-Reset: N
//	throttled-nonsense          429, Retry-After: soon
//	unavailable, unavailable-N  503 without a hint; with Retry-After: N
//	status-N                    that HTTP status, 400 to 599
//	redirect                    307 to a path that does not exist
//	delay-N                     deliverable after exactly N milliseconds, at most 600,000
//	hang                        no answer
//	reset                       the connection is reset once the request was read
//	slow-drip                   deliverable, byte by byte
//	cut-off                     deliverable, the connection closed half way through the body
//	flip-after-N                unknown for N calls of this address, then deliverable
//	recover-after-N             503 for N calls of this address, then deliverable
//
// Any other local part, and one whose number is out of range, is deliverable, unless Config.Mix says otherwise. A
// text that has no local part or no domain is a hardbounce.
//
// # What is weighed first
//
// A request that did not arrive whole gets no answer, one over 64 KiB a 413, a wrong method a 405. Then the mode: all
// but healthy, slow and drip decide for every call. Then 400 (no email), 401 (key), 429 (rate), 403 (quota), and last
// the address. A call's fate is settled when it has been read; a mode that changes later does not change it, so what
// hangs goes on hanging until the client leaves, Config.MaxHang is over or the simulator is closed.
//
// # Billing
//
// Billed is a well-formed call with a valid key that was read whole, unless it is answered 400, 401, 402, 403, 429 or
// 5xx. It is counted when the fate is settled: a hang, a reset and an answer that nobody waits for are billed.
//
// # Bounds
//
// Addresses are counted one by one up to Config.MaxAddresses, calls are logged up to Config.MaxCalls, a wait ends after
// Config.MaxHang or ten minutes. The simulator logs nothing; addresses appear in its answers and statistics only.
package simulator
