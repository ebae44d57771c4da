package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/proxyproto"
	"sluice.dev/sluice/nat/reason"
)

// A Service with PROXY protocol gets a header in front of the client's bytes, in a segment of its
// own. No packet of such a flow matches on the fast path (conn.MetaProxied); forward and deliver
// handle all of them:
//
//	client                     worker                                 backend
//	SYN                    ->  without data and Fast Open option  ->
//	                       <-  window less the header             <-  SYN-ACK
//	ACK, proves handshake  ->  becomes the header, at ISN + 1     ->
//	data                   ->  sequence number + bytes            ->
//	                       <-  ACK and SACK - bytes               <-  ACK, data
//
// The header is the client's ACK with bytes in it, so it also completes the backend's handshake:
// while it is lost, the backend repeats its SYN-ACK, and the client repeats its ACK. Until the
// backend has acknowledged the header, it is sent again in place of each bare ACK of the client and
// of the backend, before an RST of the client, and by the sweep of the flow table, at most every
// five seconds (ADR 36). An ACK of the client for data of the backend follows it: if the backend's
// packets pass another gateway, this one may never learn that the header is acknowledged. Data that
// arrives meanwhile is forwarded behind it; the backend's TCP orders them.
//
// From the handshake on, a SYN of the client leaves with a sequence number that the client cannot
// know (flowtable.Handle.HiddenSYN). A backend that still has the connection answers it with a
// challenge ACK. A backend that has lost the connection begins another one, in which the numbers of
// the old one would put the client's bytes first: its answer ends the flow, and the client's next
// SYN makes a new one.

// restartWindow is the window field of a header that is sent without a packet of the client. It
// must not offer more than the client's window: with the usual scale of 7 it offers 64 KiB.
const restartWindow = 512

// forwardProxied is forward for a client's packet of a flow with a PROXY header. It updates the
// flow before it translates the packet, because the header goes before the bytes of the segment
// that proves the handshake.
func (w *Worker) forwardProxied(p *packet, ref flowtable.Ref) decide.Verdict {
	if p.TTL <= 1 {
		return w.deliver(p, ref, flowtable.ClientSide) // sends the error
	}
	s := w.verified(p, ref, flowtable.ClientSide)
	before := w.flows.Insertion(ref)
	if before.Sent && p.opensConnection() {
		w.flows.Reopens(ref, w.flows.HiddenSYN(ref), false)
	}
	if w.observe(ref, flowtable.ClientSide, s) {
		w.planner.Confirm(ref)
	}
	in := w.flows.Insertion(ref)
	begins := p.bareACK() && p.begins(&in)
	switch {
	case !in.Pending() && !begins || p.Fragment != header.NotFragment || p.opensConnection():
	case !p.bareACK() && before.Sent && p.TCPFlags&header.TCPRST == 0:
	case !w.verify(p): // a header with these numbers would get a good checksum
	case in.Pending() && p.bareACK() && p.segment.Ack == in.Ack:
		return w.becomeHeader(p, ref, w.clientSegment(p, ref, &in))
	default:
		s := w.clientSegment(p, ref, &in)
		if begins {
			s.Ack = in.Ack
		}
		w.sendHeader(ref, s)
	}
	return w.deliver(p, ref, flowtable.ClientSide)
}

// bareACK reports whether the packet is a whole TCP segment that only acknowledges.
func (p *packet) bareACK() bool {
	const other = header.TCPSYN | header.TCPFIN | header.TCPRST | header.TCPURG
	return p.isTCP() && p.TCPFlags&(other|header.TCPACK) == header.TCPACK && !p.segment.Data && !p.long()
}

// begins reports whether a client's segment could begin a connection by a SYN cookie. If the
// backend has the connection, the header is a duplicate for it; if not, the header begins one. So
// the header is sent before a bare ACK of that kind, which shift moves behind its place: a backend
// with the connection must answer a keepalive of the client.
func (p *packet) begins(in *flowtable.Insertion) bool {
	return in.Sent && p.TCPFlags&(header.TCPACK|header.TCPRST) == header.TCPACK &&
		in.Begins(in.ToBackend(p.segment.Seq), p.segment.Ack)
}

