package verimail

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"validator-gw/internal/verdict"
	"validator-gw/internal/verimail/simulator"
)

// What each answer of the upstream is made of: the vendor's page on results, and the classes of status codes.
func TestClassification(t *testing.T) {
	t.Parallel()
	const (
		ok       = "a success"
		bad      = "a failure"
		nothing  = "nothing"
		account  = "account"
		throttle = "not-before"
	)
	type row struct {
		local   string
		status  verdict.Status
		reason  verdict.Reason
		cause   verdict.Cause
		outcome string // of each call
		calls   int    // with one retry allowed and ten seconds for it
		tells   string // the breaker, by each call
		gate    string // that is closed afterwards
	}
	final := func(local string, s verdict.Status, r verdict.Reason) row {
		return row{local, s, r, "", verdict.AttemptAnswered, 1, ok, ""}
	}
	mailbox := func(local string, r verdict.Reason) row {
		return row{local, verdict.NeedsReview, r, verdict.CauseMailbox, verdict.AttemptTransient, 1, ok, ""}
	}
	unusable := func(local string, r verdict.Reason) row {
		return row{local, verdict.NeedsReview, r, verdict.CauseUnusable, verdict.AttemptUnusable, 1, nothing, ""}
	}
	upstream := func(local string, r verdict.Reason, outcome string, calls int, tells, gate string) row {
		return row{local, verdict.NeedsReview, r, verdict.CauseUpstream, outcome, calls, tells, gate}
	}
	refused := func(local string) row {
		return row{local, verdict.NeedsReview, verdict.UpstreamRefused, verdict.CauseUnusable, verdict.AttemptRefused, 1, nothing, ""}
	}
	fault := func(local string) row {
		return upstream(local, verdict.UpstreamError, verdict.AttemptFault, 2, bad, "")
	}
	garbage := func(local string) row {
		return upstream(local, verdict.UpstreamBadResponse, verdict.AttemptBadBody, 1, bad, "")
	}
	rows := []row{
		final("deliverable", verdict.Valid, verdict.MailboxAccepted),
		final("hardbounce", verdict.Invalid, verdict.MailboxNotFound),
		final("inbox-full", verdict.Risky, verdict.MailboxFull),
		final("catch-all", verdict.Risky, verdict.CatchAll),
		final("disposable", verdict.Risky, verdict.Disposable),
		mailbox("softbounce", verdict.MailboxTempRejected),
		mailbox("undeliverable", verdict.MXUnreachable), // reads as invalid, and is not
		mailbox("unknown", verdict.VerifierError),
		final("did-you-mean", verdict.Invalid, verdict.MailboxNotFound),
		final("did-you-mean-deliverable", verdict.Valid, verdict.MailboxAccepted),
		unusable("unmapped", verdict.Unmapped),
		unusable("status-error", verdict.UpstreamError), // status is the call's success, not the verdict
		unusable("contradictory", verdict.Contradictory),
		unusable("contradictory-deliverable", verdict.Contradictory),
		garbage("html"),
		garbage("truncated"), // holds the text result":"deliverable
		garbage("empty"),
		garbage("oversized"),
		upstream("cut-off", verdict.UpstreamError, verdict.AttemptNetwork, 1, bad, ""), // was read, so it is billed
		upstream("reset", verdict.UpstreamError, verdict.AttemptNetwork, 2, bad, ""),
		upstream("unauthorized", verdict.UpstreamAuth, verdict.AttemptAuth, 1, nothing, account),
		upstream("payment-required", verdict.UpstreamQuota, verdict.AttemptQuota, 1, nothing, account),
		upstream("forbidden", verdict.UpstreamQuota, verdict.AttemptQuota, 1, nothing, account),
		upstream("throttled", verdict.UpstreamThrottled, verdict.AttemptThrottled, 2, nothing, ""),
		upstream("throttled-nonsense", verdict.UpstreamThrottled, verdict.AttemptThrottled, 2, nothing, ""),
		upstream("throttled-0", verdict.UpstreamThrottled, verdict.AttemptThrottled, 2, nothing, ""),
		upstream("throttled-3", verdict.UpstreamThrottled, verdict.AttemptThrottled, 2, nothing, throttle),
		upstream("throttled-60", verdict.UpstreamThrottled, verdict.AttemptThrottled, 1, nothing, throttle),
		upstream("throttled-date-60", verdict.UpstreamThrottled, verdict.AttemptThrottled, 1, nothing, throttle),
		upstream("throttled-epoch-60", verdict.UpstreamThrottled, verdict.AttemptThrottled, 1, nothing, throttle),
		upstream("throttled-ratelimit-epoch-60", verdict.UpstreamThrottled, verdict.AttemptThrottled, 1, nothing, throttle),
		upstream("throttled-ratelimit-delta-60", verdict.UpstreamThrottled, verdict.AttemptThrottled, 1, nothing, throttle),
		fault("server-error"),
		fault("unavailable"),
		fault("status-502"),
		fault("status-504"),
		fault("status-520"),
		fault("status-524"),
		fault("status-599"),
		fault("status-408"),
		upstream("unavailable-60", verdict.UpstreamError, verdict.AttemptFault, 1, bad, throttle),
		upstream("unavailable-3", verdict.UpstreamError, verdict.AttemptFault, 2, bad, throttle),
		refused("bad-request"),
		refused("status-404"), refused("status-405"), refused("status-413"), refused("status-415"),
		refused("status-422"), refused("status-451"), refused("redirect"),
	}
	for _, tt := range rows {
		t.Run(tt.local, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, simulator.Config{Key: testKey})
				out := r.askWithin(tt.local, 10*time.Second, 1)
				synctest.Wait()
				v := out.Verdict
				if v.Status != tt.status || v.Reason != tt.reason || out.Cause != tt.cause {
					t.Errorf("%s %s by %q, want %s %s by %q", v.Status, v.Reason, out.Cause, tt.status, tt.reason, tt.cause)
				}
				if want := strings.TrimSpace(strings.Repeat(tt.outcome+" ", tt.calls)); outcomes(out) != want {
					t.Errorf("trail = %q, want %q", outcomes(out), want)
				}
				if n := r.sim.Stats().Calls; out.Sent != tt.calls || v.Attempts != tt.calls || n != int64(tt.calls) {
					t.Errorf("sent %d, attempts %d, seen by the upstream %d; want %d", out.Sent, v.Attempts, n, tt.calls)
				}
				n := uint32(tt.calls)
				want := map[string]health{ok: {successes: n}, bad: {failures: n}, nothing: {excluded: n}}[tt.tells]
				if got := r.health(); got != want {
					t.Errorf("the breaker was told %+v, want %+v", got, want)
				}
				gate := ""
				if _, _, closed := r.account.blocked(time.Now()); closed {
					gate = account
				}
				if _, closed := r.gate.blocked(time.Now()); closed {
					gate += throttle
				}
				if gate != tt.gate {
					t.Errorf("closed gate = %q, want %q", gate, tt.gate)
				}
				if st := r.Standing(); st.Closed != (tt.gate != "") || out.NotBefore.IsZero() != (tt.gate == "") {
					t.Errorf("standing %+v, not before %v", st, out.NotBefore)
				}
				if v.Provider != ProfileVerimailV3 || len(v.Reasons) != 1 || v.Reasons[0] != v.Reason {
					t.Errorf("verdict = %+v", v)
				}
			})
		})
	}
}

