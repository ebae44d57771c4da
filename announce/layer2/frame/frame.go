package frame

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// MAC is an Ethernet address.
type MAC [macBytes]byte

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Broadcast is the Ethernet broadcast address.
var Broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// EtherTypes (IEEE 802 numbers).
const (
	ARP  = 0x0806
	IPv6 = 0x86dd
)

// Packet is the parsed content of a frame.
type Packet struct {
	// Asks is the address that the frame asks for; not valid: none.
	Asks netip.Addr
	// Claims is the address that the sender claims to have; not valid: none.
	Claims netip.Addr
	// From and FromMAC are the addresses to answer to. From is unspecified if the sender checks
	// whether an address is free (a probe, RFC 5227; duplicate address detection, RFC 4862).
	From    netip.Addr
	FromMAC MAC
}

const (
	macBytes      = 6
	ethernetBytes = 14
)

// ethernet returns a frame's header, with capacity for size bytes more.
func ethernet(size int, to, from MAC, etherType uint16) []byte {
	b := make([]byte, ethernetBytes, ethernetBytes+size)
	copy(b, to[:])
	copy(b[macBytes:], from[:])
	binary.BigEndian.PutUint16(b[12:], etherType)
	return b
}

// Payload returns the payload and the sender of a frame; ok is false if it has another EtherType.
func Payload(b []byte, etherType uint16) (payload []byte, from MAC, ok bool) {
	if len(b) < ethernetBytes || binary.BigEndian.Uint16(b[12:]) != etherType {
		return nil, MAC{}, false
	}
	return b[ethernetBytes:], MAC(b[macBytes : 2*macBytes]), true
}

// SentBy replaces the Ethernet source of a frame. A gateway that answers for another one uses its
// own: switches learn from the source where a host is.
func SentBy(by MAC, b []byte) []byte {
	copy(b[macBytes:], by[:])
	return b
}

// Wrap returns a frame with an EtherType and a payload.
func Wrap(to, from MAC, etherType uint16, payload []byte) []byte {
	return append(ethernet(len(payload), to, from, etherType), payload...)
}
