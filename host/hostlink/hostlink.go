// Package hostlink makes the host link: a veth pair by which workers give packets to the kernel and
// get packets from it.
//
//	workers ──AF_XDP──▶ sluice0 ══veth══ sluice1 ──▶ the kernel: its own endpoints,
//	   ▲                (user end)      (kernel end)  overlays, all steered packets
//	   └────AF_XDP──── sluice0 ══════════ sluice1 ◀── that belong to no flow
//
// An AF_XDP socket cannot pass a frame on to the network stack. So a worker transmits packets for
// the kernel on the user end, and the kernel receives them on its end, like packets from a wire.
// Each end has an address of each family. Packets to node-local and kernel-routed endpoints can
// have the user end's address as their source, and the replies then come back to the workers. The
// user end's address exists only as a permanent neighbour on the kernel's end. The user end itself
// has no address and no IPv6, so the kernel does not use that side even while no XDP program is
// attached.
//
// # Settings
//
// On the kernel's end, under net.ipv4.conf:
//
//	rp_filter=2        Packets from clients arrive here although the route back to them
//	                   uses another interface. Strict (1) would drop them. The kernel uses
//	                   the larger of "all" and this one (Documentation/networking/ip-sysctl.rst),
//	                   so 0 would not override a strict "all", but loose (2) does.
//	accept_local=1     A source address may be one of the node's own: replies to node-local
//	                   endpoints are translated to a node address. Without it such packets
//	                   are martians.
//	forwarding=1       IPv4 forwards a packet only if its receiving interface has this
//	                   setting. Needed for endpoints behind overlays.
//	accept_redirects=0, send_redirects=0
//	                   A packet that arrives here and leaves by the interface where the
//	                   gateway received it needs no ICMP redirect.
//
// Under net.ipv6.conf:
//
//	forwarding=1, force_forwarding=1
//	                   IPv6 uses net.ipv6.conf.all.forwarding, which the node's operator
//	                   sets; Linux 6.17 and later have a setting per interface.
//	accept_ra=0, autoconf=0, router_solicitations=0
//	                   There is no router at the other end.
//	accept_dad=0, dad_transmits=0
//	                   No other host is on the link; a tentative address would lose packets.
//	addr_gen_mode=1    No link-local address: none is needed.
//
// On the user end: addr_gen_mode=1 and disable_ipv6=1 (no addresses), forwarding=0 and arp_ignore=8
// for IPv4 (while no socket is bound, the kernel answers no packet and forwards none in a loop).
//
// Offloads of checksums, segmentation and aggregation are off at both ends: with them a veth
// delivers packets with unfinished checksums (CHECKSUM_PARTIAL) and of up to 64 KiB, which an
// AF_XDP socket receives unchanged. VLAN offload is off for the same reason.
//
// # Ownership
//
// A pair belongs to one process: two processes with the same pair would replace each other's
// sockets and programs. Ensure binds an abstract Unix socket named after the user end, which
// excludes a second instance and ends with its process. The pair itself stays when the process is
// killed, and the next process adopts it.
package hostlink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Config describes the wanted pair, in the network namespace of the calling thread.
type Config struct {
	Name       string // the user end
	KernelName string // the kernel's end
	Queues     int    // receive and transmit queues of both ends: one for each worker
	MTU        int
	// Addresses of the kernel's end, at most one of each family, with the prefix of the link. The
	// next address of the prefix is the user end's.
	Addresses []netip.Prefix
	// HostProcSys is the directory where sysctls are written if /proc/sys is mounted read-only, as
	// in a container. The host's /proc/sys/net must be mounted at its subdirectory net. Empty is
	// the constant HostProcSys.
	HostProcSys string
}

// HostLink describes the existing pair.
type HostLink struct {
	Name, KernelName   string
	Index, KernelIndex int
	MAC, KernelMAC     [6]byte
	MTU                int
	Queues             int
	// Addr4 and Addr6 are the user end's addresses; invalid if the family has none.
	Addr4, Addr6 netip.Addr
	// Created: the pair did not exist before.
	Created bool
	// Former has the addresses that an adopted pair's user end had in an earlier configuration, and
	// no longer has. Flows may have them as their source: they are routed to the user end until
	// RouteSNAT is called without them.
	Former []netip.Addr

	lock *lock // nil if an earlier HostLink of this process has it
}

// ErrForeign is returned if an interface has one of the two names but is not an end of such a pair.
// Nothing was changed.
var ErrForeign = errors.New("an interface of this name exists and is not a host link")