// Bodies that are not the simulator's: those in the wild, and hostile ones.
func TestBodies(t *testing.T) {
	t.Parallel()
	const unread = verdict.UpstreamBadResponse
	tests := []struct {
		name, body string
		status     verdict.Status
		reason     verdict.Reason
		outcome    string
	}{
		{"white space", "\n {\t\"status\" : \"success\" ,\r\n \"result\"\n:\n\"deliverable\" }\n", verdict.Valid, verdict.MailboxAccepted, verdict.AttemptAnswered},
		{"no spaces", `{"status":"success","result":"hardbounce","deliverable":false}`, verdict.Invalid, verdict.MailboxNotFound, verdict.AttemptAnswered},
		{"upper case", `{"status":"SUCCESS","result":" Deliverable "}`, verdict.Valid, verdict.MailboxAccepted, verdict.AttemptAnswered},
		{"boolean as text", `{"status":"success","result":"deliverable","deliverable":"true"}`, verdict.Valid, verdict.MailboxAccepted, verdict.AttemptAnswered},
		{"boolean as number", `{"status":"success","result":"deliverable","deliverable":1}`, verdict.Valid, verdict.MailboxAccepted, verdict.AttemptAnswered},
		{"boolean in an object", `{"status":"success","result":"hardbounce","deliverable":{"value":"yes"}}`, verdict.NeedsReview, verdict.Contradictory, verdict.AttemptUnusable},
		{"boolean null", `{"status":"success","result":"hardbounce","deliverable":null}`, verdict.Invalid, verdict.MailboxNotFound, verdict.AttemptAnswered},
		{"boolean nonsense", `{"status":"success","result":"hardbounce","deliverable":"perhaps"}`, verdict.Invalid, verdict.MailboxNotFound, verdict.AttemptAnswered},
		{"text no against the word", `{"status":"success","result":"deliverable","deliverable":"no"}`, verdict.NeedsReview, verdict.Contradictory, verdict.AttemptUnusable},
		{"catch-all with true", `{"status":"success","result":"catch_all","deliverable":true}`, verdict.Risky, verdict.CatchAll, verdict.AttemptAnswered},
		{"unknown with true", `{"status":"success","result":"unknown","deliverable":true}`, verdict.NeedsReview, verdict.Contradictory, verdict.AttemptUnusable},
		{"status only", `{"status":"success"}`, verdict.NeedsReview, verdict.Unmapped, verdict.AttemptUnusable},
		{"result only", `{"result":"deliverable","deliverable":true}`, verdict.NeedsReview, unread, verdict.AttemptUnusable},
		{"status of a result", `{"status":"deliverable"}`, verdict.NeedsReview, unread, verdict.AttemptUnusable},
		{"error with a result", `{"status":"error","result":"deliverable","deliverable":true}`, verdict.NeedsReview, verdict.UpstreamError, verdict.AttemptUnusable},
		{"result of another type", `{"status":"success","result":true}`, verdict.NeedsReview, verdict.Unmapped, verdict.AttemptUnusable},
		{"result null", `{"status":"success","result":null}`, verdict.NeedsReview, verdict.Unmapped, verdict.AttemptUnusable},
		{"empty object", `{}`, verdict.NeedsReview, unread, verdict.AttemptUnusable},
		{"null", `null`, verdict.NeedsReview, unread, verdict.AttemptUnusable},
		{"a list", `[{"status":"success","result":"deliverable"}]`, verdict.NeedsReview, unread, verdict.AttemptBadBody},
		{"a text", `"deliverable"`, verdict.NeedsReview, unread, verdict.AttemptBadBody},
		{"two objects", `{"status":"success","result":"deliverable"}{}`, verdict.NeedsReview, unread, verdict.AttemptBadBody},
		{"one brace too many", `{"status":"success","result":"deliverable"}}`, verdict.NeedsReview, unread, verdict.AttemptBadBody},
		{"plain text", `result": "deliverable`, verdict.NeedsReview, unread, verdict.AttemptBadBody},
		{"nothing but spaces", "  \n", verdict.NeedsReview, unread, verdict.AttemptBadBody},
		{"just too long", `{"status":"success","result":"deliverable"` + strings.Repeat(" ", maxBody) + `}`, verdict.NeedsReview, unread, verdict.AttemptBadBody},
		{"just not too long", `{"status":"success","result":"deliverable"}` + strings.Repeat(" ", maxBody-43), verdict.Valid, verdict.MailboxAccepted, verdict.AttemptAnswered},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, simulator.Config{}, answering(http.StatusOK, tt.body))
				out := r.ask("ana", 1)
				if out.Verdict.Status != tt.status || out.Verdict.Reason != tt.reason || outcomes(out) != tt.outcome {
					t.Errorf("%s %s %q, want %s %s %q", out.Verdict.Status, out.Verdict.Reason, outcomes(out), tt.status, tt.reason, tt.outcome)
				}
			})
		})
	}
}

