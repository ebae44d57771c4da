package garbage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// view is what decode reads of a frame that a receiver would take. Offsets are in the IP packet.
type view struct {
	ip    []byte // the IP packet, without the bytes that follow in the frame
	v6    bool
	proto uint8
	l4    int // the transport header; of a later fragment, its first byte

	fragmentAt int // bytes; -1 in a whole packet
	more       bool
	id         uint32
	idAt       int  // IPv6: where the identification is; 0 in a whole packet
	multicast  bool // the frame's receiver
}

// Faults of a packet.
var (
	errTruncated = errors.New("truncated")
	errEtherType = errors.New("not IP")
)

// decode reads a frame, or returns the reason why a receiver would drop it. It rejects the frames
// that Linux rejects, and ports of 0, martian addresses, source routes and a source that is the
// destination.
func decode(frame []byte) (v view, err error) {
	if len(frame) < 14 {
		return v, errTruncated
	}
	v.multicast = frame[0]&1 != 0
	v.fragmentAt = -1
	at := 12
	for tags := 0; be16(frame[at:]) == 0x8100 || be16(frame[at:]) == 0x88a8; tags++ {
		if at += 4; tags == 2 || len(frame) < at+2 {
			return v, errTruncated
		}
	}
	b := frame[at+2:]
	switch be16(frame[at:]) {
	case 0x0800:
		err = v.ipv4(b)
	case 0x86dd:
		v.v6 = true
		err = v.ipv6(b)
	default:
		return v, errEtherType
	}
	if err != nil {
		return v, err
	}
	src, dst := v.src(), v.dst()
	switch {
	case martian(src) && !(src.IsLinkLocalUnicast() && v.isError()):
		return v, fmt.Errorf("source %v", src)
	case martian(dst):
		return v, fmt.Errorf("destination %v", dst)
	case src == dst:
		return v, fmt.Errorf("from %v to itself", src)
	case v.fragment():
		if err := v.judgeFragment(); err != nil {
			return v, err
		}
	}
	return v, v.judgeTransport()
}

// ipv4 is ip_rcv_core (net/ipv4/ip_input.c).
func (v *view) ipv4(b []byte) error {
	if len(b) < 20 {
		return errTruncated
	}
	header, total := int(b[0]&15)*4, int(be16(b[2:]))
	switch {
	case b[0]>>4 != 4:
		return fmt.Errorf("version %d", b[0]>>4)
	case header < 20:
		return fmt.Errorf("header of %d bytes", header)
	case len(b) < header, len(b) < total:
		return errTruncated
	case total < header:
		return fmt.Errorf("total length %d, header %d", total, header)
	case add(0, b[:header]) != 0xffff:
		return errors.New("header checksum")
	}
	v.ip, v.proto, v.l4 = b[:total], b[9], header
	if word := be16(b[6:]); word&0x3fff != 0 {
		v.fragmentAt, v.more, v.id = int(word&0x1fff)*8, word&0x2000 != 0, uint32(be16(b[4:]))
	}
	return options4(b[20:header])
}

// options4 is __ip_options_compile (net/ipv4/ip_options.c), as far as it refuses anything.
func options4(b []byte) error {
	var seen [256]bool
	for len(b) > 0 {
		kind := b[0]
		if kind == 0 {
			return nil
		}
		if kind == 1 {
			b = b[1:]
			continue
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			return fmt.Errorf("length of option %d", kind)
		}
		o := b[:b[1]]
		b = b[b[1]:]
		bad := fmt.Errorf("option %x", o)
		switch kind {
		case 131, 137: // LSRR, SSRR
			return bad
		case 7: // record route
			if seen[kind] || len(o) < 3 || o[2] < 4 || int(o[2]) <= len(o) && int(o[2])+3 > len(o) {
				return bad
			}
		case 68: // timestamp
			if seen[kind] || len(o) < 4 || o[2] < 5 {
				return bad
			}
			room, flag := len(o)-int(o[2])+1, o[3]&15
			switch {
			case room > 0 && (room < 4 || (flag == 1 || flag == 3) && room < 8):
				return bad
			case room <= 0 && flag != 3 && o[3]>>4 == 15:
				return bad
			}
		case 134: // security label, as in cipso_v4_validate (include/net/cipso_ipv4.h)
			if seen[kind] || len(o) < 8 || be16(o[2:])|be16(o[4:]) == 0 {
				return bad
			}
			for tags := o[6:]; len(tags) > 0; tags = tags[tags[1]:] {
				if len(tags) < 2 || tags[1] == 0 || int(tags[1]) > len(tags) {
					return bad
				}
			}
		case 148: // router alert
			if len(o) < 4 {
				return bad
			}
		}
		seen[kind] = true
	}
	return nil
}

