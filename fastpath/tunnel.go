package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/nat/vxlan"
)

// A flow with direct return (ADR 39) leaves untranslated, in a VXLAN tunnel to a node that has
// endpoints. Only packets of the client pass this gateway:
//
//	received    [ headroom 256 ......................][Ethernet][IP packet]
//	sent                  [Ethernet][IP|UDP|VXLAN|Ethernet     ][IP packet]
//
// All headers go into the frame's headroom, in place of the received Ethernet header. The result is
// a packet like any other for send: it waits for its neighbour, gets VLAN tags, and an outer IPv4
// packet whose inner packet may be fragmented is fragmented (split).

// towardsNode is the precedence of packets that wait for the next hop towards a node.
const towardsNode = known

// The longest headers, with two VLAN tags, fit into the headroom.
const _ = uint(frameHeadroom - vxlan.MaxBytes - header.EthernetBytes - 2*header.VLANBytes)

// tunnels caches the headers towards nodes, by index of the backend.
type tunnels struct {
	vxlan.Tunnel
	// first: finishDirect is called before finishPlain, because it has forwarded the most recent
	// packets.
	first bool
	// tables counts changes of the View and the Snapshot from which entries are made. The current
	// ones are identified by their numbers, view and snap: a pointer would keep the table in
	// memory.
	tables, view, snap uint64
	at                 [256]tunnelEnd
}

// load notes the current tables.
func (t *tunnels) load(snap *services.Snapshot, view *nexthop.View) {
	if snap != nil && (snap.Generation != t.snap || view.Number() != t.view) {
		t.tables++
		t.snap, t.view = snap.Generation, view.Number()
	}
}

// tunnelEnd has the headers and the next hop of a tunnel to a node. Backends that share an index
// replace each other. An entry is valid as long as its tables are current.
type tunnelEnd struct {
	backend services.BackendRef // 0: the entry is empty
	tables  uint64
	node    header.Addr
	hop     nexthop.ID
	headers vxlan.Header
}

// end returns the tunnel to a node, or nil if the snapshot does not have the node or no tunnel
// leads to it.
func (t *tunnels) end(w *Worker, ref services.BackendRef) *tunnelEnd {
	e := &t.at[ref.Index()%uint32(len(t.at))]
	if e.backend == ref && e.tables == t.tables && ref != 0 {
		return e
	}
	b := w.planner.Snap.Backend(ref)
	if b == nil || t.VNI == 0 {
		return nil
	}
	r, ok := w.planner.TunnelRoute(&b.Addr)
	if !ok {
		return nil
	}
	*e = tunnelEnd{
		backend: ref, tables: t.tables, node: b.Addr, hop: r.Hop,
		headers: vxlan.New(t.Tunnel, r.Source, b.Addr, w.c.TTL),
	}
	return e
}

// forwardDirect is forward for a packet of a flow with direct return.
func (w *Worker) forwardDirect(p *packet, ref flowtable.Ref, side flowtable.Side) decide.Verdict {
	s := p.segment
	if p.Tuple.Stateful() && !s.Unverified {
		s.Unverified = !w.flows.ChangesOneSided(ref, s, w.planner.Now) || !w.verify(p)
	}
	v := w.deliverDirect(p, ref, side)
	if v.Action == decide.Queued && side == flowtable.ClientSide {
		w.flows.ObserveOneSided(ref, s, w.planner.Now)
	}
	return v
}

// deliverDirect is deliver for a packet of a flow with direct return. Replies do not pass here,
// unless the client is an address of this gateway.
func (w *Worker) deliverDirect(p *packet, ref flowtable.Ref, side flowtable.Side) decide.Verdict {
	if side == flowtable.ReplySide {
		return w.withoutFlow(p)
	}
	w.planner.Bind(ref)
	f := w.flows.Flow(ref)
	bytes := p.bytes
	v := w.tunnel(p, services.BackendRef(f.BackendRef()), p.hash)
	if v.Action == decide.Queued {
		w.stats.Backends.Count(f.BackendRef(), uint8(side), bytes)
		w.flows.Count(ref, side, bytes)
	}
	return v
}

