package header

import "sluice.dev/sluice/nat/reason"

// minTCPFragmentOffset is the lowest offset of a later TCP fragment: a first fragment that holds a
// whole TCP header and is a multiple of 8 bytes long has at least 24 bytes. A later fragment that
// starts earlier would overwrite the header (RFC 1858, RFC 3128).
const minTCPFragmentOffset = (TCPBytes + fragmentUnit - 1) / fragmentUnit * fragmentUnit

// setFragment records a packet's place in its datagram. With offset 0 and no more fragments it is
// an IPv6 atomic fragment, which counts as whole.
func (p *Packet) setFragment(offset uint16, more bool) {
	p.FragmentOffset = offset * fragmentUnit
	switch {
	case offset != 0:
		p.Fragment = LaterFragment
	case more:
		p.Fragment = FirstFragment
	}
}

// checkFragment checks a fragment's geometry. reassembledBytes is the length field that the whole
// datagram would have if this were its last fragment. If the next header of an IPv6 fragment header
// is an extension header, only the first fragment names the transport protocol: then Tuple.Proto of
// a later fragment is that next header.
func checkFragment(frame []byte, p *Packet, reassembledBytes int) reason.Drop {
	n := p.FragmentBytes()
	if n == 0 || reassembledBytes > maxPacketBytes || p.MoreFragments(frame) && n%fragmentUnit != 0 {
		return reason.FragmentLength
	}
	if p.Fragment == FirstFragment {
		return parseTransport(frame, p)
	}
	if p.Tuple.Proto == ProtoTCP && p.FragmentOffset < minTCPFragmentOffset {
		return reason.FragmentTiny
	}
	if p.Tuple.Proto == ProtoSCTP {
		return reason.SCTPFragment
	}
	chained := p.Tuple.V6 && (p.Tuple.Proto == nextDestination || p.Tuple.Proto == nextRouting)
	if !chained && !TransportKnown(p.Tuple.Proto, p.Tuple.V6) {
		return reason.Protocol
	}
	return reason.None
}

// MoreFragments reports whether more fragments follow. It reads the flag from the frame, because
// few packets need it.
func (p *Packet) MoreFragments(frame []byte) bool {
	if p.FragmentHeader != 0 {
		return frame[p.FragmentHeader+3]&fragmentMore != 0
	}
	return frame[p.L3+6]&(ipv4MoreFragments>>8) != 0
}
