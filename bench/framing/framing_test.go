package framing

import (
	"bytes"
	"testing"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// TestAgainstHeadertest writes packets that headertest writes, which has its own arithmetic.
func TestAgainstHeadertest(t *testing.T) {
	for _, tc := range []struct {
		name   string
		packet *headertest.Packet
	}{
		{"TCP over IPv4", headertest.TCP("192.0.2.1:1024", "198.51.100.7:80", header.TCPSYN)},
		{"UDP over IPv4, odd", headertest.UDP("192.0.2.1:1024", "198.51.100.7:53", "odd")},
		{"TCP over IPv6", headertest.TCP("[2001:db8::1]:1024", "[2001:db8:f::7]:80", header.TCPACK)},
		{"UDP over IPv6", headertest.UDP("[2001:db8::1]:1024", "[2001:db8:f::7]:53", "even")},
		{"UDP whose sum is zero", headertest.UDP("192.0.2.1:1024", "198.51.100.7:53", "\x0f\x69")},
		{"ICMPv6", headertest.Echo("2001:db8::1", "2001:db8:f::7", 1, 2, false)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := tc.packet.Bytes()
			got := bytes.Clone(want)
			l3 := got[header.EthernetBytes:]
			addresses, l4, protocol := l3[12:20], l3[header.IPv4Bytes:], l3[9]
			if l3[0]>>4 == 6 {
				addresses, l4, protocol = l3[8:40], l3[header.IPv6Bytes:], l3[6]
			}
			if sum := Sum(l4, addresses, protocol); sum != 0xffff {
				t.Errorf("the sum of a correct packet is %#04x", sum)
			}
			half := len(addresses) / 2
			src, dst := bytes.Clone(addresses[:half]), bytes.Clone(addresses[half:])
			if half == 4 {
				l3[8], l3[10], l3[11] = 0, 0, 0
				IPv4(l3, protocol, src, dst, len(l4))
			} else {
				clear(l3[:header.IPv6Bytes])
				IPv6(l3, protocol, want[header.EthernetBytes+7], src, dst, len(l4))
			}
			Seal(l4, addresses, protocol)
			if !bytes.Equal(got[header.EthernetBytes+header.IPv4Bytes:], want[header.EthernetBytes+header.IPv4Bytes:]) {
				t.Errorf("written\n% x, want\n% x", got, want)
			}
			if err := headertest.Verify(got); err != nil {
				t.Error(err)
			}
		})
	}
}
