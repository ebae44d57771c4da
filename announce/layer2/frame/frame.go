package frame

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// MAC is an Ethernet address.
type MAC [macBytes]byte

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Broadcast is everybody on the link.
var Broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// EtherTypes (IEEE 802 numbers).
const (
	ARP  = 0x0806
	IPv6 = 0x86dd
)

// Packet is what a frame says about addresses.
type Packet struct {
	// Asks is the address that is asked for; not valid: none is.
	Asks netip.Addr
	// Claims is the address that the sender says it has; not valid: none is.
	Claims netip.Addr
	// From and FromMAC are whom to answer. From is unspecified where the sender looks whether an
	// address is free (a probe, RFC 5227; duplicate address detection, RFC 4862).
	From    netip.Addr
	FromMAC MAC
}

const (
	macBytes      = 6
	ethernetBytes = 14
)

// ethernet begins a frame.
func ethernet(size int, to, from MAC, etherType uint16) []byte {
	b := make([]byte, ethernetBytes, ethernetBytes+size)
	copy(b, to[:])
	copy(b[macBytes:], from[:])
	binary.BigEndian.PutUint16(b[12:], etherType)
	return b
}

// Payload returns what is in a frame of a type, and who sent it.
func Payload(b []byte, etherType uint16) (payload []byte, from MAC, ok bool) {
	if len(b) < ethernetBytes || binary.BigEndian.Uint16(b[12:]) != etherType {
		return nil, MAC{}, false
	}
	return b[ethernetBytes:], MAC(b[macBytes : 2*macBytes]), true
}

// SentBy has a frame come from another hardware address than the one that it is about: who answers
// for somebody else. Switches learn from it where that one is.
func SentBy(by MAC, b []byte) []byte {
	copy(b[macBytes:], by[:])
	return b
}

// Wrap returns a frame of a type.
func Wrap(to, from MAC, etherType uint16, payload []byte) []byte {
	return append(ethernet(len(payload), to, from, etherType), payload...)
}
