package fastpath_test

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/nat/fragment"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/test/bed/memlink"
)

// The lab's addresses. Clients and backends are behind one NIC (link 0); link 1 is the host link.
const (
	client4, client6   = "198.51.100.7", "2001:db8:c::7"
	vip4, vip6         = "203.0.113.10", "2001:db8:f::10"
	keepVIP            = "203.0.113.11" // keeps the client's address
	emptyVIP           = "203.0.113.12" // no endpoints anywhere
	dropVIP            = "203.0.113.13" // endpoints elsewhere only
	localVIP           = "203.0.113.14" // endpoint on this node
	node4              = "192.0.2.1"
	snat4, snat6       = "10.0.1.2", "2001:db8:1::2"
	backend4, backend6 = "10.0.1.11", "2001:db8:1::11"
	second4            = "10.0.1.12"
	local4             = "10.244.0.5"
	groupSource        = "192.0.2.88"
	hostSource         = "192.0.0.1"

	hopClient, hopBackend nexthop.ID = 1, 2

	frames, frameSize, ringSize = 1024, 2048, 256
)

var (
	macClient  = [6]byte{2, 0, 0, 0, 1, 1}
	macBackend = [6]byte{2, 0, 0, 0, 1, 2}
	macOurs    = [6]byte{2, 0, 0, 0, 0, 1}
	macKernel  = [6]byte{2, 0, 0, 0, 0, 9}
	macUser    = [6]byte{2, 0, 0, 0, 0, 8}
)

func addr(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }

// lab is a gateway on in-memory links: any number of workers with a NIC and a host
// link each, over one flow table, on a virtual clock.
type lab struct {
	t     testing.TB
	now   uint64
	table *flowtable.Table
	pins  *affinity.Table
	// fragments is shared by the workers.
	fragments *fragment.Table
	handle    services.Handle
	hops      *nexthop.Table
	times     stats.Times
	workers   []*gate
	// validate checks both laws in every step; benchmarks do without.
	validate bool
	sources  bool
}

type gate struct {
	*fastpath.Worker
	nic, host, other *memlink.Link
	stats            *stats.Block
	config           fastpath.Config // of the worker
}

type labConfig struct {
	workers int
	// now is the time of the first step; 0 is an hour. If Run is called, it must be before
	// CLOCK_BOOTTIME, which Run uses.
	now  uint64
	snat services.PortRange
	// timeouts changes the flow table's timeouts, if not nil.
	timeouts func(*flowtable.Timeouts)
	flows    uint32
	// table is the flow table; nil: a new one.
	table *flowtable.Table
	// halfOpen is the maximum number of half-open flows; 0: the default of flowtable.Config.
	halfOpen uint32
	edit     func(*services.Builder)
	// board makes the gateway one of a group, with the source address groupSource.
	board *copies.Board
	// frameSize is 2048 if 0. long makes the links accept packets in several frames.
	frameSize int
	long      bool
	// heldFragments bounds the fragments that wait, in frames; 0 is 64.
	heldFragments int
	// ring is the size of each ring of a link; 0 is 256.
	ring int
	// frames is the number of frames of each worker, fragments of datagrams in the fragment table;
	// 0: 1024.
	frames, fragments int
	// reversePath, if not nil, makes the reverse path strict, and is the interface of the NIC's
	// link. Hops are on interface 0.
	reversePath *int
	// other adds a link of interface 1 to gate.other.
	other bool
	// sources: routes to backends have source addresses.
	sources bool
	// tap wraps the worker's links, if not nil.
	tap func(link fastpath.Link, memory []byte, host bool) fastpath.Link
}

