package header_test

import (
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// reference is a second parser, written for clarity and not for speed: a cursor that cannot leave
// the frame, and prefixes and lists in place of masks. It is the oracle of Parse.
type reference struct {
	frame []byte
	p     header.Packet
	more  bool
}

// at returns n bytes at an offset, or nil if they are not all before end.
func (r *reference) at(offset, n, end int) []byte {
	if offset < 0 || offset+n > end || offset+n > len(r.frame) {
		return nil
	}
	return r.frame[offset : offset+n]
}

func word(b []byte) int { return int(b[0])<<8 | int(b[1]) }

func parseReference(frame []byte) (header.Packet, reason.Drop) {
	r := &reference{frame: frame}
	drop := r.ethernet()
	return r.p, drop
}

func (r *reference) ethernet() reason.Drop {
	all := len(r.frame)
	if all < 14 {
		return reason.FrameTruncated
	}
	if all > 65535 {
		return reason.FrameOversize
	}
	r.p.Multicast = r.frame[0]%2 == 1
	typeAt := 12
	for range 3 {
		switch b := r.at(typeAt, 2, all); {
		case b == nil:
			return reason.FrameTruncated
		case word(b) == 0x0800:
			return r.ipv4(typeAt + 2)
		case word(b) == 0x86dd:
			return r.ipv6(typeAt + 2)
		case word(b) != 0x8100 && word(b) != 0x88a8:
			return reason.EtherType
		}
		if r.p.VLANs == 2 {
			return reason.EtherType
		}
		if r.at(typeAt+2, 4, all) == nil {
			return reason.FrameTruncated
		}
		r.p.VLAN[r.p.VLANs] = uint16(word(r.frame[typeAt+2:]))
		r.p.VLANs++
		typeAt += 4
	}
	return reason.EtherType
}

var martians = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("255.255.255.255/32"), netip.MustParsePrefix("::/96"),
	netip.MustParsePrefix("::ffff:0:0/96"), netip.MustParsePrefix("ff00::/8"),
	netip.MustParsePrefix("fe80::/10"),
}

func martian(b []byte) bool {
	a, _ := netip.AddrFromSlice(b)
	if a.Is4In6() {
		return true // netip excludes these from every prefix
	}
	return slices.ContainsFunc(martians, func(p netip.Prefix) bool { return p.Contains(a) })
}

// addresses checks both addresses of a packet; then has the bytes of proto that follow its IP
// header. A router may send ICMP errors from a link-local address.
func addresses(src, dst, then []byte, proto uint8, whole bool) reason.Drop {
	a, _ := netip.AddrFromSlice(src)
	errors := map[uint8][]uint8{1: {3, 4, 5, 11, 12}, 58: {1, 2, 3, 4}}[proto]
	if a.Is4() != (proto == 1) || a.Is4In6() || !whole || len(then) == 0 {
		errors = nil
	}
	switch {
	case martian(src) && !(a.IsLinkLocalUnicast() && len(errors) > 0 && slices.Contains(errors, then[0])):
		return reason.MartianSource
	case martian(dst):
		return reason.MartianDestination
	case slices.Equal(src, dst):
		return reason.LandAttack
	}
	return reason.None
}

// sumsToOnes adds words until the bytes end.
func sumsToOnes(b []byte) bool {
	s := 0
	for i, v := range b {
		s += int(v) << (8 * (1 - i%2))
	}
	return s > 0 && s%65535 == 0
}

func (r *reference) ipv4(l3 int) reason.Drop {
	h := r.at(l3, 20, len(r.frame))
	if h == nil {
		return reason.FrameTruncated
	}
	ihl, total := int(h[0]%16)*4, word(h[2:])
	if h[0]/16 != 4 || ihl < 20 || total < ihl {
		return reason.IPv4Header
	}
	if r.at(l3, total, len(r.frame)) == nil {
		return reason.FrameTruncated
	}
	r.p.L3, r.p.L4, r.p.End = uint16(l3), uint16(l3+ihl), uint16(l3+total)
	r.p.Tuple.Src, r.p.Tuple.Dst = header.AddrFrom4([4]byte(h[12:16])), header.AddrFrom4([4]byte(h[16:20]))
	r.p.Tuple.Proto, r.p.TTL = h[9], h[8]
	r.p.FragmentID, r.p.DF = uint32(word(h[4:])), h[6]/64%2 == 1
	r.fragment(word(h[6:])%8192*8, h[6]/32%2 == 1)
	if !sumsToOnes(r.frame[l3 : l3+ihl]) {
		return reason.IPv4Checksum
	}
	if drop := options(r.frame[l3+20 : l3+ihl]); drop != reason.None {
		return drop
	}
	if drop := addresses(h[12:16], h[16:20], r.frame[l3+ihl:l3+total], h[9],
		r.p.Fragment == header.NotFragment); drop != reason.None {
		return drop
	}
	return r.payload(int(r.p.FragmentOffset)+total, total-ihl)
}