// A provider that is still at work is neither ill nor asked again at once.
func TestInProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, simulator.Config{}, answering(http.StatusAccepted, `{"status":"success","result":"deliverable"}`))
		out := r.ask("ana", 2)
		synctest.Wait()
		if out.Verdict.Reason != verdict.UpstreamPending || out.Cause != verdict.CauseUpstream || outcomes(out) != verdict.AttemptPending {
			t.Errorf("%s by %s, %q", out.Verdict.Reason, out.Cause, outcomes(out))
		}
		if got := r.health(); got != (health{excluded: 1}) {
			t.Errorf("the breaker was told %+v, want nothing", got)
		}
	})
}

func TestFlagsAndSuggestions(t *testing.T) {
	t.Parallel()
	answered := verdict.Flags{}
	tests := []struct {
		local      string
		flags      verdict.Flags
		suggestion verdict.Suggestion
	}{
		{"deliverable", verdict.Flags{CatchAll: verdict.False}, verdict.Suggestion{}},
		{"hardbounce", answered, verdict.Suggestion{}},
		{"inbox-full", verdict.Flags{MailboxFull: verdict.True}, verdict.Suggestion{}},
		{"catch-all", verdict.Flags{CatchAll: verdict.True}, verdict.Suggestion{}},
		{"disposable", verdict.Flags{Disposable: verdict.True}, verdict.Suggestion{}},
		{"did-you-mean", answered, verdict.Suggestion{Domain: "gmail.com"}},
		{"did-you-mean-local", answered, verdict.Suggestion{Sealed: []byte("SOMEONE.ELSE@GMAIL.COM")}},
	}
	for _, tt := range tests {
		t.Run(tt.local, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, simulator.Config{})
				v := r.ask(tt.local, 0).Verdict
				if d := cmp.Diff(tt.flags, v.Flags); d != "" {
					t.Errorf("flags (-want +got):\n%s", d)
				}
				if d := cmp.Diff(tt.suggestion, v.Suggestion); d != "" {
					t.Errorf("suggestion (-want +got):\n%s", d)
				}
			})
		})
	}
}

