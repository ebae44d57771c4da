package pipeline

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/control/maglev"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/nat/fragment"
	"sluice.dev/sluice/nat/header"
)

// The structure of every world. A pod's address determines its node's network, and each network has
// a next hop of its own.
const (
	nodes         = 64
	snatAddrs     = 4
	frontendPort  = 80
	backendPort   = 8080
	hopClient     = nexthop.ID(1)
	hopFirstNode  = nexthop.ID(2)
	viewGen       = 7
	vipBase4      = 0xc6120000 // 198.18.0.0/15, RFC 2544
	clientBase4   = 0x65000000 // 101.0.0.0
	clientPorts   = 50_000
	firstPort     = 1024
	mtu           = 1500
	startOfTime   = uint64(time.Hour)
	fragmentTable = 1024
	pinnedClients = 1000
)

var (
	macClient = [6]byte{2, 0, 0, 0, 1, 1}
	macOurs   = [6]byte{2, 0, 0, 0, 0, 1}
	macKernel = [6]byte{2, 0, 0, 0, 0, 9}
	macUser   = [6]byte{2, 0, 0, 0, 0, 8}
)

// worldConfig holds the parameters that scenarios vary.
type worldConfig struct {
	v6       bool
	services int // Services, each with a TCP and a UDP port
	backends int // of each Service
	capacity uint32
	halfOpen uint32 // 0: no separate limit
	timeouts flowtable.Timeouts
	key      flowtable.HashKey
}

// world is the state that the workers of one experiment share.
type world struct {
	worldConfig
	start  uint64 // initial time of its workers
	memory []byte
	table  *flowtable.Table
	pins   *affinity.Table
	frags  *fragment.Table
	handle services.Handle
	hops   *nexthop.Table
	gates  []*gate
	flows  []flow
}

// newWorld makes a world without workers and flows.
func newWorld(c worldConfig) (*world, error) {
	if c.halfOpen == 0 {
		c.halfOpen = c.capacity
	}
	if c.timeouts == (flowtable.Timeouts{}) {
		c.timeouts = flowtable.DefaultTimeouts()
	}
	w := &world{worldConfig: c, start: startOfTime, hops: nexthop.NewTable()}
	fc := c.tableConfig()
	size, err := flowtable.Size(fc)
	if err != nil {
		return nil, err
	}
	if w.memory, err = hugeMemory(size); err != nil {
		return nil, fmt.Errorf("flow table: %w", err)
	}
	if w.table, err = flowtable.New(w.memory, fc); err != nil {
		w.close()
		return nil, err
	}
	if w.pins, err = affinity.NewHeap(affinity.Config{Clients: pinnedClients}); err != nil {
		w.close()
		return nil, err
	}
	if w.frags, err = fragment.New(make([]atomic.Uint64, fragment.Words(fragmentTable)), [2]uint64{1, 2}); err != nil {
		w.close()
		return nil, err
	}
	w.route()
	w.publish()
	return w, nil
}

func (c *worldConfig) tableConfig() flowtable.Config {
	f := flowtable.Config{IPv4Flows: c.capacity, HalfOpen: c.halfOpen, Timeouts: c.timeouts, HashKey: c.key}
	if c.v6 {
		f.IPv4Flows, f.IPv6Flows = 0, c.capacity
	}
	return f
}

// close ends all workers. The world must not be used afterwards.
func (w *world) close() {
	for _, g := range w.gates {
		g.close()
	}
	unmap(w.memory)
	w.gates, w.table, w.memory = nil, nil, nil
}

// route adds routes to the pods through their nodes, and to all other addresses through one router.
func (w *world) route() {
	w.hops.SetHop(hopClient, &nexthop.Hop{Kind: nexthop.OnLink, Ready: true, MTU: mtu, DstMAC: macClient,
		SrcMAC: macOurs})
	r := new(bart.Table[nexthop.Route])
	for _, all := range []string{"0.0.0.0/0", "::/0"} {
		r.Insert(netip.MustParsePrefix(all), nexthop.Route{Hop: hopClient, Kind: nexthop.OnLink})
	}
	for n := range nodes {
		id := hopFirstNode + nexthop.ID(n)
		w.hops.SetHop(id, &nexthop.Hop{Kind: nexthop.OnLink, Ready: true, MTU: mtu, DstMAC: nodeMAC(n),
			SrcMAC: macOurs})
		route := nexthop.Route{Hop: id, Kind: nexthop.OnLink}
		pod4, pod6 := podAddr(false, n), podAddr(true, n)
		r.Insert(netip.PrefixFrom(pod4.Netip(), 16).Masked(), route)
		r.Insert(netip.PrefixFrom(pod6.Netip(), 64).Masked(), route)
	}
	w.hops.Publish(&nexthop.View{Generation: viewGen, Routes: r})
}

