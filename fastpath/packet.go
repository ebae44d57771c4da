package fastpath

import (
	"encoding/binary"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// packet is a packet on the slow path: its frames, its bytes and its headers. umem.parse sets it,
// and each function of the slow path takes a pointer to it.
//
// The packet owns its frames until one of these functions takes them: send, hold, park,
// holdFragment, returnToKernel and dropped. desc and frame are not valid after that.
type packet struct {
	header.Packet        // its headers, as it was received
	desc          Desc   // its frames
	frame         []byte // the bytes of its first buffer; the other buffers have no headers (Chains)
	bytes         uint32 // in all buffers, as it arrived
	origin

	// segment has the fields that the flow table needs. Unverified is set for fragments only;
	// Worker.verified sets it for others.
	segment flowtable.Segment
	// checksum is the result of Worker.verify, or 0 before.
	checksum integrity
	// hash is the hash of Tuple with the flow table's secret. handleFlow needs it.
	hash uint64
	// flow is the packet's flow and side the side on which it arrived, for captures; flow is 0 if
	// there is none or it is not known yet.
	flow flowtable.Ref
	side flowtable.Side
	// id is the new identification of the packet's datagram, if the packet is a fragment.
	id uint32
}

// origin is the link that a packet came from.
type origin struct {
	link   int  // position in Links
	kernel bool // link is the host link
}

// integrity says whether a checksum was verified, and the result.
type integrity uint8

const (
	unchecked integrity = iota
	intact
	damaged
)

// parse makes p the packet in the frames of d, and reads and checks its headers. It returns None or
// the reason to drop the packet. p then has only the headers before the fault. It does not set the
// hash.
func (u *umem) parse(p *packet, d Desc, from origin) (r reason.Drop) {
	p.desc, p.frame, p.bytes = d, u.frame(d), u.bytes(d)
	p.origin = from
	p.segment, p.checksum, p.id, p.flow = flowtable.Segment{}, unchecked, 0, 0
	switch {
	case d.Len != 0:
		r = header.Parse(p.frame, &p.Packet)
	case u.chains.transmittable(d):
		r = header.ParseLong(p.frame, int(p.bytes), &p.Packet)
	default:
		p.Packet, r = header.Packet{}, reason.FrameBuffers
	}
	if r == reason.None {
		p.readSegment()
	}
	return r
}

// readSegment sets p.segment from the headers.
func (p *packet) readSegment() {
	s := &p.segment
	s.Flags, s.Unverified, s.Later = p.TCPFlags, p.Fragment != header.NotFragment, p.Fragment == header.LaterFragment
	switch {
	case s.Later:
	case p.Tuple.Proto == header.ProtoTCP:
		h := (*[header.TCPBytes]byte)(p.frame[p.L4:])
		s.Seq, s.Ack = binary.BigEndian.Uint32(h[4:8]), binary.BigEndian.Uint32(h[8:12])
		s.Data = p.End-p.L4 > uint16(h[12]>>4)*4
	case p.Tuple.Proto == header.ProtoSCTP:
		s.Data = header.SCTPCarries(p.frame[p.L4+header.SCTPBytes])
	}
}

// long reports whether the packet is in several buffers.
func (p *packet) long() bool { return p.desc.Len == 0 }

// outgoing returns the packet, translated, as one to send. dst is its destination, pr its
// precedence while it waits for its next hop.
func (p *packet) outgoing(dst *header.Addr, pr precedence) outgoing {
	return outgoing{p.desc, p.L3, p.End, p.Tuple.V6, !p.DF, *dst, pr}
}

func (p *packet) isICMP() bool {
	return p.Tuple.Proto == header.ProtoICMP || p.Tuple.Proto == header.ProtoICMPv6
}

// isTCP reports whether the packet is a TCP segment and not a fragment.
func (p *packet) isTCP() bool {
	return p.Tuple.Proto == header.ProtoTCP && p.Fragment == header.NotFragment
}

// isSYN reports whether the packet is a TCP SYN and not a fragment.
func (p *packet) isSYN() bool { return p.isTCP() && p.opensConnection() }

// opensConnection reports whether the packet, or a fragment of it, is a TCP SYN or an SCTP INIT.
func (p *packet) opensConnection() bool { return p.Tuple.Stateful() && decide.IsSYN(p.TCPFlags) }

// opensFlow reports whether the packet may open a flow if it has none.
func (p *packet) opensFlow() bool { return !p.Tuple.Stateful() || decide.IsSYN(p.TCPFlags) }

// syn returns the sequence number of a SYN. ok reports whether the acknowledgement number of an
// answer identifies this SYN. If the SYN has data, the answer may acknowledge the data as well (RFC
// 7413).
func (p *packet) syn() (seq uint32, ok bool) {
	return p.segment.Seq, p.isSYN() && !p.segment.Data
}

func drop(r reason.Drop) decide.Verdict { return decide.Verdict{Action: decide.Drop, Reason: r} }

var (
	queued   = decide.Verdict{Action: decide.Queued}
	toKernel = decide.Verdict{Action: decide.ToKernel}
)
