package compare

import (
	"errors"
	"net"
	"net/netip"

	"sluice.dev/sluice/test/bed/topo"
)

// Addresses of the traffic. The clients' range is reserved for such measurements (RFC 2544,
// appendix C.2.2); the service's address is from a documentation range (RFC 5737).
var (
	clientNet  = netip.MustParsePrefix("198.18.0.0/16")
	serviceVIP = netip.MustParseAddr("203.0.113.10")
	// Endpoints have addresses on the server's segment.
	firstEndpoint = netip.MustParseAddr("10.72.0.101")
)

const (
	servicePort, endpointPort = 80, 8080
	endpoints                 = 10 // of the service that receives the traffic

	frontDev, backDev = "front0", "back0" // interfaces of the gateway, as topo names them
)

// endpoint is the i-th endpoint of the service.
func endpoint(i int) netip.Addr {
	b := firstEndpoint.As4()
	b[3] += byte(i)
	return netip.AddrFrom4(b)
}

// isEndpoint reports whether a is the address of an endpoint of the service.
func isEndpoint(a netip.Addr) bool {
	return a.Is4() && a.Compare(firstEndpoint) >= 0 && a.Compare(endpoint(endpoints-1)) <= 0
}

// place is a network in which a system is measured; its initial state is the same for all systems.
type place struct {
	net                     *topo.Net
	client, gateway, server *topo.Host
}

// newPlace builds a network. Its interfaces have offloads only if offloads is true. Neighbours are
// permanent, because the receiver takes all packets of the server's interface and would not answer
// ARP.
func newPlace(queues int, offloads bool) (*place, error) {
	n, err := topo.New(topo.Config{Direct: true, Queues: queues, Offloads: offloads})
	if err != nil {
		return nil, err
	}
	p := &place{net: n, client: n.Clients[0], gateway: n.Gateway, server: n.Backends[0]}
	if err := p.prepare(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return p, nil
}

func (p *place) prepare() error {
	// Router and neighbour solicitations would be extra packets. The gateway keeps IPv6, because
	// kube-proxy programs both families.
	for _, h := range []*topo.Host{p.client, p.server} {
		if err := h.SetSysctl("net.ipv6.conf.all.disable_ipv6", "1"); err != nil {
			return err
		}
	}
	behind := []netip.Addr{p.server.Addr4()}
	for i := range endpoints {
		behind = append(behind, endpoint(i))
	}
	return errors.Join(
		p.gateway.Neighbour(frontDev, p.client.Interfaces[0].MAC, p.client.Addr4()),
		p.gateway.Neighbour(backDev, p.server.Interfaces[0].MAC, behind...),
		p.gateway.Route(clientNet, p.client.Addr4()))
}

// mac is the MAC address of a host's first interface.
func (p *place) mac(h *topo.Host) net.HardwareAddr { return h.Interfaces[0].MAC[:] }

// frontMAC is the MAC address to which clients send.
func (p *place) frontMAC() net.HardwareAddr { return p.gateway.Interfaces[0].MAC[:] }

// gatewayBack4 is the source address of translated packets.
func (p *place) gatewayBack4() netip.Addr { return p.gateway.Interfaces[1].Addr4.Addr() }

func (p *place) close() error { return p.net.Close() }
