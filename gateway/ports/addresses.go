package ports

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/xdpprog"
)

// destinations are the MAC addresses and VLANs of frames that are for this node.
type destinations struct {
	xdpprog.Destinations
	// unknown is why the addresses are not known; empty if they are known, or if the device has
	// none.
	unknown string
}

// readDestinations reads the unicast MAC addresses and VLANs of frames on a device that are for
// this node: of the device, and of devices above it, which receive their packets through it. links
// are all interfaces of this network namespace.
func readDestinations(index int, links []netlink.Link) (d destinations, err error) {
	unicast, err := unicastList(index)
	if err != nil {
		return d, fmt.Errorf("read the unicast addresses of interface %d: %w", index, err)
	}
	return destinationsOf(index, links, unicast), nil
}

// unicastList returns the additional addresses of a device (struct net_device, uc): of macvlans,
// also in other network namespaces, of VLAN devices with their own address, and addresses that
// `bridge fdb add ... self` added.
func unicastList(index int) (list []xdpprog.MAC, err error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
	// Only with struct ifinfomsg does the kernel use the index as a filter (valid_fdb_dump_legacy,
	// net/core/rtnetlink.c).
	message := nl.NewIfInfomsg(unix.AF_BRIDGE)
	message.Index = int32(index)
	request.AddData(message)
	answers, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if err != nil {
		return nil, err
	}
	for _, a := range answers {
		n, err := netlink.NeighDeserialize(a)
		if err != nil {
			return nil, err
		}
		// Entries without NTF_SELF belong to the bridge whose port the device is.
		if n.LinkIndex == index && n.Flags&netlink.NTF_SELF != 0 && len(n.HardwareAddr) == len(xdpprog.MAC{}) {
			list = append(list, xdpprog.MAC(n.HardwareAddr))
		}
	}
	return list, nil
}

// place is a device that gets packets from the lowest device, without the tags of these VLANs.
type place struct {
	index int
	vlan  xdpprog.VLAN
}

// masters are the kinds of master devices whose packets from outside have a destination address of
// the master or of a device on it.
var masters = []string{"bond", "team", "bridge", "vrf"}

// destinationsOf collects the destinations of the devices above: devices made on one (VLAN,
// macvlan, macvtap), and its master.
func destinationsOf(index int, links []netlink.Link, unicast []xdpprog.MAC) (d destinations) {
	at := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == index })
	if at < 0 || len(links[at].Attrs().HardwareAddr) != len(xdpprog.MAC{}) {
		return d // it has no Ethernet address: every frame is for this node
	}
	places := []place{{index: index}}
	for i := 0; i < len(places); i++ {
		p := places[i]
		for _, l := range links {
			a := l.Attrs()
			if a.Index == p.index {
				if len(a.HardwareAddr) == len(xdpprog.MAC{}) {
					d.addMAC(xdpprog.MAC(a.HardwareAddr))
				}
				if master := masterOf(a, links); master != nil && !slices.Contains(masters, master.Type()) {
					return destinations{unknown: fmt.Sprintf("its master %s is of kind %s, which may have any address",
						master.Attrs().Name, master.Type())}
				} else if master != nil {
					places = addPlace(places, place{master.Attrs().Index, p.vlan})
				}
				continue
			}
			if vlan, ok := p.above(l); ok {
				places = addPlace(places, place{a.Index, vlan})
				if vlan != (xdpprog.VLAN{}) && !slices.Contains(d.VLANs, vlan) {
					d.VLANs = append(d.VLANs, vlan)
				}
			}
		}
	}
	for _, m := range unicast {
		d.addMAC(m)
	}
	if n := len(d.MACs); n > xdpprog.MaxMACs {
		return destinations{unknown: fmt.Sprintf("with the devices above it, it has %d MAC addresses, and the program "+
			"can compare %d", n, xdpprog.MaxMACs)}
	}
	return d
}

// above reports whether a device is made on the place's device, and the VLAN of its packets.
func (p *place) above(l netlink.Link) (vlan xdpprog.VLAN, ok bool) {
	a := l.Attrs()
	// A lower device in another namespace has an index of that namespace.
	if a.ParentIndex != p.index || a.NetNsID != -1 {
		return vlan, false
	}
	switch l := l.(type) {
	case *netlink.Macvlan, *netlink.Macvtap:
		return p.vlan, true
	case *netlink.Vlan:
		tag := xdpprog.Tag{ID: uint16(l.VlanId), QinQ: l.VlanProtocol == netlink.VLAN_PROTOCOL_8021AD}
		switch {
		case tag.ID == 0: // a tag that has only a priority
			return p.vlan, true
		case p.vlan[0] == xdpprog.Tag{}:
			return xdpprog.VLAN{tag}, true
		case p.vlan[1] == xdpprog.Tag{}:
			return xdpprog.VLAN{p.vlan[0], tag}, true
		}
	}
	return vlan, false // more tags than the program reads, or a device that gets no packets from the one below
}

func masterOf(a *netlink.LinkAttrs, links []netlink.Link) netlink.Link {
	at := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Index == a.MasterIndex })
	if a.MasterIndex == 0 || at < 0 {
		return nil
	}
	return links[at]
}

func addPlace(list []place, p place) []place {
	if slices.Contains(list, p) {
		return list
	}
	return append(list, p)
}

// addMAC adds a unicast address, once.
func (d *destinations) addMAC(m xdpprog.MAC) {
	if m[0]&1 == 0 && !slices.Contains(d.MACs, m) {
		d.MACs = append(d.MACs, m)
	}
}

// listLinks reads all interfaces of this network namespace.
func listLinks() (links []netlink.Link, err error) {
	for range 3 { // a list that changed during the reading may lack some
		if links, err = netlink.LinkList(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read interfaces: %w", err)
	}
	return links, nil
}
