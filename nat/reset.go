package nat

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
)

const (
	tcpSeqOffset   = 4
	tcpAckOffset   = 8
	tcpDataOffset  = 12
	tcpFlagsOffset = 13
)

// BuildReset writes into dst the RST that a host sends in answer to a segment of a connection that
// it does not know (RFC 9293 section 3.10.7.1): an untagged Ethernet header whose addresses are
// zero, IP from the segment's destination to its source, and TCP. orig must be the segment as its
// sender sent it, before translation.
//
// n is the length of the frame in bytes. ok is false for an RST, which must not be answered, for a
// fragment, and if dst has no room.
func BuildReset(dst, orig []byte, p *header.Packet, ttl uint8) (n int, ok bool) {
	if p.Tuple.Proto != header.ProtoTCP || p.TCPFlags&header.TCPRST != 0 || p.Fragment != header.NotFragment {
		return 0, false
	}
	ipBytes, etherType := header.IPv4Bytes, header.EtherTypeIPv4
	if p.Tuple.V6 {
		ipBytes, etherType = header.IPv6Bytes, header.EtherTypeIPv6
	}
	n = header.EthernetBytes + ipBytes + header.TCPBytes
	if len(dst) < n {
		return 0, false
	}
	b := dst[:n]
	clear(b)
	binary.BigEndian.PutUint16(b[header.EthernetBytes-2:], uint16(etherType))
	ip, segment := b[header.EthernetBytes:][:ipBytes], b[header.EthernetBytes+ipBytes:]
	back := p.Tuple.Reverse()
	writeTCPIP(ip, &back, ttl, header.TCPBytes)
	writeReset(segment, orig[p.L4:], p)
	return n, true
}

// writeReset fills a zeroed TCP header, in answer to the segment.
func writeReset(b, segment []byte, p *header.Packet) {
	binary.BigEndian.PutUint16(b[srcPortOffset:], p.Tuple.DstPort)
	binary.BigEndian.PutUint16(b[dstPortOffset:], p.Tuple.SrcPort)
	b[tcpDataOffset] = header.TCPBytes / 4 << 4
	if p.TCPFlags&header.TCPACK != 0 {
		b[tcpFlagsOffset] = header.TCPRST
		copy(b[tcpSeqOffset:tcpSeqOffset+4], segment[tcpAckOffset:]) // SEQ=SEG.ACK
	} else {
		b[tcpFlagsOffset] = header.TCPRST | header.TCPACK // SEQ=0, ACK=SEG.SEQ+SEG.LEN
		bytes := uint32(p.End-p.L4) - uint32(segment[tcpDataOffset]>>4*4)
		if p.TCPFlags&(header.TCPSYN|header.TCPFIN) != 0 {
			bytes++
		}
		binary.BigEndian.PutUint32(b[tcpAckOffset:], binary.BigEndian.Uint32(segment[tcpSeqOffset:])+bytes)
	}
	sum := checksum.Add(checksum.Sum(b), checksum.Add(header.TCPBytes, header.ProtoTCP))
	sum = checksum.Add(sum, checksum.Add(p.Tuple.Src.Sum(), p.Tuple.Dst.Sum()))
	binary.BigEndian.PutUint16(b[tcpChecksumOffset:], ^sum)
}

// writeTCPIP fills a zeroed IP header of a TCP segment of some bytes with the addresses of t. An
// IPv4 datagram is atomic, so it needs no identification (RFC 6864 section 4.1).
func writeTCPIP(b []byte, t *header.Tuple, ttl uint8, bytes uint16) {
	if t.V6 {
		h := (*[header.IPv6Bytes]byte)(b)
		h[0] = 0x60
		binary.BigEndian.PutUint16(h[ipv6LengthOffset:], bytes)
		h[6], h[ipv6HopOffset] = header.ProtoTCP, ttl
		*(*[16]byte)(h[ipv6SrcOffset:]) = t.Src
		*(*[16]byte)(h[ipv6DstOffset:]) = t.Dst
		return
	}
	h := (*[header.IPv4Bytes]byte)(b)
	h[0] = 0x45
	binary.BigEndian.PutUint16(h[ipv4LengthOffset:], header.IPv4Bytes+bytes)
	binary.BigEndian.PutUint16(h[6:], ipv4DF)
	h[ipv4TTLOffset], h[9] = ttl, header.ProtoTCP
	*(*[4]byte)(h[ipv4SrcOffset:]) = t.Src.As4()
	*(*[4]byte)(h[ipv4DstOffset:]) = t.Dst.As4()
	binary.BigEndian.PutUint16(h[ipv4ChecksumOffset:], ^checksum.Sum(h[:]))
}
