package api

import (
	"net/http"
	"strconv"

	validatorgw "validator-gw"
	"validator-gw/internal/api/openapi"
)

// GetLivez answers GET /livez: always well, while there is an answer at all.
func (a *API) GetLivez(w http.ResponseWriter, _ *http.Request) {
	w.(*exchange).writeJSON(http.StatusOK, mediaJSON, openapi.Liveness{Status: openapi.LivenessStatusAlive})
}

// GetReadyz answers GET /readyz.
func (a *API) GetReadyz(w http.ResponseWriter, _ *http.Request) {
	now := a.health.Readiness()
	body := openapi.Readiness{Status: openapi.ReadinessStatus(now.State), Parts: make([]openapi.Part, 0, len(now.Parts))}
	for _, p := range now.Parts {
		body.Parts = append(body.Parts, openapi.Part{Name: p.Name, Status: openapi.PartStatus(p.Status), Note: p.Note})
	}
	status := http.StatusServiceUnavailable
	if now.State == Ready || now.State == Degraded {
		status = http.StatusOK
	}
	w.(*exchange).writeJSON(status, mediaJSON, body)
}

// GetSettings answers GET /admin/settings.
func (a *API) GetSettings(w http.ResponseWriter, _ *http.Request, _ openapi.GetSettingsParams) {
	now := a.config.Settings()
	body := openapi.Settings{Warnings: append([]string{}, now.Warnings...), Settings: make([]openapi.Setting, 0, len(now.Settings))}
	body.Reloads.Applied, body.Reloads.Refused, body.Reloads.Stale = int64(now.Applied), int64(now.Refused), now.Stale
	for _, s := range now.Settings {
		body.Settings = append(body.Settings, openapi.Setting(s))
	}
	w.(*exchange).writeJSON(http.StatusOK, mediaJSON, body)
}

// GetOpenAPI answers GET /openapi.yaml.
func (a *API) GetOpenAPI(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "application/yaml") // RFC 9512
	h.Set("Cache-Control", "max-age=300")
	h.Set("Content-Length", strconv.Itoa(len(validatorgw.OpenAPI)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(validatorgw.OpenAPI) // an error means that the caller left
}

// The operations below are part of the contract and not of this version.

// GetDocs answers GET /docs.
func (a *API) GetDocs(w http.ResponseWriter, _ *http.Request) { a.later(w) }

// GetQueue answers GET /queue.
func (a *API) GetQueue(w http.ResponseWriter, _ *http.Request, _ openapi.GetQueueParams) { a.later(w) }

func (a *API) later(w http.ResponseWriter) { a.refuse(w.(*exchange), notImplemented.plain()) }
