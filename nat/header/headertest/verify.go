package headertest

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// IP returns a frame's IP packet without tags and padding, or nil if it has none.
func IP(frame []byte) []byte {
	at := 12
	for len(frame) >= at+6 && (be16(frame[at:]) == 0x8100 || be16(frame[at:]) == 0x88a8) {
		at += 4
	}
	if len(frame) < at+2 {
		return nil
	}
	b := frame[at+2:]
	n := 0
	switch {
	case be16(frame[at:]) == 0x0800 && len(b) >= 20:
		n = int(be16(b[2:]))
	case be16(frame[at:]) == 0x86dd && len(b) >= 40:
		n = 40 + int(be16(b[4:]))
	}
	if n == 0 || n > len(b) {
		return nil
	}
	return b[:n]
}

// Verify recomputes all checksums of a frame: the IPv4 header's, the transport's if it is whole,
// and, in an ICMP error, those of the quoted packet as far as the quote reaches. It returns an
// error for the first wrong one.
func Verify(frame []byte) error {
	ip := IP(frame)
	if ip == nil {
		return errors.New("no whole IP packet")
	}
	return verifyIP(ip, len(ip))
}

// verifyQuote verifies the quoted packet of an ICMP error. Transport checksums are verified if the
// whole packet is quoted.
func verifyQuote(quote []byte) error {
	n := 0
	switch {
	case len(quote) >= 20 && quote[0]>>4 == 4:
		n = int(be16(quote[2:]))
	case len(quote) >= 40 && quote[0]>>4 == 6:
		n = 40 + int(be16(quote[4:]))
	default:
		return errors.New("quote without an IP header")
	}
	if err := verifyIP(quote[:min(n, len(quote))], n); err != nil {
		return fmt.Errorf("quoted packet: %w", err)
	}
	return nil
}

// verifyIP verifies a packet that may be cut off; totalBytes is the length according to its own
// header.
func verifyIP(ip []byte, totalBytes int) error {
	var src, dst, payload []byte
	var proto uint8
	whole := true
	switch ip[0] >> 4 {
	case 4:
		h := int(ip[0]&15) * 4
		if h < 20 || h > len(ip) {
			return errors.New("IPv4 header does not fit")
		}
		if add(0, ip[:h]) != 0xffff {
			return errors.New("IPv4 header checksum is wrong")
		}
		src, dst, proto, payload = ip[12:16], ip[16:20], ip[9], ip[h:]
		whole = be16(ip[6:])&0x3fff == 0
	case 6:
		src, dst, proto, payload = ip[8:24], ip[24:40], ip[6], ip[40:]
		proto, payload, whole = skipExtensions(proto, payload)
	default:
		return fmt.Errorf("IP version %d", ip[0]>>4)
	}
	if !whole || len(ip) < totalBytes {
		return nil
	}
	return verifyTransport(src, dst, proto, payload)
}

func skipExtensions(proto uint8, b []byte) (uint8, []byte, bool) {
	for len(b) >= 8 {
		n := 8 + 8*int(b[1])
		switch proto {
		case Fragment:
			if be16(b[2:])&0xfff9 != 0 {
				return proto, b, false
			}
			n = 8
		case HopByHop, Routing, Destination:
		default:
			return proto, b, true
		}
		if n > len(b) {
			return proto, b, false
		}
		proto, b = b[0], b[n:]
	}
	return proto, b, true
}

func verifyTransport(src, dst []byte, proto uint8, b []byte) error {
	seed := pseudo(src, dst, proto, len(b))
	switch proto {
	case 6:
		if len(b) < 20 {
			return errors.New("TCP header does not fit")
		}
	case 17:
		if len(b) < 8 || int(be16(b[4:])) > len(b) {
			return errors.New("UDP header does not fit")
		}
		if be16(b[6:]) == 0 { // no checksum, which tunnels over IPv6 may omit as well (RFC 6935)
			return nil
		}
		b = b[:be16(b[4:])]
		seed = pseudo(src, dst, proto, len(b))
	case 132:
		return verifySCTP(b)
	case 1, 58:
		if len(b) < 8 {
			return errors.New("ICMP header does not fit")
		}
	default:
		return nil
	}
	if sum := add(seed, b); sum != 0xffff {
		return fmt.Errorf("checksum of protocol %d is wrong: the sum is %#04x", proto, sum)
	}
	if (proto == 1 && isError4(b[0])) || (proto == 58 && b[0] < 128) {
		return verifyQuote(b[8:])
	}
	return nil
}

// verifySCTP verifies the CRC (RFC 9260 section 6.8), computed with a checksum field of zero.
func verifySCTP(b []byte) error {
	if len(b) < 12 {
		return errors.New("SCTP header does not fit")
	}
	zeroed := append([]byte(nil), b...)
	copy(zeroed[8:], []byte{0, 0, 0, 0})
	if got, want := binary.LittleEndian.Uint32(b[8:]), crc32c(zeroed); got != want {
		return fmt.Errorf("checksum of SCTP is %#08x, want %#08x", got, want)
	}
	return nil
}

// crc32c computes the CRC of RFC 9260 appendix A, bit by bit.
func crc32c(b []byte) uint32 {
	s := ^uint32(0)
	for _, v := range b {
		s ^= uint32(v)
		for range 8 {
			if s&1 == 1 {
				s = s>>1 ^ 0x82f63b78
			} else {
				s >>= 1
			}
		}
	}
	return ^s
}

func isError4(t uint8) bool { return t == 3 || t == 4 || t == 5 || t == 11 || t == 12 }

// pseudo returns the sum of the pseudo-header; ICMP over IPv4 has none.
func pseudo(src, dst []byte, proto uint8, n int) uint16 {
	if proto == 1 && len(src) == 4 {
		return 0
	}
	b := append(append([]byte(nil), src...), dst...)
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	return add(0, append(b, 0, proto))
}

// add returns the sum of RFC 1071, computed as simply as possible.
func add(sum uint16, b []byte) uint16 {
	s := uint32(sum)
	for i, v := range b {
		if i%2 == 0 {
			s += uint32(v) << 8
		} else {
			s += uint32(v)
		}
		if s > 0xffff {
			s -= 0xffff
		}
	}
	return uint16(s)
}

func be16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }
