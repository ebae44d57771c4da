package nat_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"

	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// slowSum is the sum of words as in RFC 1071, modulo 65,535.
func slowSum(b []byte) (s int) {
	for i, v := range b {
		s += int(v) << (8 * (1 - i%2))
	}
	return s % 65535
}

// faults returns the residues of a packet's checksums: zero if a checksum is right. A fragment has
// only a part of the covered bytes; its residue must not change either.
func faults(frame []byte, p *header.Packet) (ip, transport int) {
	b := frame[p.L4:p.End]
	if !p.Tuple.V6 {
		ip = slowSum(frame[p.L3:p.L4])
		if p.Tuple.Proto == header.ProtoICMP {
			return ip, slowSum(b)
		}
		if p.Tuple.Proto == header.ProtoSCTP {
			return ip, sctpFault(b)
		}
		return ip, (slowSum(frame[p.L3+12:p.L3+20]) + slowSum(b)) % 65535
	}
	if p.Tuple.Proto == header.ProtoSCTP {
		return 0, sctpFault(b)
	}
	return 0, (slowSum(frame[p.L3+8:p.L3+40]) + slowSum(b)) % 65535
}

// sctpFault returns the bits in which the CRC of an SCTP packet is wrong.
func sctpFault(b []byte) int {
	zeroed := slices.Clone(b)
	copy(zeroed[8:], make([]byte, 4))
	return int(binary.LittleEndian.Uint32(b[8:]) ^ crc32.Checksum(zeroed, crc32.MakeTable(crc32.Castagnoli)))
}

// mayChange marks the bytes that translation may change.
func mayChange(p *header.Packet, mark func(from, n int)) {
	l3, l4 := int(p.L3), int(p.L4)
	if p.Tuple.V6 {
		mark(l3+7, 1)
		mark(l3+8, 32)
	} else {
		mark(l3+8, 1)
		mark(l3+10, 10)
	}
	if p.Fragment == header.LaterFragment {
		return
	}
	switch p.Tuple.Proto {
	case header.ProtoTCP:
		mark(l4, 4)
		mark(l4+16, 2)
	case header.ProtoUDP:
		mark(l4, 4)
		mark(l4+6, 2)
	case header.ProtoSCTP:
		mark(l4, 4)
		mark(l4+8, 4)
	default:
		mark(l4+2, 2)
		if isEcho(p) {
			mark(l4+4, 2)
		}
	}
}

// unchanged fails on a byte that differs and was not marked.
func unchanged(t *testing.T, before, after []byte, packets ...*header.Packet) {
	t.Helper()
	allowed := make([]bool, len(before))
	for _, p := range packets {
		mayChange(p, func(from, n int) {
			for i := from; i < min(from+n, len(allowed)); i++ {
				allowed[i] = true
			}
		})
	}
	for i := range before {
		if before[i] != after[i] && !allowed[i] {
			t.Fatalf("byte %d changed from %#02x to %#02x\nbefore %x\nafter  %x", i, before[i], after[i], before, after)
		}
	}
}

// target makes a tuple of p's family from any bytes, with addresses and ports that Parse accepts.
func target(p *header.Packet, seed []byte) header.Tuple {
	var b [36]byte
	copy(b[:], seed)
	out := header.Tuple{Proto: p.Tuple.Proto, V6: p.Tuple.V6}
	if out.V6 {
		out.Src, out.Dst = header.Addr(b[0:16]), header.Addr(b[16:32])
		out.Src[0], out.Dst[0] = 0xfd, 0x20
	} else {
		out.Src = header.AddrFrom4([4]byte{10, b[1], b[2], b[3]})
		out.Dst = header.AddrFrom4([4]byte{192, 0, b[6], b[7]})
	}
	if p.Fragment == header.LaterFragment {
		return out
	}
	out.SrcPort, out.DstPort = binary.BigEndian.Uint16(b[32:]), binary.BigEndian.Uint16(b[34:])
	if p.Tuple.Proto != header.ProtoICMP && p.Tuple.Proto != header.ProtoICMPv6 {
		out.SrcPort, out.DstPort = max(out.SrcPort, 1), max(out.DstPort, 1)
	} else {
		out.DstPort = out.SrcPort
	}
	return out
}

func seeds() [][]byte {
	var all [][]byte
	for _, e := range ends {
		for _, kind := range kinds {
			p := packet(kind, e.client, e.vip)
			all = append(all, p.Bytes())
			p.Payload = bytes.Repeat([]byte{0x5a}, 100)
			all = append(all, headertest.Split(p.Bytes(), 64, 0xabcd)...)
			p.VLAN, p.Padding, p.NoChecksum = []uint16{1, 2}, 5, true
			all = append(all, p.Bytes())
		}
	}
	for _, e := range ends {
		for _, chunk := range []uint8{header.SCTPInit, header.SCTPInitAck, header.SCTPAbort, header.SCTPCookieEcho} {
			all = append(all, headertest.SCTP(e.client, e.vip, chunk).Bytes())
		}
	}
	return all
}

