package nat_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// icmpCase is an error about a packet that the gateway received, translated and sent.
type icmpCase struct {
	name           string
	sender, far    string // source and destination of the received packet
	near, receiver string // source and destination after translation
	kind           string
	icmpType, code uint8
	rest           uint32
	router         string
}

// icmpCases are all 64: two directions, two families, four types, four protocols.
func icmpCases() []icmpCase {
	var cases []icmpCase
	types := map[bool][][3]uint32{
		false: {{3, 4, 1300}, {3, 3, 0}, {11, 0, 0}, {12, 0, 0}},
		true:  {{1, 4, 0}, {2, 0, 1300}, {3, 0, 0}, {4, 0, 40}},
	}
	routers := map[bool]string{false: "203.0.113.9", true: "2001:db8:9::9"}
	for v6, e := range ends {
		for _, icmp := range types[v6] {
			for _, kind := range kinds {
				c := icmpCase{
					kind: kind, icmpType: uint8(icmp[0]), code: uint8(icmp[1]), rest: icmp[2], router: routers[v6],
				}
				c.name = fmt.Sprintf("IPv6=%v/type %d/%s/about what the client sent", v6, icmp[0], kind)
				c.sender, c.far, c.near, c.receiver = e.client, e.vip, e.source, e.backend
				cases = append(cases, c)
				c.name = fmt.Sprintf("IPv6=%v/type %d/%s/about what the backend sent", v6, icmp[0], kind)
				c.sender, c.far, c.near, c.receiver = e.backend, e.source, e.vip, e.client
				cases = append(cases, c)
			}
		}
	}
	return cases
}

// run translates an error that quotes quoteBytes bytes; negative means all. It returns the frame,
// and the packet that the error must now quote.
func (c *icmpCase) run(t *testing.T, quoteBytes int) (frame, want []byte, drop reason.Drop) {
	t.Helper()
	received := packet(c.kind, c.sender, c.far).Bytes()
	sent := packet(c.kind, c.near, c.receiver).Bytes()
	host := func(end string) string { return netip.MustParseAddrPort(end).Addr().String() }
	frame = headertest.ICMPError(c.router, host(c.near), c.icmpType, c.code, c.rest, sent, quoteBytes).Bytes()
	outer := mustParse(t, frame)
	if !header.ChecksumICMP(frame, outer) {
		t.Fatal("the test's own error does not verify")
	}
	var inner header.Packet
	if drop := header.ParseInner(frame, outer, &inner); drop != reason.None {
		return frame, nil, drop
	}
	if inner.Tuple != mustParse(t, sent).Tuple {
		t.Fatalf("inner tuple %+v", inner.Tuple)
	}
	out := mustParse(t, received).Tuple
	nat.TranslateICMPError(frame, outer, &inner, header.AddrFrom(netip.MustParseAddr(host(c.far))),
		header.AddrFrom(netip.MustParseAddr(host(c.sender))), &out, header.DeltaOf(&inner.Tuple, &out))
	want = headertest.IP(received)
	if quoteBytes >= 0 {
		want = want[:min(quoteBytes, len(want))]
	}
	return frame, want, reason.None
}

// check checks that a translated error quotes its receiver's own packet, comes from the address to
// which the receiver sent it, and has right checksums.
func (c *icmpCase) check(t *testing.T, frame, want []byte) {
	t.Helper()
	p := mustParse(t, frame)
	if quote := frame[p.L4+8 : p.End]; !bytes.Equal(quote, want) {
		t.Errorf("quote\ngot  %x\nwant %x", quote, want)
	}
	src := netip.MustParseAddrPort(c.far).Addr()
	dst := netip.MustParseAddrPort(c.sender).Addr()
	if p.Tuple.Src.Netip() != src || p.Tuple.Dst.Netip() != dst {
		t.Errorf("from %v to %v, want %v and %v", p.Tuple.Src, p.Tuple.Dst, src, dst)
	}
	if p.ICMPType != c.icmpType || p.ICMPCode != c.code {
		t.Errorf("type %d code %d", p.ICMPType, p.ICMPCode)
	}
	if !header.ChecksumICMP(frame, p) {
		t.Error("ICMP checksum is wrong")
	}
	if err := headertest.Verify(frame); err != nil {
		t.Error(err)
	}
}

func TestTranslateICMPError(t *testing.T) {
	cases := icmpCases()
	if len(cases) != 64 {
		t.Fatalf("%d cases, want 64", len(cases))
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			frame, want, drop := c.run(t, -1)
			if drop != reason.None {
				t.Fatalf("dropped: %v", drop)
			}
			c.check(t, frame, want)
		})
	}
}

