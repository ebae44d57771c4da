package topo

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Route adds a route of the host. Without a next hop all addresses of the prefix are the host's.
func (h *Host) Route(to netip.Prefix, via netip.Addr) error {
	r := &netlink.Route{Dst: ipNet(to), Gw: via.AsSlice()}
	if !via.IsValid() {
		const loopback = 1 // its index, in every namespace
		r.LinkIndex, r.Type, r.Table, r.Scope = loopback, unix.RTN_LOCAL, unix.RT_TABLE_LOCAL, netlink.SCOPE_HOST
	}
	return h.Run(func() error {
		if err := netlink.RouteAdd(r); err != nil {
			return fmt.Errorf("route %s via %s: %w", to, via, err)
		}
		return nil
	})
}

// Unplug removes an interface of the host at once and for good, as if its cable were cut: other
// hosts of the segment keep their carrier, and hear nothing more.
func (h *Host) Unplug(dev string) error {
	return h.Run(func() error {
		link, err := netlink.LinkByName(dev)
		if err != nil {
			return fmt.Errorf("%s: %w", dev, err)
		}
		if err := netlink.LinkDel(link); err != nil {
			return fmt.Errorf("remove %s: %w", dev, err)
		}
		return nil
	})
}

// Neighbour makes addresses on a device's link known for good.
func (h *Host) Neighbour(dev string, mac [6]byte, addresses ...netip.Addr) error {
	return h.Run(func() error {
		link, err := netlink.LinkByName(dev)
		if err != nil {
			return fmt.Errorf("%s: %w", dev, err)
		}
		for _, a := range addresses {
			n := &netlink.Neigh{LinkIndex: link.Attrs().Index, IP: a.AsSlice(), HardwareAddr: mac[:],
				State: netlink.NUD_PERMANENT}
			if err := netlink.NeighSet(n); err != nil {
				return fmt.Errorf("neighbour %s on %s: %w", a, dev, err)
			}
		}
		return nil
	})
}

// AddAddresses gives an interface of the host more addresses, which are valid at once.
func (h *Host) AddAddresses(dev string, prefixes ...netip.Prefix) error {
	return h.Run(func() error { return changeAddresses(netlink.AddrAdd, dev, prefixes) })
}

// RemoveAddresses is the reverse of AddAddresses.
func (h *Host) RemoveAddresses(dev string, prefixes ...netip.Prefix) error {
	return h.Run(func() error { return changeAddresses(netlink.AddrDel, dev, prefixes) })
}

// changeAddresses runs in a host's namespace.
func changeAddresses(change func(netlink.Link, *netlink.Addr) error, dev string, prefixes []netip.Prefix) error {
	link, err := netlink.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("%s: %w", dev, err)
	}
	for _, p := range prefixes {
		addr := &netlink.Addr{IPNet: ipNet(p)}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := change(link, addr); err != nil {
			return fmt.Errorf("%s: address %s: %w", dev, p, err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
