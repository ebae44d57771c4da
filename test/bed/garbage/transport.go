package garbage

import (
	"bytes"
	"encoding/binary"

	"sluice.dev/sluice/nat/header/headertest"
)

// l4 is where the transport header of an untagged frame without options begins.
func (m *maker) l4() int {
	if m.v6 {
		return 54
	}
	return 34
}

// tcpHeader has all sets of flags with all data offsets.
func tcpHeader(m *maker) []byte {
	src, dst := m.flow.ends(m.fromServer)
	p := between(protoTCP, src, dst)
	flags, offset := m.take(512), m.take(16)
	variant := m.take(3)
	switch variant {
	case 0:
		p.TCPOptions = make([]byte, 40)
	case 1: // options of length 0, 1, or beyond the header
		p.TCPOptions = []byte{2, byte(flags % 45), 5, 0xb4}
	}
	if flags%64 == 5 {
		p.SrcPort = 0
	}
	if flags%64 == 6 {
		p.DstPort = 0
	}
	b := p.Bytes()
	t := b[m.l4():]
	t[12], t[13] = byte(offset<<4|flags>>8), byte(flags)
	if variant == 2 && flags%2 == 0 {
		t[16] ^= 0x55 // a wrong checksum
	}
	if variant != 2 {
		sealTransport(b)
	}
	return b
}

// udpHeader has lengths, checksums and ports that do not fit.
func udpHeader(m *maker) []byte {
	src, dst := m.flow.ends(m.fromServer)
	p := between(protoUDP, src, dst)
	length, sum, port, payload := m.take(16), m.take(4), m.take(3), m.take(26)
	p.Payload = bytes.Repeat([]byte{'u'}, payload)
	switch port {
	case 1:
		p.SrcPort = uint16(length) // 0 in one of sixteen
	case 2:
		p.DstPort = uint16(length) * 53
	}
	b := p.Bytes()
	t := b[m.l4():]
	n := uint16(8 + payload)
	lies := [16]uint16{n, n, n, n, n - 1, n + 1, 0, 1, 7, 8, 9, 0xffff, 0x8000, n + 20, n / 2, n - 8}
	binary.BigEndian.PutUint16(t[4:], lies[length])
	switch sum {
	case 0:
		sealTransport(b)
	case 1:
		t[6], t[7] = 0, 0
	case 2:
		t[6], t[7] = 0xff, 0xff
	case 3:
		t[7] ^= 0x11
	}
	return b
}

// icmp has all types and codes, and errors that quote all that can be quoted.
func icmp(m *maker) []byte {
	if m.take(5) == 0 {
		src, dst := m.flow.ends(m.fromServer)
		p := headertest.Echo(src.Addr().String(), dst.Addr().String(), 5, uint16(m.n), false)
		p.ICMPType, p.ICMPCode = byte(m.take(256)), byte(m.take(16))
		return p.Bytes()
	}
	quote := m.quote(m.take(12))
	p := m.report(quote, m.take(70))
	if m.v6 {
		p.ICMPType = []uint8{1, 2, 3, 4, 137}[m.take(5)]
	} else {
		p.ICMPType = []uint8{3, 4, 5, 11, 12}[m.take(5)]
	}
	p.ICMPRest = uint32(m.n) << 12 // RFC 4884's length, or part of an MTU
	b := p.Bytes()
	if m.n%16 == 7 {
		b[m.l4()+2] ^= 0x40
	}
	return b
}

// quoted describes the packet that an error of this direction is about: one of ours, on its way
// to who reports.
func (m *maker) quoted(proto uint8, change func(*headertest.Packet)) []byte {
	dst, src := m.flow.ends(m.fromServer)
	p := between(proto, src, dst)
	if change != nil {
		change(p)
	}
	return p.Bytes()
}

// report describes an error about a packet; at most so many bytes of it, if not below zero.
func (m *maker) report(quote []byte, bytes int) *headertest.Packet {
	src, dst := m.flow.ends(m.fromServer)
	t, code := uint8(3), uint8(1)
	if m.v6 {
		t, code = 1, 0
	}
	if bytes > 60 { // 0 to 60 cut; beyond, all of it
		bytes = -1
	}
	return headertest.ICMPError(src.Addr().String(), dst.Addr().String(), t, code, 0, quote, bytes)
}

// quote returns a packet to be quoted.
func (m *maker) quote(kind int) []byte {
	proto := m.flow.Proto
	switch kind {
	case 1: // with options or extension headers
		return m.quoted(proto, func(p *headertest.Packet) {
			if m.v6 {
				p.Extensions = []headertest.Extension{{Type: headertest.Destination, Data: padN}}
			} else {
				p.Options = []byte{1, 1, 1, 0}
			}
		})
	case 2, 3: // first fragment, later fragment
		whole := m.quoted(proto, func(p *headertest.Packet) { p.Payload = make([]byte, 200) })
		return headertest.Split(whole, 64, 5)[kind-2]
	case 4: // an error about an error
		return headertest.ICMPError(m.flow.VIP.Addr().String(), m.flow.Client.Addr().String(), 3, 1, 0,
			m.quoted(proto, nil), -1).Bytes()
	case 5:
		return headertest.Echo(m.flow.VIP.Addr().String(), m.flow.Client.Addr().String(), 1, 1, true).Bytes()
	case 6: // a wrong header checksum, or version
		b := m.quoted(proto, nil)
		b[24] ^= 0x10
		return b
	case 7: // a wrong transport checksum
		b := m.quoted(proto, nil)
		b[m.l4()+6] ^= 0x10
		b[min(m.l4()+16, len(b)-1)] ^= 0x10
		return b
	case 8: // not of this flow
		return m.quoted(proto, func(p *headertest.Packet) { p.SrcPort++ })
	case 9:
		return m.quoted(protoUDP, func(p *headertest.Packet) { p.NoChecksum = !m.v6 })
	case 10: // a length beyond the data sent
		b := m.quoted(proto, nil)
		if m.v6 {
			b[18] = 0xff
		} else {
			b[16] = 0xff
			sealIPv4(b)
		}
		return b
	}
	return m.quoted(proto, nil)
}
