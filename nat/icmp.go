package nat

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
)

// TranslateICMPError rewrites an ICMP error about a packet that the gateway sent: the outer
// addresses become outerSrc and outerDst, and the embedded packet gets the tuple innerOut, so that
// the receiver finds its socket. d must be the delta from inner's tuple to innerOut.
//
// Embedded checksums are updated if the quote includes them: a router may quote only 8 bytes of
// transport, and the checksums of TCP and SCTP come after these. The ICMP checksum is updated by
// the words that actually changed.
func TranslateICMPError(
	frame []byte, outer, inner *header.Packet, outerSrc, outerDst header.Addr, innerOut *header.Tuple, d header.Delta,
) {
	outerOut := header.Tuple{Src: outerSrc, Dst: outerDst, Proto: outer.Tuple.Proto, V6: outer.Tuple.V6}
	outerDelta := header.DeltaOf(&outer.Tuple, &outerOut)
	translateAddrs(frame, outer, &outerOut, outerDelta)

	before := sumHeaders(frame, inner)
	translateAddrs(frame, inner, innerOut, d)
	translateQuote(frame, inner, innerOut, d)
	delta := checksum.Add(^before, sumHeaders(frame, inner))
	if outer.Tuple.V6 {
		delta = checksum.Add(delta, outerDelta.IP) // the pseudo-header
	}
	updateAt(frame[outer.L4+icmpChecksumOffset:], delta)
}

// translateQuote rewrites the quoted part of a transport header.
func translateQuote(frame []byte, inner *header.Packet, out *header.Tuple, d header.Delta) {
	if inner.Fragment == header.LaterFragment {
		return
	}
	b := frame[inner.L4:inner.End]
	switch inner.Tuple.Proto {
	case header.ProtoTCP:
		binary.BigEndian.PutUint16(b[srcPortOffset:], out.SrcPort)
		binary.BigEndian.PutUint16(b[dstPortOffset:], out.DstPort)
		if len(b) >= tcpChecksumOffset+2 {
			updateAt(b[tcpChecksumOffset:], d.L4)
		}
	case header.ProtoUDP:
		translateUDP((*[header.UDPBytes]byte)(b), out, d)
	case header.ProtoSCTP:
		bytes := quotedTransportBytes(frame, inner)
		if inner.Fragment == header.NotFragment && len(b) >= header.SCTPBytes && bytes >= header.SCTPBytes {
			translateSCTP((*[header.SCTPBytes]byte)(b), out, uint16(bytes))
			return
		}
		rewritePorts(b, out)
	case header.ProtoICMP, header.ProtoICMPv6:
		translateEcho(b, out.SrcPort, d)
	}
}

// QuotedBytes returns the original length of a quoted IP packet in bytes, according to its own
// length field.
func QuotedBytes(frame []byte, inner *header.Packet) int {
	if inner.Tuple.V6 {
		return header.IPv6Bytes + int(binary.BigEndian.Uint16(frame[inner.L3+ipv6LengthOffset:]))
	}
	return int(binary.BigEndian.Uint16(frame[inner.L3+ipv4LengthOffset:]))
}

// quotedTransportBytes returns the original length of the transport part of a quoted packet in
// bytes, according to its own length field: the CRC of SCTP depends on it. It is negative if the
// field is wrong.
func quotedTransportBytes(frame []byte, inner *header.Packet) int {
	return QuotedBytes(frame, inner) - int(inner.L4-inner.L3)
}

// sumHeaders adds the words of a quote that translation may change. Both parts
// start at an even offset in the message.
func sumHeaders(frame []byte, inner *header.Packet) uint16 {
	ipBytes := uint16(header.IPv4Bytes)
	if inner.Tuple.V6 {
		ipBytes = header.IPv6Bytes
	}
	ip := checksum.Sum(frame[inner.L3 : inner.L3+ipBytes])
	return checksum.Add(ip, checksum.Sum(frame[inner.L4:min(inner.End, inner.L4+header.TCPBytes)]))
}

// EchoReply turns an echo request, or a fragment of a request, into its reply in place: it swaps
// the addresses, which changes no sum, and sets the type and the TTL. The caller writes the
// Ethernet header.
func EchoReply(frame []byte, p *header.Packet, ttl uint8) {
	reply := p.Tuple.Reverse()
	request, answer := uint8(header.ICMPEchoRequest), uint8(header.ICMPEchoReply)
	if p.Tuple.V6 {
		request, answer = header.ICMPv6EchoRequest, header.ICMPv6EchoReply
		translateAddrs(frame, p, &reply, header.Delta{})
		frame[p.L3+ipv6HopOffset] = ttl
	} else {
		h := (*[header.IPv4Bytes]byte)(frame[p.L3:])
		delta := checksum.Delta(uint16(h[ipv4TTLOffset])<<8, uint16(ttl)<<8)
		translateAddrs(frame, p, &reply, header.Delta{IP: delta})
		h[ipv4TTLOffset] = ttl
	}
	if p.Fragment == header.LaterFragment {
		return
	}
	message := p.Transport(frame)
	message[0] = answer
	updateICMP(message, checksum.Delta(uint16(request)<<8, uint16(answer)<<8))
}
