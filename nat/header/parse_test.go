package header_test

import (
	"encoding/binary"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

func TestParseValidPackets(t *testing.T) {
	for name, frame := range corpus() {
		t.Run(name, func(t *testing.T) {
			if err := headertest.Verify(frame); err != nil {
				t.Fatalf("the test packet itself: %v", err)
			}
			var p header.Packet
			if drop := header.Parse(frame, &p); drop != reason.None {
				t.Fatalf("dropped: %v", drop)
			}
			if want, _ := parseReference(frame); p != want {
				t.Errorf("got  %+v\nwant %+v", p, want)
			}
		})
	}
}

func TestPacketIsOneCacheLine(t *testing.T) {
	if n := reflect.TypeFor[header.Packet]().Size(); n != 64 {
		t.Errorf("Packet takes %d bytes, want 64", n)
	}
}

// Every truncated frame is dropped with a reason, and Parse does not read past its end: the slice
// has no capacity beyond the cut.
func TestParseTruncated(t *testing.T) {
	for name, frame := range corpus() {
		for cut := range frame {
			var p header.Packet
			if got := header.Parse(slices.Clip(slices.Clone(frame[:cut])), &p); got != reason.FrameTruncated {
				t.Errorf("%s cut to %d of %d bytes: %v", name, cut, len(frame), got)
			}
		}
	}
}

// For the first part of a frame, ParseLong returns the same result as for the whole frame, if all
// headers are in that part; otherwise it drops the packet. It reads nothing after the part, which
// has no capacity there.
func TestParseLong(t *testing.T) {
	for name, frame := range corpus() {
		var want header.Packet
		if drop := header.Parse(frame, &want); drop != reason.None {
			t.Fatalf("%s: %v", name, drop)
		}
		least := len(frame)
		for cut := len(frame); cut >= 0; cut-- {
			part := slices.Clip(slices.Clone(frame[:cut]))
			var got header.Packet
			switch drop := header.ParseLong(part, len(frame), &got); {
			case drop != reason.None:
			case got != want:
				t.Fatalf("%s, %d of %d bytes:\ngot  %+v\nwant %+v", name, cut, len(frame), got, want)
			case cut+1 < least && least != len(frame):
				t.Errorf("%s: %d bytes are enough, and %d are not", name, cut, cut+1)
			default:
				least = cut
				var inner header.Packet
				if header.IsICMPError(got.Tuple.V6, got.ICMPType) && (got.Tuple.Proto == header.ProtoICMP ||
					got.Tuple.Proto == header.ProtoICMPv6) {
					header.ParseInner(part, &got, &inner) // may find it too short, but not panic
				}
			}
		}
		if int(want.L4) > least || want.Fragment != header.LaterFragment && int(want.L4) == least {
			t.Errorf("%s: %d bytes are enough, and the transport header begins at %d", name, least, want.L4)
		}
		sum := checksum.Sum(frame[min(int(want.L4)+8, int(want.End)):want.End])
		whole := header.ChecksumICMP(frame, &want)
		if part := frame[:min(int(want.L4)+8, int(want.End))]; header.ChecksumLongICMP(part, &want, sum) != whole {
			t.Errorf("%s: the checksum of a message in two parts is not %v", name, whole)
		}
		if longer := len(frame) - 1; header.ParseLong(frame, longer, &header.Packet{}) == reason.None &&
			int(want.End) > longer {
			t.Errorf("%s: a packet that ends after its frame", name)
		}
	}
}

// For every length that a header of a truncated or padded frame can claim, Parse agrees with the
// reference.
func TestParseFalseLengths(t *testing.T) {
	for name, frame := range corpus() {
		at := len(frame) - len(headertest.IP(frame))
		field, v4 := at+4, frame[at]>>4 == 4
		if v4 {
			field = at + 2
		}
		right := int(binary.BigEndian.Uint16(frame[field:]))
		for _, bytes := range []int{len(frame), len(frame) + 6, len(frame) + 40} {
			for claimed := max(right-80, 0); claimed < right+48; claimed++ {
				f := slices.Clone(frame)
				for len(f) < bytes {
					f = append(f, 0xa5)
				}
				binary.BigEndian.PutUint16(f[field:], uint16(claimed))
				if v4 {
					sealAt(f, at)
				}
				agree(t, name, f)
			}
		}
	}
}

// sealAt sets the right checksum of an IPv4 header.
func sealAt(frame []byte, at int) {
	end := min(at+int(frame[at]&15)*4, len(frame))
	if end < at+20 {
		return
	}
	binary.BigEndian.PutUint16(frame[at+10:], 0)
	s := 0
	for i, v := range frame[at:end] {
		s += int(v) << (8 * (1 - i%2))
	}
	s %= 65535
	binary.BigEndian.PutUint16(frame[at+10:], ^uint16(s))
}

// agree compares Parse with the reference. If a packet is dropped, only the documented fields are
// compared.
func agree(t *testing.T, name string, frame []byte) {
	t.Helper()
	var got header.Packet
	drop := header.Parse(frame, &got)
	want, wantReason := parseReference(frame)
	if drop != wantReason {
		t.Fatalf("%s: %v, the reference returns %v\n%x", name, drop, wantReason, frame)
	}
	if drop == reason.None && got != want {
		t.Fatalf("%s:\ngot  %+v\nwant %+v\n%x", name, got, want, frame)
	}
	if got.L3 != 0 && (got.Tuple.Src != want.Tuple.Src || got.Tuple.Dst != want.Tuple.Dst) {
		t.Fatalf("%s: addresses of a dropped packet: %v, %v\n%x", name, got.Tuple, want.Tuple, frame)
	}
}

type fault struct {
	name   string
	frame  []byte
	reason reason.Drop
}

func tcp(change func(*headertest.Packet)) []byte {
	p := headertest.TCP(client4, vip4, headertest.SYN)
	change(p)
	return p.Bytes()
}

func udp6(change func(*headertest.Packet)) []byte {
	p := headertest.UDP(client6, vip6, "hello")
	change(p)
	return p.Bytes()
}

// patch writes bytes at an offset of a frame; an IPv4 header is sealed again.
func patch(frame []byte, at int, b ...byte) []byte {
	f := slices.Clone(frame)
	copy(f[at:], b)
	if binary.BigEndian.Uint16(f[12:]) == 0x0800 {
		headertest.SealIPv4(f)
	}
	return f
}

func extensions(types ...uint8) []byte {
	return udp6(func(p *headertest.Packet) {
		for _, t := range types {
			e := headertest.Extension{Type: t, Data: padding}
			if t == headertest.Routing {
				e.Data = []byte{4, 0, 0, 0, 0, 0}
			}
			p.Extensions = append(p.Extensions, e)
		}
	})
}

// options6 returns a frame with a destination options header that has these options.
func options6(options ...byte) []byte {
	return udp6(func(p *headertest.Packet) {
		p.Extensions = []headertest.Extension{{Type: headertest.Destination, Data: options}}
	})
}

func TestParseDropReasons(t *testing.T) {
	tcp4 := corpus()["tcp4"]
	tcp6 := corpus()["tcp6"]
	udp4 := corpus()["udp4"]
	echo4 := corpus()["echo4"]
	broken := slices.Clone(tcp4)
	broken[24] ^= 1
	destinations := slices.Repeat([]uint8{60}, 16)
	for _, f := range []fault{
		{"three tags", tcp(func(p *headertest.Packet) { p.VLAN = []uint16{1, 2, 3} }), reason.EtherType},
		{"arp", patch(tcp6, 12, 0x08, 0x06), reason.EtherType},
		{"802.3 length", patch(tcp6, 12, 0x00, 0x40), reason.EtherType},
		{"too long for 16 bits", make([]byte, 65536), reason.FrameOversize},
		{"ipv6 in the ipv4 ethertype", patch(tcp4, 14, 0x65), reason.IPv4Header},
		{"ihl 4", patch(tcp4, 14, 0x44), reason.IPv4Header},
		{"total below header", patch(tcp4, 16, 0, 19), reason.IPv4Header},
		{"bad header checksum", broken, reason.IPv4Checksum},
		{"loose source route", tcp(func(p *headertest.Packet) { p.Options = []byte{131, 3, 4} }),
			reason.IPv4SourceRoute},
		{"strict source route", tcp(func(p *headertest.Packet) { p.Options = []byte{1, 1, 137, 7, 4, 1, 2, 3, 4} }),
			reason.IPv4SourceRoute},
		{"option of length 0", tcp(func(p *headertest.Packet) { p.Options = []byte{7, 0, 0, 0} }), reason.IPv4Header},
		{"option of length 1", tcp(func(p *headertest.Packet) { p.Options = []byte{7, 1, 0, 0} }), reason.IPv4Header},
		{"option past the header", tcp(func(p *headertest.Packet) { p.Options = []byte{7, 5, 0, 0} }),
			reason.IPv4Header},
		{"option type in the last byte", tcp(func(p *headertest.Packet) { p.Options = []byte{1, 1, 1, 7} }),
			reason.IPv4Header},
		{"record route without room for an address", tcp(func(p *headertest.Packet) {
			p.Options = []byte{7, 8, 6, 0, 0,
				0, 0, 0}
		}), reason.IPv4Header},
		{"record route that points at itself", tcp(func(p *headertest.Packet) {
			p.Options = []byte{7, 7, 3, 0, 0, 0,
				0}
		}), reason.IPv4Header},
		{"two record routes", tcp(func(p *headertest.Packet) { p.Options = []byte{7, 3, 4, 7, 3, 4} }),
			reason.IPv4Header},
		{"timestamp without room for address and time", tcp(func(p *headertest.Packet) {
			p.Options = []byte{68, 8, 5,
				1, 0, 0, 0, 0}
		}), reason.IPv4Header},
		{"timestamp whose overflow count overflows", tcp(func(p *headertest.Packet) {
			p.Options = []byte{68, 4, 5,
				0xf0}
		}), reason.IPv4Header},
		{"security label without a domain", tcp(func(p *headertest.Packet) {
			p.Options = []byte{134, 8, 0, 0, 0, 0, 1,
				2}
		}), reason.IPv4Header},
		{"security label whose tags do not fill it", tcp(func(p *headertest.Packet) {
			p.Options = []byte{134, 10, 0, 0,
				0, 1, 1, 3, 0, 0}
		}), reason.IPv4Header},
		{"router alert without a value", tcp(func(p *headertest.Packet) { p.Options = []byte{148, 2, 0, 0} }),
			reason.IPv4Header},
		{"ipv4 in the ipv6 ethertype", patch(tcp6, 14, 0x45), reason.IPv6Header},
		{"jumbogram", patch(tcp6, 18, 0, 0), reason.IPv6Header},
		{"option beyond its header", options6(5, 2, 0, 0, 5, 1), reason.IPv6ExtensionHeader},
		{"option without a length", options6(1, 3, 0, 0, 0, 5), reason.IPv6ExtensionHeader},
		{"pad that is not zero", options6(1, 4, 0, 0, 7, 0), reason.IPv6ExtensionHeader},
		{"pad of eight bytes", options6(1, 6, 0, 0, 0, 0, 0, 0, 5, 4, 0, 0, 0, 0), reason.IPv6ExtensionHeader},
		{"option with action bits", options6(0x40, 4, 0, 0, 0, 0), reason.IPv6ExtensionHeader},
		{"nine options", options6(5, 0, 5, 0, 5, 0, 5, 0, 5, 0, 5, 0, 5, 0, 5, 0, 5, 0, 1, 0, 0, 0),
			reason.IPv6ExtensionHeader},
		{"hop-by-hop second", extensions(60, 0), reason.IPv6ExtensionHeader},
		{"two fragment headers", patch(extensions(44, 44), 14+40+2, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0),
			reason.IPv6ExtensionHeader},
		{"17 extension headers", extensions(append(destinations, 60)...), reason.IPv6ExtensionHeader},
		{"extension past the packet", patch(extensions(60), 14+40+1, 99), reason.IPv6ExtensionHeader},
		{"routing type 0", patch(extensions(43), 14+40+2, 0), reason.IPv6RoutingHeader},
		{"segments left", patch(extensions(43), 14+40+3, 1), reason.IPv6RoutingHeader},
		{"authentication header", extensions(51), reason.Protocol},
		{"land", patch(tcp4, 26, 198, 51, 100, 7), reason.LandAttack},
		{"land6", patch(tcp6, 22, tcp6[38:54]...), reason.LandAttack},
		{"tcp offset 4", patch(tcp4, 14+20+12, 0x40), reason.TCPHeader},
		{"tcp offset past the end", patch(tcp4, 14+20+12, 0x60), reason.TCPHeader},
		{"tcp cut by the ip length", patch(tcp4, 16, 0, 39), reason.TCPHeader},
		{"udp length 7", patch(udp4, 14+20+4, 0, 7), reason.UDPLength},
		{"udp length past the end", patch(udp4, 14+20+4, 0, 14), reason.UDPLength},
		{"udp cut by the ip length", patch(udp4, 16, 0, 27), reason.UDPLength},
		{"udp6 without checksum", udp6(func(p *headertest.Packet) { p.NoChecksum = true }), reason.None},
		{"udp source port 0", patch(udp4, 14+20, 0, 0), reason.PortZero},
		{"udp destination port 0", patch(udp4, 14+20+2, 0, 0), reason.PortZero},
		{"tcp source port 0", patch(tcp4, 14+20, 0, 0), reason.PortZero},
		{"tcp destination port 0", patch(tcp4, 14+20+2, 0, 0), reason.PortZero},
		{"icmp cut by the ip length", patch(echo4, 16, 0, 27), reason.ICMPHeader},
		{"udp-lite", tcp(func(p *headertest.Packet) { p.Proto, p.Payload = 136, make([]byte, 12) }), reason.Protocol},
		{"icmpv6 over ipv4", patch(echo4, 14+9, 58), reason.Protocol},
		{"icmp over ipv6", patch(corpus()["echo6"], 14+6, 1), reason.Protocol},
	} {
		t.Run(f.name, func(t *testing.T) {
			var p header.Packet
			if got := header.Parse(f.frame, &p); got != f.reason {
				t.Errorf("dropped as %v, want %v", got, f.reason)
			}
			agree(t, f.name, f.frame)
		})
	}
	t.Run("16 extension headers pass", func(t *testing.T) {
		var p header.Packet
		if got := header.Parse(extensions(destinations...), &p); got != reason.None {
			t.Errorf("dropped as %v", got)
		}
	})
	t.Run("surplus after a datagram passes", func(t *testing.T) {
		var p header.Packet
		if got := header.Parse(patch(udp4, 14+20+4, 0, 9), &p); got != reason.None {
			t.Errorf("dropped as %v", got)
		}
	})
}

// TestParseErrorsFromLinkLocal: a router without another address sends ICMP errors from a
// link-local one; other packets from link-local addresses are dropped.
func TestParseErrorsFromLinkLocal(t *testing.T) {
	for _, tt := range []struct {
		name string
		p    *headertest.Packet
		want reason.Drop
	}{
		{"too big", headertest.ICMPError("169.254.0.1", "198.51.100.7", 3, 4, 1400, corpus()["tcp4"], -1), reason.None},
		{"time exceeded", headertest.ICMPError("169.254.0.1", "198.51.100.7", 11, 0, 0, corpus()["tcp4"], 28),
			reason.None},
		{"from loopback", headertest.ICMPError("127.0.0.1", "198.51.100.7", 3, 4, 1400, corpus()["tcp4"], -1),
			reason.MartianSource},
		{"from 0/8", headertest.ICMPError("0.0.0.1", "198.51.100.7", 3, 4, 1400, corpus()["tcp4"], -1),
			reason.MartianSource},
		{"echo", headertest.Echo("169.254.0.1", "198.51.100.7", 1, 1, false), reason.MartianSource},
		{"UDP", headertest.UDP("169.254.0.1:5", "198.51.100.7:53", "\x03"), reason.MartianSource},
		{"ICMPv6 over IPv4", &headertest.Packet{Src: netip.MustParseAddr("169.254.0.1"),
			Dst: netip.MustParseAddr("198.51.100.7"), Proto: 58, ICMPType: 3}, reason.MartianSource},
		{"too big6", headertest.ICMPError("fe80::1", "2001:db8:1::7", 2, 0, 1400, corpus()["tcp6"], -1), reason.None},
		{"from loopback6", headertest.ICMPError("::1", "2001:db8:1::7", 2, 0, 1400, corpus()["tcp6"], -1),
			reason.MartianSource},
		{"from multicast6", headertest.ICMPError("ff02::1", "2001:db8:1::7", 2, 0, 1400, corpus()["tcp6"], -1),
			reason.MartianSource},
		{"echo6", headertest.Echo("fe80::1", "2001:db8:1::7", 1, 1, false), reason.MartianSource},
		{"UDP6", headertest.UDP("[fe80::1]:260", "[2001:db8:1::7]:53", "\x02"), reason.MartianSource},
	} {
		t.Run(tt.name, func(t *testing.T) {
			frame := tt.p.Bytes()
			var p header.Packet
			if got := header.Parse(frame, &p); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
			if tt.want != reason.None {
				return
			}
			if got := header.Parse(headertest.Split(frame, 24, 1)[0], &p); got != reason.MartianSource {
				t.Errorf("in a fragment: %v", got)
			}
		})
	}
}

func TestParseMartians(t *testing.T) {
	for _, a := range []string{
		"0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.255.255", "169.254.0.1", "169.254.255.255",
		"224.0.0.1", "239.255.255.255", "255.255.255.255",
		"::", "::1", "::192.0.2.1", "::ffff:192.0.2.1", "fe80::1", "febf::1", "ff00::", "ff02::1", "ffff::1",
	} {
		t.Run(a, func(t *testing.T) {
			src, dst := withAddresses(a)
			var p header.Packet
			if got := header.Parse(src, &p); got != reason.MartianSource {
				t.Errorf("as source: %v", got)
			}
			if got := header.Parse(dst, &p); got != reason.MartianDestination {
				t.Errorf("as destination: %v", got)
			}
		})
	}
	for _, a := range []string{
		"1.0.0.0", "10.0.0.1", "126.255.255.255", "128.0.0.0", "169.253.255.255", "169.255.0.0",
		"192.168.0.1", "223.255.255.255", "240.0.0.0", "240.10.0.5", "255.255.255.254", "fd00::1", "fec0::1", "fe7f::1",
		"64:ff9b::1", "2001:db8::2", "::1:0:0:1",
	} {
		t.Run(a, func(t *testing.T) {
			src, dst := withAddresses(a)
			var p header.Packet
			for _, f := range [][]byte{src, dst} {
				if got := header.Parse(f, &p); got != reason.None {
					t.Errorf("dropped as %v", got)
				}
			}
		})
	}
}

func TestParseTCPFlags(t *testing.T) {
	for flags := range 256 {
		frame := tcp(func(p *headertest.Packet) { p.Flags = uint8(flags) })
		want := reason.TCPFlags
		if slices.Contains(validFlags, uint8(flags)&^(headertest.PSH|headertest.ECE|headertest.CWR)) {
			want = reason.None
		}
		var p header.Packet
		if got := header.Parse(frame, &p); got != want || p.TCPFlags != uint8(flags) {
			t.Errorf("flags %#02x: %v, want %v", flags, got, want)
		}
	}
}

func TestParseAllocatesNothing(t *testing.T) {
	for name, frame := range corpus() {
		var p, inner header.Packet
		if n := testing.AllocsPerRun(100, func() {
			header.Parse(frame, &p)
			header.ParseInner(frame, &p, &inner)
			header.ChecksumICMP(frame, &p)
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	all := corpus()
	for _, name := range []string{"tcp4", "tcp4 vlan", "tcp4 ip opts", "udp4", "later4", "tcp6", "tcp6 chain"} {
		b.Run(name, func(b *testing.B) {
			frame := all[name]
			var p header.Packet
			for b.Loop() {
				if header.Parse(frame, &p) != reason.None {
					b.Fatal("dropped")
				}
			}
		})
	}
}
