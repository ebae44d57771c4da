package stateless

import (
	"encoding/binary"
	"net/netip"

	"sluice.dev/sluice/nat/checksum"
)

// Wire constants. Frames are Ethernet II with up to two tags (IEEE 802.1Q, 802.1ad).
const (
	ethernetBytes, vlanBytes      = 14, 4
	fcsBytes                      = 4
	ip4Bytes, ip6Bytes            = 20, 40
	ip6FragmentBytes              = 8 // RFC 8200, section 4.5
	udpBytes, tcpBytes, icmpBytes = 8, 20, 8

	etherIP4, etherIP6        = 0x0800, 0x86dd
	etherVLAN, etherQinQ      = 0x8100, 0x88a8
	protoICMP, protoICMP6     = 1, 58
	protoTCP, protoUDP        = 6, 17
	protoFragment             = 44
	dontFragment              = 0x4000 // RFC 791, section 3.1
	moreFragments4            = 0x2000
	moreFragments6            = 1 // RFC 8200, section 4.5
	hopLimit                  = 64
	tcpSYN                    = 0x02
	tcpWindow                 = 65535
	echoRequest, echoRequest6 = 8, 128

	fragmentUnit = 8 // bytes that a fragment's offset counts in
)

// layout is where things are in the frames of one Traffic. It is the same at the
// sender and, but for VLAN tags, at the receiver, for nothing on the way changes the
// length of a header.
type layout struct {
	v6, udp, pseudo bool // pseudo: the transport checksum covers the addresses
	l3, l4          int  // offsets of the IP and the transport header
	tag, laterTag   int  // laterTag: in fragments that are not the first; 0 if there are none
	src, dst        int  // of the last 32 bits of the addresses
	ports           int
	ipLen, ipSum    int // ipSum is 0 with IPv6
	ipID            int // of its last 16 bits; 0 if packets are not fragmented
	l4Len, l4Sum    int // l4Len is 0 where there is none
	fragments       int
}

func newLayout(t *Traffic, vlans int) layout {
	l := layout{v6: t.Sources.First.Is6(), fragments: max(t.Fragments, 1), l3: ethernetBytes + vlans*vlanBytes}
	fragmented := l.fragments > 1
	if l.v6 {
		l.l4 = l.l3 + ip6Bytes
		l.src, l.dst, l.ipLen = l.l3+20, l.l3+36, l.l3+4
		if fragmented {
			l.ipID = l.l4 + 6
			l.l4 += ip6FragmentBytes
		}
	} else {
		l.l4 = l.l3 + ip4Bytes
		l.src, l.dst, l.ipLen, l.ipSum = l.l3+12, l.l3+16, l.l3+2, l.l3+10
		if fragmented {
			l.ipID = l.l3 + 4
		}
	}
	l.ports = l.l4
	switch t.Protocol {
	case UDP:
		l.udp, l.pseudo, l.l4Len, l.l4Sum, l.tag = true, true, l.l4+4, l.l4+6, l.l4+udpBytes
	case TCPSYN:
		l.pseudo, l.l4Sum, l.tag = true, l.l4+16, l.l4+tcpBytes
	case ICMPEcho:
		// Identifier and sequence number are where others have nothing; RFC 4443,
		// section 2.3: ICMPv6 covers a pseudo header.
		l.pseudo, l.ports, l.l4Sum, l.tag = l.v6, l.l4+4, l.l4+2, l.l4+icmpBytes
	}
	if fragmented {
		l.laterTag = l.l4
	}
	return l
}

// minBytes is the smallest frame (with frame check sequence) that holds a tag.
func (l *layout) minBytes() int {
	n := l.tag + tagBytes
	if l.fragments > 1 {
		payload := n - l.l4
		n = l.l4 + (payload+fragmentUnit-1)/fragmentUnit*fragmentUnit
	}
	return max(n+fcsBytes, minFrameBytes)
}

// template is a frame whose changing fields are zero, and the sums of the constant bytes, so that a
// checksum is a few additions away.
type template struct {
	bytes        []byte
	ipSum, l4Sum uint64 // of 16-bit words, unfolded; l4Sum of the whole datagram
	ipLen, l4Len uint16
	first        bool // has the transport header
}