func (c *Config) check() error {
	var errs []error
	for _, name := range [...]string{c.Name, c.KernelName} {
		if name == "" || len(name) >= unix.IFNAMSIZ {
			errs = append(errs, fmt.Errorf("interface name %q: must have 1 to %d characters", name, unix.IFNAMSIZ-1))
		}
	}
	if c.Name == c.KernelName {
		errs = append(errs, fmt.Errorf("both ends are named %q", c.Name))
	}
	if c.Queues < 1 {
		errs = append(errs, fmt.Errorf("%d queues: at least 1 is needed", c.Queues))
	}
	if c.MTU < minMTU {
		errs = append(errs, fmt.Errorf("MTU %d: IPv6 needs %d (RFC 8200 section 5)", c.MTU, minMTU))
	}
	families := map[bool]bool{}
	for _, p := range c.Addresses {
		if families[p.Addr().Is4()] {
			errs = append(errs, fmt.Errorf("address %s: the family has one already", p))
		}
		families[p.Addr().Is4()] = true
		if _, err := userAddress(p); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

const minMTU = 1280

// userAddress returns the user end's address: the one after the kernel's.
func userAddress(p netip.Prefix) (netip.Addr, error) {
	a := p.Addr().Next()
	if !a.IsValid() || !p.Contains(a) {
		return netip.Addr{}, fmt.Errorf("address %s: the prefix has no next address for the other end", p)
	}
	return a, nil
}

// Ensure creates the pair, or adopts the pair of a former process, and configures it as in c. A
// further call repairs changes; it creates a deleted pair again, with other indexes and MAC
// addresses.
//
// This process has the pair until Remove or the end of the process; in any other process Ensure
// returns ErrInUse.
func Ensure(c Config) (*HostLink, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("host link: %w", err)
	}
	l, err := takeLock(c.Name)
	if err != nil {
		return nil, fmt.Errorf("host link %s: %w", c.Name, err)
	}
	h, err := ensure(&c)
	if err != nil {
		l.release()
		return nil, fmt.Errorf("host link %s: %w", c.Name, explain(err))
	}
	h.lock = l
	return h, nil
}

// Find returns the pair that another process of this network namespace has and hands over to this
// one. It changes nothing: MTU is the pair's actual MTU, not c's. Only the owner of the pair may
// call Ensure.
func Find(c Config) (*HostLink, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("host link: %w", err)
	}
	h, err := c.find()
	if err != nil {
		return nil, fmt.Errorf("host link %s: %w", c.Name, err)
	}
	return h, nil
}

func (c *Config) find() (*HostLink, error) {
	user, kern, err := ends(c.Name, c.KernelName)
	if err != nil {
		return nil, err
	}
	if user == nil {
		return nil, errors.New("it does not exist")
	}
	h, err := read(c, false)
	if err == nil {
		h.MTU = min(user.Attrs().MTU, kern.Attrs().MTU)
	}
	return h, err
}

func explain(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w (CAP_NET_ADMIN is needed)", err)
	}
	return err
}

func ensure(c *Config) (*HostLink, error) {
	if err := noOrphan(c); err != nil {
		return nil, err
	}
	created, err := pair(c)
	if err != nil {
		return nil, err
	}
	former, err := formerUserAddresses(c)
	if err != nil {
		return nil, err
	}
	if err := configure(c, former); err != nil {
		if created {
			return nil, errors.Join(err, remove(c.Name))
		}
		return nil, err
	}
	h, err := read(c, created)
	if err == nil {
		h.Former = former
	}
	return h, err
}

// pair finds or creates the two ends.
func pair(c *Config) (created bool, err error) {
	user, kern, err := ends(c.Name, c.KernelName)
	if err == nil && user == nil && kern == nil {
		return true, create(c)
	}
	return false, err
}

// ends finds the two ends, which are both nil if neither exists. It returns ErrForeign if
// interfaces with these names are not the ends of one pair.
func ends(name, kernelName string) (user, kern netlink.Link, err error) {
	if user, err = find(name); err != nil {
		return nil, nil, err
	}
	if kern, err = find(kernelName); err != nil || user == nil && kern == nil {
		return nil, nil, err
	}
	for _, end := range [...]struct {
		name string
		link netlink.Link
	}{{name, user}, {kernelName, kern}} {
		if end.link == nil {
			continue
		}
		if _, ok := end.link.(*netlink.Veth); !ok {
			return nil, nil, fmt.Errorf("%s is a %s: %w", end.name, end.link.Type(), ErrForeign)
		}
	}
	// If the peer is in another namespace, its index is valid only there.
	if user == nil || kern == nil || user.Attrs().NetNsID != -1 || user.Attrs().ParentIndex != kern.Attrs().Index {
		return nil, nil, fmt.Errorf("%s and %s are not the two ends of one pair: %w", name, kernelName, ErrForeign)
	}
	return user, kern, nil
}

// find returns nil if there is no such interface.
func find(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	return l, err
}

func create(c *Config) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = c.Name, c.MTU
	attrs.NumTxQueues, attrs.NumRxQueues = c.Queues, c.Queues
	v := netlink.NewVeth(attrs)
	v.PeerName = c.KernelName
	if err := netlink.LinkAdd(v); err != nil {
		return fmt.Errorf("create the pair: %w", err)
	}
	return nil
}

// Remove deletes the pair with its routes and neighbours. It returns no error if the pair no longer
// exists.
func (h *HostLink) Remove() error {
	if err := remove(h.Name); err != nil {
		return fmt.Errorf("host link %s: %w", h.Name, explain(err))
	}
	h.lock.release()
	h.lock = nil
	return nil
}

func remove(name string) error {
	l, err := find(name)
	if l == nil || err != nil {
		return err
	}
	if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete the pair: %w", err)
	}
	return nil
}

func read(c *Config, created bool) (*HostLink, error) {
	h := &HostLink{Name: c.Name, KernelName: c.KernelName, MTU: c.MTU, Queues: c.Queues, Created: created}
	for _, end := range [...]struct {
		name  string
		index *int
		mac   *[6]byte
	}{{c.Name, &h.Index, &h.MAC}, {c.KernelName, &h.KernelIndex, &h.KernelMAC}} {
		l, err := netlink.LinkByName(end.name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", end.name, err)
		}
		*end.index = l.Attrs().Index
		if copy(end.mac[:], l.Attrs().HardwareAddr) != len(end.mac) {
			return nil, fmt.Errorf("%s has no Ethernet address", end.name)
		}
	}
	for _, p := range c.Addresses {
		a, err := userAddress(p)
		if err != nil {
			return nil, err
		}
		if a.Is4() {
			h.Addr4 = a
		} else {
			h.Addr6 = a
		}
	}
	return h, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