// replyProxied updates a flow with a PROXY header by a packet of its backend. It returns the flow
// by which to forward the packet, or 0 and the verdict.
func (w *Worker) replyProxied(p *packet, ref flowtable.Ref) (flowtable.Ref, decide.Verdict) {
	switch {
	case !p.isTCP() || w.c.StrictReversePath && w.offPath(p, ref): // deliver drops the latter
		return ref, queued
	case p.TCPFlags&header.TCPSYN != 0:
		return w.openProxied(p, ref)
	}
	in := w.flows.Insertion(ref)
	switch hidden, noted := w.flows.AnswersHidden(ref, &p.segment); {
	case hidden && noted && in.Sent:
		return 0, w.endLost(p, ref)
	case hidden && !p.segment.Data: // to a SYN that passed another gateway; the client must not see the number
		return 0, drop(reason.ProxyHandshake)
	}
	if w.c.Copies != nil && !in.Sent && w.sentElsewhere(p, &in) {
		w.flows.ApplyCopyState(ref, flowtable.CopyState{State: flowtable.Established, Proof: true}, w.planner.Now)
		in = w.flows.Insertion(ref)
	}
	ack := p.TCPFlags&(header.TCPACK|header.TCPRST) == header.TCPACK
	switch rst := p.TCPFlags&header.TCPRST != 0; {
	case !in.Sent && !rst && (!p.segment.Data || w.flows.Flow(ref).State() == flowtable.SynSeen):
		return 0, w.deliver(p, ref, flowtable.ReplySide) // only its SYN-ACK and its data change the handshake
	case !in.Pending() || !ack || !w.verify(p):
		return ref, queued
	}
	switch acked := p.segment.Ack - in.First; {
	case acked >= in.Bytes && acked < maxWindow && p.segment.Seq-(in.Ack-1) < maxWindow:
		w.flows.HeaderAcked(ref)
	case acked < in.Bytes && p.bareACK() && w.misses(p, &in):
		s := w.headerSegment(ref, &in)
		if t := nat.TimestampsOf(p.frame, &p.Packet); t.OK {
			s.Timestamps = nat.Timestamps{Value: t.Echo, Echo: t.Value, OK: true}
		}
		return 0, w.becomeHeader(p, ref, s)
	}
	return ref, queued
}

// maxWindow bounds the bytes that either end has sent while the header is not acknowledged (RFC
// 7323 section 2.3).
const maxWindow = 1 << 30

// sentElsewhere reports whether the backend acknowledges a PROXY header that this gateway has not
// sent: the segment that proves the handshake has passed another gateway of the group, which sent
// the header, and whose message about it arrives later. Without the shift, the client would discard
// the packet, because it acknowledges bytes that the client has not sent.
func (w *Worker) sentElsewhere(p *packet, in *flowtable.Insertion) bool {
	acked := p.segment.Ack - in.First
	return p.TCPFlags&(header.TCPACK|header.TCPRST) == header.TCPACK && acked >= in.Bytes && acked < oldestAck &&
		w.verify(p)
}

// oldestAck is the maximum number of bytes that a backend has sent when a header that acknowledges
// its first byte still answers its ACK. It would discard an acknowledgement that is older than the
// largest window that it was offered (RFC 5961 section 5.2), which is rarely smaller.
const oldestAck = 1 << 16

// misses reports whether the backend's bare ACK, which does not acknowledge the PROXY header, asks
// for it: bytes behind the header have arrived. A header that the backend must refuse would be
// answered with the same ACK, without end. If the client has reset the connection, it must get the
// ACK, to repeat its RST.
func (w *Worker) misses(p *packet, in *flowtable.Insertion) bool {
	return !in.Reset && nat.WindowOf(p.frame, &p.Packet) != 0 && p.segment.Seq-in.Ack < oldestAck
}

