package devices

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Blocked returns why no packet can pass a device in its present state; empty if packets can.
// IFF_LOWER_UP is set while it has carrier (dev_get_flags, net/core/dev.c).
func Blocked(index int, name string) (why string, err error) {
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return "", err
	}
	switch flags := link.Attrs().RawFlags; {
	case flags&unix.IFF_UP == 0:
		return fmt.Sprintf("is down: ip link set %s up", name), nil
	case flags&unix.IFF_LOWER_UP == 0:
		return "has no carrier: look at its cable, at the other end and, for a bond, at its devices", nil
	}
	return "", nil
}