func newLab(t testing.TB, c labConfig) *lab {
	t.Helper()
	if c.workers == 0 {
		c.workers = 1
	}
	if c.flows == 0 {
		c.flows = 4096
	}
	if c.heldFragments == 0 {
		c.heldFragments = 64
	}
	if c.snat.Count == 0 {
		c.snat = services.PortRange{First: 20000, Count: 10000}
	}
	if c.now == 0 {
		c.now = uint64(time.Hour)
	}
	timeouts := flowtable.DefaultTimeouts()
	if c.timeouts != nil {
		c.timeouts(&timeouts)
	}
	table := c.table
	if table == nil {
		var err error
		table, err = flowtable.NewHeap(flowtable.Config{IPv4Flows: c.flows, IPv6Flows: c.flows, HalfOpen: c.halfOpen,
			Timeouts: timeouts, Group: c.board != nil,
			HashKey: flowtable.HashKey{1, 2, 3, 4, 5, 6}}) // twins rest the same ports
		if err != nil {
			t.Fatal(err)
		}
	}
	pins, err := affinity.NewHeap(affinity.Config{Clients: 1000})
	if err != nil {
		t.Fatal(err)
	}
	_, bench := t.(*testing.B)
	l := &lab{t: t, now: c.now, table: table, pins: pins, hops: nexthop.NewTable(), validate: !bench,
		sources: c.sources}
	l.routes()
	l.publish(func(b *services.Builder) { fillSnapshot(b, c.snat) }, c.edit)
	if c.fragments == 0 {
		c.fragments = 1024
	}
	frags, err := fragment.New(make([]atomic.Uint64, fragment.Words(c.fragments)), [2]uint64{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	l.fragments = frags
	for id := range c.workers {
		l.addWorker(id, &c, frags)
	}
	return l
}

func (l *lab) addWorker(id int, c *labConfig, frags *fragment.Table) {
	frameSize, frames := max(c.frameSize, frameSize), max(c.frames, frames)
	mem := make([]byte, frames*frameSize)
	chains := fastpath.NewChains(frames, frameSize)
	ring := max(c.ring, ringSize)
	g := &gate{nic: memlink.New(mem, frameSize, ring), host: memlink.New(mem, frameSize, ring),
		stats: &stats.Block{Times: &l.times}}
	if c.long {
		g.nic.Chain(chains)
		g.host.Chain(chains)
	}
	g.stats.Backends.Ensure(128)
	l.times.Ensure(128)
	links := []fastpath.Link{g.nic, g.host}
	if c.tap != nil {
		links = []fastpath.Link{c.tap(g.nic, mem, false), c.tap(g.host, mem, true)}
	}
	interfaces := []int{0, 0}
	if c.reversePath != nil {
		interfaces[0] = *c.reversePath
	}
	egress := []int{0}
	if c.other {
		g.other = memlink.New(mem, frameSize, ring)
		links, interfaces, egress = append(links, g.other), append(interfaces, 1), append(egress, len(links))
	}
	var err error
	g.config = fastpath.Config{
		Interfaces: interfaces, StrictReversePath: c.reversePath != nil,
		ID: id, Memory: mem, Pool: fastpath.NewPool(frames, frameSize), Chains: chains,
		Links: links, Egress: egress, Host: 1,
		HostMAC: fastpath.HostMAC{Kernel: macKernel, User: macUser}, HostSource4: addr(hostSource),
		Flows: l.table, Copies: c.board, Affinity: l.pins, Workers: c.workers,
		Services: &l.handle, Hops: l.hops, Fragments: frags,
		Stats:       g.stats,
		HeldPackets: 64, HeldPerHop: 16, HeldFragments: c.heldFragments, FragmentWait: time.Second,
		ICMPRate: 1000, ICMPBurst: 50, TTL: 64, PathMTUFloor: 1280, Tunnel: labTunnel,
		Seed: [32]byte{2, byte(id)}, Validate: l.validate,
	}
	g.Worker, err = fastpath.New(g.config)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(g.Close)
	l.workers = append(l.workers, g)
	g.Step(l.now) // fills the fill rings
}

// publish makes and publishes the next snapshot.
func (l *lab) publish(edits ...func(*services.Builder)) {
	b := services.NewBuilder(l.handle.Load())
	for _, edit := range edits {
		if edit != nil {
			edit(b)
		}
	}
	l.handle.Store(b.Build())
}

// source is the source of a route to backends: an address with labConfig.sources, else none.
func (l *lab) source(a string) header.Addr {
	if l.sources {
		return addr(a)
	}
	return header.Addr{}
}

// routes publishes the routes: to backends by hopBackend, to local endpoints by the kernel, to all
// other addresses by hopClient.
func (l *lab) routes() {
	l.hops.SetHop(hopClient, &nexthop.Hop{Kind: nexthop.OnLink, Ready: true, MTU: 1500, DstMAC: macClient,
		SrcMAC: macOurs})
	l.hops.SetHop(hopBackend, &nexthop.Hop{Kind: nexthop.OnLink, Ready: true, MTU: 1500, DstMAC: macBackend,
		SrcMAC: macOurs})
	r := new(bart.Table[nexthop.Route])
	insert := func(prefix string, route nexthop.Route) { r.Insert(netip.MustParsePrefix(prefix), route) }
	insert("0.0.0.0/0", nexthop.Route{Hop: hopClient, Kind: nexthop.OnLink})
	insert("::/0", nexthop.Route{Hop: hopClient, Kind: nexthop.OnLink})
	insert("10.0.1.0/24", nexthop.Route{Hop: hopBackend, Kind: nexthop.OnLink, Source: l.source(snat4)})
	insert("2001:db8:1::/64", nexthop.Route{Hop: hopBackend, Kind: nexthop.OnLink, Source: l.source(snat6)})
	insert("10.244.0.0/24", nexthop.Route{Kind: nexthop.Kernel})
	insert("10.0.9.0/24", nexthop.Route{Kind: nexthop.OnLink}) // unresolved neighbours
	insert("10.0.8.0/24", nexthop.Route{Kind: nexthop.Unreachable})
	l.hops.Publish(&nexthop.View{Generation: 7, Routes: r})
}

func backend(index uint32, service services.ServiceID, ip string, port uint16, proto uint8) services.Backend {
	return services.Backend{
		Addr: addr(ip), Port: port, Proto: proto, Service: service,
		Ref: services.MakeBackendRef(index, 1), Flags: services.BackendServing | services.BackendReady,
	}
}

// fillSnapshot adds one frontend of each kind. Service numbers are 1 to 9; the index of a backend
// is its service's number.
func fillSnapshot(b *services.Builder, snat services.PortRange) {
	s := b.Settings()
	s.SNAT4, s.SNAT6, s.SNATPorts = []header.Addr{addr(snat4)}, []header.Addr{addr(snat6)}, snat
	serve(b, 1, vip4, 80, header.ProtoTCP, backend4, 8080, false)
	serve(b, 2, vip4, 53, header.ProtoUDP, backend4, 5353, false)
	serve(b, 3, vip6, 80, header.ProtoTCP, backend6, 8080, false)
	serve(b, 4, vip6, 53, header.ProtoUDP, backend6, 5353, false)
	serve(b, 5, keepVIP, 80, header.ProtoTCP, backend4, 8081, true)
	serve(b, 6, localVIP, 80, header.ProtoTCP, local4, 8080, false)
	serve(b, 7, "0.0.0.0", 30080, header.ProtoTCP, backend4, 8082, false)
	unserve(b, 8, emptyVIP, services.EmptyReject)
	unserve(b, 9, dropVIP, services.EmptyDrop)
	b.SetAddr(addr(node4), services.AddrNode)
	b.SetAddr(addr(snat4), services.AddrSNAT|services.AddrLocal)
	b.SetAddr(addr(snat6), services.AddrSNAT|services.AddrLocal)
}

func serve(
	b *services.Builder, id services.ServiceID, ip string, port uint16, proto uint8, to string, toPort uint16,
	keep bool,
) {
	be := backend(uint32(id), id, to, toPort, proto)
	b.SetBackend(be)
	svc := &services.Service{ID: id, Namespace: "default", Name: "svc", Proto: proto, Port: port,
		Backends: []services.BackendRef{be.Ref}}
	b.SetService(svc)
	kind := services.LoadBalancer
	if addr(ip) == services.AnyIPv4 {
		kind = services.NodePort
	} else {
		b.SetAddr(addr(ip), services.AddrVIP)
	}
	b.SetFrontend(&services.Frontend{
		Key: services.FrontendKey{Addr: addr(ip), Port: port, Proto: proto}, Kind: kind, Service: svc,
		Outside: services.Rule{Set: &services.EndpointSet{Backends: []services.BackendRef{be.Ref},
			Table: []uint16{0, 0, 0}}, KeepClient: keep},
	})
}

func unserve(b *services.Builder, id services.ServiceID, ip string, empty services.Empty) {
	svc := &services.Service{ID: id, Namespace: "default", Name: "none", Proto: header.ProtoTCP, Port: 80}
	b.SetService(svc)
	b.SetAddr(addr(ip), services.AddrVIP)
	b.SetFrontend(&services.Frontend{
		Key:     services.FrontendKey{Addr: addr(ip), Port: 80, Proto: header.ProtoTCP},
		Service: svc, Outside: services.Rule{Set: &services.EndpointSet{Empty: empty}},
	})
}

// step advances the time and runs one step of every worker.
func (l *lab) step(d time.Duration) {
	l.now += uint64(d)
	for _, g := range l.workers {
		g.Step(l.now)
	}
}

// send injects frames at a worker's NIC and steps all workers.
func (l *lab) send(worker int, packets ...*headertest.Packet) {
	l.t.Helper()
	for _, p := range packets {
		if !l.workers[worker].nic.Inject(p.Bytes()) {
			l.t.Fatal("the link took no more packets")
		}
	}
	l.step(time.Microsecond)
}

// out takes one frame that a worker sent on a link, checks its checksums, and parses it.
func (l *lab) out(link *memlink.Link) ([]byte, header.Packet) {
	l.t.Helper()
	frame, ok := link.Take(nil)
	if !ok {
		l.t.Fatalf("nothing was sent; drops: %v", l.drops())
	}
	if err := headertest.Verify(frame); err != nil {
		l.t.Fatalf("sent frame %x: %v", frame, err)
	}
	var p header.Packet
	if r := header.Parse(frame, &p); r != reason.None {
		l.t.Fatalf("sent frame %x does not parse: %v", frame, r)
	}
	return frame, p
}

func (l *lab) nothing(links ...*memlink.Link) {
	l.t.Helper()
	for _, link := range links {
		if frame, ok := link.Take(nil); ok {
			l.t.Fatalf("unexpected frame %x", frame)
		}
	}
}

// drops sums the drops of all workers by reason.
func (l *lab) drops() map[string]uint64 {
	sum := map[string]uint64{}
	for _, g := range l.workers {
		for r := range g.stats.Drops {
			if n := g.stats.Drops[r].Load(); n > 0 {
				sum[reason.Drop(r).String()] += n
			}
		}
	}
	return sum
}

func (l *lab) wantDrop(r reason.Drop, n uint64) {
	l.t.Helper()
	d := l.drops()
	if len(d) != 1 || d[r.String()] != n {
		l.t.Fatalf("drops %v, want %d of %v and no others", d, n, r)
	}
}

func ends(t *header.Tuple) (src, dst netip.AddrPort) {
	return netip.AddrPortFrom(t.Src.Netip(), t.SrcPort), netip.AddrPortFrom(t.Dst.Netip(), t.DstPort)
}

func (l *lab) wantTuple(p *header.Packet, src, dst string) {
	l.t.Helper()
	s, d := ends(&p.Tuple)
	if (src != "" && s.String() != src) || (dst != "" && d.String() != dst) {
		l.t.Fatalf("sent %v -> %v, want %s -> %s", s, d, src, dst)
	}
}
