package header

import (
	"encoding/binary"

	"sluice.dev/sluice/nat/checksum"
)

// Checksum is the state of a packet's transport checksum.
type Checksum uint8

const (
	ChecksumGood Checksum = iota
	ChecksumWrong
	// ChecksumUnfinished: the sender left the computation to a device, and no device has done it
	// (CHECKSUM_PARTIAL, include/linux/skbuff.h). The field has the sum of the pseudo-header in a
	// TCP segment, and zero in an SCTP packet.
	ChecksumUnfinished
)

const tcpChecksumOffset = 16

// VerifyTCP returns the state of the checksum of a TCP segment (RFC 9293 section 3.1), which must
// not be fragmented. As in ChecksumLongICMP, part is the first part of its frame, and rest is the
// sum of the words that follow.
func VerifyTCP(part []byte, p *Packet, rest uint16) Checksum {
	b := p.Transport(part)
	pseudo := checksum.Add(p.Tuple.sumAddrs(), checksum.Add(p.End-p.L4, ProtoTCP))
	if checksum.Add(checksum.Add(checksum.Sum(b), rest), pseudo) == 0xffff {
		return ChecksumGood
	}
	// Both forms of zero are equal as sums.
	if field := binary.BigEndian.Uint16(b[tcpChecksumOffset:]); checksum.Delta(pseudo, field) == 0xffff {
		return ChecksumUnfinished
	}
	return ChecksumWrong
}

// VerifySCTP returns the state of the CRC of an SCTP packet (RFC 9260 appendix A). header must have
// at least the common header, and crc must be the CRC32c of the whole packet with its field zero.
func VerifySCTP(header []byte, crc uint32) Checksum {
	switch binary.LittleEndian.Uint32(header[sctpCRCOffset:]) {
	case crc:
		return ChecksumGood
	case 0:
		return ChecksumUnfinished
	}
	return ChecksumWrong
}

// SCTPCarries reports whether an open association sends this chunk type: it is not part of the
// handshake or the shutdown, and no error.
func SCTPCarries(chunkType uint8) bool {
	switch chunkType {
	case SCTPInit, SCTPInitAck, SCTPAbort, SCTPShutdown, SCTPShutdownAck, sctpError, SCTPCookieEcho, SCTPCookieAck,
		SCTPShutdownComplete:
		return false
	}
	return true
}
