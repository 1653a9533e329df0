package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"validator-gw/internal/api/openapi"
	"validator-gw/internal/idempotency"
	"validator-gw/internal/validate"
)

// Lists loads, shows and ends lists of addresses. Its errors are those below, validate.ErrUnknownFlow, validate.ErrUnknownID and
// validate.ErrUnavailable; others are answered as faults of the gateway and logged, so they hold no address.
type Lists interface {
	// LoadList stores a list as it comes.
	LoadList(ctx context.Context, body io.Reader, l List) (openapi.Backfill, error)
	// Backfill tells how one stands; its id is the capability.
	Backfill(ctx context.Context, id string) (openapi.Backfill, error)
	// Backfills lists a client's, the newest first, from before an id on, if one is given. Next is the last one's id, or empty.
	Backfills(ctx context.Context, client, before string) (page []openapi.Backfill, next string, err error)
	CancelBackfill(ctx context.Context, id string) (openapi.Backfill, error)
	ResumeBackfill(ctx context.Context, id string, maxCredits *int64) (openapi.Backfill, error)
	// Results returns what writes them.
	Results(ctx context.Context, id string, partial bool) (write func(ctx context.Context, w io.Writer, asJSON bool) error, err error)
}

// List is a list of addresses as POST /backfills asks for it.
type List struct {
	Client, Flow, Column string
	Format               string // csv, ndjson or lines
	Rate                 string // empty: no bound of its own
	MaxCredits           *int64
	Dry                  bool
	Key                  string // the Idempotency-Key, as idempotency.ParseKey read it; empty: none
}

// Errors of Lists.
var (
	ErrListInput      = errors.New("list can't be read")
	ErrListRate       = errors.New("rate can't be read")
	ErrListTooLong    = errors.New("list has too many rows")
	ErrListUnfinished = errors.New("list is not done")
	ErrListEnded      = errors.New("list has ended")
)

// listed is h where there are lists.
func (a *API) listed(h http.HandlerFunc) http.HandlerFunc {
	if a.config.Lists != nil {
		return h
	}
	return func(w http.ResponseWriter, r *http.Request) { a.fail(w.(*exchange), r, validate.ErrUnavailable) }
}

// progressTimeout ends bodies and results that do not move.
const progressTimeout = 30 * time.Second

// deadlineEvery is how often a deadline is moved at most: it costs a system call.
const deadlineEvery = 5 * time.Second

// moving moves a deadline on while it is used.
type moving struct {
	set  func(time.Time) error
	last time.Time
}

func (m *moving) move() error {
	if now := time.Now(); now.Sub(m.last) >= deadlineEvery {
		m.last = now
		if err := m.set(now.Add(progressTimeout)); !errors.Is(err, http.ErrNotSupported) {
			return err
		}
	}
	return nil
}

// movingBody is a body that may take any time, while it moves.
type movingBody struct {
	moving
	io.Reader
}

// Read implements io.Reader.
func (b *movingBody) Read(p []byte) (int, error) {
	if err := b.move(); err != nil {
		return 0, err
	}
	return b.Reader.Read(p)
}

// movingWriter is a response that may take any time, while it moves.
type movingWriter struct {
	moving
	io.Writer
}

// Write implements io.Writer.
func (w *movingWriter) Write(p []byte) (int, error) {
	if err := w.move(); err != nil {
		return 0, err
	}
	return w.Writer.Write(p)
}

// listFormats are the formats of lists by their media types.
var listFormats = map[string]string{
	"text/csv": "csv", "application/x-ndjson": "ndjson", "application/jsonl": "ndjson", "application/x-jsonlines": "ndjson", "text/plain": "lines",
}

const listMedia = "text/csv, application/x-ndjson, text/plain"

// CreateBackfill answers POST /backfills.
func (a *API) CreateBackfill(w http.ResponseWriter, r *http.Request, params openapi.CreateBackfillParams) {
	x := w.(*exchange)
	l, p := a.readList(x, r, params)
	if p != nil {
		a.refuse(x, p)
		return
	}
	control := http.NewResponseController(x)
	body := &movingBody{moving{set: func(t time.Time) error {
		// The answer's deadline counts from the header: with a list that takes longer there would be none.
		return errors.Join(control.SetReadDeadline(t), control.SetWriteDeadline(t.Add(progressTimeout)))
	}}, r.Body}
	b, err := a.config.Lists.LoadList(r.Context(), body, l)
	if err != nil {
		a.failList(x, r, err)
		return
	}
	x.Header().Set("Location", "/backfills/"+b.ID)
	x.writeJSON(http.StatusAccepted, mediaJSON, b)
}