// Quotes cut at every byte: a quote with at least the header and 8 bytes is translated, a shorter
// one is rejected.
func TestTranslateICMPErrorCut(t *testing.T) {
	for _, c := range icmpCases() {
		least := 28
		if netip.MustParseAddrPort(c.far).Addr().Is6() {
			least = 48
		}
		for cut := range 81 {
			frame, want, drop := c.run(t, cut)
			if cut < least {
				if drop != reason.ICMPHeader {
					t.Errorf("%s, %d bytes: %v", c.name, cut, drop)
				}
				continue
			}
			if drop != reason.None {
				t.Errorf("%s, %d bytes: %v", c.name, cut, drop)
				continue
			}
			if c.kind == "tcp" && cut == least+9 {
				// Half a checksum cannot be updated; it stays as the router quoted it.
				want = append(want[:cut-1:cut-1], frame[len(frame)-1])
			}
			if part := cut - least; c.kind == "sctp" && part > 0 && part < 4 {
				// likewise for one to three bytes of a CRC
				sent := headertest.IP(packet(c.kind, c.near, c.receiver).Bytes())
				want = append(want[:least:least], sent[least:cut]...)
			}
			c.check(t, frame, want)
		}
	}
}

// A wrong checksum inside stays wrong by the same difference: the quote equals the packet that the
// sender sent.
func TestTranslateICMPErrorKeepsInnerFaults(t *testing.T) {
	for _, kind := range []string{"tcp", "sctp"} {
		t.Run(kind, func(t *testing.T) { keepsInnerFaults(t, kind) })
	}
}

func keepsInnerFaults(t *testing.T, kind string) {
	e := ends[false]
	sent := packet(kind, e.source, e.backend).Bytes()
	received := packet(kind, e.client, e.vip).Bytes()
	for _, f := range [][]byte{sent, received} {
		f[len(f)-1] ^= 0x55 // payload, so that the checksum is wrong
	}
	frame := headertest.ICMPError("203.0.113.9", "10.0.0.2", 3, 4, 1300, sent, -1).Bytes()
	outer, inner := mustParse(t, frame), header.Packet{}
	if drop := header.ParseInner(frame, outer, &inner); drop != reason.None {
		t.Fatal(drop)
	}
	out := mustParse(t, received).Tuple
	nat.TranslateICMPError(frame, outer, &inner, out.Dst, out.Src, &out, header.DeltaOf(&inner.Tuple, &out))
	if quote := frame[outer.L4+8:]; !bytes.Equal(quote, headertest.IP(received)) {
		t.Errorf("quote\ngot  %x\nwant %x", quote, headertest.IP(received))
	}
	if !header.ChecksumICMP(frame, mustParse(t, frame)) {
		t.Error("ICMP checksum is wrong")
	}
}

// A quoted SCTP packet whose length field is shorter than its header has no checksum, and the
// checksum of a first fragment covers bytes that were not quoted: in both cases the checksum bytes
// do not change.
func TestTranslateICMPErrorWithoutQuotedCRC(t *testing.T) {
	for _, quoted := range []string{"short", "first fragment"} {
		for v6, e := range ends {
			t.Run(fmt.Sprintf("%s/IPv6=%v", quoted, v6), func(t *testing.T) {
				d := packet("sctp", e.source, e.backend)
				d.Payload = make([]byte, 100)
				sent := headertest.Split(d.Bytes(), 64, 9)[0]
				if quoted == "short" {
					sent = claim(d.Bytes(), 11)
				}
				host := func(end string) string { return netip.MustParseAddrPort(end).Addr().String() }
				report := headertest.ICMPError(host(e.vip), host(e.source), 3, 0, 0, d.Bytes(), -1)
				report.Payload = sent[14:]
				frame := report.Bytes()
				outer, inner := mustParse(t, frame), header.Packet{}
				if drop := header.ParseInner(frame, outer, &inner); drop != reason.None {
					t.Fatal(drop)
				}
				tag := bytes.Clone(frame[inner.L4+4:])
				out := tuple(e.client, e.vip, header.ProtoSCTP)
				nat.TranslateICMPError(frame, outer, &inner, out.Dst, out.Src, &out, header.DeltaOf(&inner.Tuple, &out))
				if !bytes.Equal(frame[inner.L4+4:], tag) {
					t.Error("more than the ports changed")
				}
				var again header.Packet
				after := mustParse(t, frame)
				if header.ParseInner(frame, after, &again); again.Tuple != out || !header.ChecksumICMP(frame, after) {
					t.Errorf("now about %+v, or the ICMP checksum is wrong", again.Tuple)
				}
			})
		}
	}
}

