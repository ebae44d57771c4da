package nat_test

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

var gateway = map[bool]string{false: "198.51.100.7", true: "2001:db8:1::7"}

func build(t testing.TB, orig []byte, kind nat.ErrorKind, mtu uint16) ([]byte, bool) {
	t.Helper()
	p := mustParse(t, orig)
	dst := bytes.Repeat([]byte{0xee}, 2048)
	n, ok := nat.BuildError(dst, orig, p, kind, header.AddrFrom(netip.MustParseAddr(gateway[p.Tuple.V6])), mtu)
	if !ok && n != 0 {
		t.Errorf("%d bytes of an error that may not be sent", n)
	}
	if !bytes.Equal(dst[n:], bytes.Repeat([]byte{0xee}, len(dst)-n)) {
		t.Error("bytes after the frame were written")
	}
	return dst[:n], ok
}

// gopacket, which shares no code with this package, decodes the errors that BuildError builds.
func TestBuildError(t *testing.T) {
	for _, c := range []struct {
		name   string
		kind   nat.ErrorKind
		type4  layers.ICMPv4TypeCode
		type6  layers.ICMPv6TypeCode
		mtu    uint16
		hasMTU bool
	}{
		{"time exceeded", nat.TimeExceeded, layers.CreateICMPv4TypeCode(11, 0), layers.CreateICMPv6TypeCode(3, 0), 1400,
			false},
		{"fragmentation needed", nat.FragmentationNeeded, layers.CreateICMPv4TypeCode(3, 4),
			layers.CreateICMPv6TypeCode(2, 0), 1400, true},
		{"port unreachable", nat.PortUnreachable, layers.CreateICMPv4TypeCode(3, 3), layers.CreateICMPv6TypeCode(1, 4),
			1400, false},
		{"host unreachable", nat.HostUnreachable, layers.CreateICMPv4TypeCode(3, 1), layers.CreateICMPv6TypeCode(1, 0),
			1400, false},
		{"prohibited", nat.AdminProhibited, layers.CreateICMPv4TypeCode(3, 13), layers.CreateICMPv6TypeCode(1, 1), 1400,
			false},
	} {
		for v6, e := range ends {
			for _, payload := range []int{0, 1, 7, 520, 521, 1300, 1452} {
				orig := headertest.UDP(e.client, e.vip, strings.Repeat("x", payload))
				orig.VLAN, orig.Padding = []uint16{5}, 9
				frame, ok := build(t, orig.Bytes(), c.kind, c.mtu)
				if !ok {
					t.Fatalf("%s, IPv6 %v, %d bytes: not built", c.name, v6, payload)
				}
				if err := headertest.Verify(frame); err != nil {
					t.Errorf("%s, IPv6 %v, %d bytes: %v", c.name, v6, payload, err)
				}
				icmp := decode(t, frame, v6)
				var rest []byte
				switch l := icmp.(type) {
				case *layers.ICMPv4:
					rest = l.Contents[4:8]
					if l.TypeCode != c.type4 {
						t.Errorf("%s: %v", c.name, l.TypeCode)
					}
				case *layers.ICMPv6:
					rest = append(bytes.Clone(l.Contents), l.Payload...)[4:8]
					if l.TypeCode != c.type6 {
						t.Errorf("%s: %v", c.name, l.TypeCode)
					}
				}
				want := []byte{0, 0, 0, 0}
				if c.hasMTU {
					want = []byte{0, 0, 1400 >> 8, 1400 & 0xff}
				}
				if !bytes.Equal(rest, want) {
					t.Errorf("%s, IPv6 %v: second word %x, want %x", c.name, v6, rest, want)
				}
				checkQuote(t, frame, orig.Bytes(), v6)
			}
		}
	}
}

// decode checks the other layers of a frame and returns its ICMP layer.
func decode(t *testing.T, frame []byte, v6 bool) gopacket.Layer {
	t.Helper()
	pkt := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	eth := pkt.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
	if !bytes.Equal(append(eth.SrcMAC, eth.DstMAC...), make([]byte, 12)) {
		t.Errorf("Ethernet addresses %v %v", eth.SrcMAC, eth.DstMAC)
	}
	client := netip.MustParseAddrPort(ends[v6].client).Addr().String()
	if v6 {
		ip := pkt.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
		if ip.SrcIP.String() != gateway[v6] || ip.DstIP.String() != client || ip.HopLimit != 64 ||
			int(ip.Length) != len(frame)-54 {
			t.Errorf("IPv6 header %+v", ip)
		}
		return pkt.Layer(layers.LayerTypeICMPv6)
	}
	ip := pkt.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	if ip.SrcIP.String() != gateway[v6] || ip.DstIP.String() != client || ip.TTL != 64 || ip.TOS != 0xc0 ||
		int(ip.Length) != len(frame)-14 {
		t.Errorf("IPv4 header %+v", ip)
	}
	return pkt.Layer(layers.LayerTypeICMPv4)
}