// FuzzTranslate: translation of any packet that parses changes only addresses, ports, TTL and
// checksums. The result parses as the new tuple, wrong checksums stay wrong by the same difference,
// and right ones stay right.
func FuzzTranslate(f *testing.F) {
	for _, frame := range seeds() {
		f.Add(frame, []byte("any thirty-six bytes make the target"))
		f.Add(frame, bytes.Repeat([]byte{0xff}, 36))
		f.Add(frame, []byte{})
	}
	f.Fuzz(func(t *testing.T, data, seed []byte) {
		frame := slices.Clip(slices.Clone(data))
		if len(frame) >= 34 && frame[12] == 0x08 && frame[13] == 0 {
			headertest.SealIPv4(frame)
		}
		var p header.Packet
		if header.Parse(frame, &p) != reason.None || p.TTL == 0 {
			return
		}
		icmp := p.Tuple.Proto == header.ProtoICMP || p.Tuple.Proto == header.ProtoICMPv6
		if icmp && p.Fragment != header.LaterFragment && !isEcho(&p) {
			return
		}
		out := target(&p, seed)
		before := slices.Clone(frame)
		valid := headertest.Verify(before) == nil
		ip, transport := faults(frame, &p)
		noChecksum := p.Tuple.Proto == header.ProtoUDP && p.Fragment != header.LaterFragment &&
			frame[p.L4+6]|frame[p.L4+7] == 0

		nat.DecrementTTL(frame, &p)
		nat.Translate(frame, &p, &out, header.DeltaOf(&p.Tuple, &out))

		unchanged(t, before, frame, &p)
		ip2, transport2 := faults(frame, &p)
		if ip2 != ip {
			t.Fatalf("IPv4 header checksum was off by %d, is by %d", ip, ip2)
		}
		if noChecksum != (p.Tuple.Proto == header.ProtoUDP && p.Fragment != header.LaterFragment &&
			frame[p.L4+6]|frame[p.L4+7] == 0) {
			t.Fatal("a UDP checksum was added or removed")
		}
		if transport2 != transport && !noChecksum && p.Fragment != header.LaterFragment {
			t.Fatalf("transport checksum was off by %d, is by %d\n%x\n%x", transport, transport2, before, frame)
		}
		if err := headertest.Verify(frame); valid && err != nil {
			t.Fatalf("%v\n%x\n%x", err, before, frame)
		}
		var after header.Packet
		if drop := header.Parse(frame, &after); drop != reason.None || after.Tuple != out || after.TTL != p.TTL-1 {
			t.Fatalf("after: %v, %+v, want %+v", drop, after, out)
		}
	})
}

func isEcho(p *header.Packet) bool {
	switch p.ICMPType {
	case header.ICMPEchoRequest, header.ICMPEchoReply:
		return !p.Tuple.V6
	case header.ICMPv6EchoRequest, header.ICMPv6EchoReply:
		return p.Tuple.V6
	}
	return false
}

// FuzzICMPInner quotes any bytes in an error with a right checksum. If ParseInner accepts the
// quote, the translated error has a right ICMP checksum and the new inner tuple, and no other bytes
// change.
func FuzzICMPInner(f *testing.F) {
	for _, frame := range seeds() {
		ip := headertest.IP(frame)
		v6 := ip[0]>>4 == 6
		for _, icmpType := range []uint8{1, 2, 3, 4, 11, 12} {
			f.Add(ip, v6, icmpType, uint32(1300))
			f.Add(ip[:len(ip)*2/3], v6, icmpType, uint32(0x00200020))
		}
	}
	f.Fuzz(func(t *testing.T, quote []byte, v6 bool, icmpType uint8, rest uint32) {
		quote = quote[:min(len(quote), 1400)]
		if !header.IsICMPError(v6, icmpType) {
			return
		}
		d := packet("icmp", ends[v6].client, ends[v6].vip)
		d.ICMPType, d.ICMPRest, d.Payload = icmpType, rest, quote
		frame := slices.Clip(d.Bytes())
		outer := mustParse(t, frame)
		var inner header.Packet
		if header.ParseInner(frame, outer, &inner) != reason.None {
			return
		}
		if inner.L3 != outer.L4+8 || inner.L4 < inner.L3+20 || inner.End < inner.L4 || inner.End > outer.End {
			t.Fatalf("offsets %+v in %+v", inner, outer)
		}
		out := target(&inner, quote)
		before := slices.Clone(frame)
		src, dst := out.Dst, out.Src
		nat.TranslateICMPError(frame, outer, &inner, src, dst, &out, header.DeltaOf(&inner.Tuple, &out))

		unchanged(t, before, frame, outer, &inner)
		after := mustParse(t, frame)
		if !header.ChecksumICMP(frame, after) {
			t.Fatalf("ICMP checksum is wrong\n%x\n%x", before, frame)
		}
		if after.Tuple.Src != src || after.Tuple.Dst != dst {
			t.Fatalf("outer addresses %+v", after.Tuple)
		}
		var again header.Packet
		if drop := header.ParseInner(frame, after, &again); drop != reason.None || again.Tuple != out {
			t.Fatalf("inner after: %v, %+v, want %+v", drop, again.Tuple, out)
		}
	})
}
