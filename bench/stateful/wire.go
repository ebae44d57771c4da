package stateful

import (
	"encoding/binary"

	"sluice.dev/sluice/bench/framing"
	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
)

// Wire formats: IEEE 802.3; RFC 791, section 3.1; RFC 8200, section 3; RFC 9293,
// section 3.1; RFC 768.
const (
	etherARP = 0x0806

	optionEnd = 0
	optionNop = 1
	optionMSS = 2

	defaultMSS = 536 // RFC 9293, section 3.7.1
)

// packet is a received packet, parsed.
type packet struct {
	key      key
	hash     uint32
	seq, ack uint32
	wnd      uint16
	mss      uint16 // from the option; 0 without
	flags    uint8  // TCP
	ok       bool
	payload  []byte
}

// parse reads a packet of the engine's family for its pool; otherwise it counts the reason and
// returns false.
func (e *Engine) parse(p *packet, frame []byte) bool {
	n := &e.stats.Packets
	at := header.EthernetBytes
	var addresses []byte
	var protocol Protocol
	if !e.six {
		if len(frame) < at+header.IPv4Bytes || frame[at] != 0x45 {
			n.Ignored++
			return false
		}
		length := int(binary.BigEndian.Uint16(frame[at+2:]))
		if length < header.IPv4Bytes || at+length > len(frame) || binary.BigEndian.Uint16(frame[at+6:])&0x3fff != 0 {
			n.Ignored++
			return false
		}
		if checksum.Sum(frame[at:at+header.IPv4Bytes]) != 0xffff {
			n.BadChecksum++
			return false
		}
		frame = frame[:at+length]
		protocol, addresses = Protocol(frame[at+9]), frame[at+12:at+20]
		copy(p.key.peer[12:], addresses[:4])
		at += header.IPv4Bytes
	} else {
		if len(frame) < at+header.IPv6Bytes || frame[at]>>4 != 6 {
			n.Ignored++
			return false
		}
		length := header.IPv6Bytes + int(binary.BigEndian.Uint16(frame[at+4:]))
		if at+length > len(frame) {
			n.Ignored++
			return false
		}
		frame = frame[:at+length]
		protocol, addresses = Protocol(frame[at+6]), frame[at+8:at+40]
		copy(p.key.peer[:], addresses[:16])
		at += header.IPv6Bytes
	}
	local, mine := e.localNumber(addresses[len(addresses)/2:])
	if !mine {
		n.Ignored++
		return false
	}
	p.key.local, p.key.protocol = local, protocol
	return e.parseTransport(p, frame[at:], addresses)
}

func (e *Engine) parseTransport(p *packet, b, addresses []byte) bool {
	n := &e.stats.Packets
	switch p.key.protocol {
	case ProtocolTCP:
		if len(b) < header.TCPBytes || int(b[12]>>4)*4 < header.TCPBytes || int(b[12]>>4)*4 > len(b) {
			n.Ignored++
			return false
		}
		p.seq, p.ack = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
		p.flags, p.wnd = b[13], binary.BigEndian.Uint16(b[14:])
		dataAt := int(b[12]>>4) * 4
		p.mss = 0
		if p.flags&header.TCPSYN != 0 {
			p.mss = mssOption(b[header.TCPBytes:dataAt])
		}
		p.payload = b[dataAt:]
	case ProtocolUDP:
		if len(b) < header.UDPBytes || int(binary.BigEndian.Uint16(b[4:])) != len(b) {
			n.Ignored++
			return false
		}
		p.payload = b[header.UDPBytes:]
	default:
		n.Ignored++
		return false
	}
	if p.key.protocol == ProtocolTCP || b[6]|b[7] != 0 || e.six { // RFC 768: zero means no checksum
		if framing.Sum(b, addresses, uint8(p.key.protocol)) != 0xffff {
			n.BadChecksum++
			return false
		}
	}
	p.key.peerPort, p.key.localPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	p.hash = p.key.hash(e.seed)
	return true
}

// mssOption finds the MSS option; all others are ignored (RFC 9293, section 3.2).
func mssOption(o []byte) uint16 {
	for len(o) > 0 {
		switch {
		case o[0] == optionEnd:
			return 0
		case o[0] == optionNop:
			o = o[1:]
			continue
		case len(o) < 2 || o[1] < 2 || int(o[1]) > len(o):
			return 0
		case o[0] == optionMSS && o[1] == 4:
			return binary.BigEndian.Uint16(o[2:])
		}
		o = o[o[1]:]
	}
	return 0
}

// header writes Ethernet and IP headers for a payload of n bytes, and returns the offset of the
// transport header.
func (e *Engine) header(b []byte, c *conn, n int) int {
	copy(b, e.ethernet[:])
	at := header.EthernetBytes
	local := e.first6
	binary.BigEndian.PutUint32(local[12:], e.first4+uint32(c.local))
	if !e.six {
		framing.IPv4(b[at:], uint8(c.protocol), local[12:], c.peer[12:], n)
		return at + header.IPv4Bytes
	}
	framing.IPv6(b[at:], uint8(c.protocol), framing.HopLimit, local[:], c.peer[:], n)
	return at + header.IPv6Bytes
}

// addressesOf is the source and destination address of a frame that header began.
func (e *Engine) addressesOf(b []byte) []byte {
	if e.six {
		return b[header.EthernetBytes+8 : header.EthernetBytes+40]
	}
	return b[header.EthernetBytes+12 : header.EthernetBytes+20]
}

// localNumber is the number of an address in the pool.
func (e *Engine) localNumber(address []byte) (uint16, bool) {
	if e.six {
		if [12]byte(address) != [12]byte(e.first6[:12]) {
			return 0, false
		}
		address = address[12:]
	}
	n := binary.BigEndian.Uint32(address) - e.first4
	return uint16(n), n < e.addresses
}