// readList reads all of POST /backfills but the body.
func (a *API) readList(x *exchange, r *http.Request, params openapi.CreateBackfillParams) (l List, p *problem) {
	header := r.Header.Clone()
	if strings.EqualFold(header.Get("Content-Encoding"), "gzip") {
		header.Del("Content-Encoding") // seen by itself
	}
	format, ok := listFormats[mediaType(header)]
	if !ok {
		x.Header().Set("Accept", listMedia)
		return l, unsupportedMedia.because("Send " + listMedia + ", in UTF-8, gzipped or not.")
	}
	l = List{Client: x.client, Format: format, MaxCredits: params.MaxCredits, Dry: params.DryRun != nil && *params.DryRun, Flow: validate.DefaultFlow}
	for to, from := range map[*string]*string{&l.Column: params.Column, &l.Rate: params.Rate, &l.Flow: params.Flow} {
		if from != nil && *from != "" {
			*to = *from
		}
	}
	switch {
	case !a.validator.HasFlow(l.Flow):
		return l, unknownFlow.plain()
	case l.MaxCredits != nil && *l.MaxCredits < 0:
		return l, malformedParameter.because("The parameter max_credits can't be less than 0.")
	case params.IdempotencyKey != nil:
		key, err := idempotency.ParseKey(*params.IdempotencyKey)
		if err != nil {
			return l, malformedParameter.because("The header Idempotency-Key can't be read.")
		}
		l.Key = key
	}
	x.flow = l.Flow
	return l, nil
}

// failList is fail, and tells a body that broke off from a fault of ours.
func (a *API) failList(x *exchange, r *http.Request, err error) {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		a.refuse(x, malformedBody.because("The list did not go on for half a minute."))
	case r.Context().Err() != nil:
		x.gone()
	case errors.Is(err, io.ErrUnexpectedEOF):
		a.refuse(x, malformedBody.because("The list ended early."))
	case errors.Is(err, ErrListTooLong):
		a.refuse(x, bodyTooLarge.because("The list has more rows than are taken."))
	case errors.Is(err, ErrListInput):
		a.refuse(x, malformedBody.because("The list can't be read. A CSV needs a header line with the column, in UTF-8; packed data must be whole."))
	default:
		a.fail(x, r, err)
	}
}

// ListBackfills answers GET /backfills.
func (a *API) ListBackfills(w http.ResponseWriter, r *http.Request, params openapi.ListBackfillsParams) {
	x := w.(*exchange)
	before := ""
	if params.Before != nil {
		before = *params.Before
	}
	page, next, err := a.config.Lists.Backfills(r.Context(), x.client, before)
	if err != nil {
		a.fail(x, r, err)
		return
	}
	body := openapi.Backfills{Backfills: append([]openapi.Backfill{}, page...)}
	if next != "" {
		body.Next = &next
	}
	x.writeJSON(http.StatusOK, mediaJSON, body)
}

// GetBackfill answers GET /backfills/{id}.
func (a *API) GetBackfill(w http.ResponseWriter, r *http.Request, id openapi.BackfillID, _ openapi.GetBackfillParams) {
	b, err := a.config.Lists.Backfill(r.Context(), id)
	a.tellList(w, r, http.StatusOK, b, err)
}

// CancelBackfill answers DELETE /backfills/{id}.
func (a *API) CancelBackfill(w http.ResponseWriter, r *http.Request, id openapi.BackfillID, _ openapi.CancelBackfillParams) {
	b, err := a.config.Lists.CancelBackfill(r.Context(), id)
	a.tellList(w, r, http.StatusAccepted, b, err)
}

// ResumeBackfill answers POST /backfills/{id}.
func (a *API) ResumeBackfill(w http.ResponseWriter, r *http.Request, id openapi.BackfillID, params openapi.ResumeBackfillParams) {
	if params.MaxCredits != nil && *params.MaxCredits < -1 {
		a.refuse(w.(*exchange), malformedParameter.because("The parameter max_credits can't be less than -1."))
		return
	}
	b, err := a.config.Lists.ResumeBackfill(r.Context(), id, params.MaxCredits)
	a.tellList(w, r, http.StatusAccepted, b, err)
}

func (a *API) tellList(w http.ResponseWriter, r *http.Request, status int, b openapi.Backfill, err error) {
	x := w.(*exchange)
	if err != nil {
		a.fail(x, r, err)
		return
	}
	x.writeJSON(status, mediaJSON, b)
}

// GetBackfillResults answers GET /backfills/{id}/results.
func (a *API) GetBackfillResults(w http.ResponseWriter, r *http.Request, id openapi.BackfillID, params openapi.GetBackfillResultsParams) {
	x := w.(*exchange)
	write, err := a.config.Lists.Results(r.Context(), id, params.Partial != nil && *params.Partial)
	if err != nil {
		a.fail(x, r, err)
		return
	}
	asJSON := strings.Contains(r.Header.Get("Accept"), "ndjson")
	media := "text/csv"
	if asJSON {
		media = "application/x-ndjson"
	}
	x.Header().Set("Content-Type", media)
	if r.Method == http.MethodHead {
		x.WriteHeader(http.StatusOK)
		return
	}
	if err := write(r.Context(), &movingWriter{moving{set: http.NewResponseController(x).SetWriteDeadline}, x}, asJSON); err != nil {
		if r.Context().Err() == nil {
			x.err = err
		}
		panic(http.ErrAbortHandler) // a part may be out: cutting the connection is the only way to say that it is not whole
	}
}