// checkQuote checks that an error quotes as much as the RFCs allow, without tags and Ethernet
// padding.
func checkQuote(t *testing.T, frame, orig []byte, v6 bool) {
	t.Helper()
	limit, headers := 576, 28
	if v6 {
		limit, headers = 1280, 48
	}
	want := headertest.IP(orig)
	want = want[:min(len(want), limit-headers)]
	if got := frame[14+headers:]; !bytes.Equal(got, want) {
		t.Errorf("quote of %d bytes, want %d\n%x\n%x", len(got), len(want), got, want)
	}
}

func TestBuildErrorRefuses(t *testing.T) {
	e4, e6 := ends[false], ends[true]
	multicast := headertest.UDP(e4.client, e4.vip, "x")
	multicast.DstMAC = [6]byte{1, 0, 0x5e, 0, 0, 1}
	long := strings.Repeat("x", 200)
	for name, orig := range map[string][]byte{
		"an ICMP error": headertest.ICMPError("203.0.113.9", "198.51.100.7", 11, 0, 0,
			packet("udp", e4.vip, e4.client).Bytes(), -1).Bytes(),
		"a redirect": headertest.ICMPError("203.0.113.9", "198.51.100.7", 5, 0, 0,
			packet("udp", e4.vip, e4.client).Bytes(), -1).Bytes(),
		"an ICMPv6 error": headertest.ICMPError("2001:db8:9::9", "2001:db8:1::7", 3, 0, 0,
			packet("udp", e6.vip, e6.client).Bytes(), -1).Bytes(),
		"an unassigned ICMPv6 error": headertest.ICMPError("2001:db8:9::9", "2001:db8:1::7", 100, 0, 0,
			packet("udp", e6.vip, e6.client).Bytes(), -1).Bytes(),
		"an ICMPv6 redirect": headertest.ICMPError("2001:db8:9::9", "2001:db8:1::7", 137, 0, 0,
			packet("udp", e6.vip, e6.client).Bytes(), -1).Bytes(),
		"a later fragment":      headertest.Split(headertest.UDP(e4.client, e4.vip, long).Bytes(), 64, 1)[1],
		"a later IPv6 fragment": headertest.Split(headertest.UDP(e6.client, e6.vip, long).Bytes(), 64, 1)[1],
		"an Ethernet multicast": multicast.Bytes(),
	} {
		if _, ok := build(t, orig, nat.TimeExceeded, 0); ok {
			t.Errorf("an error about %s", name)
		}
	}
	for name, orig := range map[string][]byte{
		"an echo request":  packet("icmp", e4.client, e4.vip).Bytes(),
		"an echo request6": packet("icmp", e6.client, e6.vip).Bytes(),
		"a first fragment": headertest.Split(headertest.UDP(e4.client, e4.vip, long).Bytes(), 64, 1)[0],
	} {
		if _, ok := build(t, orig, nat.TimeExceeded, 0); !ok {
			t.Errorf("no error about %s", name)
		}
	}
}

// Addresses to which no error may be sent, and which no error may quote, even if a caller did not
// filter them.
func TestBuildErrorRefusesAddresses(t *testing.T) {
	for v6, e := range ends {
		bad := []string{"0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "169.254.1.1"}
		if v6 {
			bad = []string{"::", "::1", "ff02::1", "fe80::1"}
		}
		orig := packet("udp", e.client, e.vip).Bytes()
		for _, a := range bad {
			addr := header.AddrFrom(netip.MustParseAddr(a))
			src, dst := *mustParse(t, orig), *mustParse(t, orig)
			src.Tuple.Src, dst.Tuple.Dst = addr, addr
			for _, p := range []*header.Packet{&src, &dst} {
				if _, ok := nat.BuildError(make([]byte, 2048), orig, p, nat.TimeExceeded, header.Addr{}, 0); ok {
					t.Errorf("an error about a packet %v to %v", p.Tuple.Src, p.Tuple.Dst)
				}
			}
		}
	}
}

// A small buffer gets a shorter quote, and no error if there is no room for the header and 8 bytes.
func TestBuildErrorFitsItsBuffer(t *testing.T) {
	for v6, e := range ends {
		orig := packet("tcp", e.client, e.vip).Bytes()
		p := mustParse(t, orig)
		least := 14 + 28 + 28
		if v6 {
			least = 14 + 48 + 48
		}
		for size := range least + 20 {
			n, ok := nat.BuildError(make([]byte, size), orig, p, nat.TimeExceeded,
				header.AddrFrom(netip.MustParseAddr(gateway[v6])), 0)
			if ok != (size >= least) || ok && n != size {
				t.Errorf("IPv6 %v, %d bytes of room: %d, %v", v6, size, n, ok)
			}
		}
	}
}

func TestBuildErrorAllocatesNothing(t *testing.T) {
	dst := make([]byte, 2048)
	for v6, e := range ends {
		orig := packet("tcp", e.client, e.vip).Bytes()
		p := mustParse(t, orig)
		src := header.AddrFrom(netip.MustParseAddr(gateway[v6]))
		if n := testing.AllocsPerRun(100, func() {
			nat.BuildError(dst, orig, p, nat.PortUnreachable, src, 0)
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}
