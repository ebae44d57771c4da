package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// Where the backend sees the client's address, the client may also open a connection to the
// backend's own address, from the same port. To the backend both connections have the same
// addresses and ports, so only one of them can exist at a time, and the second must not break the
// first. If the backend has the direct connection, it answers a SYN through the frontend with a
// challenge ACK (RFC 5961 section 4). The client must not get that from the frontend's address: it
// would answer with an RST, which ends the direct connection.

// syn is what a flow keeps of a client's SYN.
type syn struct {
	opens bool // the packet is one, of TCP and whole
	data  bool
	seq   uint32
}

// readSYN reads a client's packet, before a flow is made for it (insert) or it is forwarded.
func (w *Worker) readSYN(d Desc, p *header.Packet) {
	w.syn = syn{}
	if !wholeTCP(p) || !decide.IsSYN(p.TCPFlags) {
		return
	}
	var s flowtable.Segment
	readTCP(&s, p.Transport(w.frame(d)), p)
	w.syn = syn{opens: true, data: s.Data, seq: s.Seq}
}

// usable reports whether the answer to the SYN is known by its number: with data, the answer may
// acknowledge more (RFC 7413).
func (s *syn) usable() bool { return s.opens && !s.data }

func wholeTCP(p *header.Packet) bool {
	return p.Tuple.Proto == header.ProtoTCP && p.Fragment == header.NotFragment
}

// foreign reports whether a packet from a flow's backend belongs to a connection to the backend's
// own address. If so, a flow whose SYN has no answer gets another source port, which the client's
// next SYN uses, and a flow whose connection is over ends. Of the client's packets foreign records
// the sequence numbers of SYNs.
func (w *Worker) fromDirectConnection(d Desc, p *header.Packet, ref flowtable.Ref, side flowtable.Side) bool {
	if !wholeTCP(p) {
		return false
	}
	if side == flowtable.ClientSide {
		if w.syn.opens {
			w.flows.Reopens(ref, w.syn.seq, w.syn.data)
		}
		return false
	}
	if _, known := w.flows.Opening(ref); !known {
		return false
	}
	s := flowtable.Segment{Flags: p.TCPFlags}
	readTCP(&s, p.Transport(w.frame(d)), p)
	if !w.flows.Foreign(ref, &s) || !w.keepsClient(ref, p) || w.c.StrictReversePath && w.offPath(p, ref) {
		return false
	}
	switch unanswered := w.flows.Flow(ref).State() == flowtable.SynSeen; {
	case !unanswered && !w.flows.Ended(ref), !w.verify(d, p):
	case unanswered:
		w.changePort(ref)
	default:
		w.flows.Delete(ref)
	}
	return true
}

// keepsClient reports whether the flow of a backend's packet keeps its client's address.
func (w *Worker) keepsClient(ref flowtable.Ref, p *header.Packet) bool {
	var toClient header.Tuple
	w.flows.Outgoing(ref, flowtable.ReplySide, &toClient)
	return toClient.Dst == p.Tuple.Dst
}

// changePort gives a flow whose SYN was not answered another source port towards its backend.
func (w *Worker) changePort(ref flowtable.Ref) {
	var toBackend, toClient header.Tuple
	w.flows.Outgoing(ref, flowtable.ClientSide, &toBackend)
	w.flows.Outgoing(ref, flowtable.ReplySide, &toClient)
	service, backend := w.flows.Flow(ref).Owner()
	seq, _ := w.flows.Opening(ref)
	w.flows.Delete(ref)
	w.restore(&flowtable.NewFlow{
		Client: toClient.Reverse(), Backend: toBackend.Dst, BackendPort: toBackend.DstPort, Source: toBackend.Src,
		Ports:   portChoice(w.draws.take()[1], services.OwnPorts),
		Service: service, BackendRef: backend,
		SYN: seq, HasSYN: true,
	}, toKernel)
}

// lateAnswer reports whether a packet that has no flow answers a flow that was abandoned. One to a
// client's own address may be that of a connection to the backend's own address.
func (w *Worker) lateAnswer(p *header.Packet, hash uint64) bool {
	return p.Tuple.Stateful() && !decide.IsSYN(p.TCPFlags) && w.planner.Forged(p.Tuple.Dst) &&
		w.flows.Abandoned(hash, w.planner.Now)
}