// ipv6 is ip6_rcv_core (net/ipv6/ip6_input.c), and the chain of extension headers.
func (v *view) ipv6(b []byte) error {
	if len(b) < 40 {
		return errTruncated
	}
	n := int(be16(b[4:]))
	switch {
	case b[0]>>4 != 6:
		return fmt.Errorf("version %d", b[0]>>4)
	case n == 0:
		return errors.New("payload length 0")
	case 40+n > len(b):
		return errTruncated
	}
	v.ip, v.proto, v.l4 = b[:40+n], b[6], 40
	return v.chain()
}

func (v *view) chain() error {
	for headers := 0; ; headers++ {
		kind := v.proto
		if kind != 0 && kind != 43 && kind != 44 && kind != 60 {
			return nil
		}
		if kind == 0 && v.l4 != 40 {
			return errors.New("hop-by-hop options behind another header")
		}
		if headers == 16 || len(v.ip) < v.l4+8 {
			return errors.New("chain of extension headers")
		}
		h := v.ip[v.l4:]
		n := 8 + 8*int(h[1])
		if kind == 44 {
			if n = 8; v.fragmentAt >= 0 {
				return errors.New("two fragment headers")
			}
			if word := be16(h[2:]); word&0xfff9 != 0 {
				v.fragmentAt, v.more, v.id = int(word&0xfff8), word&1 != 0, binary.BigEndian.Uint32(h[4:])
				v.idAt = v.l4 + 4
			}
		}
		if len(h) < n {
			return errors.New("extension header beyond the packet")
		}
		if kind == 43 && (h[2] == 0 || h[3] != 0) {
			return errors.New("routing header")
		}
		if kind == 0 || kind == 60 {
			if err := options6(h[2:n]); err != nil {
				return err
			}
		}
		v.proto, v.l4 = h[0], v.l4+n
		if v.fragmentAt > 0 {
			return nil
		}
	}
}

// options6 is ip6_parse_tlv (net/ipv6/exthdrs.c), for a kernel that knows no option but the pads.
func options6(b []byte) error {
	pad, known := 0, 0
	for len(b) > 0 {
		if b[0] == 0 {
			b = b[1:]
			if pad++; pad > 7 {
				return errors.New("pad of more than 7 bytes")
			}
			continue
		}
		if len(b) < 2 || len(b) < 2+int(b[1]) {
			return fmt.Errorf("option %d beyond its header", b[0])
		}
		o := b[:2+int(b[1])]
		b = b[len(o):]
		if o[0] == 1 {
			if pad += len(o); pad > 7 || strings.Trim(string(o[2:]), "\x00") != "" {
				return fmt.Errorf("pad %x", o)
			}
			continue
		}
		pad = 0
		if known++; known > 8 || o[0] >= 64 {
			return fmt.Errorf("option %x", o)
		}
	}
	return nil
}

func (v *view) fragment() bool { return v.fragmentAt >= 0 }

// later reports whether the packet has no transport header.
func (v *view) later() bool { return v.fragmentAt > 0 }

func (v *view) judgeFragment() error {
	n := len(v.ip) - v.l4
	switch {
	case n == 0:
		return errors.New("empty fragment")
	case v.more && n%8 != 0:
		return fmt.Errorf("fragment of %d bytes", n)
	case !v.v6 && v.fragmentAt+len(v.ip) > 65535, v.v6 && v.fragmentAt+len(v.ip)-48 > 65535:
		return errors.New("beyond 65,535 bytes")
	case v.later() && v.proto == protoTCP && v.fragmentAt < 24:
		return errors.New("over the TCP header")
	}
	return nil
}

// judgeTransport is what tcp_v4_rcv, udp_rcv and tcp_valid_flags
// (net/netfilter/nf_conntrack_proto_tcp.c) refuse.
func (v *view) judgeTransport() error {
	if v.later() {
		return nil
	}
	t := v.transport()
	least := map[uint8]int{protoTCP: 20, protoUDP: 8, protoSCTP: 16}[v.proto]
	if v.icmp() {
		least = 8
	}
	if len(t) < least {
		return errors.New("truncated transport header")
	}
	switch v.proto {
	case protoTCP:
		if n := int(t[12]>>4) * 4; n < 20 || n > len(t) {
			return fmt.Errorf("data offset of %d bytes", n)
		}
		switch t[13] &^ 0xc8 { // without CWR, ECE, PSH
		case 0x02, 0x22, 0x12, 0x04, 0x14, 0x11, 0x31, 0x10, 0x30:
		default:
			return fmt.Errorf("flags %#02x", t[13])
		}
	case protoUDP:
		n := int(be16(t[4:]))
		if n < 8 || n > len(t) && !v.fragment() {
			return fmt.Errorf("UDP length %d of %d", n, len(t))
		}
	case protoSCTP:
		if n := int(be16(t[14:])); n < 4 || n > len(t)-12 || v.fragment() {
			return fmt.Errorf("SCTP chunk of %d bytes", n)
		}
	default:
		return nil
	}
	if be16(t) == 0 || be16(t[2:]) == 0 {
		return errors.New("port 0")
	}
	return nil
}

