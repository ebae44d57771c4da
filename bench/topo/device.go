package topo

import (
	"fmt"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/control/ethtool"
)

// Device is a real interface for the gateway, instead of one end of a veth pair, and the interface that faces it on its
// wire. Both are in the namespace of whoever calls New, in which the kernel puts them back after Close.
//
//	gateway [NIC] ═══ wire ═══ [Port] bridge ── clients or backends
//
// The NIC keeps its offloads, as on a node; the port's are off, so that what the bridge sends on is as it would be on a
// wire.
type Device struct {
	NIC  string
	Port string
}

// deviceLimit is how long the namespaces of an earlier network may take to give a device back.
const deviceLimit = 30 * time.Second

// plugDevice makes a device's NIC the gateway's interface, and its other side a port of the segment's bridge. It runs
// in the namespace that the device is in.
func (s *segment) plugDevice(gateway, wire *namespace) error {
	for _, move := range [...]struct {
		name string
		to   *namespace
	}{{s.device.NIC, gateway}, {s.device.Port, wire}} {
		link, err := awaitLink(move.name)
		if err != nil {
			return err
		}
		// Before the move: a device that is put back keeps the MTU that it had.
		if err := netlink.LinkSetMTU(link, s.mtu); err != nil {
			return fmt.Errorf("%s: MTU %d: %w", move.name, s.mtu, err)
		}
		if err := netlink.LinkSetNsFd(link, int(move.to.file.Fd())); err != nil {
			return fmt.Errorf("move %s: %w", move.name, err)
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

func awaitLink(name string) (netlink.Link, error) {
	for end := time.Now().Add(deviceLimit); ; time.Sleep(20 * time.Millisecond) {
		link, err := netlink.LinkByName(name)
		if err == nil {
			return link, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
}
