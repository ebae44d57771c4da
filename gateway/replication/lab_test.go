package replication

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/gateway/group/exchange"
	"sluice.dev/sluice/gateway/group/grouptest"
	"sluice.dev/sluice/gateway/group/session"
	"sluice.dev/sluice/gateway/group/wire"
	"sluice.dev/sluice/nat/fragment"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/test/bed/memlink"
)

const (
	frames, frameSize = 512, 2048
	ports             = 64               // of a source address towards a backend
	idle              = 30 * time.Second // of tests that wait for its end
)

// family has the addresses of the lab in one family. Gateway i has the sources i and i+3.
type family struct {
	client, vip, proxied string
	backend, second      string
	sources              [6]string
}

var families = [2]family{
	{"198.51.100.7", "203.0.113.10", "203.0.113.11", "10.0.1.11", "10.0.1.12",
		[6]string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5", "192.0.2.6"}},
	{"2001:db8:c::7", "2001:db8:f::10", "2001:db8:f::11", "2001:db8:1::11", "2001:db8:1::12",
		[6]string{"2001:db8:2::1", "2001:db8:2::2", "2001:db8:2::3", "2001:db8:2::4", "2001:db8:2::5",
			"2001:db8:2::6"}},
}

func addr(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }

func join(ip string, port int) string {
	return netip.AddrPortFrom(netip.MustParseAddr(ip), uint16(port)).String()
}

// sources returns the source addresses of a gateway: two of each family.
func sources(id int) (list []header.Addr) {
	for _, i := range []int{id, id + 3} {
		list = append(list, addr(families[0].sources[i]), addr(families[1].sources[i]))
	}
	return list
}

// gateway is a gateway with one worker on memory links. lab.step steps the worker.
type gateway struct {
	*Flows
	id       int
	file     *flowtable.File
	table    *flowtable.Table
	x        *exchange.Exchange
	worker   *fastpath.Worker
	nic      *memlink.Link
	stats    *stats.Block
	services services.Handle
	stop     context.CancelFunc
	ended    chan struct{}
	waiter   grouptest.Waiter
	stalled  atomic.Bool // others' streams are not read
}

// lab is a group of gateways in the bubble of a synctest.
type lab struct {
	t        *testing.T
	gateways []*gateway
	live     []atomic.Pointer[gateway] // as dialing goroutines see them
	services services.Handle
	hops     *nexthop.Table
	config   flowtable.Config
	cut      [3][3]atomic.Bool // frames between two gateways are lost

	ports     uint16 // of a source address towards a backend
	directory string // of flow tables
	began     time.Time
}

// newLab starts gateways. idle is how long a connection may be idle.
func newLab(t *testing.T, gateways int, idle time.Duration) *lab {
	l := &lab{t: t, gateways: make([]*gateway, gateways), live: make([]atomic.Pointer[gateway], gateways),
		directory: t.TempDir(), ports: ports, began: time.Now()}
	l.config = flowtable.Config{IPv4Flows: 1024, IPv6Flows: 1024, Timeouts: flowtable.DefaultTimeouts(), Group: true}
	l.config.Timeouts.Established = idle
	l.routes()
	l.serve()
	for i := range l.gateways {
		l.start(i, 1, true)
	}
	t.Cleanup(func() {
		for i := range l.gateways {
			l.kill(i)
		}
	})
	return l
}

// settle lets all that is due happen, and some time pass.
func (l *lab) settle(d time.Duration) {
	for until := time.Now().Add(d); ; {
		synctest.Wait()
		l.step()
		synctest.Wait()
		l.step()
		if !time.Now().Before(until) {
			return
		}
		time.Sleep(min(max(time.Millisecond, d/500), time.Until(until)))
	}
}

func (l *lab) now() int64 { return int64(time.Since(l.began) + time.Hour) }

func (l *lab) step() {
	for _, g := range l.gateways {
		if g.worker != nil {
			g.worker.Step(uint64(l.now()))
		}
	}
}

func (l *lab) routes() {
	l.hops = nexthop.NewTable()
	hop := func(id nexthop.ID, last byte) {
		l.hops.SetHop(id, &nexthop.Hop{Kind: nexthop.OnLink, Ready: true, MTU: 1500,
			DstMAC: [6]byte{2, 0, 0, 0, 1, last}, SrcMAC: [6]byte{2, 0, 0, 0, 0, 1}})
	}
	hop(1, 1)
	hop(2, 2)
	r := new(bart.Table[nexthop.Route])
	for prefix, id := range map[string]nexthop.ID{"0.0.0.0/0": 1, "::/0": 1, "10.0.1.0/24": 2, "2001:db8:1::/64": 2} {
		r.Insert(netip.MustParsePrefix(prefix), nexthop.Route{Hop: id, Kind: nexthop.OnLink})
	}
	l.hops.Publish(&nexthop.View{Generation: 7, Routes: r})
}

// serve publishes services on the VIPs, whose backend each gateway chooses by its number.
func (l *lab) serve() {
	b := services.NewBuilder(nil)
	b.Settings().ResetUnknown, b.Settings().SelectKey = true, [2]uint64{1, 2}
	id := services.ServiceID(0)
	for f := range families {
		for n, vip := range []string{families[f].vip, families[f].proxied} {
			for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
				id++
				be := services.Backend{Addr: addr(families[f].backend), Port: 8080, Proto: proto, Service: id,
					Ref: services.MakeBackendRef(uint32(id), 1), Flags: services.BackendServing | services.BackendReady}
				b.SetBackend(be)
				svc := &services.Service{ID: id, Namespace: "default", Name: "svc", Proto: proto, Port: 80,
					Backends: []services.BackendRef{be.Ref}, ProxyProtocol: n == 1}
				b.SetService(svc)
				b.SetAddr(addr(vip), services.AddrVIP)
				b.SetFrontend(&services.Frontend{
					Key: services.FrontendKey{Addr: addr(vip), Port: 80, Proto: proto}, Kind: services.LoadBalancer,
					Service: svc, Outside: services.Rule{Set: &services.EndpointSet{
						Backends: []services.BackendRef{be.Ref}, Table: []uint16{0, 0, 0}}},
				})
			}
		}
	}
	for i := range 3 {
		for _, a := range sources(i) {
			b.SetAddr(a, services.AddrSNAT|services.AddrLocal) // SNATPorts are for addresses of the node
		}
	}
	l.services.Store(b.Build())
}

