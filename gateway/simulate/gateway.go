package simulate

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/gateway/flows"
	"sluice.dev/sluice/gateway/offline"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/fragment"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/vxlan"
)

const (
	frameSize = 4096
	// recordBytes sizes the ring of a tap, which has one record for each 256 of them. A step makes
	// one for a packet, and one for each fragment and error that the worker makes of it.
	recordBytes = 1 << 18
	// events is the size of the flow table's log: a step ends less than 100 flows.
	events = 4096
)

// simHop is the next hop of all packets.
const simHop nexthop.ID = 1

// gateway is a worker with a link in memory, and the tables of a process.
type gateway struct {
	*offline.Gateway
	denied *services.Prefixes
	worker *fastpath.Worker
	link   *link
	tap    *capture.Tap
	table  *flowtable.Table
	log    *flowtable.Log
	reader *flowtable.Handle // for the flows of replies
	now    uint64            // of the last step
	ports  ports
	reply  []byte // the packet of answer
	// note is called for each packet with its verdict.
	note func(*capture.Record)
}

// newGateway makes a gateway that has just started. seed makes its source ports repeatable.
func newGateway(g *offline.Gateway, mtu int, seed [32]byte, start uint64) (*gateway, error) {
	x := &gateway{Gateway: g, denied: services.NewPrefixes(g.Config.Deny), now: start}
	x.ports.of = map[portsKey]*portsUse{}
	if err := x.makeTable(seed); err != nil {
		return nil, err
	}
	c := &g.Config.Tuning
	frames := c.FramesPerQueue()
	mem := make([]byte, frames*frameSize)
	x.link = &link{mem: mem, pool: fastpath.NewPool(frames, frameSize), frameSize: frameSize,
		chains: fastpath.NewChains(frames, frameSize)}
	fragments, err := fragment.New(make([]atomic.Uint64, fragment.Words(c.Fragments)), [2]uint64{1, 2})
	if err != nil {
		return nil, err
	}
	pins, err := affinity.NewHeap(affinity.Config{Clients: c.AffinityClients,
		HashKey: flowtable.HashKey{3, 4, 5, 6, 7, 8}})
	if err != nil {
		return nil, err
	}
	handle := new(services.Handle)
	handle.Store(g.Snapshot)
	x.worker, err = fastpath.New(fastpath.Config{
		Memory: mem, Pool: x.link.pool, Chains: x.link.chains,
		Links: []fastpath.Link{x.link}, Egress: []int{0}, Host: -1,
		Flows: x.table, Workers: 1, Services: handle, Hops: oneHop(g.Snapshot, mtu), Affinity: pins,
		Fragments: fragments, Stats: new(stats.Block),
		// Nothing is held but fragments, as the next hop is known.
		HeldPackets: config.HeldPackets, HeldPerHop: config.HeldPerHop,
		HeldFragments: c.HeldFragments(), FragmentWait: config.FragmentWait,
		ICMPRate: c.ICMPRate, ICMPBurst: c.ICMPBurst(), TTL: config.OwnTTL, PathMTUFloor: uint16(c.PathMTUFloor),
		Tunnel: vxlan.Tunnel{VNI: uint32(g.Config.DirectReturn.VNI), Port: uint16(g.Config.DirectReturn.Port)},
		Seed:   seed,
	})
	if err != nil {
		return nil, err
	}
	x.tap = capture.NewTap(capture.Filter{}, 0, 0, 1, recordBytes)
	x.worker.SetTaps(x.worker.NewTaps([]*capture.Tap{x.tap}))
	x.reader, err = x.table.Register()
	return x, err
}

// makeTable makes the flow table, with the log that counts the ports in use. Copies of other
// gateways of a group are not simulated.
func (g *gateway) makeTable(seed [32]byte) (err error) {
	c := flows.TableConfig(g.Config)
	c.Group = false
	for i := range c.HashKey {
		c.HashKey[i] = uint64(seed[i]) + uint64(i) + 1
	}
	if g.table, err = flowtable.NewHeap(c); err != nil {
		return err
	}
	g.log, err = g.table.StartLog(events, make([]byte, g.table.AccountBytes()), false)
	return err
}

// close unregisters the gateway's participants of the flow table.
func (g *gateway) close() {
	g.reader.Close()
	g.worker.Close()
}

