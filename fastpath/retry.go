package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// retry moves a connection whose backend does not answer, or is gone, to another backend, by the
// same rules as for a new flow. A tentative pin of its client moves as well. It returns the
// packet's flow: the new one, or the old one if there is no other backend, no room for a new flow,
// or if the old backend has answered meanwhile; or it returns 0 and the verdict.
//
// The new flow keeps nothing of the old one. The old backend may have received the SYN and answer
// late: its answers are recognised for a while and dropped (flowtable.Handle.Abandoned), so the
// client never sees two answers.
func (w *Worker) retry(p *packet, ref flowtable.Ref) (flowtable.Ref, decide.Verdict) {
	w.planner.Bind(ref)
	var old header.Tuple
	w.flows.Outgoing(ref, flowtable.ClientSide, &old)
	req := w.flowRequest(p)
	service, backend := w.flows.Flow(ref).Owner()
	proxied, tracked, copied := w.flows.Flow(ref).Proxied(), w.flows.Tracked(ref), w.flows.OwnerOf(ref) != 0
	req.Not = services.BackendRef(backend)
	var n decide.Plan
	w.planner.Plan(&n, &req)
	direct := w.flows.Direct(ref)
	if n.Verdict.Action != decide.Queued || direct && uint32(n.Backend.Ref) == backend ||
		n.Backend.Addr == old.Dst && n.Backend.Port == old.DstPort && w.planner.MayBegin(ref) {
		return ref, queued
	}
	mark := w.flows.Mark(ref)
	if !w.flows.Abandon(ref, w.planner.Now) {
		if found, _ := w.flows.Lookup(p.hash, &p.Tuple, w.planner.Now); found != 0 {
			return found, queued
		}
	}
	next, v, made := w.createAndPin(p, &n, &req, &header.Tuple{})
	switch {
	case made:
		w.flows.MarkRepeated(next)
		w.n.retried++
	case next == 0 && copied: // its source port is not this gateway's
		return 0, v
	case next == 0 && direct:
		return w.restore(&flowtable.NewFlow{
			Client: p.Tuple, Backend: old.Dst, BackendPort: old.DstPort, Source: old.Src, SourcePort: old.SrcPort,
			Service: service, BackendRef: backend, SYN: mark, Direct: true,
		}, v)
	case next == 0:
		seq, hasSYN := p.syn()
		return w.restore(&flowtable.NewFlow{
			Client: p.Tuple, Backend: old.Dst, BackendPort: old.DstPort, Source: old.Src, SourcePort: old.SrcPort,
			Service: service, BackendRef: backend, SYN: seq, HasSYN: hasSYN || proxied && p.isSYN(),
			Proxied: proxied, Tracked: tracked,
		}, v)
	}
	return next, v
}

// restore makes a client's old flow again after a new one could not be made: the old backend may be
// slow, not dead. If the old flow cannot be made either, it returns v.
func (w *Worker) restore(f *flowtable.NewFlow, v decide.Verdict) (flowtable.Ref, decide.Verdict) {
	ref, status := w.flows.Create(w.planner.Now, f)
	switch status {
	case flowtable.Created:
		toBackend, toClient := w.planner.View.Lookup(&f.Backend), w.planner.View.Lookup(&f.Client.Src)
		if f.Direct {
			toBackend.Hop = nexthop.Tunnel
		}
		w.flows.Flow(ref).BindHops(w.planner.Binding, uint16(toBackend.Hop), uint16(toClient.Hop))
	case flowtable.Exists:
	default:
		return 0, v
	}
	return ref, queued
}
