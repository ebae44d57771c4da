package frame

import (
	"encoding/binary"
	"net/netip"
)

// The fields of an ARP packet between Ethernet and IPv4 (RFC 826):
//
//	0 hardware 1   2 protocol 0x0800   4 lengths 6, 4   6 operation
//	8 sender's MAC   14 sender's address   18 target's MAC   24 target's address
const (
	arpBytes    = 28
	arpEthernet = 1
	arpIPv4     = 0x0800
	arpRequest  = 1
	arpReply    = 2
)

// ReadARP parses a frame. ok is false if it is not ARP between IPv4 and Ethernet.
func ReadARP(b []byte) (p Packet, ok bool) {
	a, _, ok := Payload(b, ARP)
	if !ok || len(a) < arpBytes || binary.BigEndian.Uint16(a) != arpEthernet ||
		binary.BigEndian.Uint16(a[2:]) != arpIPv4 || a[4] != macBytes || a[5] != 4 {
		return p, false
	}
	sender, target := netip.AddrFrom4([4]byte(a[14:18])), netip.AddrFrom4([4]byte(a[24:28]))
	p.From, p.FromMAC = sender, MAC(a[8:14])
	if !sender.IsUnspecified() {
		p.Claims = sender
	}
	switch binary.BigEndian.Uint16(a[6:]) {
	case arpRequest:
		if sender != target { // otherwise it is an announcement
			p.Asks = target
		}
	case arpReply:
	default:
		return Packet{}, false
	}
	return p, true
}

func arp(to, from MAC, operation uint16, sender, target netip.Addr, targetMAC MAC) []byte {
	b := ethernet(arpBytes, to, from, ARP)
	b = binary.BigEndian.AppendUint16(b, arpEthernet)
	b = binary.BigEndian.AppendUint16(b, arpIPv4)
	b = append(b, macBytes, 4)
	b = binary.BigEndian.AppendUint16(b, operation)
	b = append(append(b, from[:]...), sender.AsSlice()...)
	return append(append(b, targetMAC[:]...), target.AsSlice()...)
}

// ARPReply returns the reply to a Packet that asks for an IPv4 address.
func ARPReply(from MAC, p Packet) []byte {
	return arp(p.FromMAC, from, arpReply, p.Asks, p.From, p.FromMAC)
}

// ARPAnnouncements return frames that announce an IPv4 address: a request, as RFC 5227, section 3,
// recommends, and a reply, because some hosts ignore the request.
func ARPAnnouncements(from MAC, a netip.Addr) [2][]byte {
	return [2][]byte{arp(Broadcast, from, arpRequest, a, a, MAC{}), arp(Broadcast, from, arpReply, a, a, Broadcast)}
}

// ARPRequest returns a broadcast request for an address.
func ARPRequest(from MAC, sender, target netip.Addr) []byte {
	return arp(Broadcast, from, arpRequest, sender, target, MAC{})
}
