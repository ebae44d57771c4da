package header

import (
	"encoding/binary"
	"math/bits"

	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/reason"
)

// The flags and offset word of the IPv4 header (RFC 791 section 3.1).
const (
	ipv4DontFragment  = 0x4000
	ipv4MoreFragments = 0x2000
	ipv4OffsetMask    = 0x1fff // in units of 8 bytes
)

// IPv4 options (RFC 791 section 3.1): type, then, except for the first two, length and data.
const (
	optionEnd         = 0
	optionNoOp        = 1
	optionRecordRoute = 7
	optionTimestamp   = 68
	optionLSRR        = 131 // loose source route
	optionCIPSO       = 134 // security labels (FIPS 188)
	optionSSRR        = 137 // strict source route
	optionRouterAlert = 148 // RFC 2113
	optionHeader      = 2   // bytes of type and length
)

// Flags of the timestamp option (RFC 791 section 3.1), which select what routers write into it.
const (
	timestampAddrs  = 1 // their addresses, and the times
	timestampListed = 3 // the times of the routers that the sender has listed
)

// parseIPv4 reads the packet whose header starts at l3. frameBytes is the length of the whole
// frame, of which frame may be only the first part.
func parseIPv4(frame []byte, frameBytes int, p *Packet, l3 int) reason.Drop {
	if len(frame) < l3+IPv4Bytes {
		return reason.FrameTruncated
	}
	h := (*[IPv4Bytes]byte)(frame[l3:])
	headerBytes := int(h[0]&15) * 4
	totalBytes := int(binary.BigEndian.Uint16(h[2:4]))
	if h[0]>>4 != 4 || headerBytes < IPv4Bytes || totalBytes < headerBytes {
		return reason.IPv4Header
	}
	end := l3 + totalBytes
	l4 := l3 + headerBytes
	if end > frameBytes || l4 > len(frame) {
		return reason.FrameTruncated
	}
	p.setIPv4(h, l3, l4, end)
	if headerBytes == IPv4Bytes {
		if sum20(h) != 0xffff {
			return reason.IPv4Checksum
		}
	} else if drop := checkOptions(frame[l3:l4]); drop != reason.None {
		return drop
	}
	src, dst := binary.BigEndian.Uint32(h[12:16]), binary.BigEndian.Uint32(h[16:20])
	switch {
	case martian4(src) && !(linkLocal4(src) && p.reportsError(frame)):
		return reason.MartianSource
	case martian4(dst):
		return reason.MartianDestination
	case src == dst:
		return reason.LandAttack
	}
	if p.Fragment != NotFragment {
		return checkFragment(frame, p, totalBytes+int(p.FragmentOffset))
	}
	return parseTransport(frame, p)
}

// setIPv4 fills p from the fixed header.
func (p *Packet) setIPv4(h *[IPv4Bytes]byte, l3, l4, end int) {
	p.Tuple.Src.setMapped((*[4]byte)(h[12:16]))
	p.Tuple.Dst.setMapped((*[4]byte)(h[16:20]))
	p.Tuple.Proto = h[9]
	p.L3, p.L4, p.End = uint16(l3), uint16(l4), uint16(end)
	p.TTL = h[8]
	p.FragmentID = uint32(binary.BigEndian.Uint16(h[4:6]))
	flags := binary.BigEndian.Uint16(h[6:8])
	p.DF = flags&ipv4DontFragment != 0
	if flags&(ipv4MoreFragments|ipv4OffsetMask) == 0 {
		return
	}
	p.setFragment(flags&ipv4OffsetMask, flags&ipv4MoreFragments != 0)
}

// sum20 adds the words of a header without options.
func sum20(h *[IPv4Bytes]byte) uint16 {
	s, carry := bits.Add64(binary.BigEndian.Uint64(h[0:8]), binary.BigEndian.Uint64(h[8:16]), 0)
	s, carry = bits.Add64(s, uint64(binary.BigEndian.Uint32(h[16:20])), carry)
	return checksum.Fold(s + carry)
}

// checkOptions verifies the checksum of a header with options, and then walks the options: at most
// 40 bytes, at least one in each step.
func checkOptions(h []byte) reason.Drop {
	if checksum.Sum(h) != 0xffff {
		return reason.IPv4Checksum
	}
	var recorded, stamped, labelled bool
	for options := h[IPv4Bytes:]; len(options) > 0; {
		switch options[0] {
		case optionEnd:
			return reason.None
		case optionNoOp:
			options = options[1:]
			continue
		case optionLSRR, optionSSRR:
			return reason.IPv4SourceRoute
		}
		if len(options) < optionHeader || options[1] < optionHeader || int(options[1]) > len(options) {
			return reason.IPv4Header
		}
		option := options[:options[1]]
		options = options[options[1]:]
		valid := true
		switch option[0] {
		case optionRecordRoute:
			valid, recorded = !recorded && validRecord(option), true
		case optionTimestamp:
			valid, stamped = !stamped && validTimestamp(option), true
		case optionCIPSO:
			valid, labelled = !labelled && validCIPSO(option), true
		case optionRouterAlert:
			valid = len(option) >= 4
		}
		if !valid {
			return reason.IPv4Header
		}
	}
	return reason.None
}

// validRecord and validTimestamp check the options that routers write into. The pointer must be
// after the option's header, and there must be room for a whole entry or for none; otherwise a
// receiver discards the datagram (RFC 791 section 3.1; __ip_options_compile,
// net/ipv4/ip_options.c). The gateway writes nothing.
func validRecord(option []byte) bool {
	if len(option) < 3 || option[2] < 4 {
		return false
	}
	room := len(option) - int(option[2]) + 1
	return room <= 0 || room >= 4
}

func validTimestamp(option []byte) bool {
	if len(option) < 4 || option[2] < 5 {
		return false
	}
	entry, room, flag := 4, len(option)-int(option[2])+1, option[3]&15
	if flag == timestampAddrs || flag == timestampListed {
		entry = 8
	}
	if room <= 0 { // a router without room increments the overflow count
		return flag == timestampListed || option[3]>>4 != 15
	}
	return room >= entry
}

// validCIPSO reports whether the domain is not 0 and the tags fill the option. Linux rejects other
// options even without labels in its configuration (cipso_v4_validate, include/net/cipso_ipv4.h).
func validCIPSO(option []byte) bool {
	if len(option) < 8 || binary.BigEndian.Uint32(option[2:]) == 0 {
		return false
	}
	for tags := option[6:]; len(tags) > 0; tags = tags[tags[1]:] {
		if len(tags) < 2 || tags[1] == 0 || int(tags[1]) > len(tags) {
			return false
		}
	}
	return true
}
