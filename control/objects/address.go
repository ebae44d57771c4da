package objects

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"

	"sluice.dev/sluice/nat/header"
)

// errFamily: the address is not of the object's address family.
var errFamily = errors.New("is of the other address family")

// parseAddr parses an address of a Kubernetes object. Leading zeros in IPv4 addresses are ignored,
// as Kubernetes has always done: they do not mean octal.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		if a, err = netip.ParseAddr(trimZeros(s)); err != nil {
			return netip.Addr{}, errors.New("is not an IP address")
		}
	}
	if a.Zone() != "" {
		return netip.Addr{}, errors.New("has a zone")
	}
	if a.Is4In6() {
		return netip.Addr{}, errors.New("is an IPv4-mapped IPv6 address")
	}
	return a, nil
}

func trimZeros(s string) string {
	octets := strings.Split(s, ".")
	if len(octets) != 4 {
		return s
	}
	for i, o := range octets {
		if t := strings.TrimLeft(o, "0"); t != "" || o == "" {
			octets[i] = t
		} else {
			octets[i] = "0"
		}
	}
	return strings.Join(octets, ".")
}

// parsePrefix parses a CIDR of a Kubernetes object. It ignores surrounding white space, host bits
// and leading zeros.
func parsePrefix(s string) (netip.Prefix, error) {
	host, bits, found := strings.Cut(strings.TrimSpace(s), "/")
	n, err := strconv.ParseUint(bits, 10, 8)
	if !found || err != nil {
		return netip.Prefix{}, errors.New("is not a CIDR")
	}
	a, err := parseAddr(host)
	if err != nil {
		return netip.Prefix{}, err
	}
	p := netip.PrefixFrom(a, int(n))
	if !p.IsValid() {
		return netip.Prefix{}, errors.New("is not a CIDR")
	}
	return p.Masked(), nil
}

// unicast returns why no packet can be sent to an address of any field; nil if one can.
func unicast(a netip.Addr) error {
	switch {
	case a.IsUnspecified():
		return errors.New("is the unspecified address")
	case a.IsLoopback():
		return errors.New("is a loopback address")
	case a.IsLinkLocalUnicast():
		return errors.New("is a link-local address")
	case a.IsMulticast():
		return errors.New("is a multicast address")
	case a.Is4() && a.As4()[0] == 0:
		return errors.New("is in 0.0.0.0/8, this network (RFC 1122 section 3.2.1.3)")
	case a.Is6() && netip.PrefixFrom(netip.IPv6Unspecified(), 96).Contains(a):
		return errors.New("is in ::/96, the deprecated IPv4-compatible addresses (RFC 4291 section 2.5.5.1)")
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}): // the rest of 240.0.0.0/4 Linux routes, and clusters use it
		return errors.New("is the limited broadcast address (RFC 919 section 7)")
	}
	return nil
}

// servable parses an address of one family, and returns an error if it cannot be served.
func servable(s string, v6 bool) (header.Addr, error) {
	a, err := parseAddr(s)
	if err != nil {
		return header.Addr{}, err
	}
	if a.Is6() != v6 {
		return header.Addr{}, errFamily
	}
	if err := unicast(a); err != nil {
		return header.Addr{}, err
	}
	return header.AddrFrom(a), nil
}
