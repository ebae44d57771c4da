package fastpath

import (
	"encoding/binary"
	"hash/crc32"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// A segment that changes its flow, by more than the time of the flow's last packet, must have a
// good checksum. Otherwise an attacker could change the flow with packets that neither end of the
// connection accepts. Such segments are few (handshake, FIN, RST, and the segments after them). A
// segment with a bad checksum is forwarded, and its checksum stays wrong by the same amount.

// segment returns the fields of a packet that the flow table needs. It must be called before the
// packet is rewritten. A fragment changes no flow, because its checksum covers data that is not in
// it.
func (w *Worker) segment(d Desc, p *header.Packet, ref flowtable.Ref, side flowtable.Side) flowtable.Segment {
	later := p.Fragment == header.LaterFragment
	s := flowtable.Segment{Flags: p.TCPFlags, Unverified: p.Fragment != header.NotFragment, Later: later}
	if later || !p.Tuple.Stateful() {
		return s
	}
	b := p.Transport(w.frame(d))
	if p.Tuple.Proto == header.ProtoTCP {
		readTCP(&s, b, p)
	} else {
		s.Data = header.SCTPCarries(b[header.SCTPBytes])
	}
	s.Unverified = s.Unverified || !w.flows.Changes(ref, side, s, w.planner.Now) || !w.verify(d, p)
	return s
}

// readTCP sets the fields of s that the TCP header b has.
func readTCP(s *flowtable.Segment, b []byte, p *header.Packet) {
	h := (*[header.TCPBytes]byte)(b)
	s.Seq, s.Ack = binary.BigEndian.Uint32(h[4:8]), binary.BigEndian.Uint32(h[8:12])
	s.Data = p.End-p.L4 > uint16(h[12]>>4)*4
}

// unreliableSYN reports whether a packet of a known flow is a SYN that the backend may not receive
// or may discard: a fragment, one with an expired TTL, or one without a good checksum. The backend
// may then not answer with the challenge ACK that shows that the connection still exists (RFC 5961
// section 4). So the SYN must not count as a repetition, and must not replace the flow.
func (w *Worker) unreliableSYN(d Desc, p *header.Packet) bool {
	return p.Tuple.Stateful() && decide.IsSYN(p.TCPFlags) &&
		(p.Fragment != header.NotFragment || p.TTL <= 1 || !w.verify(d, p))
}

// verify reports whether the checksum of a TCP segment or SCTP packet is good. It counts bad ones.
func (w *Worker) verify(d Desc, p *header.Packet) bool {
	switch w.transportChecksum(d, p) {
	case header.ChecksumGood:
		return true
	case header.ChecksumUnfinished:
		w.n.unfinishedChecksums++
	default:
		w.n.wrongChecksums++
	}
	return false
}

func (w *Worker) transportChecksum(d Desc, p *header.Packet) header.Checksum {
	part := w.frame(d)
	if p.Tuple.Proto == header.ProtoSCTP {
		return header.VerifySCTP(part[p.L4:], w.crc(d, p))
	}
	rest := uint16(0)
	if d.Len == 0 {
		rest = w.chains.sum(w.mem, d, len(part), int(p.End), len(part)-int(p.L4))
	}
	return header.VerifyTCP(part, p, rest)
}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	noCRC      [4]byte
)

// crc returns the CRC32c of an SCTP packet whose CRC field is zero.
func (w *Worker) crc(d Desc, p *header.Packet) uint32 {
	const at, end = header.SCTPBytes - len(noCRC), header.SCTPBytes // of the field
	b := p.Transport(w.frame(d))
	crc := crc32.Update(crc32.Update(0, castagnoli, b[:at]), castagnoli, noCRC[:])
	crc = crc32.Update(crc, castagnoli, b[end:])
	if d.Len != 0 {
		return crc
	}
	left := int(p.End-p.L4) - len(b)
	for next, more := w.chains.Next(d.Addr); more && left > 0; next, more = w.chains.Next(next) {
		n := min(left, int(w.chains.at(next).bytes))
		crc = crc32.Update(crc, castagnoli, w.mem[next:next+uint64(n)])
		left -= n
	}
	return crc
}
