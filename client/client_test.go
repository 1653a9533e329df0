package client_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"validator-gw/client"
	"validator-gw/internal/api"
	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
)

const id = "01989f6e-7d3a-7c1e-9a44-0f3b8f6f2c11"

// desk knows one address that is pending, and takes every other for valid.
type desk struct{}

func (desk) Validate(_ context.Context, req validate.Request) (validate.Answer, error) {
	a := validate.Answer{ID: id, Status: verdict.Valid, Decision: validate.Accept, Reason: verdict.MailboxAccepted,
		Normalized: req.Raw, Source: verdict.FromUpstream}
	if req.Raw == "slow@example.com" {
		a.Status, a.Decision, a.Reason = verdict.NeedsReview, validate.AcceptPending, verdict.UpstreamTimeout
		a.Source, a.PollAfter = verdict.FromNone, 30*time.Second
	}
	return a, nil
}

func (d desk) Status(ctx context.Context, q validate.Inquiry) (validate.Answer, error) {
	if q.ID != id {
		return validate.Answer{}, validate.ErrUnknownID
	}
	return d.Validate(ctx, validate.Request{Raw: "slow@example.com"})
}

func (d desk) Wait(ctx context.Context, q validate.Inquiry, _ time.Duration) (validate.Answer, error) {
	return d.Status(ctx, q)
}

func (desk) Revalidate(_ context.Context, e validate.Event) (validate.Scheduled, error) {
	return validate.Scheduled{ID: "01989f6e-7d3a-7c1e-9a44-0f3b8f6f2c11", NextCheckAt: time.Unix(1_700_000_000, 0), Merged: e.Raw == "again@example.com"}, nil
}

func (desk) Retry(context.Context, string) error { return nil }

func (desk) Erase(context.Context, string) (validate.Removed, error) {
	return validate.Removed{Verdicts: 1}, nil
}

func (desk) HasFlow(name string) bool { return name == "signup" }

func (desk) HasCallback(name string) bool { return name == "crm" }

func (desk) Readiness() api.Readiness { return api.Readiness{State: api.Ready} }

// local answers a client's requests without a network.
type local struct{ handler http.Handler }

func (l local) Do(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	l.handler.ServeHTTP(w, r)
	return w.Result(), nil
}

func connect(t *testing.T, key string) *client.ClientWithResponses {
	t.Helper()
	edge, err := api.New(desk{}, desk{}, api.Config{Keys: []api.Key{{Name: "backend", Key: "right"}}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.NewClientWithResponses("http://validator.example.com", client.WithKey(key),
		client.WithHTTPClient(local{edge.Handler()}))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	c := connect(t, "right")
	for address, want := range map[string]client.Decision{
		"ana+news@example.com": client.DecisionAccept, "slow@example.com": client.DecisionAcceptPending,
	} {
		res, err := c.ValidateAddressWithResponse(t.Context(), nil, client.ValidateRequest{Email: address})
		if err != nil {
			t.Fatal(err)
		}
		a, err := res.Answer()
		if err != nil || a.Decision != want || a.Email.Normalized == nil || *a.Email.Normalized != address {
			t.Errorf("JSON %s: %+v, %v, want decision %s", address, a, err, want)
		}
		res, err = c.ValidateAddressWithFormdataBodyWithResponse(t.Context(), nil, client.ValidateForm{Email: address})
		if err != nil {
			t.Fatal(err)
		}
		a, err = res.Answer()
		if err != nil || a.Decision != want || a.Email.Normalized == nil || *a.Email.Normalized != address {
			t.Errorf("form %s: %+v, %v, want decision %s", address, a, err, want)
		}
	}
	wait := "1s"
	res, err := c.GetStatusWithResponse(t.Context(), id, &client.GetStatusParams{Wait: &wait})
	if err != nil {
		t.Fatal(err)
	}
	if a, err := res.Answer(); err != nil || a.Status != client.StatusNeedsReview || *a.PollAfterMs != 30_000 {
		t.Errorf("status: %+v, %v, want needs_review and poll_after_ms 30000", a, err)
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	flow := "nope"
	for _, c := range []struct {
		key, code string
		body      client.ValidateRequest
	}{
		{"wrong", "unauthorized", client.ValidateRequest{Email: "ana@example.com"}},
		{"right", "unknown_flow", client.ValidateRequest{Email: "ana@example.com", Flow: &flow}},
	} {
		res, err := connect(t, c.key).ValidateAddressWithResponse(t.Context(), nil, c.body)
		if err != nil {
			t.Fatal(err)
		}
		_, err = res.Answer()
		p, ok := errors.AsType[*client.Problem](err)
		if !ok || p.Code != c.code || !strings.Contains(err.Error(), p.CorrelationID) {
			t.Errorf("error %v, want a Problem with code %s and its correlation id", err, c.code)
		}
	}
	res, err := connect(t, "right").GetStatusWithResponse(t.Context(), "7", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := res.Answer(); err == nil || !strings.Contains(err.Error(), "unknown_id") {
		t.Errorf("error %v, want unknown_id", err)
	}
}

// A proxy in between answers in its own words.
func TestForeignResponse(t *testing.T) {
	t.Parallel()
	proxy := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusBadGateway)
	})
	c, err := client.NewClientWithResponses("http://validator.example.com", client.WithHTTPClient(local{proxy}))
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.ValidateAddressWithResponse(t.Context(), nil, client.ValidateRequest{Email: "ana@example.com"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = res.Answer()
	if e, ok := errors.AsType[*client.StatusError](err); !ok || e.Status != http.StatusBadGateway {
		t.Errorf("error %v, want a StatusError with 502", err)
	}
}

func TestErase(t *testing.T) {
	t.Parallel()
	res, err := connect(t, "right").EraseAddressWithResponse(t.Context(), nil, client.EraseRequest{Email: "ana@example.com"})
	if err != nil || res.JSON200 == nil || *res.JSON200 != (client.Erased{Verdicts: 1}) {
		t.Errorf("EraseAddress = %v, %v, want one verdict", res, err)
	}
}

func TestRevalidate(t *testing.T) {
	t.Parallel()
	c := connect(t, "right")
	email := "again@example.com"
	res, err := c.RevalidateWithResponse(t.Context(), nil, client.RevalidateRequest{Email: &email})
	if err != nil {
		t.Fatal(err)
	}
	if res.JSON202 == nil || !res.JSON202.Merged || res.JSON202.ID == "" {
		t.Errorf("Revalidate = %d %+v, want 202 and a merged check", res.StatusCode(), res.JSON202)
	}
}