// tunnel sends a packet to a node. hash is the flow's, and spreads tunnels over queues and paths.
// A packet that does not fit and must not be fragmented is answered with the MTU inside the tunnel.
// Only an outer IPv4 packet that does not fit, or whose hop is not known yet, may be fragmented:
// all others need no identification.
func (w *Worker) tunnel(p *packet, ref services.BackendRef, hash uint64) decide.Verdict {
	e := w.tunnels.end(w, ref)
	switch {
	case e == nil:
		return drop(reason.NoRoute)
	case p.TTL <= 1:
		w.sendError(p, nat.TimeExceeded, 0)
		return drop(reason.TTLExceeded)
	}
	h := &e.headers
	inner, overhead := int(p.End)-int(p.L3), h.Bytes()
	hop := w.c.Hops.Hop(e.hop)
	known := e.hop != 0 && hop != nil
	fits := known && (hop.MTU == 0 || inner+overhead <= int(hop.MTU))
	switch {
	case known && !fits && p.DF:
		w.sendError(p, nat.FragmentationNeeded, hop.MTU-uint16(overhead))
		return drop(reason.PacketTooBig)
	case known && !fits && h.V6(), inner+overhead+header.EthernetBytes > maxPacketBytes:
		return drop(reason.PacketTooBig)
	}
	nat.DecrementTTL(p.frame, &p.Packet)
	out := vxlan.Packet{
		Bytes: uint16(inner), V6: p.Tuple.V6, TOS: p.trafficClass(), DF: p.DF || fits,
		Source: vxlan.SourcePort(hash),
	}
	if !out.DF {
		out.ID = w.c.Fragments.NewID()
	}
	ip := p.desc.Addr + uint64(p.L3)
	h.Put((*[vxlan.MaxBytes]byte)(w.mem[ip-vxlan.MaxBytes:ip]), &out)
	start := ip - uint64(overhead+header.EthernetBytes)
	end := header.EthernetBytes + overhead + inner
	d := Desc{Addr: start, Len: uint32(end)}
	if p.long() {
		d = w.chains.move(w.pool, p.desc, start, d.Len)
	}
	p.desc = d // a drop frees it
	return w.send(outgoing{
		desc: d, l3: header.EthernetBytes, end: uint16(end), v6: h.V6(), splittable: !out.DF && !h.V6(), dst: e.node,
		precedence: towardsNode,
	}, e.hop)
}

// finishDirect forwards plain packets of flows with direct return, like finishPlain. It stops
// before the first packet that it cannot forward, and returns the number of forwarded packets.
func (w *Worker) finishDirect(first, end int) (n int) {
	var flows [groupSize]*flowtable.Flow
	var counted [groupSize]stats.Entry
	group := w.match(first, end, &flows)
	if w.tap != nil {
		group = group[:w.unrecorded(group, &flows)] // the slow path records packets
	}
	for i := range group {
		if !w.sendDirect(w.b.desc[first+i], &group[i], flows[i]) {
			break
		}
		bytes := w.b.desc[first+i].Len
		counted[i&(groupSize-1)] = stats.MakeEntry(flows[i].BackendRef(), uint8(flowtable.ClientSide), bytes)
		n++
	}
	w.stats.Backends.Add(counted[:n])
	return n
}

// sendDirect sends a plain packet of a flow with direct return to its node. It returns false, and
// has changed nothing, if the packet needs a decision.
func (w *Worker) sendDirect(d Desc, s *flowtable.Search, f *flowtable.Flow) bool {
	binding, id := f.BoundTo(s.Side())
	if binding != w.planner.Binding || nexthop.ID(id) != nexthop.Tunnel || s.Side() != flowtable.ClientSide {
		return false
	}
	ref := services.BackendRef(f.BackendRef())
	if !w.planner.Snap.Serves(ref) && f.Proto() == header.ProtoUDP {
		return false
	}
	e := w.tunnels.end(w, ref)
	if e == nil || s.End == 0 {
		return false
	}
	hop, overhead := w.c.Hops.Hop(e.hop), uint32(e.headers.Bytes())
	if e.hop == 0 || hop == nil || s.End+overhead > min(hop.PlainEnd(), maxPacketBytes) {
		return false
	}
	q := w.egress.to[hop.Link]
	if q == nil || !q.put(Desc{Addr: d.Addr - uint64(overhead), Len: s.End + overhead}) {
		return false
	}
	// The headers go from the start of the outer Ethernet header to the IP packet, in place of the
	// received Ethernet header. The link reads them at the end of the step (finishPlain).
	const before = vxlan.MaxBytes // the received frame
	b := (*[before + header.Window6Bytes]byte)(w.mem[d.Addr-before:])
	out := vxlan.Packet{Bytes: uint16(s.End) - header.EthernetBytes, DF: true, Source: vxlan.SourcePort(s.Hash())}
	out.TOS, out.V6 = nat.DecrementPlainTTL(b[before+header.EthernetBytes:])
	e.headers.Put((*[vxlan.MaxBytes]byte)(b[header.EthernetBytes:]), &out)
	hop.Use()
	ethernet := (*[header.EthernetBytes]byte)(b[before-overhead:])
	*(*[12]byte)(ethernet[:]) = *hop.MACs()
	ethernet[12], ethernet[13] = header.EtherTypeIPv4>>8, header.EtherTypeIPv4&0xff
	if e.headers.V6() {
		ethernet[12], ethernet[13] = header.EtherTypeIPv6>>8, header.EtherTypeIPv6&0xff
	}
	if w.flows.Counts() {
		w.flows.CountMatched(s, d.Len)
	}
	f.Seen(w.ticks)
	return true
}

