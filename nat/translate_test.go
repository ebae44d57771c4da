package nat_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// The four ends of a flow with full NAT.
var ends = map[bool]struct{ client, vip, source, backend string }{
	false: {"192.0.2.1:40000", "198.51.100.7:80", "10.0.0.2:61001", "10.1.2.3:8080"},
	true:  {"[2001:db8::1]:40000", "[2001:db8:1::7]:80", "[fd00::2]:61001", "[fd00:1::3]:8080"},
}

func random(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func tuple(src, dst string, proto uint8) header.Tuple {
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	return header.Tuple{
		Src: header.AddrFrom(s.Addr()), Dst: header.AddrFrom(d.Addr()),
		SrcPort: s.Port(), DstPort: d.Port(), Proto: proto, V6: s.Addr().Is6(),
	}
}

var kinds = []string{"tcp", "udp", "sctp", "icmp"}

// packet builds a packet of the given kind between two ends.
func packet(kind, src, dst string) *headertest.Packet {
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	switch kind {
	case "tcp":
		p := headertest.TCP(src, dst, headertest.ACK)
		p.Payload = []byte("odd payload")
		return p
	case "udp":
		return headertest.UDP(src, dst, "even load!")
	case "sctp":
		p := headertest.SCTP(src, dst, 0)
		p.Payload = []byte("message")
		return p
	}
	return headertest.Echo(s.Addr().String(), d.Addr().String(), s.Port(), 9, false)
}

func mustParse(t testing.TB, frame []byte) *header.Packet {
	t.Helper()
	var p header.Packet
	if drop := header.Parse(frame, &p); drop != reason.None {
		t.Fatalf("dropped: %v\n%x", drop, frame)
	}
	return &p
}

// A translated packet equals, byte for byte, a packet built between the new ends, and translation
// with the reverse delta restores the original.
func TestTranslateBuildsTheOtherSidesPacket(t *testing.T) {
	for v6, e := range ends {
		for _, kind := range kinds {
			for payload := range 5 {
				build := func(src, dst string) []byte {
					p := packet(kind, src, dst)
					p.Payload = p.Payload[:len(p.Payload)-payload]
					return p.Bytes()
				}
				client, backend := build(e.client, e.vip), build(e.source, e.backend)
				frame := slices.Clone(client)
				p := mustParse(t, frame)
				out := mustParse(t, backend).Tuple
				d := header.DeltaOf(&p.Tuple, &out)
				nat.Translate(frame, p, &out, d)
				if !bytes.Equal(frame, backend) {
					t.Errorf("%s, IPv6 %v, %d bytes less:\ngot  %x\nwant %x", kind, v6, payload, frame, backend)
				}
				back := p.Tuple
				nat.Translate(frame, mustParse(t, frame), &back, d.Reverse())
				if !bytes.Equal(frame, client) {
					t.Errorf("%s, IPv6 %v, %d bytes less, and back:\ngot  %x\nwant %x", kind, v6, payload, frame,
						client)
				}
			}
		}
	}
}

// randomTuple keeps family and protocol, and chooses ends with many zero and one bits.
func randomTuple(r *rand.Rand, t header.Tuple) header.Tuple {
	word := func() uint16 {
		switch v := r.Uint32(); v % 4 {
		case 0:
			return 0xffff
		case 1:
			return 0
		default:
			return uint16(v >> 16)
		}
	}
	addr := func(a *header.Addr) {
		from := 12
		if t.V6 {
			from = 2
		}
		for i := from; i < 16; i += 2 {
			v := word()
			a[i], a[i+1] = byte(v>>8), byte(v)
		}
	}
	addr(&t.Src)
	addr(&t.Dst)
	t.SrcPort, t.DstPort = word(), word()
	if t.Proto == header.ProtoICMP || t.Proto == header.ProtoICMPv6 {
		t.DstPort = t.SrcPort
	}
	return t
}

// 640,000 random translations, each checked by full recomputation.
func TestTranslateKeepsChecksumsValid(t *testing.T) {
	r := random(t)
	rounds := 80_000
	if testing.Short() {
		rounds /= 10
	}
	for _, e := range ends {
		for _, kind := range kinds {
			frame := packet(kind, e.client, e.vip).Bytes()
			p := mustParse(t, frame)
			for range rounds {
				out := randomTuple(r, p.Tuple)
				nat.Translate(frame, p, &out, header.DeltaOf(&p.Tuple, &out))
				p.Tuple = out
				if err := headertest.Verify(frame); err != nil {
					t.Fatalf("%s to %+v: %v\n%x", kind, out, err, frame)
				}
			}
		}
	}
}

// For SCTP packets of all lengths, with right and wrong CRCs, translation changes no bit of the
// CRC's fault, as full recomputation shows.
func TestTranslateKeepsSCTPFaults(t *testing.T) {
	r := random(t)
	for n := range 3000 {
		e := ends[n%2 == 0]
		d := packet("sctp", e.client, e.vip)
		d.Payload = make([]byte, 1+r.IntN(9000))
		for i := range d.Payload {
			d.Payload[i] = byte(r.Uint32())
		}
		frame := d.Bytes()
		p := mustParse(t, frame)
		if n%3 != 0 {
			frame[int(p.L4)+16+r.IntN(len(d.Payload))] ^= byte(r.Uint32())
			p.End -= uint16(r.IntN(4)) // the padding of the last chunk is missing
		}
		_, before := faults(frame, p)
		out := randomTuple(r, p.Tuple)
		nat.Translate(frame, p, &out, header.DeltaOf(&p.Tuple, &out))
		if _, after := faults(frame, p); after != before || n%3 == 0 && after != 0 {
			t.Fatalf("%d bytes: wrong by %#08x, before by %#08x", p.End-p.L4, after, before)
		}
	}
}

// An echo reply of only zeros is the one message whose sum can be zero itself.
func TestTranslateAllZeroEchoReply(t *testing.T) {
	p := headertest.Echo("192.0.2.1", "198.51.100.7", 7, 0, true)
	p.Payload = make([]byte, 9)
	frame := p.Bytes()
	parsed := mustParse(t, frame)
	out := parsed.Tuple
	out.SrcPort, out.DstPort = 0, 0
	nat.Translate(frame, parsed, &out, header.DeltaOf(&parsed.Tuple, &out))
	if err := headertest.Verify(frame); err != nil {
		t.Error(err)
	}
}

func TestTranslateKeepsMissingUDPChecksum(t *testing.T) {
	e := ends[false]
	d := headertest.UDP(e.client, e.vip, "x")
	d.NoChecksum = true
	frame := d.Bytes()
	p := mustParse(t, frame)
	out := tuple(e.source, e.backend, header.ProtoUDP)
	nat.Translate(frame, p, &out, header.DeltaOf(&p.Tuple, &out))
	if sum := frame[p.L4+6 : p.L4+8]; sum[0]|sum[1] != 0 {
		t.Errorf("a checksum appeared: %x", sum)
	}
	if err := headertest.Verify(frame); err != nil {
		t.Error(err)
	}
}

// A computed zero is sent as 0xffff, because zero would mean that there is no checksum.
func TestTranslateSendsComputedZeroAsOnes(t *testing.T) {
	for _, e := range ends {
		frame := headertest.UDP(e.client, e.vip, "x").Bytes()
		p := mustParse(t, frame)
		sum := uint16(frame[p.L4+6])<<8 | uint16(frame[p.L4+7])
		out := p.Tuple
		out.SrcPort += sum // the updated checksum is zero, if no carry is lost
		if out.SrcPort < sum {
			out.SrcPort++
		}
		nat.Translate(frame, p, &out, header.DeltaOf(&p.Tuple, &out))
		if got := frame[p.L4+6 : p.L4+8]; got[0] != 0xff || got[1] != 0xff {
			t.Errorf("checksum %x, want ffff", got)
		}
		if err := headertest.Verify(frame); err != nil {
			t.Error(err)
		}
	}
}

func TestTranslateFragments(t *testing.T) {
	for v6, e := range ends {
		whole := func(src, dst string) []byte {
			return headertest.UDP(src, dst, string(make([]byte, 200))).Bytes()
		}
		in := headertest.Split(whole(e.client, e.vip), 80, 0x1234)
		want := headertest.Split(whole(e.source, e.backend), 80, 0x1234)
		out := tuple(e.source, e.backend, header.ProtoUDP)
		first := mustParse(t, in[0]).Tuple
		d := header.DeltaOf(&first, &out)
		for i, frame := range in {
			p := mustParse(t, frame)
			nat.Translate(frame, p, &out, d)
			if !bytes.Equal(frame, want[i]) {
				t.Errorf("fragment %d, IPv6 %v:\ngot  %x\nwant %x", i, v6, frame, want[i])
			}
		}
	}
}

func TestSetFragmentID(t *testing.T) {
	frame := headertest.Split(headertest.UDP(ends[false].client, ends[false].vip, string(make([]byte, 200))).Bytes(),
		80, 1)[1]
	p := mustParse(t, frame)
	for id := range 1 << 16 {
		nat.SetFragmentID(frame, p, uint32(id))
		if err := headertest.Verify(frame); err != nil {
			t.Fatalf("id %d: %v", id, err)
		}
	}
	if got := mustParse(t, frame).FragmentID; got != 0xffff {
		t.Errorf("id %#x", got)
	}
}

func TestDecrementTTL(t *testing.T) {
	for v6, e := range ends {
		d := headertest.TCP(e.client, e.vip, headertest.SYN)
		d.TTL = 255
		frame := d.Bytes()
		p := mustParse(t, frame)
		for ttl := 254; ttl >= 0; ttl-- {
			nat.DecrementTTL(frame, p)
			if got := mustParse(t, frame).TTL; int(got) != ttl {
				t.Fatalf("IPv6 %v: TTL %d, want %d", v6, got, ttl)
			}
			if err := headertest.Verify(frame); err != nil {
				t.Fatalf("IPv6 %v, TTL %d: %v", v6, ttl, err)
			}
		}
	}
}

func TestTranslateAllocatesNothing(t *testing.T) {
	for _, e := range ends {
		for _, kind := range kinds {
			frame := packet(kind, e.client, e.vip).Bytes()
			p := mustParse(t, frame)
			out := p.Tuple.Reverse()
			if n := testing.AllocsPerRun(100, func() {
				nat.DecrementTTL(frame, p)
				nat.Translate(frame, p, &out, header.DeltaOf(&p.Tuple, &out))
				nat.EchoReply(frame, p, 64)
			}); n != 0 {
				t.Errorf("%s: %v allocations", kind, n)
			}
		}
	}
}

func BenchmarkTranslate(b *testing.B) {
	for v6, e := range ends {
		for _, kind := range []string{"tcp", "udp", "sctp"} {
			name := kind + "4"
			if v6 {
				name = kind + "6"
			}
			b.Run(name, func(b *testing.B) {
				frame := packet(kind, e.client, e.vip).Bytes()
				p := mustParse(b, frame)
				out := tuple(e.source, e.backend, p.Tuple.Proto)
				d := header.DeltaOf(&p.Tuple, &out)
				back := p.Tuple
				for b.Loop() { // there and back: if the ports do not change, the CRC costs nothing
					nat.Translate(frame, p, &out, d)
					nat.Translate(frame, p, &back, d.Reverse())
				}
			})
		}
	}
}

func BenchmarkDecrementTTL(b *testing.B) {
	frame := packet("tcp", ends[false].client, ends[false].vip).Bytes()
	p := mustParse(b, frame)
	for b.Loop() {
		nat.DecrementTTL(frame, p)
	}
}
