package hostlink

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/host/nic/ethtool"
)

// setting is one sysctl of one end; the package comment explains each.
type setting struct {
	family, name, value string
	// sinceKernel is the first kernel that has the setting; empty if all have it. A missing setting
	// is an error only if this is empty.
	sinceKernel string
}

// The order matters: addr_gen_mode must be set before the end is brought up, and accept_ra before
// forwarding, which changes the meaning of accept_ra.
var kernelEnd = [...]setting{
	{"ipv6", "addr_gen_mode", "1", ""},
	{"ipv6", "accept_ra", "0", ""},
	{"ipv6", "autoconf", "0", ""},
	{"ipv6", "router_solicitations", "0", ""},
	{"ipv6", "accept_dad", "0", ""},
	{"ipv6", "dad_transmits", "0", ""},
	{"ipv6", "forwarding", "1", ""},
	{"ipv6", "force_forwarding", "1", "6.17"},
	{"ipv4", "rp_filter", "2", ""},
	{"ipv4", "accept_local", "1", ""},
	{"ipv4", "forwarding", "1", ""},
	{"ipv4", "accept_redirects", "0", ""},
	{"ipv4", "send_redirects", "0", ""},
}

var userEnd = [...]setting{
	{"ipv6", "addr_gen_mode", "1", ""},
	{"ipv6", "disable_ipv6", "1", ""},
	{"ipv4", "forwarding", "0", ""},
	{"ipv4", "arp_ignore", "8", ""},
}

// configure configures both ends as in c. The user end's former addresses stay routed to it.
func configure(c *Config, former []netip.Addr) error {
	if err := c.sysctls(c.Name, userEnd[:]); err != nil {
		return err
	}
	if err := c.sysctls(c.KernelName, kernelEnd[:]); err != nil {
		return err
	}
	for _, name := range [...]string{c.Name, c.KernelName} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := ethtool.OffloadsOff(name); err != nil {
			return err
		}
		if l.Attrs().MTU != c.MTU {
			if err := netlink.LinkSetMTU(l, c.MTU); err != nil {
				return fmt.Errorf("%s: set MTU %d: %w", name, c.MTU, err)
			}
		}
	}
	if err := queues(c); err != nil {
		return err
	}
	for _, name := range [...]string{c.Name, c.KernelName} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return fmt.Errorf("%s: bring up: %w", name, err)
		}
	}
	return addresses(c, former)
}

// procSys is the directory of the kernel's sysctls. HostProcSys is the directory where the chart
// mounts the network's sysctls again: a container may only read procSys, and nothing can be mounted
// on it.
const (
	procSys     = "/proc/sys"
	HostProcSys = "/host/proc/sys"
)

func (c *Config) sysctls(dev string, settings []setting) error {
	root, other := procSys, cmp.Or(c.HostProcSys, HostProcSys)
	for _, s := range settings {
		at := path.Join("net", s.family, "conf", dev, s.name)
		err := writeSysctl(path.Join(root, at), s.value)
		if errors.Is(err, unix.EROFS) && root == procSys && isDir(path.Join(other, "net")) {
			root = other
			err = writeSysctl(path.Join(root, at), s.value)
		}
		switch {
		case errors.Is(err, os.ErrNotExist) && (s.sinceKernel != "" || !hasFamily(root, s.family)):
		case errors.Is(err, unix.EROFS):
			return fmt.Errorf("set net.%s.conf.%s.%s: %s is mounted read-only, as in a container: mount the host's "+
				"/proc/sys/net "+
				"writable at %s: %w", s.family, dev, s.name, root, path.Join(other, "net"), err)
		case err != nil:
			return fmt.Errorf("set net.%s.conf.%s.%s: %w", s.family, dev, s.name, err)
		}
	}
	return nil
}

// hasFamily reports whether the kernel supports the family (ipv6.disable=1 removes IPv6).
func hasFamily(root, family string) bool {
	return isDir(path.Join(root, "net", family, "conf"))
}

func isDir(path string) bool {
	s, err := os.Stat(path)
	return err == nil && s.IsDir()
}

// writeSysctl writes a sysctl unless it has the value already: some writes have side effects.
func writeSysctl(file, value string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(old)) == value {
		return nil
	}
	return os.WriteFile(file, []byte(value), 0o644)
}

// queues sets the real number of queues. With a native XDP program on one end, the other end must
// not have more transmit queues than it has receive queues (drivers/net/veth.c, veth_set_channels).
// So queues first sets the receive queues of both ends, then the transmit queues.
func queues(c *Config) error {
	for _, direction := range [...]bool{true, false} {
		for _, name := range [...]string{c.Name, c.KernelName} {
			ch, err := ethtool.ReadChannels(name)
			if err != nil {
				return err
			}
			n := uint32(c.Queues)
			if n > ch.MaxRx || n > ch.MaxTx {
				return fmt.Errorf("%s has room for %d queues, %d are needed: delete the pair, it is created again "+
					"with enough", name, min(ch.MaxRx, ch.MaxTx), n)
			}
			want := ch
			if direction {
				want.Rx = max(n, ch.Rx)
			} else {
				want.Rx, want.Tx = n, n
			}
			if want == ch {
				continue
			}
			if err := ethtool.SetChannels(name, want); err != nil {
				return fmt.Errorf("%d queues: %w", n, err)
			}
		}
	}
	return nil
}

