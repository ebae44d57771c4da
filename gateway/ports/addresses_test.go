package ports

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/xdpprog"
)

// attrs is a device with the address 02:00:00:00:00:mac.
func attrs(index, parent, master int, mac byte) netlink.LinkAttrs {
	return netlink.LinkAttrs{
		Index: index, ParentIndex: parent, MasterIndex: master, NetNsID: -1, Name: "dev" + string(rune('0'+index)),
		HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, mac},
	}
}

func mac(last byte) xdpprog.MAC { return xdpprog.MAC{2, 0, 0, 0, 0, last} }

// TestDestinations: frames are for a device, for what is made on it and on its master, and for what
// is on those, as deep as the program reads tags.
func TestDestinations(t *testing.T) {
	vlan := func(index, parent int, id int, qinq bool, last byte) netlink.Link {
		l := &netlink.Vlan{LinkAttrs: attrs(index, parent, 0, last), VlanId: id}
		if l.VlanProtocol = netlink.VLAN_PROTOCOL_8021Q; qinq {
			l.VlanProtocol = netlink.VLAN_PROTOCOL_8021AD
		}
		return l
	}
	macvlan := func(index, parent int, last byte) netlink.Link {
		return &netlink.Macvlan{LinkAttrs: attrs(index, parent, 0, last)}
	}
	nic := &netlink.Device{LinkAttrs: attrs(1, 0, 0, 1)}
	slave := &netlink.Device{LinkAttrs: attrs(1, 0, 2, 1)}
	away := attrs(2, 1, 0, 9)
	away.NetNsID = 3
	q := func(id uint16) xdpprog.Tag { return xdpprog.Tag{ID: id} }
	ad := func(id uint16) xdpprog.Tag { return xdpprog.Tag{ID: id, QinQ: true} }
	for _, c := range []struct {
		name    string
		links   []netlink.Link
		unicast []xdpprog.MAC
		macs    []xdpprog.MAC
		vlans   []xdpprog.VLAN
		unknown string
	}{
		{name: "alone", links: []netlink.Link{nic}, macs: []xdpprog.MAC{mac(1)}},
		{name: "not the first of the list", links: []netlink.Link{macvlan(2, 1, 2), nic},
			macs: []xdpprog.MAC{mac(1), mac(2)}},
		{name: "its unicast list", links: []netlink.Link{nic}, macs: []xdpprog.MAC{mac(1), mac(7)},
			unicast: []xdpprog.MAC{mac(7), {0x33, 0x33, 0, 0, 0, 1}, mac(1)}},
		{name: "VRRP's macvlan", links: []netlink.Link{nic, &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{
			Index: 2, ParentIndex: 1, NetNsID: -1, HardwareAddr: net.HardwareAddr{0, 0, 0x5e, 0, 1, 51}}}},
			macs: []xdpprog.MAC{mac(1), {0, 0, 0x5e, 0, 1, 51}}},
		{name: "macvtap", links: []netlink.Link{nic, &netlink.Macvtap{Macvlan: netlink.Macvlan{
			LinkAttrs: attrs(2, 1, 0, 2)}}}, macs: []xdpprog.MAC{mac(1), mac(2)}},
		{name: "another device's", links: []netlink.Link{nic, &netlink.Device{LinkAttrs: attrs(2, 0, 0, 2)},
			macvlan(3, 2, 3)}, macs: []xdpprog.MAC{mac(1)}},
		{name: "the other end of a veth", links: []netlink.Link{&netlink.Veth{LinkAttrs: attrs(1, 2, 0, 1)},
			&netlink.Veth{LinkAttrs: attrs(2, 1, 0, 2)}}, macs: []xdpprog.MAC{mac(1)}},
		{name: "made on a device of another namespace", links: []netlink.Link{nic, &netlink.Macvlan{LinkAttrs: away}},
			macs: []xdpprog.MAC{mac(1)}},
		{name: "VLANs", links: []netlink.Link{nic, vlan(2, 1, 5, false, 1), vlan(3, 1, 6, true, 3)},
			macs: []xdpprog.MAC{mac(1), mac(3)}, vlans: []xdpprog.VLAN{{q(5)}, {ad(6)}}},
		{name: "a VLAN in a VLAN, and one more", links: []netlink.Link{vlan(4, 3, 7, false, 4), vlan(3, 2, 6, false, 3),
			vlan(2, 1, 5, true, 2), nic}, macs: []xdpprog.MAC{mac(1), mac(2), mac(3)},
			vlans: []xdpprog.VLAN{{ad(5)}, {ad(5), q(6)}}},
		{name: "macvlan on a VLAN", links: []netlink.Link{nic, vlan(2, 1, 5, false, 1), macvlan(3, 2, 3)},
			macs: []xdpprog.MAC{mac(1), mac(3)}, vlans: []xdpprog.VLAN{{q(5)}}},
		{name: "a bond with a VLAN and a macvlan", links: []netlink.Link{slave,
			&netlink.Bond{LinkAttrs: attrs(2, 0, 0, 2)}, vlan(3, 2, 5, false, 3), macvlan(4, 2, 4)},
			macs: []xdpprog.MAC{mac(1), mac(2), mac(3), mac(4)}, vlans: []xdpprog.VLAN{{q(5)}}},
		{name: "a bridge", links: []netlink.Link{slave, &netlink.Bridge{LinkAttrs: attrs(2, 0, 0, 2)},
			&netlink.Device{LinkAttrs: attrs(3, 0, 2, 3)}}, macs: []xdpprog.MAC{mac(1), mac(2)}},
		{name: "a master of a kind that is not known", links: []netlink.Link{slave,
			&netlink.GenericLink{LinkAttrs: attrs(2, 0, 0, 2), LinkType: "openvswitch"}},
			unknown: "its master dev2 is of kind openvswitch"},
		{name: "more than there is room for", links: []netlink.Link{nic}, unicast: func() (list []xdpprog.MAC) {
			for n := range xdpprog.MaxMACs {
				list = append(list, mac(byte(2+n)))
			}
			return list
		}(), unknown: "it has 65 MAC addresses"},
		{name: "no Ethernet", links: []netlink.Link{&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Index: 1}}}},
		{name: "gone", links: []netlink.Link{&netlink.Device{LinkAttrs: attrs(2, 0, 0, 2)}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := destinationsOf(1, c.links, c.unicast)
			if !slices.Equal(got.MACs, c.macs) || !slices.Equal(got.VLANs, c.vlans) ||
				!strings.Contains(got.unknown, c.unknown) || (got.unknown == "") != (c.unknown == "") {
				t.Errorf("%x, %v, %q; want %x, %v, %q", got.MACs, got.VLANs, got.unknown, c.macs, c.vlans, c.unknown)
			}
		})
	}
}
