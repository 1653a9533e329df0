// Package apitest holds exchanges with the gateway to openapi.yaml. It is for tests, of any package that speaks HTTP with
// the edge.
package apitest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/google/uuid"

	validatorgw "validator-gw"
)

// ndjson has a value on each line; the document calls the whole a string, and kin-openapi does not read it.
const ndjson = "application/x-ndjson"

// Document is openapi.yaml, read and validated once.
var Document = sync.OnceValues(func() (*openapi3.T, error) {
	doc, err := openapi3.NewLoader().LoadFromData(validatorgw.OpenAPI)
	if err != nil {
		return nil, err
	}
	return doc, doc.Validate(context.Background())
})

// VisitOptions make the document's formats binding; kin-openapi knows times and leaves the UUID to us.
var VisitOptions = []openapi3.SchemaValidationOption{
	openapi3.EnableJSONSchema2020(),
	openapi3.EnableFormatValidation(),
	openapi3.WithStringFormatValidator("uuid", openapi3.NewCallbackValidator(uuid.Validate)),
}

// Conforms holds an exchange to the document: the response always, the request, whose body is read, when it was
// answered well. Its error joins everything that is wrong.
func Conforms(r *http.Request, status int, header http.Header, body []byte) error {
	doc, err := Document()
	if err != nil {
		return fmt.Errorf("openapi.yaml: %w", err)
	}
	where := fmt.Sprintf("%s %s answered with %d", r.Method, r.URL.Path, status)
	var content map[string]any
	media := header.Get("Content-Type")
	if strings.HasSuffix(media, "json") && media != ndjson && len(body) > 0 {
		if err := json.Unmarshal(body, &content); err != nil {
			return fmt.Errorf("%s: body: %w", where, err)
		}
	}
	var wrong []error
	if status >= 400 && content["parts"] == nil {
		wrong = append(wrong, problem(status, header, content))
	}
	path, params := findPath(doc, r.URL.Path)
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if path == "" || doc.Paths.Value(path).GetOperation(method) == nil {
		if status != http.StatusNotFound && status != http.StatusMethodNotAllowed {
			wrong = append(wrong, errors.New("the document does not have it"))
		}
		wrong = append(wrong, doc.Components.Schemas["Problem"].Value.VisitJSON(any(content), VisitOptions...))
		return named(where, wrong)
	}
	item := doc.Paths.Value(path)
	input := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params,
		Route: &routers.Route{Spec: doc, Path: path, PathItem: item, Method: method, Operation: item.GetOperation(method)},
		Options: &openapi3filter.Options{
			AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true, ExcludeResponseBody: media == ndjson,
			SchemaValidationOptions: VisitOptions,
		},
	}
	if status < 400 {
		if err := openapi3filter.ValidateRequest(r.Context(), input); err != nil {
			wrong = append(wrong, fmt.Errorf("request: %w", err))
		}
	}
	err = openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: status, Header: header,
		Body: io.NopCloser(bytes.NewReader(body)), Options: input.Options,
	})
	if err != nil {
		wrong = append(wrong, fmt.Errorf("response: %w: %s", err, body))
	}
	return named(where, wrong)
}

func named(where string, wrong []error) error {
	if err := errors.Join(wrong...); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	return nil
}

// findPath returns the document's path that p matches, and its parameters.
func findPath(doc *openapi3.T, p string) (path string, params map[string]string) {
	have := strings.Split(p, "/")
next:
	for path := range doc.Paths.Map() {
		want := strings.Split(path, "/")
		if len(want) != len(have) {
			continue
		}
		params := map[string]string{}
		for i := range want {
			switch {
			case strings.HasPrefix(want[i], "{") && have[i] != "":
				params[strings.Trim(want[i], "{}")] = have[i]
			case want[i] != have[i]:
				continue next
			}
		}
		return path, params
	}
	return "", nil
}

// problem holds what is true of every error.
func problem(status int, header http.Header, content map[string]any) error {
	var wrong []error
	if got := header.Get("Content-Type"); got != "application/problem+json" {
		wrong = append(wrong, fmt.Errorf("Content-Type is %q, want application/problem+json", got))
	}
	code, _ := content["code"].(string)
	if want := "/problems/" + strings.ReplaceAll(code, "_", "-"); content["type"] != want {
		wrong = append(wrong, fmt.Errorf("type is %v, want %v", content["type"], want))
	}
	if got := content["status"]; got != float64(status) {
		wrong = append(wrong, fmt.Errorf("status in the body is %v, on the wire %d", got, status))
	}
	if got := header.Get("X-Request-Id"); got == "" || got != content["correlation_id"] {
		wrong = append(wrong, fmt.Errorf("X-Request-Id is %q, correlation_id %v, want them equal", got, content["correlation_id"]))
	}
	if got := header.Get("Cache-Control"); got != "no-store" {
		wrong = append(wrong, fmt.Errorf("Cache-Control is %q, want no-store", got))
	}
	return errors.Join(wrong...)
}
