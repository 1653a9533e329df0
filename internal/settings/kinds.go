package settings

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Rate is a number of events a second. It is written 50/s, 300/m or as a bare number, per second.
type Rate float64

// maxRate bounds every rate; it is far above what one upstream or one gateway does.
const maxRate = 1_000_000

// ParseRate reads a rate. Zero is legal here; negative, infinite and absurd ones are not.
func ParseRate(text string) (Rate, error) {
	number, per := text, 1.0
	if n, unit, ok := strings.Cut(text, "/"); ok {
		number = n
		switch strings.TrimSpace(unit) {
		case "s":
		case "m":
			per = 60
		default:
			return 0, errNotRate
		}
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, errNotRate
	}
	if v < 0 || v/per > maxRate {
		return 0, problem("is not between 0 and 1000000/s")
	}
	return Rate(v / per), nil
}

// String writes the rate so that ParseRate gives it back.
func (r Rate) String() string {
	if r > 0 && r < 1 {
		if n := math.Round(float64(r) * 60); Rate(n/60) == r {
			return strconv.FormatFloat(n, 'f', -1, 64) + "/m"
		}
	}
	return strconv.FormatFloat(float64(r), 'f', -1, 64) + "/s"
}

// Limit is a token bucket: so many a second, and so many at once. The zero Limit is no limit. It is written
// "1000/s burst 2000"; without a burst it is one second's worth, at least 1.
type Limit struct {
	Rate  Rate
	Burst int
}

// Off says that there is no limit.
func (l Limit) Off() bool { return l.Rate == 0 }

// String writes the limit so that ParseLimit gives it back.
func (l Limit) String() string {
	if l.Off() {
		return "0"
	}
	return l.Rate.String() + " burst " + strconv.Itoa(l.Burst)
}

// ParseLimit reads a limit.
func ParseLimit(text string) (Limit, error) {
	words := strings.Fields(text)
	var burst string
	if n := len(words); n >= 2 && words[n-2] == "burst" {
		burst, words = words[n-1], words[:n-2]
	}
	rate, err := ParseRate(strings.Join(words, ""))
	if err != nil {
		if errors.Is(err, errNotRate) {
			err = problem(`is not a limit; write it as "50/s", "300/m burst 20", or 0 for no limit`)
		}
		return Limit{}, err
	}
	l := Limit{Rate: rate, Burst: max(1, int(math.Ceil(float64(rate))))}
	if burst != "" {
		n, err := strconv.Atoi(burst)
		if err != nil || n < 1 || n > maxRate {
			return Limit{}, problem("has a burst that is not a whole number from 1 to 1000000")
		}
		l.Burst = n
	}
	if l.Off() {
		return Limit{}, nil
	}
	return l, nil
}

// Size is a number of bytes. It is written 64MiB.
type Size int64

var sizeUnits = []struct {
	name  string
	bytes Size
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// ParseSize reads a size: a whole number of KiB, MiB or GiB.
func ParseSize(text string) (Size, error) {
	text = strings.TrimSpace(text)
	for _, u := range sizeUnits {
		number, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 32)
		if err != nil || n < 0 {
			return 0, errNotSize
		}
		return Size(n) * u.bytes, nil
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return 0, problem("has no unit; write it as " + text + "MiB")
	}
	return 0, errNotSize
}

// String writes the size so that ParseSize gives it back, if it is a whole number of KiB.
func (s Size) String() string {
	for _, u := range sizeUnits {
		if s >= u.bytes && s%u.bytes == 0 {
			return strconv.FormatInt(int64(s/u.bytes), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s/1024), 10) + "KiB"
}

// ParseDuration reads a duration as Go writes it (800ms, 1m30s) or in whole days (7d). A bare number but 0 has no
// unit and is refused.
func ParseDuration(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n > 36500 || n < -36500 {
			return 0, errNotDuration
		}
		return time.Duration(n) * day, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		if _, err := strconv.ParseFloat(text, 64); err == nil {
			return 0, problem("has no unit; write it as " + text + "ms or " + text + "s")
		}
		return 0, errNotDuration
	}
	return d, nil
}

// FormatDuration writes a duration so that ParseDuration gives it back: without zero parts, in days from a week on.
func FormatDuration(d time.Duration) string {
	if d >= 7*day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	if d == 0 {
		return "0"
	}
	return text
}

// problem is what is wrong with a value, as the end of a sentence that begins with it.
type problem string

func (p problem) Error() string { return string(p) }

const (
	errNotDuration problem = "is not a duration; write it as 800ms, 15s, 1h or 7d"
	errNotSize     problem = "is not a size; write it as 64MiB or 1GiB"
	errNotRate     problem = "is not a rate; write it as 50/s, 300/m or a bare number, per second"
)

// kind is a type of value: how it is read, checked and written.
type kind[T any] struct {
	parse  func(string) (T, error)
	format func(T) string
	bounds string
}

func below(least string) error { return problem("is below the least, " + least) }
func above(most string) error  { return problem("is above the most, " + most) }

func durations(least, most time.Duration) kind[time.Duration] {
	return kind[time.Duration]{
		parse: func(text string) (time.Duration, error) {
			d, err := ParseDuration(text)
			switch {
			case err != nil:
				return 0, err
			case d < least:
				return 0, below(FormatDuration(least))
			case d > most:
				return 0, above(FormatDuration(most))
			}
			return d, nil
		},
		format: FormatDuration,
		bounds: FormatDuration(least) + "–" + FormatDuration(most),
	}
}

