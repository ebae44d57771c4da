package compare

import (
	"context"
	"net/netip"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/bench/xdpnat"
)

// xdpNAT is NAT in the kernel by an XDP program. It translates packets on the CPU on which they
// arrive: RPS steers packets only after XDP.
type xdpNAT struct {
	services []xdpnat.Service
	flows    int
	sources  func(*place) []netip.Addr
	nat      *xdpnat.NAT
}

func (x *xdpNAT) start(_ context.Context, p *place) error {
	return p.gateway.Run(func() (err error) {
		x.nat, err = xdpnat.Attach(xdpnat.Config{
			Front:    xdpnat.Port{Interface: frontDev, NextHop: p.mac(p.client)},
			Back:     xdpnat.Port{Interface: backDev, NextHop: p.mac(p.server)},
			Services: x.services, SNAT: x.sources(p), Flows: x.flows,
		})
		return err
	})
}

func (x *xdpNAT) stop() error {
	if x.nat == nil {
		return nil
	}
	n := x.nat
	x.nat = nil
	return n.Close()
}

// counters: a flow made after all flows were established means that its entry had been evicted.
func (x *xdpNAT) counters(context.Context) (map[string]uint64, error) {
	c, err := x.nat.Counters()
	return map[string]uint64{
		"xdp-nat flows made": c.Made, "xdp-nat no free port": c.NoPort, "xdp-nat no entry": c.Failed,
	}, err
}

func (*xdpNAT) diagnosis() string { return "" }

// natServices are the Services that all systems have.
func natServices(services int, protocol corev1.Protocol) (list []xdpnat.Service) {
	number := uint8(unix.IPPROTO_UDP)
	if protocol == corev1.ProtocolTCP {
		number = unix.IPPROTO_TCP
	}
	for _, o := range objects(services, protocol) {
		vip := netip.MustParseAddr(o.service.Status.LoadBalancer.Ingress[0].IP)
		s := xdpnat.Service{Frontend: netip.AddrPortFrom(vip, servicePort), Protocol: number}
		for _, e := range o.slice.Endpoints {
			s.Backends = append(s.Backends, netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), endpointPort))
		}
		list = append(list, s)
	}
	return list
}
