package neigh

import (
	"math"
	"net"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/nat/header"
)

// LinkConfig names a served link. The mirror looks up the interface by name, also after it was
// deleted and created again.
type LinkConfig struct{ Name string }

// HostLink is the gateway's veth pair into the kernel (package hostlink).
type HostLink struct {
	KernelIndex int     // interface index of the kernel's end
	KernelMAC   [6]byte // destination of frames to the kernel
	UserMAC     [6]byte // their source: the gateway's end
	MTU         int
}

// noLink is the link of a device that is not served.
const noLink = -1

// device has the properties of an interface that the mirror uses.
type device struct {
	name  string
	link  int // position in the configuration, or noLink
	vlans uint8
	vlan  [2]nexthop.Tag // outer first
	mac   [6]byte
	mtu   uint16 // 0: above the maximum size of an IP packet
	up    bool
}

// devicesOf returns all interfaces. Interfaces of the configuration and their VLAN sub-devices have
// a link.
func devicesOf(links []netlink.Link, config []LinkConfig) map[int]device {
	position := make(map[string]int, len(config))
	for i, c := range config {
		position[c.Name] = i
	}
	byIndex := make(map[int]netlink.Link, len(links))
	for _, l := range links {
		byIndex[l.Attrs().Index] = l
	}
	devices := make(map[int]device, len(links))
	for _, l := range links {
		a := l.Attrs()
		d := device{name: a.Name, link: noLink, mtu: clampMTU(a.MTU), up: a.Flags&net.FlagUp != 0}
		if len(a.HardwareAddr) == len(d.mac) {
			d.mac = [6]byte(a.HardwareAddr)
		}
		d.link, d.vlan, d.vlans = ownership(l, byIndex, position)
		devices[a.Index] = d
	}
	return devices
}

// ownership follows VLAN devices down to a served link and collects their tags, at most as many as
// a hop can have.
func ownership(
	l netlink.Link, byIndex map[int]netlink.Link, position map[string]int,
) (link int, tags [2]nexthop.Tag, n uint8) {
	for {
		if p, ok := position[l.Attrs().Name]; ok {
			return p, tags, n
		}
		vlan, ok := l.(*netlink.Vlan)
		// If the lower device is in another namespace, its index is valid only there.
		if !ok || int(n) == len(tags) || vlan.NetNsID != -1 {
			return noLink, [2]nexthop.Tag{}, 0
		}
		// Hosts on the VLAN do not accept tags of another protocol (802.1Q, 802.1ad).
		tag := nexthop.Tag{TPID: header.EtherTypeVLAN, TCI: uint16(vlan.VlanId)}
		if vlan.VlanProtocol == netlink.VLAN_PROTOCOL_8021AD {
			tag.TPID = header.EtherTypeQinQ
		}
		tags = [2]nexthop.Tag{tag, tags[0]}
		n++
		if l, ok = byIndex[vlan.ParentIndex]; !ok {
			return noLink, [2]nexthop.Tag{}, 0
		}
	}
}

// clampMTU converts an MTU to the type of a hop's. The loopback device has 65,536, which limits no
// IP packet.
func clampMTU(mtu int) uint16 {
	if mtu <= 0 || mtu > math.MaxUint16 {
		return 0
	}
	return uint16(mtu)
}

// minMTU returns the smaller limit, where zero means no limit.
func minMTU(a, b uint16) uint16 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
