package header_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// withAddresses returns two frames: one from a, one to a.
func withAddresses(a string) (src, dst []byte) {
	addr := netip.MustParseAddr(a)
	if addr.Is4() {
		src = patch(headertest.UDP(client4, vip4, "x").Bytes(), 26, addr.AsSlice()...)
		return src, patch(headertest.UDP(client4, vip4, "x").Bytes(), 30, addr.AsSlice()...)
	}
	src = patch(headertest.UDP(client6, vip6, "x").Bytes(), 22, addr.AsSlice()...)
	return src, patch(headertest.UDP(client6, vip6, "x").Bytes(), 38, addr.AsSlice()...)
}

// Unicast agrees with the list of prefixes on every IPv4 /24, and at the edges of the IPv6
// prefixes.
func TestUnicast(t *testing.T) {
	for i := range uint32(1 << 24) {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], i<<8|1)
		a := header.AddrFrom4(b)
		if i%251 != 0 && b[0] != 169 { // all of 169/8, and a sample of the rest
			continue
		}
		if got, want := header.Unicast(&a), !martian(b[:]); got != want {
			t.Fatalf("%v: %v, want %v", a, got, want)
		}
	}
	for _, p := range martians {
		if p.Addr().Is4() {
			continue
		}
		for _, addr := range []netip.Addr{p.Addr(), p.Addr().Next(), p.Addr().Prev(), last(p), last(p).Next()} {
			if !addr.IsValid() || addr.Is4In6() {
				continue
			}
			a := header.AddrFrom(addr)
			if got, want := header.Unicast(&a), !martian(addr.AsSlice()); got != want {
				t.Errorf("%v: %v, want %v", addr, got, want)
			}
		}
	}
}

// last returns a prefix's last address.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().As16()
	for i := p.Bits(); i < 128; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom16(b)
}

// TestPrefix: hosts of one site have the same prefix, and different sites of either family have
// different ones.
func TestPrefix(t *testing.T) {
	type words struct{ hi, lo uint64 }
	of := func(s string) (w words) {
		a := header.AddrFrom(netip.MustParseAddr(s))
		w.hi, w.lo = a.Prefix(header.SitePrefix4, header.SitePrefix6)
		return w
	}
	for _, same := range [][2]string{
		{"198.51.100.1", "198.51.100.254"}, {"2001:db8:0:1200::1", "2001:db8:0:12ff:ffff::"},
	} {
		if of(same[0]) != of(same[1]) {
			t.Errorf("%s and %s are of one site: %x, %x", same[0], same[1], of(same[0]), of(same[1]))
		}
	}
	seen := map[words]string{}
	for _, s := range []string{"198.51.100.1", "198.51.101.1", "199.51.100.1", "2001:db8:0:1200::1",
		"2001:db8:0:1300::1", "2001:db9:0:1200::1", "64:ff9b::1"} {
		if other := seen[of(s)]; other != "" {
			t.Errorf("%s and %s are of two sites, with one prefix", s, other)
		}
		seen[of(s)] = s
	}
	a := header.AddrFrom(netip.MustParseAddr("198.51.100.1"))
	if hi, lo := a.Prefix(32, 128); hi != 0 || lo != 0xffff_c633_6401 {
		t.Errorf("all bits are %x %x", hi, lo)
	}
}
