package topo

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/test/bed/machine"
)

// Host is a namespace of the network.
type Host struct {
	Name       string
	Interfaces []Interface

	net  *Net
	ns   *namespace
	port string // of a bridge: the other end of the interface that was attached last
}

// Interface is an interface of a host.
type Interface struct {
	Name         string
	VLAN         string // the device on top of it that has the addresses; empty where it has them itself
	Addr4, Addr6 netip.Prefix
	MAC          [6]byte
	MTU          int
}

// device returns the device that has the addresses.
func (i *Interface) device() string {
	if i.VLAN != "" {
		return i.VLAN
	}
	return i.Name
}

// Addr4 and Addr6 are the addresses of the host's first interface.
func (h *Host) Addr4() netip.Addr { return h.Interfaces[0].Addr4.Addr() }

// Addr6 is the IPv6 twin of Addr4.
func (h *Host) Addr6() netip.Addr { return h.Interfaces[0].Addr6.Addr() }

// NetnsName is the name under which `ip netns exec` knows the host; empty unless
// the network is Named.
func (h *Host) NetnsName() string { return h.ns.name }

// Run calls f on a thread in the host's namespace. Goroutines that f starts are
// not in it.
func (h *Host) Run(f func() error) error {
	if err := h.ns.run(f); err != nil {
		return fmt.Errorf("%s: %w", h.Name, err)
	}
	return nil
}

// dialTimeout bounds a dial whose context does not.
var dialTimeout = machine.Slower(10 * time.Second)

// Dial connects from the host. The address must be a literal: there is no DNS.
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("%s: dial: %w", h.Name, err)
	}
	var c net.Conn
	err := h.Run(func() (err error) {
		// With one literal address the dialer makes its socket on this goroutine.
		d := net.Dialer{Timeout: dialTimeout, KeepAlive: -1}
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// Listen listens on the host.
func (h *Host) Listen(network, address string) (net.Listener, error) {
	var l net.Listener
	err := h.Run(func() (err error) {
		l, err = net.Listen(network, address)
		return err
	})
	return l, err
}

// ListenPacket makes a packet socket on the host.
func (h *Host) ListenPacket(network, address string) (net.PacketConn, error) {
	var c net.PacketConn
	err := h.Run(func() (err error) {
		c, err = net.ListenPacket(network, address)
		return err
	})
	return c, err
}

// SetSysctl sets a network setting of the host, named as in sysctl(8):
// "net.ipv4.ip_forward". An interface name with dots is written with slashes.
func (h *Host) SetSysctl(name, value string) error {
	if !strings.Contains(name, "/") {
		name = strings.ReplaceAll(name, ".", "/")
	}
	return h.Run(func() error { return sysctl(name, value) })
}

// Forward makes the host's kernel forward, or not, both families.
func (h *Host) Forward(on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	if err := h.SetSysctl("net.ipv4.ip_forward", value); err != nil {
		return err
	}
	return h.SetSysctl("net.ipv6.conf.all.forwarding", value)
}

// AdvertiseMTU makes TCP on the host announce segment sizes for links of this MTU
// (not its own), towards hosts on other segments. Where a link on the way is
// narrower, the other side then has to find out by path MTU discovery (RFC 1191, RFC 8201).
func (h *Host) AdvertiseMTU(mtu int) error {
	const ip4AndTCP, ip6AndTCP = 40, 60
	return h.Run(func() error {
		for _, family := range [...]struct{ family, headers int }{
			{netlink.FAMILY_V4, ip4AndTCP}, {netlink.FAMILY_V6, ip6AndTCP},
		} {
			routes, err := netlink.RouteList(nil, family.family)
			if err != nil {
				return fmt.Errorf("read routes: %w", err)
			}
			for i := range routes {
				r := &routes[i]
				if ones, _ := r.Dst.Mask.Size(); ones != 0 || r.Gw == nil {
					continue
				}
				r.AdvMSS = mtu - family.headers
				if err := netlink.RouteReplace(r); err != nil {
					return fmt.Errorf("announce MTU %d: %w", mtu, err)
				}
			}
		}
		return nil
	})
}
