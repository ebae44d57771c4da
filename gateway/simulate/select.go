package simulate

import (
	"encoding/binary"

	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// kind is how a packet of the capture takes part.
type kind uint8

const (
	other      kind = iota
	fromClient      // to a frontend, or another port of a VIP
	fromVIP         // an answer of a backend, as it left a gateway
)

// maxFrame is the longest frame that the parser accepts, in bytes.
const maxFrame = 1<<16 - 1

// parsed is a packet of the capture, in full length.
type parsed struct {
	header.Packet
	frame  []byte
	reason reason.Drop // for which the parser drops it
}

// ipBytes returns the length of the IP packet; 0 if the parser did not read it.
func (p *parsed) ipBytes() int { return max(0, int(p.End)-int(p.L3)) }

// restore parses a packet. If the capture has only its beginning, the rest is zeros, and TCP and
// ICMP checksums are made right again: without them a connection would never be established. ok is
// false if the capture lacks headers.
func (s *simulation) restore(c *captured) (p *parsed, ok bool) {
	p = &s.packet
	if c.foreign || len(c.data) < header.EthernetBytes || c.bytes > maxFrame {
		return p, false
	}
	p.reason = header.ParseLong(c.data, c.bytes, &p.Packet)
	if len(c.data) == c.bytes {
		p.frame = c.data
		return p, true
	}
	if p.reason != reason.None {
		return p, false
	}
	missing := int(p.End) - len(c.data)
	if missing <= 0 { // only padding
		p.frame = c.data
		return p, true
	}
	s.whole = append(append(s.whole[:0], c.data...), make([]byte, missing)...)
	p.frame = s.whole
	s.counts.cut++
	p.setChecksum()
	return p, true
}

// Offsets of checksums from the transport header, in bytes.
const tcpChecksum, icmpChecksum = 16, 2

// setChecksum computes the checksum of a packet in full length.
func (p *parsed) setChecksum() {
	b := p.Transport(p.frame)
	at, t := tcpChecksum, &p.Tuple
	switch {
	case p.Fragment != header.NotFragment:
		return
	case t.Proto == header.ProtoICMP, t.Proto == header.ProtoICMPv6:
		at = icmpChecksum
	case t.Proto != header.ProtoTCP:
		return
	}
	binary.BigEndian.PutUint16(b[at:], 0)
	sum := checksum.Sum(b)
	if t.Proto != header.ProtoICMP { // pseudo-header, RFC 9293 section 3.1, RFC 8200 section 8.1
		sum = checksum.Add(sum, checksum.Add(t.Src.Sum(), t.Dst.Sum()))
		sum = checksum.Add(sum, checksum.Add(p.End-p.L4, uint16(t.Proto)))
	}
	binary.BigEndian.PutUint16(b[at:], ^sum)
}

// kindOf selects a packet. In a capture of Sluice it is the client's packet where it came in, and
// the backend's answer where it left: so each appears once. In another capture only the addresses
// decide.
func (s *simulation) kindOf(c *captured, p *parsed) kind {
	in, out := !c.points || c.point == capture.In, !c.points || c.point == capture.Out
	switch {
	case in && s.toFrontend(p):
		return fromClient
	case out && !c.generated && p.reason == reason.None && p.Fragment == header.NotFragment:
		if t := p.Tuple.Reverse(); isService(&t) && s.frontend(&t) != nil {
			return fromVIP
		}
	}
	return other
}

// isService reports whether a protocol has ports.
func isService(t *header.Tuple) bool { return t.Stateful() || t.Proto == header.ProtoUDP }

// frontend returns the frontend of a packet on any of the gateways, or nil.
func (s *simulation) frontend(t *header.Tuple) *services.Frontend {
	for _, g := range s.gateways {
		if f := g.Snapshot.Frontend(t); f != nil {
			return f
		}
	}
	return nil
}

// toFrontend reports whether a packet is for a frontend or for another port of a VIP, or an ICMP
// error about an answer of a frontend.
func (s *simulation) toFrontend(p *parsed) bool {
	if p.L3 == 0 {
		return false
	}
	for _, g := range s.gateways {
		if g.Snapshot.Owned(p.Tuple.Dst)&services.AddrVIP != 0 {
			return true
		}
	}
	if p.reason != reason.None {
		return false
	}
	if isService(&p.Tuple) && p.Fragment != header.LaterFragment {
		return s.frontend(&p.Tuple) != nil
	}
	if !header.IsICMPError(p.Tuple.V6, p.ICMPType) || p.Fragment != header.NotFragment || isService(&p.Tuple) {
		return false
	}
	var inner header.Packet
	if header.ParseInner(p.frame, &p.Packet, &inner) != reason.None {
		return false
	}
	t := inner.Tuple.Reverse()
	return inner.Tuple.Src == p.Tuple.Dst && s.frontend(&t) != nil
}
