package header

import "sluice.dev/sluice/fastpath/stats"

// minTCPFragmentOffset is the first offset a later TCP fragment can have: a first
// fragment that holds a whole TCP header and is a multiple of 8 bytes long has at
// least 24. One that starts earlier would overwrite the header (RFC 1858, RFC 3128).
const minTCPFragmentOffset = (TCPBytes + fragmentUnit - 1) / fragmentUnit * fragmentUnit

// setFragment records where a packet belongs in its datagram. Neither offset nor
// more-fragments is an IPv6 atomic fragment: whole.
func (p *Packet) setFragment(offset uint16, more bool) {
	p.FragmentOffset = offset * fragmentUnit
	switch {
	case offset != 0:
		p.Fragment = LaterFragment
	case more:
		p.Fragment = FirstFragment
	}
}

// judgeFragment checks a fragment's geometry. reassembledBytes is what the length
// field of the whole datagram would say if this were its last fragment. Where the next
// header of an IPv6 fragment header is an extension header, only the first fragment
// says what the transport is: Tuple.Proto of a later one is that next header then.
func judgeFragment(frame []byte, p *Packet, reassembledBytes int) stats.DropReason {
	n := p.FragmentBytes()
	if n == 0 || reassembledBytes > maxPacketBytes || p.MoreFragments(frame) && n%fragmentUnit != 0 {
		return stats.FragmentLength
	}
	if p.Fragment == FirstFragment {
		return parseTransport(frame, p)
	}
	if p.Tuple.Proto == ProtoTCP && p.FragmentOffset < minTCPFragmentOffset {
		return stats.FragmentTiny
	}
	if p.Tuple.Proto == ProtoSCTP {
		return stats.SCTPFragment
	}
	chained := p.Tuple.V6 && (p.Tuple.Proto == nextDestination || p.Tuple.Proto == nextRouting)
	if !chained && !TransportKnown(p.Tuple.Proto, p.Tuple.V6) {
		return stats.Protocol
	}
	return stats.None
}

// MoreFragments reports whether fragments follow behind a fragment. It reads the flag again, as few
// packets need it.
func (p *Packet) MoreFragments(frame []byte) bool {
	if p.FragmentHeader != 0 {
		return frame[p.FragmentHeader+3]&fragmentMore != 0
	}
	return frame[p.L3+6]&(ipv4MoreFragments>>8) != 0
}