func options(b []byte) reason.Drop {
	seen := map[byte]bool{}
	for i := 0; i < len(b); {
		switch {
		case b[i] == 0:
			return reason.None
		case b[i] == 1:
			i++
		case b[i] == 131 || b[i] == 137:
			return reason.IPv4SourceRoute
		case i+1 >= len(b) || b[i+1] < 2 || i+int(b[i+1]) > len(b):
			return reason.IPv4Header
		case seen[b[i]] || written(b[i:i+int(b[i+1])]):
			return reason.IPv4Header
		default:
			seen[b[i]] = b[i] == 7 || b[i] == 68 || b[i] == 134
			i += int(b[i+1])
		}
	}
	return reason.None
}

// written reports whether an option that routers write into is malformed, so that a router could
// not.
func written(o []byte) bool {
	header, entry := 3, 4
	switch o[0] {
	default:
		return false
	case 148:
		return len(o) < 4
	case 134:
		if len(o) < 8 || word(o[2:]) == 0 && word(o[4:]) == 0 {
			return true
		}
		at := 6
		for at < len(o)-1 && o[at+1] > 0 {
			at += int(o[at+1])
		}
		return at != len(o)
	case 68:
		if header = 4; len(o) >= 4 && (o[3]%16 == 1 || o[3]%16 == 3) {
			entry = 8
		}
	case 7:
	}
	if len(o) < header || int(o[2]) < header+1 {
		return true
	}
	if full := int(o[2]) > len(o); full {
		return o[0] == 68 && o[3]/16 == 15 && o[3]%16 != 3
	}
	return int(o[2])-1+entry > len(o)
}

func (r *reference) fragment(offset int, more bool) {
	r.p.FragmentOffset = uint16(offset)
	r.more = more
	if offset > 0 {
		r.p.Fragment = header.LaterFragment
	} else if more {
		r.p.Fragment = header.FirstFragment
	}
}

func (r *reference) ipv6(l3 int) reason.Drop {
	h := r.at(l3, 40, len(r.frame))
	if h == nil {
		return reason.FrameTruncated
	}
	n := word(h[4:])
	if h[0]/16 != 6 || n == 0 {
		return reason.IPv6Header
	}
	if r.at(l3, 40+n, len(r.frame)) == nil {
		return reason.FrameTruncated
	}
	r.p.L3, r.p.L4, r.p.End = uint16(l3), uint16(l3+40), uint16(l3+40+n)
	r.p.Tuple.Src, r.p.Tuple.Dst = header.Addr(h[8:24]), header.Addr(h[24:40])
	r.p.Tuple.V6, r.p.TTL, r.p.DF = true, h[7], true
	if drop := addresses(h[8:24], h[24:40], r.frame[l3+40:l3+40+n], h[6], true); drop != reason.None {
		return drop
	}
	return r.chain(int(h[6]), l3+40)
}

func (r *reference) chain(next, at int) reason.Drop {
	end, start := int(r.p.End), at
	extension := func() reason.Drop {
		if r.p.Fragment == header.FirstFragment {
			return reason.FragmentTiny
		}
		return reason.IPv6ExtensionHeader
	}
	for seen := 0; slices.Contains([]int{0, 43, 44, 60}, next); seen++ {
		if seen == 16 || next == 0 && at != start {
			return reason.IPv6ExtensionHeader
		}
		b := r.at(at, 8, end)
		if b == nil {
			return extension()
		}
		n := 8 + 8*int(b[1])
		switch next {
		case 44:
			if r.p.FragmentHeader != 0 {
				return reason.IPv6ExtensionHeader
			}
			n = 8
			r.p.FragmentHeader = uint16(at)
			r.p.FragmentID = uint32(word(b[4:]))<<16 | uint32(word(b[6:]))
			r.fragment(word(b[2:])/8*8, b[3]%2 == 1)
			if r.p.Fragment == header.LaterFragment {
				r.p.Tuple.Proto, r.p.L4 = b[0], uint16(at+8)
				return r.payload(end-start-8+int(r.p.FragmentOffset), end-at-8)
			}
		case 43:
			if b[2] == 0 || b[3] != 0 {
				return reason.IPv6RoutingHeader
			}
		}
		if at+n > end {
			return extension()
		}
		if next%60 == 0 && !tolerable(r.frame[at+2:at+n], 0, 8) {
			return reason.IPv6ExtensionHeader
		}
		next, at = int(b[0]), at+n
	}
	r.p.Tuple.Proto, r.p.L4 = uint8(next), uint16(at)
	if r.p.FragmentHeader == 0 {
		return r.payload(0, 0)
	}
	return r.payload(end-start-8, end-int(r.p.FragmentHeader)-8)
}

