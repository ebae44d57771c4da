package topo

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
)

// Config describes the network to build. Zero values mean the defaults.
type Config struct {
	OneArmed   bool // everybody on one segment
	Direct     bool // no bridges: one client and one backend, each on a veth pair to the gateway
	Clients    int  // 1
	Backends   int  // 1
	Gateways   int  // 1; more are two-armed, between the same segments
	Router     bool // clients have a segment of their own, and a router between it and the gateways
	Queues     int  // of every interface, 1
	MTU        int  // of the clients' segment, 1500
	BackendMTU int  // of the backends' segment, MTU; two-armed only
	Named      bool // bind the namespaces to names in /run/netns
	Offloads   bool // the interfaces of a direct network keep the offloads that the kernel gives them
	// Front and Back are real interfaces for the gateway, of the caller's namespace; a two-armed
	// gateway has both or none.
	Front, Back Device

	// IEEE 802.1Q tags of the segments, outermost first, one or two: every host, the gateway too,
	// has its addresses on VLAN devices on top of its interface. One-armed with tags is two
	// segments on one wire.
	FrontVLANs, BackVLANs []uint16
	ServiceTag            bool // the outer one of two tags is of 802.1ad
}

// Limits of a Config.
const (
	maxHosts  = 64
	maxQueues = 16
	maxVLAN   = 4094 // IEEE 802.1Q, table 9-2
)

func (c *Config) setDefaults() {
	for _, d := range []struct {
		p *int
		v int
	}{{&c.Clients, 1}, {&c.Backends, 1}, {&c.Gateways, 1}, {&c.Queues, 1}, {&c.MTU, 1500}} {
		if *d.p == 0 {
			*d.p = d.v
		}
	}
	if c.BackendMTU == 0 {
		c.BackendMTU = c.MTU
	}
}

func (c *Config) check() error {
	switch {
	case c.Clients < 1 || c.Clients > maxHosts || c.Backends < 1 || c.Backends > maxHosts:
		return fmt.Errorf("topo: %d clients, %d backends: 1 to %d of each are possible", c.Clients, c.Backends,
			maxHosts)
	case c.Gateways < 1 || c.Gateways >= firstClient-1:
		return fmt.Errorf("topo: %d gateways: 1 to %d are possible", c.Gateways, firstClient-2)
	case (c.Gateways > 1 || c.Router) && (c.OneArmed || c.Direct || c.Front != Device{} || c.FrontVLANs != nil ||
		c.BackVLANs != nil):
		return errors.New("topo: several gateways, or a router, are for a two-armed network without tags")
	case c.Queues < 1 || c.Queues > maxQueues:
		return fmt.Errorf("topo: %d queues: 1 to %d are possible", c.Queues, maxQueues)
	case c.MTU < 1280 || c.BackendMTU < 1280:
		return fmt.Errorf("topo: MTU %d, %d: IPv6 needs 1280", c.MTU, c.BackendMTU)
	case c.Direct && (c.OneArmed || c.Clients != 1 || c.Backends != 1):
		return errors.New("topo: a direct network has one client, one backend and two segments")
	case c.Offloads && !c.Direct:
		return errors.New("topo: offloads are kept in a direct network only")
	case (c.Front == Device{}) != (c.Back == Device{}), c.Front != Device{} && (c.OneArmed || c.Direct):
		return errors.New("topo: real interfaces are for a two-armed network, both of them")
	case c.OneArmed && c.BackendMTU != c.MTU:
		return errors.New("topo: one segment has one MTU")
	}
	return c.checkVLANs()
}

func (c *Config) checkVLANs() error {
	for _, tags := range [...][]uint16{c.FrontVLANs, c.BackVLANs} {
		for _, id := range tags {
			if len(tags) > 2 || id < 1 || id > maxVLAN {
				return fmt.Errorf("topo: VLAN tags %v: one or two of 1 to %d are possible", tags, maxVLAN)
			}
		}
	}
	switch tagged := len(c.FrontVLANs)+len(c.BackVLANs) > 0; {
	case tagged && c.Direct:
		return errors.New("topo: a direct network has no tags")
	case c.OneArmed && tagged && slices.Equal(c.FrontVLANs, c.BackVLANs):
		return errors.New("topo: two segments on one wire have different tags")
	}
	return nil
}

// Prefix is how names of namespaces start.
const Prefix = "sluice-"

// Net is a network that stands. Close takes it down.
type Net struct {
	ID       string // random; part of all names and in the environment of all processes
	Clients  []*Host
	Router   *Host   // between clients and gateways; nil if there is none
	Gateway  *Host   // the first
	Gateways []*Host // all of them
	Backends []*Host

	named bool
	wire  *namespace
	hosts []*Host
	ports int // of bridges, so far

	started atomic.Bool // a process was started

	mu      sync.Mutex
	closers []func() error // of servers, processes and flows; called in reverse
	closed  bool
}

