package cache

import (
	"encoding/hex"
	"math"
	"strings"
	"time"
	"unique"

	"validator-gw/internal/verdict"
)

// packed is an entry as the process keeps it. Verdicts differ in little but their id and their times, so what they have in
// common is kept once for all: 100,000 of them take 18 MB, where structs take 66. Of the trail only the moment is
// kept in which the answered call began; the store has the rest.
type packed struct {
	id                         [16]byte
	checked, began, soft, hard int64 // Unix time in ns, or never
	kept                       int64 // when it was put into the process
	words                      unique.Handle[words]
	more                       *more
}

// words are what verdicts have in common.
type words struct {
	status   verdict.Status
	reason   verdict.Reason
	reasons  string // with commas
	count    int
	flags    verdict.Flags
	local    verdict.Local
	hasLocal bool
	attempts int
	provider string
	profile  string
}

// more is what few entries have.
type more struct {
	id         string // that is no UUID
	suggestion verdict.Suggestion
	marker     *verdict.Marker
}

// Weights of an entry, about: bytes of the node in otter with its place in the table, and of more.
const (
	baseWeight = 184
	moreWeight = 96
)

// never is the zero time.
const never = math.MinInt64

func pack(k verdict.Cached) packed {
	kept := time.Now().UnixNano()
	if k.Marker != nil {
		m := *k.Marker
		return packed{kept: kept, more: &more{marker: &m}}
	}
	v := k.Verdict
	w := words{status: v.Status, reason: v.Reason, count: len(v.Reasons), flags: v.Flags, attempts: v.Attempts, provider: v.Provider,
		profile: v.Profile, hasLocal: v.Local != nil}
	if w.hasLocal {
		w.local = *v.Local
	}
	switch w.count {
	case 0:
	case 1:
		w.reasons = string(v.Reasons[0])
	default:
		all := make([]string, w.count)
		for i, r := range v.Reasons {
			all[i] = string(r)
		}
		w.reasons = strings.Join(all, ",")
	}
	p := packed{kept: kept, checked: nanos(v.CheckedAt), began: nanos(v.Began()), soft: nanos(v.SoftUntil), hard: nanos(v.HardUntil), words: unique.Make(w)}
	id, ok := packID(v.ID)
	if p.id = id; !ok || v.Suggestion.Domain != "" || len(v.Suggestion.Sealed) > 0 {
		p.more = &more{suggestion: v.Suggestion}
		if !ok {
			p.more.id = v.ID
		}
	}
	return p
}

// unpacked is a verdict with all that it points to, but for its id.
type unpacked struct {
	v       verdict.Verdict
	local   verdict.Local
	reasons [1]verdict.Reason
	trail   [1]verdict.Attempt
}

func (p packed) unpack() verdict.Cached {
	if p == (packed{}) {
		return verdict.Cached{}
	}
	if p.more != nil && p.more.marker != nil {
		return verdict.Cached{Marker: p.more.marker}
	}
	w := p.words.Value()
	u := &unpacked{v: verdict.Verdict{Status: w.status, Reason: w.reason, Flags: w.flags, Attempts: w.attempts, Provider: w.provider,
		Profile: w.profile, CheckedAt: moment(p.checked), SoftUntil: moment(p.soft), HardUntil: moment(p.hard)}}
	v := &u.v
	if w.hasLocal {
		u.local = w.local
		v.Local = &u.local
	}
	switch w.count {
	case 0:
	case 1:
		u.reasons[0] = verdict.Reason(w.reasons)
		v.Reasons = u.reasons[:]
	default:
		for r := range strings.SplitSeq(w.reasons, ",") {
			v.Reasons = append(v.Reasons, verdict.Reason(r))
		}
	}
	if p.began != p.checked {
		u.trail[0] = verdict.Attempt{At: moment(p.began), Outcome: verdict.AttemptAnswered, LatencyMS: (p.checked - p.began) / int64(time.Millisecond)}
		v.Trail = u.trail[:]
	}
	if p.more != nil {
		v.ID, v.Suggestion = p.more.id, p.more.suggestion
	}
	if v.ID == "" {
		v.ID = unpackID(p.id)
	}
	return verdict.Cached{Verdict: v}
}

// life is verdict.Cached.Life.
func (p packed) life(now time.Time) time.Duration {
	if p.more != nil && p.more.marker != nil {
		return p.more.marker.Until.Sub(now)
	}
	return moment(p.hard).Sub(now)
}

// weight is about how many bytes an entry takes. What verdicts have in common is not in it: there are a few hundred of those.
func (p packed) weight() uint32 {
	n := baseWeight
	if m := p.more; m != nil {
		n += moreWeight + len(m.id) + len(m.suggestion.Domain) + len(m.suggestion.Sealed)
		if m.marker != nil {
			n += moreWeight + len(m.marker.ID)
		}
	}
	return uint32(n) // a suggestion is an address at most
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return never
	}
	return t.UnixNano()
}

func moment(n int64) time.Time {
	if n == never {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

// packID reads a UUID in canonical text.
func packID(id string) (b [16]byte, ok bool) {
	if len(id) != 36 || id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' {
		return b, false
	}
	n := 0
	for _, part := range [...]string{id[:8], id[9:13], id[14:18], id[19:23], id[24:]} {
		m, err := hex.Decode(b[n:], []byte(part))
		if err != nil {
			return [16]byte{}, false
		}
		n += m
	}
	return b, unpackID(b) == id // upper case is not canonical
}

func unpackID(b [16]byte) string {
	text := make([]byte, 0, 36)
	for i, part := range [...][]byte{b[:4], b[4:6], b[6:8], b[8:10], b[10:]} {
		if i > 0 {
			text = append(text, '-')
		}
		text = hex.AppendEncode(text, part)
	}
	return string(text)
}
