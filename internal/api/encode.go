package api

import (
	"encoding/json"
	"strconv"
	"time"

	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
)

// appendAnswer appends an answer without a trail as JSON: byte for byte what encoding/json makes of toWire, to which a test
// holds it. It is written out by hand since most requests are answered from the cache, and to walk the document's type,
// with its many pointers, took longer than to look the answer up.
func appendAnswer(b []byte, n *validate.Answer, lang lang) []byte {
	b = appendTextOrNull(append(b, `{"id":`...), n.ID)
	b = appendText(append(b, `,"status":`...), string(n.Status))
	b = appendText(append(b, `,"decision":`...), string(n.Decision))
	b = appendText(append(b, `,"reason":`...), string(n.Reason))
	b = appendText(append(b, `,"reasons":[`...), string(n.Reason))
	for _, reason := range n.Reasons {
		if reason != n.Reason {
			b = appendText(append(b, ','), string(reason))
		}
	}
	b = appendTextOrNull(append(b, `],"email":{"normalized":`...), n.Normalized)
	b = appendTextOrNull(append(b, `,"suggestion":`...), n.Suggestion)
	b = appendTextOrNull(append(b, `,"suggestion_reason":`...), string(n.SuggestionReason))
	b = appendTextOrNull(append(b, `,"unicode":`...), n.Unicode)
	b = appendTextOrNull(append(b, `,"dedupe_key":`...), n.DedupeKey)
	b = appendTri(append(b, `},"flags":{"disposable":`...), n.Flags.Disposable)
	b = appendTri(append(b, `,"role":`...), n.Flags.Role)
	b = appendTri(append(b, `,"free":`...), n.Flags.Free)
	b = appendTri(append(b, `,"catch_all":`...), n.Flags.CatchAll)
	b = appendTri(append(b, `,"mailbox_full":`...), n.Flags.MailboxFull)
	b = appendTri(append(b, `,"smtputf8":`...), n.Flags.SMTPUTF8)
	b = appendTri(append(b, `,"subaddressed":`...), n.Flags.Subaddressed)
	b = appendTri(append(b, `,"mixed_script":`...), n.Flags.MixedScript)
	b = strconv.AppendInt(append(b, `},"attempts":`...), int64(n.Attempts), 10)
	b = appendText(append(b, `,"source":{"kind":`...), string(n.Source))
	b = appendTextOrNull(append(b, `,"provider":`...), n.Provider)
	if n.CheckedAt.IsZero() {
		b = append(b, `,"checked_at":null,"age_ms":null`...)
	} else {
		b = appendTime(append(b, `,"checked_at":`...), n.CheckedAt)
		b = strconv.AppendInt(append(b, `,"age_ms":`...), age(n), 10)
	}
	b = strconv.AppendBool(append(b, `,"stale":`...), n.Stale)
	if n.ExpiresAt.IsZero() {
		b = append(b, `,"expires_at":null`...)
	} else {
		b = appendTime(append(b, `,"expires_at":`...), n.ExpiresAt)
	}
	b = appendText(append(b, `},"message":`...), message(lang, *n))
	if n.Status == verdict.NeedsReview {
		if !n.NextCheckAt.IsZero() {
			b = appendTime(append(b, `,"next_check_at":`...), n.NextCheckAt)
		}
		b = strconv.AppendInt(append(b, `,"poll_after_ms":`...), poll(n), 10)
	}
	if n.DisposableList != (verdict.List{}) {
		b = appendText(append(b, `,"disposable_list":{"name":`...), n.DisposableList.Name)
		b = appendTextOrNull(append(b, `,"version":`...), n.DisposableList.Version)
		b = strconv.AppendInt(append(b, `,"entries":`...), int64(n.DisposableList.Entries), 10)
		b = append(b, '}')
	}
	return append(b, '}')
}

// age is in milliseconds. Clocks of replicas may differ, so it may come out as less than nothing.
func age(n *validate.Answer) int64 { return max(n.Age, 0).Milliseconds() }

// poll is in milliseconds, and never "at once".
func poll(n *validate.Answer) int64 { return max(n.PollAfter.Milliseconds(), 1) }

// appendTextOrNull appends null for the empty string, as the document wants it.
func appendTextOrNull(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendText(b, s)
}

// appendText appends a JSON string. What needs no escape is copied; the rest is left to encoding/json.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			text, _ := json.Marshal(s) // strings always marshal
			return append(b, text...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

func appendTri(b []byte, t verdict.Tri) []byte {
	switch t {
	case verdict.True:
		return append(b, "true"...)
	case verdict.False:
		return append(b, "false"...)
	default:
		return append(b, "null"...)
	}
}

func appendTime(b []byte, t time.Time) []byte {
	return append(milliseconds(t).AppendFormat(append(b, '"'), time.RFC3339Nano), '"')
}

// milliseconds is t in UTC and to the millisecond: more would suggest an accuracy that clocks don't have.
func milliseconds(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }
