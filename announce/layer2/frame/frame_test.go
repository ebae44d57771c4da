package frame

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

var (
	ours, theirs = MAC{2, 0, 0, 0, 0, 1}, MAC{2, 0, 0, 0, 0, 2}
	vip4, vip6   = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::a:b:c:1")
	peer4, peer6 = netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("fe80::9")
	zero4, zero6 = netip.IPv4Unspecified(), netip.IPv6Unspecified()
)

// A reply for another gateway names that one's address and has this one's as the Ethernet source.
func TestSentBy(t *testing.T) {
	t.Parallel()
	by := MAC{2, 0, 0, 0, 0, 9}
	reply := SentBy(by, ARPReply(theirs, Packet{Asks: vip4, From: peer4, FromMAC: ours}))
	_, from, _ := Payload(reply, ARP)
	if p, ok := ReadARP(reply); !ok || p.FromMAC != theirs || p.Claims != vip4 || from != by {
		t.Errorf("ARP: %+v from %v", p, from)
	}
	advertisement := SentBy(by, Advertisement(theirs, Packet{Asks: vip6, From: peer6, FromMAC: ours}))
	_, from, _ = Payload(advertisement, IPv6)
	if p, ok := ReadNDP(advertisement); !ok || p.FromMAC != theirs || p.Claims != vip6 || from != by {
		t.Errorf("neighbour discovery: %+v from %v", p, from)
	}
}

// An independent decoder reads the made frames.
func TestMadeFrames(t *testing.T) {
	t.Parallel()
	announcements := ARPAnnouncements(ours, vip4)
	for name, c := range map[string]struct {
		frame          []byte
		to             MAC
		operation      uint16
		sender, target netip.Addr
		targetMAC      MAC
	}{
		"reply": {ARPReply(ours, Packet{Asks: vip4, From: peer4, FromMAC: theirs}), theirs, 2, vip4, peer4,
			theirs},
		"reply to a probe": {ARPReply(ours, Packet{Asks: vip4, From: zero4, FromMAC: theirs}), theirs, 2, vip4, zero4,
			theirs},
		"announcement": {announcements[0], Broadcast, 1, vip4, vip4, MAC{}},
		"as a reply":   {announcements[1], Broadcast, 2, vip4, vip4, Broadcast},
	} {
		p := gopacket.NewPacket(c.frame, layers.LayerTypeEthernet, gopacket.Default)
		eth, _ := p.LinkLayer().(*layers.Ethernet)
		a, ok := p.Layer(layers.LayerTypeARP).(*layers.ARP)
		if !ok || !bytes.Equal(eth.DstMAC, c.to[:]) || !bytes.Equal(eth.SrcMAC, ours[:]) ||
			a.Operation != c.operation || !bytes.Equal(a.SourceHwAddress, ours[:]) ||
			!bytes.Equal(a.SourceProtAddress, c.sender.AsSlice()) ||
			!bytes.Equal(a.DstProtAddress, c.target.AsSlice()) || !bytes.Equal(a.DstHwAddress, c.targetMAC[:]) {
			t.Errorf("%s: %v", name, p)
		}
	}
	for name, c := range map[string]struct {
		frame []byte
		to    MAC
		ip    netip.Addr
		flags uint8
	}{
		"advertisement": {Advertisement(ours, Packet{Asks: vip6, From: peer6, FromMAC: theirs}), theirs, peer6, 0x60},
		"to who looks whether it is free": {Advertisement(ours, Packet{Asks: vip6, From: zero6, FromMAC: theirs}),
			MAC{0x33, 0x33, 0, 0, 0, 1}, allNodes, 0x20},
		"unsolicited": {Unsolicited(ours, vip6), MAC{0x33, 0x33, 0, 0, 0, 1}, allNodes, 0x20},
	} {
		p := gopacket.NewPacket(c.frame, layers.LayerTypeEthernet, gopacket.Default)
		eth, _ := p.LinkLayer().(*layers.Ethernet)
		ip, _ := p.NetworkLayer().(*layers.IPv6)
		na, ok := p.Layer(layers.LayerTypeICMPv6NeighborAdvertisement).(*layers.ICMPv6NeighborAdvertisement)
		if !ok || !bytes.Equal(eth.DstMAC, c.to[:]) || !ip.DstIP.Equal(net.IP(c.ip.AsSlice())) || ip.HopLimit != 255 ||
			!ip.SrcIP.Equal(vip6.AsSlice()) || na.Flags != c.flags || !na.TargetAddress.Equal(vip6.AsSlice()) ||
			len(na.Options) != 1 || na.Options[0].Type != layers.ICMPv6OptTargetAddress ||
			!bytes.Equal(na.Options[0].Data, ours[:]) {
			t.Errorf("%s: %v", name, p)
		}
	}
}

