package stateless

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"sluice.dev/sluice/host/nic/ethtool"
	"sluice.dev/sluice/test/bed/topo"
)

// ErrNotYours is returned where traffic would go to a network that nobody said it
// may go to.
var ErrNotYours = errors.New("sending test traffic here was not permitted")

// ParsePort reads "eth0" or "eth0@client": an interface in the namespace of this
// process, or in one that ip-netns(8) knows by name. Close the port when done.
func ParsePort(s string) (Port, error) {
	name, ns, named := strings.Cut(s, "@")
	if name == "" || (named && ns == "") || filepath.Base(ns) != ns && named {
		return Port{}, fmt.Errorf("%q: want INTERFACE or INTERFACE@NAMESPACE, as `ip netns` lists namespaces", s)
	}
	p := Port{Interface: name}
	if named {
		space, err := topo.OpenSpace(ns)
		if err != nil {
			return Port{}, fmt.Errorf("%s: %w", s, err)
		}
		p.Namespace = space
	}
	return p, nil
}

// String is what ParsePort reads, without the namespace.
func (p Port) String() string { return p.Interface }

// Run calls f in the port's namespace.
func (p *Port) Run(f func() error) error {
	if p.Namespace == nil {
		return f()
	}
	return p.Namespace.Run(f)
}

// attributes returns the kernel's attributes of the interface.
func (p *Port) attributes() (a *netlink.LinkAttrs, err error) {
	err = p.Run(func() error {
		link, err := netlink.LinkByName(p.Interface)
		if err == nil {
			a = link.Attrs()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", p.Interface, err)
	}
	return a, nil
}

// MAC is the interface's address.
func (p *Port) MAC() (net.HardwareAddr, error) {
	a, err := p.attributes()
	if err != nil {
		return nil, err
	}
	return a.HardwareAddr, nil
}

// queues counts the interface's receive and transmit queues: one each where the driver does
// not tell.
func (p *Port) queues() (rx, tx int, err error) {
	err = p.Run(func() error {
		rx, tx = 1, 1
		if c, err := ethtool.ReadChannels(p.Interface); err == nil {
			rx, tx = c.Queues()
		}
		return nil
	})
	return rx, tx, err
}

// losses reads the counters of packets that the interface lost.
func (p *Port) losses() (map[string]uint64, error) {
	a, err := p.attributes()
	if err != nil || a.Statistics == nil {
		return nil, err
	}
	s := a.Statistics
	return map[string]uint64{
		"rx_dropped": s.RxDropped, "rx_errors": s.RxErrors, "rx_missed_errors": s.RxMissedErrors,
		"tx_dropped": s.TxDropped, "tx_errors": s.TxErrors,
	}, nil
}

// Guard refuses to send where real traffic may be: in the machine's own namespace, and
// on an interface with a default route. The error is ErrNotYours.
func (p *Port) Guard() error {
	home, err := netns.GetFromPid(1)
	if errors.Is(err, fs.ErrPermission) { // a container without the right: its own namespace
		home, err = netns.Get()
	}
	if err != nil {
		return fmt.Errorf("find the machine's own namespace: %w", err)
	}
	defer home.Close()
	return p.Run(func() error {
		here, err := netns.Get()
		if err != nil {
			return fmt.Errorf("find the interface's namespace: %w", err)
		}
		defer here.Close()
		const remedy = "permit it (--i-own-this-network) if this network is yours to load"
		if home.Equal(here) {
			return fmt.Errorf("%w: %s is in the machine's own network namespace: use one made for it, or %s",
				ErrNotYours, p.Interface, remedy)
		}
		link, err := netlink.LinkByName(p.Interface)
		if err != nil {
			return fmt.Errorf("interface %s: %w", p.Interface, err)
		}
		routes, err := netlink.RouteList(link, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("interface %s: routes: %w", p.Interface, err)
		}
		for _, r := range routes {
			if r.Dst == nil || r.Dst.IP.IsUnspecified() {
				return fmt.Errorf("%w: %s has a default route, so what is sent may leave this machine: %s", ErrNotYours,
					p.Interface, remedy)
			}
		}
		return nil
	})
}