// openProxied updates a flow with a PROXY header by the answer to a SYN before it is forwarded:
// shift forwards only an answer that the flow has noted. An answer to another SYN than the one that
// opened the flow ends the flow. In a group that SYN may have passed another gateway, before the
// header was sent, so any SYN-ACK may be the answer. On a connection in use, a SYN-ACK is a late
// answer to an earlier user of the port; if it is not, the backend repeats it when the connection
// is no longer in use. While the flow's SYN has no answer, the flow is made again with the other
// number instead: the client has got no SYN cookie yet, and a cookie that arrives later is not
// forwarded.
//
// A backend with SYN cookies may answer the SYN with several numbers. The client gets the first in
// each answer, and so knows one cookie only: the flow has room for one (Insertion.Begins).
func (w *Worker) openProxied(p *packet, ref flowtable.Ref) (flowtable.Ref, decide.Verdict) {
	opening, later := w.flows.Answers(ref, &p.segment)
	switch {
	case later && p.segment.SYNACK() && w.flows.Flow(ref).State() == flowtable.SynSeen:
		var v decide.Verdict
		if !w.verify(p) {
			return 0, drop(reason.ProxyHandshake)
		} else if ref, v = w.renumber(ref, p.segment.Ack-1); ref == 0 {
			return 0, v
		}
	case !opening && p.segment.SYNACK() && (later || w.mayAnswerElsewhere(p, ref)):
		return 0, w.endLost(p, ref)
	case !opening || w.flows.Insertion(ref).Sent && !w.flows.Answered(ref, &p.segment):
		return 0, drop(reason.ProxyHandshake)
	}
	if isn, ok := w.flows.FirstAnswer(ref); ok && p.segment.SYNACK() {
		nat.SetSequence(p.frame, &p.Packet, isn)
		p.segment.Seq = isn
	}
	s, first := w.verified(p, ref, flowtable.ReplySide), w.flows.Awaits(ref)
	if first && !s.Unverified {
		w.countFirst(ref, s.Flags)
	}
	if w.observe(ref, flowtable.ReplySide, s) {
		w.planner.Confirm(ref)
	}
	return ref, queued
}

// mayAnswerElsewhere reports whether a foreign SYN-ACK may answer a SYN of the flow's client that
// passed another gateway of the group. A flow without an answer is not known to the others.
func (w *Worker) mayAnswerElsewhere(p *packet, ref flowtable.Ref) bool {
	hidden, _ := w.flows.AnswersHidden(ref, &p.segment)
	return w.c.Copies != nil && flowtable.Answered(w.flows.Flow(ref).State()) && (hidden || !w.flows.InUse(ref))
}

// renumber replaces a flow whose SYN has no answer by one that a SYN with another number has
// opened: the number of a live flow cannot change (ADR 36). It returns 0 and the verdict if the
// flow cannot be made.
func (w *Worker) renumber(ref flowtable.Ref, syn uint32) (flowtable.Ref, decide.Verdict) {
	var toBackend, toClient header.Tuple
	w.flows.Outgoing(ref, flowtable.ClientSide, &toBackend)
	w.flows.Outgoing(ref, flowtable.ReplySide, &toClient)
	service, backend := w.flows.Flow(ref).Owner()
	tracked := w.flows.Tracked(ref)
	w.flows.DeleteFor(ref, flowtable.EndRenumbered)
	return w.restore(&flowtable.NewFlow{
		Client: toClient.Reverse(), Backend: toBackend.Dst, BackendPort: toBackend.DstPort,
		Source: toBackend.Src, SourcePort: toBackend.SrcPort,
		Service: service, BackendRef: backend, SYN: syn, HasSYN: true, Proxied: true,
		Tracked: tracked,
	}, drop(reason.ProxyHandshake))
}

// endLost ends a flow whose backend has no connection with the flow's numbers, as its packet shows,
// and resets the connection that it has begun instead.
func (w *Worker) endLost(p *packet, ref flowtable.Ref) decide.Verdict {
	if w.verify(p) {
		w.flows.EndLost(ref)
		p.flow = 0
		w.reset(p)
	}
	return drop(reason.ProxyHandshake)
}

// headerSegment returns the segment with the PROXY header of a flow, whose header is pending.
func (w *Worker) headerSegment(ref flowtable.Ref, in *flowtable.Insertion) (s nat.ProxySegment) {
	var toClient header.Tuple
	w.flows.Outgoing(ref, flowtable.ReplySide, &toClient)
	w.flows.Outgoing(ref, flowtable.ClientSide, &s.Out)
	s.Client, s.Seq, s.Ack, s.Window, s.TTL = toClient.Reverse(), in.First, in.Ack, restartWindow, w.c.TTL
	return s
}

