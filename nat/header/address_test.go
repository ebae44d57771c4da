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

// Unicast agrees with the list of prefixes on every IPv4 /24, and at the edges of the IPv6 ones.
func TestUnicast(t *testing.T) {
	for i := range uint32(1 << 24) {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], i<<8|1)
		a := header.AddrFrom4(b)
		if i%251 != 0 && b[0] != 169 { // all of 169/8, and a scattering of the rest
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
