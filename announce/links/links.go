// Package links tells which interfaces of this node a gateway does not serve. A gateway serves the
// interfaces of its configuration, and with them those that the kernel makes of their packets, or
// whose packets it passes on to them:
//
//	eth0.100, macvlan0 ──parent──▶ eth0       served, if eth0 is
//	bond0, br0 ◀──master── eth0, eth1         served, if a port is; a port is, if its master is
//
// An interface of a kind whose relations are not known here (Open vSwitch, tunnels) counts as
// served: what is not served is not announced, and a wrong answer would take VIPs away.
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
	Kind     string // IFLA_INFO_KIND of rtnetlink(7); device: it has none, as a NIC
	Parent   int    // IFLA_LINK, the index of another interface of this namespace; 0: there is none
	Master   int    // IFLA_MASTER, the index of the bridge or bond that it is a port of; 0: of none
	Loopback bool
	Hardware net.HardwareAddr
	Networks []netip.Prefix // its addresses with their masks, none of them link-local
}

// List returns the interfaces of this namespace, by two requests to the kernel however many there
// are.
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
		if a.NetNsID < 0 { // else the parent is of another namespace
			n.Parent = a.ParentIndex
		}
		list = append(list, n)
	}
	return list, nil
}

// dumpTries bounds the dumps that a change of the kernel's table may interrupt.
const dumpTries = 5

// dump asks for a whole table. One that changed meanwhile may be incomplete (NLM_F_DUMP_INTR).
func dump[T any](ask func() ([]T, error)) (list []T, err error) {
	for range dumpTries {
		if list, err = ask(); !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return list, err
		}
	}
	return list, err
}

// derived are kinds whose packets are those of the parent.
var derived = []string{"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap"}

// known are kinds whose packets come by relations that NotServed follows, or by none.
var known = append([]string{"device", "veth", "dummy", "bond", "bridge", "team"}, derived...)

// NotServed returns the names of interfaces of which is known that the gateway does not serve them.
// gateway has the names of those in its configuration; none: nothing is known.
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

// mayServe reports whether packets of an interface may reach the gateway. depth bounds the
// relations that are followed.
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

// portServes is mayServe for a port, without its master, which asks.
func (r *relations) portServes(port *Link, depth int) bool {
	alone := *port
	alone.Master = 0
	return r.mayServe(&alone, depth)
}
