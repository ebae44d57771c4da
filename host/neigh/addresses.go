package neigh

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Address is a local address of this node. It may accept node ports, and may be a source towards
// backends.
type Address struct {
	Interface string
	// Link is the position in the configuration of the interface, or of the device below its VLAN
	// tags; -1 if it is not served.
	Link      int
	Prefix    netip.Prefix // the address with the length of its network
	Global    bool         // scope global or site: not loopback, not link-local
	Secondary bool         // IPv4: not the first of its network on the interface; IPv6: temporary (RFC 8981)
	Usable    bool         // not tentative, duplicate or deprecated: usable as a source
}

func addressesOf(addrs []netlink.Addr, devices map[int]device) []Address {
	out := make([]Address, 0, len(addrs))
	for i := range addrs {
		a := &addrs[i]
		if a.IPNet == nil {
			continue
		}
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		d, ok := devices[a.LinkIndex]
		if !ok {
			continue
		}
		bits, _ := a.Mask.Size()
		out = append(out, Address{
			Interface: d.name,
			Link:      d.link,
			Prefix:    netip.PrefixFrom(ip.Unmap(), bits),
			Global:    a.Scope < unix.RT_SCOPE_LINK && !ip.IsLoopback(),
			Secondary: a.Flags&unix.IFA_F_SECONDARY != 0,
			Usable:    a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED|unix.IFA_F_DEPRECATED) == 0,
		})
	}
	// The sort must be stable: the kernel's order within an interface determines the primary
	// address.
	slices.SortStableFunc(out, func(a, b Address) int { return strings.Compare(a.Interface, b.Interface) })
	return out
}

// Addresses returns the node's addresses on all interfaces at the last reading, sorted by
// interface. The caller must not modify the slice.
func (m *Mirror) Addresses() []Address {
	if p := m.addresses.Load(); p != nil {
		return *p
	}
	return nil
}

// Sources returns the sorted source addresses of packets on served links: the Source of each Route,
// and the primary addresses of the links. The caller must not modify the slice.
func (m *Mirror) Sources() []netip.Addr {
	if p := m.sources.Load(); p != nil {
		return *p
	}
	return nil
}

// AddressesChanged returns a channel that has a value after Addresses or Sources changed. Several
// changes without a receive make one value.
func (m *Mirror) AddressesChanged() <-chan struct{} { return m.addressesChanged }

func (m *Mirror) setAddresses(now []Address) {
	if slices.Equal(now, m.Addresses()) && m.addresses.Load() != nil {
		return
	}
	m.addresses.Store(&now)
	m.addressesChanged.Raise()
}

func (m *Mirror) setSources(now []netip.Addr) {
	if slices.Equal(now, m.Sources()) {
		return
	}
	m.sources.Store(&now)
	m.addressesChanged.Raise()
}
