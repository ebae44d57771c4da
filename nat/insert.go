package nat

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/proxyproto"
)

// A Service with PROXY protocol gets a header in front of the client's bytes: of TCP once, of UDP
// in each datagram. The functions of this file write them, and for TCP translate the sequence
// numbers of all other segments of the connection:
//
//	client side:  sequence number + bytes of the header
//	reply side:   acknowledgement number and SACK blocks - bytes of the header
//
// The other numbers count the backend's bytes, to which nothing is added. An urgent pointer is
// relative to the sequence number.

const (
	tcpWindowOffset = 14
	udpLengthOffset = 4

	// TCP options (RFC 9293 section 3.2, RFC 7323 section 3, RFC 2018 section 3, RFC 8684 section
	// 3, RFC 7413 section 4.1.1, RFC 9768 section 3.2.3, RFC 6994 section 3).
	optionEnd          = 0
	optionNOP          = 1
	optionSACK         = 5
	optionTimestamps   = 8
	optionMultipath    = 30
	optionFastOpen     = 34
	optionAccECN0      = 172
	optionAccECN1      = 174
	optionExperiment   = 254
	fastOpenExperiment = 0xf989

	sackBlockBytes  = 8
	timestampsBytes = 10
)

// Timestamps are the fields of a segment's timestamps option; OK is false if it has none.
type Timestamps struct {
	Value, Echo uint32
	OK          bool
}

// TimestampsOf returns the timestamps of a TCP segment.
func TimestampsOf(frame []byte, p *header.Packet) (t Timestamps) {
	for options := optionsOf(p.Transport(frame)); ; {
		kind, option, rest := nextOption(options)
		switch {
		case kind == optionEnd:
			return t
		case kind == optionTimestamps && len(option) == timestampsBytes:
			return Timestamps{binary.BigEndian.Uint32(option[2:]), binary.BigEndian.Uint32(option[6:]), true}
		}
		options = rest
	}
}

// WindowOf returns the window field of a TCP segment, in units of the sender's window scale.
func WindowOf(frame []byte, p *header.Packet) uint16 {
	return binary.BigEndian.Uint16(p.Transport(frame)[tcpWindowOffset:])
}

// optionsOf returns the options of a TCP segment, as far as they are in b.
func optionsOf(b []byte) []byte {
	end := min(int(b[tcpDataOffset]>>4)*4, len(b))
	return b[header.TCPBytes:max(end, header.TCPBytes)]
}

// nextOption returns the first of some options with its kind and length bytes, and the options
// after it. kind is optionEnd at the end, and if the option is malformed.
func nextOption(b []byte) (kind uint8, option, rest []byte) {
	switch {
	case len(b) == 0 || b[0] == optionEnd:
		return optionEnd, nil, nil
	case b[0] == optionNOP:
		return optionNOP, b[:1], b[1:]
	case len(b) < 2 || b[1] < 2 || int(b[1]) > len(b):
		return optionEnd, nil, nil
	}
	return b[0], b[:b[1]], b[b[1]:]
}

// ProxySegment describes the segment that carries the PROXY header of a connection.
type ProxySegment struct {
	Client header.Tuple // client to frontend: the addresses in the header
	Out    header.Tuple // towards the backend
	// Seq is the sequence number of the header's first byte.
	Seq, Ack   uint32
	Window     uint16 // as in the header, not scaled
	Timestamps Timestamps
	TTL        uint8
	// Of the client's ACK that the segment replaces, or zero: options, in place of Timestamps;
	// the bits AE, CWR and ECE (RFC 9768, RFC 3168); and DSCP, ECN and flow label, as in IPv6.
	options    [maxOptionBytes]byte
	optionsLen uint8
	congestion uint16
	flow       uint32
}

const (
	maxOptionBytes = 40
	congestionBits = 0x01c0
	ipv6FlowBits   = 0x0fffffff
)

