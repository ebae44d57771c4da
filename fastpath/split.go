package fastpath

import (
	"encoding/binary"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
)

// split fragments an IPv4 packet that is larger than its next link and whose
// sender allows it (RFC 791 section 3.2, RFC 1812 section 4.2.2.7). The packet
// itself becomes the first fragment; the others are packets of our own. A packet
// with IP options is dropped instead: which of them are copied is not worth
// knowing for what is left of them on the Internet.
func (w *Worker) split(o outgoing, hop *nexthop.Hop) Verdict {
	packet := w.mem[o.desc.Addr+uint64(o.l3) : o.desc.Addr+uint64(o.end)]
	if packet[0] != 0x45 || hop.MTU < header.IPv4Bytes+8 {
		return drop(stats.PacketTooBig)
	}
	payload := packet[header.IPv4Bytes:]
	chunk := int(hop.MTU-header.IPv4Bytes) &^ 7
	field := binary.BigEndian.Uint16(packet[6:])
	if field&(ipv4MoreFragments|ipv4OffsetMask) == 0 {
		// Behind one source address the identifications of all clients must differ
		// (RFC 6864 section 5.2). A packet that came as a fragment has its new one.
		binary.BigEndian.PutUint16(packet[4:], w.c.Fragments.NewID())
	}
	for at := chunk; at < len(payload); at += chunk {
		part := payload[at:min(at+chunk, len(payload))]
		more := field & ipv4MoreFragments
		if at+chunk < len(payload) {
			more = ipv4MoreFragments
		}
		w.sendPart(o, packet, part, more|(field&ipv4OffsetMask)+uint16(at/8), hop)
	}
	setFragment(packet[:header.IPv4Bytes], uint16(header.IPv4Bytes+chunk), field|ipv4MoreFragments)
	o.end = o.l3 + uint16(header.IPv4Bytes+chunk)
	w.queue(w.c.Egress[hop.Link], w.encapsulate(o, hop))
	return queued
}

// sendPart sends one fragment in a frame of its own.
func (w *Worker) sendPart(o outgoing, packet, part []byte, field uint16, hop *nexthop.Hop) {
	w.n.generated++
	addr, ok := w.pool.Get()
	if !ok {
		w.countDrop(stats.NoFrame)
		return
	}
	start := addr + frameHeadroom
	b := w.mem[start+header.EthernetBytes : addr+w.pool.frameSize]
	copy(b, packet[:header.IPv4Bytes])
	copy(b[header.IPv4Bytes:], part)
	size := uint16(header.IPv4Bytes + len(part))
	setFragment(b[:header.IPv4Bytes], size, field)
	o.desc = Desc{Addr: start, Len: uint32(header.EthernetBytes + size)}
	o.l3, o.end = header.EthernetBytes, header.EthernetBytes+size
	w.queue(w.c.Egress[hop.Link], w.encapsulate(o, hop))
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
