package stateful

import (
	"encoding/binary"
	"math/bits"
)

// Wire formats: IEEE 802.3; RFC 791, section 3.1; RFC 8200, section 3; RFC 9293,
// section 3.1; RFC 768.
const (
	ethBytes = 14
	ip4Bytes = 20
	ip6Bytes = 40
	tcpBytes = 20
	udpBytes = 8

	etherIP4 = 0x0800
	etherIP6 = 0x86dd
	etherARP = 0x0806

	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpPSH = 0x08
	tcpACK = 0x10

	optionEnd = 0
	optionNop = 1
	optionMSS = 2

	defaultMSS = 536 // RFC 9293, section 3.7.1
)

// sum adds bytes to a ones' complement sum in little-endian order, eight at a time;
// b must begin at an even offset of what is summed.
func sum(b []byte, acc uint64) uint64 {
	var carry uint64
	for len(b) >= 32 {
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b), 0)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[8:]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[16:]), carry)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b[24:]), carry)
		acc += carry
		b = b[32:]
	}
	for len(b) >= 8 {
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b), 0)
		acc += carry
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(last[:]), 0)
		acc += carry
	}
	return acc
}

// fold is the sum's complement in 16 bits, to be written in little-endian order.
func fold(acc uint64) uint16 {
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>16 + acc&0xffff
	acc = acc>>16 + acc&0xffff
	return ^uint16(acc)
}

// pseudo is the sum of a pseudo header (RFC 9293, section 3.1; RFC 8200, section 8.1):
// the addresses, which are next to each other in both headers, protocol and length.
func pseudo(addresses []byte, protocol Protocol, length int) uint64 {
	acc := sum(addresses, 0)
	acc = acc>>32 + acc&0xffffffff // room for what follows
	return acc + uint64(protocol)<<8 + uint64(bits.ReverseBytes16(uint16(length)))
}

// packet is a received packet, parsed.
type packet struct {
	key      key
	hash     uint32
	seq, ack uint32
	wnd      uint16
	mss      uint16 // of the option; 0 without
	flags    uint8  // TCP
	ok       bool
	payload  []byte
}

// parse reads a packet of the engine's family; ok is false, and a counter says why, if
// it is not one, or not for the pool.
func (e *Engine) parse(p *packet, frame []byte) bool {
	n := &e.stats.Packets
	at := ethBytes
	var addresses []byte
	var protocol Protocol
	if !e.six {
		if len(frame) < at+ip4Bytes || frame[at] != 0x45 {
			n.Ignored++
			return false
		}
		length := int(binary.BigEndian.Uint16(frame[at+2:]))
		if length < ip4Bytes || at+length > len(frame) || binary.BigEndian.Uint16(frame[at+6:])&0x3fff != 0 {
			n.Ignored++
			return false
		}
		if fold(sum(frame[at:at+ip4Bytes], 0)) != 0 {
			n.BadChecksum++
			return false
		}
		frame = frame[:at+length]
		protocol, addresses = Protocol(frame[at+9]), frame[at+12:at+20]
		copy(p.key.peer[12:], addresses[:4])
		at += ip4Bytes
	} else {
		if len(frame) < at+ip6Bytes || frame[at]>>4 != 6 {
			n.Ignored++
			return false
		}
		length := ip6Bytes + int(binary.BigEndian.Uint16(frame[at+4:]))
		if at+length > len(frame) {
			n.Ignored++
			return false
		}
		frame = frame[:at+length]
		protocol, addresses = Protocol(frame[at+6]), frame[at+8:at+40]
		copy(p.key.peer[:], addresses[:16])
		at += ip6Bytes
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
		if len(b) < tcpBytes || int(b[12]>>4)*4 < tcpBytes || int(b[12]>>4)*4 > len(b) {
			n.Ignored++
			return false
		}
		p.seq, p.ack = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
		p.flags, p.wnd = b[13], binary.BigEndian.Uint16(b[14:])
		header := int(b[12]>>4) * 4
		p.mss = 0
		if p.flags&tcpSYN != 0 {
			p.mss = mssOption(b[tcpBytes:header])
		}
		p.payload = b[header:]
	case ProtocolUDP:
		if len(b) < udpBytes || int(binary.BigEndian.Uint16(b[4:])) != len(b) {
			n.Ignored++
			return false
		}
		p.payload = b[udpBytes:]
	default:
		n.Ignored++
		return false
	}
	if p.key.protocol == ProtocolTCP || b[6]|b[7] != 0 || e.six { // RFC 768: zero is none
		if fold(sum(b, pseudo(addresses, p.key.protocol, len(b)))) != 0 {
			n.BadChecksum++
			return false
		}
	}
	p.key.peerPort, p.key.localPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	p.hash = p.key.hash(e.seed)
	return true
}

// mssOption finds the one option that is understood (RFC 9293, section 3.2).
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

// header writes Ethernet and IP headers for a payload of n bytes, and returns where
// the transport header begins.
func (e *Engine) header(b []byte, c *conn, n int) int {
	copy(b, e.ethernet[:])
	at := ethBytes
	if !e.six {
		h := b[at : at+ip4Bytes]
		h[0], h[1] = 0x45, 0
		binary.BigEndian.PutUint16(h[2:], uint16(ip4Bytes+n))
		binary.BigEndian.PutUint32(h[4:], 0x4000) // don't fragment
		h[8], h[9], h[10], h[11] = 64, byte(c.protocol), 0, 0
		binary.BigEndian.PutUint32(h[12:], e.first4+uint32(c.local))
		copy(h[16:], c.peer[12:])
		binary.LittleEndian.PutUint16(h[10:], fold(sum(h, 0)))
		return at + ip4Bytes
	}
	h := b[at : at+ip6Bytes]
	binary.BigEndian.PutUint32(h, 6<<28)
	binary.BigEndian.PutUint16(h[4:], uint16(n))
	h[6], h[7] = byte(c.protocol), 64
	copy(h[8:20], e.first6[:12])
	binary.BigEndian.PutUint32(h[20:], e.first4+uint32(c.local))
	copy(h[24:], c.peer[:])
	return at + ip6Bytes
}

// addressesOf is the two addresses of a frame that header began.
func (e *Engine) addressesOf(b []byte) []byte {
	if e.six {
		return b[ethBytes+8 : ethBytes+40]
	}
	return b[ethBytes+12 : ethBytes+20]
}

// localNumber is the number of one of the pool's addresses.
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
