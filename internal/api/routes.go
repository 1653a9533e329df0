package api

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/prometheus/client_golang/prometheus"

	"validator-gw/internal/api/openapi"
)

// route is one operation of the document.
type route struct {
	method  string // empty for what matches no route
	pattern string
	keyed   bool  // a key is asked for
	probe   bool  // asked for all the time, by machines
	codes   []int // the document's status codes
	handler http.HandlerFunc

	inFlight  prometheus.Gauge
	counters  map[int]prometheus.Counter
	durations [3]prometheus.Observer // in the order of classes; nil for one that the codes do not have
}

// The patterns of requests that match no route, as log lines and metrics name them.
const (
	patternUnmatched  = "unmatched"
	patternPathIsHere = "unmatched_method"
)

// table returns the routes, in the order of the document, and last the two for what matches none. A test holds it to
// the document: paths, methods, keys and codes.
func (a *API) table() []*route {
	w := &openapi.ServerInterfaceWrapper{Handler: a, ErrorHandlerFunc: a.badParameter}
	return []*route{
		{method: "POST", pattern: "/validate", keyed: true, handler: w.ValidateAddress,
			codes: []int{200, 202, 400, 401, 403, 409, 413, 415, 422, 429, 500, 503}},
		{method: "GET", pattern: "/status/{id}", keyed: true, handler: w.GetStatus,
			codes: []int{200, 400, 401, 403, 404, 422, 429, 500, 503}},
		{method: "POST", pattern: "/revalidate", keyed: true, handler: w.Revalidate,
			codes: []int{200, 202, 400, 401, 403, 404, 409, 413, 415, 422, 429, 500, 503}},
		{method: "POST", pattern: "/backfills", keyed: true, handler: a.listed(w.CreateBackfill),
			codes: []int{202, 400, 401, 403, 409, 413, 415, 422, 429, 500, 503}},
		{method: "GET", pattern: "/backfills", keyed: true, handler: a.listed(w.ListBackfills),
			codes: []int{200, 401, 403, 429, 500, 503}},
		{method: "GET", pattern: "/backfills/{id}", keyed: true, handler: a.listed(w.GetBackfill),
			codes: []int{200, 401, 403, 404, 429, 500, 503}},
		{method: "DELETE", pattern: "/backfills/{id}", keyed: true, handler: a.listed(w.CancelBackfill),
			codes: []int{202, 401, 403, 404, 409, 429, 500, 503}},
		{method: "POST", pattern: "/backfills/{id}", keyed: true, handler: a.listed(w.ResumeBackfill),
			codes: []int{202, 400, 401, 403, 404, 409, 429, 500, 503}},
		{method: "GET", pattern: "/backfills/{id}/results", keyed: true, handler: a.listed(w.GetBackfillResults),
			codes: []int{200, 400, 401, 403, 404, 409, 429, 500, 503}},
		{method: "GET", pattern: "/queue", keyed: true, handler: w.GetQueue,
			codes: []int{200, 401, 403, 429, 500, 501, 503}},
		{method: "GET", pattern: "/admin/settings", keyed: true, handler: w.GetSettings,
			codes: []int{200, 401, 403, 429, 500, 503}},
		{method: "POST", pattern: "/admin/reviews/{id}/retry", keyed: true, handler: w.RetryReview,
			codes: []int{202, 401, 403, 404, 409, 429, 500, 503}},
		{method: "DELETE", pattern: "/addresses", keyed: true, handler: w.EraseAddress,
			codes: []int{200, 400, 401, 403, 413, 415, 429, 500, 503}},
		{method: "GET", pattern: "/livez", probe: true, handler: w.GetLivez, codes: []int{200, 500}},
		{method: "GET", pattern: "/readyz", probe: true, handler: w.GetReadyz, codes: []int{200, 500, 503}},
		{method: "GET", pattern: "/openapi.yaml", handler: w.GetOpenAPI, codes: []int{200, 500}},
		{method: "GET", pattern: "/docs", handler: w.GetDocs, codes: []int{200, 500, 501}},
		{pattern: patternUnmatched, handler: a.nothingHere},
		{pattern: patternPathIsHere, handler: a.otherMethods},
	}
}

// usualPath is where nearly all requests go.
const usualPath = "/validate"

// front is the router, and a way past it for what nearly all requests ask for, which have no use for the router's copy of
// the request.
type front struct {
	*chi.Mux
	usual http.HandlerFunc
}

// ServeHTTP answers a request.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost && r.URL.Path == usualPath && r.URL.RawPath == "" {
		f.usual(w, r)
		return
	}
	f.Mux.ServeHTTP(w, r)
}

// router ties the routes together. A HEAD is answered like the GET of its path, without the body.
func (a *API) router() *front {
	m := chi.NewRouter()
	f := &front{Mux: m}
	m.Use(middleware.GetHead)
	for _, rt := range a.routes {
		switch rt.pattern {
		case patternUnmatched:
			m.NotFound(a.serve(rt))
		case patternPathIsHere:
			m.MethodNotAllowed(a.serve(rt))
		default:
			m.Method(rt.method, rt.pattern, a.serve(rt))
		}
		if rt.method == http.MethodPost && rt.pattern == usualPath {
			f.usual = a.serve(rt)
		}
	}
	return f
}

func (a *API) nothingHere(w http.ResponseWriter, _ *http.Request) {
	a.refuse(w.(*exchange), notFound.plain())
}

func (a *API) otherMethods(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	routes := chi.RouteContext(r.Context()).Routes
	var allow []string
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodPost} {
		if routes.Match(chi.NewRouteContext(), method, path) {
			allow = append(allow, method)
		}
	}
	if slices.Contains(allow, http.MethodGet) {
		allow = append(allow, http.MethodHead)
	}
	w.Header().Set("Allow", strings.Join(allow, ", "))
	a.refuse(w.(*exchange), methodNotAllowed.plain())
}

// badParameter answers a header, query or path parameter that the generated glue can't read. The glue's errors quote
// what was sent, so only the parameter's name is taken from them.
func (a *API) badParameter(w http.ResponseWriter, _ *http.Request, err error) {
	x := w.(*exchange)
	if invalid, ok := errors.AsType[*openapi.InvalidParamFormatError](err); ok {
		switch invalid.ParamName {
		case "id": // a path that names nothing
			a.refuse(x, unknownID.because(malformedID))
		case "X-Request-Timeout-Ms":
			a.refuse(x, malformedParameter.because(
				"The header X-Request-Timeout-Ms must be a whole number of milliseconds."))
		default:
			a.refuse(x, malformedParameter.because("The parameter "+invalid.ParamName+" can't be read."))
		}
		return
	}
	if many, ok := errors.AsType[*openapi.TooManyValuesForParamError](err); ok {
		a.refuse(x, malformedParameter.because("The header "+many.ParamName+" may be sent once only."))
		return
	}
	a.refuse(x, malformedParameter.plain())
}
