package header_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// fragmentOf builds one fragment of a TCP segment or UDP datagram: n bytes at an offset in bytes.
func fragmentOf(v6 bool, proto uint8, offset, n int, more bool) []byte {
	src, dst := client4, vip4
	if v6 {
		src, dst = client6, vip6
	}
	p := headertest.UDP(src, dst, "")
	p.Proto = proto
	switch {
	case offset > 0:
		p.Payload = []byte(strings.Repeat("x", n))
	case proto == 6:
		p.Flags, p.Payload = headertest.SYN, []byte(strings.Repeat("x", max(n-20, 0)))
	case proto == 132:
		p.Payload = []byte(strings.Repeat("x", max(n-16, 0)))
	default:
		p.Payload = []byte(strings.Repeat("x", max(n-8, 0)))
	}
	if offset > 0 {
		p.Proto = 255 // no transport header
	}
	if v6 {
		p.Extensions = []headertest.Extension{{Type: headertest.Fragment, Data: make([]byte, 6)}}
	}
	f := p.Bytes()
	word := uint16(offset)
	if v6 {
		if more {
			word |= 1
		}
		f[54] = proto
		binary.BigEndian.PutUint16(f[56:], word)
		f = f[:min(len(f), 62+n)]
		binary.BigEndian.PutUint16(f[18:], uint16(len(f)-54))
		return f
	}
	word >>= 3
	if more {
		word |= 0x2000
	}
	f[23] = proto
	binary.BigEndian.PutUint16(f[20:], word)
	f = f[:min(len(f), 34+n)]
	binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
	headertest.SealIPv4(f)
	return f
}

func TestParseFragments(t *testing.T) {
	for _, c := range []struct {
		name      string
		proto     uint8
		offset, n int
		more      bool
		want      reason.Drop
		fragment  header.Fragment
		extension bool // over IPv6
	}{
		{"first", 17, 0, 64, true, reason.None, header.FirstFragment, false},
		{"middle", 17, 64, 64, true, reason.None, header.LaterFragment, false},
		{"last", 17, 128, 3, false, reason.None, header.LaterFragment, false},
		{"last of one byte", 17, 128, 1, false, reason.None, header.LaterFragment, false},
		{"smallest first udp", 17, 0, 8, true, reason.None, header.FirstFragment, false},
		{"smallest first tcp", 6, 0, 24, true, reason.None, header.FirstFragment, false},
		{"tcp header cut", 6, 0, 16, true, reason.FragmentTiny, 0, false},
		{"tcp ports only", 6, 0, 8, true, reason.FragmentTiny, 0, false},
		{"tcp at 8", 6, 8, 64, false, reason.FragmentTiny, 0, false},
		{"tcp at 16", 6, 16, 64, false, reason.FragmentTiny, 0, false},
		{"tcp at 24", 6, 24, 64, false, reason.None, header.LaterFragment, false},
		{"udp at 8", 17, 8, 64, false, reason.None, header.LaterFragment, false},
		{"first of 65", 17, 0, 65, true, reason.FragmentLength, 0, false},
		{"middle of 7", 17, 64, 7, true, reason.FragmentLength, 0, false},
		{"first of nothing", 17, 0, 0, true, reason.FragmentLength, 0, false},
		{"last of nothing", 17, 64, 0, false, reason.FragmentLength, 0, false},
		{"ping of death", 17, 65528, 64, false, reason.FragmentLength, 0, false},
		{"unknown protocol", 136, 64, 64, false, reason.Protocol, 0, false},
		{"first sctp", 132, 0, 64, true, reason.SCTPFragment, 0, false},
		{"first sctp, ports only", 132, 0, 8, true, reason.SCTPFragment, 0, false},
		{"later sctp", 132, 64, 64, true, reason.SCTPFragment, 0, false},
		{"last sctp", 132, 64, 64, false, reason.SCTPFragment, 0, false},
		{"last of nothing, sctp", 132, 64, 0, false, reason.FragmentLength, 0, false},
		{"after destination options", 60, 64, 64, false, reason.Protocol, 0, true},
		{"after a routing header", 43, 64, 64, true, reason.Protocol, 0, true},
		{"after hop-by-hop options", 0, 64, 64, true, reason.Protocol, 0, false},
		{"after an authentication header", 51, 64, 64, true, reason.Protocol, 0, false},
	} {
		for _, v6 := range []bool{false, true} {
			frame := fragmentOf(v6, c.proto, c.offset, c.n, c.more)
			var p header.Packet
			got := header.Parse(frame, &p)
			if v6 && c.extension {
				c.want, c.fragment = reason.None, header.LaterFragment // only the first fragment shows the next header
			}
			if got != c.want {
				t.Errorf("%s, IPv6 %v: %v, want %v", c.name, v6, got, c.want)
			}
			agree(t, c.name, frame)
			if got != reason.None {
				continue
			}
			if p.Fragment != c.fragment || int(p.FragmentOffset) != c.offset || int(p.FragmentBytes()) != c.n {
				t.Errorf("%s, IPv6 %v: %v of %d bytes at %d", c.name, v6, p.Fragment, p.FragmentBytes(),
					p.FragmentOffset)
			}
			if ports := p.Tuple.SrcPort != 0; ports != (c.fragment == header.FirstFragment) {
				t.Errorf("%s, IPv6 %v: source port %d", c.name, v6, p.Tuple.SrcPort)
			}
		}
	}
}

// The longest possible datagram passes, and one byte more does not: 65,535 bytes with the IPv4
// header, or without the IPv6 header.
func TestParseLongestDatagram(t *testing.T) {
	for v6, header4 := range map[bool]int{false: 20, true: 0} {
		for n, want := range map[int]reason.Drop{
			65535 - header4 - 65496: reason.None, 65536 - header4 - 65496: reason.FragmentLength,
		} {
			var p header.Packet
			if got := header.Parse(fragmentOf(v6, 17, 65496, n, false), &p); got != want {
				t.Errorf("IPv6 %v, %d bytes at 65496: %v, want %v", v6, n, got, want)
			}
		}
	}
}

// RFC 7112: the first fragment holds the whole chain and the transport header after it.
func TestParseFirstFragmentWithoutItsChain(t *testing.T) {
	for n := 8; n <= 40; n += 8 {
		p := headertest.TCP(client6, vip6, headertest.SYN)
		p.Payload = make([]byte, 100)
		p.Extensions = []headertest.Extension{
			{Type: headertest.Fragment, Data: []byte{0, 1, 0, 0, 0, 7}},
			{Type: headertest.Destination, Data: append(padding, 0x1e, 6, 0, 0, 0, 0, 0, 0)},
		}
		frame := p.Bytes()[:62+n]
		binary.BigEndian.PutUint16(frame[18:], uint16(8+n))
		want := reason.FragmentTiny
		if n >= 16+header.TCPBytes {
			want = reason.None
		}
		var parsed header.Packet
		if got := header.Parse(frame, &parsed); got != want {
			t.Errorf("%d bytes: %v, want %v", n, got, want)
		}
		if want == reason.None && (parsed.Tuple.Proto != header.ProtoTCP || parsed.Tuple.DstPort == 0 ||
			int(parsed.FragmentBytes()) != n) {
			t.Errorf("%d bytes: %+v", n, parsed)
		}
	}
}
