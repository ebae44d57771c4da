package header

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/reason"
)

// TCP flags (RFC 9293 section 3.1), byte 13 of the header.
const (
	TCPFIN = 1 << iota
	TCPSYN
	TCPRST
	TCPPSH
	TCPACK
	TCPURG
	TCPECE
	TCPCWR
)

// validTCPFlags has a bit for every combination of FIN, SYN, RST, ACK and URG that a TCP sends;
// PSH, ECE and CWR may accompany any combination. It omits combinations that scanners send: none at
// all, SYN with FIN or RST, FIN or URG without ACK.
const (
	checkedTCPFlags = TCPFIN | TCPSYN | TCPRST | TCPACK | TCPURG
	validTCPFlags   = uint64(0) |
		1<<TCPSYN | 1<<(TCPSYN|TCPURG) | 1<<(TCPSYN|TCPACK) |
		1<<TCPRST | 1<<(TCPRST|TCPACK) |
		1<<(TCPFIN|TCPACK) | 1<<(TCPFIN|TCPACK|TCPURG) |
		1<<TCPACK | 1<<(TCPACK|TCPURG)
)

// TransportKnown reports whether the gateway translates a protocol.
func TransportKnown(proto uint8, v6 bool) bool {
	switch proto {
	case ProtoTCP, ProtoUDP, ProtoSCTP:
		return true
	case ProtoICMP:
		return !v6
	case ProtoICMPv6:
		return v6
	}
	return false
}

// parseTransport reads the transport header of a whole packet or a first fragment.
func parseTransport(frame []byte, p *Packet) reason.Drop {
	b := p.Transport(frame)
	switch p.Tuple.Proto {
	case ProtoTCP:
		return parseTCP(b, p)
	case ProtoUDP:
		return parseUDP(b, p)
	case ProtoSCTP:
		return parseSCTP(b, p)
	}
	if !TransportKnown(p.Tuple.Proto, p.Tuple.V6) {
		return reason.Protocol
	}
	return parseICMP(b, p)
}

func parseTCP(b []byte, p *Packet) reason.Drop {
	if len(b) < TCPBytes {
		return p.short(reason.TCPHeader)
	}
	h := (*[TCPBytes]byte)(b)
	p.Tuple.SrcPort = binary.BigEndian.Uint16(h[0:2])
	p.Tuple.DstPort = binary.BigEndian.Uint16(h[2:4])
	p.TCPFlags = h[13]
	headerBytes := int(h[12]>>4) * 4
	switch {
	case headerBytes < TCPBytes:
		return reason.TCPHeader
	case headerBytes > len(b):
		return p.short(reason.TCPHeader)
	case validTCPFlags>>(p.TCPFlags&checkedTCPFlags)&1 == 0:
		return reason.TCPFlags
	case p.Tuple.SrcPort == 0 || p.Tuple.DstPort == 0:
		return reason.PortZero
	}
	return reason.None
}

// parseUDP accepts a length field that is smaller than the packet: the rest is the surplus area of
// RFC 9868, which receivers ignore. The checksum may be missing: over IPv6 tunnels omit it, and the
// receiver decides whether to accept that (RFC 6935, RFC 6936 section 5).
func parseUDP(b []byte, p *Packet) reason.Drop {
	if len(b) < UDPBytes {
		return p.short(reason.UDPLength)
	}
	h := (*[UDPBytes]byte)(b)
	p.Tuple.SrcPort = binary.BigEndian.Uint16(h[0:2])
	p.Tuple.DstPort = binary.BigEndian.Uint16(h[2:4])
	datagramBytes := int(binary.BigEndian.Uint16(h[4:6]))
	switch {
	case datagramBytes < UDPBytes, datagramBytes > int(p.End-p.L4) && p.Fragment == NotFragment:
		return reason.UDPLength
	case p.Tuple.SrcPort == 0 || p.Tuple.DstPort == 0:
		return reason.PortZero
	}
	return reason.None
}

// parseICMP reads both ICMP and ICMPv6: type, code, checksum, then the identifier of
// a query.
func parseICMP(b []byte, p *Packet) reason.Drop {
	if len(b) < ICMPBytes {
		return p.short(reason.ICMPHeader)
	}
	h := (*[ICMPBytes]byte)(b)
	p.ICMPType, p.ICMPCode = h[0], h[1]
	if isEcho(p.Tuple.V6, h[0]) {
		p.Tuple.SrcPort = binary.BigEndian.Uint16(h[4:6])
		p.Tuple.DstPort = p.Tuple.SrcPort
	}
	return reason.None
}

// short returns the drop reason of a truncated transport header: FragmentTiny for a first fragment,
// otherwise whole.
func (p *Packet) short(whole reason.Drop) reason.Drop {
	if p.Fragment == FirstFragment {
		return reason.FragmentTiny
	}
	return whole
}
