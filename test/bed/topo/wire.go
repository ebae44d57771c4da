package topo

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"strings"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/host/nic/ethtool"
)

// segment is an Ethernet: a bridge in the wire namespace.
type segment struct {
	bridge      string
	net4, net6  netip.Prefix
	mtu, queues int
	device      Device
	vlans       []uint16 // tags, outermost first
	service     bool     // the outer one of two is of 802.1ad
}

// addBridge makes the segment's bridge. It runs in the wire namespace.
func (s *segment) addBridge() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = s.bridge, s.mtu
	// Without a querier snooping learns nothing, and floods; with one it could
	// swallow neighbour solicitations.
	snooping := false
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil {
		return fmt.Errorf("create bridge %s: %w", s.bridge, err)
	}
	// It is no host: with an address it would answer packets to all nodes of the link.
	if err := sysctl("net/ipv6/conf/"+s.bridge+"/disable_ipv6", "1"); err != nil {
		return err
	}
	return bringUp(s.bridge)
}

// plug connects a namespace to the segment by a veth pair: dev in the namespace,
// a port of the bridge on the other side. It runs in the wire namespace.
func (s *segment) plug(ns *namespace, port, dev string) error {
	if err := addVeth(port, ns, dev, s.queues, s.mtu); err != nil {
		return err
	}
	if err := s.enslave(port); err != nil {
		return err
	}
	if err := ethtool.OffloadsOff(port); err != nil {
		return err
	}
	return bringUp(port)
}

// addVeth makes a veth pair of one MTU and as many queues at both ends: dev in the calling thread's
// namespace, peer in another.
func addVeth(dev string, in *namespace, peer string, queues, mtu int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.NumTxQueues, attrs.NumRxQueues = dev, mtu, queues, queues
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace, veth.PeerMTU = peer, netlink.NsFd(int(in.file.Fd())), uint32(mtu)
	veth.PeerNumTxQueues, veth.PeerNumRxQueues = uint32(queues), uint32(queues)
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("create veth %s: %w", dev, err)
	}
	return nil
}

// enslave makes an interface of the wire namespace, in which it runs, a port of the segment's
// bridge.
func (s *segment) enslave(port string) error {
	bridge, err := netlink.LinkByName(s.bridge)
	if err != nil {
		return fmt.Errorf("%s: %w", s.bridge, err)
	}
	link, err := netlink.LinkByName(port)
	if err != nil {
		return fmt.Errorf("%s: %w", port, err)
	}
	if err := netlink.LinkSetMaster(link, bridge); err != nil {
		return fmt.Errorf("plug %s into %s: %w", port, s.bridge, err)
	}
	return sysctl("net/ipv6/conf/"+port+"/disable_ipv6", "1")
}

// addVLANs makes VLAN devices on top of an interface, one of each tag, and returns the name of the
// last, which is not up yet. It runs in the host's namespace.
func addVLANs(dev string, real bool, tags []uint16, service bool) (string, error) {
	for depth, id := range tags {
		lower, err := netlink.LinkByName(dev)
		if err != nil {
			return "", fmt.Errorf("%s: %w", dev, err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex, attrs.MTU = fmt.Sprintf("%s.%d", dev, id), lower.Attrs().Index, lower.Attrs().MTU
		if depth > 0 {
			attrs.MTU -= vlanBytes // a wire has room for one tag beside the MTU (is_skb_forwardable, net/core/dev.c)
		}
		protocol := netlink.VLAN_PROTOCOL_8021Q
		if service && len(tags) == 2 && depth == 0 {
			protocol = netlink.VLAN_PROTOCOL_8021AD
		}
		if err := netlink.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: int(id),
			VlanProtocol: protocol}); err != nil {
			return "", fmt.Errorf("create VLAN device %s (module 8021q): %w", attrs.Name, err)
		}
		if dev = attrs.Name; depth < len(tags)-1 {
			if err := configure(dev, real); err != nil {
				return "", err
			}
		}
	}
	return dev, nil
}

// vlanBytes is a tag (IEEE 802.1Q, clause 9).
const vlanBytes = 4

// configure gives the interface of a host its addresses and brings it up. One that is not real has
// its offloads turned off. It runs in the host's namespace.
func configure(dev string, real bool, prefixes ...netip.Prefix) error {
	if !real {
		if err := ethtool.OffloadsOff(dev); err != nil {
			return err
		}
	}
	for _, s := range []struct{ name, value string }{
		{"net/ipv6/conf/" + dev + "/accept_dad", "0"},
		{"net/ipv6/conf/" + dev + "/dad_transmits", "0"},
		{"net/ipv6/conf/" + dev + "/accept_ra", "0"},
		{"net/ipv6/conf/" + dev + "/router_solicitations", "0"},
		{"net/ipv6/conf/" + dev + "/accept_redirects", "0"},
		{"net/ipv4/conf/" + dev + "/accept_redirects", "0"},
		{"net/ipv4/conf/" + dev + "/send_redirects", "0"},
		{"net/ipv4/conf/" + dev + "/rp_filter", "0"},
	} {
		if err := sysctl(s.name, s.value); err != nil {
			return err
		}
	}
	if err := bringUp(dev); err != nil {
		return err
	}
	return changeAddresses(netlink.AddrAdd, dev, prefixes)
}

func bringUp(dev string) error {
	link, err := netlink.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("%s: %w", dev, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring %s up: %w", dev, err)
	}
	return nil
}

// sysctl writes a setting of the calling thread's namespace, given as a path below
// /proc/sys. One the kernel does not have is an error that names it.
func sysctl(name, value string) error {
	file := path.Join("/proc/sys", name)
	if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
		if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(name, "net/ipv6") {
			return fmt.Errorf("this kernel has no IPv6: %w", err)
		}
		return fmt.Errorf("set %s to %s: %w", strings.ReplaceAll(name, "/", "."), value, err)
	}
	return nil
}
