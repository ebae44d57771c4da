package fastpath

import (
	"time"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// batch is the packets judged together, one field per array so that each pass of
// the step walks what it needs.
type batch struct {
	desc   [BatchSize]Desc
	search [searches]flowtable.Search // of the packets between inspect and finish, by number modulo searches
	link   int                        // they all came from this link
	kernel bool                       // which is the host link
	// IPv6 headers are two lines long. long: prefetch both, because the batch before had IPv6.
	long, anyLong bool
	ends          []Desc             // whose second lines are to be prefetched next
	find          []flowtable.Search // of the next group of find, those that it has not taken
	pkt           header.Packet      // the one that is judged
}

// Verdict is the decision about a packet. Every packet gets exactly one.
type Verdict struct {
	Action Action
	Reason stats.DropReason // for Drop
}

// Action is the kind of a Verdict.
type Action uint8

const (
	// Drop: counted under Verdict.Reason, frame freed. The zero Action, so that a
	// forgotten verdict shows as a drop without a reason, not as a leak.
	Drop Action = iota
	// Queued: the frame went to an egress queue or a hold queue, which own it now.
	Queued
	// ToKernel: the packet as it came goes to the kernel by the host link.
	ToKernel
)

// String returns the verdict in an operator's words.
func (v Verdict) String() string {
	switch v.Action {
	case Queued:
		return "forward"
	case ToKernel:
		return "to kernel"
	}
	return "drop (" + v.Reason.String() + ")"
}

func drop(r stats.DropReason) Verdict { return Verdict{Drop, r} }

var (
	queued   = Verdict{Action: Queued}
	toKernel = Verdict{Action: ToKernel}
)

// frame returns a packet's bytes, as many as its first buffer has. The capacity ends with them,
// so nothing can write into the next frame.
func (w *Worker) frame(d Desc) []byte {
	end := d.Addr + uint64(d.Len)
	if d.Len == 0 {
		end = d.Addr + uint64(w.chains.First(d))
	}
	return w.mem[d.Addr:end:end]
}

// parse reads and judges a packet's headers.
func (w *Worker) parse(d Desc, p *header.Packet) stats.DropReason {
	if d.Len != 0 {
		return header.Parse(w.frame(d), p)
	}
	if !w.chains.sane(d) {
		*p = header.Packet{}
		return stats.FrameBuffers
	}
	return header.ParseLong(w.frame(d), w.chains.Bytes(d), p)
}

// judgeAny gives a packet of any kind its verdict, and carries it out.
func (w *Worker) judgeAny(d Desc) {
	p := &w.b.pkt
	if d.Len == 0 { // inspect has not counted these
		w.n.rxBytes += uint64(w.chains.Bytes(d))
	}
	var v Verdict
	if r := w.parse(d, p); r == stats.None {
		v = w.judge(d, p)
	} else {
		v = w.judgeFault(d, p, r)
	}
	w.carryOut(d, p, v)
}

func (w *Worker) carryOut(d Desc, p *header.Packet, v Verdict) {
	switch v.Action {
	case Queued:
	case ToKernel:
		if !w.b.kernel && w.forged(p.Tuple.Src) {
			w.dropped(d, stats.SpoofedSource)
			return
		}
		w.returnToKernel(d, p)
	default:
		w.dropped(d, v.Reason)
	}
}

// judge decides about a packet that parsed. p.Tuple is complete but for a later
// fragment's ports.
func (w *Worker) judge(d Desc, p *header.Packet) Verdict {
	switch {
	case p.Multicast:
		return w.notOurs(d, p)
	case p.Fragment == header.LaterFragment:
		return w.laterFragment(d, p)
	case isICMP(p):
		return w.icmp(d, p)
	}
	if p.Fragment == header.FirstFragment {
		if r := w.firstFragment(p); r != stats.None {
			return drop(r)
		}
	}
	return w.judgeFlow(d, p, w.flows.Hash(&p.Tuple), nil)
}

// judgeFlow finds or makes the flow of a packet and forwards it. f is what the lookahead prepared
// for it, or nil.
func (w *Worker) judgeFlow(d Desc, p *header.Packet, hash uint64, f *prepared) Verdict {
	ref, side := w.flows.Lookup(hash, &p.Tuple, w.now)
	var old header.Tuple // towards the backend, of the flow that this one replaces
	if ref != 0 {
		switch w.standing(ref, side, p) {
		case Stands:
			return w.forward(d, p, ref, side)
		case BackendGone:
			if w.withinGrace(ref, p) {
				return w.deliver(d, p, ref, side) // does not refresh the flow
			}
			return drop(stats.BackendGone)
		case Unanswered:
			next, v := w.retry(p, hash, ref)
			if next == 0 {
				return v
			}
			return w.forward(d, p, next, side)
		}
		w.flows.Outgoing(ref, flowtable.ClientSide, &old)
		w.flows.Delete(ref)
		f = nil // which knows nothing of old
	} else if p.Tuple.Stateful() && !isSYN(p.TCPFlags) && w.flows.Abandoned(hash, w.now) {
		return drop(stats.LateAnswer)
	}
	if w.b.kernel {
		return w.fromKernel(d, p)
	}
	ref, v := w.admit(d, p, &old, f)
	if ref == 0 {
		return v
	}
	if f != nil {
		return w.forwardFirst(d, p, ref)
	}
	return w.forward(d, p, ref, flowtable.ClientSide)
}

// Standing is what a flow is to a packet that has its key.
type Standing uint8

const (
	// Stands: the packet is the flow's.
	Stands Standing = iota
	// Superseded: a client's packet that must be scheduled anew, a SYN on a connection that is
	// over (RFC 9293 section 3.6.1), or UDP whose backend no longer serves.
	Superseded
	// Unanswered: a client's second repetition of a SYN that its backend has not
	// answered, where another is to be tried then: by configuration, or because the
	// backend is gone.
	Unanswered
	// BackendGone: from an endpoint that is gone, over UDP, or in answer to a SYN.
	BackendGone
)

// String returns the name of the standing.
func (s Standing) String() string {
	return [...]string{"stands", "superseded", "unanswered", "backend gone"}[s]
}

// standing classifies a packet against its flow.
func (w *Worker) standing(ref flowtable.Ref, side flowtable.Side, p *header.Packet) Standing {
	switch {
	case p.Tuple.Proto == header.ProtoUDP:
		w.bind(ref)
		return w.datagram(services.BackendRef(w.flows.Flow(ref).BackendRef()), side)
	case p.TCPFlags&header.TCPSYN == 0:
		return Stands
	case side == flowtable.ReplySide:
		return w.handshake(ref, p.TCPFlags)
	case !isSYN(p.TCPFlags):
		return Stands
	case w.flows.Closing(ref):
		return Superseded
	}
	gone := w.gone(ref)
	if (gone || w.snap.RetryOther) && w.flows.Repeated(ref, w.now, gone) {
		return Unanswered
	}
	return Stands
}

// handshake is the standing of a flow to an answer to a SYN. A connection with a backend that is no
// endpoint any more continues; a new one must not begin there.
func (w *Worker) handshake(ref flowtable.Ref, flags uint8) Standing {
	if flags&header.TCPACK != 0 && w.flows.Awaits(ref) && w.gone(ref) {
		return BackendGone
	}
	return Stands
}

// gone reports whether the backend of a connection is no endpoint of its service any more: its
// address may be another pod's by now. An endpoint that came back has another ref; gone stores it
// in the flow.
func (w *Worker) gone(ref flowtable.Ref) bool {
	w.bind(ref)
	f := w.flows.Flow(ref)
	if w.snap.Backend(services.BackendRef(f.BackendRef())) != nil {
		return false
	}
	service, backend := w.owner(ref)
	if backend == 0 {
		return true
	}
	binding, toBackend, toClient := f.Bound()
	w.flows.Bind(ref, binding, service, backend, toBackend, toClient)
	return false
}

// replyGrace is how long after the flow's last packet an endpoint that is gone may still reply over
// UDP: a reply that was under way is not lost, and no pod gets another's address as fast.
const replyGrace = 2 * time.Second

// withinGrace reports whether a packet of an endpoint that is gone is such a reply.
func (w *Worker) withinGrace(ref flowtable.Ref, p *header.Packet) bool {
	return p.Tuple.Proto == header.ProtoUDP && w.flows.Idle(ref, w.now) < replyGrace
}

// datagram is the standing of a UDP flow. It never outlives its endpoint: the address of one that
// is gone may be another pod's by now, which must not reply in its place. One that is still listed
// and no longer serves may still reply.
func (s *planner) datagram(backend services.BackendRef, side flowtable.Side) Standing {
	b := s.snap.Backend(backend)
	switch {
	case b != nil && (side == flowtable.ReplySide || b.Flags&services.BackendServing != 0):
		return Stands
	case side == flowtable.ReplySide:
		return BackendGone
	}
	return Superseded
}

// notOurs passes on what was steered here and belongs to no flow: to the kernel if it
// came from outside, onward if it came from the kernel.
func (w *Worker) notOurs(d Desc, p *header.Packet) Verdict {
	switch {
	case !w.b.kernel:
		return toKernel
	case p.Multicast:
		return drop(stats.HostLinkOther)
	}
	return w.fromKernel(d, p)
}

// judgeFault decides about a packet that did not parse. A protocol that is not
// translated came here in fragments, to an address that the node shares or from an
// endpoint on the node: it is not ours. All else is dropped; what the kernel sends on
// its own link (neighbour discovery, multicast) is counted apart from malformed packets.
func (w *Worker) judgeFault(d Desc, p *header.Packet, r stats.DropReason) Verdict {
	switch {
	case r == stats.Protocol:
		return w.notOurs(d, p)
	case r == stats.SCTPFragment:
		return w.sctpFragment(d, p)
	case w.b.kernel && (p.Multicast || r == stats.EtherType):
		return drop(stats.HostLinkOther)
	case r == stats.FrameTruncated:
		w.notePiece(d)
	}
	return drop(r)
}

// forged reports whether a packet claims to be from this node and came from outside: it gets no
// flow. The kernel must not get it from us either: on the host link it accepts local sources, so it
// would accept the packet. An address that is only a VIP is a possible source: another gateway may
// share it, and an external IP may be another node's address.
func (s *planner) forged(src header.Addr) bool {
	const own = services.AddrLocal | services.AddrNode | services.AddrSNAT
	return s.snap.Owned(src)&own != 0 || s.hostSource(src)
}

// fromKernel sends on a packet that the kernel put on the host link and that is no
// reply of ours: the egress program matches on addresses alone and may catch one
// that was on its way out. It leaves as the kernel would have sent it.
func (w *Worker) fromKernel(d Desc, p *header.Packet) Verdict {
	route := w.view.Lookup(&p.Tuple.Dst)
	if route.Kind != nexthop.OnLink {
		return drop(stats.HostLinkOther)
	}
	return w.send(outgoing{d, p.L3, p.End, p.Tuple.V6, !p.DF, p.Tuple.Dst}, route.Hop)
}

func isICMP(p *header.Packet) bool {
	return p.Tuple.Proto == header.ProtoICMP || p.Tuple.Proto == header.ProtoICMPv6
}

func isSYN(flags uint8) bool {
	return flags&(header.TCPSYN|header.TCPACK|header.TCPRST|header.TCPFIN) == header.TCPSYN
}
