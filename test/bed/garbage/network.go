package garbage

import (
	"bytes"
	"encoding/binary"

	"sluice.dev/sluice/nat/header/headertest"
)

// ipv4Header sets single fields of the header, and options.
func ipv4Header(m *maker) []byte {
	p := m.packet()
	switch field := m.take(8); field {
	case 0: // version and header length
		b := p.Bytes()
		b[14] = byte(m.take(256))
		sealIPv4(b)
		return b
	case 1:
		b := p.Bytes()
		b[22] = byte(m.take(256)) // TTL
		sealIPv4(b)
		return b
	case 2:
		b := p.Bytes()
		b[24+m.take(2)] ^= 1 << m.take(8) // checksum
		return b
	case 3: // flags and offset
		b := p.Bytes()
		binary.BigEndian.PutUint16(b[20:], uint16(m.take(8)<<13|m.take(3)))
		sealIPv4(b)
		return b
	case 4:
		b := p.Bytes()
		b[23] = byte(m.take(256)) // protocol
		sealIPv4(b)
		return b
	case 5: // every option that there is, with pointers
		option := of(m, []byte{7, 68, 82, 86, 130, 131, 133, 134, 136, 137, 147, 148, 149, 150, 151, 158})
		option5 := []byte{option, byte(m.take(12)), byte(m.take(12)), byte(m.n)}
		p.Options = append(option5, make([]byte, 8)...)
	default:
		p.Options = append(bytes.Repeat([]byte{1}, m.take(3)), byte(m.take(256)), byte(m.n))
		p.Options = append(p.Options, make([]byte, 8)...)
	}
	return p.Bytes()
}

// ipv6Chain builds chains of up to twelve extension headers.
func ipv6Chain(m *maker) []byte {
	kinds := []uint8{headertest.HopByHop, headertest.Routing, headertest.Fragment, 51, headertest.Destination, 59, 135,
		140}
	p := m.packet()
	depth, lie := m.take(13), m.take(8)
	for i := range depth {
		kind := kinds[m.n>>(2*i)%len(kinds)]
		if i > 0 && lie > 2 {
			kind = []uint8{headertest.Destination, headertest.Routing}[m.n>>i&1] // chains that are valid this far
		}
		data := bytes.Clone(padN)
		switch kind {
		case headertest.Routing:
			data = []byte{[]byte{0, 2, 4, 4}[m.n%4], byte(m.n / 4 % 2), 0, 0, 0, 0}
		case headertest.Fragment:
			data = []byte{0, byte(m.n % 2), 0, 0, byte(m.n >> 8), byte(m.n)}
		}
		p.Extensions = append(p.Extensions, headertest.Extension{Type: kind, Data: data})
	}
	b := p.Bytes()
	switch lie {
	case 1:
		binary.BigEndian.PutUint16(b[18:], 0) // a jumbogram, or nothing
	case 2:
		if depth > 0 {
			b[14+41] = byte(m.n)
		}
	case 3:
		if depth > 0 { // options: unknown ones, pads that are not zero, lengths beyond the header
			b[14+42], b[14+43] = byte(m.n), byte(m.n>>8%8)
		}
	}
	return b
}

// A shape is how a datagram of 320 bytes, with its transport header, is cut: offset, length, and
// whether more follow.
type shape []struct {
	at, n int
	more  bool
}

var shapes = []shape{
	{{0, 160, true}, {160, 160, false}},
	{{160, 160, false}, {0, 160, true}},
	{{0, 80, true}, {80, 80, true}, {160, 80, true}, {240, 80, false}},
	{{240, 80, false}, {80, 80, true}, {160, 80, true}, {0, 80, true}},
	{{0, 8, true}, {8, 312, false}},                       // tiny: no transport header of TCP
	{{0, 16, true}, {16, 304, false}},                     // tiny
	{{0, 24, true}, {8, 312, false}},                      // over the TCP header
	{{0, 160, true}, {80, 240, false}},                    // overlap
	{{0, 160, true}, {0, 160, true}, {160, 160, false}},   // repeated first one
	{{0, 160, true}, {0, 80, true}, {80, 240, false}},     // another first one
	{{0, 160, true}, {160, 160, false}, {160, 160, true}}, // last, and then not
	{{160, 160, false}},                                   // last without first
	{{0, 160, true}},                                      // first without last
	{{0, 160, true}, {240, 80, false}},                    // gap
	{{0, 160, true}, {65_528, 160, false}},                // beyond 65,535 bytes
	{{0, 160, true}, {65_368, 160, false}},                // up to the end
	{{0, 161, true}, {160, 160, false}},                   // no multiple of eight
	{{0, 320, false}},                                     // IPv6: atomic
	{{0, 320, true}},
	{{0, 160, true}, {160, 0, true}, {160, 160, false}}, // an empty one
}

// fragments makes the pieces of datagrams one after another: consecutive numbers are of one.
func fragments(m *maker) []byte {
	const pieces = 4
	piece := m.take(pieces)
	datagram := m.n
	cut := of(m, shapes)
	p := m.packet()
	if datagram%7 == 3 {
		src, dst := m.flow.ends(m.fromServer)
		p = headertest.Echo(src.Addr().String(), dst.Addr().String(), 9, 9, false)
	}
	p.Payload = bytes.Repeat([]byte{byte(datagram)}, 320)
	if p.Proto == protoUDP && !m.v6 && m.s.Sound {
		p.NoChecksum = true
	}
	b := p.Bytes()
	ip := 34
	if m.v6 {
		ip = 54
	}
	id := uint32(datagram)
	if datagram%11 == 0 {
		id = 77 // used again
	}
	c := cut[piece%len(cut)]
	from := min(c.at, len(b)-ip)
	payload := append(bytes.Clone(b[ip+from:]), make([]byte, c.n)...)[:c.n]
	return append(fragmentHeader(b[:ip:ip], c.at, c.more, id, c.n), payload...)
}

// fragmentHeader turns the header of a whole packet into that of a fragment of n bytes.
func fragmentHeader(h []byte, at int, more bool, id uint32, n int) []byte {
	h = bytes.Clone(h)
	word := uint16(at)
	if h[14]>>4 == 4 {
		word = word / 8 & 0x1fff
		if more {
			word |= 0x2000
		}
		binary.BigEndian.PutUint16(h[16:], uint16(20+n))
		binary.BigEndian.PutUint16(h[18:], uint16(id))
		binary.BigEndian.PutUint16(h[20:], word)
		sealIPv4(h)
		return h
	}
	word &^= 7
	if more {
		word |= 1
	}
	next := h[20]
	h[20] = headertest.Fragment
	binary.BigEndian.PutUint16(h[18:], uint16(8+n))
	h = append(h, next, 0)
	h = binary.BigEndian.AppendUint16(h, word)
	return binary.BigEndian.AppendUint32(h, id)
}
