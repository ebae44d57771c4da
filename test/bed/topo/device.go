package topo

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/host/nic/ethtool"
)

// Device is a real interface for the gateway, instead of one end of a veth pair, and the interface
// that faces it on its wire. Both are in the namespace of the caller of New, in which the kernel
// puts them back after Close.
//
//	gateway [NIC] ═══ wire ═══ [Port] bridge ── clients or backends
//
// The NIC keeps its offloads, as on a node; the port's are off, so that the bridge sends packets as
// they would be on a wire.
type Device struct {
	NIC  string
	Port string
}

// deviceLimit is how long the namespaces of an earlier network may take to give a device back.
const deviceLimit = 30 * time.Second

// plugDevice makes a device's NIC the gateway's interface, and its other side a port of the
// segment's bridge. It runs in the namespace that the device is in.
func (s *segment) plugDevice(gateway, wire *namespace) error {
	for _, move := range [...]struct {
		name string
		to   *namespace
	}{{s.device.NIC, gateway}, {s.device.Port, wire}} {
		link, err := awaitLink(move.name, func(a *netlink.LinkAttrs) bool { return a.Name == move.name })
		if err != nil {
			return err
		}
		if err := moveLink(link, s.mtu, move.to); err != nil {
			return err
		}
	}
	return wire.run(func() error {
		if err := s.enslave(s.device.Port); err != nil {
			return err
		}
		if err := ethtool.OffloadsOff(s.device.Port); err != nil {
			return err
		}
		return bringUp(s.device.Port)
	})
}

// awaitLink waits for an interface of the calling thread's namespace, which errors call what.
func awaitLink(what string, is func(*netlink.LinkAttrs) bool) (netlink.Link, error) {
	for end := time.Now().Add(deviceLimit); ; time.Sleep(20 * time.Millisecond) {
		links, err := netlink.LinkList()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		if i := slices.IndexFunc(links, func(l netlink.Link) bool { return is(l.Attrs()) }); i >= 0 {
			return links[i], nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%s: no such interface within %v", what, deviceLimit)
		}
	}
}

// moveLink gives an interface an MTU, and then to a namespace: one that is put back keeps the MTU
// that it had.
func moveLink(link netlink.Link, mtu int, to *namespace) error {
	name := link.Attrs().Name
	if err := netlink.LinkSetMTU(link, mtu); err != nil {
		return fmt.Errorf("%s: MTU %d: %w", name, mtu, err)
	}
	if err := netlink.LinkSetNsFd(link, int(to.file.Fd())); err != nil {
		return fmt.Errorf("move %s: %w", name, err)
	}
	return nil
}

// Replug makes a NIC that appeared in the caller's namespace, with the address of one of the
// gateway's that has gone, that interface again: its name, MTU, addresses. A NIC leaves its driver
// and comes back in this way.
func (n *Net) Replug(dev string, mac net.HardwareAddr) error {
	i := slices.IndexFunc(n.Gateway.Interfaces, func(i Interface) bool { return i.Name == dev })
	if i < 0 {
		return fmt.Errorf("topo: the gateway has no interface %s", dev)
	}
	at := n.Gateway.Interfaces[i]
	link, err := awaitLink(dev, func(a *netlink.LinkAttrs) bool { return bytes.Equal(a.HardwareAddr, mac) })
	if err != nil {
		return fmt.Errorf("topo: %w", err)
	}
	if err := netlink.LinkSetName(link, dev); err != nil {
		return fmt.Errorf("topo: rename %s to %s: %w", link.Attrs().Name, dev, err)
	}
	if err := moveLink(link, at.MTU, n.Gateway.ns); err != nil {
		return fmt.Errorf("topo: %w", err)
	}
	return n.Gateway.Run(func() error { return configure(dev, true, at.Addr4, at.Addr6) })
}
