package simulator

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Fault is what is wrong with the upstream as a whole.
type Fault string

// The faults. All but Healthy, Slow and Drip replace the answer of every call, whatever its parameters.
const (
	Healthy  Fault = "healthy"
	Slow     Fault = "slow"     // every answer, errors too, takes the mode's latency; 2 s if it has none
	Hang     Fault = "hang"     // no answer until the client leaves or Config.MaxHang is over
	Reset    Fault = "reset"    // the request is read, then the connection is reset
	Drip     Fault = "drip"     // answers 200 come byte by byte
	Error500 Fault = "error500" // HTTP 500
	Error503 Fault = "error503" // HTTP 503
	Throttle Fault = "throttle" // HTTP 429
	Quota    Fault = "quota"    // HTTP 403, as when the quota is used up
	Auth     Fault = "auth"     // HTTP 401, as when the key is revoked
	Garbage  Fault = "garbage"  // HTTP 200 with, in turn for each address: an HTML page, cut JSON, nothing
)

// Faults lists every fault.
var Faults = []Fault{Healthy, Slow, Hang, Reset, Drip, Error500, Error503, Throttle, Quota, Auth, Garbage}

// byStatus are the names that scripts may use instead.
var byStatus = map[string]Fault{"401": Auth, "403": Quota, "429": Throttle, "500": Error500, "503": Error503}

// ParseFault reads the name of a fault, or the status code that it answers (401, 403, 429, 500, 503).
func ParseFault(text string) (Fault, error) {
	if f, ok := byStatus[text]; ok {
		return f, nil
	}
	names := make([]string, len(Faults))
	for i, f := range Faults {
		if text == string(f) {
			return f, nil
		}
		names[i] = string(f)
	}
	return "", fmt.Errorf("unknown mode %q: one of %s", text, strings.Join(names, ", "))
}

// Mode is a fault and its particulars. The zero value is healthy.
type Mode struct {
	// Fault; empty means Healthy.
	Fault Fault
	// P50 and P99 are the latency of every answer, errors too, in place of Config's. 0: as Config says.
	P50, P99 time.Duration
	// RetryAfter is what a 429 or 503 hints, rounded up to whole seconds. 0: no hint.
	RetryAfter time.Duration
	// Hint is the form of that hint. Empty means HintSeconds.
	Hint Hint
	// Share is the part of the calls that the mode befalls, the others find the upstream healthy: more than 0, at
	// most 1. 0 means all.
	Share float64
}

// String writes the mode as a script does.
func (m Mode) String() string {
	var b strings.Builder
	b.WriteString(string(m.fault()))
	if m.P50 > 0 {
		fmt.Fprintf(&b, " p50=%v", m.P50)
	}
	if m.P99 > 0 {
		fmt.Fprintf(&b, " p99=%v", m.P99)
	}
	if m.RetryAfter > 0 {
		fmt.Fprintf(&b, " retry-after=%v", m.RetryAfter)
	}
	if m.Hint != "" {
		fmt.Fprintf(&b, " hint=%s", m.Hint)
	}
	if m.Share > 0 {
		fmt.Fprintf(&b, " share=%v", m.Share)
	}
	return b.String()
}

func (m Mode) fault() Fault {
	if m.Fault == "" {
		return Healthy
	}
	return m.Fault
}

func (m Mode) check() error {
	fault, err := ParseFault(string(m.fault()))
	if err != nil {
		return err
	}
	if err := checkLatency(m.P50, m.P99); err != nil {
		return fmt.Errorf("mode %s: %w", fault, err)
	}
	switch _, err := ParseHint(string(m.Hint)); {
	case err != nil:
		return err
	case fault == Hang && m.P50 > 0:
		return errors.New("mode hang: takes no latency")
	case m.RetryAfter < 0 || m.RetryAfter > maxHintSeconds*time.Second:
		return fmt.Errorf("mode %s: retry-after: 0 to %d seconds", fault, maxHintSeconds)
	case m.RetryAfter > 0 && fault != Throttle && fault != Error503:
		return fmt.Errorf("mode %s: retry-after is for throttle and error503", fault)
	case m.Hint != "" && m.Hint != HintNone && m.RetryAfter == 0:
		return fmt.Errorf("mode %s: hint needs retry-after", fault)
	case !(m.Share >= 0 && m.Share <= 1):
		return fmt.Errorf("mode %s: share: more than 0, at most 1", fault)
	}
	return nil
}

func (m Mode) setHint(header http.Header, now time.Time) {
	switch {
	case m.RetryAfter == 0:
	case m.Hint == "":
		HintSeconds.set(header, now, m.RetryAfter)
	default:
		m.Hint.set(header, now, m.RetryAfter)
	}
}

