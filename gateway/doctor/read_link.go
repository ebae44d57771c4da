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

// readDriver reads what the driver reports by ethtool.
func (d *Interface) readDriver(link netlink.Link) {
	// A driver that does not answer leaves the zero value, which every check can tell.
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
	// The kernel names the namespace of the other end (IFLA_LINK_NETNSID) only if it is another
	// one.
	if a := link.Attrs(); link.Type() == "veth" && a.NetNsID == -1 && a.ParentIndex != 0 {
		if peer, err := netlink.LinkByIndex(a.ParentIndex); err == nil {
			d.PeerFeatures, _ = ethtool.Features(peer.Attrs().Name)
		}
	}
}

// accessPlatform is VIRTIO_F_ACCESS_PLATFORM (include/uapi/linux/virtio_config.h).
const accessPlatform = 33

// withoutAccessPlatform reads what the kernel shows of a virtio device's features: a 0 or 1 for
// each bit, from bit 0 on (drivers/virtio/virtio.c, features_show). If the text is too short it
// returns false.
func withoutAccessPlatform(bits string) bool {
	return len(bits) > accessPlatform && bits[accessPlatform] == '0'
}

// readQueues reads the queues from the driver, as the daemon does: a driver that does not report
// them counts as having one. The number of receive queues is in /sys in any case, if that is of
// this network namespace: packets are spread over all of them.
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

// countReceiving counts the receive queues that /sys shows; 0 if it shows another namespace.
func countReceiving(name string) (n int) {
	list, err := filepath.Glob(filepath.Join("/sys/class/net", name, "queues", "rx-*"))
	if err != nil {
		return 0
	}
	return len(list)
}

// programName returns the attached program's name, or its number if the caller may not read the
// name.
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

// above names the VLAN devices on a device.
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

// below lists the devices that a device gets its packets from: the one it was made on, and those
// enslaved to it.
func below(link netlink.Link) (list []Lower) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil
	}
	a := link.Attrs()
	for _, l := range links {
		// The kernel names the namespace of the device below (IFLA_LINK_NETNSID) only if it is
		// another one.
		made := link.Type() != "veth" && a.NetNsID == -1 && a.ParentIndex == l.Attrs().Index && a.ParentIndex != a.Index
		if made || l.Attrs().MasterIndex == a.Index {
			features, _ := ethtool.Features(l.Attrs().Name)
			list = append(list, Lower{Name: l.Attrs().Name, GRO: features["rx-gro"]})
		}
	}
	return list
}
