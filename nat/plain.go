package nat

import "sluice.dev/sluice/nat/header"

// TranslatePlain does what DecrementTTL and Translate do to packets that are plain (header.Plain),
// and writes the MAC addresses of their hops. rewrites must be as long as frames, all of which must
// have passed Inspect. It also prefetches the second lines of other frames
// (header.Memory.FetchEnds), of at most as many.
func TranslatePlain(m *header.Memory, frames []header.Frame, rewrites []header.Rewrite, ends []header.Frame) {
	translatePlain(m, frames, rewrites[:len(frames)], ends)
}

// checksumBits are the bits of both checksums' offsets, 16 and 6. Without those bits that a
// protocol number has, they are the offset of that protocol: 22-6 is TCP's and 22-16 is UDP's, as
// the other bit of 17 is none of them. The offset takes no branch, as protocols are mixed.
const (
	checksumBits = tcpChecksumOffset | udpChecksumOffset
	_            = -uint(checksumBits - header.ProtoTCP&checksumBits ^ tcpChecksumOffset)
	_            = -uint(checksumBits - header.ProtoUDP&checksumBits ^ udpChecksumOffset)
)

// What the assembly needs of another package: go_asm.h, which it includes, has this package's
// constants and the fields of its own types.
type (
	//lint:ignore U1000 the assembly uses it
	frame header.Frame
	//lint:ignore U1000 the assembly uses it
	memory header.Memory
	//lint:ignore U1000 the assembly uses it
	rewrite header.Rewrite
)

const (
	//lint:ignore U1000 the assembly uses it
	plainIPv4 = header.PlainIPv4
	//lint:ignore U1000 the assembly uses it
	protoUDP = header.ProtoUDP
)
