package simulator

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// magicName is one row of the table of magic names.
type magicName struct {
	name   string
	number need // whether a number -N follows the name and belongs to it
	min    int  // the smallest and
	max    int  // the largest number that is taken
	play   func(c call, n int) fate
}

type need int

const (
	none     need = iota
	optional      // noNumber is passed where there is none
	required
)

const noNumber = -1

func plain(f func(call) fate) func(call, int) fate {
	return func(c call, _ int) fate { return f(c) }
}

func results(word string) func(call, int) fate {
	return func(c call, _ int) fate { return result(c, word) }
}

func failures(status int, message string) func(call, int) fate {
	return func(call, int) fate { return failure(status, message) }
}

func throttled(h Hint) func(call, int) fate {
	return func(c call, n int) fate {
		if n == noNumber {
			n = defaultRetryAfter
		}
		return hinted(c, http.StatusTooManyRequests, h, n)
	}
}

// maxHintSeconds is long enough for a hint that no sane client obeys (some thirty years).
const maxHintSeconds = 999_999_999

// magicNames is the table that the package comment and docs/simulator.md show.
var magicNames = []magicName{
	{name: "deliverable", play: results("deliverable")},
	{name: "inbox-full", play: results("inbox_full")},
	{name: "hardbounce", play: results("hardbounce")},
	{name: "softbounce", play: results("softbounce")},
	{name: "catch-all", play: results("catch_all")},
	{name: "disposable", play: results("disposable")},
	{name: "undeliverable", play: results("undeliverable")},
	{name: "unknown", play: results("unknown")},

	{name: "did-you-mean", play: plain(func(c call) fate {
		return verdict(c, "hardbounce", false, c.user+"@gmail.com")
	})},
	{name: "did-you-mean-deliverable", play: plain(func(c call) fate {
		return verdict(c, "deliverable", true, c.user+"@gmail.com")
	})},
	{name: "did-you-mean-local", play: plain(func(c call) fate {
		return verdict(c, "hardbounce", false, "someone.else@gmail.com")
	})},

	{name: "unmapped", play: results("quarantined")}, // no word of the vendor's
	{name: "status-error", play: plain(func(c call) fate {
		return jsonAnswer(http.StatusOK, errorBody{
			Status: "error", Email: c.email, Code: http.StatusInternalServerError, Message: "the check could not be made",
		})
	})},
	{name: "contradictory", play: plain(func(c call) fate { return verdict(c, "hardbounce", true, "") })},
	{name: "contradictory-deliverable", play: plain(func(c call) fate { return verdict(c, "deliverable", false, "") })},
	{name: "html", play: plain(htmlPage)},
	{name: "truncated", play: plain(truncated)},
	{name: "empty", play: plain(emptyBody)},
	{name: "oversized", play: plain(oversized)},

	{name: "bad-request", play: failures(http.StatusBadRequest, "parameter missing")},
	{name: "unauthorized", play: failures(http.StatusUnauthorized, "key not valid")},
	{name: "payment-required", play: failures(http.StatusPaymentRequired, "monthly quota used up")},
	{name: "forbidden", play: failures(http.StatusForbidden, "key not active")},
	{name: "throttled", number: optional, max: maxHintSeconds, play: func(c call, n int) fate {
		if n == noNumber {
			return hinted(c, http.StatusTooManyRequests, HintNone, 0)
		}
		return hinted(c, http.StatusTooManyRequests, HintSeconds, n)
	}},
	{name: "throttled-date", number: optional, max: maxHintSeconds, play: throttled(HintDate)},
	{name: "throttled-epoch", number: optional, max: maxHintSeconds, play: throttled(HintEpoch)},
	{name: "throttled-ratelimit-epoch", number: optional, max: maxHintSeconds, play: throttled(HintRateLimitEpoch)},
	{name: "throttled-ratelimit-delta", number: optional, max: maxHintSeconds, play: throttled(HintRateLimitDelta)},
	{name: "throttled-nonsense", play: plain(func(c call) fate {
		f := hinted(c, http.StatusTooManyRequests, HintNone, 0)
		f.header.Set("Retry-After", "soon")
		return f
	})},
	{name: "server-error", play: failures(http.StatusInternalServerError, "internal error")},
	{name: "unavailable", number: optional, max: maxHintSeconds, play: func(c call, n int) fate {
		if n == noNumber {
			return hinted(c, http.StatusServiceUnavailable, HintNone, 0)
		}
		return hinted(c, http.StatusServiceUnavailable, HintSeconds, n)
	}},
	{name: "status", number: required, min: 400, max: 599, play: func(_ call, n int) fate {
		return failure(n, strings.ToLower(http.StatusText(n)))
	}},
	{name: "redirect", play: plain(func(call) fate {
		f := failure(http.StatusTemporaryRedirect, "moved")
		f.header.Set("Location", "/moved")
		return f
	})},

	{name: "delay", number: required, max: int(maxDelay / time.Millisecond), play: func(c call, n int) fate {
		f := result(c, "deliverable")
		f.delay, f.exactDelay = time.Duration(n)*time.Millisecond, true
		return f
	}},
	{name: "hang", play: plain(func(call) fate { return fate{ending: hangs} })},
	{name: "reset", play: plain(func(call) fate { return fate{ending: resets} })},
	{name: "slow-drip", play: plain(func(c call) fate {
		f := result(c, "deliverable")
		f.ending = drips
		return f
	})},
	{name: "cut-off", play: plain(func(c call) fate {
		f := result(c, "deliverable")
		f.ending, f.result = cuts, ""
		return f
	})},
	{name: "flip-after", number: required, max: 1_000_000, play: func(c call, n int) fate {
		if c.account.turn() > int64(n) {
			return result(c, "deliverable")
		}
		return result(c, "unknown")
	}},
	{name: "recover-after", number: required, max: 1_000_000, play: func(c call, n int) fate {
		if c.account.turn() > int64(n) {
			return result(c, "deliverable")
		}
		return failure(http.StatusServiceUnavailable, "temporarily unavailable")
	}},
}

