package conformance

import (
	"errors"
	"fmt"
	"net/netip"

	"sluice.dev/sluice/test/bed/topo"
)

// Configuration of both systems.
const (
	gatewayNode = "gateway"
	gatewayZone = "a"
	// Pods' addresses; the addresses of clients and backends in the topology are outside of it.
	clusterCIDR4, clusterCIDR6 = "10.74.0.0/16", "fd74::/64"
	// Addresses of the gateway that accept node ports: the addresses of its front interface.
	nodePorts4, nodePorts6 = "10.71.0.0/24", "fd71::/64"
)

// Kinds of clients.
const (
	outside = "outside" // client 0, by its own address
	crowd   = "crowd"   // client 0, by many addresses in turn
	other   = "other"   // client 1
	pod     = "pod"     // client 1, by an address of clusterCIDR
	fromB0  = "b0"      // backend 0, by its own address
	podB0   = "pod-b0"  // backend 0, by an address of clusterCIDR
)

// crowdSize is how many clients a crowd is: that all of them get the same of two
// backends by chance happens once in 2^31 runs.
const crowdSize = 32

// world is a topology with its servers, the same for every system.
type world struct {
	*topo.Net
	servers []*server
}

// backends is their number. Their segment has one more host, which routes to addresses beyond it.
const backends = 3

// backendName returns the name of a backend: b0, b1, b2, and "local" on the gateway itself.
func backendName(i int) string { return fmt.Sprintf("b%d", i) }

func newWorld() (*world, error) {
	n, err := topo.New(topo.Config{Clients: 2, Backends: backends + 1})
	if err != nil {
		return nil, err
	}
	w := &world{Net: n}
	if err := w.build(); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *world) build() error {
	if err := w.Gateway.Forward(true); err != nil {
		return err
	}
	// Kernels send few ICMP errors to one client; here all refusals go to a few.
	for _, s := range []struct{ name, value string }{
		{"net.ipv4.icmp_ratelimit", "0"}, {"net.ipv4.icmp_msgs_per_sec", "100000"},
		{"net.ipv4.icmp_msgs_burst", "10000"}, {"net.ipv6.icmp.ratelimit", "0"},
	} {
		if err := w.Gateway.SetSysctl(s.name, s.value); err != nil {
			return err
		}
	}
	for i := range crowdSize {
		_, four := w.client(crowd, false, i)
		_, six := w.client(crowd, true, i)
		if err := w.Clients[0].AddAddresses("eth0", netip.PrefixFrom(four, 32),
			netip.PrefixFrom(six, 128)); err != nil {
			return err
		}
	}
	if err := w.addPod(w.Clients[1], 10); err != nil {
		return err
	}
	if err := w.addBeyond(); err != nil {
		return err
	}
	for i, b := range w.Backends[:backends] {
		if err := w.addPod(b, 100+i); err != nil {
			return err
		}
		four, six := podAddress(100 + i)
		s, err := serve(b, backendName(i), b.Addr4(), b.Addr6(), four, six)
		if err != nil {
			return err
		}
		w.servers = append(w.servers, s)
	}
	if err := w.addSilence(); err != nil {
		return err
	}
	s, err := serve(w.Gateway, "local", w.Gateway.Addr4(), w.Gateway.Addr6())
	if err == nil {
		w.servers = append(w.servers, s)
	}
	return err
}

// The address of a backend that is there and never says anything.
const silent4, silent6 = "10.72.0.200", "fd72::c8"

// late4 is one more of that kind, whose answers are crafted.
const late4 = "10.72.0.201"

// addSilence has the gateway send packets for the silent addresses to backend 2, which has no such
// addresses and does not forward.
func (w *world) addSilence() error {
	return w.Gateway.Neighbour(w.Gateway.Interfaces[1].Name, w.Backends[2].Interfaces[0].MAC,
		netip.MustParseAddr(silent4), netip.MustParseAddr(silent6), netip.MustParseAddr(late4))
}

func (w *world) close() error {
	for _, s := range w.servers {
		s.close()
	}
	return w.Net.Close()
}

func podAddress(n int) (four, six netip.Addr) {
	return netip.MustParseAddr(fmt.Sprintf("10.74.0.%d", n)), netip.MustParseAddr(fmt.Sprintf("fd74::%x", n))
}

// addPod gives a host a pod's addresses, which the gateway routes to it.
func (w *world) addPod(h *topo.Host, n int) error {
	four, six := podAddress(n)
	p4, p6 := netip.PrefixFrom(four, 32), netip.PrefixFrom(six, 128)
	return errors.Join(h.AddAddresses("eth0", p4, p6), w.Gateway.Route(p4, h.Addr4()), w.Gateway.Route(p6, h.Addr6()))
}

// client is where connection number i of a kind of client comes from.
func (w *world) client(kind string, six bool, i int) (*topo.Host, netip.Addr) {
	pick := func(h *topo.Host, four, six6 netip.Addr) (*topo.Host, netip.Addr) {
		if six {
			return h, six6
		}
		return h, four
	}
	switch kind {
	case crowd:
		return pick(w.Clients[0], netip.MustParseAddr(fmt.Sprintf("10.71.0.%d", 50+i%crowdSize)),
			netip.MustParseAddr(fmt.Sprintf("fd71::%x", 0x50+i%crowdSize)))
	case other:
		return pick(w.Clients[1], w.Clients[1].Addr4(), w.Clients[1].Addr6())
	case pod:
		four, six6 := podAddress(10)
		return pick(w.Clients[1], four, six6)
	case fromB0:
		return pick(w.Backends[0], w.Backends[0].Addr4(), w.Backends[0].Addr6())
	case podB0:
		four, six6 := podAddress(100)
		return pick(w.Backends[0], four, six6)
	}
	return pick(w.Clients[0], w.Clients[0].Addr4(), w.Clients[0].Addr6())
}

// ofGateway reports whether an address is one that the gateway translates to.
func (w *world) ofGateway(address string) bool {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return false
	}
	for _, i := range w.Gateway.Interfaces {
		if a == i.Addr4.Addr() || a == i.Addr6.Addr() {
			return true
		}
	}
	// Towards servers of its own Sluice speaks from the workers' end of the host link.
	return hostLink4.Contains(a) || hostLink6.Contains(a)
}

// The defaults of hostLink.addresses.
var hostLink4, hostLink6 = netip.MustParsePrefix("192.0.0.0/30"), netip.MustParsePrefix("fd73:6c75:6963:6500::/126")