// clientSegment is headerSegment with the acknowledgement number, window and timestamps of a packet
// of the client.
func (w *Worker) clientSegment(p *packet, ref flowtable.Ref, in *flowtable.Insertion) nat.ProxySegment {
	s := w.headerSegment(ref, in)
	if p.TCPFlags&(header.TCPACK|header.TCPRST) == header.TCPACK {
		s.Ack, s.Window = p.segment.Ack, nat.WindowOf(p.frame, &p.Packet)
	}
	s.Timestamps = nat.TimestampsOf(p.frame, &p.Packet)
	if p.bareACK() && s.Ack == in.Ack {
		s.Replace(p.frame, &p.Packet)
	}
	return s
}

// becomeHeader sends the PROXY header of a flow in the frame of a packet.
func (w *Worker) becomeHeader(p *packet, ref flowtable.Ref, s nat.ProxySegment) decide.Verdict {
	end := p.desc.Addr&^(w.pool.frameSize-1) + w.pool.frameSize
	return w.sendSegment(w.mem[p.desc.Addr:end:end], p.desc.Addr, ref, &s)
}

// sendHeader sends the PROXY header of a flow in a packet of its own. Without a free frame it is
// sent later, like one that is lost.
func (w *Worker) sendHeader(ref flowtable.Ref, s nat.ProxySegment) {
	addr, ok := w.pool.Get()
	if !ok {
		return
	}
	w.n.generated++
	start, end := addr+frameHeadroom, addr+w.pool.frameSize
	if w.tap != nil {
		w.tapHeader(Desc{Addr: start}, ref)
	}
	if v := w.sendSegment(w.mem[start:end:end], start, ref, &s); v.Action == decide.Drop {
		w.dropped(Desc{Addr: start, Len: header.EthernetBytes}, v.Reason)
	}
}

// sendSegment writes a segment with a PROXY header into room, which is at addr of the UMEM, and
// sends it.
func (w *Worker) sendSegment(room []byte, addr uint64, ref flowtable.Ref, s *nat.ProxySegment) decide.Verdict {
	n := nat.BuildProxySegment(room, s)
	if n == 0 {
		return drop(reason.FrameOversize)
	}
	w.planner.Bind(ref)
	f := w.flows.Flow(ref)
	w.n.proxyHeaders++
	w.stats.Backends.Count(f.BackendRef(), uint8(flowtable.ClientSide), uint32(n))
	o := outgoing{Desc{Addr: addr, Len: uint32(n)}, header.EthernetBytes, uint16(n), s.Out.V6, false, s.Out.Dst,
		precedenceOf(f.State(), flowtable.ClientSide)}
	return w.send(o, w.nextHop(f, flowtable.ClientSide, &s.Out.Dst))
}

// resendHeaders sends the PROXY headers again that the sweep found unacknowledged: headers of
// connections on which neither end sends anything, because the header was lost, or was sent by an
// earlier process.
func (w *Worker) resendHeaders() {
	list := w.flows.Unacknowledged()
	for _, ref := range list {
		if in := w.flows.Insertion(ref); in.Pending() {
			w.sendHeader(ref, w.headerSegment(ref, &in))
		}
	}
	if len(list) > 0 {
		w.transmit()
	}
}

// insertHeader prepares a packet of a flow with a PROXY header for a hop: it translates the numbers
// of a TCP segment, and puts the header into a client's datagram.
func (w *Worker) insertHeader(
	p *packet, ref flowtable.Ref, side flowtable.Side, id nexthop.ID,
) decide.Verdict {
	switch {
	case p.Tuple.Proto == header.ProtoTCP && !w.shift(p, ref, side):
		return drop(reason.ProxyHandshake)
	case p.Tuple.Proto == header.ProtoUDP && side == flowtable.ClientSide:
		return w.prepend(p, id)
	}
	return queued
}