// claim sets the IP length of an untagged frame to a transport part of transportBytes.
func claim(frame []byte, transportBytes byte) []byte {
	if frame[14]>>4 == 6 {
		frame[18], frame[19] = 0, transportBytes
		return frame
	}
	frame[16], frame[17] = 0, 20+transportBytes
	headertest.SealIPv4(frame)
	return frame
}

// RFC 4884: extensions that follow the quote are not part of it.
func TestTranslateICMPErrorLeavesExtensions(t *testing.T) {
	e := ends[false]
	sent := packet("udp", e.source, e.backend)
	sent.Payload = bytes.Repeat([]byte{0xaa}, 200)
	extension := []byte{0x20, 0, 0xdf, 0xff, 0, 4, 1, 1}
	d := headertest.ICMPError("203.0.113.9", "10.0.0.2", 11, 0, 32<<16, sent.Bytes(), 128)
	d.Payload = append(d.Payload, extension...)
	frame := d.Bytes()
	outer, inner := mustParse(t, frame), header.Packet{}
	if drop := header.ParseInner(frame, outer, &inner); drop != reason.None {
		t.Fatal(drop)
	}
	if got := inner.End - inner.L3; got != 128 {
		t.Errorf("the quote is %d bytes, want 128", got)
	}
	out := tuple(e.client, e.vip, header.ProtoUDP)
	nat.TranslateICMPError(frame, outer, &inner, out.Dst, out.Src, &out, header.DeltaOf(&inner.Tuple, &out))
	if !bytes.HasSuffix(frame, extension) {
		t.Error("the extension changed")
	}
	if !header.ChecksumICMP(frame, mustParse(t, frame)) {
		t.Error("ICMP checksum is wrong")
	}
}

func TestEchoReply(t *testing.T) {
	for v6, e := range ends {
		host := func(end string) string { return netip.MustParseAddrPort(end).Addr().String() }
		for _, ttl := range []uint8{1, 64, 255} {
			request := headertest.Echo(host(e.client), host(e.vip), 7, 9, false)
			request.TTL = ttl
			request.Padding = 18
			frame := request.Bytes()
			nat.EchoReply(frame, mustParse(t, frame), 64)
			reply := headertest.Echo(host(e.vip), host(e.client), 7, 9, true)
			reply.Padding = 18
			if want := reply.Bytes(); !bytes.Equal(frame, want) {
				t.Errorf("IPv6 %v, TTL %d:\ngot  %x\nwant %x", v6, ttl, frame, want)
			}
		}
	}
	t.Run("nothing but zeros", func(t *testing.T) {
		request := headertest.Echo("192.0.2.1", "198.51.100.7", 0, 0, false)
		request.Payload = make([]byte, 8)
		frame := request.Bytes()
		nat.EchoReply(frame, mustParse(t, frame), 64)
		if err := headertest.Verify(frame); err != nil {
			t.Error(err)
		}
	})
}

func TestTranslateICMPErrorAllocatesNothing(t *testing.T) {
	frame, outer, inner, out, d := errorToTranslate(t, true)
	if n := testing.AllocsPerRun(100, func() {
		var again header.Packet
		header.ParseInner(frame, outer, &again)
		nat.TranslateICMPError(frame, outer, inner, out.Dst, out.Src, out, d)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func errorToTranslate(
	t testing.TB, v6 bool,
) (frame []byte, outer, inner *header.Packet, out *header.Tuple, d header.Delta) {
	router, local := "203.0.113.9", "10.0.0.2"
	if v6 {
		router, local = "2001:db8:9::9", "fd00::2"
	}
	e := ends[v6]
	frame = headertest.ICMPError(router, local, 3, 4, 1300, packet("tcp", e.source, e.backend).Bytes(), -1).Bytes()
	outer, inner = mustParse(t, frame), new(header.Packet)
	if drop := header.ParseInner(frame, outer, inner); drop != reason.None {
		t.Fatal(drop)
	}
	to := tuple(e.client, e.vip, header.ProtoTCP)
	return frame, outer, inner, &to, header.DeltaOf(&inner.Tuple, &to)
}

func BenchmarkTranslateICMPError(b *testing.B) {
	for _, v6 := range []bool{false, true} {
		b.Run(map[bool]string{false: "4", true: "6"}[v6], func(b *testing.B) {
			frame, outer, inner, out, d := errorToTranslate(b, v6)
			for b.Loop() {
				nat.TranslateICMPError(frame, outer, inner, out.Dst, out.Src, out, d)
			}
		})
	}
}