// Replace copies the fields of a client's ACK, other than its sequence numbers, into the segment.
func (s *ProxySegment) Replace(frame []byte, p *header.Packet) {
	b := p.Transport(frame)
	s.optionsLen = uint8(copy(s.options[:], optionsOf(b)))
	keepHarmless(s.options[:s.optionsLen])
	s.congestion = binary.BigEndian.Uint16(b[tcpDataOffset:]) & congestionBits
	if ip := frame[p.L3:]; p.Tuple.V6 {
		s.flow = binary.BigEndian.Uint32(ip) & ipv6FlowBits
	} else {
		s.flow = uint32(ip[1]) << 20
	}
}

// keepHarmless replaces by NOPs the options that may make a receiver discard the segment, such as
// TCP-MD5 and TCP-AO (RFC 2385, RFC 5925): the client would choose whether the header arrives.
func keepHarmless(options []byte) {
	for len(options) > 0 {
		kind, option, rest := nextOption(options)
		switch kind {
		case optionSACK, optionTimestamps, optionAccECN0, optionAccECN1:
		case optionEnd: // and malformed options
			option, rest = options, nil
			fallthrough
		default:
			for i := range option {
				option[i] = optionNOP
			}
		}
		options = rest
	}
}

// BuildProxySegment writes into dst an untagged Ethernet header whose addresses are zero, and the
// segment. It returns the length of the frame in bytes, or 0 if dst has no room.
func BuildProxySegment(dst []byte, s *ProxySegment) int {
	ipBytes, etherType, optionBytes := header.IPv4Bytes, header.EtherTypeIPv4, 0
	if s.Out.V6 {
		ipBytes, etherType = header.IPv6Bytes, header.EtherTypeIPv6
	}
	if s.optionsLen > 0 {
		optionBytes = int(s.optionsLen)
	} else if s.Timestamps.OK {
		optionBytes = 2 + timestampsBytes // two NOPs align them (RFC 7323 appendix A)
	}
	start := header.EthernetBytes + ipBytes
	n := start + header.TCPBytes + optionBytes + int(proxyproto.Bytes(s.Out.V6))
	if len(dst) < n {
		return 0
	}
	clear(dst[:start+header.TCPBytes])
	binary.BigEndian.PutUint16(dst[header.EthernetBytes-2:], uint16(etherType))
	tcp := dst[start:n]
	if s.optionsLen > 0 {
		copy(tcp[header.TCPBytes:], s.options[:s.optionsLen])
	} else if s.Timestamps.OK {
		o := tcp[header.TCPBytes:]
		o[0], o[1], o[2], o[3] = optionNOP, optionNOP, optionTimestamps, timestampsBytes
		binary.BigEndian.PutUint32(o[4:], s.Timestamps.Value)
		binary.BigEndian.PutUint32(o[8:], s.Timestamps.Echo)
	}
	proxyproto.Put(tcp[header.TCPBytes+optionBytes:], &s.Client)
	binary.BigEndian.PutUint16(tcp[srcPortOffset:], s.Out.SrcPort)
	binary.BigEndian.PutUint16(tcp[dstPortOffset:], s.Out.DstPort)
	binary.BigEndian.PutUint32(tcp[tcpSeqOffset:], s.Seq)
	binary.BigEndian.PutUint32(tcp[tcpAckOffset:], s.Ack)
	tcp[tcpDataOffset] = uint8(header.TCPBytes+optionBytes)/4<<4 | uint8(s.congestion>>8)
	tcp[tcpFlagsOffset] = header.TCPACK | header.TCPPSH | uint8(s.congestion)
	binary.BigEndian.PutUint16(tcp[tcpWindowOffset:], s.Window)
	sum := checksum.Add(checksum.Sum(tcp), checksum.Add(uint16(len(tcp)), header.ProtoTCP))
	sum = checksum.Add(sum, checksum.Add(s.Out.Src.Sum(), s.Out.Dst.Sum()))
	binary.BigEndian.PutUint16(tcp[tcpChecksumOffset:], ^sum)
	ip := dst[header.EthernetBytes:start]
	writeTCPIP(ip, &s.Out, s.TTL, uint16(len(tcp)))
	if s.Out.V6 {
		binary.BigEndian.PutUint32(ip, 6<<28|s.flow)
	} else if tos := uint8(s.flow >> 20); tos != 0 {
		ip[1] = tos
		updateAt(ip[ipv4ChecksumOffset:], checksum.Delta(0x4500, 0x4500|uint16(tos)))
	}
	return n
}