// optionName is the one spelling of an option's name: underscores are hyphens, latency is p50.
func optionName(name string) string {
	if name == "latency" {
		return "p50"
	}
	return strings.ReplaceAll(name, "_", "-")
}

// option sets one particular from its text.
func (m *Mode) option(name, text string) (err error) {
	switch optionName(name) {
	case "p50":
		m.P50, err = time.ParseDuration(text)
	case "p99":
		m.P99, err = time.ParseDuration(text)
	case "retry-after":
		var seconds int64
		if seconds, err = strconv.ParseInt(text, 10, 32); err == nil {
			m.RetryAfter = time.Duration(seconds) * time.Second
		} else {
			m.RetryAfter, err = time.ParseDuration(text)
		}
	case "hint":
		m.Hint, err = ParseHint(text)
		return err
	case "share":
		m.Share, err = strconv.ParseFloat(text, 64)
		if err == nil && m.Share == 0 {
			return errors.New("share: more than 0, at most 1")
		}
	default:
		return fmt.Errorf("unknown option %q: one of p50, p99, latency, retry-after, hint, share", name)
	}
	if err != nil {
		return fmt.Errorf("option %s: %q is not a value for it", name, text)
	}
	return nil
}

// Phase is a mode that holds for a time. For 0 means for ever; only the last phase may say so.
type Phase struct {
	Mode Mode
	For  time.Duration
}

// Script is a sequence of phases. After the last one the upstream is healthy; the empty script is healthy throughout.
type Script []Phase

// ParseScript reads phases separated by commas, such as
//
//	healthy 30s, hang 60s, 429 30s retry-after=5, slow 1m p50=800ms p99=3s, error500 share=0.5
//
// A phase is a mode (a Fault, or 401, 403, 429, 500, 503), a duration as Go writes it, and options: p50, p99, latency
// (the same as p50), retry-after (seconds, or a duration), hint (a Hint), share (0 to 1). Only the last phase may
// have no duration: it lasts for ever. Empty text is the empty script.
func ParseScript(text string) (Script, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var script Script
	for part := range strings.SplitSeq(text, ",") {
		p, err := parsePhase(strings.Fields(part))
		if err != nil {
			return nil, fmt.Errorf("phase %d: %w", len(script)+1, err)
		}
		script = append(script, p)
	}
	return script, script.check()
}

func parsePhase(words []string) (Phase, error) {
	if len(words) == 0 {
		return Phase{}, errors.New("nothing between the commas")
	}
	fault, err := ParseFault(words[0])
	if err != nil {
		return Phase{}, err
	}
	p := Phase{Mode: Mode{Fault: fault}}
	seen := make(map[string]bool)
	for i, word := range words[1:] {
		name, text, isOption := strings.Cut(word, "=")
		switch {
		case isOption && seen[optionName(name)]:
			return Phase{}, fmt.Errorf("option %s: given twice", optionName(name))
		case isOption:
			seen[optionName(name)] = true
			if err := p.Mode.option(name, text); err != nil {
				return Phase{}, err
			}
		case i > 0:
			return Phase{}, fmt.Errorf("%q: want name=value", word)
		default:
			if p.For, err = time.ParseDuration(word); err != nil || p.For <= 0 {
				return Phase{}, fmt.Errorf("%q is not a duration (such as 30s or 5m)", word)
			}
		}
	}
	return p, nil
}

func (s Script) check() error {
	for i, p := range s {
		switch err := p.Mode.check(); {
		case err != nil:
			return fmt.Errorf("phase %d: %w", i+1, err)
		case p.For < 0:
			return fmt.Errorf("phase %d: a duration below 0", i+1)
		case p.For == 0 && i < len(s)-1:
			return fmt.Errorf("phase %d: only the last phase may have no duration", i+1)
		}
	}
	return nil
}

// At is the mode so long after the script began. A phase holds from its beginning, up to but without its end.
func (s Script) At(elapsed time.Duration) Mode {
	for _, p := range s {
		if p.For == 0 || elapsed < p.For {
			return p.Mode
		}
		elapsed -= p.For
	}
	return Mode{Fault: Healthy}
}

// String writes the script as ParseScript reads it.
func (s Script) String() string {
	parts := make([]string, len(s))
	for i, p := range s {
		parts[i] = p.Mode.String()
		if p.For > 0 {
			fault, options, _ := strings.Cut(parts[i], " ")
			parts[i] = strings.TrimSpace(fmt.Sprintf("%s %v %s", fault, p.For, options))
		}
	}
	return strings.Join(parts, ", ")
}