func (v *view) src() netip.Addr {
	if v.v6 {
		return netip.AddrFrom16([16]byte(v.ip[8:]))
	}
	return netip.AddrFrom4([4]byte(v.ip[12:]))
}

func (v *view) dst() netip.Addr {
	if v.v6 {
		return netip.AddrFrom16([16]byte(v.ip[24:]))
	}
	return netip.AddrFrom4([4]byte(v.ip[16:]))
}

// ends are with the ports, if it has any.
func (v *view) ends() (src, dst netip.AddrPort) {
	t := v.transport()
	if v.later() || v.proto != protoTCP && v.proto != protoUDP && v.proto != protoSCTP {
		return netip.AddrPortFrom(v.src(), 0), netip.AddrPortFrom(v.dst(), 0)
	}
	return netip.AddrPortFrom(v.src(), be16(t)), netip.AddrPortFrom(v.dst(), be16(t[2:]))
}

func (v *view) ttl() uint8 {
	if v.v6 {
		return v.ip[7]
	}
	return v.ip[8]
}

func (v *view) transport() []byte { return v.ip[v.l4:] }

// checksumField is the offset of the checksum in the transport header, or -1.
func (v *view) checksumField() int {
	switch {
	case v.proto == protoTCP:
		return 16
	case v.proto == protoUDP:
		return 6
	case v.proto == protoSCTP:
		return 8
	case v.icmp():
		return 2
	}
	return -1
}

func (v *view) icmp() bool {
	return v.proto == protoICMP && !v.v6 || v.proto == protoICMPv6 && v.v6
}

// isError reports whether it is an ICMP error.
func (v *view) isError() bool {
	if !v.icmp() || v.fragment() {
		return false
	}
	switch t := v.transport()[0]; {
	case v.v6:
		return t >= 1 && t <= 4
	default:
		return t == 3 || t == 4 || t == 5 || t == 11 || t == 12
	}
}

// covered is how many bytes the transport checksum covers of a whole packet.
func (v *view) covered() int {
	t := v.transport()
	if v.proto == protoUDP {
		return min(int(be16(t[4:])), len(t))
	}
	return len(t)
}

// pseudo is the sum of the pseudo-header for n bytes; ICMP over IPv4 has none.
func (v *view) pseudo(n int) uint16 {
	if v.proto == protoICMP {
		return 0
	}
	from, to := 12, 20
	if v.v6 {
		from, to = 8, 40
	}
	return add(add(uint16(v.proto), v.ip[from:to]), []byte{byte(n >> 8), byte(n)})
}

// residual is the error of the transport checksum of a packet, or of the part of it that a first
// fragment has: 0 if the checksum is right.
func (v *view) residual() uint32 {
	n := v.covered()
	if v.proto == protoSCTP {
		t := append([]byte(nil), v.transport()...)
		stored := binary.LittleEndian.Uint32(t[8:])
		copy(t[8:], []byte{0, 0, 0, 0})
		return stored ^ crc32c(t)
	}
	sum := add(v.pseudo(n), v.transport()[:n])
	if sum == 0xffff {
		return 0
	}
	return uint32(sum)
}

// unsummed reports whether it is a datagram without a checksum.
func (v *view) unsummed() bool {
	return v.proto == protoUDP && v.transport()[6]|v.transport()[7] == 0
}

// martian reports whether an address is no end of a packet that is forwarded (RFC 6890; RFC 3927
// section 7; RFC 4291 sections 2.5 to 2.7).
func martian(a netip.Addr) bool {
	if a.Is4() {
		b := a.As4()
		return b[0] == 0 || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() ||
			a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
	}
	b := a.As16()
	return a.IsMulticast() || a.IsLinkLocalUnicast() || a.Is4In6() || [12]byte(b[:12]) == [12]byte{}
}

func be16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }

func be32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }

// add is RFC 1071's sum.
func add(sum uint16, b []byte) uint16 {
	s := uint64(sum)
	for ; len(b) >= 2; b = b[2:] {
		s += uint64(be16(b))
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
