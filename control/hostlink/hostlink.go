// Package hostlink makes the host link: a veth pair of our own, the way back into
// the kernel.
//
//	workers ──AF_XDP──▶ sluice0 ══veth══ sluice1 ──▶ the kernel: its own endpoints,
//	   ▲                (our end)        (its end)    overlays, everything steered
//	   └────AF_XDP──── sluice0 ══════════ sluice1 ◀── here that is not ours
//
// An AF_XDP socket cannot pass a frame on to the stack behind it. So what the
// kernel should have is transmitted on our end and received by the kernel on its end,
// like a packet from a wire. The kernel's end has an address for each family, and we
// have one too: packets to node-local and kernel-routed endpoints can leave with it as
// their source, and the replies come back to us. Our address exists only as a permanent
// neighbour on the kernel's end; our end carries no address and no IPv6, so the kernel
// does not take part on that side even while no XDP program is attached.
//
// # What is set, and why
//
// On the kernel's end, under net.ipv4.conf:
//
//	rp_filter=2        Packets from clients enter here although the route back to them
//	                   leads elsewhere. Strict (1) would drop them. The kernel takes the
//	                   larger of "all" and this one (Documentation/networking/ip-sysctl.rst),
//	                   so 0 would not win over a strict "all", but loose (2) does.
//	accept_local=1     A source address may be one of the node's own: replies to node-local
//	                   endpoints are translated to a node address. Without it such packets
//	                   are martians.
//	forwarding=1       IPv4 asks the receiving interface whether it forwards. Needed for
//	                   endpoints behind overlays.
//	accept_redirects=0, send_redirects=0
//	                   A packet that comes in here and leaves where it first arrived is
//	                   no reason to tell its sender about a shorter way.
//
// Under net.ipv6.conf:
//
//	forwarding=1, force_forwarding=1
//	                   IPv6 asks net.ipv6.conf.all.forwarding, which is the node's to set
//	                   and is left alone; kernels from 6.17 on can be told per interface.
//	accept_ra=0, autoconf=0, router_solicitations=0
//	                   There is no router at the other end.
//	accept_dad=0, dad_transmits=0
//	                   No other host is on the link; a tentative address would lose packets.
//	addr_gen_mode=1    No link-local address, which nothing needs.
//
// On our end: addr_gen_mode=1 and disable_ipv6=1 (no addresses), forwarding=0 and
// arp_ignore=8 for IPv4 (nothing is answered and nothing is sent on in a circle
// while no socket is bound).
//
// Offloads of checksums, segmentation and aggregation are off at both ends: a veth
// would hand over packets with unfinished checksums (CHECKSUM_PARTIAL) and of up to
// 64 KiB, which an AF_XDP socket sees as they are. VLAN offload is off for the same reason.
//
// # Whose it is
//
// A pair belongs to one process: two that adopted the same one would take each
// other's sockets and programs from it. Ensure binds an abstract Unix socket named after
// our end; it keeps a second instance out and vanishes with the process that has it. The
// pair itself stays when the process is killed, for the next one to adopt.
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
	Name       string // our end
	KernelName string // the kernel's end
	Queues     int    // receive and transmit queues of both ends: one for each worker
	MTU        int
	// Addresses of the kernel's end, at most one of each family, with the prefix
	// of the link. The next address of the prefix is ours.
	Addresses []netip.Prefix
	// HostProcSys is where sysctls are written if /proc/sys is mounted read-only, as in a
	// container: the host's /proc/sys/net is to be mounted at its net. Empty is HostProcSys.
	HostProcSys string
}

// HostLink is the pair as it is.
type HostLink struct {
	Name, KernelName   string
	Index, KernelIndex int
	MAC, KernelMAC     [6]byte
	MTU                int
	Queues             int
	// Our addresses on the link; invalid where the family has none.
	Addr4, Addr6 netip.Addr
	// Created: the pair did not exist before.
	Created bool
	// Former are the addresses of our end that an adopted pair had by another configuration and has
	// no more. Flows may have them as their source.
	Former []netip.Addr

	lock *lock // nil if an earlier HostLink of this process has it
}

// ErrForeign is returned when an interface of one of the two names exists that
// is not one end of such a pair. Nothing was changed.
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
		if _, err := ours(p); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

const minMTU = 1280

// ours is our address on the link: the one after the kernel's.
func ours(p netip.Prefix) (netip.Addr, error) {
	a := p.Addr().Next()
	if !a.IsValid() || !p.Contains(a) {
		return netip.Addr{}, fmt.Errorf("address %s: the prefix has no next address for our end", p)
	}
	return a, nil
}

// Ensure creates the pair, or adopts the one that a former process left, and configures it by c.
// Another call repairs what has changed since; a pair that was deleted is created again, with other
// indexes and MACs.
//
// The pair is this process's until Remove or the process's end; for any other, Ensure
// is ErrInUse.
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

// Find returns the pair that another process of this network namespace has and gives to this one,
// and changes nothing of it: MTU is what it has, not what c asks for. Ensure is for who owns it.
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
	former, err := formerAddresses(c)
	if err != nil {
		return nil, err
	}
	if err := configure(c, created); err != nil {
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

// ends finds the two ends, which are both nil if neither is there. Interfaces that have the names
// and are not the ends of one pair are ErrForeign.
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
	// A peer in another namespace has an index of that namespace.
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

// Remove deletes the pair and with it its routes and neighbours. It is no error if
// it is gone already.
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
		a, err := ours(p)
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
