package header

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/reason"
)

// SCTPBytes is the size of the common header (RFC 9260 section 3.1): ports, verification
// tag, checksum.
const SCTPBytes = 12

// Chunk types that change the state of an association (RFC 9260 section 3.2).
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
	chunkPadBytes = 3  // maximum padding after the last chunk
	initBytes     = 20 // an INIT without parameters (RFC 9260 section 3.3.2)
)

// sctpFlags returns the TCP flags that correspond to a packet whose first chunk is of the given
// type. So associations use the same state machine as connections:
//
//	INIT      SYN        SHUTDOWN           FIN, ACK    ABORT  RST
//	INIT ACK  SYN, ACK   SHUTDOWN ACK       FIN, ACK
//	COOKIE ECHO   ACK    SHUTDOWN COMPLETE  ACK         all others  ACK
//	COOKIE ACK    ACK
//
// COOKIE ECHO corresponds to the ACK of the handshake, COOKIE ACK to the server's first packet
// after it (RFC 9260 section 5.1), and SHUTDOWN COMPLETE to the last ACK (section 9.2).
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

// parseSCTP reads the common header and the header of the first chunk. An INIT makes a flow, so it
// must conform to RFC 9260: alone in its packet (section 6.10), complete, and with verification tag
// 0, which only an INIT has (section 8.5.1).
//
// Chunks after the first are not examined: each would cost a step. Chunks that senders put there
// (SHUTDOWN after SACK, ABORT after ERROR) are answered by a packet with the chunk first, or the
// flow ends at its timeout.
//
// A fragment is rejected, because its CRC covers the whole packet, but its ports are read first. A
// first fragment always has the ports, because it is at least 8 bytes long. So the caller can
// recognise fragments of a Service and need not leave them to the kernel.
func parseSCTP(b []byte, p *Packet) reason.Drop {
	if len(b) >= sctpPortBytes {
		p.Tuple.SrcPort = binary.BigEndian.Uint16(b[0:2])
		p.Tuple.DstPort = binary.BigEndian.Uint16(b[2:4])
	}
	if p.Fragment != NotFragment {
		return reason.SCTPFragment
	}
	if len(b) < SCTPBytes+chunkBytes {
		return reason.SCTPHeader
	}
	h := (*[SCTPBytes + chunkBytes]byte)(b)
	untagged := binary.BigEndian.Uint32(h[sctpTagOffset:]) == 0
	kind := h[SCTPBytes]
	bytes, room := int(binary.BigEndian.Uint16(h[SCTPBytes+2:])), int(p.End-p.L4)-SCTPBytes
	p.TCPFlags = sctpFlags(kind)
	switch {
	case bytes < chunkBytes || bytes > room, untagged != (kind == SCTPInit):
		return reason.SCTPHeader
	case kind == SCTPInit && (bytes < initBytes || room-bytes > chunkPadBytes):
		return reason.SCTPHeader
	case p.Tuple.SrcPort == 0 || p.Tuple.DstPort == 0:
		return reason.PortZero
	}
	return reason.None
}
