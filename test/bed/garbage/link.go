package garbage

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"sluice.dev/sluice/nat/header/headertest"
)

// kinds is how many kinds of good packets a family has.
const kinds = 12

// padN is six bytes of IPv6 options that say nothing (RFC 8200 section 4.2).
var padN = []byte{1, 4, 0, 0, 0, 0}

// good returns a good packet of a kind: whole, first fragment, tagged, with options and so on.
func (m *maker) good(kind int) []byte {
	p := m.packet()
	src, dst := m.flow.ends(m.fromServer)
	switch kind {
	case 1:
		p.TCPOptions = []byte{2, 4, 5, 0xb4, 4, 2, 1, 3, 3, 7}
	case 2:
		p.Payload = bytes.Repeat([]byte{'x'}, 120)
	case 3:
		if m.v6 {
			p.Extensions = []headertest.Extension{{Type: headertest.HopByHop, Data: padN}}
		} else {
			p.Options = []byte{1, 148, 4, 0, 0, 0}
		}
	case 4:
		p.VLAN = []uint16{5}
	case 5:
		p.VLAN = []uint16{5, 6}
	case 6:
		p = between(protoUDP, src, dst)
	case 7:
		p = between(protoUDP, src, dst)
		if m.v6 {
			p.Extensions = []headertest.Extension{{Type: headertest.Fragment, Data: make([]byte, 6)}}
		} else {
			p.NoChecksum = true
		}
	case 8, 9:
		p = headertest.Echo(src.Addr().String(), dst.Addr().String(), 7, 1, kind == 9)
	case 10:
		p = m.report(m.quoted(m.flow.Proto, nil), -1)
	case 11:
		p.Payload = bytes.Repeat([]byte{'y'}, 120)
		return headertest.Split(p.Bytes(), 64, 0xbeef)[0]
	}
	return p.Bytes()
}

// lengths cuts good packets at every byte, or pads them, and lets the IP length be too large or too
// small by one.
func lengths(m *maker) []byte {
	b := m.good(m.take(kinds))
	cut, lie := m.take(120), m.take(3)
	if ip := len(b) - len(headertest.IP(b)); lie != 0 && ip < len(b) {
		field := b[ip+2 : ip+4]
		if m.v6 {
			field = b[ip+4 : ip+6]
		}
		binary.BigEndian.PutUint16(field, binary.BigEndian.Uint16(field)+uint16(lie*2-3)) // -1 or 1
		sealIPv4(b)
	}
	if cut < len(b) {
		return b[:cut:cut]
	}
	return append(b, make([]byte, cut-len(b))...)
}

// ethernet changes the bytes in front of the IP header.
func ethernet(m *maker) []byte {
	kind, n := m.take(10), m.take(100)
	p := m.packet()
	switch kind {
	case 0:
		b := p.Bytes()
		return b[: n%20 : n%20]
	case 1:
		p.VLAN = []uint16{uint16(n * 41)}
	case 2:
		p.VLAN = []uint16{uint16(n), 7}
	case 3:
		p.VLAN = make([]uint16, 3+n%4)
	case 4:
		p.DstMAC = [6]byte{1, 0, 0x5e, 0, 0, byte(n)}
	case 5:
		p.DstMAC = [6]byte{255, 255, 255, 255, 255, 255}
	case 6:
		p.SrcMAC = [6]byte{2, 0, 0, 0, 0, 1}
		p.DstMAC = [6]byte{2, 0, 0, 0, 0, byte(n)}
	}
	b := p.Bytes()
	switch kind {
	case 7:
		binary.BigEndian.PutUint16(b[12:], uint16(n*16)) // 802.3: a length
	case 8:
		others := []uint16{0x0806, 0x0800, 0x86dd, 0x8847, 0x8863, 0x9100, 0x88e5, 0x0842}
		binary.BigEndian.PutUint16(b[12:], others[n%len(others)])
	case 9:
		b = append(b, bytes.Repeat([]byte{byte(n)}, n)...) // a trailer
	}
	return b
}

// sizes are frame lengths around the limits of links and of UMEM frames.
func sizes(m *maker) []byte {
	edges := []int{1500, 1514, 1518, 1532, 1792, 2048, 3498, 3840, 4096}
	n := 60 + m.take(400)*4
	if m.take(2) == 1 {
		n = of(m, edges) + m.take(5) - 2
	}
	p := m.packet()
	p.DF = m.take(2) == 1
	p.Payload = nil
	if room := n - len(p.Bytes()); room > 0 {
		p.Payload = make([]byte, room)
	}
	return p.Bytes()
}

