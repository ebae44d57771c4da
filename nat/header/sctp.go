package header

import (
	"encoding/binary"

	"sluice.dev/sluice/fastpath/stats"
)

// SCTPBytes is the size of the common header (RFC 9260 section 3.1): ports, verification
// tag, checksum.
const SCTPBytes = 12

// Chunk types that change what an association is (RFC 9260 section 3.2).
const (
	SCTPInit             = 1
	SCTPInitAck          = 2
	SCTPAbort            = 6
	SCTPShutdown         = 7
	SCTPShutdownAck      = 8
	SCTPCookieEcho       = 10
	SCTPCookieAck        = 11
	SCTPShutdownComplete = 14
)

const (
	sctpPortBytes = 4
	sctpTagOffset = 4
	sctpCRCOffset = 8
	sctpError     = 9  // chunk type
	chunkBytes    = 4  // type, flags, length
	chunkPadBytes = 3  // at most, behind the last chunk
	initBytes     = 20 // an INIT without parameters (RFC 9260 section 3.3.2)
)

// sctpFlags returns the TCP flags that mean the same as a packet whose first chunk is of
// a type. An association then lives in the one state machine that connections live in:
//
//	INIT      SYN        SHUTDOWN           FIN, ACK    ABORT  RST
//	INIT ACK  SYN, ACK   SHUTDOWN ACK       FIN, ACK
//	COOKIE ECHO   ACK    SHUTDOWN COMPLETE  ACK         all others  ACK
//	COOKIE ACK    ACK
//
// COOKIE ECHO is the ACK of the handshake, COOKIE ACK the server's first word after it
// (RFC 9260 section 5.1), SHUTDOWN COMPLETE the last ACK (section 9.2).
func sctpFlags(chunkType uint8) uint8 {
	switch chunkType {
	case SCTPInit:
		return TCPSYN
	case SCTPInitAck:
		return TCPSYN | TCPACK
	case SCTPAbort:
		return TCPRST
	case SCTPShutdown, SCTPShutdownAck:
		return TCPFIN | TCPACK
	}
	return TCPACK
}

// parseSCTP reads the common header and the header of the first chunk. What an INIT asks
// for costs us a flow, so it must be as RFC 9260 demands: alone in its packet (section
// 6.10), whole, and without a verification tag, which no other packet lacks (section 8.5.1).
//
// Chunks behind the first are not examined: each costs a step, and the ones that come
// there (SHUTDOWN behind SACK, ABORT behind ERROR) are answered by one that comes first, or
// leave the flow to its timeout.
//
// A fragment is refused, after its ports are read: its CRC is the whole packet's. A first one has
// them, as it is 8 bytes long or more: so whose it is can be told of the shortest, and no kernel
// puts together what is ours.
func parseSCTP(b []byte, p *Packet) stats.DropReason {
	if len(b) >= sctpPortBytes {
		p.Tuple.SrcPort = binary.BigEndian.Uint16(b[0:2])
		p.Tuple.DstPort = binary.BigEndian.Uint16(b[2:4])
	}
	if p.Fragment != NotFragment {
		return stats.SCTPFragment
	}
	if len(b) < SCTPBytes+chunkBytes {
		return stats.SCTPHeader
	}
	h := (*[SCTPBytes + chunkBytes]byte)(b)
	untagged := binary.BigEndian.Uint32(h[sctpTagOffset:]) == 0
	kind := h[SCTPBytes]
	bytes, room := int(binary.BigEndian.Uint16(h[SCTPBytes+2:])), int(p.End-p.L4)-SCTPBytes
	p.TCPFlags = sctpFlags(kind)
	switch {
	case bytes < chunkBytes || bytes > room, untagged != (kind == SCTPInit):
		return stats.SCTPHeader
	case kind == SCTPInit && (bytes < initBytes || room-bytes > chunkPadBytes):
		return stats.SCTPHeader
	case p.Tuple.SrcPort == 0 || p.Tuple.DstPort == 0:
		return stats.PortZero
	}
	return stats.None
}
