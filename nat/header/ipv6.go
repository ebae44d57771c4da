package header

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/reason"
)

// IPv6 extension headers that Parse walks (RFC 8200 section 4). It does not walk an authentication
// header (51), which covers the addresses and so would be wrong after translation.
const (
	nextHopByHop    = 0
	nextRouting     = 43
	nextFragment    = 44
	nextDestination = 60

	nextHeaderOffset     = 6 // in the fixed header
	fragmentHeaderBytes  = 8
	extensionUnit        = 8  // RFC 8200: unit of an extension header's length, in bytes
	maxExtensionHeaders  = 16 // bounds the work per packet; RFC 8200 section 4.1 lists seven
	fragmentMore         = 1  // M flag in the fragment header's offset word
	fragmentOffsetShift  = 3  // offset in units of 8 bytes above two reserved bits and M
	routingTypeSource    = 0  // deprecated: RFC 5095
	routingTypeOffset    = 2
	routingSegmentOffset = 3
)

// NoNextHeader is the next header of a packet whose payload a receiver ignores (RFC 8200 section
// 4.7).
const NoNextHeader = 59

// parseIPv6 reads the packet whose header starts at l3. A payload length of zero means a jumbogram
// (RFC 2675) or an empty packet; neither is translated.
func parseIPv6(frame []byte, frameBytes int, p *Packet, l3 int) reason.Drop {
	if len(frame) < l3+IPv6Bytes {
		return reason.FrameTruncated
	}
	h := (*[IPv6Bytes]byte)(frame[l3:])
	payloadBytes := int(binary.BigEndian.Uint16(h[4:6]))
	if h[0]>>4 != 6 || payloadBytes == 0 {
		return reason.IPv6Header
	}
	end := l3 + IPv6Bytes + payloadBytes
	if end > frameBytes {
		return reason.FrameTruncated
	}
	p.setIPv6(h, l3, end)
	srcHi, srcLo := binary.BigEndian.Uint64(h[8:16]), binary.BigEndian.Uint64(h[16:24])
	p.Tuple.Proto = h[6] // until the chain is walked
	switch {
	case martian6(srcHi, srcLo) && !(linkLocal6(srcHi) && p.reportsError(frame)):
		return reason.MartianSource
	case martian6(binary.BigEndian.Uint64(h[24:32]), binary.BigEndian.Uint64(h[32:40])):
		return reason.MartianDestination
	case p.Tuple.Src == p.Tuple.Dst:
		return reason.LandAttack
	}
	if drop := p.walkExtensions(frame, h[6]); drop != reason.None {
		return drop
	}
	if p.Fragment != NotFragment {
		return checkFragment(frame, p, payloadBytes-fragmentHeaderBytes+int(p.FragmentOffset))
	}
	return parseTransport(frame, p)
}

// setIPv6 fills p from the fixed header.
func (p *Packet) setIPv6(h *[IPv6Bytes]byte, l3, end int) {
	p.Tuple.Src = Addr(h[8:24])
	p.Tuple.Dst = Addr(h[24:40])
	p.Tuple.V6 = true
	p.L3, p.L4, p.End = uint16(l3), uint16(l3+IPv6Bytes), uint16(end)
	p.TTL = h[7]
	p.DF = true
}

