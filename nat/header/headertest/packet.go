package headertest

import (
	"encoding/binary"
	"net/netip"
)

// TCP flags.
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// Packet describes one frame.
type Packet struct {
	DstMAC, SrcMAC [6]byte  // zero: locally administered defaults
	VLAN           []uint16 // TCIs, outer first; two or more make all but the last 802.1ad

	Src, Dst netip.Addr
	TTL      uint8  // zero: 64
	TOS      uint8  // or traffic class
	ID       uint16 // IPv4
	DF       bool   // IPv4
	Options  []byte // IPv4, padded with end-of-list to a multiple of four
	// Extensions are IPv6 headers before the transport header.
	Extensions []Extension

	Proto            uint8 // 6, 17, 1, 58, 132, or anything with a Payload
	SrcPort, DstPort uint16

	Flags      uint8 // TCP
	Seq, Ack   uint32
	Window     uint16 // TCP; zero: 64240
	TCPOptions []byte // padded like Options

	NoChecksum bool // UDP: zero checksum

	// SCTP: the first chunk, whose value is Payload. Its length field covers all of Payload, so a
	// test of a second chunk shortens it.
	Chunk uint8
	Tag   uint32

	ICMPType, ICMPCode uint8
	ICMPRest           uint32 // bytes 4 to 7: identifier and sequence number, MTU, ...

	Payload []byte
	Padding int // bytes of Ethernet padding after the IP packet
}

// Extension is an IPv6 extension header; its next-header byte is filled in.
type Extension struct {
	Type uint8
	Data []byte // after next header and length: 6 bytes, or 6 plus a multiple of 8
}

// Extension header types.
const (
	HopByHop    = 0
	Routing     = 43
	Fragment    = 44
	Destination = 60
)

// ISN is the initial sequence number of both ends in TCP.
const ISN = 0x01020304

// TCP describes a segment of a connection on which neither end has sent data; the ends are
// "address:port".
func TCP(src, dst string, flags uint8) *Packet {
	p := between(src, dst)
	p.Proto, p.Flags, p.Seq = 6, flags, ISN+1
	if flags&SYN != 0 {
		p.Seq = ISN
	}
	if flags&ACK != 0 {
		p.Ack = ISN + 1
	}
	return p
}

// UDP describes a datagram.
func UDP(src, dst string, payload string) *Packet {
	p := between(src, dst)
	p.Proto, p.Payload = 17, []byte(payload)
	return p
}

// SCTP describes a packet with one chunk of the given type. INIT and INIT ACK have no optional
// parameters (RFC 9260 section 3.3.2); other chunks are empty.
func SCTP(src, dst string, chunk uint8) *Packet {
	p := between(src, dst)
	p.Proto, p.Chunk, p.Tag = 132, chunk, 0x0a0b0c0d
	if chunk == 1 {
		p.Tag = 0
	}
	if chunk == 1 || chunk == 2 {
		p.Payload = []byte{1, 2, 3, 4, 0, 1, 0xa0, 0, 0, 10, 0xff, 0xff, 5, 6, 7, 8}
	}
	return p
}

// Echo describes an echo request, or the reply if reply is set. The ends are addresses.
func Echo(src, dst string, id, seq uint16, reply bool) *Packet {
	p := &Packet{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst)}
	p.Proto, p.ICMPType = 1, 8
	if reply {
		p.ICMPType = 0
	}
	if p.Dst.Is6() {
		p.Proto, p.ICMPType = 58, 128
		if reply {
			p.ICMPType = 129
		}
	}
	p.ICMPRest = uint32(id)<<16 | uint32(seq)
	p.Payload = []byte("abcdefghijklmnopqrstuvw")
	return p
}

// ICMPError describes an error from src to dst that quotes the IP packet of a frame, at most
// quoteBytes of the packet; a negative number means all.
func ICMPError(src, dst string, icmpType, code uint8, rest uint32, quoted []byte, quoteBytes int) *Packet {
	p := &Packet{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst)}
	p.Proto, p.ICMPType, p.ICMPCode, p.ICMPRest = 1, icmpType, code, rest
	if p.Dst.Is6() {
		p.Proto = 58
	}
	ip := IP(quoted)
	if quoteBytes >= 0 && quoteBytes < len(ip) {
		ip = ip[:quoteBytes]
	}
	p.Payload = append([]byte(nil), ip...)
	return p
}

func between(src, dst string) *Packet {
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	return &Packet{Src: s.Addr(), Dst: d.Addr(), SrcPort: s.Port(), DstPort: d.Port()}
}

// Bytes builds the frame.
func (p *Packet) Bytes() []byte {
	frame := p.ethernet()
	transport := p.transport()
	if p.Dst.Is4() {
		frame = append(frame, p.ipv4(len(transport))...)
	} else {
		frame = append(frame, p.ipv6(len(transport))...)
	}
	frame = append(frame, transport...)
	return append(frame, make([]byte, p.Padding)...)
}

