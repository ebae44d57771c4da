package header_test

import (
	"slices"
	"testing"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

func TestIsICMPError(t *testing.T) {
	for icmpType := range 256 {
		if got, want := header.IsICMPError(false, uint8(icmpType)), slices.Contains([]int{3, 4, 5, 11, 12},
			icmpType); got != want {
			t.Errorf("ICMP type %d: %v", icmpType, got)
		}
		if got, want := header.IsICMPError(true, uint8(icmpType)), icmpType >= 1 && icmpType <= 4; got != want {
			t.Errorf("ICMPv6 type %d: %v", icmpType, got)
		}
	}
}

// A change of any bit of a message is detected, and, over IPv6, a change of an address.
func TestChecksumICMP(t *testing.T) {
	for _, name := range []string{"echo4", "echo6", "unreachable4", "unreachable6"} {
		frame := corpus()[name]
		var p header.Packet
		header.Parse(frame, &p)
		if !header.ChecksumICMP(frame, &p) {
			t.Errorf("%s does not verify", name)
		}
		for at := int(p.L4); at < int(p.End); at++ {
			f := slices.Clone(frame)
			f[at] ^= 4
			if header.ChecksumICMP(f, &p) {
				t.Errorf("%s verifies with byte %d changed", name, at)
			}
		}
		q := p
		q.Tuple.Src[15] ^= 1
		if header.ChecksumICMP(frame, &q) == p.Tuple.V6 {
			t.Errorf("%s: a changed address", name)
		}
		q = p
		q.Fragment = header.FirstFragment
		if header.ChecksumICMP(frame, &q) {
			t.Errorf("%s verifies as a fragment", name)
		}
	}
}

// innerOf parses the packet that an error quotes.
func innerOf(
	t *testing.T, v6 bool, quote []byte, change func(outer *headertest.Packet),
) (header.Packet, reason.Drop) {
	t.Helper()
	e := headertest.ICMPError("203.0.113.9", "198.51.100.7", 3, 4, 1400, corpus()["tcp4"], -1)
	if v6 {
		e = headertest.ICMPError("2001:db8:9::9", "2001:db8:1::7", 2, 0, 1400, corpus()["tcp6"], -1)
	}
	e.Payload = slices.Clone(quote)
	if change != nil {
		change(e)
	}
	frame := slices.Clip(e.Bytes())
	var outer, inner header.Packet
	if drop := header.Parse(frame, &outer); drop != reason.None {
		t.Fatal(drop)
	}
	return inner, header.ParseInner(frame, &outer, &inner)
}

// For every packet that Parse accepts, ParseInner reads the same tuple if it is quoted.
func TestParseInnerReadsWhatParseReads(t *testing.T) {
	for name, frame := range corpus() {
		var p header.Packet
		header.Parse(frame, &p)
		inner, drop := innerOf(t, p.Tuple.V6, headertest.IP(frame), nil)
		if header.IsICMPError(p.Tuple.V6, p.ICMPType) && p.Tuple.SrcPort == 0 && p.Fragment == header.NotFragment {
			if drop != reason.ICMPHeader {
				t.Errorf("%s, an error about an error: %v", name, drop)
			}
			continue
		}
		if drop != reason.None || inner.Tuple != p.Tuple || inner.Fragment != p.Fragment ||
			inner.L4-inner.L3 != p.L4-p.L3 {
			t.Errorf("%s: %v\ngot  %+v\nwant %+v", name, drop, inner, p)
		}
	}
}

func TestParseInnerRefuses(t *testing.T) {
	tcp4, tcp6 := headertest.IP(corpus()["tcp4"]), headertest.IP(corpus()["tcp6"])
	changed := func(b []byte, at int, v byte) []byte {
		b = slices.Clone(b)
		b[at] = v
		return b
	}
	ofType := func(v6 bool, icmpType uint8) []byte {
		p := headertest.Echo("192.0.2.1", "198.51.100.7", 1, 1, false)
		if v6 {
			p = headertest.Echo("2001:db8::1", "2001:db8:1::7", 1, 1, false)
		}
		p.ICMPType = icmpType
		return headertest.IP(p.Bytes())
	}
	for _, c := range []struct {
		name  string
		v6    bool
		quote []byte
		want  reason.Drop
	}{
		{"nothing", false, nil, reason.ICMPHeader},
		{"nothing6", true, nil, reason.ICMPHeader},
		{"version 6 in ICMP", false, tcp6, reason.ICMPHeader},
		{"version 4 in ICMPv6", true, tcp4, reason.ICMPHeader},
		{"ihl 4", false, changed(tcp4, 0, 0x44), reason.ICMPHeader},
		{"ihl past the quote", false, changed(tcp4, 0, 0x4f), reason.ICMPHeader},
		{"wrong header checksum", false, changed(tcp4, 10, 0x99), reason.None},
		{"seven bytes of transport", false, tcp4[:27], reason.ICMPHeader},
		{"seven bytes of transport6", true, tcp6[:47], reason.ICMPHeader},
		{"endless chain", true, changed(changed(tcp6, 6, 60), 40, 60), reason.ICMPHeader},
		{"error", false, ofType(false, 11), reason.ICMPHeader},
		{"error6", true, ofType(true, 3), reason.ICMPHeader},
		{"router advertisement", true, ofType(true, 134), reason.ICMPType},
		{"timestamp", false, ofType(false, 13), reason.ICMPType},
		{"seven bytes of sctp", false, headertest.IP(corpus()["sctp4 init"])[:27], reason.ICMPHeader},
		{"udp-lite6", true, changed(tcp6, 6, 136), reason.Protocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, got := innerOf(t, c.v6, c.quote, nil); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
	t.Run("in a fragment", func(t *testing.T) {
		long := headertest.ICMPError("203.0.113.9", "198.51.100.7", 3, 4, 1400, corpus()["tcp4"], -1).Bytes()
		frame := headertest.Split(long, 40, 1)[0] // header, quoted header and 12 bytes: enough if it were no fragment
		var outer, inner header.Packet
		if drop := header.Parse(frame, &outer); drop != reason.None {
			t.Fatal(drop)
		}
		if got := header.ParseInner(frame, &outer, &inner); got != reason.ICMPHeader {
			t.Errorf("%v", got)
		}
	})
}

// The quote's length field is not compared with the quoted bytes.
func TestParseInnerEndsWithTheQuote(t *testing.T) {
	tcp4 := headertest.IP(corpus()["tcp4 payload"])
	for cut := 28; cut <= len(tcp4); cut++ {
		inner, drop := innerOf(t, false, tcp4[:cut], nil)
		if drop != reason.None || int(inner.End-inner.L3) != cut {
			t.Errorf("cut to %d: %v, %d bytes", cut, drop, inner.End-inner.L3)
		}
	}
}

// A length field below RFC 4884's minimum is ignored.
func TestParseInnerIgnoresShortLengthField(t *testing.T) {
	tcp4 := headertest.IP(corpus()["tcp4"])
	inner, drop := innerOf(t, false, tcp4, func(e *headertest.Packet) { e.ICMPRest = 3 << 16 })
	if drop != reason.None || int(inner.End-inner.L3) != len(tcp4) {
		t.Errorf("%v, %d bytes", drop, inner.End-inner.L3)
	}
}
