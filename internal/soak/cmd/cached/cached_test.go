package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"validator-gw/internal/api/openapi"
)

// The bare handler answers with the template and the address that was asked for.
func TestBareHandlerUnderLoad(t *testing.T) {
	t.Parallel()
	template := openapi.Answer{Status: "valid", Source: openapi.Source{Kind: "cache"}, Reasons: []string{"mailbox_accepted"}}
	s := httptest.NewServer(bareHandler(template, "some-id"))
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	text, err := ask(t.Context(), host, request("key", "ana@example.com"))
	if err != nil {
		t.Fatal(err)
	}
	var got openapi.Answer
	if err := json.Unmarshal(text, &got); err != nil || got.Email.Normalized == nil || *got.Email.Normalized != "ana@example.com" {
		t.Errorf("answered %s, %v", text, err)
	}
	requests := [][]byte{request("key", "a@example.com"), request("key", "b@example.com")}
	l, err := drive(t.Context(), host, requests, 2, 50*time.Millisecond, []byte(`"kind":"cache"`))
	if err != nil || len(l.answers) < 2 {
		t.Errorf("drive: %d answers, %v", len(l.answers), err)
	}
	if _, err := drive(t.Context(), host, requests, 2, 50*time.Millisecond, []byte(`"kind":"upstream"`)); err == nil {
		t.Error("answers that lack what they must hold went unnoticed")
	}
}

// A round with a refusal in it measures nothing.
func TestRefusalsEndARound(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	if _, err := drive(t.Context(), strings.TrimPrefix(s.URL, "http://"), [][]byte{request("k", "a@example.com")}, 1, time.Second, nil); err == nil {
		t.Error("404 went unnoticed")
	}
}

func TestReadAnswer(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc":               "abc",
		"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 0\r\n\r\n":          "",
		"HTTP/1.1 200 OK\r\n\r\nabc":                                    "error",
		"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc":               "error",
		"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n": "error",
	} {
		got, err := readAnswer(bufio.NewReader(strings.NewReader(text)), nil)
		if (err != nil) != (want == "error") || err == nil && string(got) != want {
			t.Errorf("readAnswer(%q) = %q, %v", text, got, err)
		}
	}
}