func (p *Packet) ethernet() []byte {
	dst, src := p.DstMAC, p.SrcMAC
	if dst == [6]byte{} {
		dst = [6]byte{2, 0, 0, 0, 0, 1}
	}
	if src == [6]byte{} {
		src = [6]byte{2, 0, 0, 0, 0, 2}
	}
	b := append(dst[:], src[:]...)
	for i, tci := range p.VLAN {
		tpid := uint16(0x8100)
		if i < len(p.VLAN)-1 {
			tpid = 0x88a8
		}
		b = binary.BigEndian.AppendUint16(b, tpid)
		b = binary.BigEndian.AppendUint16(b, tci)
	}
	if p.Dst.Is4() {
		return append(b, 0x08, 0x00)
	}
	return append(b, 0x86, 0xdd)
}

func (p *Packet) ttl() uint8 {
	if p.TTL == 0 {
		return 64
	}
	return p.TTL
}

func (p *Packet) ipv4(payloadBytes int) []byte {
	options := pad(p.Options)
	h := make([]byte, 20, 60)
	h[0], h[1] = 0x45+byte(len(options)/4), p.TOS
	binary.BigEndian.PutUint16(h[2:], uint16(20+len(options)+payloadBytes))
	binary.BigEndian.PutUint16(h[4:], p.ID)
	if p.DF {
		h[6] = 0x40
	}
	h[8], h[9] = p.ttl(), p.Proto
	copy(h[12:], p.Src.AsSlice())
	copy(h[16:], p.Dst.AsSlice())
	h = append(h, options...)
	binary.BigEndian.PutUint16(h[10:], ^add(0, h))
	return h
}

func (p *Packet) ipv6(payloadBytes int) []byte {
	var chain []byte
	types := make([]uint8, 0, len(p.Extensions)+1)
	for _, e := range p.Extensions {
		types = append(types, e.Type)
	}
	types = append(types, p.Proto)
	for i, e := range p.Extensions {
		chain = append(chain, types[i+1], byte((len(e.Data)-6)/8))
		chain = append(chain, e.Data...)
	}
	h := make([]byte, 40)
	h[0], h[1] = 0x60|p.TOS>>4, p.TOS<<4
	binary.BigEndian.PutUint16(h[4:], uint16(len(chain)+payloadBytes))
	h[6], h[7] = types[0], p.ttl()
	copy(h[8:], p.Src.AsSlice())
	copy(h[24:], p.Dst.AsSlice())
	return append(h, chain...)
}

// transport builds the transport header with its checksum, and the payload.
func (p *Packet) transport() []byte {
	var b []byte
	field := -1
	switch p.Proto {
	case 132:
		return p.sctp()
	case 6:
		b, field = p.tcp(), 16
	case 17:
		b = make([]byte, 8)
		binary.BigEndian.PutUint16(b[4:], uint16(8+len(p.Payload)))
		field = 6
	case 1, 58:
		b = make([]byte, 8)
		b[0], b[1] = p.ICMPType, p.ICMPCode
		binary.BigEndian.PutUint32(b[4:], p.ICMPRest)
		field = 2
	}
	if p.Proto == 6 || p.Proto == 17 {
		binary.BigEndian.PutUint16(b, p.SrcPort)
		binary.BigEndian.PutUint16(b[2:], p.DstPort)
	}
	b = append(b, p.Payload...)
	if field < 0 || p.NoChecksum {
		return b
	}
	sum := ^add(pseudo(p.Src.AsSlice(), p.Dst.AsSlice(), p.Proto, len(b)), b)
	if p.Proto == 17 && sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b[field:], sum)
	return b
}

func (p *Packet) tcp() []byte {
	options := pad(p.TCPOptions)
	b := make([]byte, 20)
	binary.BigEndian.PutUint32(b[4:], p.Seq)
	binary.BigEndian.PutUint32(b[8:], p.Ack)
	b[12] = byte(5+len(options)/4) << 4
	b[13] = p.Flags
	window := p.Window
	if window == 0 {
		window = 64240
	}
	binary.BigEndian.PutUint16(b[14:], window)
	return append(b, options...)
}

func (p *Packet) sctp() []byte {
	b := make([]byte, 16)
	binary.BigEndian.PutUint16(b, p.SrcPort)
	binary.BigEndian.PutUint16(b[2:], p.DstPort)
	binary.BigEndian.PutUint32(b[4:], p.Tag)
	b[12] = p.Chunk
	if p.Chunk == 0 {
		b[13] = 3 // DATA: a whole message
	}
	binary.BigEndian.PutUint16(b[14:], uint16(4+len(p.Payload)))
	b = append(b, pad(p.Payload)...)
	binary.LittleEndian.PutUint32(b[8:], crc32c(b))
	return b
}

func pad(options []byte) []byte {
	b := append([]byte(nil), options...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}
