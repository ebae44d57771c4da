package header

import "encoding/binary"

// Claimed returns the length of a frame according to its own headers: the bytes from its start to
// the end of its IP packet. It returns 0 if the frame is not IP after at most two VLAN tags, or
// ends before the length field.
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