// newTemplate builds fragment k of a datagram of l.fragments, each a frame of size
// bytes (with frame check sequence).
func newTemplate(t *Traffic, l *layout, run uint16, size, k int) template {
	length := max(size, l.minBytes()) - fcsBytes
	payload := length - l.l4 // of IP, behind a fragment header
	if l.fragments > 1 {
		payload = payload / fragmentUnit * fragmentUnit
		length = l.l4 + payload
	}
	m := template{bytes: make([]byte, length), first: k == 0}
	b := m.bytes
	m.writeEthernet(t)
	m.writeIP(t, l, payload, k)
	if m.first {
		m.writeTransport(t, l, payload*l.fragments)
	}
	at := l.tag
	if !m.first {
		at = l.laterTag
	}
	binary.BigEndian.PutUint16(b[at:], tagMagic)
	binary.BigEndian.PutUint16(b[at+tagRun:], run)

	if l.ipSum != 0 {
		m.ipSum = uint64(checksum.Sum(b[l.l3 : l.l3+ip4Bytes]))
	}
	m.l4Sum = uint64(checksum.Sum(b[l.l4:]))
	// The later fragments' part is in the first one's sum; all else in them is zero.
	m.l4Sum += uint64(l.fragments-1) * (tagMagic + uint64(run))
	if l.pseudo {
		m.l4Sum += uint64(payload*l.fragments) + uint64(transportProto(t))
		if l.v6 {
			for _, first := range [...]netip.Addr{t.Sources.First, t.Destinations.First} {
				a := first.As16()
				m.l4Sum += uint64(checksum.Sum(a[:12]))
			}
		}
	}
	return m
}

func (m *template) writeEthernet(t *Traffic) {
	b := m.bytes
	copy(b, t.DestinationMAC)
	copy(b[6:], t.SourceMAC)
	at := 12
	for i, id := range t.VLANs {
		tpid := uint16(etherVLAN)
		if i == 0 && len(t.VLANs) == 2 {
			tpid = etherQinQ
		}
		binary.BigEndian.PutUint16(b[at:], tpid)
		binary.BigEndian.PutUint16(b[at+2:], id)
		at += vlanBytes
	}
	ether := uint16(etherIP4)
	if t.Sources.First.Is6() {
		ether = etherIP6
	}
	binary.BigEndian.PutUint16(b[at:], ether)
}

func transportProto(t *Traffic) uint8 {
	switch {
	case t.Protocol == UDP:
		return protoUDP
	case t.Protocol == TCPSYN:
		return protoTCP
	case t.Sources.First.Is6():
		return protoICMP6
	}
	return protoICMP
}

// writeIP writes the IP header of fragment k; payload is behind it, or behind the
// fragment header.
func (m *template) writeIP(t *Traffic, l *layout, payload, k int) {
	b := m.bytes[l.l3:]
	last := k == l.fragments-1
	offset := uint16(k * payload / fragmentUnit)
	if !l.v6 {
		b[0] = 0x45
		m.ipLen = uint16(ip4Bytes + payload)
		binary.BigEndian.PutUint16(b[2:], m.ipLen)
		switch {
		case l.fragments == 1:
			binary.BigEndian.PutUint16(b[6:], dontFragment)
		case last:
			binary.BigEndian.PutUint16(b[6:], offset)
		default:
			binary.BigEndian.PutUint16(b[6:], moreFragments4|offset)
		}
		b[8], b[9] = hopLimit, transportProto(t)
		return
	}
	b[0] = 0x60
	m.ipLen = uint16(len(m.bytes) - l.l3 - ip6Bytes)
	if l.fragments == 1 {
		m.ipLen = uint16(payload)
	}
	binary.BigEndian.PutUint16(b[4:], m.ipLen)
	b[6], b[7] = transportProto(t), hopLimit
	src, dst := t.Sources.First.As16(), t.Destinations.First.As16()
	copy(b[8:20], src[:12])
	copy(b[24:36], dst[:12])
	if l.fragments > 1 {
		b[6] = protoFragment
		f := b[ip6Bytes:]
		f[0] = transportProto(t)
		offset *= fragmentUnit // in the upper 13 bits
		if !last {
			offset |= moreFragments6
		}
		binary.BigEndian.PutUint16(f[2:], offset)
	}
}

// writeTransport writes the header of a datagram of length bytes.
func (m *template) writeTransport(t *Traffic, l *layout, length int) {
	b := m.bytes[l.l4:]
	switch t.Protocol {
	case UDP:
		m.l4Len = uint16(length)
		binary.BigEndian.PutUint16(b[4:], m.l4Len)
	case TCPSYN:
		binary.BigEndian.PutUint32(b[4:], uint32(tagMagic)<<16) // sequence number
		b[12], b[13] = tcpBytes/4<<4, tcpSYN
		binary.BigEndian.PutUint16(b[14:], tcpWindow)
	case ICMPEcho:
		b[0] = echoRequest
		if l.v6 {
			b[0] = echoRequest6
		}
	}
}
