package pid1

import (
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

// nameNICs gives interfaces the names that the host chose, found by their addresses.
func nameNICs(nics []NIC) error {
	for i, n := range nics {
		// Two turns, so that no name is taken by an interface that is about to lose it.
		if err := rename(n.MAC, fmt.Sprintf("vm%d", i)); err != nil {
			return fmt.Errorf("NIC %s: %w", n.Name, err)
		}
	}
	for _, n := range nics {
		if err := rename(n.MAC, n.Name); err != nil {
			return fmt.Errorf("NIC %s: %w", n.Name, err)
		}
	}
	return nil
}

// probeLimit is how long a driver may take to find its device: it does so in the background.
const probeLimit = 30 * time.Second

func rename(mac, name string) error {
	for end := time.Now().Add(probeLimit); ; time.Sleep(20 * time.Millisecond) {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if l.Attrs().HardwareAddr.String() == mac {
				return netlink.LinkSetName(l, name)
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("no interface with address %s within %v: has the kernel its driver?", mac, probeLimit)
		}
	}
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}
