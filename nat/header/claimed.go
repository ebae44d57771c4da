package header

import "encoding/binary"

// Claimed returns how long a frame is by its own headers: the bytes from its first one to the end
// of its IP packet. It is 0 for what is not IP behind at most two VLAN tags, and for what ends
// before the header that has the length.
func Claimed(frame []byte) int {
	l3 := EthernetBytes
	for tags := 0; len(frame) >= l3+IPv4Bytes; tags++ {
		switch binary.BigEndian.Uint16(frame[l3-2:]) {
		case EtherTypeIPv4:
			return l3 + int(binary.BigEndian.Uint16(frame[l3+2:]))
		case EtherTypeIPv6:
			return l3 + IPv6Bytes + int(binary.BigEndian.Uint16(frame[l3+4:]))
		case EtherTypeVLAN, EtherTypeQinQ:
			if tags < maxVLANs {
				l3 += VLANBytes
				continue
			}
		}
		return 0
	}
	return 0
}
