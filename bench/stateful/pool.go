package stateful

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Pool is consecutive addresses of one family, and, for clients, a range of ports for each.
type Pool struct {
	First, Last         netip.Addr
	FirstPort, LastPort uint16 // inclusive
}

// ParsePool reads "FIRST-LAST" or one address, and "FIRST-LAST" ports or none.
func ParsePool(addresses, ports string) (p Pool, err error) {
	first, last, several := strings.Cut(addresses, "-")
	if !several {
		last = first
	}
	if p.First, err = netip.ParseAddr(strings.TrimSpace(first)); err != nil {
		return p, fmt.Errorf("addresses %q: %w; write FIRST-LAST", addresses, err)
	}
	if p.Last, err = netip.ParseAddr(strings.TrimSpace(last)); err != nil {
		return p, fmt.Errorf("addresses %q: %w; write FIRST-LAST", addresses, err)
	}
	if p.First.Is6() != p.Last.Is6() || p.Last.Less(p.First) || p.Len() < 1 || p.Len() > maxPool {
		return p, fmt.Errorf("addresses %q: write FIRST-LAST of one family, at most %d", addresses, maxPool)
	}
	if ports == "" {
		return p, nil
	}
	first, last, several = strings.Cut(ports, "-")
	if !several {
		last = first
	}
	low, err1 := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	high, err2 := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if err1 != nil || err2 != nil || low < 1 || high < low {
		return p, fmt.Errorf("ports %q: write FIRST-LAST, 1 to 65535", ports)
	}
	p.FirstPort, p.LastPort = uint16(low), uint16(high)
	return p, nil
}

// Is6 reports whether the pool is IPv6.
func (p *Pool) Is6() bool { return p.First.Is6() }

// Len counts the addresses; -1 if there are more than a 32-bit int holds.
func (p *Pool) Len() int {
	if !p.First.IsValid() {
		return 0
	}
	a, b := p.First.As16(), p.Last.As16()
	if [12]byte(a[:12]) != [12]byte(b[:12]) {
		return -1
	}
	return int(uint64(binary.BigEndian.Uint32(b[12:])) - uint64(binary.BigEndian.Uint32(a[12:])) + 1)
}

// At returns the i-th address, from 0.
func (p *Pool) At(i int) netip.Addr {
	b := p.First.As16()
	binary.BigEndian.PutUint32(b[12:], binary.BigEndian.Uint32(b[12:])+uint32(i))
	a := netip.AddrFrom16(b)
	if !p.Is6() {
		return a.Unmap()
	}
	return a
}

// tuples counts addresses times ports.
func (p *Pool) tuples() int {
	if p.FirstPort == 0 {
		return 0
	}
	return p.Len() * (int(p.LastPort) - int(p.FirstPort) + 1)
}

// Prefix is the shortest prefix that contains the pool, for routes.
func (p *Pool) Prefix() netip.Prefix {
	for bits := p.First.BitLen(); ; bits-- {
		if prefix, _ := p.First.Prefix(bits); prefix.Contains(p.Last) {
			return prefix
		}
	}
}

// embed is the prefix in which To6 embeds IPv4 addresses (RFC 4193: locally assigned).
var embed = netip.MustParseAddr("fd51:1ce::")

// To6 is the pool with its IPv4 addresses as the last four bytes of IPv6 addresses.
func (p Pool) To6() Pool {
	p.First, p.Last = to6(p.First), to6(p.Last)
	return p
}

func to6(a netip.Addr) netip.Addr {
	if !a.Is4() {
		return a
	}
	b, v4 := embed.As16(), a.As4()
	copy(b[12:], v4[:])
	return netip.AddrFrom16(b)
}

// To6 is the profile with all its addresses converted to IPv6.
func (p Profile) To6() Profile {
	p.Clients, p.Servers, p.VIP = p.Clients.To6(), p.Servers.To6(), to6(p.VIP)
	return p
}