func nodeMAC(n int) [6]byte { return [6]byte{2, 0, 0, 0, 2, byte(n)} }

// publish publishes a snapshot with all services.
func (w *world) publish() {
	b := services.NewBuilder(nil)
	s := b.Settings()
	s.SelectKey = [2]uint64{3, 4}
	s.SNATPorts = services.PortRange{First: 2000, Count: 60_000}
	for i := range snatAddrs {
		a := snatAddr(w.v6, i)
		if w.v6 {
			s.SNAT6 = append(s.SNAT6, a)
		} else {
			s.SNAT4 = append(s.SNAT4, a)
		}
		b.SetAddr(a, services.AddrSNAT)
	}
	for n := range w.services {
		b.SetAddr(vipAddr(w.v6, n), services.AddrVIP)
		w.serve(b, n, w.backends)
	}
	w.handle.Store(b.Build())
}

// serve puts a Service's two ports with the given number of backends into the table.
func (w *world) serve(b *services.Builder, n, backends int) {
	w.serveBy(b, n, backends, func(names []string) []uint16 {
		return maglev.Table(names, nil, [2]uint64{5, 6}, maglev.Size(len(names)))
	})
}

// serveBy is serve with a function that makes the table from the backends' names.
func (w *world) serveBy(b *services.Builder, n, backends int, table func(names []string) []uint16) {
	for half, proto := range [2]uint8{header.ProtoTCP, header.ProtoUDP} {
		id := services.ServiceID(2*n + half + 1)
		svc := &services.Service{ID: id, Namespace: "bench", Name: "service-" + strconv.Itoa(n), Proto: proto,
			Port: frontendPort, Identity: uint64(id)}
		set := &services.EndpointSet{}
		var names []string
		for j := range backends {
			be := services.Backend{
				Addr: podAddr(w.v6, n*w.backends+j), Port: backendPort, Proto: proto, Service: id, Weight: 1,
				Ref:   services.MakeBackendRef(w.backendIndex(n, half, j), 1),
				Flags: services.BackendServing | services.BackendReady,
			}
			b.SetBackend(be)
			svc.Backends = append(svc.Backends, be.Ref)
			set.Backends = append(set.Backends, be.Ref)
			names = append(names, be.Addr.String())
		}
		set.Table = table(names)
		b.SetService(svc)
		b.SetFrontend(&services.Frontend{
			Key:     services.FrontendKey{Addr: vipAddr(w.v6, n), Port: frontendPort, Proto: proto},
			Kind:    services.LoadBalancer,
			Service: svc, Outside: services.Rule{Set: set}, Pod: services.Rule{Set: set},
		})
	}
}

func (c *worldConfig) backendIndex(service, half, j int) uint32 {
	return uint32((2*service+half)*c.backends + j + 1)
}

// backendCount is one more than the highest backend index.
func (c *worldConfig) backendCount() int { return 2*c.services*c.backends + 1 }

func addr4(v uint32) header.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], v)
	return header.AddrFrom4(b)
}

func addr6(net, host uint64) (a header.Addr) {
	binary.BigEndian.PutUint64(a[:8], net)
	binary.BigEndian.PutUint64(a[8:], host)
	return a
}

// Networks, in 2001:db8::/32.
const (
	net6       = 0x20010db8 << 32
	clientNet6 = net6 | 0xc<<16
	vipNet6    = net6 | 0xf<<16
	snatNet6   = net6 | 2<<16
	podNet6    = net6 | 1<<16
	snatBase4  = 0xc0000202 // 192.0.2.2
	podBase4   = 10 << 24
)

func vipAddr(v6 bool, n int) header.Addr {
	if v6 {
		return addr6(vipNet6, uint64(n)+1)
	}
	return addr4(vipBase4 + uint32(n))
}

func snatAddr(v6 bool, i int) header.Addr {
	if v6 {
		return addr6(snatNet6, uint64(i)+2)
	}
	return addr4(snatBase4 + uint32(i))
}

// podAddr distributes the pods over the nodes in turn.
func podAddr(v6 bool, pod int) header.Addr {
	node, host := pod%nodes, pod/nodes
	if v6 {
		return addr6(podNet6|uint64(node), uint64(host)+1)
	}
	return addr4(podBase4 | uint32(node)<<16 | uint32(host))
}

// podOf is the reverse of podAddr.
func podOf(a *header.Addr, v6 bool) int {
	if v6 {
		return int(binary.BigEndian.Uint64(a[8:])-1)*nodes + int(a[7])
	}
	return int(binary.BigEndian.Uint16(a[14:]))*nodes + int(a[13])
}

func clientAddr(v6 bool, client uint32) header.Addr {
	if v6 {
		return addr6(clientNet6, uint64(client))
	}
	return addr4(client)
}