// Addressing: gateways from .1 on, their router is .9, clients from .10 on, backends from .100 on.
// On the clients' own segment the router is .1.
const (
	routerNumber = 9
	firstClient  = 10
	firstBackend = 100
)

var (
	edge4  = netip.MustParsePrefix("10.70.0.0/24")
	edge6  = netip.MustParsePrefix("fd70::/64")
	front4 = netip.MustParsePrefix("10.71.0.0/24")
	front6 = netip.MustParsePrefix("fd71::/64")
	back4  = netip.MustParsePrefix("10.72.0.0/24")
	back6  = netip.MustParsePrefix("fd72::/64")
)

// New builds the network. After an error it removes the part that it built.
func New(c Config) (*Net, error) {
	c.setDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	var id [4]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, fmt.Errorf("topo: %w", err)
	}
	n := &Net{ID: hex.EncodeToString(id[:]), named: c.Named}
	if err := n.build(&c); err != nil {
		return nil, errors.Join(fmt.Errorf("topo: %w", err), n.Close())
	}
	return n, nil
}

func (n *Net) build(c *Config) error {
	if c.Direct {
		return n.buildDirect(c)
	}
	var err error
	if n.wire, err = newNamespace(n.netnsName("wire")); err != nil {
		return err
	}
	front := &segment{bridge: "front", net4: front4, net6: front6, mtu: c.MTU, queues: c.Queues, device: c.Front,
		vlans: c.FrontVLANs, service: c.ServiceTag}
	back := front
	frontDev, backDev := "eth0", "eth0"
	if !c.OneArmed {
		back = &segment{bridge: "back", net4: back4, net6: back6, mtu: c.BackendMTU, queues: c.Queues, device: c.Back,
			vlans: c.BackVLANs, service: c.ServiceTag}
		frontDev, backDev = cmp.Or(c.Front.NIC, "front0"), cmp.Or(c.Back.NIC, "back0")
	} else if len(c.FrontVLANs)+len(c.BackVLANs) > 0 {
		back = &segment{bridge: "front", net4: back4, net6: back6, mtu: c.MTU, queues: c.Queues, vlans: c.BackVLANs,
			service: c.ServiceTag}
	}
	if err := n.wire.run(front.addBridge); err != nil {
		return err
	}
	if back.bridge != front.bridge {
		if err := n.wire.run(back.addBridge); err != nil {
			return err
		}
	}
	for i := range c.Gateways {
		name := gatewayName
		if c.Gateways > 1 {
			name = fmt.Sprintf("%s%d", gatewayName, i)
		}
		g, err := n.addHost(name)
		if err != nil {
			return err
		}
		n.Gateways = append(n.Gateways, g)
		n.Gateway = n.Gateways[0]
		if err := n.attach(g, front, frontDev, 1+i); err != nil {
			return err
		}
		if back != front {
			if err := n.attach(g, back, backDev, 1+i); err != nil {
				return err
			}
		}
	}
	if c.Router {
		return n.addRouted(c, front, back)
	}
	if n.Clients, err = n.addHosts("client", c.Clients, front, firstClient); err != nil {
		return err
	}
	n.Backends, err = n.addHosts("backend", c.Backends, back, firstBackend)
	return err
}

// addRouted adds the router, and the other hosts: clients behind it, backends behind the gateways.
func (n *Net) addRouted(c *Config, front, back *segment) (err error) {
	edge := &segment{bridge: "edge", net4: edge4, net6: edge6, mtu: c.MTU, queues: c.Queues}
	if err := n.wire.run(edge.addBridge); err != nil {
		return err
	}
	if n.Router, err = n.addHost("router"); err != nil {
		return err
	}
	if err := errors.Join(n.attach(n.Router, front, "front0", routerNumber), n.attach(n.Router, edge, "edge0", 1),
		n.Router.Forward(true)); err != nil {
		return err
	}
	for _, g := range n.Gateways {
		if err := errors.Join(g.Route(edge4, n.Router.Addr4()), g.Route(edge6, n.Router.Addr6())); err != nil {
			return err
		}
	}
	// Of several next hops a flow's addresses and ports choose one, as in routers, and not the
	// addresses alone (Documentation/networking/ip-sysctl.rst, fib_multipath_hash_policy).
	for _, family := range []string{"ipv4", "ipv6"} {
		if err := n.Router.SetSysctl("net."+family+".fib_multipath_hash_policy", "1"); err != nil {
			return err
		}
	}
	if n.Clients, err = n.addHosts("client", c.Clients, edge, firstClient); err != nil {
		return err
	}
	n.Backends, err = n.addHosts("backend", c.Backends, back, firstBackend)
	return err
}

