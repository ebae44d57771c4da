package garbage

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/header/headertest"
)

// mutate changes a frame. kind is 2 to 9.
func (s *Source) mutate(f *Frame, kind int) {
	b := f.Bytes
	if len(b) == 0 {
		return
	}
	switch kind {
	case 2, 3, 4, 5:
		for range 1 + s.r.IntN(8) {
			at := s.r.IntN(min(len(b), headersBytes))
			if s.r.IntN(8) == 0 {
				at = s.r.IntN(len(b))
			}
			if s.r.IntN(2) == 0 {
				b[at] ^= 1 << s.r.IntN(8)
			} else {
				b[at] = byte(s.r.Uint32())
			}
		}
	case 6:
		other := s.draw(Class(s.r.IntN(int(NumClasses)))).Bytes
		at := s.r.IntN(len(b))
		from := min(at, len(other))
		if s.r.IntN(2) == 0 {
			from = s.r.IntN(len(other) + 1)
		}
		b = append(b[:at:at], other[from:]...)
	default:
		for range 1 + s.r.IntN(2) {
			s.lie(b)
		}
	}
	if s.Sound || s.r.IntN(8) != 0 {
		sealIPv4(b) // or nothing gets beyond the header's checksum
	}
	if s.Sound || s.r.IntN(2) == 0 {
		sealTransport(b)
	}
	f.Bytes = b
}

// headersBytes is where most headers are.
const headersBytes = 82

// lie sets a field that says how long something is, or where.
func (s *Source) lie(b []byte) {
	l3 := 14
	if len(b) < l3+48 {
		return
	}
	if b[12] == 0x81 || b[12] == 0x88 {
		l3 += 4
	}
	ip := b[l3:]
	l4 := 20
	v6 := ip[0]>>4 == 6
	if v6 {
		l4 = 40
	} else if n := int(ip[0]&15) * 4; n >= 20 && len(ip) >= n+16 {
		l4 = n
	}
	switch s.r.IntN(6) {
	case 0:
		if v6 {
			s.nudge(ip[4:6])
		} else {
			s.nudge(ip[2:4])
		}
	case 1:
		if v6 {
			ip[6] = byte(s.r.IntN(64))
		} else {
			ip[0] = ip[0]&0xf0 | byte(s.r.IntN(16))
		}
	case 2: // UDP's length, or the middle of a sequence number
		s.nudge(ip[min(l4+4, len(ip)-2):][:2])
	case 3: // TCP's data offset, the length of SCTP's first chunk
		if len(ip) > l4+16 {
			ip[l4+12] = byte(s.r.Uint32())
			s.nudge(ip[l4+14 : l4+16])
		}
	case 4: // fragment offset, or an extension header's length
		if v6 {
			ip[41] = byte(s.r.IntN(8))
		} else {
			binary.BigEndian.PutUint16(ip[6:], uint16(s.r.Uint32()))
		}
	case 5: // an IPv4 option, or an extension header's options
		at := l4 + s.r.IntN(8)
		if at+2 <= len(ip) {
			ip[at], ip[at+1] = byte(s.r.Uint32()), byte(s.r.IntN(12))
		}
	}
}

// nudge sets a 16-bit length to a wrong value, near the right one or far from it.
func (s *Source) nudge(field []byte) {
	v := binary.BigEndian.Uint16(field)
	switch s.r.IntN(6) {
	case 0:
		v = 0
	case 1:
		v = 0xffff
	case 2:
		v = uint16(s.r.Uint32())
	case 3:
		v = uint16(s.r.IntN(64))
	default:
		v += uint16(s.r.IntN(17)) - 8
	}
	binary.BigEndian.PutUint16(field, v)
}

// sealIPv4 makes the header checksum of an untagged IPv4 frame right.
func sealIPv4(b []byte) {
	if len(b) >= 34 && b[12] == 8 && b[13] == 0 && b[14]>>4 == 4 {
		headertest.SealIPv4(b)
	}
}

// sealTransport makes the transport checksum of a whole packet right, if there is one to find.
func sealTransport(b []byte) {
	v, err := decode(b)
	if err != nil || v.fragment() {
		return
	}
	t, covered := v.transport(), v.covered()
	field := v.checksumField()
	switch {
	case field < 0 || covered < 0:
		return
	case v.proto == protoSCTP:
		copy(t[8:12], []byte{0, 0, 0, 0})
		binary.LittleEndian.PutUint32(t[8:], crc32c(t))
		return
	case v.proto == protoUDP && !v.v6 && t[6]|t[7] == 0:
		return // has none
	}
	t[field], t[field+1] = 0, 0
	sum := ^add(v.pseudo(covered), t[:covered])
	if v.proto == protoUDP && sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(t[field:], sum)
}
