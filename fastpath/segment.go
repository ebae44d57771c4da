package fastpath

import (
	"hash/crc32"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// A segment that changes its flow, by more than the time of the flow's last packet, must have a
// good checksum. Otherwise an attacker could change the flow with packets that neither end of the
// connection accepts. Such segments are few (handshake, FIN, RST, and the segments after them). A
// segment with a bad checksum is forwarded, and its checksum stays wrong by the same amount.

// verified returns the packet's segment for the flow table. Unverified is set unless the segment
// changes the flow and has a good checksum. A fragment changes no flow, because its checksum covers
// data that is not in it. verified must be called before the packet is rewritten.
func (w *Worker) verified(p *packet, ref flowtable.Ref, side flowtable.Side) flowtable.Segment {
	s := p.segment
	if p.Tuple.Stateful() && !s.Unverified {
		s.Unverified = !w.flows.Changes(ref, side, s, w.planner.Now) || !w.verify(p)
	}
	return s
}

// unreliableSYN reports whether a packet of a known flow is a SYN that the backend may not receive
// or may discard: a fragment, one with an expired TTL, or one without a good checksum. The backend
// may then not answer with the challenge ACK that shows that the connection still exists (RFC 5961
// section 4). So the SYN must not count as a repetition, and must not replace the flow.
func (w *Worker) unreliableSYN(p *packet) bool {
	return p.opensConnection() &&
		(p.Fragment != header.NotFragment || p.TTL <= 1 || !w.verify(p))
}

// verify reports whether the checksum of a TCP segment or SCTP packet is good. It computes the
// checksum of a packet once, and counts a bad one once.
func (w *Worker) verify(p *packet) bool {
	if p.checksum == unchecked {
		p.checksum = damaged
		switch w.transportChecksum(p) {
		case header.ChecksumGood:
			p.checksum = intact
		case header.ChecksumUnfinished:
			w.n.unfinishedChecksums++
		default:
			w.n.wrongChecksums++
		}
	}
	return p.checksum == intact
}

func (w *Worker) transportChecksum(p *packet) header.Checksum {
	if p.Tuple.Proto == header.ProtoSCTP {
		return header.VerifySCTP(p.frame[p.L4:], w.crc(p))
	}
	return header.VerifyTCP(p.frame, &p.Packet, w.restSum(p))
}

// restSum returns the sum, for the transport checksum, of the packet's bytes after its first
// buffer.
func (u *umem) restSum(p *packet) uint16 {
	if !p.long() {
		return 0
	}
	first := len(p.frame)
	return u.chains.sum(u.mem, p.desc, first, int(p.End), first-int(p.L4))
}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	noCRC      [4]byte
)

// crc returns the CRC32c of an SCTP packet whose CRC field is zero.
func (u *umem) crc(p *packet) uint32 {
	const at, end = header.SCTPBytes - len(noCRC), header.SCTPBytes // of the field
	b := p.Transport(p.frame)
	crc := crc32.Update(crc32.Update(0, castagnoli, b[:at]), castagnoli, noCRC[:])
	crc = crc32.Update(crc, castagnoli, b[end:])
	if !p.long() {
		return crc
	}
	left := int(p.End-p.L4) - len(b)
	for next, more := u.chains.Next(p.desc.Addr); more && left > 0; next, more = u.chains.Next(next) {
		n := min(left, int(u.chains.at(next).bytes))
		crc = crc32.Update(crc, castagnoli, u.mem[next:next+uint64(n)])
		left -= n
	}
	return crc
}
