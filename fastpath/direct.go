package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// If the backend sees the client's address, the client may also open a direct connection to the
// backend's own address, from the same port. To the backend both connections have the same
// addresses and ports, so only one can exist at a time, and the second must not break the first. If
// the direct connection exists, the backend answers a SYN through the frontend with a challenge ACK
// (RFC 5961 section 4). The client must not get that ACK from the frontend's address: it would
// answer with an RST, which ends the direct connection.

// fromDirectConnection reports whether a packet from a flow's backend belongs to a direct
// connection. If so, a flow whose SYN has no answer gets another source port, which the client's
// next SYN uses, and a flow whose connection is over ends. For a client's SYN it records the
// sequence number and returns false.
func (w *Worker) fromDirectConnection(p *packet, ref flowtable.Ref, side flowtable.Side) bool {
	if !p.isTCP() {
		return false
	}
	if side == flowtable.ClientSide {
		if p.isSYN() {
			w.flows.Reopens(ref, p.segment.Seq, p.segment.Data)
		}
		return false
	}
	if !w.flows.Foreign(ref, &p.segment) || !w.keepsClient(ref, p) || w.c.StrictReversePath && w.offPath(p, ref) {
		return false
	}
	switch unanswered := w.flows.Flow(ref).State() == flowtable.SynSeen; {
	case !unanswered && !w.flows.Ended(ref), !w.verify(p):
	case unanswered:
		w.changePort(ref)
	default:
		w.flows.DeleteFor(ref, flowtable.EndReopened)
	}
	return true
}

// keepsClient reports whether the backend of a flow sees the client's address.
func (w *Worker) keepsClient(ref flowtable.Ref, p *packet) bool {
	var toClient header.Tuple
	w.flows.Outgoing(ref, flowtable.ReplySide, &toClient)
	return toClient.Dst == p.Tuple.Dst
}

// changePort gives a flow whose SYN has no answer another source port towards its backend.
func (w *Worker) changePort(ref flowtable.Ref) {
	var toBackend, toClient header.Tuple
	w.flows.Outgoing(ref, flowtable.ClientSide, &toBackend)
	w.flows.Outgoing(ref, flowtable.ReplySide, &toClient)
	service, backend := w.flows.Flow(ref).Owner()
	seq, _ := w.flows.Opening(ref)
	proxied := w.flows.Flow(ref).Proxied()
	w.flows.DeleteFor(ref, flowtable.EndRenumbered)
	w.restore(&flowtable.NewFlow{
		Client: toClient.Reverse(), Backend: toBackend.Dst, BackendPort: toBackend.DstPort, Source: toBackend.Src,
		Ports:   portChoice(w.draws.take()[1], services.OwnPorts),
		Service: service, BackendRef: backend,
		SYN: seq, HasSYN: true, Proxied: proxied,
	}, toKernel)
}

// lateAnswer reports whether a packet that has no flow is an answer to an abandoned flow. Only
// packets to the gateway's own addresses count: one to a client's address may belong to a direct
// connection.
func (w *Worker) lateAnswer(p *packet) bool {
	return p.Tuple.Stateful() && !decide.IsSYN(p.TCPFlags) && w.planner.Forged(p.Tuple.Dst) &&
		w.flows.Abandoned(p.hash, w.planner.Now)
}