// addresses gives the kernel's end exactly the addresses of the configuration, and makes the user
// end's addresses permanent neighbours on it. The kernel has a route to the user end's former
// addresses all the time, because flows may have them: without one it would answer a backend's
// SYN-ACK with an ICMP error, which ends the backend's half-open connection (tcp_req_err,
// net/ipv4/tcp_ipv4.c).
func addresses(c *Config, former []netip.Addr) error {
	kern, err := netlink.LinkByName(c.KernelName)
	if err != nil {
		return fmt.Errorf("%s: %w", c.KernelName, err)
	}
	user, err := netlink.LinkByName(c.Name)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	for _, p := range c.Addresses {
		// IFA_F_NODAD: usable at once.
		addr := &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NODAD, Scope: unix.RT_SCOPE_UNIVERSE}
		if p.Addr().Is6() {
			// Deprecated (PreferedLft 0): for ICMPv6 errors about packets from the host link, the
			// kernel selects a source as if they left by it (icmp6_send, net/ipv6/icmp.c). This
			// address is not known outside of the node; with it deprecated, RFC 6724 rule 3 prefers
			// another.
			addr.ValidLft, addr.PreferedLft = math.MaxUint32, 0
		}
		if err := netlink.AddrReplace(kern, addr); err != nil {
			return fmt.Errorf("%s: add address %s: %w", c.KernelName, p, err)
		}
		a, err := userAddress(p)
		if err != nil {
			return err
		}
		err = netlink.NeighSet(&netlink.Neigh{
			LinkIndex: kern.Attrs().Index, IP: a.AsSlice(),
			HardwareAddr: user.Attrs().HardwareAddr, State: netlink.NUD_PERMANENT,
		})
		if err != nil {
			return fmt.Errorf("%s: add the address %s of the other end as a neighbour: %w", c.KernelName, a, err)
		}
		for _, f := range former {
			if f.Is4() != a.Is4() {
				continue
			}
			if err := route(kern.Attrs().Index, f, a); err != nil {
				return fmt.Errorf("%s: route to %s: %w", c.KernelName, f, err)
			}
		}
	}
	return removeOtherAddresses(kern, c.Addresses)
}

// route makes the kernel send packets for an address to the user end, whose address via is.
func route(kernelEnd int, to, via netip.Addr) error {
	return netlink.RouteReplace(&netlink.Route{
		LinkIndex: kernelEnd, Dst: ipNet(netip.PrefixFrom(to, to.BitLen())), Gw: via.AsSlice(), Protocol: Protocol,
	})
}

func removeOtherAddresses(l netlink.Link, keep []netip.Prefix) error {
	have, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("%s: read addresses: %w", l.Attrs().Name, err)
	}
next:
	for i := range have {
		for _, p := range keep {
			if have[i].IPNet.String() == ipNet(p).String() {
				continue next
			}
		}
		if err := netlink.AddrDel(l, &have[i]); err != nil {
			return fmt.Errorf("%s: remove address %s: %w", l.Attrs().Name, have[i].IPNet, err)
		}
	}
	return nil
}

// Protocol marks the routes of the host link, as other routing daemons mark theirs (ip-route(8),
// proto). RouteSNAT finds the routes of a former process by it.
const Protocol = 83

// RouteSNAT routes packets to these addresses from the kernel to the workers: SNAT addresses that
// no interface of the node has. Replies that arrive by a steered interface do not need these
// routes. Two kinds of packets do: answers of endpoints on the node or behind an overlay, which the
// kernel routes; and packets that the workers return to the kernel, because they belong to no flow.
// Without these routes both would leave by the default route, and might loop until their TTL
// expires.
//
// It must be called with the whole list whenever one of these changes: the pair (after an Ensure
// that created it), the configured source addresses, or the node's own addresses. It removes routes
// of a former list that are not in addrs. The routes' gateway is the user end's address, so one
// permanent neighbour is enough for all. addrs must not have an address of the node: the kernel
// delivers packets to such an address locally.
func (h *HostLink) RouteSNAT(addrs []netip.Addr) error {
	want := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		want[a] = true
	}
	for _, family := range [...]int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		have, err := netlink.RouteListFiltered(family,
			&netlink.Route{LinkIndex: h.KernelIndex, Protocol: Protocol},
			netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return fmt.Errorf("host link %s: read routes: %w", h.Name, err)
		}
		for i := range have {
			a, ok := netip.AddrFromSlice(have[i].Dst.IP)
			if ok && want[a.Unmap()] {
				continue
			}
			if err := netlink.RouteDel(&have[i]); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("host link %s: remove route to %s: %w", h.Name, have[i].Dst, explain(err))
			}
		}
	}
	for _, a := range addrs {
		via := h.Addr4
		if a.Is6() {
			via = h.Addr6
		}
		if !via.IsValid() {
			return fmt.Errorf("host link %s: route to %s: the link has no address of that family", h.Name, a)
		}
		if err := route(h.KernelIndex, a, via); err != nil {
			return fmt.Errorf("host link %s: route to %s: %w", h.Name, a, explain(err))
		}
	}
	return nil
}
