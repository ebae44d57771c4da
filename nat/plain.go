package nat

import "sluice.dev/sluice/nat/header"

// TranslatePlain combines DecrementTTL and Translate for plain packets (header.Plain), and writes
// the MAC addresses of their hops. rewrites must be as long as frames. Inspect must have accepted
// each frame. In between it prefetches the lines of the first frames ahead (header.Memory.Fetch);
// header.Ahead returns of how many.
func TranslatePlain(
	m *header.Memory, frames []header.Frame, rewrites []header.Rewrite, ahead []header.Frame, both bool,
) {
	translatePlain(m, frames, rewrites[:len(frames)], ahead, both)
}

// checksumBits has the bits of both checksum offsets, 16 and 6. Without the bits that a protocol
// number also has, it is the offset for that protocol: 22-6 for TCP and 22-16 for UDP, because the
// other bit of 17 is not in it. So the offset is computed without a branch, which mixed protocols
// would make unpredictable.
const (
	checksumBits = tcpChecksumOffset | udpChecksumOffset
	_            = -uint(checksumBits - header.ProtoTCP&checksumBits ^ tcpChecksumOffset)
	_            = -uint(checksumBits - header.ProtoUDP&checksumBits ^ udpChecksumOffset)
)

// The types and constants of another package that the assembly needs: it includes go_asm.h, which
// has only the constants and types of this package.
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
