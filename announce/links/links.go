// Package links finds the interfaces of this node that a gateway does not serve. A gateway serves
// the interfaces in its configuration, and related interfaces: interfaces that the kernel derives
// from their packets, and those whose packets the kernel passes to them:
//
//	eth0.100, macvlan0 ──parent──▶ eth0       served, if eth0 is
//	bond0, br0 ◀──master── eth0, eth1         served, if a port is; a port is, if its master is
//
// An interface of a kind with unknown relations (Open vSwitch, tunnels) counts as served: VIPs are
// not announced on interfaces that are not served, so a wrong answer would withdraw VIPs.
package links

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link is an interface.
type Link struct {
	Name     string
	Index    int
	Kind     string // IFLA_INFO_KIND of rtnetlink(7); device: none, such as a NIC
	Parent   int    // IFLA_LINK, the index of another interface of this namespace; 0: none
	Master   int    // IFLA_MASTER, the index of its bridge or bond; 0: none
	Loopback bool
	Hardware net.HardwareAddr
	Networks []netip.Prefix // its addresses with their masks, except link-local ones
}

// List returns the interfaces of this namespace. It takes two requests to the kernel, regardless of
// their number.
func List() ([]Link, error) {
	all, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("interfaces: %w", err)
	}
	addresses, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("addresses: %w", err)
	}
	networks := map[int][]netip.Prefix{}
	for i := range addresses {
		a, ok := netip.AddrFromSlice(addresses[i].IP)
		if bits, _ := addresses[i].Mask.Size(); ok && !a.Unmap().IsLinkLocalUnicast() {
			at := addresses[i].LinkIndex
			networks[at] = append(networks[at], netip.PrefixFrom(a.Unmap(), bits))
		}
	}
	list := make([]Link, 0, len(all))
	for _, l := range all {
		a := l.Attrs()
		n := Link{Name: a.Name, Index: a.Index, Kind: l.Type(), Master: a.MasterIndex,
			Loopback: a.Flags&net.FlagLoopback != 0, Hardware: a.HardwareAddr, Networks: networks[a.Index]}
		if a.NetNsID < 0 { // otherwise the parent is in another namespace
			n.Parent = a.ParentIndex
		}
		list = append(list, n)
	}
	return list, nil
}

// dumpTries bounds the dumps that a change of the kernel's table may interrupt.
const dumpTries = 5

// dump requests a whole table. If the table changed meanwhile, the dump may be incomplete
// (NLM_F_DUMP_INTR), and dump tries again.
func dump[T any](ask func() ([]T, error)) (list []T, err error) {
	for range dumpTries {
		if list, err = ask(); !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return list, err
		}
	}
	return list, err
}

// derived are kinds whose packets are packets of the parent.
var derived = []string{"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap"}

// known are kinds whose relations NotServed follows, and kinds without relations.
var known = append([]string{"device", "veth", "dummy", "bond", "bridge", "team"}, derived...)

// NotServed returns the names of interfaces that the gateway certainly does not serve. gateway has
// the names of the interfaces in its configuration; none: unknown, so the result is empty.
func NotServed(all []Link, gateway []string) map[string]bool {
	out := map[string]bool{}
	if len(gateway) == 0 {
		return out
	}
	r := relations{all: all, gateway: gateway}
	for i := range all {
		if !r.mayServe(&all[i], len(all)) {
			out[all[i].Name] = true
		}
	}
	return out
}

type relations struct {
	all     []Link
	gateway []string
}

func (r *relations) of(index int) *Link {
	i := slices.IndexFunc(r.all, func(l Link) bool { return l.Index == index })
	if index == 0 || i < 0 {
		return nil
	}
	return &r.all[i]
}

// mayServe reports whether packets of an interface may reach the gateway. depth bounds how many
// relations are followed.
func (r *relations) mayServe(l *Link, depth int) bool {
	if slices.Contains(r.gateway, l.Name) || l.Loopback || !slices.Contains(known, l.Kind) || depth == 0 {
		return true
	}
	if m := r.of(l.Master); m != nil && slices.Contains(r.gateway, m.Name) {
		return true
	}
	if p := r.of(l.Parent); p != nil && slices.Contains(derived, l.Kind) && r.mayServe(p, depth-1) {
		return true
	}
	for i := range r.all {
		if port := &r.all[i]; port.Master == l.Index && r.portServes(port, depth-1) {
			return true
		}
	}
	return false
}

// portServes is mayServe for a port of the interface that mayServe looks at, without its master.
func (r *relations) portServes(port *Link, depth int) bool {
	alone := *port
	alone.Master = 0
	return r.mayServe(&alone, depth)
}
