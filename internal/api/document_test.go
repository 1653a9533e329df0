package api

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"

	validatorgw "validator-gw"
	"validator-gw/internal/api/apitest"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
)

func loaded(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := apitest.Document()
	if err != nil {
		t.Fatalf("openapi.yaml: %v", err)
	}
	return doc
}

func TestRouterAndDocumentAgree(t *testing.T) {
	t.Parallel()
	doc := loaded(t)
	b := setup(t)

	documented := map[string][]int{}
	keyed := map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			name := method + " " + path
			for code := range op.Responses.Map() {
				n, err := strconv.Atoi(code)
				if err != nil {
					t.Errorf("%s: response %q is no status", name, code)
				}
				documented[name] = append(documented[name], n)
			}
			slices.Sort(documented[name])
			keyed[name] = op.Security == nil || len(*op.Security) > 0 // absent: the document's own, a key
		}
	}

	routed := map[string][]int{}
	err := chi.Walk(b.api.Handler().(chi.Routes), func(
		method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler,
	) error {
		routed[method+" "+route] = nil
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, rt := range b.api.routes {
		name := rt.method + " " + rt.pattern
		if _, ok := routed[name]; ok {
			routed[name] = rt.codes
			if rt.keyed != keyed[name] {
				t.Errorf("%s: asks for a key: %v, in the document %v", name, rt.keyed, keyed[name])
			}
		}
	}
	if diff := cmp.Diff(documented, routed); diff != "" {
		t.Errorf("operations and their codes, document against router:\n%s", diff)
	}
}

// content is one place of the document that has a schema and examples of it.
type content struct {
	where    string
	schema   *openapi3.SchemaRef
	examples map[string]any
	media    string
}

func contents(doc *openapi3.T) []content {
	var all []content
	add := func(where, media string, schema *openapi3.SchemaRef, example any, examples openapi3.Examples) {
		c := content{where, schema, map[string]any{}, media}
		if example != nil {
			c.examples["example"] = example
		}
		for name, e := range examples {
			c.examples[name] = e.Value.Value
		}
		all = append(all, c)
	}
	addContent := func(where string, body openapi3.Content) {
		for media, m := range body {
			add(where+" "+media, media, m.Schema, m.Example, m.Examples)
		}
	}
	items := doc.Paths.Map()
	maps.Copy(items, doc.Webhooks)
	for path, item := range items {
		for method, op := range item.Operations() {
			name := method + " " + path
			for _, p := range op.Parameters {
				add(name+" "+p.Value.Name, "", p.Value.Schema, p.Value.Example, p.Value.Examples)
			}
			if op.RequestBody != nil {
				addContent(name, op.RequestBody.Value.Content)
			}
			for code, res := range op.Responses.Map() {
				for h, header := range res.Value.Headers {
					add(name+" "+code+" "+h, "header", header.Value.Schema, header.Value.Example, nil)
				}
				addContent(name+" "+code, res.Value.Content)
			}
		}
	}
	return all
}

func TestEveryExampleValidates(t *testing.T) {
	t.Parallel()
	doc := loaded(t)
	n := 0
	for _, c := range contents(doc) {
		if len(c.examples) == 0 && c.media != "header" {
			t.Errorf("%s has no example", c.where)
		}
		for name, example := range c.examples {
			n++
			// Through JSON, so that numbers and times are what a client sees.
			text, err := json.Marshal(example)
			if err != nil {
				t.Fatal(err)
			}
			var value any
			if err := json.Unmarshal(text, &value); err != nil {
				t.Fatal(err)
			}
			if err := c.schema.Value.VisitJSON(value, apitest.VisitOptions...); err != nil {
				t.Errorf("%s: example %s: %v", c.where, name, err)
			}
		}
	}
	if n < 100 {
		t.Errorf("found %d examples, want the document's: over 100", n)
	}
}

// The validation of this suite must be able to fail: each wrong body is refused by the document.
func TestDocumentRefusesWrongBodies(t *testing.T) {
	t.Parallel()
	doc := loaded(t)
	right := doc.Components.Examples["PendingTimeout"].Value.Value.(map[string]any)
	schema := doc.Components.Schemas["Answer"].Value
	if err := schema.VisitJSON(clone(t, right), apitest.VisitOptions...); err != nil {
		t.Fatalf("the example itself: %v", err)
	}
	for name, spoil := range map[string]func(map[string]any){
		"status":       func(m map[string]any) { m["status"] = "fine" },
		"no reason":    func(m map[string]any) { delete(m, "reason") },
		"null reason":  func(m map[string]any) { m["reason"] = nil },
		"id":           func(m map[string]any) { m["id"] = "7" },
		"time":         func(m map[string]any) { m["next_check_at"] = "tomorrow" },
		"flag":         func(m map[string]any) { m["flags"].(map[string]any)["free"] = "yes" },
		"missing flag": func(m map[string]any) { delete(m["flags"].(map[string]any), "catch_all") },
		"no reasons":   func(m map[string]any) { m["reasons"] = []any{} },
	} {
		m := clone(t, right)
		spoil(m)
		if err := schema.VisitJSON(m, apitest.VisitOptions...); err == nil {
			t.Errorf("%s: the document lets it through", name)
		}
	}
	request := doc.Components.Schemas["ValidateRequest"].Value
	if err := request.VisitJSON(map[string]any{"email": "a@b.example", "name": "x"}, apitest.VisitOptions...); err == nil {
		t.Error("the document lets an unknown field of a request through")
	}
}

func clone(t *testing.T, m map[string]any) map[string]any {
	t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// words returns the closed or open list of a schema, sorted.
func words(t *testing.T, s *openapi3.Schema) []string {
	t.Helper()
	list := s.Enum
	if list == nil {
		list, _ = s.Extensions["x-extensible-enum"].([]any)
	}
	var out []string
	for _, w := range list {
		out = append(out, w.(string))
	}
	slices.Sort(out)
	return out
}

func sorted[T ~string](lists ...[]T) []string {
	set := map[string]bool{}
	for _, l := range lists {
		for _, w := range l {
			set[string(w)] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

func TestDocumentHasOurWords(t *testing.T) {
	t.Parallel()
	doc := loaded(t)
	schemas := doc.Components.Schemas
	for name, c := range map[string]struct {
		schema *openapi3.SchemaRef
		want   []string
	}{
		"status":   {schemas["Status"], sorted(verdict.Statuses)},
		"decision": {schemas["Decision"], sorted(validate.Decisions)},
		"source":   {schemas["SourceKind"], sorted(verdict.Sources)},
		"reason":   {schemas["Reason"], sorted(verdict.SyntaxReasons, verdict.ReviewReasons, verdict.FinalReasons)},
		"outcome":  {schemas["Attempt"].Value.Properties["outcome"], sorted(verdict.AttemptOutcomes)},
		"readiness": {schemas["Readiness"].Value.Properties["status"],
			sorted([]State{Ready, Degraded, Starting, Stopping})},
		"part":     {schemas["Part"].Value.Properties["status"], sorted([]PartStatus{Up, Down, Off})},
		"language": {doc.Components.Headers["ContentLanguage"].Value.Schema, sorted(langs)},
	} {
		if diff := cmp.Diff(c.want, words(t, c.schema.Value)); diff != "" {
			t.Errorf("%s, ours against the document's:\n%s", name, diff)
		}
	}
}

// Each kind of error has its row in the table of the description and an example; ours have the same title and status.
func TestDocumentHasOurProblems(t *testing.T) {
	t.Parallel()
	doc := loaded(t)
	codes := words(t, doc.Components.Schemas["Problem"].Value.Properties["code"].Value)
	examples := map[string]map[string]any{}
	for name, e := range doc.Components.Examples {
		if strings.HasPrefix(name, "Problem") {
			m := e.Value.Value.(map[string]any)
			examples[m["code"].(string)] = m
		}
	}
	if diff := cmp.Diff(codes, slices.Sorted(maps.Keys(examples))); diff != "" {
		t.Errorf("codes against examples:\n%s", diff)
	}
	for _, code := range codes {
		status := examples[code]["status"]
		row := "| `" + code + "` | " + jsonText(t, status) + " |"
		if !strings.Contains(doc.Info.Description, row) {
			t.Errorf("the description has no row that begins with %q", row)
		}
	}
	for _, k := range kinds {
		e := examples[k.code]
		if e == nil {
			t.Errorf("%s: not in the document", k.code)
			continue
		}
		got := []string{e["title"].(string), jsonText(t, e["status"]), e["type"].(string)}
		if diff := cmp.Diff([]string{k.title, strconv.Itoa(k.status), k.uri()}, got); diff != "" {
			t.Errorf("%s, ours against the document's example:\n%s", k.code, diff)
		}
	}
}

func jsonText(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A stranger learns the messages from the examples, so they are the ones that we send.
func TestExamplesHaveOurMessages(t *testing.T) {
	t.Parallel()
	n := 0
	for name, e := range loaded(t).Components.Examples {
		var body struct {
			Status   verdict.Status
			Decision validate.Decision
			Reason   verdict.Reason
			Message  string
			Email    struct{ Suggestion string }
			Source   struct {
				CheckedAt *time.Time `json:"checked_at"`
			}
			Reasons    []string
			PollAfter  int `json:"poll_after_ms"`
			Normalized string
		}
		if m, ok := e.Value.Value.(map[string]any); !ok || m["decision"] == nil {
			continue
		}
		if err := json.Unmarshal([]byte(jsonText(t, e.Value.Value)), &body); err != nil {
			t.Fatal(err)
		}
		n++
		want := message(english, validate.Answer{
			Status: body.Status, Decision: body.Decision, Reason: body.Reason, Suggestion: body.Email.Suggestion,
		})
		if body.Message != want {
			t.Errorf("example %s: message %q, ours is %q", name, body.Message, want)
		}
		if pending := body.Status == verdict.NeedsReview; pending != (body.PollAfter > 0) {
			t.Errorf("example %s: poll_after_ms = %d with status %s", name, body.PollAfter, body.Status)
		}
	}
	if n < 10 {
		t.Errorf("found %d answers among the examples, want 10 at least", n)
	}
}

func TestDocumentIsServed(t *testing.T) {
	t.Parallel()
	res := setup(t).do(t, request{method: "GET", target: "/openapi.yaml", key: "none"})
	if res.status != 200 || string(res.body) != string(validatorgw.OpenAPI) {
		t.Errorf("GET /openapi.yaml = %d with %d bytes, want 200 with the document", res.status, len(res.body))
	}
	if got := res.header.Get("Content-Type"); got != "application/yaml" {
		t.Errorf("Content-Type = %q, want application/yaml", got)
	}
}

// The links in Problem.type must stay as they are, so their form is checked apart from the document.
func TestProblemTypesAreReferences(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, k := range kinds {
		u, err := url.Parse(k.uri())
		if err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(u.Path, "/problems/") || seen[k.uri()] {
			t.Errorf("type %q: want a unique reference under /problems/", k.uri())
		}
		seen[k.uri()] = true
	}
}
