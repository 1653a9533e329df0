package api

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"validator-gw/internal/validate"
)

// Checks that the desk knows of, and can't check again.
const (
	erasedID     = "01989f6e-7d3a-7c1e-9a44-0f3b8f6f2ce0"
	unknownCheck = "01989f6e-7d3a-7c1e-9a44-0f3b8f6f2ce1"
)

// typing is the body of a check while a person types.
func typing(email string) string {
	return `{"email":"` + email + `","typing":true,"session_id":"s-81f0c2"}`
}

func TestRevalidate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct {
		name, body string
		status     int
		location   string
		retryAfter string
		merged     any
		want       validate.Event
	}{
		{"by address", `{"email":" Ana@Example.com "}`, 202, "/status/" + checkID, "2", false, validate.Event{Raw: " Ana@Example.com ", Client: "backend"}},
		{"by id", `{"id":"01989F6E-7D3A-7C1E-9A44-0F3B8F6F2C12"}`, 202, "/status/" + checkID, "2", true,
			validate.Event{ID: "01989f6e-7d3a-7c1e-9a44-0f3b8f6f2c12", Client: "backend"}},
		{"all fields", `{"email":"b@example.com","flow":"high_risk","callback":""}`, 202, "/status/" + checkID, "2", false,
			validate.Event{Raw: "b@example.com", Flow: "high_risk", Client: "backend"}},
		{"an empty flow is the default", `{"email":"b@example.com","flow":""}`, 202, "/status/" + checkID, "2", false,
			validate.Event{Raw: "b@example.com", Client: "backend"}},
		{"an answer at once", `{"email":"ana@example.con"}`, 200, "", "", nil, validate.Event{Raw: "ana@example.con", Client: "backend"}},
		{"an empty address", `{"email":""}`, 200, "", "", nil, validate.Event{Client: "backend"}},
	} {
		b.desk.events = nil
		res := b.do(t, request{target: "/revalidate", body: c.body})
		if res.status != c.status || res.header.Get("Location") != c.location || res.header.Get("Retry-After") != c.retryAfter || res.json["merged"] != c.merged {
			t.Errorf("%s: %d %v %s, want %d, Location %q, Retry-After %q, merged %v", c.name, res.status, res.header, res.body, c.status, c.location, c.retryAfter, c.merged)
		}
		if c.status == 202 && (res.json["id"] != checkID || res.json["next_check_at"] == nil) {
			t.Errorf("%s: %s, want an id and a time", c.name, res.body)
		}
		if c.status == 200 && (res.json["status"] != "invalid" || res.json["id"] != nil || res.header.Get("Content-Language") != "en") {
			t.Errorf("%s: %s, want the answer of a validation", c.name, res.body)
		}
		if diff := cmp.Diff([]validate.Event{c.want}, b.desk.events); diff != "" {
			t.Errorf("%s: asked of the validator (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestTyping(t *testing.T) {
	t.Parallel()
	b := setup(t)
	form := map[string]string{"Content-Type": mediaForm}
	for _, c := range []struct {
		q      request
		typing bool
		id     string
	}{
		{request{body: typing("ana@example.com")}, true, "s-81f0c2"},
		{request{body: "email=ana@example.com&typing=on&session_id=!~", header: form}, true, "!~"},
		{request{body: `{"email":"ana@example.com","session_id":"s1"}`}, false, ""},
		{request{body: "email=ana@example.com&typing=&session_id=", header: form}, false, ""},
	} {
		b.desk.asked = nil
		res := b.do(t, c.q)
		if got := b.desk.asked; res.status != 200 || len(got) != 1 || got[0].Typing != c.typing || got[0].SessionID != c.id {
			t.Errorf("%s: %d, asked %+v, want typing %t in session %q", c.q.body, res.status, got, c.typing, c.id)
		}
	}
}