func counts(least, most int) kind[int] {
	return kind[int]{
		parse: func(text string) (int, error) {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			switch {
			case err != nil:
				return 0, problem("is not a whole number")
			case n < least:
				return 0, below(strconv.Itoa(least))
			case n > most:
				return 0, above(strconv.Itoa(most))
			}
			return n, nil
		},
		format: strconv.Itoa,
		bounds: fmt.Sprintf("%d–%d", least, most),
	}
}

func sizes(least, most Size) kind[Size] {
	return kind[Size]{
		parse: func(text string) (Size, error) {
			n, err := ParseSize(text)
			switch {
			case err != nil:
				return 0, err
			case n < least:
				return 0, below(least.String())
			case n > most:
				return 0, above(most.String())
			}
			return n, nil
		},
		format: Size.String,
		bounds: least.String() + "–" + most.String(),
	}
}

func shares(most float64) kind[float64] {
	format := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	return kind[float64]{
		parse: func(text string) (float64, error) {
			v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			switch {
			case err != nil || math.IsNaN(v):
				return 0, problem("is not a number such as 0.5")
			case v < 0:
				return 0, below("0")
			case v > most:
				return 0, above(format(most))
			}
			return v, nil
		},
		format: format,
		bounds: "0–" + format(most),
	}
}

func switches() kind[bool] {
	return kind[bool]{
		parse: func(text string) (bool, error) {
			switch strings.ToLower(strings.TrimSpace(text)) {
			case "true":
				return true, nil
			case "false":
				return false, nil
			}
			return false, problem("is neither true nor false")
		},
		format: strconv.FormatBool,
		bounds: "true, false",
	}
}

func words[T ~string](legal ...T) kind[T] {
	names := make([]string, len(legal))
	for i, w := range legal {
		names[i] = string(w)
	}
	list := strings.Join(names, ", ")
	return kind[T]{
		parse: func(text string) (T, error) {
			if !slices.Contains(legal, T(text)) {
				return "", problem("is not one of " + list)
			}
			return T(text), nil
		},
		format: func(w T) string { return string(w) },
		bounds: list,
	}
}

func rates() kind[Rate] {
	return kind[Rate]{
		parse: func(text string) (Rate, error) {
			r, err := ParseRate(text)
			if err == nil && r == 0 {
				err = problem("would never ask the upstream; a rate is more than 0")
			}
			return r, err
		},
		format: Rate.String,
		bounds: "more than 0, up to 1000000/s",
	}
}

func limits() kind[Limit] {
	return kind[Limit]{parse: ParseLimit, format: Limit.String, bounds: "0 (no limit) – 1000000/s"}
}

// maxNames bounds a list of names; the file's own bound comes first.
const maxNames = 50_000

// domainNames is a list of names of domains. Whether each is one is checked with the whole.
func domainNames() kind[[]string] {
	return kind[[]string]{
		parse: func(text string) ([]string, error) {
			var list []string
			for entry := range strings.SplitSeq(text, ",") {
				if entry = strings.TrimSpace(entry); entry != "" {
					list = append(list, entry)
				}
			}
			if len(list) > maxNames {
				return nil, problem(fmt.Sprintf("has more than %d entries", maxNames))
			}
			return list, nil
		},
		format: func(list []string) string { return strings.Join(list, ",") },
		bounds: fmt.Sprintf("domains, as a list or with commas; up to %d", maxNames),
	}
}

// Events are what a callback may be told.
var Events = []string{"review.settled", "review.dead"}

func events() kind[[]string] {
	names := domainNames()
	return kind[[]string]{
		parse: func(text string) ([]string, error) {
			list, err := names.parse(text)
			for _, e := range list {
				if !slices.Contains(Events, e) {
					return nil, problem("names an event that there is not")
				}
			}
			if err == nil && len(list) == 0 {
				return nil, problem("names no event")
			}
			return list, err
		},
		format: names.format,
		bounds: strings.Join(Events, ", ") + "; as a list or with commas",
	}
}

// maxText bounds a URL or a path.
const maxText = 2048

// urls takes the empty text, too: that one is needed is checked with the whole.
func urls() kind[string] {
	return kind[string]{
		parse: func(text string) (string, error) {
			u, err := url.Parse(text)
			switch {
			case text == "":
				return "", nil
			case err != nil || u.Hostname() == "" || len(text) > maxText:
				return "", problem("is not a URL; write it as https://example.com/hooks/email")
			case u.Scheme != "https" && u.Scheme != "http":
				return "", problem("is not https")
			case u.User != nil || u.Fragment != "":
				return "", problem("has a user or a fragment; messages are signed, so it needs neither")
			}
			return text, nil
		},
		format: func(text string) string { return text },
		bounds: "https, or http with allow_private",
	}
}

// hostOnly is a URL without what may be a secret in it.
func hostOnly(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return "(not shown)"
	}
	shown := u.Scheme + "://" + u.Host
	if len(u.Path) > 1 || u.RawQuery != "" {
		shown += "/…"
	}
	return shown
}

func paths() kind[string] {
	return kind[string]{
		parse: func(text string) (string, error) {
			if len(text) > maxText {
				return "", problem("is not the path of a file")
			}
			return text, nil
		},
		format: func(text string) string { return text },
		bounds: "path of a file",
	}
}

// Brief shortens a value for people: a list of thousands does not belong into a log line.
func Brief(value string) string {
	const most = 120
	r := []rune(value)
	if len(r) <= most {
		return value
	}
	if n := strings.Count(value, ","); n > 0 {
		return fmt.Sprintf("%s… (%d entries)", string(r[:most]), n+1)
	}
	return string(r[:most]) + "…"
}