// oneHop returns a table in which every address is behind one neighbour that is known.
func oneHop(s *services.Snapshot, mtu int) *nexthop.Table {
	t := nexthop.NewTable()
	t.SetHop(simHop, &nexthop.Hop{Kind: nexthop.OnLink, Ready: true, MTU: uint16(mtu),
		DstMAC: [6]byte{2, 0, 0, 0, 0, 1}, SrcMAC: [6]byte{2, 0, 0, 0, 0, 2}})
	routes := new(bart.Table[nexthop.Route])
	for prefix, sources := range map[string][]header.Addr{"0.0.0.0/0": s.SNAT4, "::/0": s.SNAT6} {
		r := nexthop.Route{Hop: simHop, Kind: nexthop.OnLink}
		if len(sources) > 0 {
			r.Source = sources[0]
		}
		routes.Insert(netip.MustParsePrefix(prefix), r)
	}
	t.Publish(&nexthop.View{Generation: 1, Routes: routes})
	return t
}

// feed gives the worker a packet at a time, which does not decrease.
func (g *gateway) feed(at uint64, frame []byte) error {
	g.wait(at)
	if !g.link.inject(frame) {
		return fmt.Errorf("simulate: a frame of %d bytes finds %d free frames of %d: report this as a bug",
			len(frame), g.link.pool.Free(), g.link.pool.Total())
	}
	g.step()
	return nil
}

// wait advances the time to at, and ends the flows that have expired by then. A worker without
// packets makes many steps in that time, each of which sweeps a part of the table.
func (g *gateway) wait(at uint64) {
	gap := at - g.now
	g.now = at
	if gap < uint64(time.Millisecond) {
		return
	}
	least := g.table.SweepQuota(time.Duration(gap))/flowtable.SweepRecords + 1
	for n, ended := 0, true; n < least || ended; n++ {
		before := g.ports.ended
		g.step()
		ended = g.ports.ended != before
	}
}

// step makes a step and reads its records.
func (g *gateway) step() {
	g.worker.Step(g.now)
	g.tap.Rings[0].Read(func(r *capture.Record, _ []byte) bool {
		if r.Point == capture.In {
			g.note(r)
		}
		return true
	})
	g.log.Read(g.ports.event)
}

// answer gives the worker a backend's answer, as it left a gateway: from a frontend to a client. It
// returns false if the client has no flow here. The flow may have another backend and source port,
// so the answer gets its ends.
func (g *gateway) answer(at uint64, frame []byte, p *header.Packet) (bool, error) {
	g.wait(at)
	toBackend, ok := g.leaves(p.Tuple.Reverse())
	if !ok {
		return false, nil
	}
	out := toBackend.Reverse()
	g.reply = append(g.reply[:0], frame...)
	nat.Translate(g.reply, p, &out, header.DeltaOf(&p.Tuple, &out))
	return true, g.feed(at, g.reply)
}

// leaves returns the tuple with which packets of a client leave towards its backend; ok is false if
// the client has no flow, or one that answers do not pass.
func (g *gateway) leaves(client header.Tuple) (out header.Tuple, ok bool) {
	g.reader.Enter(flowtable.Time(g.now))
	defer g.reader.Leave()
	ref, side := g.reader.Lookup(g.reader.Hash(&client), &client, flowtable.Time(g.now))
	if ref == 0 || side != flowtable.ClientSide || g.reader.Direct(ref) {
		return out, false
	}
	g.reader.Outgoing(ref, side, &out)
	return out, true
}

// ports counts the source ports in use.
type ports struct {
	of    map[portsKey]*portsUse
	ended uint64 // flows
}

// portsKey is one end to which source ports must be different.
type portsKey struct {
	backend flowtable.Socket
	proto   uint8
}

// portsUse counts source ports towards one backend, of all source addresses.
type portsUse struct{ now, peak uint64 }

// event counts a flow that begins or ends.
func (p *ports) event(e *flowtable.Event) {
	if !e.Begins {
		p.ended++
	}
	if e.Source.Addr() == e.Client.Addr() { // it needs no port of the gateway's
		return
	}
	key := portsKey{e.Backend, e.Proto}
	use := p.of[key]
	if use == nil {
		use = new(portsUse)
		p.of[key] = use
	}
	switch {
	case e.Begins:
		use.now++
		use.peak = max(use.peak, use.now)
	case use.now > 0:
		use.now--
	}
}

// peak returns the greatest number of source ports towards a backend at once.
func (p *ports) peak(backend flowtable.Socket, proto uint8) uint64 {
	if use := p.of[portsKey{backend, proto}]; use != nil {
		return use.peak
	}
	return 0
}

// limit returns the number of source ports towards one backend.
func (g *gateway) limit(v6 bool) (n uint64) {
	s := g.Snapshot
	list, own := s.SNAT4, s.Group4
	if v6 {
		list, own = s.SNAT6, s.Group6
	}
	if own != (header.Addr{}) {
		list = []header.Addr{own}
	}
	for _, a := range list {
		n += uint64(s.SourcePorts(a).Count)
	}
	return n
}
