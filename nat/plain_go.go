package nat

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
)

// As in the Go twin of header's Inspect: how many frames' lines are prefetched together, after how
// many frames.
const atOnce, perFetch = 2, 4

// translatePlainGo is the twin of the assembly.
func translatePlainGo(
	m *header.Memory, frames []header.Frame, rewrites []header.Rewrite, ahead []header.Frame, both bool,
) {
	ahead = ahead[:header.Ahead(len(frames), len(ahead))]
	for i, f := range frames {
		if i%perFetch == 0 {
			n := min(atOnce, len(ahead))
			m.Fetch(ahead[:n], both)
			ahead = ahead[n:]
		}
		l := &rewrites[i]
		w := m.Window4(f.Addr)
		*(*[12]byte)(w[0:12]) = *l.MACs
		if l.Family == header.PlainIPv4 {
			rewrite4(w, *l.Addrs, l.IP)
			rewriteTransport(header.PlainTransport4(w), l)
			continue
		}
		w6 := m.Window6(f.Addr)
		rewrite6(w6, (*[4]uint64)(unsafe.Pointer(l.Addrs))) // Safety: four words, as Rewrite documents
		rewriteTransport(header.PlainTransport6(w6), l)
	}
}

func rewrite4(w *[header.Window4Bytes]byte, reversed uint64, delta uint16) {
	w[22]--
	const ttlLess = 1<<16 - 1 - 1 // the TTL is the low byte of a little endian word
	sum := uint32(^binary.LittleEndian.Uint16(w[24:26])) + uint32(delta) + ttlLess
	binary.LittleEndian.PutUint16(w[24:26], ^checksum.Fold(uint64(sum)))
	binary.BigEndian.PutUint64(w[26:34], bits.RotateLeft64(reversed, 32))
}

func rewrite6(w *[header.Window6Bytes]byte, reversed *[4]uint64) {
	w[21]--
	binary.BigEndian.PutUint64(w[22:30], reversed[2])
	binary.BigEndian.PutUint64(w[30:38], reversed[3])
	binary.BigEndian.PutUint64(w[38:46], reversed[0])
	binary.BigEndian.PutUint64(w[46:54], reversed[1])
}

func rewriteTransport(t *header.Transport, l *header.Rewrite) {
	binary.LittleEndian.PutUint32(t[0:4], l.Ports)
	field := t[checksumBits-l.Proto&checksumBits:]
	old := binary.LittleEndian.Uint16(field)
	sum := uint32(^old) + uint32(l.L4)
	updated := ^uint16(sum + sum>>16) // the sum of two words has at most one carry
	if (updated == 0 || old == 0) && l.Proto == header.ProtoUDP {
		// A datagram without a checksum stays without one, and a datagram with a checksum must not
		// appear to have none (RFC 768). TCP has no such rule.
		if updated = 0xffff; old == 0 {
			updated = 0
		}
	}
	binary.LittleEndian.PutUint16(field, updated)
}