// What can't be an address, and what is the address itself, is no suggestion.
func TestSuggestionsThatAreNone(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`""`, `"  "`, `"not an address"`, `"ANA@corp-mail.com"`, `"ana@"`, `17`, `null`, `{"a":1}`} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, simulator.Config{}, answering(200, `{"status":"success","result":"hardbounce","did_you_mean":`+text+`}`))
				v := r.ask("ana", 0).Verdict
				if v.Status != verdict.Invalid || v.Suggestion.Domain != "" || v.Suggestion.Sealed != nil {
					t.Errorf("%s, suggestion %+v; want invalid and none", v.Status, v.Suggestion)
				}
			})
		})
	}
}

// The address arrives as it is: a plus stays a plus, and letters outside ASCII stay themselves.
func TestRequest(t *testing.T) {
	t.Parallel()
	for _, local := range []string{"ana+news", "a.b-c_d", "jörg", "o'neil", "a%2bb", "50%", "a&key=x"} {
		t.Run(local, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var got *http.Request
				var email, key []string
				r := newRig(t, simulator.Config{}, func(c *Config) {
					c.URL = "http://user:hunter2@upstream.invalid:8080/base/"
					c.Transport = roundTrip(func(q *http.Request) (*http.Response, error) {
						got = q
						if err := q.ParseForm(); err != nil {
							t.Error(err)
						}
						email, key = q.PostForm["email"], q.PostForm["key"]
						return nil, http.ErrHandlerTimeout
					})
				})
				if r.Host() != "http://upstream.invalid:8080" {
					t.Errorf("Host() = %q: must hold neither user nor path", r.Host())
				}
				r.ask(local, 0)
				if got.Method != http.MethodPost || got.URL.Path != "/base/v3/verify" || got.URL.RawQuery != "" {
					t.Errorf("%s %s?%s, want POST /base/v3/verify", got.Method, got.URL.Path, got.URL.RawQuery)
				}
				if want := local + "@" + domain; len(email) != 1 || email[0] != want || len(key) != 1 || key[0] != testKey {
					t.Errorf("email %q, key %q; want %q and ours", email, key, want)
				}
				// Either would let net/http send a POST again by itself.
				if got.Header.Get("Idempotency-Key") != "" || got.Header.Get("X-Idempotency-Key") != "" {
					t.Error("the request has an idempotency header")
				}
			})
		})
	}
}

func TestRequestID(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, value, want string }{
		{"X-Request-Id", "sim-1", "sim-1"},
		{"Cf-Ray", "8f00ba4-MAD", "8f00ba4-MAD"},
		{"X-Request-Id", "ana@corp-mail.com", ""},
		{"X-Request-Id", "a b", ""},
		{"X-Request-Id", "a\nb", ""},
		{"X-Request-Id", strings.Repeat("a", 64), strings.Repeat("a", 64)},
		{"X-Request-Id", strings.Repeat("a", 65), ""},
		{"X-Other", "1", ""},
	}
	for _, tt := range tests {
		if got := requestID(http.Header{tt.name: {tt.value}}); got != tt.want {
			t.Errorf("%s: %q gives %q, want %q", tt.name, tt.value, got, tt.want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	good := Config{Profile: ProfileVerimailV3, URL: testURL, Limiter: &allowance{}, Seal: func(string) []byte { return nil }, Rand: half}
	tests := map[string]func(*Config){
		"profile": func(c *Config) { c.Profile = "other" },
		"limiter": func(c *Config) { c.Limiter = nil },
		"seal":    func(c *Config) { c.Seal = nil },
		"rand":    func(c *Config) { c.Rand = nil },
		"no URL":  func(c *Config) { c.URL = "" },
		"scheme":  func(c *Config) { c.URL = "ftp://user:hunter2@host" },
		"no host": func(c *Config) { c.URL = "https:///v3?key=hunter2" },
		"bad URL": func(c *Config) { c.URL = "https://user:hunter2@host:port%zz" },
	}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range tests {
		c := good
		change(&c)
		if _, err := New(c); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: error %v; want one without the password", name, err)
		}
	}
}
