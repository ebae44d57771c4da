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
	// ChecksumUnfinished: the sender left it to a device to compute, and none has done so
	// (CHECKSUM_PARTIAL, include/linux/skbuff.h). A TCP segment has the sum of the pseudo-header in
	// its place, an SCTP packet zero.
	ChecksumUnfinished
)

const tcpChecksumOffset = 16

// VerifyTCP returns the state of the checksum of a TCP segment (RFC 9293 section 3.1), which must
// be whole. As in ChecksumLongICMP, part is the first part of its frame, and rest the sum of the
// words that follow.
func VerifyTCP(part []byte, p *Packet, rest uint16) Checksum {
	b := p.Transport(part)
	pseudo := checksum.Add(p.Tuple.sumAddrs(), checksum.Add(p.End-p.L4, ProtoTCP))
	if checksum.Add(checksum.Add(checksum.Sum(b), rest), pseudo) == 0xffff {
		return ChecksumGood
	}
	// Both forms of zero are the same sum.
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

// SCTPCarries reports whether a chunk type is one that an open association sends: not of the
// handshake, nor of the shutdown, nor an error.
func SCTPCarries(chunkType uint8) bool {
	switch chunkType {
	case SCTPInit, SCTPInitAck, SCTPAbort, SCTPShutdown, SCTPShutdownAck, sctpError, SCTPCookieEcho, SCTPCookieAck,
		SCTPShutdownComplete:
		return false
	}
	return true
}
