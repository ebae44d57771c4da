package fastpath

import (
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// retry gives a connection whose backend does not answer, or is gone, to another backend, by the
// same rules as a new one; its client's pin moves with it. It returns the flow that the
// packet belongs to: the new one, or the old one where there is no other backend or where it
// has been answered after all; or 0 and what becomes of the packet.
//
// The new flow keeps nothing of the old one. The old backend may have the SYN and be
// slow: its answers are known for a while and dropped (flowtable.Handle.Abandoned), so the client
// never sees two answers.
func (w *Worker) retry(p *header.Packet, hash uint64, ref flowtable.Ref) (flowtable.Ref, Verdict) {
	w.bind(ref)
	var old header.Tuple
	w.flows.Outgoing(ref, flowtable.ClientSide, &old)
	o := w.opening(p)
	o.not = services.BackendRef(w.flows.Flow(ref).BackendRef())
	var n plan
	w.plan(&n, &o)
	if n.verdict.Action != Queued || n.backend.Addr == old.Dst && n.backend.Port == old.DstPort {
		return ref, queued
	}
	if !w.flows.Abandon(ref, w.now) {
		if found, _ := w.flows.Lookup(hash, &p.Tuple, w.now); found != 0 {
			return found, queued
		}
	}
	if w.settle(&n, &o); n.verdict.Action != Queued {
		return 0, n.verdict
	}
	next, v := w.create(p, &n, &header.Tuple{})
	if next != 0 {
		w.n.retried++
	}
	return next, v
}
