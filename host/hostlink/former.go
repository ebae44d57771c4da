package hostlink

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// ErrOrphan is returned by Ensure if a pair with another name, which no process has, has an address
// of this pair. The kernel would route replies to that pair. Ensure has changed nothing.
var ErrOrphan = errors.New("the host link of a process that ended has the address")

// noOrphan returns ErrOrphan if there is such a pair.
func noOrphan(c *Config) error {
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("read addresses: %w", err)
	}
	for i := range all {
		if p := prefixOf(&all[i]); !slices.Contains(c.Addresses, p) {
			continue
		}
		kern, err := netlink.LinkByIndex(all[i].LinkIndex)
		if err != nil || kern.Attrs().Name == c.KernelName || kern.Type() != "veth" {
			continue // it was removed meanwhile, or is not a host link's
		}
		user, err := netlink.LinkByIndex(kern.Attrs().ParentIndex)
		if err != nil || kern.Attrs().NetNsID != -1 {
			continue
		}
		if l, err := takeLock(user.Attrs().Name); err == nil && l != nil {
			l.release()
			return fmt.Errorf("%w %s: %s and %s; flows may need it: restore tuning.hostLinkName, or end "+
				"the flows and the pair with `sluice cleanup --config` and the previous configuration", ErrOrphan,
				prefixOf(&all[i]), user.Attrs().Name, kern.Attrs().Name)
		}
	}
	return nil
}

// formerUserAddresses returns the addresses of the user end that the pair has and c does not have.
func formerUserAddresses(c *Config) (list []netip.Addr, err error) {
	kern, err := netlink.LinkByName(c.KernelName)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.KernelName, err)
	}
	have, err := netlink.AddrList(kern, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("%s: read addresses: %w", c.KernelName, err)
	}
	for i := range have {
		p := prefixOf(&have[i])
		if slices.Contains(c.Addresses, p) {
			continue
		}
		if a, err := userAddress(p); err == nil && !(a.Is6() && a.IsLinkLocalUnicast()) { // the kernel made that one
			list = append(list, a)
		}
	}
	return list, nil
}

func prefixOf(a *netlink.Addr) netip.Prefix {
	addr, _ := netip.AddrFromSlice(a.IP)
	bits, _ := a.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}
