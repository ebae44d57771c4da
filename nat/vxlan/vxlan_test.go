package vxlan

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

func addr(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }

// TestHeader compares whole headers with their bytes. TestDirectReturn (test/e2e) gives such
// packets to the kernel.
func TestHeader(t *testing.T) {
	for _, tt := range []struct {
		name, src, dst string
		p              Packet
		want           string
	}{
		{"IPv4", "10.0.1.2", "10.0.1.21",
			Packet{Bytes: 40, TOS: 0xb8, DF: true, ID: 7, Source: 0xc123},
			"45b8005a0000400040110000" + "0a0001020a000115" + "c12312b500460000" + "0800000012345600" +
				"02736c756301" + "02736c756302" + "0800"},
		{"IPv4, may be fragmented, IPv6 inside", "10.0.1.2", "10.0.1.21",
			Packet{Bytes: 1400, V6: true, ID: 0xabcd, Source: 0xffff},
			"450005aaabcd000040110000" + "0a0001020a000115" + "ffff12b505960000" + "0800000012345600" +
				"02736c756301" + "02736c756302" + "86dd"},
		{"IPv6", "2001:db8::2", "2001:db8::15",
			Packet{Bytes: 1400, V6: true, TOS: 0x2d, DF: true, Source: 0xc000},
			"62d00000" + "05961140" + "20010db8000000000000000000000002" + "20010db8000000000000000000000015" +
				"c00012b505960000" + "0800000012345600" + "02736c756301" + "02736c756302" + "86dd"},
	} {
		h := New(Tunnel{VNI: 0x123456, Port: Port}, addr(tt.src), addr(tt.dst), 64)
		frame := make([]byte, header.EthernetBytes+h.Bytes()+int(tt.p.Bytes))
		frame[12], frame[13] = 0x08, 0x00
		if h.V6() {
			frame[12], frame[13] = 0x86, 0xdd
		}
		b := frame[header.EthernetBytes:]
		var headers [MaxBytes]byte
		h.Put(&headers, &tt.p)
		copy(b, headers[MaxBytes-h.Bytes():])
		if err := headertest.Verify(frame); err != nil && !h.V6() { // over IPv6 Verify wants a UDP checksum
			t.Errorf("%s: %v", tt.name, err)
		}
		if !h.V6() {
			b[10], b[11] = 0, 0 // Verify has checked it
		}
		if got := hex.EncodeToString(b[:h.Bytes()]); got != tt.want {
			t.Errorf("%s:\n%s, want\n%s", tt.name, got, tt.want)
		}
		if h.Bytes() > MaxBytes || h.V6() && h.Bytes() != MaxBytes {
			t.Errorf("%s: %d bytes, the most is %d", tt.name, h.Bytes(), MaxBytes)
		}
		if n := testing.AllocsPerRun(100, func() { h.Put(&headers, &tt.p) }); n != 0 {
			t.Errorf("%s: %v allocations", tt.name, n)
		}
	}
}

func TestSourcePort(t *testing.T) {
	for hash, want := range map[uint64]uint16{0: 49152, ^uint64(0): 65535, 0x1234 << 48: 0xd234} {
		if got := SourcePort(hash); got != want {
			t.Errorf("hash %x: %d, want %d", hash, got, want)
		}
	}
}