// tolerable reports whether a receiver accepts IPv6 options that follow the given number of pad
// bytes, if the given number of options is left.
func tolerable(b []byte, pads, left int) bool {
	switch {
	case pads > 7 || left < 0:
		return false
	case len(b) == 0:
		return true
	case b[0] == 0:
		return tolerable(b[1:], pads+1, left)
	case len(b) == 1 || int(b[1]) > len(b)-2:
		return false
	}
	data, rest := b[2:2+b[1]], b[2+b[1]:]
	if b[0] == 1 {
		return len(strings.Trim(string(data), "\x00")) == 0 && tolerable(rest, pads+2+len(data), left)
	}
	return b[0] < 64 && tolerable(rest, 0, left-1)
}

// payload checks the bytes that follow the IP header: fragmentBytes of a datagram that would be
// reassembled bytes long if it ended here.
func (r *reference) payload(reassembled, fragmentBytes int) reason.Drop {
	known := map[bool][]uint8{false: {6, 17, 132, 1}, true: {6, 17, 132, 58}}[r.p.Tuple.V6]
	if r.p.Fragment != header.NotFragment {
		if fragmentBytes == 0 || reassembled > 65535 || r.more && fragmentBytes%8 != 0 {
			return reason.FragmentLength
		}
		if r.p.Fragment == header.LaterFragment && r.p.Tuple.Proto == 6 && r.p.FragmentOffset <= 16 {
			return reason.FragmentTiny
		}
		if r.p.Tuple.Proto == 132 {
			return reason.SCTPFragment
		}
	}
	if r.p.Fragment == header.LaterFragment && r.p.Tuple.V6 && (r.p.Tuple.Proto == 60 || r.p.Tuple.Proto == 43) {
		return reason.None // only the first fragment shows the next header
	}
	if !slices.Contains(known, r.p.Tuple.Proto) {
		return reason.Protocol
	}
	if r.p.Fragment == header.LaterFragment {
		return reason.None
	}
	return r.transport(r.frame[r.p.L4:r.p.End])
}

// sctp checks a packet by its first chunk.
func (r *reference) sctp(b []byte) bool {
	meaning := map[uint8]uint8{1: 0x02, 2: 0x12, 6: 0x04, 7: 0x11, 8: 0x11}
	flags, known := meaning[b[12]]
	if !known {
		flags = 0x10
	}
	r.p.TCPFlags = flags
	tag := word(b[4:])<<16 + word(b[6:])
	first, all := word(b[14:]), len(b)-12
	if first < 4 || first > all {
		return false
	}
	if b[12] != 1 {
		return tag != 0
	}
	return tag == 0 && first >= 20 && all < first+4
}

var validFlags = []uint8{0x02, 0x22, 0x12, 0x04, 0x14, 0x11, 0x31, 0x10, 0x30}

func (r *reference) transport(b []byte) reason.Drop {
	need := map[uint8]int{6: 20, 17: 8, 1: 8, 58: 8, 132: 16}[r.p.Tuple.Proto]
	short := map[uint8]reason.Drop{6: reason.TCPHeader, 17: reason.UDPLength, 1: reason.ICMPHeader,
		58: reason.ICMPHeader, 132: reason.SCTPHeader}[r.p.Tuple.Proto]
	if r.p.Fragment == header.FirstFragment {
		short = reason.FragmentTiny
	}
	if len(b) < need {
		return short
	}
	if r.p.Tuple.Proto == 6 || r.p.Tuple.Proto == 17 || r.p.Tuple.Proto == 132 {
		r.p.Tuple.SrcPort, r.p.Tuple.DstPort = uint16(word(b)), uint16(word(b[2:]))
	}
	switch r.p.Tuple.Proto {
	case 6:
		r.p.TCPFlags = b[13]
		if b[12]/16 < 5 {
			return reason.TCPHeader
		}
		if int(b[12]/16)*4 > len(b) {
			return short
		}
		if !slices.Contains(validFlags, b[13]&^0xc8) {
			return reason.TCPFlags
		}
	case 17:
		n := word(b[4:])
		if n < 8 || r.p.Fragment == header.NotFragment && n > len(b) {
			return reason.UDPLength
		}
	case 132:
		if !r.sctp(b) {
			return reason.SCTPHeader
		}
	default:
		r.p.ICMPType, r.p.ICMPCode = b[0], b[1]
		echo := map[bool][]uint8{false: {0, 8}, true: {128, 129}}[r.p.Tuple.V6]
		if slices.Contains(echo, b[0]) {
			r.p.Tuple.SrcPort, r.p.Tuple.DstPort = uint16(word(b[4:])), uint16(word(b[4:]))
		}
		return reason.None
	}
	if r.p.Tuple.SrcPort == 0 || r.p.Tuple.DstPort == 0 {
		return reason.PortZero
	}
	return reason.None
}
