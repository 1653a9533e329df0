package normalize

import (
	"errors"
	"fmt"
	"strings"

	"validator-gw/internal/verdict"
)

// Rules are an operator's choices where the standards leave one. The zero value is the default, and what Parse
// goes by. Rules must not change while they are in use.
type Rules struct {
	// LongLocal lets local parts of more than 64 octets in (RFC 5321 4.5.3.1.1), up to what 254 octets for the
	// whole address leave to them. Such addresses exist, made by machines; many servers refuse them.
	LongLocal bool
	// TestDomains lets domains under .test in, which no resolver knows (RFC 6761 6.2): for test environments.
	TestDomains bool
	// TLDs are top-level domains to take as known beside those of the public suffix list that this program
	// was built with, for when one is delegated in between. As A-labels or U-labels, in any case, without a dot.
	TLDs []string
}

// Check returns every fault of the rules in one error, or nil. What is at fault would have no effect.
func (r Rules) Check() error {
	var faults []error
	for _, tld := range r.TLDs {
		name, reason := wireName(tld)
		switch {
		case reason != "":
			faults = append(faults, fmt.Errorf("top-level domain %q: %s", tld, reason))
		case strings.Contains(name, "."):
			faults = append(faults, fmt.Errorf("top-level domain %q: has more than one label", tld))
		case isDigits(name), len(name) > maxLabel:
			faults = append(faults, fmt.Errorf("top-level domain %q: no name that the root could have", tld))
		case isReserved(name):
			faults = append(faults, fmt.Errorf("top-level domain %q: reserved, no mail can go there", tld))
		}
	}
	return errors.Join(faults...)
}

// Parse returns the normalized address in raw. Its error is always a *Refusal, which may suggest an address
// that the same rules accept.
func (r Rules) Parse(raw string) (Address, error) {
	a, refusal := parser{rules: r, repairs: maxRepairs}.parse(raw)
	if refusal != nil {
		return Address{}, refusal
	}
	return a, nil
}

// Read is Parse that also tells what it did to the text. There are no Changes beside an error.
func (r Rules) Read(raw string) (Address, Changes, error) {
	a, err := r.Parse(raw)
	if err != nil {
		return Address{}, 0, err
	}
	return a, changesOf(raw), nil
}

// Parse returns the normalized address in raw by the zero Rules. Its error is always a *Refusal.
func Parse(raw string) (Address, error) { return Rules{}.Parse(raw) }

// knows says whether a top-level domain, as an A-label in lower case, is one of the operator's.
func (r Rules) knows(tld string) bool {
	for _, known := range r.TLDs {
		if isASCII(known) {
			if strings.EqualFold(known, tld) {
				return true
			}
		} else if name, reason := wireName(known); reason == "" && name == tld {
			return true
		}
	}
	return false
}

// allows returns why a host name of two labels or more is in no domain that takes mail, or nothing.
func (r Rules) allows(name string) verdict.Reason {
	tld := name[strings.LastIndexByte(name, '.')+1:]
	switch {
	case isReserved(tld):
		if tld != "test" || !r.TestDomains {
			return verdict.ReservedDomain
		}
	case !isDelegated(name, tld) && !r.knows(tld):
		return verdict.TLDUnknown
	}
	return ""
}