// open publishes the services with a gateway's source addresses, the first or the second ones; -1
// is none.
func (l *lab) open(g *gateway, which int) {
	b := services.NewBuilder(l.services.Load())
	if which >= 0 {
		b.Settings().Group4, b.Settings().Group6 = sources(g.id)[2*which], sources(g.id)[2*which+1]
	}
	b.Settings().SNATPorts = services.PortRange{First: 20000, Count: l.ports}
	g.services.Store(b.Build())
}

// start starts a gateway, with the flow table that a process before it has left.
func (l *lab) start(id int, incarnation uint64, complete bool) {
	t := l.t
	g := &gateway{id: id, ended: make(chan struct{}), stats: new(stats.Block), waiter: grouptest.NewWaiter()}
	path := filepath.Join(l.directory, fmt.Sprint("flows-", id))
	var err error
	g.file, err = flowtable.OpenFile(path, l.config, flowtable.Time(l.now()), flowtable.ResizeFit)
	if err != nil {
		t.Fatal(err)
	}
	g.table = g.file.Table
	log, err := g.table.StartLog(1<<10, make([]byte, g.table.AccountBytes()), true)
	if err != nil {
		t.Fatal(err)
	}
	log.Own(flowtable.Time(l.now()))
	c := Config{Table: g.table, Workers: 1, Sources: sources(id), Complete: complete, Now: l.now}
	for i := range l.gateways {
		if i != id {
			c.Others = append(c.Others, Other{Sources: sources(i), Later: id < i})
		}
	}
	if g.Flows, err = New(c); err != nil {
		t.Fatal(err)
	}
	self := wire.Greeting{Name: fmt.Sprint("gw-", id), Incarnation: incarnation}
	var peers []exchange.Peer
	for i := range l.gateways {
		if i == id {
			continue
		}
		k := len(peers)
		peers = append(peers, exchange.Peer{
			Owner: session.Owner{Self: self, Sources: sources(id), Ledger: g.Ledger(), Flows: g.Flows,
				Member: group.Member(k), Name: fmt.Sprint("gw-", i)},
			Member: session.Member{Self: self, Owner: fmt.Sprint("gw-", i), Sources: sources(i), Copies: g.Copies(k),
				Read: g.ReadCopy},
			Dial: func(context.Context) (exchange.Stream, error) { return l.dial(g, i) },
		})
	}
	g.x = exchange.New(exchange.Config{Ledger: g.Ledger(), Step: g.Step, Peers: peers, Now: l.now, Waiter: g.waiter,
		Failed: func(int, error) {}})
	g.Attach(g.x)
	l.addWorker(g)
	ctx, cancel := context.WithCancel(t.Context())
	g.stop = cancel
	l.gateways[id] = g
	l.live[id].Store(g)
	go func() { g.x.Run(ctx); close(g.ended) }()
}

