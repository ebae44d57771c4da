package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/cmd/sluice/internal/rss"
	"sluice.dev/sluice/control/ethtool"
)

// readInterface reads a device of this network namespace. Only its absence is an
// error; what its driver does not tell stays zero.
func readInterface(name string) Interface {
	d := Interface{Name: name}
	link, err := netlink.LinkByName(name)
	if err != nil {
		d.Err = fmt.Errorf("no such interface in this network namespace: %w", err)
		return d
	}
	a := link.Attrs()
	d.Up = a.OperState == netlink.OperUp || a.OperState == netlink.OperUnknown && a.RawFlags&unix.IFF_UP != 0
	d.Kind, d.MTU = link.Type(), a.MTU
	d.Queues, d.RSSQueues = countQueues(name)
	if n, known := rss.Queues(a.Index); known {
		d.RSSQueues = n
	}
	if a.Xdp != nil && a.Xdp.Attached {
		d.Program = programName(a.Xdp.ProgId)
	}
	if a.MasterIndex != 0 {
		if master, err := netlink.LinkByIndex(a.MasterIndex); err == nil {
			d.Master = master.Type()
		}
	}
	d.VLANs = vlansOn(a.Index)
	d.XDPFeatures, d.XDPKnown = xdpFeatures(a.Index)
	d.readDriver(link)
	return d
}

// readDriver asks the driver over ethtool.
func (d *Interface) readDriver(link netlink.Link) {
	// A driver that does not answer leaves the zero value, which every check can tell.
	d.Driver, _ = ethtool.Driver(d.Name)
	d.Features, _ = ethtool.Features(d.Name)
	// The kernel names the namespace of the other end (IFLA_LINK_NETNSID) only if it is another one.
	if a := link.Attrs(); link.Type() == "veth" && a.NetNsID == -1 && a.ParentIndex != 0 {
		if peer, err := netlink.LinkByIndex(a.ParentIndex); err == nil {
			d.PeerFeatures, _ = ethtool.Features(peer.Attrs().Name)
		}
	}
}

// countQueues counts the queues that both receive and transmit, and those that
// receive: packets are spread over all of them unless the driver's table says less.
func countQueues(name string) (both, rx int) {
	dir := filepath.Join("/sys/class/net", name, "queues")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0
	}
	tx := 0
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), "rx-"):
			rx++
		case strings.HasPrefix(e.Name(), "tx-"):
			tx++
		}
	}
	return min(rx, tx), rx
}

// programName is the attached program's name, or its number for who may not ask.
func programName(id uint32) string {
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return fmt.Sprintf("program %d", id)
	}
	defer p.Close()
	if info, err := p.Info(); err == nil && info.Name != "" {
		return info.Name
	}
	return fmt.Sprintf("program %d", id)
}

func vlansOn(index int) []string {
	links, err := netlink.LinkList()
	if err != nil {
		return nil
	}
	var names []string
	for _, l := range links {
		if l.Type() == "vlan" && l.Attrs().ParentIndex == index {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

// The generic netlink family "netdev" (include/uapi/linux/netdev.h, Linux 6.3).
const (
	netdevFamily         = "netdev"
	netdevCmdDevGet      = 1
	netdevAttrIfindex    = 1
	netdevAttrXDPFeature = 3
)

// genlHeader is struct genlmsghdr: command, version, two reserved bytes that must
// be zero. (nl.Genlmsg has two bytes and serializes four, so what follows it in
// memory goes to the kernel, which refuses it when it is not zero.)
type genlHeader [nl.SizeofGenlmsg]byte

// Len and Serialize implement nl.NetlinkRequestData.
func (h genlHeader) Len() int { return len(h) }

// Serialize returns the header's bytes.
func (h genlHeader) Serialize() []byte { return h[:] }

var errNoAttribute = errors.New("no such attribute")

// xdpFeatures asks the kernel what a device's driver can do with XDP; known is
// false on kernels that do not say.
func xdpFeatures(index int) (features uint64, known bool) {
	family, err := netlink.GenlFamilyGet(netdevFamily)
	if err != nil {
		return 0, false
	}
	request := nl.NewNetlinkRequest(int(family.ID), 0)
	request.AddData(genlHeader{netdevCmdDevGet, 1})
	request.AddData(nl.NewRtAttr(netdevAttrIfindex, nl.Uint32Attr(uint32(index))))
	answers, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil || len(answers) == 0 || len(answers[0]) < nl.SizeofGenlmsg {
		return 0, false
	}
	features, err = uint64Attr(answers[0][nl.SizeofGenlmsg:], netdevAttrXDPFeature)
	return features, err == nil
}

func uint64Attr(b []byte, kind uint16) (uint64, error) {
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return 0, err
	}
	for _, a := range attrs {
		if a.Attr.Type == kind && len(a.Value) == 8 {
			return binary.NativeEndian.Uint64(a.Value), nil
		}
	}
	return 0, errNoAttribute
}