// Insertion is a header in front of a client's bytes, and how much of it the backend is known to
// have.
type Insertion struct {
	// First is the sequence number of the header's first byte towards the backend, and of the
	// client's first byte towards the gateway.
	First uint32
	Bytes uint32
	// Sent: the header has been sent, so the client's bytes come after it. Acked: the backend has
	// acknowledged it.
	Sent, Acked bool
}

// ToBackend returns the sequence number for the backend of a client's sequence number. It must be
// Sent.
func (i *Insertion) ToBackend(seq uint32) uint32 { return seq + i.Bytes }

// ToClient returns the client's number for a sequence number that the backend acknowledges, or that
// a quoted segment to the backend has. Until the header is acknowledged, a number inside of it is
// the client's first byte; a number before it is that of the client's SYN.
func (i *Insertion) ToClient(seq uint32) uint32 {
	switch offset := seq - i.First; {
	case !i.Sent:
		return seq
	case i.Acked || offset > i.Bytes && offset < 1<<31:
		return seq - i.Bytes
	case offset <= i.Bytes:
		return i.First
	}
	return seq
}

// covers reports whether a sequence number towards the backend is inside of the header or at its
// end.
func (i *Insertion) covers(seq uint32) bool { return seq-i.First <= i.Bytes }

// ShiftToBackend translates the sequence number of a client's segment, whose header has been Sent.
func ShiftToBackend(frame []byte, p *header.Packet, i *Insertion) {
	SetSequence(frame, p, i.ToBackend(binary.BigEndian.Uint32(p.Transport(frame)[tcpSeqOffset:])))
}

// SetSequence replaces the sequence number of a TCP segment.
func SetSequence(frame []byte, p *header.Packet, seq uint32) {
	b := (*[header.TCPBytes]byte)(p.Transport(frame))
	updateAt(b[tcpChecksumOffset:], replace(b[tcpSeqOffset:], seq))
}

// cookieStep is more than the distance between any two SYN cookies with the same hash, of which
// there are four (flowtable.Insertion.Begins).
const cookieStep = 7

// BreakCookie changes the numbers of a client's segment, which could begin a connection by a SYN
// cookie, so that they do not, and so that they are valid for a backend that has the connection.
// Bytes of the client acknowledge a little less. A segment without bytes keeps its acknowledgement
// number, because it may be the last one for a long time, and gets a sequence number behind the
// client's next byte (RFC 9293 section 3.10.7.4: in the window, its acknowledgement counts).
func BreakCookie(frame []byte, p *header.Packet, bytes bool) {
	b := (*[header.TCPBytes]byte)(p.Transport(frame))
	at, step := tcpSeqOffset, uint32(cookieStep)
	if bytes {
		at, step = tcpAckOffset, -step
	}
	updateAt(b[tcpChecksumOffset:], replace(b[at:], binary.BigEndian.Uint32(b[at:])+step))
}

// replace writes a word of 32 bits at the start of b, which must be at an even offset, and returns
// the checksum delta.
func replace(b []byte, word uint32) uint16 {
	old := binary.BigEndian.Uint32(b)
	binary.BigEndian.PutUint32(b, word)
	return checksum.Add(checksum.Delta(uint16(old>>16), uint16(word>>16)), checksum.Delta(uint16(old), uint16(word)))
}