// prepend puts a PROXY header into a client's datagram. The header of a datagram that does not fit
// into a hop's MTU counts like the payload: without DF the datagram is fragmented, else its sender
// learns an MTU that is smaller by the header.
func (w *Worker) prepend(p *packet, id nexthop.ID) decide.Verdict {
	bytes := uint16(proxyproto.Bytes(p.Tuple.V6))
	// Room for VLAN tags must be left in the headroom (encapsulate).
	room := p.desc.Addr & (w.pool.frameSize - 1)
	if p.Fragment != header.NotFragment || p.long() || room < uint64(bytes)+maxVLANBytes {
		return drop(reason.ProxyDatagram)
	}
	hop := w.c.Hops.Hop(id)
	if id != 0 && hop != nil && hop.MTU != 0 && p.End-p.L3+bytes > hop.MTU && p.DF {
		if mtu := hop.MTU - bytes; !p.Tuple.V6 || mtu >= minIPv6MTU {
			w.sendError(p, nat.FragmentationNeeded, mtu)
		}
		return drop(reason.PacketTooBig)
	}
	p.desc.Addr -= uint64(bytes)
	p.desc.Len += uint32(bytes)
	p.frame = w.frame(p.desc)
	p.End = nat.PrependHeader(p.frame, &p.Packet, &p.Tuple)
	w.n.proxyHeaders++
	return queued
}

// maxVLANBytes is the maximum number of bytes of the tags that a hop adds.
const maxVLANBytes = uint64(len(nexthop.Hop{}.VLAN)) * header.VLANBytes

// shift translates the sequence numbers of a packet of a flow with a PROXY header. It returns false
// if the packet must not be forwarded, because bytes of the client could come before the header: a
// SYN-ACK that the flow has not noted, a SYN that is fragmented, in several buffers or has other
// flags, all but an RST before the handshake is proven, and bytes with the header's sequence
// numbers before it is acknowledged. The bytes of a fragmented segment may all be in later
// fragments. A segment that could begin a connection by a SYN cookie leaves with other numbers
// (nat.BreakCookie): only the header has the numbers of one.
func (w *Worker) shift(p *packet, ref flowtable.Ref, side flowtable.Side) bool {
	if p.Fragment == header.LaterFragment {
		return true
	}
	in := w.flows.Insertion(ref)
	bytes := p.segment.Data || p.TCPFlags&header.TCPFIN != 0 || p.Fragment != header.NotFragment
	switch syn := p.TCPFlags&header.TCPSYN != 0; {
	case side == flowtable.ReplySide && syn && !w.flows.Answered(ref, &p.segment):
		return false
	case side == flowtable.ReplySide:
		nat.ShiftToClient(p.frame, &p.Packet, &in.Insertion)
	case syn:
		if !p.isSYN() || p.long() {
			return false
		}
		p.End = nat.StripOpening(p.frame, &p.Packet)
		if in.Sent {
			nat.SetSequence(p.frame, &p.Packet, w.flows.HiddenSYN(ref))
		}
	case !in.Sent:
		return !bytes && p.TCPFlags&header.TCPRST != 0
	case bytes && !in.Acked && p.segment.Seq-in.First >= 1<<31:
		return false
	default:
		nat.ShiftToBackend(p.frame, &p.Packet, &in.Insertion)
		if p.begins(&in) {
			nat.BreakCookie(p.frame, &p.Packet, bytes)
		}
	}
	return true
}

// insertedQuote translates the packet that an ICMP error quotes, which arrived on side: the
// sequence numbers of a TCP segment, and the path MTU for datagrams, to which the gateway adds
// headers.
func (w *Worker) insertedQuote(p *packet, inner *header.Packet, ref flowtable.Ref, side flowtable.Side) {
	if inner.Tuple.Proto == header.ProtoTCP {
		in := w.flows.Insertion(ref)
		nat.ShiftQuote(p.frame, &p.Packet, inner, &in.Insertion, w.flows.HiddenSYN(ref),
			side == flowtable.ReplySide)
		return
	}
	mtu, ok := header.PathMTU(p.frame, &p.Packet)
	bytes := proxyproto.Bytes(p.Tuple.V6)
	if ok && side == flowtable.ReplySide && mtu > bytes && (!p.Tuple.V6 || mtu-bytes >= minIPv6MTU) {
		nat.LowerPathMTU(p.frame, &p.Packet, uint16(bytes))
	}
}
