package bgp

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linkLocal returns the link-local address of the only router behind an interface. If none is
// known, it solicits neighbours, and a later call may find one.
func linkLocal(name string) (netip.Addr, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("interface %s: %w", name, err)
	}
	entries, err := netlink.NeighList(i.Index, netlink.FAMILY_V6)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("neighbours of interface %s: %w", name, err)
	}
	var found []netip.Addr
	for _, n := range entries {
		a, ok := netip.AddrFromSlice(n.IP)
		if !ok || !a.IsLinkLocalUnicast() || n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) != 0 ||
			slices.Contains(found, a) {
			continue
		}
		found = append(found, a)
	}
	switch len(found) {
	case 1:
		return found[0].WithZone(name), nil
	case 0:
		err := fmt.Errorf("interface %s: no neighbour answers; is IPv6 on, at both ends?", name)
		if asked := askNeighbours(i.Index); asked != nil {
			err = fmt.Errorf("%w (%w)", err, asked)
		}
		return netip.Addr{}, err
	}
	return netip.Addr{}, fmt.Errorf("interface %s: %d neighbours, %v: the link of an unnumbered peer must have no "+
		"other neighbour; set the router's address instead", name, len(found), found)
}

// askNeighbours sends an echo request to all nodes of a link (RFC 4291, section 2.7.1). Before a
// node answers, it resolves this node's address, and that solicitation has the node's own address,
// which the kernel learns (RFC 4861, section 7.2.3).
func askNeighbours(index int) error {
	// An ICMP socket is allowed for groups in net.ipv4.ping_group_range; others need CAP_NET_RAW.
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6); err != nil {
			return fmt.Errorf("asking for neighbours needs CAP_NET_RAW: %w", err)
		}
	}
	defer unix.Close(fd)
	request := [8]byte{128} // type, code, checksum by the kernel, identifier, sequence (RFC 4443, section 4.1)
	to := &unix.SockaddrInet6{Addr: [16]byte{0xff, 0x02, 15: 1}, ZoneId: uint32(index)}
	if err := unix.Sendto(fd, request[:], unix.MSG_DONTWAIT, to); err != nil {
		return fmt.Errorf("ask for neighbours: %w", err)
	}
	return nil
}