// ShiftToClient translates a backend's segment. The window of a SYN-ACK, and of each segment before
// the header is acknowledged, is smaller by the header, which uses a part of it. These windows may
// be scaled; then they are smaller than necessary, until the header is acknowledged.
func ShiftToClient(frame []byte, p *header.Packet, i *Insertion) {
	b := p.Transport(frame)
	h := (*[header.TCPBytes]byte)(b)
	if p.TCPFlags&header.TCPACK == 0 {
		return
	}
	delta := uint16(0)
	if syn := p.TCPFlags&header.TCPSYN != 0; syn || i.Sent && !i.Acked {
		window := binary.BigEndian.Uint16(h[tcpWindowOffset:])
		less := window - uint16(min(uint32(window), i.Bytes))
		binary.BigEndian.PutUint16(h[tcpWindowOffset:], less)
		delta = checksum.Delta(window, less)
		if syn {
			updateAt(h[tcpChecksumOffset:], delta)
			return
		}
	}
	delta = checksum.Add(delta, replace(h[tcpAckOffset:], i.ToClient(binary.BigEndian.Uint32(h[tcpAckOffset:]))))
	if i.Sent {
		options := optionsOf(b)
		before := checksum.Sum(options)
		shiftSACK(options, i)
		delta = checksum.Add(delta, checksum.Add(^before, checksum.Sum(options)))
	}
	updateAt(h[tcpChecksumOffset:], delta)
}

// shiftSACK translates the SACK blocks in some options of a backend's segment. While the header is
// not acknowledged, blocks are removed: the backend has bytes after the header, and to the client
// they would begin at the first byte that is not acknowledged, as if the backend had discarded it.
// A block of the header alone, which reports a duplicate (RFC 2883), is removed as well.
func shiftSACK(options []byte, i *Insertion) {
	for {
		kind, option, rest := nextOption(options)
		switch {
		case kind == optionEnd:
			return
		case kind == optionSACK && len(option)%sackBlockBytes == 2:
			shiftBlocks(option, i)
		}
		options = rest
	}
}

// shiftBlocks translates one SACK option, and writes NOPs in place of removed blocks.
func shiftBlocks(option []byte, i *Insertion) {
	end := 2
	for at := 2; at < len(option); at += sackBlockBytes {
		left, right := binary.BigEndian.Uint32(option[at:]), binary.BigEndian.Uint32(option[at+4:])
		if !i.Acked || i.covers(right) {
			continue
		}
		if left -= i.Bytes; i.covers(left + i.Bytes) {
			left = i.First
		}
		binary.BigEndian.PutUint32(option[end:], left)
		binary.BigEndian.PutUint32(option[end+4:], right-i.Bytes)
		end += sackBlockBytes
	}
	if end == 2 {
		end = 0
	} else {
		option[1] = uint8(end)
	}
	for at := end; at < len(option); at++ {
		option[at] = optionNOP
	}
}

// PrependHeader writes the PROXY header of a client's datagram between its UDP header and its
// payload. frame begins bytes of the PROXY header before the packet's frame, so that the headers
// move and the payload stays. The packet must be whole and in frame. It returns the new end of the
// packet from the start of frame; the offsets of the headers stay as they are in p.
func PrependHeader(frame []byte, p *header.Packet, client *header.Tuple) (end uint16) {
	bytes := uint16(proxyproto.Bytes(client.V6))
	headers := int(p.L4) + header.UDPBytes
	copy(frame, frame[bytes:int(bytes)+headers])
	added := frame[headers : headers+int(bytes)]
	proxyproto.Put(added, client)
	h := (*[header.UDPBytes]byte)(frame[p.L4:])
	old := binary.BigEndian.Uint16(h[udpLengthOffset:])
	binary.BigEndian.PutUint16(h[udpLengthOffset:], old+bytes)
	if field := h[udpChecksumOffset:]; binary.BigEndian.Uint16(field) != 0 {
		// The length is in the datagram and in the pseudo-header (RFC 768).
		lengths := checksum.Delta(old, old+bytes)
		lengths = checksum.Add(lengths, lengths)
		if updateAt(field, checksum.Add(lengths, checksum.Sum(added))); binary.BigEndian.Uint16(field) == 0 {
			binary.BigEndian.PutUint16(field, 0xffff)
		}
	}
	lengthen(frame, p, bytes)
	return p.End + bytes
}

