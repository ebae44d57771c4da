package fastpath

import (
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
)

// admit makes a flow for a packet that has none: frontend, backend, source
// address and port, both keys. It returns the flow, or 0 and what becomes of the packet.
//
// old is where a flow went that this one replaces, or zero: the connection keeps its
// source port if it keeps its backend.
func (w *Worker) admit(d Desc, p *header.Packet, old *header.Tuple) (flowtable.Ref, Verdict) {
	f := w.snap.Frontend(&p.Tuple)
	if f == nil {
		return 0, w.unserved(d, p)
	}
	if w.ours(p.Tuple.Src) {
		return 0, drop(stats.SpoofedSource)
	}
	if p.Tuple.Proto == header.ProtoTCP && !isSYN(p.TCPFlags) {
		return 0, drop(stats.NoFlow)
	}
	if p.TTL <= 1 {
		w.sendError(d, p, nat.TimeExceeded, 0)
		return 0, drop(stats.TTLExceeded)
	}
	b := w.snap.Backend(f.Outside.Set.Pick(w.snap.SelectHash(&p.Tuple)))
	if b == nil {
		return 0, w.noBackend(d, p, f)
	}
	return w.create(p, f, b, old)
}

// ours says whether a packet from outside cannot truly come from an address.
func (w *Worker) ours(a header.Addr) bool {
	return w.snap.Owned(a) != 0 || w.hostSource(a)
}

// hostSource says whether an address is ours on the host link.
func (w *Worker) hostSource(a header.Addr) bool {
	return a == w.c.HostSource4 || a == w.c.HostSource6
}

// create inserts the flow. Another worker may have been faster with the same
// packet (a retransmission on another queue): then its flow is the flow.
func (w *Worker) create(p *header.Packet, f *services.Frontend, b *services.Backend, old *header.Tuple) (flowtable.Ref, Verdict) {
	n := flowtable.NewFlow{
		Client: p.Tuple, Backend: b.Addr, BackendPort: b.Port,
		Service: uint32(b.Service), BackendRef: uint32(b.Ref),
	}
	random := w.rnd.Uint64()
	toBackend := w.view.Lookup(&b.Addr)
	if f.Outside.KeepClient && p.Tuple.Src != b.Addr { // a backend that reaches itself would see its own address
		// The client's own port if it is free. It is not when the same client port
		// reaches the same backend through two frontends; then another one.
		n.Source, n.SourcePort = p.Tuple.Src, p.Tuple.SrcPort
		n.Ports = portChoice(random, services.PortRange{First: 1024, Count: 64512})
	} else {
		n.Source = w.source(random>>32, &toBackend, p.Tuple.V6)
		n.Ports = portChoice(random, w.snap.SNATPorts)
	}
	if n.Source == (header.Addr{}) {
		return 0, drop(stats.NoRoute)
	}
	w.keepPort(&n, old, n.SourcePort != 0 || toBackend.Kind == nexthop.Kernel)
	ref, status := w.flows.Create(w.now, &n)
	switch status {
	case flowtable.Created:
		w.n.flows++
		toClient := w.view.Lookup(&p.Tuple.Src)
		w.flows.Flow(ref).Bind(w.view.Generation, n.Service, n.BackendRef, uint16(toBackend.Hop), uint16(toClient.Hop))
		if c := w.stats.Backends.At(b.Ref.Index()); c != nil {
			c.Flows.Add(1)
		}
		return ref, queued
	case flowtable.Exists:
		return ref, queued
	case flowtable.HalfOpenLimit:
		return 0, drop(stats.HalfOpenLimit)
	case flowtable.PortsExhausted:
		return 0, drop(stats.SNATPortsExhausted)
	default:
		return 0, drop(stats.FlowTableFull)
	}
}

// keepPort gives a connection that was opened again the source it had: the backend
// knows it, and may judge the new SYN by the old connection in TIME_WAIT (RFC 6191).
// Its port is then not free for others meanwhile. onlyOne: the source address is not
// ours to choose, it is the client's or the host link's.
func (w *Worker) keepPort(n *flowtable.NewFlow, old *header.Tuple, onlyOne bool) {
	if old.Dst != n.Backend || old.DstPort != n.BackendPort {
		return
	}
	if old.Src != n.Source && (onlyOne || w.snap.Owned(old.Src)&services.AddrSNAT == 0) {
		return
	}
	if n.SourcePort == 0 && !w.snap.SNATPorts.Contains(old.SrcPort) {
		return
	}
	n.Source, n.SourcePort = old.Src, old.SrcPort
}

// source chooses our address towards a backend: the host link's own where the
// kernel carries the packet on (its replies then come back by the host link), the
// route's or one of the configured addresses elsewhere. The zero Addr if the family
// has none.
func (w *Worker) source(random uint64, r *nexthop.Route, v6 bool) header.Addr {
	pool, byRoute, host := w.snap.SNAT4, w.snap.SNATByRoute4, w.c.HostSource4
	if v6 {
		pool, byRoute, host = w.snap.SNAT6, w.snap.SNATByRoute6, w.c.HostSource6
	}
	if r.Kind == nexthop.Kernel {
		return host
	}
	// A source that the snapshot does not know yet would get no replies.
	if byRoute && w.snap.Owned(r.Source)&services.AddrSNAT != 0 {
		return r.Source
	}
	if len(pool) == 0 {
		return header.Addr{}
	}
	return pool[random%uint64(len(pool))]
}

// unserved is a packet for no frontend. Addresses of the node and SNAT addresses
// are shared with the host, so the kernel gets the packet; a VIP is ours alone.
func (w *Worker) unserved(d Desc, p *header.Packet) Verdict {
	flags := w.snap.Owned(p.Tuple.Dst)
	if flags&services.AddrVIP == 0 || flags&(services.AddrNode|services.AddrSNAT|services.AddrLocal) != 0 {
		return toKernel
	}
	switch w.snap.UnservedPort {
	case services.UnservedReject:
		w.sendError(d, p, nat.PortUnreachable, 0)
		return drop(stats.FrontendRejected)
	case services.UnservedDrop:
		return drop(stats.FrontendRejected)
	default:
		return toKernel
	}
}

// noBackend is a packet for a frontend whose set is empty.
func (w *Worker) noBackend(d Desc, p *header.Packet, f *services.Frontend) Verdict {
	if f.Outside.Set.Empty == services.EmptyDrop {
		return drop(stats.NoLocalEndpoints)
	}
	w.sendError(d, p, nat.PortUnreachable, 0)
	return drop(stats.NoEndpoints)
}

func portChoice(random uint64, r services.PortRange) flowtable.Ports {
	start, stride := nat.ChoosePorts(random, r.First, r.Count)
	return flowtable.Ports{First: r.First, Count: r.Count, Start: start, Stride: stride}
}