// Addresses that are no end of a packet which is forwarded, and some that merely are rare (RFC
// 6890; RFC 4291).
var (
	odd4 = []string{"0.0.0.0", "0.0.0.1", "0.255.255.255", "10.0.0.255", "100.64.0.1", "127.0.0.1", "127.255.255.254",
		"169.254.0.1", "169.254.169.254", "192.0.0.8", "192.0.2.255", "198.18.0.1", "223.255.255.255", "224.0.0.1",
		"224.0.0.251", "239.255.255.255", "240.0.0.1", "255.255.255.254", "255.255.255.255"}
	odd6 = []string{"::", "::1", "::2", "::ffff:192.0.2.1", "::ffff:0:0", "::192.0.2.1", "64:ff9b::1", "100::1",
		"2001::1", "2001:db8::", "2002:c000:201::1", "fc00::1", "fe80::1", "febf::1", "fec0::1", "ff00::1", "ff01::1",
		"ff02::1", "ff02::1:ff00:1", "ff0e::1"}
)

// addresses replaces the source, the destination or both.
func addresses(m *maker) []byte {
	p := m.packet()
	places := m.s.places[family(m.v6)]
	which, n := m.take(4), m.take(len(places)*len(places))
	switch which {
	case 0:
		p.Src = places[n%len(places)]
	case 1:
		p.Dst = places[n%len(places)]
	case 2:
		p.Src, p.Dst = places[n%len(places)], places[n/len(places)]
	case 3: // land
		p.Src = p.Dst
		if n%2 == 1 {
			p.SrcPort = p.DstPort
		}
	}
	if p.Proto == protoTCP && m.n%2 == 1 {
		p.Flags = headertest.SYN
	}
	return p.Bytes()
}

// walkSteps is the length of a walk.
const walkSteps = 16

// A connection as it should be.
var story = [walkSteps]struct {
	server bool
	flags  uint8
	data   bool
}{
	{false, headertest.SYN, false}, {true, headertest.SYN | headertest.ACK, false}, {false, headertest.ACK, false},
	{false, headertest.ACK | headertest.PSH, true}, {true, headertest.ACK, false}, {true, headertest.ACK, true},
	{false, headertest.ACK, false}, {true, headertest.ACK | headertest.PSH, true}, {false, headertest.ACK, false},
	{false, headertest.FIN | headertest.ACK, false}, {true, headertest.ACK, false}, {true, headertest.ACK, true},
	{true, headertest.FIN | headertest.ACK, false}, {false, headertest.ACK, false}, {true, headertest.RST, false},
	{false, headertest.RST | headertest.ACK, false},
}

// sequences are the steps of walks through a connection, in which packets are lost, repeated,
// swapped, replaced by a reset, or sent by the other side.
func sequences(m *maker) []byte {
	step, walk := m.take(walkSteps), uint64(m.n)
	r := rand.New(rand.NewPCG(walk, uint64(step)))
	at := step
	switch r.IntN(8) {
	case 0:
		at = r.IntN(walkSteps)
	case 1:
		at = max(step-1, 0)
	case 2:
		at = min(step+1, walkSteps-1)
	}
	s := story[at]
	m.fromServer = s.server != (r.IntN(16) == 0)
	p := m.packet()
	if walk%4 == 0 && !m.fromServer {
		p.SrcPort = uint16(1024 + walk/4%60_000) // a connection of its own
	}
	p.Payload = nil
	if s.data {
		p.Payload = []byte("data of a walk")
	}
	p.Flags = s.flags
	p.Seq, p.Ack = uint32(1000+step*100), uint32(2000+step*100)
	switch r.IntN(12) {
	case 0:
		p.Flags = headertest.RST
	case 1:
		p.Seq, p.Ack = r.Uint32(), r.Uint32()
	}
	if p.Proto == protoSCTP {
		p.Payload = make([]byte, 12)
		if p.Chunk = uint8(r.IntN(16)); p.Chunk == 1 || p.Chunk == 2 {
			p = headertest.SCTP(netip.AddrPortFrom(p.Src, p.SrcPort).String(),
				netip.AddrPortFrom(p.Dst, p.DstPort).String(), p.Chunk)
		}
	}
	return p.Bytes()
}