// addHosts adds hosts with one interface each and the gateway as default route.
func (n *Net) addHosts(kind string, count int, s *segment, first int) ([]*Host, error) {
	var hosts []*Host
	for i := range count {
		h, err := n.addHost(fmt.Sprintf("%s%d", kind, i))
		if err != nil {
			return nil, err
		}
		if err := n.attach(h, s, "eth0", first+i); err != nil {
			return nil, err
		}
		if err := h.routeVia(nth(s.net4, 1), nth(s.net6, 1)); err != nil {
			return nil, err
		}
		hosts = append(hosts, h)
	}
	return hosts, nil
}

// routeVia makes gateways the default routes of a host.
func (h *Host) routeVia(via4, via6 netip.Addr) error {
	return errors.Join(
		h.Route(netip.PrefixFrom(netip.IPv4Unspecified(), 0), via4),
		h.Route(netip.PrefixFrom(netip.IPv6Unspecified(), 0), via6))
}

// gatewayName is the name of the gateway's host; of several it is followed by a number.
const gatewayName = "gateway"

// addHost makes a namespace in which nothing but the loopback device is up.
func (n *Net) addHost(name string) (*Host, error) {
	ns, err := newNamespace(n.netnsName(name))
	if err != nil {
		return nil, err
	}
	ports := "10000 65000"
	if strings.HasPrefix(name, gatewayName) {
		ports = "32768 60999" // Linux's default, so that SNAT ports are free
	}
	h := &Host{Name: name, net: n, ns: ns}
	n.hosts = append(n.hosts, h)
	return h, h.Run(func() error {
		for _, s := range []struct{ name, value string }{
			{"net/ipv4/conf/all/rp_filter", "0"},
			{"net/ipv4/conf/all/send_redirects", "0"},
			{"net/ipv4/conf/all/accept_redirects", "0"},
			{"net/ipv4/ip_local_port_range", ports},
		} {
			if err := sysctl(s.name, s.value); err != nil {
				return err
			}
		}
		return bringUp("lo")
	})
}

// attach gives a host an address on a segment, by an interface that it has or gets.
func (n *Net) attach(h *Host, s *segment, dev string, number int) error {
	if slices.Contains(n.Gateways, h) && s.device != (Device{}) {
		if err := s.plugDevice(h.ns, n.wire); err != nil {
			return err
		}
		return h.address(dev, true, s, number)
	}
	if !slices.ContainsFunc(h.Interfaces, func(i Interface) bool { return i.Name == dev }) {
		if err := n.plug(h, s, dev); err != nil {
			return err
		}
	}
	return h.address(dev, false, s, number)
}

// plug gives a host an interface on a segment's bridge.
func (n *Net) plug(h *Host, s *segment, dev string) error {
	h.port = fmt.Sprintf("%s-p%d", s.bridge, n.ports)
	n.ports++
	return n.wire.run(func() error {
		if err := s.plug(h.ns, h.port, dev); err != nil || !slices.Contains(n.Gateways, h) || s.queues == 1 {
			return err
		}
		spread, err := spreadFlows(h.port, s.queues)
		if err == nil {
			n.onClose(spread.Close)
		}
		return err
	})
}

// address gives a host's interface, or the VLAN device on top of it, its addresses on a segment and
// brings it up.
func (h *Host) address(dev string, real bool, s *segment, number int) error {
	i := Interface{
		Name:  dev,
		Addr4: netip.PrefixFrom(nth(s.net4, number), s.net4.Bits()),
		Addr6: netip.PrefixFrom(nth(s.net6, number), s.net6.Bits()),
	}
	err := h.Run(func() (err error) {
		if len(s.vlans) == 0 {
			err = configure(dev, real, i.Addr4, i.Addr6)
		} else if err = configure(dev, real); err == nil {
			if i.VLAN, err = addVLANs(dev, real, s.vlans, s.service); err == nil {
				err = configure(i.VLAN, real, i.Addr4, i.Addr6)
			}
		}
		if err != nil {
			return err
		}
		link, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		copy(i.MAC[:], link.Attrs().HardwareAddr)
		i.MTU = link.Attrs().MTU
		return nil
	})
	h.Interfaces = append(h.Interfaces, i)
	return err
}

func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().AsSlice()
	b[len(b)-1] = byte(n)
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (n *Net) netnsName(host string) string {
	if !n.named {
		return ""
	}
	return Prefix + n.ID + "-" + host
}

// onClose has f called by Close.
func (n *Net) onClose(f func() error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closers = append(n.closers, f)
}

// Close stops everything that runs in the network and removes it. It may be
// called twice.
func (n *Net) Close() error {
	n.mu.Lock()
	closers, closed := n.closers, n.closed
	n.closers, n.closed = nil, true
	n.mu.Unlock()
	if closed {
		return nil
	}
	var errs []error
	for i := len(closers) - 1; i >= 0; i-- {
		errs = append(errs, closers[i]())
	}
	if n.started.Load() {
		errs = append(errs, n.endProcesses())
	}
	for _, h := range n.hosts {
		errs = append(errs, h.ns.close())
	}
	if n.wire != nil {
		errs = append(errs, n.wire.close())
	}
	return errors.Join(errs...)
}