// LowerPathMTU subtracts bytes from the path MTU that an ICMP error announces (header.PathMTU).
func LowerPathMTU(frame []byte, p *header.Packet, bytes uint16) {
	mtu := frame[p.L4+6:] // the low half of ICMPv6's field
	old := binary.BigEndian.Uint16(mtu)
	binary.BigEndian.PutUint16(mtu, old-bytes)
	updateAt(frame[p.L4+icmpChecksumOffset:], checksum.Delta(old, old-bytes))
}

// ShiftQuote translates the TCP sequence numbers in the packet that an ICMP error quotes.
// toBackend: the quoted packet went to the backend, so the error goes to the client. A SYN leaves
// with its own number, or with hidden if the header is sent; both become the number of the client's
// first SYN. It updates the checksums of the quoted segment, if it is quoted, and of the error.
func ShiftQuote(frame []byte, outer, inner *header.Packet, i *Insertion, hidden uint32, toBackend bool) {
	b := frame[inner.L4:inner.End]
	before := sumHeaders(frame, inner)
	delta := uint16(0)
	switch {
	case toBackend:
		seq := binary.BigEndian.Uint32(b[tcpSeqOffset:])
		if syn := i.First - 1; seq == syn || seq == hidden {
			seq = syn
		} else {
			seq = i.ToClient(seq)
		}
		delta = replace(b[tcpSeqOffset:], seq)
	case i.Acked && len(b) > tcpFlagsOffset && b[tcpFlagsOffset]&(header.TCPSYN|header.TCPACK) == header.TCPACK:
		delta = replace(b[tcpAckOffset:], i.ToBackend(binary.BigEndian.Uint32(b[tcpAckOffset:])))
	}
	if len(b) >= tcpChecksumOffset+2 {
		updateAt(b[tcpChecksumOffset:], delta)
	}
	updateAt(frame[outer.L4+icmpChecksumOffset:], checksum.Add(^before, sumHeaders(frame, inner)))
}

// StripOpening makes a client's SYN one that only opens a connection: it removes data, and replaces
// by NOPs a Fast Open option (RFC 7413; in its experimental form, section 4.1.1 of the RFC's
// appendix) and one of Multipath TCP, whose mappings count the stream's bytes without the header
// (RFC 8684). TCP-AO and MD5 cannot pass a translation of addresses. The backend then acknowledges
// the SYN alone, and the client sends its data again after the handshake, behind the header. The
// packet must be whole and in frame. It returns the new end of the packet, which p.End must become.
func StripOpening(frame []byte, p *header.Packet) (end uint16) {
	b := p.Transport(frame)
	bytes := int(b[tcpDataOffset]>>4) * 4
	data := b[bytes:]
	delta := ^checksum.Sum(data)
	options := b[header.TCPBytes:bytes]
	delta = checksum.Add(delta, ^checksum.Sum(options))
	for o := options; ; {
		kind, option, rest := nextOption(o)
		if kind == optionEnd {
			break
		}
		if kind == optionFastOpen || kind == optionMultipath || kind == optionExperiment && len(option) >= 4 &&
			binary.BigEndian.Uint16(option[2:]) == fastOpenExperiment {
			for i := range option {
				option[i] = optionNOP
			}
		}
		o = rest
	}
	delta = checksum.Add(delta, checksum.Sum(options))
	delta = checksum.Add(delta, checksum.Delta(uint16(len(b)), uint16(bytes))) // of the pseudo-header
	updateAt(b[tcpChecksumOffset:], delta)
	lengthen(frame, p, -uint16(len(data)))
	return p.End - uint16(len(data))
}

// lengthen adds bytes to the length field of an IP header.
func lengthen(frame []byte, p *header.Packet, bytes uint16) {
	if p.Tuple.V6 {
		field := frame[p.L3+ipv6LengthOffset:]
		binary.BigEndian.PutUint16(field, binary.BigEndian.Uint16(field)+bytes)
		return
	}
	h := (*[header.IPv4Bytes]byte)(frame[p.L3:])
	old := binary.BigEndian.Uint16(h[ipv4LengthOffset:])
	binary.BigEndian.PutUint16(h[ipv4LengthOffset:], old+bytes)
	updateAt(h[ipv4ChecksumOffset:], checksum.Delta(old, old+bytes))
}