// Requests and claims are parsed as such.
func TestRead(t *testing.T) {
	t.Parallel()
	announcements := ARPAnnouncements(theirs, vip4)
	for name, c := range map[string]struct {
		frame []byte
		want  Packet
	}{
		"request":      {ARPRequest(theirs, peer4, vip4), Packet{vip4, peer4, peer4, theirs}},
		"probe":        {ARPRequest(theirs, zero4, vip4), Packet{vip4, netip.Addr{}, zero4, theirs}},
		"announcement": {announcements[0], Packet{netip.Addr{}, vip4, vip4, theirs}},
		"reply":        {announcements[1], Packet{netip.Addr{}, vip4, vip4, theirs}},
	} {
		if got, ok := ReadARP(c.frame); !ok || got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if _, ok := ReadNDP(c.frame); ok {
			t.Errorf("%s is read as neighbour discovery", name)
		}
	}
	for name, c := range map[string]struct {
		frame []byte
		want  Packet
	}{
		"solicitation": {Solicitation(theirs, peer6, vip6), Packet{vip6, netip.Addr{}, peer6, theirs}},
		"who looks whether it is free": {Solicitation(theirs, zero6, vip6), Packet{vip6, netip.Addr{}, zero6,
			theirs}},
		"advertisement": {Unsolicited(theirs, vip6), Packet{netip.Addr{}, vip6, vip6, theirs}},
	} {
		if got, ok := ReadNDP(c.frame); !ok || got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if _, ok := ReadARP(c.frame); ok {
			t.Errorf("%s is read as ARP", name)
		}
		for _, at := range []int{14 + 7, 14 + 40 + 1, 14 + 40 + 9, len(c.frame) - 1} { // hop limit, code, target, MAC
			bad := bytes.Clone(c.frame)
			bad[at]++
			if p, ok := ReadNDP(bad); ok {
				t.Errorf("%s with byte %d changed is read: %+v", name, at, p)
			}
		}
	}
	if got := SolicitedNode(vip6); got != netip.MustParseAddr("ff02::1:ff0c:1") {
		t.Errorf("solicited-node group %v", got)
	}
}

// Any bytes are parsed without a panic, and the answer to a parsed request can be parsed.
func FuzzRead(f *testing.F) {
	f.Add(ARPRequest(theirs, peer4, vip4))
	f.Add(Solicitation(theirs, peer6, vip6))
	f.Add(Unsolicited(theirs, vip6))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := ReadARP(b); ok && p.Asks.IsValid() {
			if back, ok := ReadARP(ARPReply(ours, p)); !ok || back.FromMAC != ours ||
				!p.Asks.IsUnspecified() && back.Claims != p.Asks {
				t.Errorf("%+v is answered by %+v", p, back)
			}
		}
		if p, ok := ReadNDP(b); ok && p.Asks.IsValid() {
			if back, ok := ReadNDP(Advertisement(ours, p)); !ok || back.Claims != p.Asks || back.FromMAC != ours {
				t.Errorf("%+v is answered by %+v", p, back)
			}
		}
	})
}
