package fastpath

import (
	"encoding/binary"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// split fragments an IPv4 packet without DF that is larger than the hop's MTU (RFC 791 section 3.2,
// RFC 1812 section 4.2.2.7). The packet itself becomes the first fragment; the others are generated
// packets.
func (w *Worker) split(o outgoing, hop *nexthop.Hop) decide.Verdict {
	ip := w.frame(o.desc)[o.l3:]
	headerBytes := int(ip[0]&15) * 4
	chunk := w.chunk(headerBytes, len(ip), hop)
	if chunk < 8 {
		return drop(reason.PacketTooBig)
	}
	ip = ip[:headerBytes]
	payloadBytes := int(o.end-o.l3) - headerBytes
	field := binary.BigEndian.Uint16(ip[6:])
	if field&(ipv4MoreFragments|ipv4OffsetMask) == 0 {
		// The packets of all clients with one source address must have different identifications
		// (RFC 6864 section 5.2). A packet that is a fragment already has a new one.
		binary.BigEndian.PutUint16(ip[4:], w.c.Fragments.NewID())
	}
	for at := chunk; at < payloadBytes; at += chunk {
		more := field & ipv4MoreFragments
		if at+chunk < payloadBytes {
			more = ipv4MoreFragments
		}
		w.sendPart(o, ip, at, min(chunk, payloadBytes-at), more|(field&ipv4OffsetMask)+uint16(at/8), hop)
	}
	setFragment(ip, uint16(headerBytes+chunk), field|ipv4MoreFragments)
	o.end = o.l3 + uint16(headerBytes+chunk)
	w.queue(w.c.Egress[hop.Link], w.encapsulate(o, hop))
	return queued
}

// chunk returns the payload of each fragment but the last, in bytes: as much as the hop's MTU and a
// frame allow. first is the number of bytes of the packet that are in its first buffer, and bounds
// the first fragment.
func (w *Worker) chunk(headerBytes, first int, hop *nexthop.Hop) int {
	own := int(w.pool.frameSize) - frameHeadroom - header.EthernetBytes
	return (min(int(hop.MTU), own, first) - headerBytes) &^ 7
}

// sendPart sends one fragment in a frame of its own: the packet's IP header and bytes bytes of its
// payload, from offset at.
func (w *Worker) sendPart(o outgoing, ip []byte, at, bytes int, field uint16, hop *nexthop.Hop) {
	w.n.generated++
	addr, ok := w.pool.Get()
	if !ok {
		w.countDrop(o.desc, reason.NoFrame)
		if w.tap != nil {
			w.tapLost(o.desc, reason.NoFrame)
		}
		return
	}
	start := addr + frameHeadroom
	b := w.mem[start+header.EthernetBytes : addr+w.pool.frameSize]
	copy(b, ip)
	keepCopiedOptions(b[header.IPv4Bytes:len(ip)])
	w.copy(b[len(ip):][:bytes], o.desc, int(o.l3)+len(ip)+at)
	size := uint16(len(ip) + bytes)
	setFragment(b[:len(ip)], size, field)
	part := Desc{Addr: start, Len: uint32(header.EthernetBytes + size)}
	if w.tap != nil {
		w.tapMade(o.desc, part)
	}
	o.desc = part
	o.l3, o.end = header.EthernetBytes, header.EthernetBytes+size
	w.queue(w.c.Egress[hop.Link], w.encapsulate(o, hop))
}

// keepCopiedOptions overwrites the options that only the first fragment may have (RFC 791 section
// 3.1: the copied flag) with no-operations, as Linux does (ip_options_fragment,
// net/ipv4/ip_options.c). header.Parse has checked that each option is within b.
func keepCopiedOptions(b []byte) {
	const end, noOp, copied = 0, 1, 0x80
	for len(b) > 0 && b[0] != end {
		bytes := 1
		if b[0] != noOp {
			if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
				return
			}
			bytes = int(b[1])
		}
		if b[0]&copied == 0 {
			for i := range b[:bytes] {
				b[i] = noOp
			}
		}
		b = b[bytes:]
	}
}

// RFC 791 section 3.1: flags and fragment offset.
const (
	ipv4MoreFragments = 0x2000
	ipv4OffsetMask    = 0x1fff
)

func setFragment(ip []byte, size, field uint16) {
	binary.BigEndian.PutUint16(ip[2:], size)
	binary.BigEndian.PutUint16(ip[6:], field)
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], ^checksum.Sum(ip))
}
