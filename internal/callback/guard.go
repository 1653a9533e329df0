package callback

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"
)

// ErrForbidden: the target's name leads to an address that this callback may not reach.
var ErrForbidden = errors.New("target is in a private or special network; allow_private permits private ones")

// special are the networks beside those that netip names which are no place of the public internet: IANA's special-purpose
// registries for IPv4 and IPv6 (RFC 6890 and its successors), as of 2026.
var special = prefixes(
	"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24",
	"203.0.113.0/24", "240.0.0.0/4",
	"2001::/23", "2001:db8::/32", "3fff::/20",
)

// never are addresses in private networks under which clouds give away credentials. Those of most are link-local.
var never = prefixes("100.100.100.200/32", "fd00:ec2::254/128")

var (
	shared = netip.MustParsePrefix("100.64.0.0/10") // RFC 6598, between a provider and its customers
	// Addresses that carry an IPv4 address are judged by what they carry.
	nat64  = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052
	sixTo4 = netip.MustParsePrefix("2002::/16")    // RFC 3056
	// globalUnicast is all that IANA has given out for it (RFC 4291, section 2.4, and the registry).
	globalUnicast = netip.MustParsePrefix("2000::/3")
)

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		list[i] = netip.MustParsePrefix(t)
	}
	return list
}

// allowed says whether a callback may reach an address: one of the public internet or, with private, of a private network or
// this machine. Link-local ones, where clouds keep credentials, are never allowed.
func allowed(a netip.Addr, private bool) bool {
	a = a.Unmap().WithZone("")
	in := func(p netip.Prefix) bool { return p.Contains(a) }
	switch b := a.As16(); {
	case nat64.Contains(a):
		return allowed(netip.AddrFrom4([4]byte(b[12:16])), private)
	case sixTo4.Contains(a):
		return allowed(netip.AddrFrom4([4]byte(b[2:6])), private)
	case slices.ContainsFunc(never, in):
		return false
	case a.IsLoopback(), a.IsPrivate(), shared.Contains(a):
		return private
	case a.IsLinkLocalUnicast(), a.IsMulticast(), slices.ContainsFunc(special, in):
		return false
	}
	return a.Is4() || globalUnicast.Contains(a)
}

// guard refuses connections to addresses that are not allowed. It sees the address that is connected to, after the name
// was resolved: a name that resolves differently the second time gains nothing.
func guard(private bool) func(_ context.Context, network, address string, _ syscall.RawConn) error {
	return func(_ context.Context, _, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || !allowed(at.Addr(), private) {
			return ErrForbidden
		}
		return nil
	}
}
