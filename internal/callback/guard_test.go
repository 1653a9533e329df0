package callback

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

func TestAllowed(t *testing.T) {
	t.Parallel()
	const public, private, never = "public", "private", "never"
	for _, c := range []struct{ is, address, what string }{
		{public, "93.184.216.34", "a public one"},
		{public, "1.1.1.1", "a public one"},
		{public, "223.255.255.254", "the last before multicast"},
		{public, "172.32.0.1", "behind 172.16/12"},
		{public, "100.63.255.255", "before CGNAT"},
		{public, "100.128.0.0", "behind CGNAT"},
		{public, "198.20.0.1", "behind benchmarking"},
		{public, "2606:2800:220:1:248:1893:25c8:1946", "a public one"},
		{public, "2001:4860:4860::8888", "behind 2001::/23"},
		{public, "::ffff:93.184.216.34", "v4-mapped"},
		{public, "64:ff9b::5db8:d822", "NAT64 of 93.184.216.34"},
		{public, "2002:5db8:d822::1", "6to4 of 93.184.216.34"},

		{private, "127.0.0.1", "loopback"},
		{private, "127.255.0.7", "loopback"},
		{private, "::1", "loopback"},
		{private, "::ffff:127.0.0.1", "v4-mapped loopback"},
		{private, "10.0.0.1", "RFC 1918"},
		{private, "172.16.0.1", "RFC 1918"},
		{private, "172.31.255.255", "RFC 1918"},
		{private, "192.168.1.1", "RFC 1918"},
		{private, "::ffff:192.168.1.1", "v4-mapped RFC 1918"},
		{private, "fd12:3456::1", "unique local"},
		{private, "fc00::1", "unique local"},
		{private, "100.64.0.1", "CGNAT"},
		{private, "100.127.255.254", "CGNAT"},
		{private, "64:ff9b::a00:1", "NAT64 of 10.0.0.1"},
		{private, "2002:7f00:1::", "6to4 of 127.0.0.1"},

		{never, "169.254.169.254", "a cloud's credentials"},
		{never, "fe80::1%eth0", "link-local"},
		{never, "::ffff:169.254.169.254", "v4-mapped link-local"},
		{never, "64:ff9b::a9fe:a9fe", "NAT64 of link-local"},
		{never, "fd00:ec2::254", "a cloud's credentials"},
		{never, "100.100.100.200", "a cloud's credentials"},
		{never, "0.0.0.0", "unspecified"},
		{never, "0.1.2.3", "this network"},
		{never, "::", "unspecified"},
		{never, "::127.0.0.1", "v4-compatible, deprecated"},
		{never, "224.0.0.1", "multicast"},
		{never, "239.255.255.255", "multicast"},
		{never, "ff02::1", "multicast"},
		{never, "255.255.255.255", "broadcast"},
		{never, "240.0.0.1", "reserved"},
		{never, "192.0.2.1", "documentation"},
		{never, "198.51.100.7", "documentation"},
		{never, "203.0.113.9", "documentation"},
		{never, "2001:db8::1", "documentation"},
		{never, "3fff::1", "documentation"},
		{never, "192.0.0.8", "protocol assignments"},
		{never, "192.88.99.1", "6to4 relays, deprecated"},
		{never, "198.18.0.1", "benchmarking"},
		{never, "2001::1", "Teredo"},
		{never, "2001:10::1", "ORCHID"},
		{never, "100::1", "discard-only"},
		{never, "64:ff9b:1::1", "local NAT64"},
		{never, "5f00::1", "segment routing"},
		{never, "fec0::1", "site-local, deprecated"},
	} {
		a := netip.MustParseAddr(c.address)
		if got, want := allowed(a, false), c.is == public; got != want {
			t.Errorf("allowed(%s, %s) = %v, want %v", c.address, c.what, got, want)
		}
		if got, want := allowed(a, true), c.is != never; got != want {
			t.Errorf("allowed(%s, %s) with allow_private = %v, want %v", c.address, c.what, got, want)
		}
	}
	if allowed(netip.Addr{}, true) {
		t.Error("no address at all is allowed")
	}
}

func TestGuardRefusesWhatIsNoAddress(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "localhost:80", "/var/run/socket", "1.1.1.1"} {
		if err := guard(true)(t.Context(), "tcp", address, nil); !errors.Is(err, ErrForbidden) {
			t.Errorf("guard(%q) = %v, want ErrForbidden", address, err)
		}
	}
}

// A name that leads to a public address when somebody looks, and to this machine when it is connected to.
func TestRebinding(t *testing.T) {
	t.Parallel()
	var asked, hit atomic.Int32
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hit.Add(1) }))
	defer target.Close()
	_, port, _ := net.SplitHostPort(target.Listener.Addr().String())
	resolver := resolving(func() netip.Addr {
		if asked.Add(1) == 1 {
			return netip.MustParseAddr("93.184.216.34")
		}
		return netip.MustParseAddr("127.0.0.1")
	})
	looked, err := resolver.LookupNetIP(t.Context(), "ip4", "rebind.test.")
	if err != nil || len(looked) != 1 || !allowed(looked[0], false) {
		t.Fatalf("the first look = %v, %v, want a public address", looked, err)
	}
	post := func(private bool) error {
		res, err := newClient(private, resolver).Post("http://rebind.test.:"+port, "", strings.NewReader("{}"))
		if err == nil {
			res.Body.Close()
		}
		return err
	}
	if err := post(false); !errors.Is(err, ErrForbidden) || hit.Load() != 0 {
		t.Errorf("the post = %v and %d requests, want ErrForbidden and none", err, hit.Load())
	}
	if err := post(true); err != nil || hit.Load() != 1 {
		t.Errorf("the post with allow_private = %v and %d requests, want one", err, hit.Load())
	}
}

// resolving returns a resolver that answers each question for an IPv4 address with next, and others with nothing.
func resolving(next func() netip.Addr) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			buf := make([]byte, 1024)
			for { // a stream: two bytes of length before each message
				if _, err := theirs.Read(buf[:2]); err != nil {
					return
				}
				n, err := theirs.Read(buf)
				var m dnsmessage.Message
				if err != nil || m.Unpack(buf[:n]) != nil {
					return
				}
				m.Response, m.Additionals = true, nil
				if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
					m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1},
						Body: &dnsmessage.AResource{A: next().As4()}}}
				}
				out, _ := m.Pack()
				if _, err := theirs.Write(append([]byte{byte(len(out) >> 8), byte(len(out))}, out...)); err != nil {
					return
				}
			}
		}()
		return ours, nil
	}}
}
