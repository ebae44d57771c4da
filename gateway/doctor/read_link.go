package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/host/nic/ethtool"
	"sluice.dev/sluice/host/nic/irq"
	"sluice.dev/sluice/host/nic/netdev"
	"sluice.dev/sluice/host/nic/rss"
)

// readInterface reads a device of this network namespace. Only its absence is an error; values that
// the driver does not report stay zero.
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
	d.readQueues(a.Index)
	if a.Xdp != nil && a.Xdp.Attached {
		d.Program, d.ProgramHidden = programName(a.Xdp.ProgId)
	}
	if a.MasterIndex != 0 {
		if master, err := netlink.LinkByIndex(a.MasterIndex); err == nil {
			d.Master = master.Type()
		}
	}
	d.VLANs, d.Below = above(a.Index), below(link)
	d.XDPFeatures, d.XDPKnown = netdev.XDPFeatures(a.Index)
	d.readDriver(link)
	d.Interrupts = irq.Host.Read(name)
	return d
}

// readDriver reads the facts that the driver reports by ethtool.
func (d *Interface) readDriver(link netlink.Link) {
	// If a driver does not answer, the value stays zero, which every check recognises.
	d.Driver, _ = ethtool.Driver(d.Name)
	d.Features, _ = ethtool.Features(d.Name)
	d.Rings, _ = ethtool.ReadRings(d.Name)
	d.FlowHash = map[ethtool.Flow]ethtool.HashFields{}
	for _, f := range []ethtool.Flow{
		ethtool.TCP4, ethtool.UDP4, ethtool.SCTP4, ethtool.TCP6, ethtool.UDP6, ethtool.SCTP6,
	} {
		if h, err := ethtool.ReadFlowHash(d.Name, f); err == nil {
			d.FlowHash[f] = h
		}
	}
	if d.Driver == "virtio_net" {
		bits, _ := os.ReadFile(filepath.Join("/sys/class/net", d.Name, "device", "features"))
		d.NoAccessPlatform = withoutAccessPlatform(string(bits))
	}
	// The kernel gives the namespace of the other end (IFLA_LINK_NETNSID) only if it differs from
	// this one.
	if a := link.Attrs(); link.Type() == "veth" && a.NetNsID == -1 && a.ParentIndex != 0 {
		if peer, err := netlink.LinkByIndex(a.ParentIndex); err == nil {
			d.PeerFeatures, _ = ethtool.Features(peer.Attrs().Name)
		}
	}
}

// accessPlatform is VIRTIO_F_ACCESS_PLATFORM (include/uapi/linux/virtio_config.h).
const accessPlatform = 33

// withoutAccessPlatform parses the features of a virtio device as the kernel prints them: a 0 or 1
// for each bit, from bit 0 on (drivers/virtio/virtio.c, features_show). It returns false if the
// text is too short.
func withoutAccessPlatform(bits string) bool {
	return len(bits) > accessPlatform && bits[accessPlatform] == '0'
}

// readQueues reads the queues from the driver, like the daemon: a driver that does not report them
// counts as having one. /sys always has the number of receive queues, over which packets are
// spread, if it shows this network namespace.
func (d *Interface) readQueues(index int) {
	d.Queues, d.RSSQueues = 1, 1
	c, err := ethtool.ReadChannels(d.Name)
	if err != nil {
		d.RSSQueues = max(1, countReceiving(d.Name))
		return
	}
	d.Queues, d.MaxQueues = c.Pairs(), int(c.MaxCombined+min(c.MaxRx, c.MaxTx))
	d.RSSQueues, _ = c.Queues()
	if n, known := rss.Queues(index); known {
		d.RSSQueues = n
	}
}

// countReceiving returns the number of receive queues in /sys; 0 if it shows another namespace.
func countReceiving(name string) (n int) {
	list, err := filepath.Glob(filepath.Join("/sys/class/net", name, "queues", "rx-*"))
	if err != nil {
		return 0
	}
	return len(list)
}

// programName returns the attached program's name, or its ID if the caller may not read the name.
func programName(id uint32) (name string, hidden bool) {
	name = fmt.Sprintf("program %d", id)
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return name, errors.Is(err, unix.EPERM)
	}
	defer p.Close()
	if info, err := p.Info(); err == nil && info.Name != "" {
		return info.Name, false
	}
	return name, false
}

// above returns the names of the VLAN devices on a device.
func above(index int) (names []string) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil
	}
	for _, l := range links {
		if l.Type() == "vlan" && l.Attrs().ParentIndex == index && l.Attrs().NetNsID == -1 {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

// below lists the devices that pass their packets to a device: the one it was made on, and its
// members.
func below(link netlink.Link) (list []Lower) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil
	}
	a := link.Attrs()
	for _, l := range links {
		// The kernel gives the namespace of the device below (IFLA_LINK_NETNSID) only if it differs
		// from this one.
		made := link.Type() != "veth" && a.NetNsID == -1 && a.ParentIndex == l.Attrs().Index && a.ParentIndex != a.Index
		if made || l.Attrs().MasterIndex == a.Index {
			features, _ := ethtool.Features(l.Attrs().Name)
			list = append(list, Lower{Name: l.Attrs().Name, GRO: features["rx-gro"]})
		}
	}
	return list
}
