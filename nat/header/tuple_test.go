package header_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"sluice.dev/sluice/nat/header"
)

func TestAddr(t *testing.T) {
	for _, s := range []string{"192.0.2.1", "0.0.0.0", "2001:db8::1", "::", "::1"} {
		want := netip.MustParseAddr(s)
		a := header.AddrFrom(want)
		if a.Netip() != want || a.String() != s || a.Is4() != want.Is4() {
			t.Errorf("%s became %v", s, a)
		}
		if want.Is4() && (header.AddrFrom4(want.As4()) != a || a.As4() != want.As4()) {
			t.Errorf("%s: four bytes became %v", s, header.AddrFrom4(want.As4()))
		}
	}
	if header.AddrFrom(netip.MustParseAddr("::ffff:192.0.2.1")) != header.AddrFrom(netip.MustParseAddr("192.0.2.1")) {
		t.Error("a mapped address is not its IPv4 address")
	}
}

// residue returns a sum modulo 65,535, in which both forms of zero are equal.
func residue(v int) int { return (v%65535 + 65535) % 65535 }

// The delta equals the difference of the sums, for every protocol over the bytes that its checksum
// covers.
func TestDeltaOf(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	sum := func(a header.Addr) (s int) {
		for i, v := range a {
			s += int(v) << (8 * (1 - i%2))
		}
		return s
	}
	random := func(proto uint8, v6 bool) (u header.Tuple) {
		u = header.Tuple{Proto: proto, V6: v6, SrcPort: uint16(r.Uint32()), DstPort: uint16(r.Uint32())}
		for _, a := range []*header.Addr{&u.Src, &u.Dst} {
			var b [16]byte
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			*a = b
			if !v6 {
				*a = header.AddrFrom4([4]byte(b[:4]))
			}
		}
		if proto == header.ProtoICMP || proto == header.ProtoICMPv6 {
			u.DstPort = u.SrcPort
		}
		return u
	}
	for range 20_000 {
		proto := []uint8{header.ProtoTCP, header.ProtoUDP, header.ProtoICMP, header.ProtoICMPv6}[r.IntN(4)]
		v6 := proto == header.ProtoICMPv6 || proto != header.ProtoICMP && r.IntN(2) == 0
		in, out := random(proto, v6), random(proto, v6)
		addrs := sum(out.Src) + sum(out.Dst) - sum(in.Src) - sum(in.Dst)
		l4 := addrs + int(out.SrcPort) + int(out.DstPort) - int(in.SrcPort) - int(in.DstPort)
		switch proto {
		case header.ProtoICMP:
			l4 = int(out.SrcPort) - int(in.SrcPort)
		case header.ProtoICMPv6:
			l4 = addrs + int(out.SrcPort) - int(in.SrcPort)
		}
		d, back := header.DeltaOf(&in, &out), header.DeltaOf(&out, &in)
		if residue(int(d.IP)) != residue(addrs) || residue(int(d.L4)) != residue(l4) {
			t.Fatalf("delta %+v from %+v to %+v", d, in, out)
		}
		if rev := d.Reverse(); residue(int(rev.IP)) != residue(int(back.IP)) ||
			residue(int(rev.L4)) != residue(int(back.L4)) {
			t.Fatalf("reverse %+v, but the other direction is %+v", rev, back)
		}
		reversed := in.Reverse()
		if reversed.Reverse() != in || reversed.Src != in.Dst || reversed.DstPort != in.SrcPort {
			t.Fatalf("reverse of %+v is %+v", in, reversed)
		}
	}
}
