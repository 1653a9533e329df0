// Package callback tells the systems that wait for a review how it ended: one signed POST an end and watcher, from the
// outbox that is written in the transaction that ends the review. What is in the outbox is delivered at least once, under
// an id that stays the same, so that the receiver can tell a second delivery; it is tried for a day and then given up.
//
// Messages are signed as Standard Webhooks (github.com/standard-webhooks/standard-webhooks, spec/standard-webhooks.md):
// headers webhook-id, webhook-timestamp and webhook-signature. What they say is what GET /status/{id} says at the time of
// the delivery.
//
// A target is the operator's own, and yet not trusted with our network: private, loopback and other special addresses
// are refused after the name was resolved, at each connection, unless the callback allows them; redirects are refused.
// No URL, address or key is in a log line, a metric, an error or the outbox.
package callback

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"validator-gw/internal/fallback"
	"validator-gw/internal/secret"
)

// Events lists what a callback may be told: a review was settled (an answer, or "unresolved"), or it is dead (nobody works
// on it until someone looks).
var Events = []string{fallback.NoticeSettled, fallback.NoticeDead}

// Target is one configured callback.
type Target struct {
	// URL is absolute; https, or http where Private is set.
	URL string
	// Keys sign, each once; see ReadKeys.
	Keys []secret.Text
	// Events are those that it is told.
	Events []string
	// Private allows targets in private networks and on this machine.
	Private bool
}

// Bounds of a key, from the specification ("Signature scheme"): 24 to 64 bytes.
const (
	minKey = 24
	maxKey = 64
)

// keyPrefix begins a serialized symmetric key, as the specification has it.
const keyPrefix = "whsec_"

const (
	// maxKeys is more than a rotation needs.
	maxKeys    = 4
	maxKeyFile = 4 << 10
)

// ReadKeys reads the keys of a callback from a file, one a line: base64 with or without whsec_ before it. A message is
// signed with each, so that a receiver that has either of them can verify it while they are changed. The error says what to
// do and holds nothing of them.
func ReadKeys(path string) ([]secret.Text, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxKeyFile {
		return nil, fmt.Errorf("%s: is larger than 4 KiB, so it holds no keys", path)
	}
	var keys []secret.Text
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		key, ok := parseKey(line)
		if !ok {
			return nil, fmt.Errorf("%s: line %d is not a key of %d to %d bytes in base64; make one with: echo whsec_$(openssl rand -base64 32)",
				path, n, minKey, maxKey)
		}
		keys = append(keys, secret.Text(key))
	}
	if len(keys) == 0 || len(keys) > maxKeys {
		return nil, fmt.Errorf("%s: holds no keys, or more than %d; write one a line", path, maxKeys)
	}
	return keys, nil
}

func parseKey(s string) (key []byte, ok bool) {
	s = strings.TrimRight(strings.TrimPrefix(s, keyPrefix), "=")
	key, err := base64.RawStdEncoding.DecodeString(s)
	return key, err == nil && len(key) >= minKey && len(key) <= maxKey
}

// sign returns the value of webhook-signature: for each key the version, a comma, and base64 of the HMAC over id,
// timestamp and body.
func sign(keys []secret.Text, id string, at time.Time, body []byte) string {
	var all []string
	for _, key := range keys {
		mac := hmac.New(sha256.New, []byte(key.Reveal()))
		mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
		mac.Write(body)
		all = append(all, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return strings.Join(all, " ")
}

// envelope is the body of a message: the specification's type, timestamp and data.
type envelope struct {
	Type      string          `json:"type"`
	Timestamp time.Time       `json:"timestamp"`
	Data      json.RawMessage `json:"data"`
}

func wrap(n fallback.Notice, data []byte) ([]byte, error) {
	return json.Marshal(envelope{Type: n.Event, Timestamp: n.RecordedAt.UTC().Truncate(time.Millisecond), Data: data})
}
