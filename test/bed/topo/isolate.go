package topo

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// Isolate moves the last attached interface of each host to a separate segment, so they reach only
// each other. The interfaces keep their carrier, so other hosts notice only missing packets. heal
// brings them back.
func (n *Net) Isolate(hosts ...*Host) (heal func() error, err error) {
	const island = "island"
	var links []netlink.Link
	var home int
	move := func(master int) error {
		var errs []error
		for _, l := range links {
			errs = append(errs, netlink.LinkSetMasterByIndex(l, master))
		}
		return errors.Join(errs...)
	}
	err = n.wire.run(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = island
		snooping := false
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil {
			return fmt.Errorf("create bridge %s: %w", island, err)
		}
		if err := bringUp(island); err != nil {
			return err
		}
		bridge, err := netlink.LinkByName(island)
		if err != nil {
			return err
		}
		for _, h := range hosts {
			l, err := netlink.LinkByName(h.port)
			if err != nil {
				return fmt.Errorf("%s: %w", h.Name, err)
			}
			links, home = append(links, l), l.Attrs().MasterIndex
		}
		return move(bridge.Attrs().Index)
	})
	return func() error {
		return n.wire.run(func() error {
			bridge, err := netlink.LinkByName(island)
			if err != nil {
				return err
			}
			return errors.Join(move(home), netlink.LinkDel(bridge))
		})
	}, err
}