func (l *lab) addWorker(g *gateway) {
	mem := make([]byte, frames*frameSize)
	g.nic = memlink.New(mem, frameSize, 128)
	g.stats.Backends.Ensure(64)
	frags, err := fragment.New(make([]atomic.Uint64, fragment.Words(64)), [2]uint64{1, 2})
	if err != nil {
		l.t.Fatal(err)
	}
	l.open(g, 0)
	g.worker, err = fastpath.New(fastpath.Config{
		Memory: mem, Pool: fastpath.NewPool(frames, frameSize), Links: []fastpath.Link{g.nic}, Egress: []int{0},
		Host: -1, Flows: g.table, Copies: g.Board(), Workers: 1, Services: &g.services, Hops: l.hops, Fragments: frags,
		Stats:       g.stats,
		HeldPackets: 64, HeldPerHop: 16, HeldFragments: 16, FragmentWait: time.Second,
		ICMPRate: 1000, ICMPBurst: 50, TTL: 64, PathMTUFloor: 1280, Seed: [32]byte{2, byte(g.id)}, Validate: true,
	})
	if err != nil {
		l.t.Fatal(err)
	}
	g.worker.Step(uint64(l.now())) // fills the fill ring
}

// kill ends a gateway's process. Its flow table stays, unless its memory is lost.
func (l *lab) kill(id int) {
	g := l.gateways[id]
	if g.worker == nil {
		return
	}
	l.live[id].Store(nil)
	g.stop()
	<-g.ended
	g.worker = nil
	if err := g.file.Close(); err != nil {
		l.t.Fatal(err)
	}
}

// resize restarts a gateway with a table of another number of IPv4 flows.
func (l *lab) resize(id int, flows uint32) {
	l.kill(id)
	l.config.IPv4Flows = flows
	l.start(id, 1, true)
}

// fill gives a gateway flows of IPv4 that no packet uses.
func (l *lab) fill(id int, flows uint32) {
	g := l.gateways[id]
	g.x.Do(func() {
		for n := range flows {
			r := group.Record{State: flowtable.Established}
			r.Client, r.Reply = benchTuples(id, n)
			if slot, ok := g.Make(&r); ok {
				g.ledger.Begin(slot)
			} else {
				l.t.Errorf("gateway %d has no room for flow %d", id, n)
			}
		}
	})
}

// each calls do with each flow and copy of a gateway.
func (l *lab) each(id int, do func(h *flowtable.Handle, r flowtable.Ref)) {
	g := l.gateways[id]
	g.x.Do(func() {
		g.enter()
		for slot := range g.table.Slots() {
			if r := g.table.AtSlot(slot); r != 0 && g.table.WasUsed(r) && g.handle.Live(r) {
				do(g.handle, r)
			}
		}
	})
}

// empty ends all flows of a gateway.
func (l *lab) empty(id int) {
	l.each(id, func(h *flowtable.Handle, r flowtable.Ref) { h.Delete(r) })
}

// lose deletes the flow table of a gateway that was killed.
func (l *lab) lose(id int) {
	if err := os.Remove(filepath.Join(l.directory, fmt.Sprint("flows-", id))); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) dial(g *gateway, to int) (exchange.Stream, error) {
	from := g.id
	cut := func() bool { return l.cut[from][to].Load() || l.cut[to][from].Load() }
	other := l.live[to].Load()
	if other == nil || cut() {
		return nil, grouptest.ErrClosed
	}
	dialing, listening := grouptest.Pipe(g.waiter, other.waiter, nil, &other.stalled, cut)
	k := from
	if from > to {
		k--
	}
	if err := other.x.Accept(k, listening); err != nil {
		return nil, err
	}
	return dialing, nil
}

// send gives a packet to a gateway's worker, and steps it once.
func (l *lab) send(id int, p *headertest.Packet) {
	l.t.Helper()
	g := l.gateways[id]
	if !g.nic.Inject(p.Bytes()) {
		l.t.Fatal("the link takes no packet")
	}
	g.worker.Step(uint64(l.now()))
}

// take returns the packets that a gateway has sent.
func (l *lab) take(id int) (list []header.Packet, data [][]byte) {
	l.t.Helper()
	for {
		frame, ok := l.gateways[id].nic.Take(nil)
		if !ok {
			return list, data
		}
		if err := headertest.Verify(frame); err != nil {
			l.t.Fatal(err)
		}
		var p header.Packet
		if r := header.Parse(frame, &p); r != reason.None {
			l.t.Fatal(r)
		}
		list, data = append(list, p), append(data, frame)
	}
}

// one returns the only packet that a gateway has sent.
func (l *lab) one(id int, what string) header.Packet {
	l.t.Helper()
	list, _ := l.take(id)
	if len(list) != 1 {
		l.t.Fatalf("%s: gateway %d sends %d packets, want 1; drops %s", what, id, len(list), l.drops(id))
	}
	return list[0]
}

func (l *lab) drops(id int) string {
	var s []string
	for r := range l.gateways[id].stats.Drops {
		if n := l.gateways[id].stats.Drops[r].Load(); n > 0 {
			s = append(s, fmt.Sprint(reason.Drop(r), " ", n))
		}
	}
	return strings.Join(s, ", ")
}