// walkExtensions walks from the fixed header to the transport header, or to the
// payload of a later fragment, and sets L4, Tuple.Proto and the fragment's fields.
func (p *Packet) walkExtensions(frame []byte, next uint8) reason.Drop {
	at, end := int(p.L4), p.reach(frame)
	for n := 0; ; n++ {
		switch next {
		case nextHopByHop: // RFC 8200 section 4.1: only directly after the fixed header
			if at != int(p.L3)+IPv6Bytes {
				return reason.IPv6ExtensionHeader
			}
		case nextRouting, nextDestination, nextFragment:
		default:
			p.Tuple.Proto, p.L4 = next, uint16(at)
			return reason.None
		}
		if n == maxExtensionHeaders {
			return reason.IPv6ExtensionHeader
		}
		if at+extensionUnit > end {
			return p.shortChain()
		}
		h := (*[extensionUnit]byte)(frame[at:])
		bytes := (int(h[1]) + 1) * extensionUnit
		switch next {
		case nextFragment:
			if p.FragmentHeader != 0 {
				return reason.IPv6ExtensionHeader
			}
			bytes = fragmentHeaderBytes
			p.setFragmentHeader(h, at)
			if p.Fragment == LaterFragment {
				p.Tuple.Proto, p.L4 = h[0], uint16(at+bytes)
				return reason.None
			}
		case nextRouting:
			if h[routingTypeOffset] == routingTypeSource || h[routingSegmentOffset] != 0 {
				return reason.IPv6RoutingHeader
			}
		}
		if at+bytes > end {
			return p.shortChain()
		}
		if (next == nextHopByHop || next == nextDestination) && !validOptions(frame[at+2:at+bytes]) {
			return reason.IPv6ExtensionHeader
		}
		next, at = h[0], at+bytes
	}
}

// NextHeaderField returns the offset of the field that names the transport protocol of an IPv6
// packet, in bytes from the start of the frame. The packet's chain of headers must be valid up to
// L4.
func (p *Packet) NextHeaderField(frame []byte) uint16 {
	field, at, next := p.L3+nextHeaderOffset, p.L3+IPv6Bytes, frame[p.L3+nextHeaderOffset]
	for at < p.L4 {
		field = at
		bytes := uint16(fragmentHeaderBytes)
		if next != nextFragment {
			bytes = (uint16(frame[at+1]) + 1) * extensionUnit
		}
		next, at = frame[at], at+bytes
	}
	return field
}

// Options of a hop-by-hop or destination options header (RFC 8200 section 4.2): type, then, except
// for Pad1, length of data, and data.
const (
	optionPad1      = 0
	optionPadN      = 1
	maxPadBytes     = 7 // RFC 8200 section 4.2: the maximum for alignment to 8 bytes
	maxIPv6Options  = 8 // net.ipv6.max_hbh_opts_number and max_dst_opts_number of Linux
	optionActionBit = 6 // the two bits above select the action for an unknown option; 0: skip it
)

// validOptions reports whether a receiver accepts the options: all are within their header, there
// are few, pads are short and zero (RFC 4942 section 2.1.9.5), and no type requires the receiver to
// know it (ip6_parse_tlv, net/ipv6/exthdrs.c). So packets that a backend would discard are counted
// at the gateway.
func validOptions(options []byte) bool {
	pad, others := 0, 0
	for len(options) > 0 {
		bytes := 1
		if options[0] != optionPad1 {
			if len(options) < 2 {
				return false
			}
			bytes = 2 + int(options[1])
		}
		if bytes > len(options) {
			return false
		}
		switch options[0] {
		case optionPad1, optionPadN:
			pad += bytes
			for _, b := range options[min(bytes, 2):bytes] {
				if b != 0 {
					return false
				}
			}
		default:
			pad = 0
			others++
		}
		if pad > maxPadBytes || others > maxIPv6Options || options[0]>>optionActionBit != 0 {
			return false
		}
		options = options[bytes:]
	}
	return true
}

// shortChain returns the drop reason of a chain that ends before the transport header: RFC 7112
// forbids it in a first fragment; in other packets it is malformed.
func (p *Packet) shortChain() reason.Drop {
	if p.Fragment == FirstFragment {
		return reason.FragmentTiny
	}
	return reason.IPv6ExtensionHeader
}

func (p *Packet) setFragmentHeader(h *[fragmentHeaderBytes]byte, at int) {
	p.FragmentHeader = uint16(at)
	p.FragmentID = binary.BigEndian.Uint32(h[4:8])
	word := binary.BigEndian.Uint16(h[2:4])
	p.setFragment(word>>fragmentOffsetShift, word&fragmentMore != 0)
}