var magicByName = func() map[string]magicName {
	m := make(map[string]magicName, len(magicNames))
	for _, n := range magicNames {
		m[n.name] = n
	}
	return m
}()

// MagicNames lists the magic local parts, without their numbers, in the order of the documentation.
func MagicNames() []string {
	names := make([]string, len(magicNames))
	for i, n := range magicNames {
		names[i] = n.name
	}
	return names
}

// behaviour is a magic name with its number.
type behaviour struct {
	magicName
	n int
}

func (b behaviour) play(c call) fate { return b.magicName.play(c, b.n) }

// magicOf reads a local part as a magic name: case and what follows a plus do not matter, an underscore is a hyphen,
// and numbers set off by hyphen or dot may follow. A number that the name itself takes is the first of them, if it
// is set off by a hyphen.
func magicOf(local string) (behaviour, bool) {
	local, _, _ = strings.Cut(local, "+")
	base := strings.ReplaceAll(strings.ToLower(local), "_", "-")
	first := "" // the leftmost of the numbers at the end, with its separator
	for {
		rest := strings.TrimRight(base, "0123456789")
		if rest == base || rest == "" || (rest[len(rest)-1] != '-' && rest[len(rest)-1] != '.') {
			break
		}
		base, first = rest[:len(rest)-1], base[len(rest)-1:]
	}

	m, ok := magicByName[base]
	if !ok {
		return behaviour{}, false
	}
	b := behaviour{magicName: m, n: noNumber}
	if m.number != none && strings.HasPrefix(first, "-") {
		n, err := strconv.Atoi(first[1:])
		if err != nil || n < m.min || n > m.max {
			return behaviour{}, false
		}
		b.n = n
	}
	if m.number == required && b.n == noNumber {
		return behaviour{}, false
	}
	return b, true
}

// Mix is what addresses without a magic name get, and how often: magic names with weights.
type Mix []Weight

// Weight is one part of a Mix. Name is a magic name, with its number if it has one ("hardbounce", "delay-300").
type Weight struct {
	Name   string
	Weight float64
}

// ParseMix reads "deliverable=90, hardbounce=8, unknown=2". Empty text is the empty Mix.
func ParseMix(text string) (Mix, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var m Mix
	for part := range strings.SplitSeq(text, ",") {
		name, weight, ok := strings.Cut(strings.TrimSpace(part), "=")
		w, err := strconv.ParseFloat(strings.TrimSpace(weight), 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("%q: want name=weight", strings.TrimSpace(part))
		}
		m = append(m, Weight{Name: strings.TrimSpace(name), Weight: w})
	}
	return m, m.check()
}

func (m Mix) check() error {
	for _, w := range m {
		if _, ok := magicOf(w.Name); !ok {
			return fmt.Errorf("unknown name %q: one of %s", w.Name, strings.Join(MagicNames(), ", "))
		}
		if !(w.Weight > 0 && w.Weight <= 1e9) {
			return fmt.Errorf("weight %v of %s: must be more than 0", w.Weight, w.Name)
		}
	}
	return nil
}

// of is what this address gets, today and tomorrow.
func (m Mix) of(seed uint64, address string) behaviour {
	sum := 0.0
	for _, w := range m {
		sum += w.Weight
	}
	u := draws{seed: seed, address: address}.uniform("mix") * sum
	name := "deliverable"
	for _, w := range m {
		name = w.Name
		if u -= w.Weight; u < 0 {
			break
		}
	}
	b, _ := magicOf(name) // checked by New
	return b
}