// maxPacketBytes is the length of the longest packet, with its Ethernet header.
const maxPacketBytes = 1<<16 - 1

// trafficClass returns the TOS of IPv4, or the traffic class of IPv6.
func (p *packet) trafficClass() uint8 {
	if p.Tuple.V6 {
		return p.frame[p.L3]<<4 | p.frame[p.L3+1]>>4
	}
	return p.frame[p.L3+1]
}

// icmpErrorDirect sends an ICMP error about a packet that a node has sent to a client to that node.
// client is the tuple from client to frontend. An error needs no flow: another gateway may have the
// flow, or an earlier process had it.
func (w *Worker) icmpErrorDirect(p *packet, ref flowtable.Ref, client *header.Tuple) (v decide.Verdict, handled bool) {
	var node services.BackendRef
	if ref != 0 {
		w.planner.Bind(ref)
		node = services.BackendRef(w.flows.Flow(ref).BackendRef())
	} else if f := w.planner.Snap.Frontend(client); f != nil && f.Service.Direct {
		node = w.planner.Snap.Node(f, client)
	}
	if node == 0 {
		return v, false
	}
	if p.TTL <= 1 {
		return drop(reason.TTLExceeded), true // no error about an error (RFC 1122 section 3.2.2)
	}
	return w.tunnel(p, node, w.flows.Hash(client)), true
}

// A packet of a direct Service without a flow goes to the node of the hash. Segments arrive without
// a flow in the middle of connections that another gateway or an earlier process forwarded, and a
// forger can send them from any address. So they make flows only if there is room, and are never
// parked: they neither wait for new connections nor displace them.

// mayBeMidway reports whether a packet that opens no flow may be in the middle of a connection that
// this gateway does not know: it is for a Service with direct return.
func (w *Worker) mayBeMidway(p *packet) bool {
	if w.tunnels.VNI == 0 {
		return false
	}
	f := w.planner.Snap.Frontend(&p.Tuple)
	return f != nil && f.Service.Direct
}

// tracks reports whether a packet in the middle of a connection makes a flow: it is an intact
// segment as an open connection has it.
func (w *Worker) tracks(p *packet) bool {
	return p.TCPFlags&(header.TCPACK|header.TCPSYN|header.TCPRST) == header.TCPACK && !p.segment.Unverified &&
		p.TTL > 1 && w.verify(p)
}

// admitUntracked is admit for a packet that makes no flow.
func (w *Worker) admitUntracked(p *packet) decide.Verdict {
	var n decide.Plan
	req := w.flowRequest(p)
	if w.planner.Plan(&n, &req); n.Verdict.Action != decide.Queued {
		return w.respond(p, &n)
	}
	return w.forwardUntracked(p, &n)
}

// forwardUntracked sends a packet to the node of a plan.
func (w *Worker) forwardUntracked(p *packet, n *decide.Plan) decide.Verdict {
	bytes := p.bytes
	v := w.tunnel(p, n.Backend.Ref, p.hash)
	if v.Action == decide.Queued {
		w.stats.Backends.Count(uint32(n.Backend.Ref), uint8(flowtable.ClientSide), bytes)
	}
	return v
}
