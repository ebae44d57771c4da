package neigh

import (
	"maps"
	"math/bits"
	"net"
	"net/netip"
	"slices"

	"sluice.dev/sluice/nat/header"
)

// sources has the possible source addresses of each interface, in the kernel's order.
type sources map[string][]netip.Prefix

func sourcesOf(addresses []Address) sources {
	s := make(sources)
	for _, a := range addresses {
		if a.Global && a.Usable && !a.Secondary {
			s[a.Interface] = append(s[a.Interface], a.Prefix)
		}
	}
	return s
}

// pick returns the source for a route to prefix by a device, through the gateway via if that is not
// zero; the zero address if there is none.
//
// preferred is the route's own source (RTA_PREFSRC). Without it pick chooses as MASQUERADE does.
// IPv4: the first address whose network has the next hop, or else the first address
// (net/ipv4/devinet.c, inet_select_addr). IPv6: the address with the most leading bits in common
// with the destination (RFC 6724 section 5, rule 8). Of the earlier rules only those about scope
// and state make a difference within one interface, and sourcesOf has applied them, except for rule
// 6, which gives the same result for unique local and global addresses.
//
// pick uses the first address of the prefix as the destination. For other addresses of a short
// prefix, such as the default route's, the kernel may choose another source.
func (s sources) pick(device string, prefix netip.Prefix, via header.Addr, preferred net.IP) header.Addr {
	if a, ok := netip.AddrFromSlice(preferred); ok {
		if a = a.Unmap(); a.Is4() == prefix.Addr().Is4() && a.IsGlobalUnicast() {
			return header.AddrFrom(a)
		}
	}
	to := prefix.Addr()
	if to.Is4() && via.Is4() {
		to = via.Netip()
	}
	best, most := header.Addr{}, -1
	for _, own := range s[device] {
		if own.Addr().Is4() != to.Is4() {
			continue
		}
		if n := matchBits(own, to); n > most {
			best, most = header.AddrFrom(own.Addr()), n
		}
	}
	return best
}

// matchBits returns how well an own address matches a destination; more is better.
func matchBits(own netip.Prefix, to netip.Addr) int {
	if !to.Is4() {
		return min(commonBits(own.Addr().As16(), to.As16()), own.Bits())
	}
	if own.Contains(to) {
		return 1
	}
	return 0
}

// commonBits returns the number of equal leading bits.
func commonBits(a, b [16]byte) (n int) {
	for i := range a {
		if x := a[i] ^ b[i]; x != 0 {
			return n + bits.LeadingZeros8(x)
		}
		n += 8
	}
	return n
}

// all returns the sorted sources of the routes by served links, and the links' primary addresses,
// which do not depend on routes.
func (s sources) all(targets map[netip.Prefix]target, devices map[int]device) []netip.Addr {
	set := make(map[header.Addr]struct{})
	for _, t := range targets {
		set[t.source] = struct{}{}
	}
	for _, d := range devices {
		if d.link != noLink {
			for _, anywhere := range [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
				set[s.pick(d.name, netip.PrefixFrom(anywhere, 0), header.Addr{}, nil)] = struct{}{}
			}
		}
	}
	delete(set, header.Addr{})
	list := make([]netip.Addr, 0, len(set))
	for a := range maps.Keys(set) {
		list = append(list, a.Netip())
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}
